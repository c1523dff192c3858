"""The ledgers of one managed ledger, in order, and the arithmetic of positions over them.

Pure. The last record is the ledger in use; its `entries` grows as appends are confirmed, so that the same rules hold
for every record. A ledger without entries takes part in nothing but being the place of the entry to come.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection

from magnetar.core.ids import NO_ENTRY, Position
from magnetar.wire.pulsar.generated.ml_data_formats_pb2 import ManagedLedgerInfo


class LedgerRecord:
    """One ledger: how many confirmed entries and bytes it has, and when it was closed (0 = in use)."""

    __slots__ = ("closed_ms", "due_ms", "entries", "ledger_id", "rest", "size_bytes")

    def __init__(self, ledger_id: int, entries: int = 0, size_bytes: int = 0, closed_ms: int = 0) -> None:
        self.ledger_id: int = ledger_id
        self.entries: int = entries
        self.size_bytes: int = size_bytes
        self.closed_ms: int = closed_ms
        self.due_ms: int = 0
        """When the last of its messages that were to be delivered later is due, in milliseconds since 1970; 0: none is
        known."""
        self.rest: ManagedLedgerInfo.LedgerInfo | None = None
        """Fields of the stored record that this class does not use (tiered storage, properties), kept unchanged."""


class LedgerList:
    """Ascending ledgers; positions are compared and counted over them."""

    __slots__ = ("_records", "due_unstored", "ids")

    def __init__(self, records: list[LedgerRecord]) -> None:
        self.ids: list[int] = [record.ledger_id for record in records]
        self._records: list[LedgerRecord] = list(records)
        """In the order of `ids`: a list costs an idle topic a third of what a dictionary does."""
        self.due_unstored: bool = False
        """Whether something was noted of a closed ledger that the stored list may not say yet."""
        assert self.ids == sorted(self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    def records(self) -> list[LedgerRecord]:
        """All records, oldest first."""
        return list(self._records)

    def get(self, ledger_id: int) -> LedgerRecord | None:
        """The record, or None when the ledger is not (or no more) of this list."""
        ids = self.ids
        if not ids or ledger_id > ids[-1]:
            return None
        # Nearly always the ledger in use is meant.
        index = -1 if ledger_id == ids[-1] else bisect_left(ids, ledger_id)
        return self._records[index] if ids[index] == ledger_id else None

    def last(self) -> LedgerRecord:
        """The ledger in use, or the last one there was."""
        return self._records[-1]

    def add(self, record: LedgerRecord) -> None:
        """Append the next ledger; its id must be greater than all others'."""
        assert not self.ids or record.ledger_id > self.ids[-1]
        self.ids.append(record.ledger_id)
        self._records.append(record)

    def remove(self, ledger_ids: Collection[int]) -> None:
        """Take ledgers out, all in one pass: a trim may take thousands. Ids that are not there are passed over."""
        self._records = [record for record in self._records if record.ledger_id not in ledger_ids]
        self.ids = [record.ledger_id for record in self._records]

    def note_due(self, ledger_id: int, due_ms: int) -> None:
        """A message of this ledger is delivered at a time, in milliseconds since 1970. What is noted of the last ledger
        is stored when the next one is made."""
        record = self.get(ledger_id)
        if record is not None and due_ms > record.due_ms:
            record.due_ms = due_ms
            if ledger_id != self.ids[-1]:
                self.due_unstored = True

    def contains(self, position: Position) -> bool:
        """Whether there is a confirmed entry at the position."""
        record = self.get(position[0])
        return record is not None and 0 <= position[1] < record.entries

    def first_position(self) -> Position:
        """The first entry there is; when there is none, where the next one will be."""
        return self.valid_from((self.ids[0], 0)) if self.ids else (NO_ENTRY, 0)

    def last_position(self) -> Position:
        """The last confirmed entry; (current ledger, -1) when there is none."""
        for record in reversed(self._records):
            if record.entries:
                return (record.ledger_id, record.entries - 1)
        return (self.ids[-1] if self.ids else NO_ENTRY, NO_ENTRY)

    def valid_from(self, position: Position) -> Position:
        """The first entry at or after the position; when there is none, where the next one will be."""
        ledger_id, entry_id = position
        record = self.get(ledger_id)
        if record is not None:
            if entry_id < record.entries:
                return (ledger_id, entry_id) if entry_id >= 0 else (ledger_id, 0)
            if ledger_id == self.ids[-1]:
                return (ledger_id, record.entries)
            index = bisect_left(self.ids, ledger_id) + 1
        else:
            index = bisect_left(self.ids, ledger_id)
        for later in self._records[index:]:
            if later.entries:
                return (later.ledger_id, 0)
        last = self._records[-1]
        return (last.ledger_id, last.entries)

    def ends_older_ledger(self, position: Position) -> bool:
        """Whether this is the last entry of a ledger behind which there is another one."""
        if position[0] == self.ids[-1]:
            return False
        record = self.get(position[0])
        return record is not None and position[1] == record.entries - 1

    def next_position(self, position: Position) -> Position:
        """The first entry after the position; when there is none, where the next one will be."""
        return self.valid_from((position[0], position[1] + 1))

    def previous_position(self, position: Position) -> Position:
        """The last entry before the position; (first ledger, -1) when there is none."""
        ledger_id, entry_id = position
        record = self.get(ledger_id)
        if record is not None and entry_id > 0 and record.entries:
            return (ledger_id, min(entry_id, record.entries) - 1)
        for earlier in reversed(self._records[: bisect_left(self.ids, ledger_id)]):
            if earlier.entries:
                return (earlier.ledger_id, earlier.entries - 1)
        return (self.ids[0], NO_ENTRY)

    def normalised_mark(self, position: Position) -> Position:
        """A mark-delete position that may be of a ledger now gone, or beyond the end, moved to one that we have.

        The same entries stay consumed: (next ledger, -1) stands for a ledger that is no more."""
        ledger_id, entry_id = position
        record = self.get(ledger_id)
        if record is not None:
            return (ledger_id, max(NO_ENTRY, min(entry_id, record.entries - 1)))
        index = bisect_left(self.ids, ledger_id)
        return (self.ids[index], NO_ENTRY) if index < len(self.ids) else self.last_position()

    def entries_between(self, after: Position, up_to: Position) -> int:
        """How many entries lie in (after, up_to]; 0 when there are none or the order is wrong."""
        if after[0] == up_to[0]:
            record = self.get(after[0])
            if record is None:
                return 0
            return max(0, min(up_to[1], record.entries - 1) - max(after[1], NO_ENTRY))
        if after >= up_to:
            return 0
        count = 0
        for between in self._records[bisect_left(self.ids, after[0]) :]:
            ledger_id, entries = between.ledger_id, between.entries
            if ledger_id > up_to[0]:
                break
            if ledger_id == after[0]:
                count += max(0, entries - 1 - max(after[1], NO_ENTRY))
            elif ledger_id == up_to[0]:
                count += min(entries, up_to[1] + 1)
            else:
                count += entries
        return count

    def size_bytes_after(self, position: Position) -> int:
        """Bytes of the entries after the position; inside of a ledger by the share of its entries."""
        size = 0
        for record in self._records[bisect_left(self.ids, position[0]) :]:
            if record.ledger_id != position[0]:
                size += record.size_bytes
            elif record.entries:
                left = max(0, record.entries - 1 - max(position[1], NO_ENTRY))
                size += record.size_bytes * left // record.entries
        return size

    def number_of_entries(self) -> int:
        """Confirmed entries over all ledgers."""
        return sum([record.entries for record in self._records])

    def total_size_bytes(self) -> int:
        """Confirmed payload bytes over all ledgers."""
        return sum([record.size_bytes for record in self._records])

    def offloaded_size_bytes(self) -> int:
        """Bytes of those that tiered storage has, too."""
        size_bytes = 0
        for record in self._records:
            if record.rest is not None and record.rest.offloadContext.complete:
                size_bytes += record.size_bytes
        return size_bytes

    def entries_in(self, ledger_id: int) -> int:
        """Confirmed entries of one ledger; 0 when it is not there."""
        record = self.get(ledger_id)
        return 0 if record is None else record.entries

    def average_entry_bytes(self, ledger_id: int) -> int:
        """Of one ledger's entries; 0 when it is not there or empty."""
        record = self.get(ledger_id)
        return 0 if record is None or not record.entries else record.size_bytes // record.entries

    def indexes_around(self, time_ms: int, skew_ms: int) -> tuple[int, int]:
        """Between which indexes the first entry of a time is, by when ledgers were closed; clocks may differ by so much
        from those of whoever says the time of an entry (Pulsar `PersistentMessageFinder.getFindPositionRange`)."""
        low = high = 0
        for record in self._records:
            if record.closed_ms == 0:
                break
            high += record.entries
            if record.closed_ms <= time_ms - skew_ms:
                low = high
            elif record.closed_ms > time_ms + skew_ms:
                return low, high
        return low, self.number_of_entries()

    def entry_at(self, index: int) -> Position:
        """The position of the index-th entry, from 0."""
        assert index >= 0
        for record in self._records:
            if index < record.entries:
                return (record.ledger_id, index)
            index -= record.entries
        raise IndexError("beyond the last entry")
