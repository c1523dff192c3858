"""Clients that mean no good, thousands of them in one process: `python -m e2e.floods.attack --port … --seconds …`.

Only at loopback addresses, only for the time given. Prints a line of JSON when all are connected, and one at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import resource
import socket
import sys
from dataclasses import asdict, dataclass
from typing import Final

import uvloop
from magnetar.wire.pulsar import messages
from magnetar.wire.pulsar.command import PONG_FRAME
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import (
    BaseCommand,
    CommandConnect,
    CommandGetTopicsOfNamespace,
    CommandLookupTopic,
)

CONNECT: Final = messages.encode_command(
    BaseCommand(type=BaseCommand.CONNECT, connect=CommandConnect(client_version="flood", protocol_version=21))
)
LIST: Final = messages.encode_command(
    BaseCommand(
        type=BaseCommand.GET_TOPICS_OF_NAMESPACE,
        getTopicsOfNamespace=CommandGetTopicsOfNamespace(request_id=1, namespace="public/default"),
    )
)
LOOKUP: Final = messages.encode_command(
    BaseCommand(type=BaseCommand.LOOKUP, lookupTopic=CommandLookupTopic(topic="t" * 40, request_id=1))
)
HALF_FRAME: Final = (5 << 20).to_bytes(4, "big") + bytes(1 << 20)
"""The beginning of a message of 5 MiB."""

AGAIN_SECONDS: Final = 1.0
"""Whoever is cut or refused comes back after that."""

BYTE_SECONDS: Final = 1.0
"""Between two bytes of a slow one."""

REQUESTS_AT_ONCE: Final = 200
CONNECTING_AT_ONCE: Final = 200
RECEIVE_BUFFER_BYTES: Final = 4096


@dataclass(slots=True)
class Counts:
    """Of one attack."""

    connected: int = 0
    ended: int = 0
    """Connections that the server ended."""
    sent_bytes: int = 0


class Attack:
    """Runs until cancelled."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._gate = asyncio.Semaphore(CONNECTING_AT_ONCE)
        self.counts = Counts()

    async def idle(self) -> None:
        """Says CONNECT, answers PING, and nothing else."""
        with await self._open() as raw:
            await self._send(raw, CONNECT)
            while await self._loop.sock_recv(raw, 4096):
                await self._send(raw, PONG_FRAME)

    async def slow(self) -> None:
        """A byte a second."""
        with await self._open() as raw:
            for byte in CONNECT + LIST * 1_000:
                await self._send(raw, bytes([byte]))
                await asyncio.sleep(BYTE_SECONDS)

    async def silent(self) -> None:
        """Asks all the time and reads nothing."""
        with await self._open() as raw:
            await self._send(raw, CONNECT)
            while True:
                await self._send(raw, LIST * REQUESTS_AT_ONCE + LOOKUP * REQUESTS_AT_ONCE)
                await asyncio.sleep(0.1)

    async def half(self) -> None:
        """The beginning of a large frame, and no more."""
        with await self._open() as raw:
            await self._send(raw, CONNECT)
            await self._loop.sock_recv(raw, 4096)
            await self._send(raw, HALF_FRAME)
            while await self._loop.sock_recv(raw, 4096):
                pass

    async def again_and_again(self, kind: str) -> None:
        """One such client, for ever."""
        while True:
            with contextlib.suppress(OSError):
                await getattr(self, kind)()
            self.counts.ended += 1
            await asyncio.sleep(AGAIN_SECONDS)

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    async def _open(self) -> socket.socket:
        async with self._gate:
            raw = socket.socket()
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            raw.setblocking(False)
            await self._loop.sock_connect(raw, ("127.0.0.1", self._port))
            self.counts.connected += 1
            return raw

    async def _send(self, raw: socket.socket, data: bytes) -> None:
        await self._loop.sock_sendall(raw, data)
        self.counts.sent_bytes += len(data)


async def run(port: int, numbers: dict[str, int], seconds: float) -> None:
    """All at once, for so long."""
    attack = Attack(port)
    tasks = [
        asyncio.create_task(attack.again_and_again(kind)) for kind, number in numbers.items() for _ in range(number)
    ]
    while attack.counts.connected < len(tasks):  # noqa: ASYNC110  (nobody tells)
        await asyncio.sleep(0.05)
    print(json.dumps(asdict(attack.counts)), flush=True)
    await asyncio.sleep(seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    print(json.dumps(asdict(attack.counts)), flush=True)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=20)
    for kind in ("idle", "slow", "silent", "half"):
        parser.add_argument(f"--{kind}", type=int, default=0)
    given = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    numbers = {kind: getattr(given, kind) for kind in ("idle", "slow", "silent", "half")}
    uvloop.run(run(given.port, numbers, given.seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
