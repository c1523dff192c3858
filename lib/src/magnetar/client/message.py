"""Messages as producers give them and consumers get them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from magnetar.core.ids import EARLIEST, LATEST, signed64, unsigned64
from magnetar.wire.pulsar.batch import (
    BATCH_MESSAGES_MAX,
    UNCOMPRESSED_BYTES_MAX,
    build_batch,
    build_message,
    decompressed_payload,
    split_batch,
)
from magnetar.wire.pulsar.compression_type import Compression
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import (
    KeyValue,
    MessageIdData,
    MessageMetadata,
    SingleMessageMetadata,
)
from magnetar.wire.pulsar.metadata import full_metadata, strip_broker_entry_metadata

Properties: TypeAlias = Mapping[str, str]


class MessageId(NamedTuple):
    """Where a message is. They compare in the order of their topic; -1 is no partition, no batch."""

    ledger_id: int
    entry_id: int
    batch_index: int = -1
    batch_size: int = 0
    partition: int = -1

    @staticmethod
    def from_wire(data: MessageIdData) -> MessageId:
        """The id in a `MessageIdData`."""
        return MessageId(
            signed64(data.ledgerId), signed64(data.entryId), data.batch_index, data.batch_size, data.partition
        )

    def to_wire(self) -> MessageIdData:
        """A `MessageIdData` of the entry. The place in a batch is left out: brokers know entries."""
        data = MessageIdData(ledgerId=unsigned64(self.ledger_id), entryId=unsigned64(self.entry_id))
        if self.partition >= 0:
            data.partition = self.partition
        return data

    @property
    def position(self) -> tuple[int, int]:
        """(ledger id, entry id)."""
        return self.ledger_id, self.entry_id

    @property
    def order(self) -> tuple[int, int, int]:
        """What ids of one partition are compared by. A whole entry (batch index -1) comes before its messages."""
        return self.ledger_id, self.entry_id, self.batch_index

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}:{self.batch_index}"


EARLIEST_ID = MessageId(*EARLIEST)
LATEST_ID = MessageId(*LATEST)


class OutgoingMessage:
    """A message to be sent. `payload` None is a message without a value, which deletes a key's value in compaction."""

    __slots__ = (
        "deliver_at_ms",
        "event_time_ms",
        "key",
        "key_is_base64",
        "ordering_key",
        "payload",
        "properties",
        "replicate_to",
        "schema_version",
        "sequence_id",
    )

    def __init__(
        self,
        payload: bytes | None,
        *,
        key: str | None = None,
        properties: Properties | None = None,
        event_time_ms: int = 0,
        schema_version: bytes = b"",
    ) -> None:
        self.payload = payload
        self.key = key
        self.key_is_base64 = False
        """`key` is the base64 of a key of bytes."""
        self.properties: Properties = properties if properties is not None else {}
        self.event_time_ms = event_time_ms
        self.schema_version = schema_version
        self.ordering_key: bytes | None = None
        self.deliver_at_ms = 0
        self.replicate_to: Sequence[str] = ()
        """Clusters that geo-replication may bring it to; none named: all."""
        self.sequence_id: int | None = None
        """The producer's own numbering goes on from here; None: the next number."""


class Message:
    """A message that was received."""

    __slots__ = ("id", "metadata", "payload", "redelivery_count", "single")

    def __init__(
        self,
        message_id: MessageId,
        metadata: MessageMetadata,
        single: SingleMessageMetadata | None,
        payload: bytes,
        redelivery_count: int,
    ) -> None:
        self.id = message_id
        self.metadata = metadata
        """The metadata of the entry; for a message of a batch `single` has the message's own."""
        self.single = single
        self.payload = payload
        self.redelivery_count = redelivery_count

    @property
    def key(self) -> str | None:
        """The partition key, as text (in base64 if its producer gave bytes)."""
        own = self.metadata if self.single is None else self.single
        return own.partition_key if own.HasField("partition_key") else None

    @property
    def properties(self) -> dict[str, str]:
        """What the producer put beside the payload."""
        own = self.metadata if self.single is None else self.single
        return {pair.key: pair.value for pair in own.properties}

    @property
    def has_no_value(self) -> bool:
        """Whether the producer sent no value at all, which is more than an empty one."""
        return self.metadata.null_value if self.single is None else self.single.null_value

    @property
    def sequence_id(self) -> int:
        """The producer's number."""
        if self.single is not None and self.single.HasField("sequence_id"):
            return self.single.sequence_id
        return self.metadata.sequence_id

    @property
    def event_time_ms(self) -> int:
        """When it happened, as the producer says; 0: not said."""
        return self.metadata.event_time if self.single is None else self.single.event_time

    @property
    def schema_version(self) -> bytes:
        """By which schema the payload is written; empty: none."""
        return self.metadata.schema_version

    @property
    def producer_name(self) -> str:
        """Who sent it."""
        return self.metadata.producer_name

    @property
    def publish_time_ms(self) -> int:
        """When it was sent."""
        return self.metadata.publish_time


