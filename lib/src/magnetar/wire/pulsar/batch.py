"""Messages put together and taken apart: single ones, and batches of them (pulsar-protocol section 1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final

import google_crc32c
from google.protobuf.message import DecodeError
from magnetar.core.limits import MIB
from magnetar.wire.pulsar.compression import compress, decompress
from magnetar.wire.pulsar.compression_type import Compression
from magnetar.wire.pulsar.errors import BadMetadata
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import MessageMetadata, SingleMessageMetadata
from magnetar.wire.pulsar.metadata import CHECKSUM_MAGIC, broker_entry_metadata_end, full_metadata, metadata_bounds

UNCOMPRESSED_BYTES_MAX: Final = 128 * MIB
"""What the broker unpacks at most: far above any batch that clients build, far below what would hurt."""

BATCH_MESSAGES_MAX: Final = 100_000
"""Messages of one batch that are taken apart at most: a fraction of a second, some ten MB. Clients put 1000 into one
unless they are told otherwise; a few kB, unpacked, can claim to hold twenty millions."""

_U32: Final = Struct(">I")
_CHECKSUM: Final = Struct(">HI")


def build_message(metadata: MessageMetadata, payload: bytes, *, checksum: bool = True) -> bytes:
    """Headers and payload as SEND carries them. The payload is taken as it is (compressed, if metadata says so)."""
    encoded = metadata.SerializeToString()
    body = _U32.pack(len(encoded)) + encoded + payload
    if not checksum:
        return body
    return _CHECKSUM.pack(CHECKSUM_MAGIC, google_crc32c.value(body)) + body


def build_batch(
    metadata: MessageMetadata,
    messages: Sequence[tuple[SingleMessageMetadata, bytes]],
    compression: Compression = Compression.NONE,
) -> bytes:
    """A batch of messages under one metadata, whose count, compression and size are set here."""
    body = b"".join([member_bytes(single, payload) for single, payload in messages])
    metadata.num_messages_in_batch = len(messages)
    if compression is not Compression.NONE:
        metadata.compression = int(compression)  # type: ignore[assignment] # The stub wants the enum's own class.
        metadata.uncompressed_size = len(body)
    return build_message(metadata, compress(compression, body))


def decompressed_payload(data: bytes, size_bytes_max: int = UNCOMPRESSED_BYTES_MAX) -> bytes:
    """The payload of a stored entry, unpacked. Raises `BadMetadata`."""
    metadata = full_metadata(data)
    _, start = metadata_bounds(data)
    return decompress(metadata.compression, data[start:], metadata.uncompressed_size, size_bytes_max)


def split_batch(
    data: bytes, messages_max: int = BATCH_MESSAGES_MAX, size_bytes_max: int = UNCOMPRESSED_BYTES_MAX
) -> list[tuple[SingleMessageMetadata, bytes]]:
    """The messages of a stored batch, unpacked. Raises `BadMetadata`, also for more than that."""
    count = full_metadata(data).num_messages_in_batch
    if count > messages_max:
        raise BadMetadata(f"a batch of {count} messages, more than {messages_max}")
    return list(batch_members(decompressed_payload(data, size_bytes_max), count))


def batch_members(body: bytes, count: int) -> Iterator[tuple[SingleMessageMetadata, bytes]]:
    """The messages of an unpacked batch, one after the other, for whoever has to pause between them. `BadMetadata`."""
    at = 0
    for _ in range(count):
        if len(body) - at < 4:
            raise BadMetadata("a batch with fewer messages than it says")
        size: int = _U32.unpack_from(body, at)[0]
        at += 4
        if size > len(body) - at:
            raise BadMetadata("a batch whose message reaches over its end")
        try:
            single = SingleMessageMetadata.FromString(body[at : at + size])
        except DecodeError as error:
            raise BadMetadata(f"a batch with broken metadata: {error}") from None
        at += size
        if not 0 <= single.payload_size <= len(body) - at:
            raise BadMetadata("a batch whose payload reaches over its end")
        yield single, body[at : at + single.payload_size]
        at += single.payload_size


def member_bytes(single: SingleMessageMetadata, payload: bytes) -> bytes:
    """A message as it stands in an unpacked batch."""
    single.payload_size = len(payload)
    encoded = single.SerializeToString()
    return b"".join((_U32.pack(len(encoded)), encoded, payload))


def with_payload(data: bytes, payload: bytes) -> bytes:
    """A stored entry with another payload, packed as the one before was: broker entry metadata and metadata stay, but
    for the size of what is packed. `BadMetadata` for a compression that nobody knows."""
    metadata = full_metadata(data)
    metadata.uncompressed_size = len(payload)
    try:
        packed = compress(Compression(metadata.compression), payload)
    except ValueError:
        raise BadMetadata(f"compression {metadata.compression}") from None
    return data[: broker_entry_metadata_end(data)] + build_message(metadata, packed)
