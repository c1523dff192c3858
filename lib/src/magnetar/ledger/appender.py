"""Decides where appended entries go and when they are confirmed. Pure; works on groups, not on single entries.

Rules (BookKeeper: client/LedgerHandle, PendingAddOp): an entry is complete when Qa different bookies of its write set
have it; the last add confirmed (LAC) advances in entry order only, and here by whole groups. When a bookie fails, its
place is given to another one from entry LAC + 1 on. Until that change stands in the metadata nothing is confirmed: the
new segment must begin right behind what was confirmed, and what the failed bookie acknowledged of it no longer counts.

Ledgers that are not striped (E = Qw) need no book per entry: each bookie has all entries up to some point, and the
LAC is the Qa-th highest of these points. Holes from answers out of order only delay a confirmation.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final, TypeAlias

from magnetar.core.ids import NO_ENTRY
from magnetar.core.transitions import Transitions
from magnetar.ledger.striping import kept_entries

Send: TypeAlias = tuple[int, Sequence[int]]
"""(index of the bookie, ascending entry ids that it must be sent)."""


class AppenderState(enum.Enum):
    """What the ledger takes."""

    OPEN = enum.auto()
    CHANGING = enum.auto()
    """A bookie failed; entries are taken and sent, but none is confirmed until its place is filled."""
    FAILED = enum.auto()
    """Nothing is taken, nothing will be confirmed any more."""


OPEN: Final = AppenderState.OPEN
CHANGING: Final = AppenderState.CHANGING
FAILED: Final = AppenderState.FAILED

TRANSITIONS: Final = Transitions(
    "an appender", {OPEN: {CHANGING, FAILED}, CHANGING: {CHANGING, OPEN, FAILED}, FAILED: ()}
)


class Appender:
    """The book of one ledger's outstanding entries."""

    __slots__ = (
        "_acknowledged_up_to",
        "_ahead",
        "_group_ends",
        "_masks",
        "_striped",
        "ack_quorum",
        "ensemble_size",
        "failed_bookies",
        "last_add_confirmed",
        "last_add_pushed",
        "quorum_up_to",
        "state",
        "write_quorum",
    )

    def __init__(
        self, ensemble_size: int, write_quorum: int, ack_quorum: int, last_add_confirmed: int = NO_ENTRY
    ) -> None:
        assert ensemble_size >= write_quorum >= ack_quorum >= 1
        self.ensemble_size: int = ensemble_size
        self.write_quorum: int = write_quorum
        self.ack_quorum: int = ack_quorum
        self.last_add_confirmed: int = last_add_confirmed
        """The end of the last group that an ack quorum has, as it has all before. A group that fails half-way is sent
        again, to another ledger: nobody may have been shown its half."""
        self.quorum_up_to: int = last_add_confirmed
        """The last entry that an ack quorum has, as it has all before, when that was last looked at."""
        self.last_add_pushed: int = last_add_confirmed
        self.state: AppenderState = AppenderState.OPEN
        self.failed_bookies: tuple[int, ...] = ()
        """Indexes whose bookie must be replaced; not empty exactly while changing."""
        self._striped: bool = ensemble_size != write_quorum
        self._acknowledged_up_to: list[int] = [last_add_confirmed] * ensemble_size
        self._ahead: list[set[int] | None] = [None] * ensemble_size
        """Acknowledged beyond a gap; made when a bookie first answers out of order."""
        self._masks: dict[int, int] = {}
        self._group_ends: list[int] | None = None
        """The last entries of the groups that are not confirmed; an idle ledger keeps no list."""

    def append(self, count: int) -> list[Send]:
        """Take the next `count` entries, a group; returns what to send, failed bookies left out (they are replaced)."""
        assert self.state is not FAILED
        assert count > 0
        first = self.last_add_pushed + 1
        self.last_add_pushed += count
        if self._group_ends is None:
            self._group_ends = [self.last_add_pushed]
        else:
            self._group_ends.append(self.last_add_pushed)
        if self._striped:
            for entry_id in range(first, first + count):
                self._masks[entry_id] = 0
        sends: list[Send] = []
        for index in range(self.ensemble_size):
            if index not in self.failed_bookies:
                self._add_send(sends, index, first)
        return sends

    def _add_send(self, sends: list[Send], index: int, first: int) -> None:
        entries = kept_entries(index, first, self.last_add_pushed, self.ensemble_size, self.write_quorum)
        if entries:
            sends.append((index, entries))

    def acknowledged(self, index: int, entry_ids: Sequence[int]) -> bool:
        """The bookie at this index has these entries; tells whether the LAC advanced.

        Late, repeated and unknown ones are no error."""
        if self.state is FAILED or index in self.failed_bookies or not entry_ids:
            return False
        if self._striped:
            self._mark(index, entry_ids)
        else:
            self._move_up(index, entry_ids)
        return self.state is OPEN and self._confirm()

    def _move_up(self, index: int, entry_ids: Sequence[int]) -> None:
        reached = self._acknowledged_up_to[index]
        ahead = self._ahead[index]
        low = min(entry_ids)
        high = max(entry_ids)
        # Distinct ones: an id that comes twice must not stand for one that did not come.
        if low == reached + 1 and high - low + 1 == len(set(entry_ids)) and high <= self.last_add_pushed:
            reached = high
        else:
            if ahead is None:
                ahead = self._ahead[index] = set()
            for entry_id in entry_ids:
                if reached < entry_id <= self.last_add_pushed:
                    ahead.add(entry_id)
        while ahead and reached + 1 in ahead:
            reached += 1
            ahead.remove(reached)
        self._acknowledged_up_to[index] = reached

    def _mark(self, index: int, entry_ids: Sequence[int]) -> None:
        bit = 1 << index
        masks = self._masks
        for entry_id in entry_ids:
            mask = masks.get(entry_id)
            if mask is not None:
                masks[entry_id] = mask | bit

    def _confirm(self) -> bool:
        reached = self.quorum_up_to = self._look_for_quorums()
        ends = self._group_ends
        if ends is None or ends[0] > reached:
            return False
        before = confirmed = self.last_add_confirmed
        count = 0
        for end in ends:
            if end > reached:
                break
            confirmed = end
            count += 1
        if count == len(ends):
            self._group_ends = None
        else:
            del ends[:count]
        if self._striped:
            for entry_id in range(before + 1, confirmed + 1):
                del self._masks[entry_id]
        self.last_add_confirmed = confirmed
        return True

    def _look_for_quorums(self) -> int:
        if not self._striped:
            if self.ensemble_size == 1:
                return self._acknowledged_up_to[0]
            return sorted(self._acknowledged_up_to)[-self.ack_quorum]
        reached = self.quorum_up_to
        masks = self._masks
        while reached < self.last_add_pushed and masks[reached + 1].bit_count() >= self.ack_quorum:
            reached += 1
        return reached

    def bookie_failed(self, index: int) -> bool:
        """The bookie at this index did not take entries; tells whether a change must begin (none is under way)."""
        if self.state is FAILED:
            return False
        if index not in self.failed_bookies:
            self.failed_bookies = (*self.failed_bookies, index)
        begins = self.state is OPEN
        self.state = TRANSITIONS.step(self.state, CHANGING)
        return begins

    def replaced(self, indexes: Sequence[int]) -> list[Send]:
        """New bookies stand at these indexes, and in the metadata, from LAC + 1 on; returns what to send them.

        Whoever failed meanwhile stays in `failed_bookies`: then another change must follow, and only the last one
        opens the ledger again. The LAC may have advanced afterwards."""
        assert self.state is CHANGING
        first = self.last_add_confirmed + 1
        sends: list[Send] = []
        for index in indexes:
            self.failed_bookies = tuple([failed for failed in self.failed_bookies if failed != index])
            self._acknowledged_up_to[index] = self.last_add_confirmed
            self._ahead[index] = None
            for entry_id in self._masks:
                self._masks[entry_id] &= ~(1 << index)
            self._add_send(sends, index, first)
        self.quorum_up_to = self.last_add_confirmed
        if not self.failed_bookies:
            self.state = TRANSITIONS.step(self.state, OPEN)
            self._confirm()
        return sends

    def silent_bookies(self, entry_id: int) -> list[int]:
        """Indexes of the bookies that keep this unconfirmed entry and have not acknowledged it."""
        if self._striped:
            mask = self._masks.get(entry_id)
            if mask is None:
                return []
            return [
                index
                for index in range(self.ensemble_size)
                if (index - entry_id) % self.ensemble_size < self.write_quorum and not mask >> index & 1
            ]
        return [
            index
            for index in range(self.ensemble_size)
            if self._acknowledged_up_to[index] < entry_id and entry_id not in (self._ahead[index] or ())
        ]

    def fail(self) -> bool:
        """Take no more; tells whether it was not failed before."""
        if self.state is FAILED:
            return False
        self.state = TRANSITIONS.step(self.state, FAILED)
        self._masks.clear()
        self._ahead = [None] * self.ensemble_size
        self._group_ends = None
        return True

    def validate(self) -> None:
        """What must hold between any two calls."""
        assert self.last_add_confirmed <= self.last_add_pushed
        assert self.state is FAILED or (self._group_ends or [self.last_add_confirmed])[-1] == self.last_add_pushed
        if self.state is not FAILED:
            assert bool(self.failed_bookies) == (self.state is CHANGING)
        if self._striped and self.state is not FAILED:
            assert len(self._masks) == self.last_add_pushed - self.last_add_confirmed
