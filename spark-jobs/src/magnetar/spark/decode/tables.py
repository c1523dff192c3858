"""The rows of one group as arrays: which of them are wanted, and what columns are made of."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
from magnetar.spark.decode.filters import MessageScreen
from magnetar.spark.decode.key_columns import shown_keys
from magnetar.spark.decode.metadata_columns import MessageIdTexts
from magnetar.spark.decode.pieces import Flags, Joiner, Numbers, Pieces, Ranges, numbers
from magnetar.spark.decode.rows import NO_TIME, RowGroup
from magnetar.spark.message_keys import KeyType

BATCH_ROWS: Final = 10_000
BATCH_BYTES: Final = 4 * 1024 * 1024
"""What a record batch has at about: half or twice as much is as fast, tenfold is slower (measured into a JVM)."""


class GroupTable:
    """A group that gets no more rows. Row numbers are the group's."""

    def __init__(self, group: RowGroup, joiner: Joiner) -> None:
        positions = group.positions
        pieces = Pieces(group.pieces, group.size_bytes, joiner)
        self.group: Final = group
        self.values: Final = Ranges(pieces, positions.values)
        self.keys: Final = Ranges(pieces, positions.keys)
        self.event_times_ms: Final = numbers(positions.event_times_ms)
        self.property_rows: Final = numbers(positions.property_rows)
        self.property_keys: Final = Ranges(pieces, positions.property_keys)
        self.property_values: Final = Ranges(pieces, positions.property_values)
        counts = numbers(group.row_counts)
        self.entry_of_row: Final = np.repeat(np.arange(len(counts)), counts)
        self.index_of_row: Final = np.arange(positions.rows) - np.repeat(np.cumsum(counts) - counts, counts)
        self.row_counts: Final = counts
        self._message_ids: pa.Array | None = None
        self.publish_times_ms: Final = numbers(group.publish_times_ms())
        self.batched: Final = np.array(group.batched(), np.bool_)

    def wanted(self, screen: MessageScreen, outside: list[tuple[int, int]]) -> Flags | None:
        """Which rows are wanted, bad ones as others; None: all. `outside` are ranges of rows that are not."""
        compacted_out = self.group.positions.compacted_out
        time_unknown = screen.by_publish_time and bool((self.publish_times_ms == NO_TIME).any())
        if not (compacted_out or outside or time_unknown or screen.by_event_time or screen.by_key):
            return None
        kept = np.ones(self.group.positions.rows, np.bool_)
        kept[numbers(compacted_out)] = False
        for first, end in outside:
            kept[first:end] = False
        if time_unknown:
            kept &= (self.publish_times_ms != NO_TIME)[self.entry_of_row]
        if screen.by_event_time:
            kept &= screen.fitting_event_times(self.event_times_ms)
        if screen.by_key:
            kept &= screen.fitting_keys(self.shown_keys(np.arange(len(kept)), screen.key_type))
        return kept

    def message_id(self, row: int) -> str:
        """The message id of one row, `ledger:entry` or `ledger:entry:index`, for texts of errors."""
        place = int(self.entry_of_row[row])
        entry = self.group.entries[place]
        text = f"{entry.ledger_id}:{entry.entry_id}"
        return f"{text}:{self.index_of_row[row]}" if self.batched[place] else text

    def message_ids(self, texts_of: MessageIdTexts, rows: Numbers) -> pa.Array:
        """The column `__messageId` of some rows."""
        if self._message_ids is None:
            entry_texts = [f"{entry.ledger_id}:{entry.entry_id}" for entry in self.group.entries]
            self._message_ids = texts_of.column(entry_texts, self.batched, self.row_counts)
        return self._message_ids if len(rows) == len(self._message_ids) else self._message_ids.take(pa.array(rows))

    def parts(self, rows: Numbers) -> list[Numbers]:
        """The rows cut into record batches. A batch that was packed well is many of them."""
        if not len(rows):
            return []
        shares = self.values.sizes[rows] / BATCH_BYTES
        count = max(1, round(max(float(shares.sum()), len(rows) / BATCH_ROWS)))
        if count == 1:
            return [rows]
        weight = np.cumsum(shares + 1 / BATCH_ROWS)
        places = np.searchsorted(weight, weight[-1] * np.arange(1, count) / count, "right")
        return [part for part in np.split(rows, places) if len(part)]

    def schema_versions(self, rows: Numbers) -> list[tuple[bytes, int]]:
        """Runs of versions, as value decoders want them."""
        versions = [entry.view.schema_version for entry in self.group.entries]
        if versions.count(versions[0]) == len(versions):
            return [(versions[0], len(rows))]
        entries = self.entry_of_row[rows]
        begins = np.flatnonzero(np.diff(entries, prepend=-1))
        lengths = np.diff(begins, append=len(rows))
        runs: list[tuple[bytes, int]] = []
        for entry, length in zip(entries[begins].tolist(), lengths.tolist(), strict=True):
            if runs and runs[-1][0] == versions[entry]:
                length += runs.pop()[1]
            runs.append((versions[entry], length))
        return runs

    def shown_keys(self, rows: Numbers, key_type: KeyType) -> pa.Array:
        """The column `__key` of some rows."""
        return shown_keys(self.keys.take(rows), self.base64_keys(rows), key_type)

    def base64_keys(self, rows: Numbers) -> pa.Array | None:
        """Per row whether its key is base64 text; None: none is."""
        noted = self.group.positions.base64_keys
        if not noted:
            return None
        found = np.zeros(self.group.positions.rows, np.bool_)
        found[numbers(noted)] = True
        return pa.array(found[rows])
