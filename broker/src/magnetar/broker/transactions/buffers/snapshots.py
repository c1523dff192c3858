"""Snapshots of transaction buffers in one message for each topic, in a system topic of its namespace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from magnetar.broker.slices import TimeSlice
from magnetar.broker.transactions.buffers.snapshot_codec import (
    SINGLE,
    Aborted,
    Snapshot,
    SnapshotReading,
    aborted_block,
    decode_other,
    encode_snapshot,
)
from magnetar.broker.transactions.buffers.snapshot_store import TopicSegments
from magnetar.broker.transactions.buffers.snapshot_topic import SnapshotParts
from magnetar.broker.transactions.buffers.snapshot_topics import SnapshotTopics
from magnetar.core.topic_name import TopicName

SNAPSHOT_TOPIC: Final = "__transaction_buffer_snapshot"

AT_ONCE: Final = 500
"""Transactions of a snapshot that are written or read in one go: a millisecond."""


class SingleSnapshots:
    """A `SnapshotStore` that has all of a topic in one message (Pulsar: `SingleSnapshotAbortedTxnProcessorImpl`)."""

    kind = "Single"

    def __init__(self, parts: SnapshotParts) -> None:
        self._topics = SnapshotTopics(SNAPSHOT_TOPIC, SINGLE, parts)

    def segments(self, topic: TopicName) -> TopicSegments | None:
        """There are none."""
        del topic
        return None

    async def read(self, topic: TopicName, first_ledger_id: int = 0) -> tuple[Snapshot, list[Aborted]] | None:
        """The last snapshot of a topic, oldest marker first; None: there is none, or it was deleted."""
        del first_ledger_id
        namespace = topic.namespace_name
        message = await self._topics.of(namespace).latest(str(topic))
        if message is None:
            return None
        decoder = await self._topics.other_schema(namespace, message)
        if decoder is not None:
            return decode_other(decoder, message.payload)
        reading = SnapshotReading(message.payload)
        aborted: list[Aborted] = []
        turn = TimeSlice()
        while some := reading.some(AT_ONCE):
            aborted += some
            if turn.over:
                await turn.pause()
        return reading.rest(), aborted

    async def write(self, snapshot: Snapshot, aborted: Sequence[Aborted]) -> None:
        """Keep a snapshot instead of the one before; durable on return."""
        blocks: list[bytes] = []
        turn = TimeSlice()
        for first in range(0, len(aborted), AT_ONCE):
            blocks.append(aborted_block(aborted[first : first + AT_ONCE]))
            if turn.over:
                await turn.pause()
        topic = self._topics.of(TopicName.parse(snapshot.topic).namespace_name)
        await topic.write(snapshot.topic, encode_snapshot(snapshot, blocks))

    async def delete(self, topic: TopicName) -> None:
        """Remove the snapshot of a topic that is gone."""
        if await self._topics.exists(topic.namespace_name):
            await self._topics.of(topic.namespace_name).write(str(topic), None)

    def release(self, topic: TopicName) -> None:
        """Nothing is remembered of single topics."""

    async def close(self) -> None:
        """Read and write nothing any more; before the client is closed."""
        await self._topics.close()
