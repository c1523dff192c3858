"""Which messages of a subscription open transactions have acknowledged, and which acknowledgements exclude each other.

Pure. What is held here is hidden from consumers, and not acknowledged: a commit does that, an abort lets it go. Bits of
a batch are held one by one, so that several transactions may share an entry (Pulsar: `PendingAckHandleImpl`; facts in
transactions-dedup-compaction section 1.7).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import Final, NamedTuple, Protocol

from magnetar.broker.subscriptions.visibility import TransactionBits
from magnetar.broker.transactions.earlier import EarlierTransactions
from magnetar.broker.transactions.pending_records import (
    AckedEntry,
    PendingAckOperation,
    PendingAckRecord,
)
from magnetar.core.ids import Position
from magnetar.managed.entry_bitmap import value_of, words_of

WHOLE: Final = -1
"""All bits of an entry, however many it has: `&`, `|` and `& ~` with it do what they should."""

BATCH_MESSAGES_MAX: Final = 1 << 20
"""Messages of one batch. Clients name this number, and a bit set of so many is made; no message has room for more."""

HELD_ENTRIES_MAX: Final = 200_000
"""Entries held by the transactions of one subscription, as many as it may have unacknowledged messages with its
consumers by default; 60 MB. Further acknowledgements are refused, and their transactions aborted by their clients."""

HELD_WORDS_MAX: Final = 1 << 20
"""The words of the bit sets of these entries, 8 MiB."""

NUMBERS_KEPT: Final = 1_024
"""Numbers of transactions that are kept before those that are over are looked for."""

ENDED_KEPT: Final = 4_096
"""Transactions of a subscription whose ends are remembered; 1 MB. Coordinators' low-water marks tell of the older ones,
and the coordinators themselves when thousands end while one stays open."""

_NO_BIT: Final = 1 << 62


class AcknowledgedView(Protocol):
    """The acknowledgements of a cursor."""

    @property
    def mark_delete(self) -> Position:
        """Everything up to here."""
        ...

    def is_acknowledged(self, position: Position) -> bool:
        """Whether the whole entry is."""
        ...

    def remaining_ack_set(self, position: Position) -> list[int] | None:
        """The ack set of a batch that is acknowledged in part."""
        ...


class HeldEntry(NamedTuple):
    """One entry of an acknowledgement."""

    position: Position
    bits: int
    """The messages that it acknowledges; `WHOLE`: the entry as such."""
    left: int
    """The messages that it leaves; what is beyond the batch means nothing."""
    batch_size: int


class CumulativeAck(NamedTuple):
    """Everything up to a position, held by one transaction."""

    transaction: TransactionBits
    position: Position
    left: int
    """Bits of the messages in the position's batch that are not acknowledged; 0: none."""

    @property
    def place(self) -> tuple[Position, int]:
        """For comparing: further into a batch is later, all of it the latest."""
        return self.position, (self.left & -self.left).bit_length() if self.left else _NO_BIT


class TransactionAcks:
    """The individual acknowledgements of one transaction, record by record as they are in the log."""

    __slots__ = ("records",)

    def __init__(self) -> None:
        self.records: list[list[HeldEntry]] = []


def held_entry(entry: AckedEntry) -> HeldEntry:
    """The held form of an acknowledged id. An ack set whose batch has no known size ends with its last 1."""
    position, remaining, batch_size = entry
    if not remaining:
        return HeldEntry(position, WHOLE, 0, batch_size)
    left = value_of(remaining)
    size = batch_size if batch_size > 0 else left.bit_length()
    if not size:
        return HeldEntry(position, WHOLE, 0, 0)
    bits = ~left & ((1 << min(size, BATCH_MESSAGES_MAX)) - 1)
    return HeldEntry(position, bits, left, batch_size)


