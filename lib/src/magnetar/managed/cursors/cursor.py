"""One reader's place in a managed ledger: what it has acknowledged and what it reads next.

What it returns to be awaited is made by `reading.py` and `storage.py`.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from magnetar.core.errors import MagnetarError
from magnetar.core.ids import EARLIEST, LATEST, NO_ENTRY, Position
from magnetar.managed.ack_state import AckState
from magnetar.managed.append_path import AppendPath
from magnetar.managed.cursors.reading import CursorLedger, closed, durable, nothing, read_next, read_positions
from magnetar.managed.cursors.store import CursorStore
from magnetar.managed.entry import Entry
from magnetar.managed.ledger_list import LedgerList
from magnetar.managed.stats import CursorStats


class Cursor:
    """Durable cursors are kept in the store and hold back trimming; the others live in memory only."""

    __slots__ = (
        "_appends",
        "_ledger",
        "_ledgers",
        "_storage",
        "acks",
        "closed",
        "cursor_properties",
        "name",
        "on_acknowledged",
        "properties",
        "read_position",
    )

    def __init__(self, ledger: CursorLedger, name: str, acks: AckState, storage: CursorStore | None = None) -> None:
        self._ledger: CursorLedger = ledger
        self._ledgers: LedgerList = ledger.ledgers
        self._appends: AppendPath = ledger.appends
        self._storage: CursorStore | None = storage
        self.name: str = name
        self.acks: AckState = acks
        self.closed: bool = False
        self.properties: dict[str, int] = storage.properties if storage is not None else {}
        """Stored with each position (Pulsar: of the mark-delete, e.g. the deduplication snapshot)."""
        self.cursor_properties: dict[str, str] = storage.cursor_properties if storage is not None else {}
        self.read_position: Position = ledger.ledgers.next_position(acks.mark_delete)
        self.on_acknowledged: Callable[[Position], None] | None = None
        """Told the mark-delete position after each acknowledgement."""

    @property
    def durable(self) -> bool:
        """Whether the cursor is kept in the store."""
        return self._storage is not None

    @property
    def storage(self) -> CursorStore | None:
        """Where a durable one is kept."""
        return self._storage

    @property
    def mark_delete(self) -> Position:
        """Everything up to here is acknowledged."""
        return self.acks.mark_delete

    @property
    def needless_up_to(self) -> Position:
        """Nothing up to here is needed for this cursor any more. Where something is stored with the position, such as a
        deduplication snapshot, it is what is left of these entries: they are needed until it is durable."""
        storage, mark = self._storage, self.acks.mark_delete
        return mark if storage is None or not self.properties else min(mark, storage.durable_mark)

    @property
    def backlog_entries(self) -> int:
        """Confirmed entries that are not acknowledged."""
        return self.acks.backlog(self._appends.last_confirmed)

    def read_cached(self, count_max: int, size_bytes_max: int) -> list[Entry] | None:
        """Read the next entries that are not acknowledged, and move past them, without waiting.

        Empty: caught up. None: the next entry is not in the cache, so call `read`. Fewer than `count_max` entries mean
        nothing; at least one is returned whatever its size."""
        assert count_max > 0
        ledger = self._ledger
        last_ledger, last_entry = self._appends.last_confirmed
        while True:
            ledger_id, entry_id = self.read_position
            if ledger_id == last_ledger:
                stop = last_entry
                if entry_id > stop:
                    return []
            elif ledger_id > last_ledger:
                return []
            else:
                stop = self._end_of_ledger()
                if stop == NO_ENTRY:
                    continue
            available = stop - entry_id + 1
            count = count_max if count_max < available else available
            entries = ledger.cache.read(ledger_id, entry_id, count, size_bytes_max)
            if not entries:
                return None
            self.read_position = (ledger_id, entry_id + len(entries))
            if self.acks.individual_count:
                entries = self.unacknowledged(entries)
                if not entries:
                    continue
            return entries

    def read(self, count_max: int, size_bytes_max: int) -> Coroutine[Any, Any, list[Entry]]:
        """Read the next entries that are not acknowledged, and move past them; from bookies when the cache has not got
        them. Empty: caught up. Raises what the ledger client raises; the read position then stays."""
        return read_next(self, self._ledger, count_max, size_bytes_max)

    def read_positions(self, positions: Sequence[Position]) -> Coroutine[Any, Any, list[Entry]]:
        """The entries at these positions, ascending, without those that are acknowledged or gone.

        Does not move the read position."""
        return read_positions(self.acks, self._ledger, positions)

    def acknowledge(self, positions: Sequence[Position]) -> None:
        """Single entries; what is acknowledged already, or no entry, is ignored."""
        before = self.acks.mark_delete
        if self.acks.acknowledge(positions):
            self._acknowledged(before)

    def acknowledge_batch_indexes(self, position: Position, remaining: list[int], batch_size: int) -> bool:
        """Messages of a batch: words in which 1 = still unacknowledged. Intersects with what was acknowledged before.

        Whether the entry became wholly acknowledged."""
        before = self.acks.mark_delete
        whole = self.acks.acknowledge_batch_indexes(position, remaining, batch_size)
        self._acknowledged(before)
        return whole

    def acknowledge_cumulative(self, position: Position, remaining: list[int] | None = None) -> None:
        """Everything up to the position; with `remaining` the last entry only in part.

        Positions that were never confirmed are ignored."""
        before = self.acks.mark_delete
        if self.acks.acknowledge_cumulative(position, remaining):
            self._acknowledged(before)

    def is_acknowledged(self, position: Position) -> bool:
        """Whether the whole entry is acknowledged."""
        return self.acks.is_acknowledged(position)

    def remaining_ack_set(self, position: Position) -> list[int] | None:
        """Words of what is left of a batch; None when nothing of it is acknowledged by itself."""
        return self.acks.remaining_ack_set(position)

    def redelivered(self, positions: Sequence[Position]) -> None:
        """Clients asked for these entries again. It is counted, and stored at the cursor's rate."""
        if self.acks.redelivered(positions) and self._storage is not None:
            self._storage.changed()

    def redelivery_counts(self, entries: list[Entry]) -> list[int] | None:
        """How often each of the entries was asked for again; None when none was."""
        redeliveries = self.acks.redeliveries
        return None if redeliveries is None else redeliveries.of(entries)

    def unacknowledged_at(self, number: int) -> Position:
        """The `number`-th entry of the backlog, from 1."""
        return self.acks.unacknowledged_at(number)

    @property
    def individual_ranges(self) -> int:
        """How many stretches beyond the mark are acknowledged."""
        return self.acks.range_count()

    @property
    def state_fits(self) -> bool:
        """Whether all that is acknowledged beyond the mark is stored: else the next owner delivers some of it again."""
        most = self._ledger.appends.settings.unacked_ranges_max
        # Cheap as a rule: there are no more stretches than entries.
        return self._storage is None or self.acks.individual_count <= most or self.acks.range_count() <= most

    def individually_acknowledged(self) -> list[tuple[Position, Position]]:
        """Stretches beyond the mark: lower end excluded, upper end included."""
        return self.acks.ranges()

    def rewind(self) -> None:
        """Read again from the first entry that is not acknowledged."""
        self.read_position = self._ledgers.next_position(self.acks.mark_delete)

    def skip_to(self, position: Position) -> None:
        """Read on from here; acknowledges nothing."""
        self.read_position = self._ledger.start_of_reading(position)

    def reset(self, position: Position) -> Coroutine[Any, Any, None]:
        """Seek: everything before the position counts as acknowledged, nothing from it on. Durable on return."""
        start = self._ledger.start_of_reading(position)
        self.acks.reset(self._ledgers.previous_position(start))
        self.read_position = start
        return self._changed_and_durable(self._ledger.trim_later)

    def skip_entries(self, count: int) -> Coroutine[Any, Any, None]:
        """Acknowledge the next `count` unacknowledged entries. Durable on return."""
        assert count >= 0
        count = min(count, self.backlog_entries)
        if count:
            self.acknowledge_cumulative(self.acks.unacknowledged_at(count))
        return self._changed_and_durable()

    def clear_backlog(self) -> Coroutine[Any, Any, None]:
        """Acknowledge everything that is confirmed now. Durable on return."""
        self.acknowledge_cumulative(self._appends.last_confirmed)
        return self._changed_and_durable()

    def persist(self, done: Callable[[MagnetarError | None], None]) -> None:
        """Call `done`, later, once everything acknowledged so far is durable; with the error if that failed.

        One write is in flight at a time: calls made meanwhile share the next one. At once for non-durable cursors."""
        if self._storage is None:
            asyncio.get_running_loop().call_soon(done, None)
        else:
            self._storage.persist(done)

    def set_properties(self, properties: Mapping[str, int]) -> Coroutine[Any, Any, None]:
        """Replace the properties that are stored with the position. Durable on return."""
        self.properties.clear()
        self.properties.update(properties)
        return self._changed_and_durable(self._ledger.trim_later)

    def set_cursor_properties(self, properties: Mapping[str, str]) -> Coroutine[Any, Any, None]:
        """Replace the cursor's own properties. Durable on return."""
        self.cursor_properties.clear()
        self.cursor_properties.update(properties)
        return nothing() if self._storage is None else self._storage.rewrite_node()

    def close(self) -> Coroutine[Any, Any, None]:
        """Durable: write the state and let go. Non-durable: it is gone."""
        if self.closed:
            return nothing()
        self.closed = True
        return closed(self._storage, self._told_closed)

    def abandon(self) -> Coroutine[Any, Any, None]:
        """Let go and write nothing."""
        self.closed = True
        return nothing() if self._storage is None else self._storage.abandon()

    def delete_stored(self) -> Coroutine[Any, Any, None]:
        """Remove what is stored; `ManagedLedger.delete_cursor` calls it."""
        self.closed = True
        return nothing() if self._storage is None else self._storage.delete()

    def ledgers_removed(self) -> None:
        """Some ledgers are no more, or there is another one: stand on those that there are."""
        self.acks.renormalise()
        self._not_behind_mark()
        if self._ledgers.ends_older_ledger(self.acks.mark_delete):
            self._trim_when_stored()

    def stats(self, stretches_max: int = 100) -> CursorStats:
        """Statistics of this cursor for administrators; of what is acknowledged beyond the mark so many stretches, and
        `...` when there are more."""
        storage = self._storage
        stretches = self.acks.ranges(stretches_max + 1)
        shown = [f"({low[0]}:{low[1]}..{high[0]}:{high[1]}]" for low, high in stretches[:stretches_max]]
        ranges = ", ".join(shown if len(stretches) <= stretches_max else [*shown, "..."])
        return CursorStats(
            mark_delete=self.acks.mark_delete,
            read_position=self.read_position,
            individually_acknowledged=f"[{ranges}]",
            cursor_ledger=storage.ledger_id if storage is not None else -1,
            cursor_ledger_last_entry=storage.last_entry_id if storage is not None else -1,
            backlog_entries=self.backlog_entries,
            individual_count=self.acks.individual_count,
            last_ledger_switch_ms=storage.switched_ms if storage is not None else 0,
            dirty=storage is not None and storage.dirty,
            properties=dict(self.properties),
            cursor_properties=dict(self.cursor_properties),
        )

    def _acknowledged(self, before: Position) -> None:
        mark = self.acks.mark_delete
        if mark != before:
            if self.read_position <= mark:
                self.read_position = self._ledgers.next_position(mark)
            if mark[0] != before[0] or self._ledgers.ends_older_ledger(mark):
                self._ledger.trim_later()
                self._trim_when_stored()
        if self._storage is not None:
            self._storage.changed()
        if self.on_acknowledged is not None:
            self.on_acknowledged(mark)

    def _trim_when_stored(self) -> None:
        """The mark has left a ledger behind, which may be needed until that is durable."""
        if self.properties and self._storage is not None:
            # Not in this turn: a snapshot may come to stand with this mark.
            asyncio.get_running_loop().call_soon(self._storage.persist, self._stored)

    def _stored(self, error: MagnetarError | None) -> None:
        if error is None:
            self._ledger.trim_later()

    def _told_closed(self) -> None:
        self._ledger.cursor_closed(self)

    def _changed_and_durable(self, then: Callable[[], None] | None = None) -> Coroutine[Any, Any, None]:
        if self._storage is not None:
            self._storage.changed()
        return durable(self._storage, then)

    def _not_behind_mark(self) -> None:
        if self.read_position <= self.acks.mark_delete:
            self.read_position = self._ledgers.next_position(self.acks.mark_delete)

    def _end_of_ledger(self) -> int:
        """The last entry id of the older ledger that is read now; -1 after moving on because nothing is left there."""
        ledger_id, entry_id = self.read_position
        entries = self._ledgers.entries_in(ledger_id)
        if 0 <= entry_id < entries:
            return entries - 1
        self.read_position = self._ledgers.valid_from(self.read_position)
        return NO_ENTRY

    def unacknowledged(self, entries: list[Entry]) -> list[Entry]:
        """The entries among these that are still to be delivered."""
        acks = self.acks
        return [entry for entry in entries if not acks.is_acknowledged((entry.ledger_id, entry.entry_id))]

    def skip_lost(self, position: Position) -> bool:
        """After a read failed for good: whether reading may go on elsewhere (trimmed meanwhile, or lost data)."""
        if self.read_position != position:
            return True
        if not self._ledgers.contains(position):
            self.read_position = self._ledgers.valid_from(position)
            return True
        if not self._appends.settings.skip_lost_data:
            return False
        end = (position[0], self._ledgers.entries_in(position[0]) - 1)
        self.read_position = self._ledgers.next_position(end)
        return True


def start_mark(ledger: CursorLedger, start: Position) -> Position:
    """The mark-delete position of a cursor that begins to read at `start`."""
    ledgers = ledger.ledgers
    if start == EARLIEST:
        return ledgers.previous_position(ledgers.first_position())
    if start >= LATEST:
        return ledger.appends.last_confirmed
    return ledgers.previous_position(ledgers.valid_from(start))
