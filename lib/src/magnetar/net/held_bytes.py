"""What the connections of one server hold in memory for their peers' sake, bounded all together.

That is what was sent to a peer and not taken by it, and what it sent so far of a frame. Each connection has bounds of
its own, which a thousand of them together would multiply.

Above half of the bound, connections get smaller ones. Newcomers bring and are answered more at a pace only; hosts take
turns. Above the bound, those that move least are cut, until the rest fits. Whoever is cut comes back with nothing held,
so the pace bounds how often that happens. It gets slower while connections have to be cut.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Final, Protocol

from magnetar.core.limits import KIB, MIB
from magnetar.net.paced_queue import PacedQueue
from magnetar.net.refused_connections import RefusedConnections, network_of
from magnetar.net.throttled_report import ThrottledReport, connections

logger: Final = logging.getLogger(__name__)

NOTED_BYTES: Final = 64 * KIB
"""A connection that holds less is not counted while there are few: two thousand of these are half of the bound, and
most hold nothing."""

NOTED_BYTES_MIN: Final = 4 * KIB
"""However many connections there are: fifty thousand that hold less are no more than the bound."""

HELD_BYTES_MAX: Final = 256 * MIB
"""Bytes that one server holds for peers: an eighth of the memory that its pods have by default, and fifty of the
largest messages."""

CUT_TO_SHARE: Final = 0.75
"""The share of the bound that is left after connections were cut, so that not each further one leads to the next
cut."""

BURST_SHARE: Final = 1.5
"""The multiple of the bound above which even those are cut that have only just begun to hold anything, and whoever
brings more is read no further in this turn of the loop."""

BROUGHT_IN_TURN_BYTES_MAX: Final = 4 * MIB
"""To all connections together, in one turn of the loop: beyond it those that hold anything are read no further in this
turn. Three milliseconds of reading."""

READ_AGAIN_IN_TURN_MAX: Final = 16
"""Stopped connections that are read again in one turn: the loop may read a quarter of a megabyte from each."""

NEWCOMER_BYTES: Final = 512 * KIB
"""A peer that has not moved more than this is a newcomer: nothing tells it from thousands that only come to be held."""

UNANSWERED_BYTES: Final = 8 * MIB
"""A peer that has not moved more than this may have read nothing of what it was answered: the buffers of both sockets
take some megabytes."""

NEWCOMER_PACE_SECONDS: Final = 0.016
"""From one newcomer that brings more to the next one, and likewise for large answers, while much is held: sixty reads
and as many answers a second. Each costs milliseconds, with its cut and its return."""

SLOW_PACE_SECONDS: Final = 4 * NEWCOMER_PACE_SECONDS
"""From one newcomer to the next one while connections have to be cut: most of those that are let in only come to be
held. A thousand that are silent and a thousand half frames took a quarter of a processor at the quick pace."""

QUICKER_AGAIN: Final = 1.1
"""The pace is quicker by this factor after each look at which nobody had to be cut; cuts are seconds apart."""

PAUSED_FOR_ALL: Final = "too much is held"

PAUSED_IN_LINE: Final = "newcomers go one by one"
"""Of a newcomer that waits for its turn: for minutes, where thousands do."""

CUT_IN_TURN_MAX: Final = 4
"""Connections: each has something to give back, a tenth of a millisecond."""

URGENT_SHARE: Final = 1.25
"""The multiple of the bound above which those that are cut go as fast as turns come. Below it they go one after the
other, as they would come back together."""

CUT_PACE_SECONDS: Final = 0.008
"""From one that is cut to the next one."""

LOOKED_AT_IN_TURN_MAX: Final = 100
"""Connections: half a millisecond."""

MOVING_BYTES: Final = KIB
"""Who moves less than this between two looks does not move: no network that clients work over is so slow."""

LOOK_SECONDS: Final = 1.0
"""Between two looks, while anybody holds anything: how long a peer has to show that it moves."""


class BufferingConnection(Protocol):
    """A connection that holds bytes for its peer."""

    @property
    def peer_address(self) -> str:
        """The peer's address, as it stands in the log."""
        ...

    @property
    def held_bytes(self) -> int:
        """Bytes that the connection holds now."""
        ...

    @property
    def incoming_bytes(self) -> int:
        """Of these, what came in, such as the beginning of a large frame."""
        ...

    @property
    def moved_bytes(self) -> int:
        """What the peer has taken and brought since the beginning, while it was counted."""
        ...

    def narrow(self) -> bool:
        """Get along with a smaller outbox until what is in it is sent. False: there is little in it."""
        ...

    def pause_reading(self, reason: str) -> None:
        """Read nothing more from the peer."""
        ...

    def resume_reading(self, reason: str) -> None:
        """Read from the peer again."""
        ...

    def abort(self) -> None:
        """Close the connection at once."""
        ...


