"""One end of a simulated connection: an asyncio transport."""

from __future__ import annotations

import asyncio
import random
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol, TypeAlias

from magnetar.sim.process import Process

HIGH_WATER_BYTES: Final = 64 * 1024
"""As asyncio's own default."""

_END: Final = None
Chunk: TypeAlias = bytes | None
"""What travels: bytes, or the end of the stream."""


class Splitting(Protocol):
    """How a network treats what is sent in one piece."""

    @property
    def split_share(self) -> float: ...


class NetworkLinks(Protocol):
    """What lies between two ends: `Network`."""

    delivered_chunks: int

    @property
    def loop(self) -> Any: ...
    @property
    def rng(self) -> random.Random: ...
    @property
    def settings(self) -> Splitting: ...
    def is_up(self, host: str) -> bool: ...
    def is_blocked(self, one: str, other: str) -> bool: ...
    def delay_seconds(self, source: str, target: str) -> float: ...
    def gone(self, transport: SimulatedTransport) -> None: ...


class SimulatedTransport(asyncio.Transport):
    """Sends to `other`, the far end. Runs what it tells its protocol on behalf of its process."""

    def __init__(self, network: NetworkLinks, process: Process, address: tuple[str, int]) -> None:
        super().__init__()
        self.process = process
        self.address = address
        self.other: SimulatedTransport
        self.broken = False
        """Ended by the other side or by the network, before or after the protocol has heard of it."""
        self._network = network
        self._loop = network.loop
        self.context = process.context
        self._protocol: asyncio.Protocol | asyncio.BufferedProtocol | None = None
        self._closing = False
        self.told_lost = False
        # Sending: bytes that the other protocol has not been given yet.
        self.unacknowledged_bytes = 0
        self._last_arrival_seconds = 0.0
        self._in_flight: deque[Chunk] = deque()
        """What is on its way, the oldest first. Each arrival takes the oldest: a connection keeps the order, whatever
        was sent again."""
        self._stalled: deque[Chunk] = deque()
        self.lost = False
        self._high_water_bytes = HIGH_WATER_BYTES
        self._low_water_bytes = HIGH_WATER_BYTES // 4
        self._writing_paused = False
        # Receiving: what came before the protocol was there, or while it does not read.
        self._held: deque[Chunk] = deque()
        self._reading_paused = True

    def join(self, other: SimulatedTransport) -> None:
        """Be the two ends of one connection."""
        self.other, other.other = other, self

    def begin(self, factory: Callable[[], asyncio.BaseProtocol]) -> None:
        """The accepting side: make the protocol and tell it."""
        self._loop.call_soon(self._accept, factory, context=self.context)

    def _accept(self, factory: Callable[[], asyncio.BaseProtocol]) -> None:
        protocol = factory()
        assert isinstance(protocol, asyncio.Protocol)
        self.connected(protocol)

    def connected(self, protocol: asyncio.Protocol) -> None:
        """The connection stands on this side."""
        self._protocol = protocol
        self._reading_paused = False
        protocol.connection_made(self)
        if self._held:
            self._loop.call_soon(self._drain, context=self.context)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Have another protocol hear of what comes."""
        assert isinstance(protocol, asyncio.Protocol | asyncio.BufferedProtocol)
        self._protocol = protocol

    # --- sending

    def write(self, data: Any) -> None:
        """Send bytes. They arrive after the network's delay, perhaps cut."""
        if self._closing or self.broken or not data:
            return
        content = bytes(data)
        self.unacknowledged_bytes += len(content)
        if not self.other.process.alive and self._network.is_up(self.other.process.host):
            self.reset_soon()
        rng = self._network.rng
        if len(content) > 1 and rng.random() < self._network.settings.split_share:
            at = rng.randrange(1, len(content))
            self._send(content[:at])
            content = content[at:]
        self._send(content)
        if self.unacknowledged_bytes > self._high_water_bytes and not self._writing_paused:
            self._writing_paused = True
            if self._protocol is not None:
                self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        """Send a list of buffers, joined."""
        self.write(b"".join(list_of_data))

    def _send(self, chunk: Chunk) -> None:
        if self._stalled and not self._in_flight:
            self._stalled.append(chunk)
            return
        self._in_flight.append(chunk)
        self._schedule_arrival()

    def _schedule_arrival(self) -> None:
        loop, source, target = self._loop, self.process.host, self.other.process.host
        arrival = max(loop.time() + self._network.delay_seconds(source, target), self._last_arrival_seconds)
        self._last_arrival_seconds = arrival
        loop.call_at(arrival, self._arrive, context=self.other.context)

    def _arrive(self) -> None:
        # Runs on behalf of the receiver: of a dead one nothing arrives.
        chunk = self._in_flight.popleft()
        if self.lost:
            return
        if self._stalled or self._network.is_blocked(self.process.host, self.other.process.host):
            self._stalled.append(chunk)
            return
        self.other.receive(chunk)

    def path_may_be_open(self) -> None:
        """Something between hosts was healed: send again what was held back."""
        if self._stalled and not self._network.is_blocked(self.process.host, self.other.process.host):
            stalled, self._stalled = self._stalled, deque()
            # They are older than what has not arrived yet.
            self._in_flight.extendleft(reversed(stalled))
            for _ in stalled:
                self._schedule_arrival()

    def acknowledged(self, size_bytes: int) -> None:
        """The other end's protocol has been given so many bytes."""
        self.unacknowledged_bytes -= size_bytes
        if self._writing_paused and self.unacknowledged_bytes <= self._low_water_bytes:
            self._writing_paused = False
            if self._protocol is not None and not self.told_lost:
                self._loop.call_soon(self._protocol.resume_writing, context=self.context)

    # --- receiving

    def receive(self, chunk: Chunk) -> None:
        """Something arrives from the other end."""
        if self._closing or self.broken:
            return
        if self._reading_paused or self._held:
            self._held.append(chunk)
        else:
            self._hand_over(chunk)

    def _hand_over(self, chunk: Chunk) -> None:
        network = self._network
        network.delivered_chunks += 1
        what = "the end" if chunk is None else f"{len(chunk)} bytes {zlib.crc32(chunk):08x}"
        self._loop.trace.note(self.process.name, f"got {what} from {self.other.process.name}")
        assert self._protocol is not None
        if chunk is None:
            self._lose(None)
            return
        if isinstance(self._protocol, asyncio.BufferedProtocol):
            _put(chunk, self._protocol)
        else:
            self._protocol.data_received(chunk)
        self.other.acknowledged(len(chunk))

    def _drain(self) -> None:
        while self._held and not self._reading_paused and not self._closing and not self.broken:
            self._hand_over(self._held.popleft())

    def pause_reading(self) -> None:
        """Hold back what comes until `resume_reading`."""
        self._reading_paused = True

    def resume_reading(self) -> None:
        """Hand over what was held back, and what comes."""
        self._reading_paused = False
        if self._held:
            self._loop.call_soon(self._drain, context=self.context)

    def is_reading(self) -> bool:
        """Whether what comes is handed over."""
        return not self._reading_paused and not self._closing

    # --- ending

    def close(self) -> None:
        """End the connection: what was written still arrives, and then the end."""
        if self._closing or self.broken:
            return
        self._closing = True
        self._send(_END)
        self._lose(None)

    def abort(self) -> None:
        """End the connection at once: what is on its way is lost."""
        if self.broken:
            return
        self._closing = True
        self.lost = True
        self.other.reset_soon()
        self._lose(None)

    def break_both(self) -> None:
        """The network: both ends hear of a reset, each in its own time."""
        for end in (self, self.other):
            end.lost = True
            end.reset_soon()

    def process_died(self, *, silently: bool) -> None:
        """This end's process is dead. The kernel of its host sends what was written and the end, unless the host is
        dead too."""
        if self._closing or self.broken:
            return
        if silently:
            self.lost = True
        else:
            self._closing = True
            self._send(_END)

    def peer_restarted(self) -> None:
        """This end's process is dead and its host is up again: it answers what is sent to it with a reset."""
        if self.other.unacknowledged_bytes:
            self.other.reset_soon()

    def reset_soon(self) -> None:
        """A reset is on its way to this end."""
        delay = self._network.delay_seconds(self.other.process.host, self.process.host)
        self._loop.call_later(delay, self._reset, context=self.context)

    def _reset(self) -> None:
        if self._network.is_blocked(self.other.process.host, self.process.host):
            self._loop.call_later(0.1, self._reset, context=self.context)
            return
        if not self.broken and not self._closing:
            self.lost = True
            self._loop.trace.note(self.process.name, f"reset by {self.other.process.name}")
            self._lose(ConnectionResetError(104, "the connection was reset"))

    def _lose(self, error: Exception | None) -> None:
        self.broken = True
        self._closing = True
        self._held.clear()
        if not self.told_lost:
            self.told_lost = True
            self._loop.call_soon(self._tell_lost, error, context=self.context)

    def _tell_lost(self, error: Exception | None) -> None:
        if self._protocol is not None:
            self._protocol.connection_lost(error)
        if self.other.told_lost or not self.other.process.alive:
            self._network.gone(self)
            self._network.gone(self.other)

    # --- what asyncio asks

    def is_closing(self) -> bool:
        """Whether the connection was closed or aborted."""
        return self._closing or self.broken

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the bytes above which writing pauses, and below which it goes on."""
        self._high_water_bytes = HIGH_WATER_BYTES if high is None else high
        self._low_water_bytes = self._high_water_bytes // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        """Bytes that were written and have not arrived."""
        return self.unacknowledged_bytes

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What asyncio tells of a transport, such as `peername`."""
        if name == "peername":
            return self.other.address
        return self.address if name == "sockname" else default

    def can_write_eof(self) -> bool:
        """There are no half-closed connections."""
        return False


def _put(chunk: bytes, protocol: asyncio.BufferedProtocol) -> None:
    """Into the protocol's memory, as much at a time as it has room for."""
    while chunk:
        room = memoryview(protocol.get_buffer(len(chunk)))
        part = chunk[: len(room)]
        room[: len(part)] = part
        protocol.buffer_updated(len(part))
        chunk = chunk[len(part) :]
