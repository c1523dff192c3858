"""Snapshots of transaction buffers in segments: only what was aborted lately is written again and again.

What a topic's index names are its segments, each a message of its own that is written once. Facts:
transactions-dedup-compaction 1.6; Pulsar `SnapshotSegmentAbortedTxnProcessorImpl`.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from magnetar.broker.slices import TimeSlice
from magnetar.broker.subscriptions.visibility import TransactionBits
from magnetar.broker.transactions.buffers.segment_codec import (
    SegmentPlace,
    SnapshotSegment,
    bits_block,
    encode_index,
    encode_segment,
    segment_capacity,
    segment_key,
)
from magnetar.broker.transactions.buffers.snapshot_codec import (
    INDEXES,
    SEGMENT,
    Aborted,
    BadSnapshot,
    RecordReading,
    Snapshot,
)
from magnetar.broker.transactions.buffers.snapshot_store import TopicSegments
from magnetar.broker.transactions.buffers.snapshot_topic import SnapshotParts
from magnetar.broker.transactions.buffers.snapshot_topics import SnapshotTopics
from magnetar.broker.transactions.buffers.snapshots import AT_ONCE, SingleSnapshots
from magnetar.client.message import Message
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import EARLIEST, Position, unsigned64
from magnetar.core.topic_name import NamespaceName, TopicName

logger: Final = logging.getLogger(__name__)

INDEX_TOPIC: Final = "__transaction_buffer_snapshot_indexes"
SEGMENT_TOPIC: Final = "__transaction_buffer_snapshot_segments"


class SegmentedSnapshots:
    """A `SnapshotStore` over an index and segments for each topic. What was written in one message is read, too."""

    kind = "Segment"

    def __init__(self, parts: SnapshotParts, segment_bytes: int) -> None:
        self._indexes = SnapshotTopics(INDEX_TOPIC, INDEXES, parts)
        self._segments = SnapshotTopics(SEGMENT_TOPIC, SEGMENT, parts)
        self._single = SingleSnapshots(parts)
        self._segment_bytes = segment_bytes
        self._places: dict[str, list[SegmentPlace]] = {}
        """Of topics that are loaded: their segments, oldest first."""
        self._clock = parts.clock
        self._sealed_ms: dict[str, int] = {}
        """When the last segment of each was written, since 1970; it may not be in the index."""

    def segments(self, topic: TopicName) -> TopicSegments | None:
        """The segments of a topic whose buffer this broker has."""
        name = str(topic)
        markers = tuple(place.last_marker for place in self._places.get(name, ()))
        return TopicSegments(segment_capacity(self._segment_bytes, name), markers, self._sealed_ms.get(name, 0))

    async def read(self, topic: TopicName, first_ledger_id: int = 0) -> tuple[Snapshot, list[Aborted]] | None:
        """The last snapshot of a topic, oldest marker first; None: there is none, or it was deleted."""
        found = await self._read_index(topic)
        if found is None:
            return await self._single.read(topic, first_ledger_id)
        snapshot, places, unsealed = found
        aborted: list[Aborted] = []
        places.sort(key=lambda place: place.last_marker)
        for place in places:
            if place.last_marker[0] >= first_ledger_id:  # Else its messages are gone, and the next snapshot drops it.
                aborted += [(bits, place.last_marker) for bits in await self._read_segment(topic, place)]
        # The markers of the rest come after these. Those after the snapshot's position are met when that is replayed.
        last = places[-1].last_marker if places else EARLIEST
        marker = max(snapshot.max_read_position, (last[0], last[1] + 1))
        self._places[str(topic)] = places
        return snapshot, aborted + [(bits, marker) for bits in unsealed]

    async def write(self, snapshot: Snapshot, aborted: Sequence[Aborted]) -> None:
        """Keep a snapshot instead of the one before; durable on return."""
        topic = TopicName.parse(snapshot.topic)
        places = self._places.setdefault(snapshot.topic, [])
        last = places[-1].last_marker if places else EARLIEST
        unsealed = aborted[bisect_right(aborted, last, key=_marker_of) :]
        capacity = segment_capacity(self._segment_bytes, snapshot.topic)
        while len(unsealed) >= capacity:
            places.append(await self._seal(topic, places, unsealed[:capacity]))
            unsealed = unsealed[capacity:]
        oldest = aborted[0][1] if aborted else None
        expired = [place for place in places if oldest is None or place.last_marker < oldest]
        left = places[len(expired) :]
        payload = encode_index(snapshot, left, await _blocks([bits for bits, _ in unsealed]))
        await self._indexes.of(topic.namespace_name).write(snapshot.topic, payload)
        # Only now: until here an index named them.
        del places[: len(expired)]
        await self._delete_segments(topic, expired)

    async def delete(self, topic: TopicName) -> None:
        """Remove the snapshot of a topic that is gone."""
        found = await self._read_index(topic)
        if found is not None:
            await self._indexes.of(topic.namespace_name).write(str(topic), None)
            await self._delete_segments(topic, found[1])
        if await self._single.read(topic) is not None:
            await self._single.delete(topic)

    def release(self, topic: TopicName) -> None:
        """Forget where the segments of a topic are that no buffer of this broker has any more."""
        self._places.pop(str(topic), None)
        self._sealed_ms.pop(str(topic), None)

    async def close(self) -> None:
        """Read and write nothing any more; before the client is closed."""
        for kept in (self._indexes, self._segments, self._single):
            await kept.close()

    # --- the index

    async def _read_index(self, topic: TopicName) -> tuple[Snapshot, list[SegmentPlace], list[TransactionBits]] | None:
        message = await self._indexes.of(topic.namespace_name).latest(str(topic))
        if message is None:
            return None
        await self._check_schema(self._indexes, topic.namespace_name, message)
        reading = RecordReading(message.payload)
        reading.begin_list()
        places: list[SegmentPlace] = []
        while rows := reading.rows(5, AT_ONCE):
            places += [
                SegmentPlace(sequence_id, (marker_ledger, marker_entry), (ledger_id, entry_id))
                for marker_entry, marker_ledger, entry_id, ledger_id, sequence_id in rows
            ]
        if reading.is_null():
            raise BadSnapshot(f"an index of {topic} without a position")
        unsealed = await _read_bits(reading)
        entry_id, ledger_id = reading.number(), reading.number()
        return Snapshot(reading.text(), (ledger_id, entry_id)), places, unsealed

    async def _check_schema(self, topics: SnapshotTopics, namespace: NamespaceName, message: Message) -> None:
        if await topics.other_schema(namespace, message) is not None:
            raise BadSnapshot("a snapshot of a schema that this broker does not know")

    # --- segments

    async def _read_segment(self, topic: TopicName, place: SegmentPlace) -> list[TransactionBits]:
        message = await self._segments.of(topic.namespace_name).at(place.message)
        if message is None or message.has_no_value:
            raise BadSnapshot(f"segment {place.sequence_id} of {topic} is not there")
        await self._check_schema(self._segments, topic.namespace_name, message)
        return await _read_bits(RecordReading(message.payload))

    async def _seal(self, topic: TopicName, places: list[SegmentPlace], aborted: Sequence[Aborted]) -> SegmentPlace:
        sequence_id = max((place.sequence_id for place in places), default=-1) + 1
        segment = SnapshotSegment(str(topic), sequence_id, aborted[-1][1])
        payload = encode_segment(segment, await _blocks([bits for bits, _ in aborted]))
        stored = await self._segments.of(topic.namespace_name).write(segment_key(str(topic), sequence_id), payload)
        self._sealed_ms[str(topic)] = self._clock.now_ms()
        return SegmentPlace(sequence_id, segment.last_marker, stored.position)

    async def _delete_segments(self, topic: TopicName, places: Sequence[SegmentPlace]) -> None:
        try:
            for place in places:
                await self._segments.of(topic.namespace_name).write(segment_key(str(topic), place.sequence_id), None)
        except MagnetarError as error:
            # No index names them: they take room, and are not read.
            logger.warning("segments of snapshots of %s stay: %s", topic, error)


def _marker_of(aborted: Aborted) -> Position:
    return aborted[1]


async def _blocks(transactions: Sequence[TransactionBits]) -> list[bytes]:
    blocks: list[bytes] = []
    turn = TimeSlice()
    for first in range(0, len(transactions), AT_ONCE):
        blocks.append(bits_block(transactions[first : first + AT_ONCE]))
        if turn.over:
            await turn.pause()
    return blocks


async def _read_bits(reading: RecordReading) -> list[TransactionBits]:
    reading.begin_list()
    found: list[TransactionBits] = []
    turn = TimeSlice()
    while rows := reading.rows(2, AT_ONCE):
        found += [(unsigned64(most_bits), unsigned64(least_bits)) for least_bits, most_bits in rows]
        if turn.over:
            await turn.pause()
    return found
