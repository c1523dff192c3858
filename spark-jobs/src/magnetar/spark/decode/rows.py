"""Entries unpacked into one buffer, with the positions of their messages in it: the rows of a few record batches."""

from __future__ import annotations

from typing import Final

from magnetar.spark.entries import WholeEntry
from magnetar.wire.pulsar.batch import UNCOMPRESSED_BYTES_MAX
from magnetar.wire.pulsar.batch_positions import EVENT_TIME_MS_MAX, POSITION_MAX, MessagePositions, batch_size
from magnetar.wire.pulsar.compression import decompress
from magnetar.wire.pulsar.errors import BadMetadata
from magnetar.wire.pulsar.metadata import metadata_bounds

NO_TIME: Final = -1

_ENCRYPTED: Final = "its payload is encrypted, and there are no keys here to decrypt it with"


class RowGroup:
    """Rows of consecutive entries. What is per entry is in lists, one element an entry."""

    def __init__(self, *, keys: bool, event_times: bool, properties: bool) -> None:
        """What is not wanted is not gathered."""
        self.positions: Final = MessagePositions(keys=keys, event_times=event_times, properties=properties)
        self.pieces: list[bytes] = []
        """Together they are the buffer that the positions are in."""
        self.size_bytes = 0
        """Of the pieces."""
        self.ledger_ids: list[int] = []
        self.entry_ids: list[int] = []
        self.row_counts: list[int] = []
        self.batched: list[bool] = []
        """Whether the entry's rows are the messages of a batch."""
        self.publish_times_ms: list[int] = []
        """`NO_TIME`: it is unknown, or fits into no timestamp."""
        self.schema_versions: list[bytes] = []
        self.bad: dict[int, str] = {}
        """Rows that stand for an entry which cannot be unpacked → why. The value is null, its range the raw bytes."""
        self.opaque: set[int] = set()
        """Those of them of which it is not known how many messages they are, nor with which keys and times."""
        self._keys = keys
        self._properties = properties

    def add(self, entry: WholeEntry) -> int:
        """Unpack an entry; what cannot be becomes one bad row. Answers how many rows it has given."""
        rows = self.positions.rows
        view = entry.view
        if entry.broken or view.encrypted:
            return self._add_bad(entry, entry.broken or _ENCRYPTED)
        try:
            piece, start = entry.data, view.payload_start
            if entry.joined_payload is not None:
                piece, start = entry.joined_payload, 0
            if view.compression:
                piece = decompress(view.compression, piece[start:], view.uncompressed_size, UNCOMPRESSED_BYTES_MAX)
                start = 0
            if view.is_batch:
                self._add_batch(entry, piece, start)
            else:
                self._add_single(entry, piece, start, view.null_value)
        except BadMetadata as error:
            return self._add_bad(entry, str(error))
        self._end_entry(entry, rows, view.is_batch)
        return self.positions.rows - rows

    def _add_bad(self, entry: WholeEntry, reason: str) -> int:
        """One bad row for an entry: of a single message its key, times and properties are there."""
        rows = self.positions.rows
        self.bad[rows] = reason
        piece, start = entry.data, entry.view.payload_start
        if entry.joined_payload is not None:
            piece, start = entry.joined_payload, 0
        if self.size_bytes + len(piece) > POSITION_MAX:
            piece, start = b"", 0
        if entry.view.is_batch or entry.view.publish_time_ms < 0:
            self.opaque.add(rows)
            self._add_opaque(piece, start)
        else:
            try:
                self._add_single(entry, piece, start, True)
            except BadMetadata:  # Its properties cannot be read either.
                self._add_opaque(piece, start)
        self._end_entry(entry, rows, False)
        return 1

    def _add_batch(self, entry: WholeEntry, piece: bytes, start: int) -> None:
        count = entry.view.num_messages
        if count == 1:  # Which the view says of a batch of none, too.
            count = batch_size(entry.data, *metadata_bounds(entry.data))
        self.positions.add_batch(piece, start, count, self.size_bytes)
        self._append(piece)

    def _add_single(self, entry: WholeEntry, piece: bytes, start: int, no_value: bool) -> None:
        view = entry.view
        base = self.size_bytes
        end = base + len(piece)
        key = b"" if view.partition_key is None or not self._keys else view.partition_key.encode()
        behind_key = end + len(key)
        if behind_key + len(entry.data) > POSITION_MAX:
            raise BadMetadata(f"a message of {len(piece)} bytes, which no 32-bit offset can say")
        if self._properties:
            self._add_properties(entry, base if piece is entry.data else behind_key)
        value = (base + start) | end << 32
        key_range = end | behind_key << 32
        self.positions.add_message(
            ~value if no_value else value,
            ~key_range if view.partition_key is None else key_range,
            max(0, view.event_time_ms),
            view.partition_key_b64,
        )
        self.pieces.append(piece)
        if key:
            self.pieces.append(key)
        self.size_bytes = behind_key
        if self._properties and piece is not entry.data:
            self._append(entry.data)

    def _add_properties(self, entry: WholeEntry, base: int) -> None:
        """`base`: where the entry as it is stored will be in the buffer."""
        start, end = metadata_bounds(entry.data)
        self.positions.add_entry_properties(entry.data, start, end, base)

    def _add_opaque(self, piece: bytes, start: int) -> None:
        base, end = self.size_bytes, self.size_bytes + len(piece)
        self.positions.add_message(~((base + start) | end << 32), ~(end | end << 32), 0, False)
        self._append(piece)

    def _append(self, piece: bytes) -> None:
        self.pieces.append(piece)
        self.size_bytes += len(piece)

    def _end_entry(self, entry: WholeEntry, rows_before: int, batched: bool) -> None:
        self.ledger_ids.append(entry.ledger_id)
        self.entry_ids.append(entry.entry_id)
        self.row_counts.append(self.positions.rows - rows_before)
        self.batched.append(batched)
        publish_time_ms = entry.view.publish_time_ms
        self.publish_times_ms.append(publish_time_ms if publish_time_ms <= EVENT_TIME_MS_MAX else NO_TIME)
        self.schema_versions.append(entry.view.schema_version)
