"""Where the messages of batches are: positions in one joined buffer, and no object per message.

Who reads millions of messages into columns copies from the buffer by these positions, many at a time. A range of the
buffer is one number, `start | end << 32`, so that a list of them is, as little-endian 64-bit integers, a list of int32
offsets [start, end, start, end, …]. A range that is negative is the complement of what it would be: a key that is
absent, a value that is null.

Facts: PulsarApi.proto, SingleMessageMetadata and KeyValue; pulsar-protocol section 1.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from magnetar.wire.pulsar.errors import BadMetadata

if TYPE_CHECKING:
    from mypy_extensions import i64

POSITION_MAX: Final = 0x7FFF_FFFF
"""The joined buffer may not be longer: offsets of Arrow's binary columns have 32 bits."""
EVENT_TIME_MS_MAX: Final = 0x7FFF_FFFF_FFFF_FFFF // 1000
"""A later one does not fit into microseconds of 64 bits and counts as absent."""

_MASK32: Final = 0xFFFF_FFFF
_BATCH_PROPERTIES: Final = 0x0A
_ENTRY_PROPERTIES: Final = 0x22
_ENTRY_BATCH_SIZE: Final = 0x58


class MessagePositions:
    """Positions of messages, in the order they were added in: their rows are 0, 1, 2, …"""

    def __init__(self, *, keys: bool = True, event_times: bool = True, properties: bool = True) -> None:
        """What is not wanted is not noted: its lists stay empty."""
        self._wants_keys = keys
        self._wants_event_times = event_times
        self._wants_properties = properties
        self.rows: int = 0
        self.values: list[int] = []
        """Per row the range of the payload, complemented where the message has no value."""
        self.keys: list[int] = []
        """Per row the range of the key, complemented where there is none (an empty range then)."""
        self.event_times_ms: list[int] = []
        """Per row; 0: the producer gave none."""
        self.base64_keys: list[int] = []
        """Rows whose key is the base64 text of bytes, ascending. Noted with the keys."""
        self.compacted_out: list[int] = []
        """Rows that compaction took out and nobody gets, ascending."""
        self.property_rows: list[int] = []
        """For each property the row that it belongs to, ascending."""
        self.property_keys: list[int] = []
        """Per property the range of its key."""
        self.property_values: list[int] = []
        """Per property the range of its value."""
        self._payload_size: i64 = 0
        self._key_start: i64 = 0
        self._key_end: i64 = 0
        self._event_time_ms: i64 = 0
        self._has_key: bool = False
        self._key_is_base64: bool = False
        self._no_value: bool = False
        self._compacted_out: bool = False

    def add_batch(self, data: bytes, start: int, count: int, base: int) -> None:
        """Note `count` messages of a batch whose unpacked body is `data[start:]`.

        `base` is the place of `data[0]` in the joined buffer. Raises `BadMetadata` and then has noted nothing."""
        if base + len(data) > POSITION_MAX:
            raise BadMetadata(f"a batch that ends at {base + len(data)}, which no 32-bit offset can say")
        rows = self.rows
        properties = len(self.property_rows)
        try:
            self._add_messages(data, start, count, base)
        except BadMetadata:
            self._forget(rows, properties)
            raise

    def add_message(self, value: int, key: int, event_time_ms: int, key_is_base64: bool) -> None:
        """Note a message that is not of a batch: the ranges of its payload and key, as the lists have them."""
        self.values.append(value)
        if self._wants_keys:
            self.keys.append(key)
            if key_is_base64:
                self.base64_keys.append(self.rows)
        if self._wants_event_times:
            self.event_times_ms.append(event_time_ms if 0 <= event_time_ms <= EVENT_TIME_MS_MAX else 0)
        self.rows += 1

    def add_entry_properties(self, data: bytes, start: int, end: int, base: int) -> None:
        """Note the properties in the MessageMetadata `data[start:end]` as those of the message that is added next.

        Raises `BadMetadata` and then has noted nothing."""
        properties = len(self.property_rows)
        try:
            self._add_entry_properties(data, start, end, base)
        except BadMetadata:
            self._forget(self.rows, properties)
            raise

    def _add_entry_properties(self, data: bytes, start: int, end: int, base: int) -> None:
        at: i64 = start
        stop: i64 = end
        shift: i64 = base
        row: i64 = self.rows
        while at < stop:
            tag, value, at = _field(data, at, stop)
            if tag & 7 == 2:
                if tag == _ENTRY_PROPERTIES:
                    self._add_property(data, at, at + value, shift, row)
                at += value

    def _add_messages(self, data: bytes, start: int, count: int, base: int) -> None:
        at: i64 = start
        size_all: i64 = len(data)
        shift: i64 = base
        row: i64 = self.rows
        for _ in range(count):
            if size_all - at < 4:
                raise BadMetadata("a batch with fewer messages than it says")
            byte0: i64 = data[at]
            byte1: i64 = data[at + 1]
            byte2: i64 = data[at + 2]
            byte3: i64 = data[at + 3]
            at += 4
            end: i64 = at + (byte0 << 24 | byte1 << 16 | byte2 << 8 | byte3)
            if end > size_all:
                raise BadMetadata("a batch whose message reaches over its end")
            self._read_single(data, at, end, shift, row)
            at = end + self._payload_size
            if self._payload_size < 0 or at > size_all:
                raise BadMetadata("a batch whose payload reaches over its end")
            value: i64 = (shift + end) | (shift + at) << 32
            self.values.append(~value if self._no_value else value)
            self._add_rest(shift, end, row)
            row += 1
            self.rows = row

    def _add_rest(self, shift: i64, metadata_end: i64, row: i64) -> None:
        if self._wants_keys:
            if self._has_key:
                self.keys.append((shift + self._key_start) | (shift + self._key_end) << 32)
                if self._key_is_base64:
                    self.base64_keys.append(row)
            else:
                # Empty, but where it would be: offsets that never fall are what Arrow allows.
                self.keys.append(~((shift + metadata_end) | (shift + metadata_end) << 32))
        if self._wants_event_times:
            self.event_times_ms.append(self._event_time_ms)
        if self._compacted_out:
            self.compacted_out.append(row)

    def _read_single(self, data: bytes, at: i64, end: i64, shift: i64, row: i64) -> None:
        self._payload_size = -1
        self._event_time_ms = 0
        self._has_key = False
        self._key_is_base64 = False
        self._no_value = False
        self._compacted_out = False
        while at < end:
            # The short form of `_field`, which nearly every field has.
            tag: i64 = data[at]
            value: i64 = data[at + 1] if at + 1 < end else 0x80
            if tag < 0x80 and value < 0x80 and tag & 5 == 0 and tag >= 8:
                at += 2
                if tag & 7 == 2 and value > end - at:
                    raise BadMetadata("a field reaches over the end of its message")
            else:
                tag, value, at = _field(data, at, end)
            if tag & 7 == 0:
                self._set_number(tag, value)
            elif tag & 7 == 2:
                if tag == 0x12:
                    self._has_key = True
                    self._key_start = at
                    self._key_end = at + value
                elif tag == _BATCH_PROPERTIES and self._wants_properties:
                    self._add_property(data, at, at + value, shift, row)
                at += value

    def _set_number(self, tag: i64, value: i64) -> None:
        if tag == 0x18:
            low: i64 = value & _MASK32
            self._payload_size = low if low <= POSITION_MAX else -1
        elif tag == 0x28:
            self._event_time_ms = value if 0 <= value <= EVENT_TIME_MS_MAX else 0
        elif tag == 0x20:
            self._compacted_out = value != 0
        elif tag == 0x30:
            self._key_is_base64 = value != 0
        elif tag == 0x48:
            self._no_value = value != 0

    def _add_property(self, data: bytes, at: i64, end: i64, shift: i64, row: i64) -> None:
        # What is absent (which no producer of the protocol leaves out) is empty, at the property's beginning.
        key_start: i64 = at
        key_end: i64 = at
        value_start: i64 = at
        value_end: i64 = at
        while at < end:
            tag, size, at = _field(data, at, end)
            if tag & 7 == 2:
                if tag == 0x0A:
                    key_start = at
                    key_end = at + size
                elif tag == 0x12:
                    value_start = at
                    value_end = at + size
                at += size
        self.property_rows.append(row)
        self.property_keys.append((shift + key_start) | (shift + key_end) << 32)
        self.property_values.append((shift + value_start) | (shift + value_end) << 32)

    def _forget(self, rows: int, properties: int) -> None:
        self.rows = rows
        del self.values[rows:]
        del self.keys[rows:]
        del self.event_times_ms[rows:]
        for noted in (self.base64_keys, self.compacted_out):
            while noted and noted[-1] >= rows:
                noted.pop()
        del self.property_rows[properties:]
        del self.property_keys[properties:]
        del self.property_values[properties:]


