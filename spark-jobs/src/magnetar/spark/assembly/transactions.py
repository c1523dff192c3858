"""Only committed transactions are read. The marker that ends one comes later in the topic than its messages.

Facts: Pulsar's `TopicTransactionBuffer` and `AbortedTxnProcessor`: messages stand in the topic at once, at their own
places, and stay there; a marker with the same transaction id commits or aborts them. Messages that arrive after an
abort are aborted, too.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from magnetar.spark.assembly.neighbours import Bounds, EntryWalk, Neighbours
from magnetar.spark.entries import EntryBlock, WholeEntry
from magnetar.wire.pulsar.errors import BadMetadata
from magnetar.wire.pulsar.metadata import ABSENT, MessageMetadataView, skim

TXN_COMMIT: Final = 21
TXN_ABORT: Final = 22
"""Values of `marker_type` (pulsar-protocol section 11)."""

TransactionId = tuple[int, int]
"""Most and least significant bits."""


def transaction_of(view: MessageMetadataView) -> TransactionId | None:
    """The transaction of a message or a marker; None when there is none (Pulsar: `Commands.isTxnMessage`)."""
    if view.txnid_most_bits == ABSENT or view.txnid_least_bits == ABSENT:
        return None
    return view.txnid_most_bits, view.txnid_least_bits


class TransactionOutcomes:
    """Which transactions were committed, as far as markers were seen. At most one each entry read, so the bounds on
    reading bound this."""

    def __init__(self) -> None:
        self._committed: dict[TransactionId, bool] = {}

    def note(self, view: MessageMetadataView) -> None:
        """Take a marker in; others than those of transactions say nothing."""
        transaction = transaction_of(view)
        if transaction is not None and view.marker_type in (TXN_COMMIT, TXN_ABORT):
            self._committed[transaction] = view.marker_type == TXN_COMMIT

    def note_all(self, block: EntryBlock) -> None:
        """Take in the markers of entries that are only passed by."""
        for data in block.entries:
            try:
                view = skim(data)
            except BadMetadata:
                continue  # Whoever reads the slice that it is in reports it.
            if view.marker_type != ABSENT:
                self.note(view)

    def committed(self, transaction: TransactionId) -> bool | None:
        """Whether a transaction was committed; None: no marker was seen."""
        return self._committed.get(transaction)


class TransactionGate:
    """Lets entries through in their order: of committed transactions, and of none. What is behind an entry whose
    transaction is not decided waits with it."""

    def __init__(self, neighbours: Neighbours, bounds: Bounds, first_place: tuple[int, int]) -> None:
        self._neighbours = neighbours
        self._bounds = bounds
        self._first_place = first_place
        self._outcomes = TransactionOutcomes()
        self._held: deque[tuple[WholeEntry, TransactionId | None]] = deque()
        self._held_bytes = 0
        self._ahead: EntryWalk | None = None
        self._before: EntryWalk | None = None

    @property
    def holding(self) -> bool:
        """Whether anything waits, so that whatever comes has to wait behind it."""
        return bool(self._held)

    def marker(self, view: MessageMetadataView) -> list[WholeEntry]:
        """A marker has come: what may pass now."""
        self._outcomes.note(view)
        return self._released() if self._held else []

    async def entry(self, entry: WholeEntry) -> list[WholeEntry]:
        """An entry has come: what may pass now."""
        transaction = transaction_of(entry.view)
        if not self._held:
            committed = True if transaction is None else self._outcomes.committed(transaction)
            if committed is not None:
                return [entry] if committed else []
        self._held.append((entry, transaction))
        self._held_bytes += len(entry.data)
        if self._held_bytes <= self._bounds.held_bytes_max and len(self._held) <= self._bounds.held_entries_max:
            return []
        return await self._decided((entry.ledger_id, entry.entry_id + 1))

    async def finish(self, place: tuple[int, int]) -> list[WholeEntry]:
        """The slice ends before `place`: everything that still waits, decided by what comes after it."""
        return await self._decided(place) if self._held else []

    async def ask_broker(self) -> list[WholeEntry]:
        """Neighbours read through a broker from here on: what it still gives of what waits is committed."""
        passed: list[WholeEntry] = []
        for entry, transaction in self._held:
            committed = True if transaction is None else self._outcomes.committed(transaction)
            if committed is None:
                block = await self._neighbours.read(entry.ledger_id, entry.entry_id, entry.entry_id)
                committed = entry.entry_id in block.entry_ids
            if committed:
                passed.append(entry)
        self._held.clear()
        self._held_bytes = 0
        return passed

    def _released(self) -> list[WholeEntry]:
        passed: list[WholeEntry] = []
        held = self._held
        while held:
            entry, transaction = held[0]
            committed = True if transaction is None else self._outcomes.committed(transaction)
            if committed is None:
                break
            held.popleft()
            self._held_bytes -= len(entry.data)
            if committed:
                passed.append(entry)
        return passed

    async def _decided(self, place: tuple[int, int]) -> list[WholeEntry]:
        """Empty the queue: markers are looked for from `place` on, and before the slice for those that came late."""
        passed = self._released()
        while self._held:
            entry, transaction = self._held[0]
            assert transaction is not None
            reason = await self._seek(transaction, place)
            if reason:
                self._held[0] = (
                    WholeEntry(entry.ledger_id, entry.entry_id, entry.view, entry.data, broken=reason),
                    None,
                )
            passed += self._released()
        return passed

    async def _seek(self, transaction: TransactionId, place: tuple[int, int]) -> str:
        """Look for the marker of one transaction. Returns why there is none, or an empty text."""
        ahead = self._ahead
        if ahead is None:
            ahead = self._ahead = EntryWalk(self._neighbours, self._bounds, place, forward=True)
        ahead.skip_to(place)
        before = self._before
        if before is None:
            ledger_id, entry_id = self._first_place
            before = self._before = EntryWalk(self._neighbours, self._bounds, (ledger_id, entry_id - 1), forward=False)
        for walk in (ahead, before):
            while self._outcomes.committed(transaction) is None:
                block = await walk.step()
                if block is None:
                    break
                self._outcomes.note_all(block)
        if self._outcomes.committed(transaction) is not None:
            return ""
        most, least = transaction
        return f"transaction ({most},{least}) has no marker that was found, so it may be undecided: {ahead.ended}"
