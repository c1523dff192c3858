"""The state of the transactions that have written to one topic. Pure.

Which have ended is remembered by this owner, so far back; beyond that `earlier` says of which nobody here can tell.

Facts: transactions-dedup-compaction 1.6; Pulsar `TopicTransactionBuffer`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from magnetar.broker.subscriptions.visibility import TransactionBits
from magnetar.broker.transactions.buffers.markers import ABORT_MARKER, COMMIT_MARKER
from magnetar.broker.transactions.earlier import EarlierTransactions
from magnetar.core.ids import Position
from magnetar.managed.entry import Entry
from magnetar.wire.pulsar.errors import BadMetadata

COMMITTED_KEPT: Final = 10_000
"""Transactions of a topic whose commits are remembered; 2 MB. Coordinators' low-water marks tell of the older ones, and
the coordinators themselves when thousands end while one stays open."""

UNMARKED_KEPT: Final = 10_000
"""Transactions of a topic whose ends are remembered though no marker says so; 2 MB. One read of a connection brings
messages of some thousand."""

VOUCHED_KEPT: Final = 10_000
"""Transactions whose coordinators said that they are open, for their first messages here; they can be asked again."""


class BufferTable:
    """Transactions that are open, those that have ended, and what their coordinators have forgotten."""

    __slots__ = (
        "_looked_at",
        "aborted",
        "aborted_count",
        "committed",
        "committed_count",
        "earlier",
        "low_water_marks",
        "open",
        "unmarked",
        "vouched",
    )

    def __init__(self) -> None:
        # Ordered ones: of a plain dict whose oldest keys go, finding the next oldest takes longer each time.
        self.open: OrderedDict[TransactionBits, Position] = OrderedDict()
        """The first message of each, oldest first."""
        self.aborted: OrderedDict[TransactionBits, Position] = OrderedDict()
        """Where the abort marker of each is, oldest first; forgotten with the marker's ledger."""
        self.committed: OrderedDict[TransactionBits, None] = OrderedDict()
        """Those that were committed lately, oldest first: a message that comes later would open them again, and whoever
        aborts them then hides what was committed."""
        self.unmarked: OrderedDict[TransactionBits, None] = OrderedDict()
        """Those that were aborted lately, before any transaction had written here, or are over as their coordinators
        say, oldest first: there is no marker of them, and a message that comes later would open them."""
        self.vouched: OrderedDict[TransactionBits, None] = OrderedDict()
        """Those that are open, as their coordinators say."""
        self.earlier = EarlierTransactions()
        self.low_water_marks: dict[int, int] = {}
        """Of each coordinator that was heard of: the highest number up to which it knows none any more."""
        self._looked_at: TransactionBits | None = None
        self.committed_count = 0
        self.aborted_count = 0

    def stored(self, transaction: TransactionBits, position: Position) -> bool:
        """A message of it is stored. True when that is its first one. What comes after its end changes nothing."""
        if transaction in self.open or transaction in self.aborted or transaction in self.committed:
            return False
        self.open[transaction] = position
        return True

    def commit(self, transaction: TransactionBits) -> None:
        """Its marker is stored: its messages count."""
        self.open.pop(transaction, None)
        self.vouched.pop(transaction, None)
        self.committed[transaction] = None
        if len(self.committed) > COMMITTED_KEPT:
            self.earlier.forget(self.committed.popitem(last=False)[0])

    def abort(self, transaction: TransactionBits, marker: Position) -> None:
        """Its marker is stored: its messages never count. The newest marker counts: messages may have come after an
        older one."""
        self.open.pop(transaction, None)
        self.vouched.pop(transaction, None)
        self.aborted[transaction] = marker
        self.aborted.move_to_end(transaction)

    def end_unmarked(self, transaction: TransactionBits) -> None:
        """It is aborted and has nothing here, or it ended before this owner came: no marker is stored."""
        self.vouched.pop(transaction, None)
        self.unmarked[transaction] = None
        if len(self.unmarked) > UNMARKED_KEPT:
            self.earlier.forget(self.unmarked.popitem(last=False)[0])

    def vouch(self, transaction: TransactionBits) -> None:
        """Its coordinator says that it is open."""
        self.vouched[transaction] = None
        if len(self.vouched) > VOUCHED_KEPT:
            self.vouched.popitem(last=False)

    def in_doubt(self, transaction: TransactionBits) -> bool:
        """Whether it may have ended, and nothing here tells."""
        if transaction in self.open or transaction in self.vouched or self.has_ended(transaction):
            return False
        return self.earlier.includes(transaction)

    def take(self, entry: Entry) -> None:
        """An entry of the topic, as it is stored: a message of a transaction, the marker of an end, or neither."""
        try:
            metadata = entry.metadata()
        except BadMetadata:
            return
        if metadata.txnid_most_bits < 0 or metadata.txnid_least_bits < 0:
            return
        transaction = (metadata.txnid_most_bits, metadata.txnid_least_bits)
        if metadata.marker_type == COMMIT_MARKER:
            self.commit(transaction)
        elif metadata.marker_type == ABORT_MARKER:
            self.abort(transaction, entry.position)
        elif metadata.marker_type < 0:
            self.stored(transaction, entry.position)

    @property
    def first_open(self) -> Position | None:
        """The first message of the oldest open transaction."""
        return next(iter(self.open.values()), None)

    def still_open(self) -> TransactionBits | None:
        """The oldest open one if it was that at the last look, too."""
        before, self._looked_at = self._looked_at, next(iter(self.open), None)
        return self._looked_at if self._looked_at == before else None

    # --- what coordinators have forgotten

    def raise_low_water_mark(self, coordinator: int, mark: int) -> None:
        """A coordinator knows no transaction up to this one, -1: none is forgotten. An older mark changes nothing."""
        known = self.low_water_marks.get(coordinator)
        if known is None or mark > known:
            self.low_water_marks[coordinator] = mark

    def has_ended(self, transaction: TransactionBits) -> bool:
        """Whether nothing of it may be stored any more."""
        if transaction in self.committed or transaction in self.aborted or transaction in self.unmarked:
            return True
        return self.is_over(transaction)

    def is_over(self, transaction: TransactionBits) -> bool:
        """Whether its coordinator knows it no more."""
        coordinator, number = transaction
        return number <= self.low_water_marks.get(coordinator, -1)

    @property
    def lost(self) -> TransactionBits | None:
        """The oldest open transaction if its coordinator has forgotten it: nobody else will end it."""
        oldest = next(iter(self.open), None)
        return oldest if oldest is not None and self.is_over(oldest) else None

    # --- aborted ones whose messages are gone

    def forget_before(self, first_ledger_id: int, count_max: int) -> list[TransactionBits]:
        """Forget, and return, aborted transactions whose markers are in ledgers before this one, the topic's first."""
        forgotten: list[TransactionBits] = []
        while self.aborted and len(forgotten) < count_max:
            transaction, marker = next(iter(self.aborted.items()))
            if marker[0] >= first_ledger_id:
                break
            del self.aborted[transaction]
            self.earlier.forget(transaction)
            forgotten.append(transaction)
        return forgotten

    def restore(self, aborted: Sequence[tuple[TransactionBits, Position]]) -> None:
        """As a snapshot has them; in the order of the markers."""
        self.aborted.update(aborted)
