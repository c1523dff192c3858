"""Entries unpacked into one buffer, with the positions of their messages in it: the rows of a few record batches.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from typing import Final

from magnetar.core.limits import MIB
from magnetar.spark.entries import WholeEntry
from magnetar.wire.pulsar.batch import UNCOMPRESSED_BYTES_MAX
from magnetar.wire.pulsar.batch_positions import EVENT_TIME_MS_MAX, POSITION_MAX, MessagePositions, batch_size
from magnetar.wire.pulsar.compression import decompress
from magnetar.wire.pulsar.errors import BadMetadata
from magnetar.wire.pulsar.metadata import metadata_bounds

NO_TIME: Final = -1

_SINGLE_END_MAX: Final = POSITION_MAX - 256 * MIB
"""Leaves room for what follows a payload: the entry that its metadata is in, and its key."""

_ENCRYPTED: Final = "its payload is encrypted, and there are no keys here to decrypt it with"


class RowGroup:
    """Rows of consecutive entries."""

    def __init__(self, *, keys: bool, event_times: bool, properties: bool) -> None:
        """What is not wanted is not gathered."""
        self.positions: Final = MessagePositions(keys=keys, event_times=event_times, properties=properties)
        self.pieces: list[bytes] = []
        """Together they are the buffer that the positions are in."""
        self.size_bytes = 0
        """Bytes of the pieces."""
        self.entries: list[WholeEntry] = []
        """Those that the rows are of."""
        self.row_counts: list[int] = []
        """Per entry."""
        self.bad: dict[int, str] = {}
        """Rows that stand for an entry which cannot be unpacked → why. The value is null, its range the raw bytes."""
        self.opaque: set[int] = set()
        """Those of them of which it is not known how many messages they are, nor with which keys and times."""
        self._keys = keys
        self._properties = properties

    def batched(self) -> list[bool]:
        """Per entry whether its rows are the messages of a batch. That which stands for a bad one is none of them."""
        found = [entry.view.is_batch for entry in self.entries]
        if self.bad:
            row = 0
            for place, count in enumerate(self.row_counts):
                found[place] &= not (count and row in self.bad)
                row += count
        return found

    def publish_times_ms(self) -> list[int]:
        """Per entry; `NO_TIME`: it is unknown, or fits into no timestamp."""
        times_ms = [entry.view.publish_time_ms for entry in self.entries]
        if max(times_ms, default=0) > EVENT_TIME_MS_MAX:
            times_ms = [time_ms if time_ms <= EVENT_TIME_MS_MAX else NO_TIME for time_ms in times_ms]
        return times_ms

    def add(self, entry: WholeEntry) -> None:
        """Unpack an entry; what cannot be becomes one bad row."""
        rows = self.positions.rows
        view = entry.view
        piece, start = entry.data, view.payload_start
        try:
            if entry.broken or view.encrypted:
                raise BadMetadata(entry.broken or _ENCRYPTED)  # noqa: TRY301 # As what is found out below.
            if view.compression or entry.joined_payload is not None:
                packed = piece[start:] if entry.joined_payload is None else entry.joined_payload
                piece = decompress(view.compression, packed, view.uncompressed_size, UNCOMPRESSED_BYTES_MAX)
                start = 0
            if view.is_batch:
                self._add_batch(entry, piece, start)
            else:
                self._add_single(entry, piece, start, view.null_value)
        except BadMetadata as error:
            self._add_bad(entry, str(error))
        self.entries.append(entry)
        self.row_counts.append(self.positions.rows - rows)

    def _add_batch(self, entry: WholeEntry, piece: bytes, start: int) -> None:
        count = entry.view.num_messages_said or entry.view.num_messages
        if count == 1:  # Which the view says of a batch of none, too.
            count = batch_size(entry.data, *metadata_bounds(entry.data))
        self.positions.add_batch(piece, start, count, self.size_bytes)
        self.pieces.append(piece)
        self.size_bytes += len(piece)

    def _add_bad(self, entry: WholeEntry, reason: str) -> None:
        """One bad row for an entry: of a single message its key, times and properties are there."""
        self.bad[self.positions.rows] = reason
        piece, start = entry.data, entry.view.payload_start
        if entry.joined_payload is not None:
            piece, start = entry.joined_payload, 0
        if self.size_bytes + len(piece) > POSITION_MAX:
            piece, start = b"", 0
        if entry.view.is_batch or entry.view.publish_time_ms < 0:
            self._add_opaque(piece, start)
            return
        try:
            self._add_single(entry, piece, start, True)
        except BadMetadata:  # Its properties cannot be read either.
            self._add_opaque(piece, start)

    def _add_single(self, entry: WholeEntry, piece: bytes, start: int, no_value: bool) -> None:
        view = entry.view
        base = self.size_bytes
        end = base + len(piece)
        if end > _SINGLE_END_MAX:
            raise BadMetadata(f"a message of {len(piece)} bytes, which no 32-bit offset can say")
        if self._properties:
            start_of_data = base if piece is entry.data else end
            self.positions.add_entry_properties(entry.data, *metadata_bounds(entry.data), start_of_data)
        self.pieces.append(piece)
        value = (base + start) | end << 32
        if self._properties and piece is not entry.data:
            self.pieces.append(entry.data)
            end += len(entry.data)
        key_range = ~(end | end << 32)
        if self._keys and view.partition_key is not None:
            key = view.partition_key.encode()
            self.pieces.append(key)
            key_range = end | (end + len(key)) << 32
            end += len(key)
        self.size_bytes = end
        event_time_ms = view.event_time_ms
        self.positions.add_message(~value if no_value else value, key_range, event_time_ms, view.partition_key_b64)

    def _add_opaque(self, piece: bytes, start: int) -> None:
        base, end = self.size_bytes, self.size_bytes + len(piece)
        self.opaque.add(self.positions.rows)
        self.positions.add_message(~((base + start) | end << 32), ~(end | end << 32), 0, False)
        self.pieces.append(piece)
        self.size_bytes = end
