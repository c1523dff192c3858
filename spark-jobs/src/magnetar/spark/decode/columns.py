"""Record batches of whole entries: filtered, decoded by the topic's schema, in the columns that are wanted."""

from __future__ import annotations

import difflib
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from magnetar.spark.decode.bad_records import BadRecordPolicy
from magnetar.spark.decode.filters import MessageScreen
from magnetar.spark.decode.key_columns import keys_are_bytes
from magnetar.spark.decode.metadata_columns import (
    MESSAGE_ID,
    METADATA_NAMES,
    PROPERTIES,
    MessageIdTexts,
    RepeatedText,
    metadata_types,
    properties_column,
    timestamps,
)
from magnetar.spark.decode.pieces import Joiner, Numbers
from magnetar.spark.decode.rows import NO_TIME, RowGroup
from magnetar.spark.decode.tables import BATCH_BYTES, BATCH_ROWS, GroupTable
from magnetar.spark.entries import WholeEntry
from magnetar.spark.errors import BadOption
from magnetar.spark.message_keys import KEY_IS_BYTES, KeyType
from magnetar.spark.options.pushdown import EVENT_TIME, KEY, PUBLISH_TIME, TOPIC, MessageFilters
from magnetar.spark.positions import MessagePosition
from magnetar.spark.values.api import ValueDecoder

__all__ = ["BadRecordPolicy", "BatchBuilder", "WantedColumns", "wanted_columns"]

_NO_VALUE_COLUMN: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedColumns:
    """What a table's rows are made of: made by `wanted_columns`."""

    schema: pa.Schema
    """In the order that Spark wants, with exactly the types that it wants."""
    value_places: tuple[int, ...]
    """Per column its place among the value decoder's, or -1: it is none of them."""
    corrupt_record_column: str
    """The one with the bytes of bad messages; empty: none is wanted."""

    def has(self, name: str) -> bool:
        """Whether the metadata column of that name is wanted."""
        return name in self.schema.names

    @property
    def decodes(self) -> bool:
        """Whether anything is wanted for which values have to be decoded."""
        return bool(self.corrupt_record_column) or any(place >= 0 for place in self.value_places)


def wanted_columns(
    schema: pa.Schema,
    value_fields: Sequence[tuple[str, pa.DataType]],
    corrupt_record_column: str = "",
    key_type: KeyType = "text",
) -> WantedColumns:
    """The columns of a schema, found among metadata columns, the decoder's `fields()` and the column for bad records
    (wanted if the schema has it; empty: there is none). Raises `BadOption` for one that is nowhere, or of another type.

    A name that metadata has is metadata's, though the topic's records have a field of it."""
    types: dict[str, pa.DataType] = {corrupt_record_column: pa.binary()} if corrupt_record_column else {}
    types |= dict(value_fields)
    types |= {**metadata_types(key_type), KEY_IS_BYTES: pa.bool_()}
    places = {name: place for place, (name, _) in enumerate(value_fields) if name not in METADATA_NAMES}
    for field in schema:
        if field.name not in types:
            close = difflib.get_close_matches(field.name, types, 1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(types)}"
            raise BadOption(f"the topic has no column {field.name}: {hint}")
        if field.type != types[field.name]:
            raise BadOption(
                f"column {field.name} is {types[field.name]} in Arrow's terms, not {field.type}: leave out the schema, "
                f"and {'set keyType' if field.name == KEY else 'cast in the query'}"
            )
    corrupt = corrupt_record_column if corrupt_record_column in schema.names else ""
    return WantedColumns(
        schema=schema,
        value_places=tuple(places.get(name, _NO_VALUE_COLUMN) for name in schema.names),
        corrupt_record_column="" if corrupt in places else corrupt,
    )


