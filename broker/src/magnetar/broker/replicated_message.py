"""What a replicated message says of itself: where it stands in the cluster that it comes from, and whose it is. Pure.

The metadata of usual messages is walked by hand; whatever is unusual is left to protobuf, which says the same of both.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from typing import Any, Final

from magnetar.broker.replicator_names import SOURCE_POSITION_PROPERTY
from magnetar.core.ids import Position
from magnetar.wire.errors import BadProtobuf
from magnetar.wire.pulsar.errors import BadMetadata
from magnetar.wire.pulsar.metadata import full_metadata, metadata_bounds
from magnetar.wire.pulsar.varint import read_length, read_tag, read_varint, signed32, skip_value

FIRST_MARKER: Final = 10
LAST_MARKER: Final = 13
"""The types of the markers of replicated subscriptions (`PulsarMarkers.proto`)."""

NUMBER_MAX: Final = (1 << 63) - 1
NUMBER_DIGITS_MAX: Final = 19

_SOURCE_KEY: Final = SOURCE_POSITION_PROPERTY.encode()

_PRODUCER_NAME: Final = 0x0A
_SEQUENCE_ID: Final = 0x10
_PUBLISH_TIME: Final = 0x18
_PROPERTY: Final = 0x22
_ENCRYPTION_KEYS: Final = 0x6A
_MARKER_TYPE: Final = 0xA0
_NUM_CHUNKS: Final = 0xD8
_CHUNK_ID: Final = 0xE8


class ReplicatedMessage:
    """What deduplication and receipts need to know of one replicated message."""

    __slots__ = ("is_chunk_before_last", "is_marker", "position", "producer_name")

    def __init__(
        self, producer_name: str, position: Position | None, *, is_marker: bool, is_chunk_before_last: bool
    ) -> None:
        self.producer_name: str = producer_name
        """Of the producer at the source."""
        self.position: Position | None = position
        """Where it stands at the source; None: the message does not say so, or not in the right form."""
        self.is_marker: bool = is_marker
        """Of a replicated subscription."""
        self.is_chunk_before_last: bool = is_chunk_before_last


def read_replicated(payload: bytes) -> ReplicatedMessage | None:
    """What a stored entry, or one to be stored, says of itself; None when its metadata cannot be read."""
    try:
        start, end = metadata_bounds(payload)
        message = _read_usual(payload, start, end)
    except (BadMetadata, BadProtobuf, UnicodeDecodeError):
        message = None
    return message if message is not None else _read_by_protobuf(payload)


def _read_by_protobuf(payload: bytes) -> ReplicatedMessage | None:
    try:
        # Any, because its texts are bytes where they are not UTF-8, and compiled code takes annotations at their word.
        metadata: Any = full_metadata(payload)
    except BadMetadata:
        return None
    position: Position | None = None
    for pair in metadata.properties:
        if pair.key == SOURCE_POSITION_PROPERTY:
            position = parse_position(text_of(pair.value))
            break
    chunks = metadata.num_chunks_from_msg
    return ReplicatedMessage(
        text_of(metadata.producer_name),
        position,
        is_marker=metadata.HasField("marker_type") and FIRST_MARKER <= metadata.marker_type <= LAST_MARKER,
        is_chunk_before_last=chunks > 1 and metadata.chunk_id != chunks - 1,
    )


class _MetadataLook:
    """What one walk over the metadata has found."""

    __slots__ = ("chunk_id", "chunks", "marker_type", "name", "position", "positioned", "published", "sequenced")

    def __init__(self) -> None:
        self.name: str | None = None
        self.sequenced: bool = False
        self.published: bool = False
        self.position: Position | None = None
        self.positioned: bool = False
        """Whether a property names the position: of several the first one counts."""
        self.marker_type: int = 0
        self.chunks: int = 0
        self.chunk_id: int = 0


def _read_usual(data: bytes, at: int, end: int) -> ReplicatedMessage | None:
    """None where protobuf has to look. Raises `BadProtobuf` and UnicodeDecodeError, which mean the same."""
    found = _MetadataLook()
    while at < end:
        tag, at = read_tag(data, at, end)
        wire_type = tag & 7
        if wire_type == 0:
            value, at = read_varint(data, at, end)
            _take_number(found, tag, value)
        elif wire_type == 2:
            start, at = read_length(data, at, end)
            if not _take_bytes(found, tag, data, start, at):
                return None
        else:
            at = skip_value(data, at, end, tag)
    name = found.name
    if name is None or not found.sequenced or not found.published:
        return None
    return ReplicatedMessage(
        name,
        found.position,
        is_marker=FIRST_MARKER <= found.marker_type <= LAST_MARKER,
        is_chunk_before_last=found.chunks > 1 and found.chunk_id != found.chunks - 1,
    )


def _take_number(found: _MetadataLook, tag: int, value: int) -> None:
    if tag == _SEQUENCE_ID:
        found.sequenced = True
    elif tag == _PUBLISH_TIME:
        found.published = True
    elif tag == _MARKER_TYPE:
        found.marker_type = signed32(value)
    elif tag == _NUM_CHUNKS:
        found.chunks = signed32(value)
    elif tag == _CHUNK_ID:
        found.chunk_id = signed32(value)


def _take_bytes(found: _MetadataLook, tag: int, data: bytes, start: int, end: int) -> bool:
    """False where protobuf has to look."""
    if tag == _PRODUCER_NAME:
        found.name = data[start:end].decode()
    elif tag == _PROPERTY:
        value_start = _value_start(data, start, end)
        if not value_start:
            return False
        if not found.positioned and _is_source_key(data, start):
            found.positioned = True
            found.position = parse_position(data[value_start:end].decode())
    return tag != _ENCRYPTION_KEYS


def _value_start(data: bytes, at: int, end: int) -> int:
    """Where the value of a property begins whose key and value are all that it has, in this order; else 0."""
    if end - at < 4 or data[at] != 0x0A or data[at + 1] >= 0x80:
        return 0  # Of a long key, or a length that takes more bytes than it has to.
    _, at = read_length(data, at + 1, end)
    if at >= end or data[at] != 0x12:
        return 0
    start, value_end = read_length(data, at + 1, end)
    return start if value_end == end else 0


def _is_source_key(data: bytes, at: int) -> bool:
    # Its length takes one byte.
    return data[at + 1] == len(_SOURCE_KEY) and data.startswith(_SOURCE_KEY, at + 2)


def text_of(value: str | bytes) -> str:
    """A text as protobuf gives it: bytes where it is not UTF-8."""
    return value if isinstance(value, str) else value.decode(errors="backslashreplace")


def parse_position(text: str) -> Position | None:
    """The position in `<ledger>:<entry>`; None for anything else."""
    ledger_id, _, entry_id = text.partition(":")
    for number in (ledger_id, entry_id):
        if not (number.isascii() and number.isdecimal()) or len(number) > NUMBER_DIGITS_MAX:
            return None
    first, second = int(ledger_id), int(entry_id)
    return (first, second) if first <= NUMBER_MAX and second <= NUMBER_MAX else None