class HeldAcknowledgements:
    """Acknowledgements that the open transactions of one subscription hold. `entries` is shared with dispatch, which
    hides it: it stays the same object."""

    __slots__ = (
        "_ended",
        "_looked_at",
        "_numbers",
        "_words",
        "cumulative",
        "earlier",
        "entries",
        "low_water_marks",
        "sizes",
        "transactions",
    )

    def __init__(self) -> None:
        self.entries: dict[Position, int] = {}
        """Held bits by position."""
        self.sizes: dict[Position, int] = {}
        """The sizes of held batches, as far as they are known."""
        self.transactions: dict[TransactionBits, TransactionAcks] = {}
        """Those with a record in the log that is not ended, the first one first."""
        self.cumulative: CumulativeAck | None = None
        self.low_water_marks: dict[int, int] = {}
        """By coordinator: transactions up to this number are over there."""
        self.earlier = EarlierTransactions()
        self._words = 0
        # Ordered: of a plain dict whose oldest keys go, finding the next oldest takes longer each time.
        self._ended: OrderedDict[TransactionBits, None] = OrderedDict()
        """Those whose ends were heard of lately, oldest first, also such as held nothing here."""
        self._looked_at: list[TransactionBits] = []
        self._numbers: dict[int, list[int]] = {}
        """Of each coordinator a heap of the numbers of those that are known, with some that are over."""

    def clear(self) -> None:
        """Nothing is known any more but what coordinators have said."""
        self.entries.clear()
        self.sizes.clear()
        self.transactions.clear()
        self.cumulative = None
        self._words = 0
        self._numbers.clear()

    # --- what excludes what

    def conflict(self, entries: Iterable[HeldEntry], cursor: AcknowledgedView) -> str:
        """Why these entries cannot be held, empty when they can: they are acknowledged, or another record has them."""
        for entry in entries:
            if _is_acknowledged(entry, cursor):
                return f"message {entry.position[0]}:{entry.position[1]} was acknowledged before"
            if self._is_held(entry):
                return f"message {entry.position[0]}:{entry.position[1]} is in pending ack status"
        return ""

    def _is_held(self, entry: HeldEntry) -> bool:
        return self.entries.get(entry.position, 0) & entry.bits != 0

    def cumulative_conflict(self, ack: CumulativeAck, cursor: AcknowledgedView) -> str:
        """Why a cumulative acknowledgement cannot be held, empty when it can."""
        if ack.position <= cursor.mark_delete:
            return f"position {ack.position[0]}:{ack.position[1]} is not beyond the cursor's mark {cursor.mark_delete}"
        before = self.cumulative
        if before is not None and (before.transaction != ack.transaction or ack.place <= before.place):
            return f"position {ack.position[0]}:{ack.position[1]} is within what {before.transaction} acknowledges"
        return ""

    def has_room(self, entries: Sequence[HeldEntry]) -> bool:
        """Whether memory is allowed for these, too."""
        if len(self.entries) + len(entries) > HELD_ENTRIES_MAX:
            return False
        return self._words + sum(map(_words_of, entries)) <= HELD_WORDS_MAX

    @staticmethod
    def fits(entries: Iterable[AckedEntry]) -> bool:
        """Whether one acknowledgement takes no more memory than all may: known before bit sets are made, as it is the
        client that says how large its batches are."""
        words = 0
        for entry in entries:
            if entry.remaining:
                messages = entry.batch_size if entry.batch_size > 0 else len(entry.remaining) << 6
                words += (min(messages, BATCH_MESSAGES_MAX) + 63) >> 6
        return words <= HELD_WORDS_MAX

    # --- what is held

    def hold(self, transaction: TransactionBits, entries: list[HeldEntry]) -> None:
        """Hold what one record of a transaction acknowledges. An empty record counts, too: it is to be ended."""
        acks = self.transactions.get(transaction)
        if acks is None:
            acks = self.transactions[transaction] = TransactionAcks()
            self._note_number(transaction)
        if not entries:
            return
        acks.records.append(entries)
        for entry in entries:
            position = entry.position
            self.entries[position] = self.entries.get(position, 0) | entry.bits
            if entry.bits != WHOLE:
                self.sizes[position] = max(entry.batch_size, self.sizes.get(position, 0))
                self._words += _words_of(entry)

    def hold_cumulative(self, ack: CumulativeAck) -> None:
        """Hold everything up to a position."""
        self.cumulative = ack
        self._note_number(ack.transaction)

    def release(self, entries: Iterable[HeldEntry]) -> None:
        """Hold the entries of one record no more."""
        for entry in entries:
            position = entry.position
            left = self.entries.get(position, 0) & ~entry.bits
            if left:
                self.entries[position] = left
            else:
                self.entries.pop(position, None)
                self.sizes.pop(position, None)
            if entry.bits != WHOLE:
                self._words -= _words_of(entry)

    def cumulative_of(self, transaction: TransactionBits) -> CumulativeAck | None:
        """The cumulative acknowledgement of a transaction; None: it has none."""
        cumulative = self.cumulative
        return cumulative if cumulative is not None and cumulative.transaction == transaction else None

    def knows(self, transaction: TransactionBits) -> bool:
        """Whether the log has a record of it without its end."""
        return transaction in self.transactions or self.cumulative_of(transaction) is not None

    def records(self) -> list[PendingAckRecord]:
        """The acknowledgements of open transactions, as records of a log that begins now."""
        found = [
            PendingAckRecord(PendingAckOperation.ACK, transaction, cumulative=False, entries=list(map(_acked, record)))
            for transaction, acks in self.transactions.items()
            for record in acks.records
        ]
        if (ack := self.cumulative) is not None:
            acked = AckedEntry(ack.position, words_of(ack.left), 0)
            found.append(PendingAckRecord(PendingAckOperation.ACK, ack.transaction, cumulative=True, entries=[acked]))
        return found

    def forget(self, transaction: TransactionBits) -> None:
        """It is ended, and all of its records are released."""
        self.transactions.pop(transaction, None)
        if self.cumulative_of(transaction) is not None:
            self.cumulative = None
        # Clients name any coordinator: nothing is left of one without a transaction.
        coordinator = transaction[0]
        numbers = self._numbers.get(coordinator, [])
        while numbers and not self.knows((coordinator, numbers[0])):
            heappop(numbers)
        if not numbers:
            self._numbers.pop(coordinator, None)

    @property
    def open_transactions(self) -> int:
        """Transactions with individual acknowledgements that count."""
        return sum(1 for acks in self.transactions.values() if acks.records)

    # --- coordinators

    def low_water_mark(self, coordinator: int, number: int) -> None:
        """A coordinator says that its transactions up to this number are over; the highest one counts."""
        self.low_water_marks[coordinator] = max(number, self.low_water_marks.get(coordinator, number))

    def note_ended(self, transaction: TransactionBits) -> None:
        """Its coordinator says that it ends: nobody will end again what is held for it later."""
        ended = self._ended
        ended[transaction] = None
        while len(ended) > ENDED_KEPT or self._is_over(next(iter(ended))):
            self.earlier.forget(ended.popitem(last=False)[0])
            if not ended:
                return

    def has_ended(self, transaction: TransactionBits) -> bool:
        """Whether nothing may be held for it any more."""
        return transaction in self._ended or self._is_over(transaction)

    def in_doubt(self, transaction: TransactionBits) -> bool:
        """Whether it may have ended, and nothing here tells."""
        return not self.knows(transaction) and not self.has_ended(transaction) and self.earlier.includes(transaction)

    def _is_over(self, transaction: TransactionBits) -> bool:
        return transaction[1] <= self.low_water_marks.get(transaction[0], -1)

    def left_behind(self) -> list[TransactionBits]:
        """Transactions that their coordinators have forgotten: nobody will end them."""
        found: list[TransactionBits] = []
        for coordinator, mark in self.low_water_marks.items():
            numbers = self._numbers.get(coordinator, [])
            while numbers and (numbers[0] <= mark or not self.knows((coordinator, numbers[0]))):
                transaction = (coordinator, heappop(numbers))
                if self.knows(transaction) and transaction not in found[-1:]:
                    found.append(transaction)
        for transaction in found:
            # Until it is ended indeed.
            self._note_number(transaction)
        return found

    def _note_number(self, transaction: TransactionBits) -> None:
        numbers = self._numbers.setdefault(transaction[0], [])
        heappush(numbers, transaction[1])
        if len(numbers) > NUMBERS_KEPT + 2 * len(self.transactions):
            # One may be open for a day, and millions end meanwhile.
            self._numbers[transaction[0]] = sorted({one for one in numbers if self.knows((transaction[0], one))})

    def still_open(self) -> list[TransactionBits]:
        """Of those that were open at the last look, too, the first one, and who acknowledges cumulatively."""
        known = [next(iter(self.transactions), None), self.cumulative.transaction if self.cumulative else None]
        before, self._looked_at = self._looked_at, [one for one in dict.fromkeys(known) if one is not None]
        return [one for one in self._looked_at if one in before]

    # --- replay

    def replay(
        self, record: PendingAckRecord, cursor: AcknowledgedView, contains: Callable[[Position], bool]
    ) -> TransactionBits | None:
        """Take a record of the log. The transaction that it ends, if this one knows it: the caller does that.

        Apache's brokers write an acknowledgement before they look whether they take it: one of what another record
        holds was refused, and counts for nothing. What is acknowledged by now may have been so later, as by a commit of
        which a part was stored before a crash: then the rest of the record counts."""
        if record.operation is not PendingAckOperation.ACK:
            self.note_ended(record.transaction)
            return record.transaction if self.knows(record.transaction) else None
        if record.cumulative:
            for entry in record.entries[:1]:
                ack = CumulativeAck(record.transaction, entry.position, value_of(entry.remaining))
                if not self.cumulative_conflict(ack, cursor):
                    self.hold_cumulative(ack)
            return None
        entries = [each for each in map(held_entry, record.entries) if each.bits and contains(each.position)]
        if any(self._is_held(each) for each in entries):
            entries = []
        self.hold(record.transaction, [each for each in entries if not _is_acknowledged(each, cursor)])
        return None


def _is_acknowledged(entry: HeldEntry, cursor: AcknowledgedView) -> bool:
    if cursor.is_acknowledged(entry.position):
        return True
    if entry.bits == WHOLE:
        return False
    remaining = cursor.remaining_ack_set(entry.position)
    return remaining is not None and entry.bits & ~value_of(remaining) != 0


def _acked(entry: HeldEntry) -> AckedEntry:
    return AckedEntry(entry.position, words_of(entry.left), entry.batch_size)


def _words_of(entry: HeldEntry) -> int:
    return 0 if entry.bits == WHOLE else (entry.bits.bit_length() + 63) >> 6
