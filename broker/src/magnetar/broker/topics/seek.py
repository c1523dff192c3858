"""What positions clients mean: where a reader starts, where a seek goes, what the last message is."""

from __future__ import annotations

from magnetar.broker.compaction.compacted_topic import (
    Compaction,
    compaction_of,
    first_published_since,
    last_batch_index,
    last_compacted,
)
from magnetar.broker.slices import TimeSlice
from magnetar.broker.topics.topic import PersistentTopic
from magnetar.core.ids import EARLIEST, LATEST, NO_ENTRY, Position, signed64
from magnetar.core.limits import ACK_SET_WORDS_MAX
from magnetar.wire.pulsar.errors import BadMetadata, PulsarError, ServerError
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import MessageIdData
from magnetar.wire.pulsar.metadata import MessageMetadataView


def position_in(message_id: MessageIdData) -> Position:
    """The entry that a client names."""
    return (signed64(message_id.ledgerId), signed64(message_id.entryId))


def reader_start(topic: PersistentTopic, wanted: Position, *, earliest: bool, knows_end: bool) -> Position:
    """Where a non-durable cursor begins for a start message id.

    Reading begins with the named entry itself; the client drops what precedes its wish (Pulsar
    `PersistentTopic.getNonDurableSubscription`). -1:-1 is the earliest; past the end counts as not given: then
    `earliest` says whether it begins at the first entry, or behind the last one. `PulsarError`: see `_check_known`."""
    ledger_id, entry_id = wanted
    if ledger_id < 0 or entry_id < 0:
        return EARLIEST
    if wanted > topic.ledger.last_confirmed:
        _check_known(topic, wanted, knows_end=knows_end)
        return EARLIEST if earliest and wanted != LATEST else LATEST
    return wanted


def _check_known(topic: PersistentTopic, wanted: Position, *, knows_end: bool) -> None:
    """Who follows a topic whose owner is away may know less of it than a client that has read it elsewhere: it must
    not be taken back. `PulsarError`: the client asks again, as for a topic that moves."""
    if not knows_end and wanted < LATEST:
        ledger_id, entry_id = wanted
        raise PulsarError(
            ServerError.SERVICE_NOT_READY,
            f"{topic.name} is not known up to {ledger_id}:{entry_id} here, and its owner does not answer",
        )


def position_of_seek(
    topic: PersistentTopic, message_id: MessageIdData, *, knows_end: bool
) -> tuple[Position, list[int] | None]:
    """The entry that reading goes on with, and what of its batch is still to be delivered (None: all of it).

    Raises `PulsarError` for an ack set that no batch can have, and see `_check_known`."""
    words = len(message_id.ack_set)
    if words > ACK_SET_WORDS_MAX:
        raise PulsarError(
            ServerError.NOT_ALLOWED_ERROR, f"An ack set of {words} words; at most {ACK_SET_WORDS_MAX} are taken"
        )
    position = position_in(message_id)
    if position[0] < 0 or position[1] < 0:
        return EARLIEST, None
    if position > topic.ledger.last_confirmed:
        _check_known(topic, position, knows_end=knows_end)
        return LATEST, None
    return position, list(message_id.ack_set) or None


async def position_of_time(topic: PersistentTopic, publish_time_ms: int, *, compacted: bool = False) -> Position:
    """Where a seek to a time (ms since 1970) goes; for who reads a compacted topic it may be what only compaction
    kept."""
    compaction = compaction_of(topic.ledger) if compacted else None
    if compaction is not None:
        found = await first_published_since(topic.ledger, compaction, publish_time_ms)
        if found is not None:
            return found
    return await topic.position_of_time(publish_time_ms)


async def last_message_id(topic: PersistentTopic, *, compacted: bool = False) -> tuple[Position, int]:
    """The last message that a consumer can be given and its index in its batch (-1: not a batch).

    An empty topic answers -1:-1. Markers are the broker's own and are stepped over, as is what was aborted (what may
    still be is not there yet), and what nobody can read:
    who waits for the last message would wait for ever. For who reads a compacted topic (`compacted`), and for nobody
    else, it may be one that only compaction kept (Pulsar: `ServerCnx.getLargestBatchIndexWhenPossible`)."""
    position = topic.max_read_position
    compaction = compaction_of(topic.ledger) if compacted else None
    if compaction is not None and position <= compaction.horizon:
        return await _last_compacted(topic, compaction)
    turn = TimeSlice()
    while position[1] != NO_ENTRY and position >= topic.ledger.ledgers.first_position():
        entry = await topic.ledger.read_entry(position)
        try:
            metadata = entry.metadata()
        except BadMetadata:
            metadata = None
        if metadata is not None and metadata.marker_type < 0 and not _is_aborted(topic, metadata):
            return position, metadata.num_messages - 1 if metadata.is_batch else -1
        position = topic.ledger.ledgers.previous_position(position)
        if turn.over:  # Entries in the cache come without waiting.
            await turn.pause()
    return (EARLIEST, -1) if compaction is None else await _last_compacted(topic, compaction)


def _is_aborted(topic: PersistentTopic, metadata: MessageMetadataView) -> bool:
    bits = metadata.txnid_most_bits, metadata.txnid_least_bits
    return topic.visibility is not None and topic.visibility.is_aborted(bits)


async def _last_compacted(topic: PersistentTopic, compaction: Compaction) -> tuple[Position, int]:
    entry = await last_compacted(topic.ledger, compaction)
    return (EARLIEST, -1) if entry is None else (entry.position, last_batch_index(entry))
