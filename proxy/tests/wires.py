"""Brokers and clients of raw frames, for tests of what a proxy does between them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

from magnetar.net.testing import close_server
from magnetar.wire.haproxy import ProxyHeaderDecoder
from magnetar.wire.pulsar import messages
from magnetar.wire.pulsar.frame import command_splitter
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

PATIENCE_SECONDS: Final = 30.0
"""How long anything may take before the test fails."""

Answer = Callable[[pb.BaseCommand], pb.BaseCommand | None]


def connect_command(**fields: Any) -> pb.BaseCommand:
    """CONNECT as a client of today sends it, with these fields."""
    command = pb.BaseCommand(type=pb.BaseCommand.CONNECT)
    command.connect.MergeFrom(pb.CommandConnect(**{"client_version": "test", "protocol_version": 21, **fields}))
    return command


class Wire:
    """One end of a connection that speaks commands."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._splitter = command_splitter()
        self._commands: list[pb.BaseCommand] = []

    @staticmethod
    async def open(port: int, before: bytes = b"") -> Wire:
        """To a port of this machine; `before` is sent first."""
        wire = Wire(*await asyncio.open_connection("127.0.0.1", port))
        wire.writer.write(before)
        return wire

    @staticmethod
    async def connected(port: int, **fields: Any) -> Wire:
        """With the handshake done."""
        wire = await Wire.open(port)
        wire.send(connect_command(**fields))
        answer = await wire.receive()
        assert answer is not None
        assert answer.type == pb.BaseCommand.CONNECTED, answer
        return wire

    def send(self, command: pb.BaseCommand) -> None:
        """Send a command."""
        self.writer.write(messages.encode_command(command))

    async def receive(self) -> pb.BaseCommand | None:
        """The next command that is no PING; None when the connection has ended."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                while not self._commands:
                    try:
                        data = await self.reader.read(65536)
                    except ConnectionError:
                        return None
                    if not data:
                        return None
                    buffer, bounds = self._splitter.feed(data)
                    for index in range(0, len(bounds), 2):
                        self._commands.append(messages.decode_command(buffer, bounds[index], bounds[index + 1]))
                command = self._commands.pop(0)
                if command.type != pb.BaseCommand.PING:
                    return command
                self.send(pb.BaseCommand(type=pb.BaseCommand.PONG, pong=pb.CommandPong()))

    async def ask(self, command: pb.BaseCommand) -> pb.BaseCommand:
        """Send a command and take the next one."""
        self.send(command)
        answer = await self.receive()
        assert answer is not None
        return answer

    def close(self) -> None:
        """Close the connection at once."""
        self.writer.transport.abort()


class ScriptedBroker:
    """Says CONNECTED, answers commands as told, and keeps what it was sent.

    With `raw` it stops reading commands after CONNECTED; its connections are then in `wires` for the test's own use."""

    def __init__(self, answer: Answer | None = None, *, raw: bool = False) -> None:
        self._answer = answer
        self._raw = raw
        self._server: asyncio.Server | None = None
        self._stopped = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.connects: list[pb.CommandConnect] = []
        self.commands: list[pb.BaseCommand] = []
        self.first_bytes: list[bytes] = []
        """What came in the first read of each connection."""
        self.wires: asyncio.Queue[Wire] = asyncio.Queue()
        self.open_wires: list[Wire] = []
        self.connected = pb.BaseCommand(
            type=pb.BaseCommand.CONNECTED,
            connected=pb.CommandConnected(
                server_version="scripted",
                protocol_version=20,
                max_message_size=1234,
                feature_flags=pb.FeatureFlags(supports_topic_watchers=True),
            ),
        )
        self.greet: Callable[[pb.CommandConnect], pb.BaseCommand] | None = None
        """What CONNECT is answered with, where that is not always `connected`."""
        self.port = 0

    @property
    def service_url(self) -> str:
        """Where it is."""
        return f"pulsar://127.0.0.1:{self.port}"

    @property
    def host_and_port(self) -> str:
        """As clients write it into CONNECT."""
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._arrived, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)

    def stop(self) -> None:
        """Vanish: no new connections, the old ones broken off."""
        assert self._server is not None
        if self._stopped:
            return
        self._stopped = True
        self._tasks.add(asyncio.get_running_loop().create_task(close_server(self._server)))
        for wire in self.open_wires:
            wire.close()

    async def _arrived(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        wire = Wire(reader, writer)
        if self._stopped:
            # It was accepted when nobody looked any more.
            wire.close()
            return
        self.open_wires.append(wire)
        await self._greet(wire)
        if self._raw:
            await self.wires.put(wire)
            return
        while (command := await _next(wire)) is not None:
            self.commands.append(command)
            answer = self._answer(command) if self._answer is not None else None
            if answer is not None:
                wire.send(answer)

    async def _greet(self, wire: Wire) -> None:
        # A PROXY header, if there is one, comes with CONNECT in one write.
        first = await wire.reader.read(65536)
        self.first_bytes.append(first)
        buffer, bounds = command_splitter().feed(ProxyHeaderDecoder().feed(first))
        if not bounds:
            return
        self.connects.append(messages.decode_command(buffer, bounds[0], bounds[1]).connect)
        wire.send(self.connected if self.greet is None else self.greet(self.connects[-1]))


async def _next(wire: Wire) -> pb.BaseCommand | None:
    try:
        return await wire.receive()
    except TimeoutError:
        return None