class _Worth(enum.IntEnum):
    """What is to be said for a connection when some have to be cut, the least first."""

    STANDS_STILL = 0
    IN_LINE = 1
    UNKNOWN = 2
    """It has held something for less than a look."""
    MOVES = 3


class _Noted:
    """What is known of one connection."""

    __slots__ = ("looks", "moved_before_bytes", "moved_bytes", "size_bytes")

    def __init__(self) -> None:
        self.size_bytes = 0
        self.looks = 0
        self.moved_before_bytes = 0
        self.moved_bytes = 0
        """Bytes that were moved between the last two looks."""


class HeldBytes:
    """Shared by all connections of one server."""

    def __init__(self, loop: asyncio.AbstractEventLoop, bytes_max: int = HELD_BYTES_MAX) -> None:
        self._loop = loop
        self._bytes_max = bytes_max
        self._noted: dict[BufferingConnection, _Noted] = {}
        self._timer: asyncio.Handle | None = None
        self._hurried = False
        self._paused: dict[BufferingConnection, None] = {}
        """Until it is decided who is cut, or until it is their turn."""
        self._brought_bytes = 0
        """Bytes that connections have brought in this turn of the loop."""
        self._letting_go_on = False
        self._newcomer_pace_seconds = NEWCOMER_PACE_SECONDS
        self._cuts_before = 0
        """The number of cuts at the last look."""
        self._newcomers = PacedQueue(loop, self._pace_seconds)
        """They bring more when it is their turn."""
        self._let_in: set[BufferingConnection] = set()
        """Newcomers that have had their turn. Whoever brings a byte at each turn would else stand in line for ever, and
        a large message would need several turns of it."""
        self._answers = PacedQueue(loop, self._pace_seconds)
        """Newcomers that ask for large answers."""
        self._condemned: dict[BufferingConnection, int] = {}
        """They are read no more, and are cut in their turn; with what each held."""
        self._condemned_bytes = 0
        self._cutting = False
        self._open: set[BufferingConnection] = set()
        self.noted_bytes = NOTED_BYTES
        """A connection that holds no more is not counted: the less, the more connections there are, so that all of them
        together hold little more than half of the bound uncounted."""
        self._noted_from_bytes = NOTED_BYTES
        """What was not counted at the last look at all connections: some may hold as much."""
        self._told = ThrottledReport(self._tell_cut, loop.call_later)
        self._last_cut = ""
        self.held_bytes = 0
        """As far as it is known: exact at each look."""
        self.cuts = 0
        """How many connections were cut."""
        self.refused_connections: RefusedConnections | None = None
        """Where those are counted for metrics; None: nowhere."""

    @property
    def pressed(self) -> bool:
        """Whether so much is held that connections have to do with less."""
        return self.held_bytes > self._bytes_max // 2

    @property
    def holders(self) -> int:
        """How many connections are counted."""
        return len(self._noted)

    def opened(self, connection: BufferingConnection) -> None:
        """A connection stands."""
        self._open.add(connection)
        self._share_out()

    def closed(self, connection: BufferingConnection) -> None:
        """A connection that stood is over."""
        self._open.discard(connection)
        self._share_out()

    def _share_out(self) -> None:
        share_bytes = self._bytes_max // (2 * max(1, len(self._open)))
        self.noted_bytes = min(NOTED_BYTES, max(NOTED_BYTES_MIN, share_bytes))
        self._noted_from_bytes = max(self._noted_from_bytes, self.noted_bytes)
        if self._timer is None and self._some_are_not_counted:
            self._timer = self._loop.call_later(LOOK_SECONDS, self._look)

    @property
    def _some_are_not_counted(self) -> bool:
        """Whether connections that came when there were fewer may hold twice as much as newer ones, uncounted."""
        return self.noted_bytes <= self._noted_from_bytes // 2

    def note(self, holder: BufferingConnection, size_bytes: int) -> None:
        """A connection holds so much."""
        if holder in self._condemned:
            self._note_condemned(holder, size_bytes)
            return
        noted = self._noted.get(holder)
        if noted is None:
            noted = self._noted[holder] = _Noted()
            noted.moved_before_bytes = holder.moved_bytes
        grown_bytes = size_bytes - noted.size_bytes
        self.held_bytes += grown_bytes
        noted.size_bytes = size_bytes
        if self._timer is None:
            self._timer = self._loop.call_later(LOOK_SECONDS, self._look)
        if grown_bytes > 0:
            self._brought(grown_bytes)
        # The loop reads thousands of connections in one turn, each several times.
        if self.held_bytes + self._condemned_bytes > BURST_SHARE * self._bytes_max:
            self._pause(holder)
            if not self._hurried:
                # In the next turn: what was written in this one may be sent by then.
                self._hurried = True
                self._loop.call_soon(self._hurry)
        elif grown_bytes > 0 and (
            self._paused or self._brought_bytes > BROUGHT_IN_TURN_BYTES_MAX or self._brings_at_a_pace(holder)
        ):
            self._pause(holder)  # Behind those that wait.

    def paces_answer(self, holder: BufferingConnection, go_on: Callable[[], None]) -> bool:
        """Whether a large answer has to wait until `go_on` is called, once: much is held, and the peer is a newcomer.
        It is not called when the connection ends before."""
        if not self.pressed or holder.moved_bytes > UNANSWERED_BYTES:
            return False
        self._answers.wait(holder, network_of(holder.peer_address), go_on)
        return True

    def _brings_at_a_pace(self, holder: BufferingConnection) -> bool:
        # A new consumer that is sent much brings nothing but permits and acknowledgements.
        return (
            self.pressed
            and holder.incoming_bytes > self.noted_bytes
            and holder.moved_bytes <= NEWCOMER_BYTES
            and holder not in self._let_in
        )

    def _have_turn(self, holder: BufferingConnection) -> None:
        self._let_in.add(holder)
        noted = self._noted.get(holder)
        if noted is not None:
            # That it did not move while it was not read says nothing against it.
            noted.looks, noted.moved_before_bytes = 0, holder.moved_bytes
        holder.resume_reading(PAUSED_IN_LINE)

    def _pace_seconds(self) -> float:
        return self._newcomer_pace_seconds if self.pressed else 0.0

    def _set_pace(self) -> None:
        pace_seconds = self._newcomer_pace_seconds
        if self.cuts > self._cuts_before:
            self._newcomer_pace_seconds = min(SLOW_PACE_SECONDS, 2 * pace_seconds)
        else:
            self._newcomer_pace_seconds = max(NEWCOMER_PACE_SECONDS, pace_seconds / QUICKER_AGAIN)
        self._cuts_before = self.cuts

    def _brought(self, size_bytes: int) -> None:
        before_bytes = self._brought_bytes
        if not before_bytes:
            self._loop.call_soon(self._turn_over)
        self._brought_bytes += size_bytes
        if before_bytes <= BROUGHT_IN_TURN_BYTES_MAX < self._brought_bytes:
            for holder in self._noted:
                self._pause(holder)

    def _pause(self, holder: BufferingConnection) -> None:
        if holder in self._paused or holder in self._newcomers:
            return
        if self._brings_at_a_pace(holder):
            holder.pause_reading(PAUSED_IN_LINE)
            self._newcomers.wait(holder, network_of(holder.peer_address), partial(self._have_turn, holder))
        else:
            holder.pause_reading(PAUSED_FOR_ALL)
            self._paused[holder] = None

    def _turn_over(self) -> None:
        self._brought_bytes = 0
        self._let_go_on()

    def forget(self, holder: BufferingConnection) -> None:
        """The connection is gone."""
        self._paused.pop(holder, None)
        self._newcomers.forget(holder)
        self._let_in.discard(holder)
        self._answers.forget(holder)
        self._condemned_bytes -= self._condemned.pop(holder, 0)
        noted = self._noted.pop(holder, None)
        if noted is not None:
            self.held_bytes -= noted.size_bytes

    def _hurry(self) -> None:
        try:
            for holder, noted in list(self._noted.items()):
                self._measure(holder, noted)
            self._cut_if_too_much()
        finally:
            self._hurried = False
            self._let_go_on()

    @property
    def _urgent(self) -> bool:
        return self.held_bytes + self._condemned_bytes > URGENT_SHARE * self._bytes_max

    def _let_go_on(self) -> None:
        if self._paused and not self._letting_go_on:
            self._letting_go_on = True
            self._let_some_go_on()

    def _let_some_go_on(self) -> None:
        if self._hurried or (self._condemned and self._urgent):
            self._letting_go_on = False  # Once it is decided who is cut, this begins anew.
            return
        try:
            for holder in list(islice(self._paused, READ_AGAIN_IN_TURN_MAX)):
                del self._paused[holder]
                holder.resume_reading(PAUSED_FOR_ALL)
        finally:
            # Also when one of them fails: the others would wait for ever.
            self._letting_go_on = bool(self._paused)
            if self._paused:
                self._loop.call_soon(self._let_some_go_on)

    def _look(self) -> None:
        if self._some_are_not_counted:
            # Seldom: each time that there are twice as many connections.
            self._noted_from_bytes = self.noted_bytes
            self._look_at_some(deque(self._open))
        else:
            self._look_at_some(deque(self._noted))

    def _look_at_some(self, holders: deque[BufferingConnection]) -> None:
        try:
            for _ in range(min(LOOKED_AT_IN_TURN_MAX, len(holders))):
                holder = holders.popleft()
                noted = self._noted.get(holder)
                if noted is not None:
                    self._look_at(holder, noted)
                elif holder in self._open and holder.held_bytes > self.noted_bytes:
                    self.note(holder, holder.held_bytes)
            if not holders:
                self._cut_if_too_much()
                self._set_pace()
        finally:
            # Not before: holders that are asked may note something, and each would begin looks of its own.
            if holders:
                self._timer = self._loop.call_soon(self._look_at_some, holders)
            else:
                # The pace has to be quick again for whoever comes hours later.
                goes_on = self._noted or self._newcomer_pace_seconds > NEWCOMER_PACE_SECONDS
                self._timer = self._loop.call_later(LOOK_SECONDS, self._look) if goes_on else None

    def _look_at(self, holder: BufferingConnection, noted: _Noted) -> None:
        self._measure(holder, noted)
        moved_bytes = holder.moved_bytes
        noted.moved_bytes = moved_bytes - noted.moved_before_bytes
        noted.moved_before_bytes = moved_bytes
        noted.looks += 1

    def _measure(self, holder: BufferingConnection, noted: _Noted) -> None:
        """How much it really is: nobody says when something is sent."""
        size_bytes = holder.held_bytes
        if self._noted.get(holder) is not noted:
            return  # Asked what it holds, it sent some, and has ended of that.
        self.held_bytes += size_bytes - noted.size_bytes
        noted.size_bytes = size_bytes
        if size_bytes <= self.noted_bytes:
            del self._noted[holder]
            self.held_bytes -= size_bytes
        elif self.pressed:
            holder.narrow()

    def _cut_if_too_much(self) -> None:
        if self.held_bytes > self._bytes_max:
            self._cut()

    def _cut(self) -> None:
        """Those that do not move first, then the longest line from its end, then, in a burst, those of whom nothing is
        known; those that move least before others that move. Among equals those that hold most."""
        burst = self.held_bytes > BURST_SHARE * self._bytes_max
        # Newest first, as sorting leaves it among equals: who has waited for long is to have its turn.
        candidates = [holder for holder, noted in reversed(self._noted.items()) if noted.looks or burst]
        candidates.sort(key=self._worth)
        cut_bytes = self.held_bytes - int(CUT_TO_SHARE * self._bytes_max)
        cut = 0
        for holder in candidates:
            if cut_bytes <= 0:
                break
            size_bytes = self._noted[holder].size_bytes
            cut_bytes -= size_bytes
            self._last_cut = f"{holder.peer_address} with {size_bytes} bytes"
            self.forget(holder)
            cut += 1
            holder.pause_reading(PAUSED_FOR_ALL)
            self._condemned[holder] = size_bytes
            self._condemned_bytes += size_bytes
        self.cuts += cut
        if cut:
            self._told.happened(cut)
            if self.refused_connections is not None:
                self.refused_connections.cut(cut)
            if not self._cutting:
                self._abort_some()

    def _abort_some(self) -> None:
        try:
            for holder in list(islice(self._condemned, CUT_IN_TURN_MAX if self._urgent else 1)):
                self._condemned_bytes -= self._condemned.pop(holder)
                holder.abort()
        finally:
            self._go_on_cutting()

    def _go_on_cutting(self) -> None:
        self._cutting = bool(self._condemned)
        urgent = self._urgent
        if self._cutting and urgent:
            self._loop.call_soon(self._abort_some)
            return
        if self._cutting:
            self._loop.call_later(CUT_PACE_SECONDS, self._abort_some)
        self._let_go_on()

    def _note_condemned(self, holder: BufferingConnection, size_bytes: int) -> None:
        # It is not read, but its consumers are sent what they have permits for: hundreds may wait to be cut.
        self._condemned_bytes += size_bytes - self._condemned[holder]
        self._condemned[holder] = size_bytes
        holder.narrow()

    def _tell_cut(self, count: int) -> None:
        logger.warning(
            "cut %s that take or bring next to nothing, the last one %s: more than %d bytes were held",
            *(connections(count), self._last_cut, self._bytes_max),
        )

    def _worth(self, holder: BufferingConnection) -> tuple[_Worth, int, int]:
        noted = self._noted[holder]
        if holder in self._newcomers:
            # It does not move because of us. Large reads are what an honest large message begins with.
            return _Worth.IN_LINE, -self._newcomers.waiting_beside(holder), 0
        if not noted.looks:
            return _Worth.UNKNOWN, 0, -noted.size_bytes
        moves = noted.moved_bytes >= MOVING_BYTES
        return _Worth.MOVES if moves else _Worth.STANDS_STILL, noted.moved_bytes, -noted.size_bytes
