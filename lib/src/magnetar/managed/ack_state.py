"""The acknowledgements of one cursor: everything up to `mark_delete`, single entries beyond it, and parts of batches.

Pure, and on the hot path. Acknowledging in order is a comparison and an addition; out of order, one bit is set and the
mark follows when its gap closes. Positions that are no confirmed entry are ignored: a client may send anything, and a
bit far beyond the end would cost memory.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import Final

from magnetar.core.ids import Position
from magnetar.managed.entry_bitmap import EntryBitmap, value_of, words_of
from magnetar.managed.ledger_list import LedgerList
from magnetar.managed.redelivery_counts import REDELIVERIES_MAX, STORED_COUNTS_MAX, RedeliveryCounts

MAX_ENTRY_ID: Final = 0x7FFF_FFFF_FFFF_FFFF

PARTIAL_BATCHES_MAX: Final = 50_000
"""Batches acknowledged in part that one cursor remembers; 10 000 are persisted. Beyond it nothing is noted of further
ones: they are delivered as a whole again."""

PARTIAL_WORDS_MAX: Final = 1 << 20
"""The words of these ack sets, 8 MiB: each batch may have 1 340 messages. Clients name words as they like."""


class AckState:
    """The consumed part of a managed ledger's entries.

    `individual_count` is the number of entries beyond the mark that are acknowledged; while it is 0 readers need not
    ask about single entries."""

    __slots__ = (
        "_ledgers",
        "_partial_order",
        "beyond",
        "individual_count",
        "mark_delete",
        "partial",
        "partial_words",
        "redeliveries",
    )

    def __init__(self, ledgers: LedgerList, mark_delete: Position) -> None:
        self._ledgers: LedgerList = ledgers
        self.mark_delete: Position = mark_delete
        self.beyond: dict[int, EntryBitmap] | None = None
        """Acknowledged entries by ledger; ids up to the mark may be in there and mean nothing."""
        self.individual_count: int = 0
        self.partial: dict[Position, int] | None = None
        """Batches beyond the mark of which some messages are acknowledged: bit 1 = still unacknowledged."""
        self.partial_words: int = 0
        """The words of all of them."""
        self._partial_order: list[Position] = []
        """A heap of those batches, so that the mark finds what it passes; some may be gone."""
        self.redeliveries: RedeliveryCounts | None = None
        """How often unacknowledged entries were asked for again; of others there may be some for a while."""

    def acknowledge(self, positions: Iterable[Position]) -> bool:
        """Single entries. Whether anything changed."""
        mark_ledger, mark_entry = self.mark_delete
        before_entry = mark_entry
        record = self._ledgers.get(mark_ledger)
        entries = record.entries if record is not None else 0
        if self.partial or self.redeliveries is not None:
            positions = self._forget_deliveries(positions)
        bitmap = self.beyond.get(mark_ledger) if self.beyond is not None else None
        changed = False
        for position in positions:
            ledger_id, entry_id = position
            if ledger_id != mark_ledger:
                if ledger_id > mark_ledger and self._set(position):
                    changed = True
            elif entry_id == mark_entry + 1 and entry_id < entries:
                mark_entry = entry_id
                if bitmap is not None and self.individual_count:
                    mark_entry = self._follow(bitmap, mark_entry)
            elif mark_entry < entry_id < entries:
                if bitmap is None:
                    bitmap = self._bitmap(mark_ledger, mark_entry + 1)
                if bitmap.add(entry_id):
                    self.individual_count += 1
                    changed = True
        if mark_entry != before_entry:
            self.mark_delete = (mark_ledger, mark_entry)
            changed = True
        if self.individual_count and (mark_entry == entries - 1 or record is None):
            self._cross_ledgers()
        return changed

    def _forget_deliveries(self, positions: Iterable[Position]) -> tuple[Position, ...]:
        """Forgets the entries' ack sets and redelivery counts; returns the positions as a tuple."""
        whole = tuple(positions)
        partial, redeliveries = self.partial, self.redeliveries
        for position in whole:
            if partial:
                self.partial_words -= _words_in(partial.pop(position, 0))
            if redeliveries is not None:
                redeliveries.forget(position)
        return whole

    def acknowledge_batch_indexes(self, position: Position, remaining: Sequence[int], batch_size: int) -> bool:
        """Part of a batch: words with 1 = still unacknowledged, intersected with what was so before.

        Whether the entry became wholly acknowledged by this call."""
        if position <= self.mark_delete or self.is_acknowledged(position) or not self._ledgers.contains(position):
            return False
        left = value_of(remaining)
        # The size is the client's word: a mask of so many bits is only made when it is the smaller one.
        if 0 < batch_size < left.bit_length():
            left &= (1 << batch_size) - 1
        if self.partial:
            left &= self.partial.get(position, -1)
        if left:
            self._note_partial(position, left)
            return False
        self.acknowledge((position,))
        return True

    def acknowledge_cumulative(self, position: Position, remaining: Sequence[int] | None = None) -> bool:
        """Everything up to and with the position; with `remaining` all before it and a part of it. Whether anything
        changed. A position after the end of its (closed) ledger means that end; one that was never confirmed is
        ignored."""
        if remaining is not None and (left := value_of(remaining)):
            if not self._ledgers.contains(position) or position <= self.mark_delete:
                return False
            if self.is_acknowledged(position):
                left = 0
            elif self.partial:
                left &= self.partial.get(position, -1)
            if left:
                before = self._ledgers.previous_position(position)
                if before > self.mark_delete:
                    self._move_mark(before)
                self._note_partial(position, left)
                return True
        if position > self._ledgers.last_position():
            return False
        position = self._ledgers.normalised_mark(position)
        if position <= self.mark_delete:
            return False
        self._move_mark(position)
        return True

    def is_acknowledged(self, position: Position) -> bool:
        """Whether the whole entry is acknowledged."""
        if position <= self.mark_delete:
            return True
        if not self.individual_count or self.beyond is None:
            return False
        bitmap = self.beyond.get(position[0])
        return bitmap is not None and bitmap.contains(position[1])

    def remaining_ack_set(self, position: Position) -> list[int] | None:
        """Words of what is left of a batch; None when nothing of it is acknowledged by itself."""
        if not self.partial:
            return None
        left = self.partial.get(position)
        return None if left is None else words_of(left)

    def redelivered(self, positions: Iterable[Position]) -> bool:
        """Clients asked for these entries, which they were sent, again. Whether any of them is still to be delivered:
        others do not count."""
        again = [each for each in positions if not self.is_acknowledged(each)]
        if not again:
            return False
        redeliveries = self.redeliveries
        if redeliveries is None:
            redeliveries = self.redeliveries = RedeliveryCounts()
        redeliveries.increment(again)
        return True

    def backlog(self, last: Position) -> int:
        """Entries up to `last` that are not acknowledged."""
        return self._ledgers.entries_between(self.mark_delete, last) - self.individual_count

    def entries_between(self, after: Position, up_to: Position) -> int:
        """How many entries lie in (after, up_to], acknowledged or not; 0 when the order is wrong."""
        return self._ledgers.entries_between(after, up_to)

    def reset(self, mark_delete: Position) -> None:
        """Forget everything but this mark."""
        self.mark_delete = mark_delete
        self.beyond = None
        self.individual_count = 0
        self.partial = None
        self.partial_words = 0
        self._partial_order = []
        self.redeliveries = None

    def ranges(self, count_max: int = 1 << 62) -> list[tuple[Position, Position]]:
        """Acknowledged stretches beyond the mark, ascending: lower end excluded, upper end included."""
        found: list[tuple[Position, Position]] = []
        mark_ledger, mark_entry = self.mark_delete
        for ledger_id in sorted(self.beyond or ()):
            bitmap = (self.beyond or {})[ledger_id]
            if ledger_id < mark_ledger:
                continue
            above = mark_entry if ledger_id == mark_ledger else -1
            for first, last in bitmap.ranges(above, count_max - len(found)):
                found.append(((ledger_id, first - 1), (ledger_id, last)))
            if len(found) >= count_max:
                break
        return found

    def range_count(self) -> int:
        """How many stretches `ranges` has."""
        mark_ledger, mark_entry = self.mark_delete
        count = 0
        for ledger_id, bitmap in (self.beyond or {}).items():
            if ledger_id >= mark_ledger:
                count += bitmap.runs(mark_entry if ledger_id == mark_ledger else -1)
        return count

    def unacknowledged_at(self, number: int) -> Position:
        """The `number`-th entry beyond the mark that is not acknowledged, from 1 to `backlog`.

        By arithmetic: the number may be that of a whole backlog."""
        mark_ledger, mark_entry = self.mark_delete
        ids, beyond = self._ledgers.ids, self.beyond
        for index in range(bisect_left(ids, mark_ledger), len(ids)):
            ledger_id = ids[index]
            record = self._ledgers.get(ledger_id)
            first = mark_entry + 1 if ledger_id == mark_ledger else 0
            left = record.entries - first if record is not None else 0
            bitmap = beyond.get(ledger_id) if beyond is not None else None
            if bitmap is not None:
                left -= bitmap.count(first, first + left - 1)
            if number > left:
                number -= max(0, left)
            elif bitmap is not None:
                return (ledger_id, bitmap.missing_at(first, number))
            else:
                return (ledger_id, first + number - 1)
        raise IndexError("beyond the last entry")

    def long_arrays(self) -> list[tuple[int, list[int]]]:
        """The acknowledged entry ids of each ledger: (ledger id, words of their bit set), ascending."""
        mark_ledger, mark_entry = self.mark_delete
        found: list[tuple[int, list[int]]] = []
        for ledger_id in sorted(self.beyond or ()):
            if ledger_id >= mark_ledger:
                above = mark_entry if ledger_id == mark_ledger else -1
                words = (self.beyond or {})[ledger_id].words(above)
                if words:
                    found.append((ledger_id, words))
        return found

    def load_ranges(self, ranges: Iterable[tuple[Position, Position]]) -> None:
        """Acknowledge stored stretches (lower end excluded, upper end included)."""
        ids = self._ledgers.ids
        for lower, upper in ranges:
            for ledger_id in ids[bisect_left(ids, lower[0]) : bisect_right(ids, upper[0])]:
                first = lower[1] + 1 if ledger_id == lower[0] else 0
                self._set_range(ledger_id, first, upper[1] if ledger_id == upper[0] else MAX_ENTRY_ID)
        self._settle()

    def load_long_arrays(self, arrays: Iterable[tuple[int, Sequence[int]]]) -> None:
        """Acknowledge the entries of stored bit sets."""
        for ledger_id, words in arrays:
            self._set_all(ledger_id, value_of(words))
        self._settle()

    def load_partial(self, position: Position, words: Sequence[int]) -> None:
        """Take over what is left of a batch from storage."""
        left = value_of(words)
        if left and not self.is_acknowledged(position) and self._ledgers.contains(position):
            self._note_partial(position, left)

    def load_redeliveries(self, position: Position, count: int) -> None:
        """Take over from storage how often an entry was asked for again. What is stored may be older than the mark."""
        if not 0 < count <= REDELIVERIES_MAX or self.is_acknowledged(position) or not self._ledgers.contains(position):
            return
        redeliveries = self.redeliveries
        if redeliveries is None:
            redeliveries = self.redeliveries = RedeliveryCounts()
        if len(redeliveries) < STORED_COUNTS_MAX:
            redeliveries.restore(position, count)

    def renormalise(self) -> None:
        """After ledgers went: the mark stands on a ledger that there is, and nothing is known of those that are not."""
        self._move_mark(self._ledgers.normalised_mark(self.mark_delete))
        partial = self.partial
        if partial:
            for key in [key for key in partial if self._ledgers.get(key[0]) is None]:
                self.partial_words -= _words_in(partial.pop(key))

    def _note_partial(self, position: Position, left: int) -> None:
        """Remember what is left of a batch, unless it is a further one beyond what there is room for."""
        partial = self.partial
        if partial is None:
            partial = self.partial = {}
        former = partial.get(position, 0)
        words = self.partial_words + _words_in(left)
        if former:
            words -= _words_in(former)
        elif words > PARTIAL_WORDS_MAX or len(partial) >= PARTIAL_BATCHES_MAX:
            return
        else:
            heappush(self._partial_order, position)
            if len(self._partial_order) > 64 + 2 * len(partial):
                self._partial_order = [*partial, position]
                heapify(self._partial_order)
        self.partial_words = words
        partial[position] = left

    def _set(self, position: Position) -> bool:
        """Set one bit of a ledger after the mark's, if there is such an entry and it was not set."""
        ledger_id, entry_id = position
        record = self._ledgers.get(ledger_id)
        if record is None or not 0 <= entry_id < record.entries or not self._bitmap(ledger_id, 0).add(entry_id):
            return False
        self.individual_count += 1
        return True

    def _bitmap(self, ledger_id: int, first_entry_id: int) -> EntryBitmap:
        """The bits of a ledger; a new bitmap begins at this entry."""
        beyond = self.beyond
        if beyond is None:
            beyond = self.beyond = {}
        bitmap = beyond.get(ledger_id)
        if bitmap is None:
            bitmap = beyond[ledger_id] = EntryBitmap(first_entry_id)
        return bitmap

    def _set_range(self, ledger_id: int, first: int, last: int) -> None:
        """Set the bits that are beyond the mark and of confirmed entries; `_settle` must follow."""
        record = self._ledgers.get(ledger_id)
        mark_ledger, mark_entry = self.mark_delete
        if record is None or ledger_id < mark_ledger:
            return
        first = max(first, mark_entry + 1 if ledger_id == mark_ledger else 0)
        last = min(last, record.entries - 1)
        if first <= last:
            self._bitmap(ledger_id, mark_entry + 1 if ledger_id == mark_ledger else 0).add_range(first, last)

    def _set_all(self, ledger_id: int, value: int) -> None:
        """Set the bits of a number, bit 0 for entry 0, as `_set_range` does: it may have a million of runs."""
        record = self._ledgers.get(ledger_id)
        mark_ledger, mark_entry = self.mark_delete
        if record is None or ledger_id < mark_ledger:
            return
        first = mark_entry + 1 if ledger_id == mark_ledger else 0
        value = (value & ((1 << record.entries) - 1)) >> first << first
        if value:
            self._bitmap(ledger_id, first).add_all(value)

    def _follow(self, bitmap: EntryBitmap, mark_entry: int) -> int:
        """Where the mark comes to stand in its ledger once it has reached `mark_entry`."""
        end = bitmap.end_of_run(mark_entry + 1) - 1
        if end != mark_entry:
            self.individual_count -= end - mark_entry
            bitmap.forget_below(end)
        return end

    def _cross_ledgers(self) -> None:
        """Let the mark go on over ends of ledgers as long as the next entry is acknowledged."""
        while self.individual_count and self.beyond is not None:
            ledger_id, entry_id = self._ledgers.next_position(self.mark_delete)
            bitmap = self.beyond.get(ledger_id)
            if bitmap is None or not bitmap.contains(entry_id):
                break
            if ledger_id != self.mark_delete[0]:
                self.beyond.pop(self.mark_delete[0], None)
            self.mark_delete = (ledger_id, self._follow(bitmap, entry_id - 1))

    def _move_mark(self, position: Position) -> None:
        """Put the mark forward (or where it is) and forget what it covers."""
        self.mark_delete = position
        beyond = self.beyond
        if beyond is not None:
            for ledger_id in [each for each in beyond if each < position[0] or self._ledgers.get(each) is None]:
                del beyond[ledger_id]
        self._settle()
        if self.redeliveries is not None:
            self.redeliveries.mark_moved(self.mark_delete)
        partial = self.partial
        if partial:
            order = self._partial_order
            few = 64 + (len(order) >> 3)
            while few and order and order[0] <= self.mark_delete:
                self.partial_words -= _words_in(partial.pop(heappop(order), 0))
                few -= 1
            if not few:
                self._drop_passed_partial()

    def _drop_passed_partial(self) -> None:
        """Forget the batches that the mark has passed, when they are many: a heap gives them one by one."""
        mark = self.mark_delete
        self.partial = {key: left for key, left in (self.partial or {}).items() if key > mark}
        self.partial_words = sum([_words_in(left) for left in self.partial.values()])
        self._partial_order = list(self.partial)
        heapify(self._partial_order)

    def _settle(self) -> None:
        """Count anew what lies beyond the mark, and let the mark follow."""
        mark_ledger, mark_entry = self.mark_delete
        beyond = self.beyond
        self.individual_count = 0
        if not beyond:
            return
        for ledger_id, bitmap in beyond.items():
            if ledger_id >= mark_ledger:
                first = mark_entry + 1 if ledger_id == mark_ledger else 0
                self.individual_count += bitmap.count(first, bitmap.base + len(bitmap.bits) * 8)
        self._cross_ledgers()
        if not self.individual_count:
            self.beyond = None


def _words_in(left: int) -> int:
    """How many words an ack set takes."""
    return (left.bit_length() + 63) >> 6