class EntryBounds(NamedTuple):
    """What a stored entry may become when it is taken apart; what is larger is passed over."""

    messages_max: int = BATCH_MESSAGES_MAX
    size_bytes_max: int = UNCOMPRESSED_BYTES_MAX


ANY_ENTRY: Final = EntryBounds()


def messages_of_entry(
    data: bytes, entry: MessageId, redelivery_count: int, ack_set: Sequence[int], bounds: EntryBounds = ANY_ENTRY
) -> list[Message]:
    """The messages of a stored entry, but for those that compaction or acknowledgements took out of a batch.

    `ack_set` has a bit for each message of a batch that is still to be delivered; empty: all are.
    Raises `BadMetadata`."""
    data = strip_broker_entry_metadata(data)
    metadata = full_metadata(data)
    if not metadata.HasField("num_messages_in_batch"):
        payload = decompressed_payload(data, bounds.size_bytes_max)
        return [Message(entry, metadata, None, payload, redelivery_count)]
    singles = split_batch(data, bounds.messages_max, bounds.size_bytes_max)
    found: list[Message] = []
    for index, (single, payload) in enumerate(singles):
        acknowledged = bool(ack_set) and not (index < 64 * len(ack_set) and ack_set[index >> 6] >> (index & 63) & 1)
        if not single.compacted_out and not acknowledged:
            message_id = entry._replace(batch_index=index, batch_size=len(singles))
            found.append(Message(message_id, metadata, single, payload, redelivery_count))
    return found


def entry_of_message(message: OutgoingMessage, metadata: MessageMetadata) -> bytes:
    """Headers and payload of one message. `metadata` has the producer's name, number and time, and is filled up."""
    payload = message.payload if message.payload is not None else b""
    _add_own(metadata, message)
    _add_common(metadata, message)
    metadata.uncompressed_size = len(payload)
    return build_message(metadata, payload)


def entry_of_batch(
    messages: Sequence[OutgoingMessage],
    metadata: MessageMetadata,
    sequence_ids: Sequence[int],
    compression: Compression,
) -> bytes:
    """Headers and payload of a batch; what stands per entry (delivery time, clusters, schema) is the first one's."""
    singles: list[tuple[SingleMessageMetadata, bytes]] = []
    for message, sequence_id in zip(messages, sequence_ids, strict=True):
        single = SingleMessageMetadata(payload_size=0, sequence_id=sequence_id)
        _add_own(single, message)
        singles.append((single, message.payload if message.payload is not None else b""))
    first = messages[0]
    _add_key(metadata, first)
    _add_common(metadata, first)
    metadata.highest_sequence_id = sequence_ids[-1]
    return build_batch(metadata, singles, compression)


def _add_own(metadata: MessageMetadata | SingleMessageMetadata, message: OutgoingMessage) -> None:
    """What each message of a batch has for itself."""
    if message.payload is None:
        metadata.null_value = True
    _add_key(metadata, message)
    if message.ordering_key is not None:
        metadata.ordering_key = message.ordering_key
    if message.properties:
        metadata.properties.extend(KeyValue(key=key, value=value) for key, value in message.properties.items())
    if message.event_time_ms:
        metadata.event_time = message.event_time_ms


def _add_key(metadata: MessageMetadata | SingleMessageMetadata, message: OutgoingMessage) -> None:
    if message.key is not None:
        metadata.partition_key = message.key
        if message.key_is_base64:
            metadata.partition_key_b64_encoded = True


def _add_common(metadata: MessageMetadata, message: OutgoingMessage) -> None:
    if message.replicate_to:
        metadata.replicate_to.extend(message.replicate_to)
    if message.schema_version:
        metadata.schema_version = message.schema_version
    if message.deliver_at_ms:
        metadata.deliver_at_time = message.deliver_at_ms
