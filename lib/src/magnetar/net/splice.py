"""Two connections joined to one: what comes in at one end leaves at the other, unread, with back-pressure both ways.

A read goes to the other transport as it is, without an outbox in between: the event loop's own reads are up to 256 KiB
large and come from one buffer of the whole process, so an idle pair holds no buffer at all. Measured with 1 to 4 GB
through one pair: 0.2 ms of CPU per MB (splice(2) takes 0.12, but its two system calls for every read of a small one
from Python are no gain), 4 GB/s on one core.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from magnetar.core.errors import Misuse
from magnetar.core.limits import KIB
from magnetar.net.connection import Connection

UNSENT_HIGH_WATER_BYTES: Final = 256 * KIB
"""Unsent bytes at which the other end is read no further; one read (256 KiB) may come on top. One read's worth keeps
the socket busy while the other end is asked for more; larger ones measured no faster."""

UNSENT_LOW_WATER_BYTES: Final = 64 * KIB
"""Unsent bytes at which the other end is read again."""


class SpliceEnd(asyncio.Protocol):
    """One of the two connections."""

    __slots__ = ("_splice", "closed", "other", "reads", "received_bytes", "transport", "write_to_other")

    def __init__(self, splice: Splice) -> None:
        self._splice = splice
        self.other: SpliceEnd = self
        self.transport: asyncio.Transport | None = None
        self.write_to_other: Callable[[bytes], None] = _drop
        self.received_bytes = 0
        self.reads = 0
        self.closed = False

    def data_received(self, data: bytes) -> None:
        """asyncio: some bytes."""
        self.received_bytes += len(data)
        self.reads += 1
        self.write_to_other(data)

    def pause_writing(self) -> None:
        """asyncio: this end's peer has fallen behind."""
        transport = self.other.transport
        if transport is not None and not transport.is_closing():
            transport.pause_reading()

    def resume_writing(self) -> None:
        """asyncio: it has caught up."""
        transport = self.other.transport
        if transport is not None and not transport.is_closing():
            transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: this end is over; the other one is closed when everything is sent there."""
        self.closed = True
        self.transport = None
        self.other.write_to_other = _drop
        other = self.other.transport
        if other is not None:
            other.close()
        self._splice.end_closed(exc)

    def part(self) -> None:
        """Both ends are over."""
        del self._splice, self.other


class Splice:
    """A joined pair: `near` and `far` are its ends."""

    __slots__ = ("_on_closed", "error", "far", "far_address", "near", "near_address")

    def __init__(self, near: Connection, far: Connection, on_closed: Callable[[Splice], None]) -> None:
        """Take over two open connections; `on_closed` is called once, when both have ended. `Misuse` when one is
        closing, or closed: the other stays as it was."""
        if near.closing or far.closing:
            raise Misuse("a connection that is closing cannot be joined")
        self._on_closed = on_closed
        self.near_address = near.peer_address
        self.far_address = far.peer_address
        self.error: Exception | None = None
        """Why it ended, if not by an orderly close."""
        self.near = SpliceEnd(self)
        self.far = SpliceEnd(self)
        self.near.other, self.far.other = self.far, self.near
        for end, connection in ((self.near, near), (self.far, far)):
            transport = connection.hand_over(end)
            transport.set_write_buffer_limits(UNSENT_HIGH_WATER_BYTES, UNSENT_LOW_WATER_BYTES)
            end.transport = transport
            end.other.write_to_other = transport.write

    def close(self) -> None:
        """Send what came in so far, then close both ends."""
        for end in (self.near, self.far):
            if end.transport is not None:
                end.transport.close()

    def abort(self) -> None:
        """Close at once."""
        for end in (self.near, self.far):
            if end.transport is not None:
                end.transport.abort()

    @property
    def closing(self) -> bool:
        """Whether one end is gone, or about to go."""
        return any(end.transport is None or end.transport.is_closing() for end in (self.near, self.far))

    def end_closed(self, error: Exception | None) -> None:
        """For the ends."""
        self.error = self.error or error
        if self.near.closed and self.far.closed:
            self._on_closed(self)
            # Nothing of these is used any more, and what refers to each other would wait for the collector of cycles.
            for end in (self.near, self.far):
                end.part()


def _drop(data: bytes) -> None:
    """The other end is gone."""
