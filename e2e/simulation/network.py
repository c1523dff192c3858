"""A network between simulated hosts: connections that delay, stall, break and refuse, all by the seed.

Within a connection bytes keep their order, in any chunking; between connections nothing has an order. A path that is
blocked holds bytes back, as TCP does by sending again, until it is healed. A host whose power fails says nothing: who
writes to it waits, and hears of a reset once it is up again. One whose process is killed closes its connections.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final

from magnetar.sim.process import Process

from e2e.simulation.transport import SimulatedTransport

CONNECT_RETRY_SECONDS: Final = 0.2
"""A connection request that is lost is sent again after this long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSettings:
    """How the network is when nothing is wrong with it."""

    delay_seconds_min: float = 50e-6
    jitter_seconds: float = 150e-6
    """Mean of what comes on top, exponentially distributed."""
    straggler_share: float = 0.01
    """Chunks that take `straggler_seconds` longer at most."""
    straggler_seconds: float = 0.05
    split_share: float = 0.1
    """Chunks that arrive in two pieces."""


class SimulatedServer:
    """What `create_server` returns; has what the program asks of it."""

    def __init__(self, network: Network, process: Process, port: int) -> None:
        self._network = network
        self._process = process
        self.port = port
        self.sockets = [self]

    def getsockname(self) -> tuple[str, int]:
        """Where it listens."""
        return (self._process.host, self.port)

    async def start_serving(self) -> None:
        """Take connections, if it does not yet."""
        self._network.start_serving(self._process.host, self.port)

    def close(self) -> None:
        """Take no more connections."""
        self._network.stop_listening(self._process.host, self.port)

    async def wait_closed(self) -> None:
        """It is closed at once."""


class Listening:
    """A port that is listened on."""

    __slots__ = ("factory", "process", "serving")

    def __init__(self, process: Process, factory: Callable[[], asyncio.BaseProtocol], *, serving: bool) -> None:
        self.process = process
        self.factory = factory
        self.serving = serving
        """Else the port is taken, and connections are refused."""


