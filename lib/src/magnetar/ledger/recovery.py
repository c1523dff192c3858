"""The decisions of recovering a ledger whose writer may be gone, or may only seem so. Pure.

1. Fence: every bookie of the last ensemble is asked for its last entry and refuses the writer from then on. Enough
   answers are in when no entry could gather an ack quorum from the bookies that have not answered.
2. Read on from the highest LAC that was heard, entry by entry: what a quorum may have acknowledged must be kept. An
   entry is absent only when so many bookies deny it that the rest cannot be an ack quorum: Qw - Qa + 1.
3. What was found is written back; at the first absent entry the ledger is closed.

(BookKeeper: client/ReadLastConfirmedOp, PendingReadOp, LedgerRecoveryOp.)
"""

from __future__ import annotations

import enum

from magnetar.core.ids import NO_ENTRY
from magnetar.ledger.striping import covered


class LastConfirmedRound:
    """Collects the answers of the last ensemble about its last entries, fencing or not."""

    def __init__(self, ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
        self._ensemble_size = ensemble_size
        self._write_quorum = write_quorum
        self._ack_quorum = ack_quorum
        self._answered: set[int] = set()
        self.last_add_confirmed = NO_ENTRY
        """The highest LAC that came with an entry."""
        self.length_bytes = 0
        """The length in the header of the entry that brought this LAC; it counts that entry too."""

    def answered(self, index: int) -> None:
        """The bookie has no entry of this ledger, which is an answer as well."""
        self._answered.add(index)

    def answered_with(self, index: int, last_add_confirmed: int, length_bytes: int) -> None:
        """The bookie's last entry carries these."""
        self._answered.add(index)
        if last_add_confirmed > self.last_add_confirmed:
            self.last_add_confirmed = last_add_confirmed
            self.length_bytes = length_bytes

    @property
    def answers(self) -> int:
        """How many bookies have answered."""
        return len(self._answered)

    @property
    def covered(self) -> bool:
        """Whether enough have answered."""
        return covered(self._answered, self._ensemble_size, self._write_quorum, self._ack_quorum)


class EntryVerdict(enum.Enum):
    """What is known about an entry that recovery looks for."""

    UNKNOWN = enum.auto()
    """Neither found nor denied by enough bookies yet: recovery asks on."""
    FOUND = enum.auto()
    ABSENT = enum.auto()
    UNREADABLE = enum.auto()
    """All were asked; it was neither found nor denied often enough. Recovery must not go on."""


class EntrySearch:
    """Collects the answers of one entry's write set."""

    def __init__(self, write_quorum: int, ack_quorum: int) -> None:
        self._unanswered = write_quorum
        self._denials_needed = write_quorum - ack_quorum + 1
        self.entry: bytes | None = None
        """The entry, once it is found."""

    def found(self, entry: bytes) -> None:
        """A bookie has it, digest right."""
        self._unanswered -= 1
        self.entry = entry

    def denied(self) -> None:
        """A bookie says that it has no such entry or no such ledger."""
        self._unanswered -= 1
        self._denials_needed -= 1

    def failed(self) -> None:
        """A bookie gave no answer that counts: unreachable, wrong digest, any other error."""
        self._unanswered -= 1

    @property
    def verdict(self) -> EntryVerdict:
        """The state of the search; a found entry wins over any number of denials."""
        if self.entry is not None:
            return EntryVerdict.FOUND
        if self._denials_needed <= 0:
            return EntryVerdict.ABSENT
        return EntryVerdict.UNREADABLE if self._unanswered <= 0 else EntryVerdict.UNKNOWN
