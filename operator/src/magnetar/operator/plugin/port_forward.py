"""Ports of this machine that lead to pods: each connection has one of its own to a pod, by the API server.

`kubectl port-forward` holds one connection to one pod for all, and ends with it. Here a pod that goes takes only its
own connections along: whoever connects again comes to another one that is ready.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from magnetar.core.errors import MagnetarError, Unavailable
from magnetar.operator.kubernetes.errors import NotFound, PodPortRefused
from magnetar.operator.kubernetes.pods import PodStream
from magnetar.operator.plugin.kubernetes import Kubernetes

LOCALHOST: Final = "127.0.0.1"
CHUNK_BYTES: Final = 1 << 16
REPLAY_BYTES_MAX: Final = 1 << 18
"""What a client has sent before the pod's first answer is kept, so that another pod can have it if this one's port is
closed; a client that sends more first is not handed on."""
WAIT_SECONDS_MAX: Final = 60.0
"""How long a connection waits for a pod that is ready; clients give up earlier or later and come again."""
WAIT_STEP_SECONDS: Final = 1.0
CONNECT_SECONDS_MAX: Final = 20.0
HALF_CLOSED_SECONDS: Final = 2.0
"""How long an answer may take once the client says no more: the way to the pod cannot be closed in one direction."""

Pods = Callable[[], Awaitable[Sequence[str]]]
"""Names of pods that may take a connection, the best first."""


@dataclass(slots=True, kw_only=True)
class Forwarding:
    """One local port, and what became of its connections."""

    kubernetes: Kubernetes
    namespace: str
    pods: Pods
    pod_port: int
    wait_seconds_max: float = WAIT_SECONDS_MAX
    said: Callable[[str], None] = lambda _: None
    """Told of what hinders, for people."""
    trouble: list[str] = field(default_factory=list)
    port: int = 0
    """The port on this machine."""
    open_connections: int = 0
    turn: int = 0


@contextlib.asynccontextmanager
async def forwarded(forwarding: Forwarding, *, address: str, port: int) -> AsyncIterator[Forwarding]:
    """Listen while the block runs. `port` 0: any that is free. `OSError`."""
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(_serve(forwarding, reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, address, port, limit=CHUNK_BYTES, backlog=512)
    forwarding.port = server.sockets[0].getsockname()[1]
    try:
        yield forwarding
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def forwarded_to(kubernetes: Kubernetes, namespace: str, pod: str, port: int) -> AsyncIterator[Forwarding]:
    """A way to one pod, for as long as the block runs; what hinders stands in `trouble`."""

    async def only() -> Sequence[str]:
        return [pod]

    forwarding = Forwarding(kubernetes=kubernetes, namespace=namespace, pods=only, pod_port=port, wait_seconds_max=0.0)
    forwarding.said = forwarding.trouble.append
    async with forwarded(forwarding, address=LOCALHOST, port=0):
        yield forwarding


async def _serve(forwarding: Forwarding, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    forwarding.open_connections += 1
    connection = _Connection(reader, writer)
    try:
        await _find_pod(forwarding, connection)
    except MagnetarError as error:
        forwarding.said(str(error))
    except (ConnectionError, TimeoutError):
        forwarding.said("a connection broke")
    finally:
        forwarding.open_connections -= 1
        writer.close()
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await writer.wait_closed()


async def _find_pod(forwarding: Forwarding, connection: _Connection) -> None:
    """Try pods until one has taken the connection and let it go. `Unavailable`."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + forwarding.wait_seconds_max
    trouble = "no pod is ready"
    while True:
        names = list(await forwarding.pods())
        forwarding.turn += 1
        for name in _rotated(names, forwarding.turn):
            try:
                await _through(forwarding, name, connection)
                return
            except (PodPortRefused, NotFound) as error:
                trouble = f"{name}: {error}"
        if connection.is_lost or loop.time() >= give_up_at:
            raise Unavailable(trouble)
        forwarding.said(f"{trouble}; waiting")
        await asyncio.sleep(WAIT_STEP_SECONDS)


def _rotated(names: list[str], turn: int) -> list[str]:
    at = turn % len(names) if names else 0
    return names[at:] + names[:at]


async def _through(forwarding: Forwarding, pod: str, connection: _Connection) -> None:
    async with contextlib.AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                opened = forwarding.kubernetes.connect(forwarding.namespace, pod, forwarding.pod_port)
                stream = await stack.enter_async_context(opened)
        except TimeoutError:
            raise PodPortRefused("no connection in time") from None
        await connection.pass_through(stream)


class _Connection:
    """A local client, which may be handed to another pod until the first answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._sent = bytearray()
        self._answered = False

    @property
    def is_lost(self) -> bool:
        """The client has gone."""
        return self._reader.at_eof() and not self._sent

    async def pass_through(self, stream: PodStream) -> None:
        """Carry bytes both ways until either side ends. `PodPortRefused` if another pod may be tried; `Unavailable`."""
        upward = asyncio.create_task(self._upward(stream))
        downward = asyncio.create_task(self._downward(stream))
        try:
            await asyncio.wait((upward, downward), return_when=asyncio.FIRST_COMPLETED)
            if not downward.done():
                # The client may still listen; and if its bytes could not be sent, the pod's side says why.
                await asyncio.wait((downward,), timeout=HALF_CLOSED_SECONDS)
        finally:
            for task in (upward, downward):
                task.cancel()
            results = await asyncio.gather(upward, downward, return_exceptions=True)
        for error in reversed(results):
            if isinstance(error, PodPortRefused) and (self._answered or len(self._sent) > REPLAY_BYTES_MAX):
                raise Unavailable(str(error))
            if isinstance(error, Exception) and not isinstance(error, ConnectionError):
                raise error

    async def _upward(self, stream: PodStream) -> None:
        if self._sent:
            await stream.send(bytes(self._sent))
        while data := await self._reader.read(CHUNK_BYTES):
            if not self._answered and len(self._sent) <= REPLAY_BYTES_MAX:
                self._sent += data
            await stream.send(data)

    async def _downward(self, stream: PodStream) -> None:
        while data := await stream.receive():
            if not self._answered:
                self._answered = True
                self._sent.clear()
            self._writer.write(data)
            await self._writer.drain()
