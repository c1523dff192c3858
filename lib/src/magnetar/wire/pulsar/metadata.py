"""What the broker looks at in a stored message: its metadata, read by hand and only as far as needed.

A stored entry is what SEND carried (headers and payload), perhaps after the broker's own entry metadata:
`[0x0e02 size BrokerEntryMetadata] [0x0e01 crc32c] size MessageMetadata payload` (pulsar-protocol section 1).

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as Base64Error
from struct import Struct
from typing import Final

import google_crc32c
from google.protobuf.message import DecodeError
from magnetar.core.ids import signed64
from magnetar.core.limits import BATCH_MESSAGES_MAX, SINGLE_MESSAGE_BYTES_MIN
from magnetar.wire.errors import BadProtobuf
from magnetar.wire.pulsar.errors import BadMetadata
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import BrokerEntryMetadata, MessageMetadata
from magnetar.wire.pulsar.varint import read_length, read_tag, read_varint, signed32, skip_value
from mypy_extensions import mypyc_attr

BROKER_ENTRY_MAGIC: Final = 0x0E02
CHECKSUM_MAGIC: Final = 0x0E01
CHECKSUM_HEADER_BYTES: Final = 6
"""The magic and the checksum itself; the checksum covers everything after them."""

ABSENT: Final = -1

ZSTD: Final = 3
ZSTD_RATIO_MAX: Final = 32_768
"""A block of 128 KiB that repeats one byte takes four (RFC 8878, 3.1.1.2)."""
OTHERS_RATIO_MAX: Final = 1_032
"""Deflate's bound; LZ4's and Snappy's are lower."""

_U16: Final = Struct(">H")
_U32: Final = Struct(">I")


@mypyc_attr(acyclic=True)
class MessageMetadataView:
    """The fields of MessageMetadata that a broker acts on. Numbers that were absent are -1, texts are empty."""

    __slots__ = (
        "chunk_id",
        "compression",
        "deliver_at_ms",
        "encrypted",
        "event_time_ms",
        "highest_sequence_id",
        "is_batch",
        "marker_type",
        "null_value",
        "num_chunks",
        "num_messages",
        "num_messages_said",
        "ordering_key",
        "partition_key",
        "partition_key_b64",
        "payload_start",
        "producer_name",
        "publish_time_ms",
        "replicated_from",
        "schema_version",
        "sequence_id",
        "total_chunk_size",
        "txnid_least_bits",
        "txnid_most_bits",
        "uncompressed_size",
        "uuid",
    )

    def __init__(self) -> None:
        self.producer_name: str = ""
        self.sequence_id: int = ABSENT
        self.highest_sequence_id: int = ABSENT
        self.publish_time_ms: int = ABSENT
        self.event_time_ms: int = ABSENT
        self.num_messages: int = 1
        """At least 1, and at most what the payload can hold: each delivery takes so many permits of a consumer."""
        self.num_messages_said: int = 0
        """What the producer wrote instead, where that is more than the payload can hold; else 0."""
        self.is_batch: bool = False
        self.partition_key: str | None = None
        self.partition_key_b64: bool = False
        self.ordering_key: bytes | None = None
        self.deliver_at_ms: int = ABSENT
        self.marker_type: int = ABSENT
        self.compression: int = 0
        self.uncompressed_size: int = 0
        self.uuid: str = ""
        self.chunk_id: int = ABSENT
        self.num_chunks: int = ABSENT
        self.total_chunk_size: int = ABSENT
        self.txnid_least_bits: int = ABSENT
        self.txnid_most_bits: int = ABSENT
        self.encrypted: bool = False
        self.schema_version: bytes = b""
        self.null_value: bool = False
        self.replicated_from: str = ""
        self.payload_start: int = 0