class BatchBuilder:
    """Takes the entries of one slice in their order, gives record batches. One use at a time."""

    def __init__(
        self,
        *,
        topic: str,
        schema: pa.Schema,
        values: ValueDecoder,
        filters: MessageFilters,
        first: MessagePosition,
        end: MessagePosition,
        policy: BadRecordPolicy,
        key_type: KeyType = "text",
    ) -> None:
        """`schema` is of the batches. Messages before `first`, and from `end` on, are left out. Raises `BadOption` for
        a schema that does not fit the topic."""
        self._topic = topic
        self._wanted = wanted_columns(schema, values.fields(), policy.corrupt_record_column, key_type)
        self._decoder = values
        self._screen = MessageScreen(filters, key_type)
        self._first = first
        self._end = end
        self._policy = policy
        self._topics = RepeatedText(topic)
        self._ids = MessageIdTexts()
        self._pending: deque[WholeEntry] = deque()
        """Not unpacked yet: what is packed well would otherwise fill the memory."""
        self._group = self._new_group()
        self._joiner = Joiner()
        self._cut_entries = {place.entry_id for place in (first, end) if place.batch_index}
        """Entries with one of these ids may have to be cut."""
        self._outside: list[tuple[int, int]] = []
        """Rows of the group that are before `first` or from `end` on."""

    def add(self, entries: Sequence[WholeEntry]) -> None:
        """Take entries, ascending; those that cannot have a wanted message are let go at once."""
        if self._screen.by_publish_time:
            entries = [entry for entry in entries if self._in_time(entry)]
        if entries and not (self._in_range(entries[0]) and self._in_range(entries[-1])):
            entries = [entry for entry in entries if self._in_range(entry)]
        self._pending.extend(entries)
        self._fill()

    def ready(self) -> bool:
        """Whether a whole record batch is there to be taken."""
        return self._group.positions.rows >= BATCH_ROWS or self._group.size_bytes >= BATCH_BYTES

    async def take(self) -> list[pa.RecordBatch]:
        """All that was added, unpacked at once. Raises as `batches`."""
        return [batch async for batch in self.batches(final=True)]

    async def batches(self, *, final: bool) -> AsyncIterator[pa.RecordBatch]:
        """What was added, unpacked bit by bit; unless it is `final`, what makes no whole batch is kept for the next.

        Raises `BadRecord`, and what fetching a schema version raises: nothing can be taken after that."""
        while self.ready() or (final and self._group.row_counts):
            table, outside = GroupTable(self._group, self._joiner), self._outside
            self._group, self._outside = self._new_group(), []
            async for batch in self._batches_of(table, outside):
                yield batch
            del table  # Its memory is used again.
            self._fill()

    def _new_group(self) -> RowGroup:
        keys = self._wanted.has(KEY) or self._wanted.has(KEY_IS_BYTES) or self._screen.by_key
        keys |= self._decoder.needs_keys and self._wanted.decodes
        event_times = self._wanted.has(EVENT_TIME) or self._screen.by_event_time
        return RowGroup(keys=keys, event_times=event_times, properties=self._wanted.has(PROPERTIES))

    def _in_time(self, entry: WholeEntry) -> bool:
        time_ms = entry.view.publish_time_ms
        return time_ms < 0 or self._screen.publish_time_ms_min <= time_ms <= self._screen.publish_time_ms_max

    def _in_range(self, entry: WholeEntry) -> bool:
        # The entry that the range ends in has wanted messages, unless the range ends before the first of them.
        place = (entry.ledger_id, entry.entry_id)
        return self._first[:2] <= place and (*place, 0) < self._end

    def _fill(self) -> None:
        group, pending = self._group, self._pending
        positions = group.positions
        while pending and positions.rows < BATCH_ROWS and group.size_bytes < BATCH_BYTES:
            entry = pending.popleft()
            if entry.entry_id not in self._cut_entries:
                group.add(entry)
                continue
            row = positions.rows
            group.add(entry)
            if row not in group.bad:
                self._note_outside(entry, row, positions.rows)

    def _note_outside(self, entry: WholeEntry, row: int, end_row: int) -> None:
        """A slice may begin and end within a batch."""
        place = (entry.ledger_id, entry.entry_id)
        if place == self._first[:2]:
            self._outside.append((row, min(row + self._first.batch_index, end_row)))
        if place == self._end[:2]:
            self._outside.append((min(row + self._end.batch_index, end_row), end_row))

    async def _batches_of(self, table: GroupTable, outside: list[tuple[int, int]]) -> AsyncIterator[pa.RecordBatch]:
        kept = table.wanted(self._screen, [(first, end) for first, end in outside if first < end])
        bad = table.group.bad
        if bad and kept is None:
            kept = np.ones(table.group.positions.rows, np.bool_)
        for row, reason in bad.items():
            # Where nobody knows what an entry holds, filters cannot say that it is not wanted: it is told of.
            assert kept is not None
            if kept[row] or row in table.group.opaque:
                kept[row] &= self._policy.keeps(self._topic, table.message_id(row), reason)
        rows = np.arange(table.group.positions.rows) if kept is None else np.flatnonzero(kept)
        for part in table.parts(rows):
            batch = await self._batch(table, part)
            if batch is not None:
                yield batch

    async def _batch(self, table: GroupTable, rows: Numbers) -> pa.RecordBatch | None:
        wanted = self._wanted
        value_columns: list[pa.Array] = []
        bad_rows = [row for row in table.group.bad if rows[0] <= row <= rows[-1]]
        if wanted.decodes:
            needs_keys = self._decoder.needs_keys
            decoded = await self._decoder.decode(
                table.values.take(rows),
                table.schema_versions(rows),
                table.keys.take(rows) if needs_keys else None,
                table.base64_keys(rows) if needs_keys else None,
            )
            value_columns = decoded.columns
            if decoded.bad:
                kept = np.ones(len(rows), np.bool_)
                for place, reason in decoded.bad.items():
                    row = int(rows[place])
                    kept[place] = self._policy.keeps(self._topic, table.message_id(row), reason)
                    bad_rows.append(row)
                if not kept.all():
                    rows = rows[kept]
                    value_columns = [column.filter(pa.array(kept)) for column in value_columns]
        if not len(rows):
            return None
        columns: list[pa.Array] = []
        for name, place in zip(wanted.schema.names, wanted.value_places, strict=True):
            columns.append(value_columns[place] if place >= 0 else self._column(name, table, rows, bad_rows))
        return pa.RecordBatch.from_arrays(columns, schema=wanted.schema)

    def _column(self, name: str, table: GroupTable, rows: Numbers, bad_rows: list[int]) -> pa.Array:
        match name:
            case _ if name == KEY:
                return table.shown_keys(rows, self._screen.key_type)
            case _ if name == KEY_IS_BYTES:
                return keys_are_bytes(table.keys.take(rows), table.base64_keys(rows))
            case _ if name == TOPIC:
                return self._topics.rows(len(rows))
            case _ if name == MESSAGE_ID:
                return table.message_ids(self._ids, rows)
            case _ if name == PUBLISH_TIME:
                times_ms = table.publish_times_ms[table.entry_of_row[rows]]
                return timestamps(times_ms, times_ms == NO_TIME)
            case _ if name == EVENT_TIME:
                times_ms = table.event_times_ms[rows]
                return timestamps(times_ms, times_ms == 0)
            case _ if name == PROPERTIES:
                column_type = self._wanted.schema.field(name).type
                return properties_column(
                    column_type, table.property_rows, table.property_keys, table.property_values, rows
                )
            case _:
                return table.values.take_but(rows, ~np.isin(rows, bad_rows))