class Network:
    """All hosts, their listeners and connections, and what is wrong between them."""

    def __init__(self, loop: Any, rng: random.Random, settings: NetworkSettings | None = None) -> None:
        """`loop` is a `SimulatedLoop`."""
        self.loop = loop
        self.rng = rng
        self.settings = settings or NetworkSettings()
        self.delivered_chunks = 0
        self._up: dict[str, Process] = {}
        self._listening: dict[tuple[str, int], Listening] = {}
        self._transports: list[SimulatedTransport] = []
        self._blocked: dict[tuple[str, str], int] = {}
        self._slow: dict[tuple[str, str], float] = {}
        self._next_port = 50_000

    # --- hosts

    def host_up(self, process: Process) -> None:
        """A process runs on its host from now on. Peers of an earlier one that still send hear that it is gone."""
        self._up[process.host] = process
        for transport in self._transports:
            if transport.process.host == process.host and not transport.process.alive:
                transport.peer_restarted()

    def host_down(self, process: Process, *, silently: bool) -> None:
        """The process is dead. Unless `silently`, its host closes the connections that it had."""
        if self._up.get(process.host) is process:
            del self._up[process.host]
        for key in [key for key, listening in self._listening.items() if listening.process is process]:
            del self._listening[key]
        for transport in self._transports:
            if transport.process is process:
                transport.process_died(silently=silently)

    def is_up(self, host: str) -> bool:
        """Whether a process runs there."""
        return host in self._up

    # --- what is wrong

    def block(self, sources: Collection[str], targets: Collection[str]) -> Callable[[], None]:
        """Let nothing through from these hosts to those (not the other way); returns the way to heal it."""
        pairs = [(source, target) for source in sources for target in targets if source != target]
        for pair in pairs:
            self._blocked[pair] = self._blocked.get(pair, 0) + 1
        healed = False

        def heal() -> None:
            nonlocal healed
            if healed:
                return
            healed = True
            for pair in pairs:
                self._blocked[pair] -= 1
                if not self._blocked[pair]:
                    del self._blocked[pair]
            for transport in self._transports:
                transport.path_may_be_open()

        return heal

    def partition(self, some: Collection[str], others: Collection[str]) -> Callable[[], None]:
        """Block both ways; returns the way to heal it."""
        one_way, other_way = self.block(some, others), self.block(others, some)

        def heal() -> None:
            one_way()
            other_way()

        return heal

    def slow_down(self, source: str, target: str, seconds: float) -> None:
        """Let everything between two hosts, in one direction, take up to this much longer; 0: as usual."""
        self._slow[(source, target)] = seconds

    def reset(self, one: str, other: str) -> int:
        """Break all connections between two hosts; how many there were."""
        broken = [
            transport
            for transport in self._transports
            if transport.process.host == one and transport.other.process.host == other
        ]
        for transport in broken:
            transport.break_both()
        return len(broken)

    def heal(self) -> None:
        """Nothing is wrong any more between any two hosts that are up."""
        self._blocked.clear()
        self._slow.clear()
        for transport in self._transports:
            transport.path_may_be_open()

    def is_blocked(self, source: str, target: str) -> bool:
        """Whether nothing gets through in this direction now."""
        return (source, target) in self._blocked

    def delay_seconds(self, source: str, target: str) -> float:
        """How long the next chunk takes."""
        settings, rng = self.settings, self.rng
        delay = settings.delay_seconds_min + rng.expovariate(1 / settings.jitter_seconds)
        if rng.random() < settings.straggler_share:
            delay += rng.random() * settings.straggler_seconds
        slow = self._slow.get((source, target))
        if slow:
            delay += rng.random() * slow
        return delay

    # --- connections

    def listen(
        self, process: Process, factory: Callable[[], asyncio.BaseProtocol], port: int, *, serving: bool = True
    ) -> SimulatedServer:
        """Listen at a port of a host, for `asyncio.loop.create_server`."""
        if not port:
            port = self._new_port()
        if (process.host, port) in self._listening:
            raise OSError(98, f"{process.host}:{port} is in use")
        self._listening[(process.host, port)] = Listening(process, factory, serving=serving)
        return SimulatedServer(self, process, port)

    def start_serving(self, host: str, port: int) -> None:
        """Take connections at a port from now on."""
        listening = self._listening.get((host, port))
        if listening is not None:
            listening.serving = True

    def stop_listening(self, host: str, port: int) -> None:
        """Refuse connections to this port from now on."""
        self._listening.pop((host, port), None)

    async def connect(
        self, process: Process, factory: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> tuple[SimulatedTransport, asyncio.Protocol]:
        """Connect two hosts, for `asyncio.loop.create_connection`. To a host that is down or out of reach it takes for
        ever."""
        await self._travel(process.host, host, wait_until_up=True)
        listening = self._listening.get((host, port))
        if listening is None or not listening.serving:
            await self._travel(host, process.host, wait_until_up=False)
            raise ConnectionRefusedError(111, f"{host}:{port} refuses connections")
        ours = SimulatedTransport(self, process, (process.host, self._new_port()))
        theirs = SimulatedTransport(self, listening.process, (host, port))
        ours.join(theirs)
        self._transports += (ours, theirs)
        theirs.begin(listening.factory)
        try:
            await self._travel(host, process.host, wait_until_up=False)
        except asyncio.CancelledError:
            ours.abort()
            raise
        protocol = factory()
        if ours.broken:
            raise ConnectionResetError(104, f"{host}:{port} has closed the connection")
        ours.connected(protocol)
        self.loop.trace.note(process.name, f"connected to {host}:{port}")
        return ours, protocol

    def gone(self, transport: SimulatedTransport) -> None:
        """Both ends of a connection have ended."""
        if transport in self._transports:
            self._transports.remove(transport)

    async def _travel(self, source: str, target: str, *, wait_until_up: bool) -> None:
        await asyncio.sleep(self.delay_seconds(source, target))
        # A lost request is sent again after a while, not when the path heals.
        while (source, target) in self._blocked or (wait_until_up and target not in self._up):  # noqa: ASYNC110
            await asyncio.sleep(CONNECT_RETRY_SECONDS * (1 + self.rng.random()))

    def _new_port(self) -> int:
        self._next_port += 1
        return self._next_port