def skim(data: bytes) -> MessageMetadataView:
    """Read the metadata of a stored entry. Raises `BadMetadata`."""
    view = MessageMetadataView()
    try:
        at, end = metadata_bounds(data)
        view.payload_start = end
        while at < end:
            tag = data[at]
            if tag < 0x80:
                at += 1
            else:
                tag, at = read_tag(data, at, end)
            wire_type = tag & 7
            if wire_type == 0:
                value, at = read_varint(data, at, end)
                _set_number(view, tag, value)
            elif wire_type == 2:
                start, at = read_length(data, at, end)
                _set_bytes(view, tag, data, start, at)
            else:
                at = skip_value(data, at, end, tag)
    except (BadProtobuf, UnicodeDecodeError) as error:
        raise BadMetadata(f"message metadata: {error}") from None
    if view.sequence_id < 0 or view.publish_time_ms < 0:
        raise BadMetadata("message metadata without sequence id or publish time")
    if view.num_messages > 1 and view.num_messages * SINGLE_MESSAGE_BYTES_MIN > len(data) - end:
        _bound_messages(view, len(data) - end)
    return view


def _bound_messages(view: MessageMetadataView, payload_bytes: int) -> None:
    """A batch of more messages than its payload has room for, unless it is compressed, is none."""
    size_bytes = payload_bytes
    if view.compression:
        ratio = ZSTD_RATIO_MAX if view.compression == ZSTD else OTHERS_RATIO_MAX
        size_bytes = min(view.uncompressed_size, payload_bytes * ratio)
    count = max(1, min(size_bytes // SINGLE_MESSAGE_BYTES_MIN, BATCH_MESSAGES_MAX))
    if view.num_messages > count:
        view.num_messages_said = view.num_messages
        view.num_messages = count


def count_messages(data: bytes) -> int:
    """How many messages a stored entry counts for where permits are spent on it, read only so far as that takes.
    Raises `BadMetadata`."""
    try:
        at, end = metadata_bounds(data)
        while at < end:
            tag = data[at]
            if tag < 0x80:
                at += 1
            else:
                tag, at = read_tag(data, at, end)
            if tag == 0x58:
                count, at = read_varint(data, at, end)
                if signed32(count) * SINGLE_MESSAGE_BYTES_MIN > len(data) - end:
                    return skim(data).num_messages
                return max(1, signed32(count))
            wire_type = tag & 7
            if wire_type == 0:
                while at < end and data[at] >= 0x80:
                    at += 1
                at += 1
            elif wire_type == 2:
                _, at = read_length(data, at, end)
            else:
                at = skip_value(data, at, end, tag)
    except BadProtobuf as error:
        raise BadMetadata(f"message metadata: {error}") from None
    return 1


def _set_number(view: MessageMetadataView, tag: int, value: int) -> None:
    if tag == 0x10:
        view.sequence_id = value
    elif tag == 0x18:
        view.publish_time_ms = value
    elif tag == 0x40:
        view.compression = value
    elif tag == 0x48:
        view.uncompressed_size = value & 0xFFFF_FFFF
    elif tag == 0x58:
        # A negative number would give a consumer permits without end.
        view.num_messages = max(1, signed32(value))
        view.is_batch = True
    elif tag == 0x60:
        view.event_time_ms = value
    elif tag == 0xC0:
        view.highest_sequence_id = value
    else:
        _set_rare_number(view, tag, value)


def _set_rare_number(view: MessageMetadataView, tag: int, value: int) -> None:
    if tag == 0x88:
        view.partition_key_b64 = value != 0
    elif tag == 0x98:
        view.deliver_at_ms = signed64(value)
    elif tag == 0xA0:
        view.marker_type = signed32(value)
    elif tag == 0xB0:
        view.txnid_least_bits = value
    elif tag == 0xB8:
        view.txnid_most_bits = value
    elif tag == 0xC8:
        view.null_value = value != 0
    elif tag == 0xD8:
        view.num_chunks = signed32(value)
    elif tag == 0xE0:
        view.total_chunk_size = signed32(value)
    elif tag == 0xE8:
        view.chunk_id = signed32(value)


def _set_bytes(view: MessageMetadataView, tag: int, data: bytes, start: int, end: int) -> None:
    if tag == 0x0A:
        view.producer_name = data[start:end].decode()
    elif tag == 0x32:
        view.partition_key = data[start:end].decode()
    elif tag == 0x2A:
        view.replicated_from = data[start:end].decode()
    elif tag == 0x6A:
        view.encrypted = True
    elif tag == 0x82:
        view.schema_version = data[start:end]
    elif tag == 0x92:
        view.ordering_key = data[start:end]
    elif tag == 0xD2:
        view.uuid = data[start:end].decode()


def metadata_bounds(data: bytes) -> tuple[int, int]:
    """Where MessageMetadata begins and ends in a stored entry; the payload follows. Raises `BadMetadata`."""
    at = broker_entry_metadata_end(data)
    size = len(data)
    if size - at >= 2 and _U16.unpack_from(data, at)[0] == CHECKSUM_MAGIC:
        at += CHECKSUM_HEADER_BYTES
    if size - at < 4:
        raise BadMetadata("a message that is too short for its metadata")
    length: int = _U32.unpack_from(data, at)[0]
    at += 4
    if length > size - at:
        raise BadMetadata(f"metadata of {length} bytes in a message of {size}")
    return at, at + length


def broker_entry_metadata_end(data: bytes) -> int:
    """Where the client's part of a stored entry begins: 0 when the broker put nothing before it."""
    if len(data) < 6 or _U16.unpack_from(data, 0)[0] != BROKER_ENTRY_MAGIC:
        return 0
    length: int = _U32.unpack_from(data, 2)[0]
    if length > len(data) - 6:
        raise BadMetadata("broker entry metadata reaches over the end of the entry")
    return 6 + length


def strip_broker_entry_metadata(data: bytes) -> bytes:
    """The client's part of a stored entry."""
    at = broker_entry_metadata_end(data)
    return data[at:] if at else data


def broker_entry_metadata(data: bytes) -> BrokerEntryMetadata | None:
    """What the broker put before the client's part, or None. Raises `BadMetadata`."""
    at = broker_entry_metadata_end(data)
    try:
        return BrokerEntryMetadata.FromString(data[6:at]) if at else None
    except DecodeError as error:
        raise BadMetadata(f"broker entry metadata: {error}") from None


def checksum_ok(buffer: bytes, start: int, end: int) -> bool:
    """Whether the message in buffer[start:end] has the checksum that it says, or says none."""
    if end - start < CHECKSUM_HEADER_BYTES or _U16.unpack_from(buffer, start)[0] != CHECKSUM_MAGIC:
        return True
    expected: int = _U32.unpack_from(buffer, start + 2)[0]
    # The library takes nothing but bytes: a view would have to be copied as well.
    actual: int = google_crc32c.value(buffer[start + CHECKSUM_HEADER_BYTES : end])
    return actual == expected


def with_transaction(data: bytes, most_bits: int, least_bits: int) -> bytes:
    """The stored entry with the transaction's id at the end of its metadata, which must name none. Raises
    `BadMetadata`.

    A checksum is made anew where there is one."""
    start, end = metadata_bounds(data)
    head = broker_entry_metadata_end(data)
    id_: bytes = MessageMetadata(txnid_most_bits=most_bits, txnid_least_bits=least_bits).SerializePartialToString()
    body = _U32.pack(end - start + len(id_)) + data[start:end] + id_ + data[end:]
    if start - head == 4:
        return data[:head] + body
    return data[:head] + _U16.pack(CHECKSUM_MAGIC) + _U32.pack(google_crc32c.value(body)) + body


def full_metadata(data: bytes) -> MessageMetadata:
    """All of the metadata, through protobuf. Raises `BadMetadata`."""
    start, end = metadata_bounds(data)
    try:
        metadata = MessageMetadata.FromString(data[start:end])
    except DecodeError as error:
        raise BadMetadata(f"message metadata: {error}") from None
    if not metadata.IsInitialized():  # Parsing does not look at required fields.
        raise BadMetadata("message metadata that lacks a required field")
    return metadata


def sticky_key(view: MessageMetadataView) -> bytes:
    """What Key_Shared keeps together: ordering key, else partition key, else a key of the message's own.

    Pulsar: `Commands.resolveStickyKey`."""
    if view.ordering_key is not None:
        return view.ordering_key
    if view.partition_key is not None:
        if view.partition_key_b64:
            try:
                return b64decode(view.partition_key)
            except (Base64Error, ValueError):
                return view.partition_key.encode()
        return view.partition_key.encode()
    return f"{view.producer_name}-{view.sequence_id}".encode()
