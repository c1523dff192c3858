"""The members of a stored entry as a compaction sees them: their keys, and whether they have a value. Pure.

Facts: transactions-dedup-compaction section 3.1 (Pulsar: `AbstractTwoPhaseCompactor`, `RawBatchConverter`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from magnetar.managed.entry import Entry
from magnetar.wire.pulsar.batch import BATCH_MESSAGES_MAX, batch_members, member_bytes
from magnetar.wire.pulsar.errors import BadMetadata
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import SingleMessageMetadata
from magnetar.wire.pulsar.metadata import full_metadata

REMOVED_MEMBER: Final = member_bytes(SingleMessageMetadata(compacted_out=True), b"")
"""The placeholder in a batch for a message that compaction took out: its neighbours keep their indexes."""


class BatchMember(NamedTuple):
    """A message of a batch."""

    key: str | None
    has_value: bool
    event_time_ms: int
    removed: bool
    """An earlier compaction took it out."""
    stored: bytes
    """The message as it stands in the batch, with its metadata."""


def has_members(entry: Entry) -> bool:
    """Whether an entry is a batch that can be looked into: encrypted ones count as one message with the key of the
    whole. `BadMetadata`."""
    metadata = entry.metadata()
    return metadata.is_batch and not metadata.encrypted


def has_value(entry: Entry) -> bool:
    """Whether an entry that is one message has a value; without one it deletes its key.

    Its size is what it says that it unpacks to, else what there is. `BadMetadata`."""
    metadata = entry.metadata()
    if metadata.uncompressed_size > 0:
        return True
    if len(entry.data) == metadata.payload_start:
        return False
    return not full_metadata(entry.data).HasField("uncompressed_size")


def members_of(entry: Entry, body: bytes) -> Iterator[BatchMember]:
    """The messages of a batch whose unpacked payload is `body`, one after the other. `BadMetadata`."""
    count = full_metadata(entry.data).num_messages_in_batch
    if count > BATCH_MESSAGES_MAX:
        raise BadMetadata(f"a batch of {count} messages, more than {BATCH_MESSAGES_MAX}")
    for single, payload in batch_members(body, count):
        try:
            key = single.partition_key if single.HasField("partition_key") else None
        except UnicodeDecodeError as error:
            raise BadMetadata(f"a key that is no text: {error}") from None
        yield BatchMember(key, bool(payload), single.event_time, single.compacted_out, member_bytes(single, payload))
