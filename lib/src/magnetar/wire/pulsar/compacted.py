"""Entries of the ledger that a compaction writes: `idSize u32, MessageIdData, size u32, headers and payload`.

Facts: pulsar-client `RawMessageImpl.serialize`; broker-internals section 12."""

from __future__ import annotations

import struct
from typing import Final

from google.protobuf.message import DecodeError
from magnetar.core.ids import Position, signed64, unsigned64
from magnetar.wire.pulsar.errors import BadMetadata
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import MessageIdData

_U32: Final = struct.Struct(">I")


def decode_compacted(data: bytes) -> tuple[Position, bytes]:
    """The message's position in its topic, and the message as it was stored there. Raises `BadMetadata`."""
    try:
        id_end = 4 + int(_U32.unpack_from(data, 0)[0])
        message_id = MessageIdData.FromString(data[4:id_end])
        size = int(_U32.unpack_from(data, id_end)[0])
    except (DecodeError, struct.error) as error:
        raise BadMetadata(f"a compacted entry that cannot be read: {error}") from None
    content = data[id_end + 4 : id_end + 4 + size]
    if len(content) != size or not message_id.IsInitialized():
        raise BadMetadata(f"a compacted entry with {len(content)} of {size} bytes")
    return (signed64(message_id.ledgerId), signed64(message_id.entryId)), content


def encode_compacted(position: Position, content: bytes, partition: int = -1) -> bytes:
    """The inverse of `decode_compacted`; `partition` is the topic's index, -1 for a topic without partitions."""
    message_id = MessageIdData(
        ledgerId=unsigned64(position[0]), entryId=unsigned64(position[1]), partition=partition
    ).SerializeToString()
    return b"".join((_U32.pack(len(message_id)), message_id, _U32.pack(len(content)), content))


def message_id_bytes(position: Position, partition: int = -1) -> bytes:
    """A message id as clients store it (Pulsar: `MessageId.toByteArray` of an entry as a whole)."""
    message_id = MessageIdData(ledgerId=unsigned64(position[0]), entryId=unsigned64(position[1]))
    if partition >= 0:
        message_id.partition = partition
    return message_id.SerializeToString()