def batch_size(data: bytes, start: int, end: int) -> int:
    """How many messages the MessageMetadata `data[start:end]` says that its batch has; it may be below 1.

    Raises `BadMetadata`."""
    at: i64 = start
    stop: i64 = end
    count: i64 = 0
    while at < stop:
        tag, value, at = _field(data, at, stop)
        if tag == _ENTRY_BATCH_SIZE:
            count = value & _MASK32
            if count > POSITION_MAX:
                count -= _MASK32 + 1
        elif tag & 7 == 2:
            at += value
    return count


def _field(data: bytes, at: i64, end: i64) -> tuple[i64, i64, i64]:
    """The tag of the field at `at`; its number, or its length; and where its bytes begin or the next field does.

    Fixed-size fields, which are in no message of these, are skipped: their number is 0."""
    tag, at = _number(data, at, end)
    if tag < 8 or tag > _MASK32:
        raise BadMetadata("no field has such a tag")
    kind: i64 = tag & 7
    value: i64 = 0
    if kind == 0:
        value, at = _number(data, at, end)
    elif kind == 2:
        value, at = _number(data, at, end)
        if value < 0 or value > end - at:
            raise BadMetadata("a field reaches over the end of its message")
    elif kind in (1, 5):
        at += 8 if kind == 1 else 4
        if at > end:
            raise BadMetadata("a field reaches over the end of its message")
    else:
        raise BadMetadata("a wire type that is not used")
    return tag, value, at


def _number(data: bytes, at: i64, end: i64) -> tuple[i64, i64]:
    """The varint at `at` and where it ends. What has 64 bits is negative when compiled and large when not: callers
    take both for out of range."""
    value: i64 = 0
    shift: i64 = 0
    while at < end and shift <= 63:
        byte: i64 = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise BadMetadata("a number without an end")
