"""What an executor does with a slice: entries, messages, columns, batches."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from magnetar.spark.assembly.assembler import EntryAssembler
from magnetar.spark.assembly.neighbours import TopicNeighbours
from magnetar.spark.assembly.plain_entries import ALL_TIMES
from magnetar.spark.cluster import ClusterConnections, cluster_of
from magnetar.spark.decode.columns import BadRecordPolicy, BatchBuilder
from magnetar.spark.entries import EntryBlock, EntrySource, Hole, OnHole, WholeEntry
from magnetar.spark.errors import ClusterUnreachable, DataLoss
from magnetar.spark.options.pushdown import MessageFilters
from magnetar.spark.options.reading import SourceOptions
from magnetar.spark.reading.table import Table
from magnetar.spark.slices import LedgerRange, Slice
from magnetar.spark.topics import TopicState

logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTask:
    """Everything that an executor has to know. Pickled with each partition."""

    slice_: Slice
    options: SourceOptions
    filters: MessageFilters
    table: Table
    arrow_schema: bytes
    """The schema of the batches, in Arrow's own serialised form."""
    direct: bool
    bookie_addresses: dict[str, tuple[str, int]]
    """Addresses of the bookies that have the slice's entries, as far as their ids do not say."""


async def batches_of(task: ReadTask) -> AsyncIterator[pa.RecordBatch]:
    """The rows of a slice. Raises what Spark shows the user."""
    cluster = await cluster_of(task.options.connection)
    part = task.slice_
    policy = BadRecordPolicy(task.options.mode, task.options.corrupt_record_column)
    builder = BatchBuilder(
        topic=part.topic,
        schema=pa.ipc.read_schema(pa.py_buffer(task.arrow_schema)),
        values=task.table.decoder(part.topic, cluster),
        filters=task.filters,
        first=part.first,
        end=part.end,
        policy=policy,
        key_type=task.options.key_type,
    )
    messages = SliceMessages(task, cluster)
    try:
        async for entries in messages.whole():
            builder.add(entries)
            async for batch in builder.batches(final=False):
                yield batch
        async for batch in builder.batches(final=True):
            yield batch
    finally:
        await messages.close()
    if policy.kept or policy.dropped:
        logger.warning("%d bad messages in all; the first: %s", policy.kept + policy.dropped, policy.first_reason)


class SliceMessages:
    """A slice's messages, entry by entry: from bookies; with readMode auto from brokers once bookies cannot be reached
    from here."""

    def __init__(self, task: ReadTask, cluster: ClusterConnections) -> None:
        self._task = task
        self._cluster = cluster
        self._direct = task.direct
        self._source: EntrySource | None = None
        self._neighbours = TopicNeighbours(task.slice_.topic, self._states, self._another_source)

    async def whole(self) -> AsyncIterator[list[WholeEntry]]:
        """Some at a time, in order."""
        task = self._task
        earliest, latest = task.filters.publish_time_ms_min, task.filters.publish_time_ms_max
        assembler = EntryAssembler(
            task.slice_,
            self._neighbours,
            filtered_by_broker=not self._direct,
            publish_time_ms=(
                ALL_TIMES[0] if earliest is None else earliest,
                ALL_TIMES[1] if latest is None else latest,
            ),
        )
        async for block in self._blocks():
            yield await (assembler.continue_through_broker() if block is None else assembler.feed(block))
        yield await assembler.finish()
        for hole in self._neighbours.holes:
            logger.warning("beside what is read: %s", hole)

    async def close(self) -> None:
        """Let go of what is read from."""
        source, self._source = self._source, None
        if source is not None:
            await source.close()
        await self._neighbours.close()

    async def _blocks(self) -> AsyncIterator[EntryBlock | None]:
        """The slice's entries in order; None where brokers begin to give them.

        What is made of a block is no concern of this: that its neighbours cannot be reached must not take it for read
        and go on behind it."""
        task = self._task
        on_hole = _on_hole(task.options)
        rest = task.slice_.ranges
        while rest:
            self._source = self._another_source()
            try:
                async for block in self._source.blocks(rest, on_hole):
                    rest = _behind(rest, block)
                    yield block
                return
            except ClusterUnreachable as error:
                if not self._may_ask_brokers():
                    raise
                logger.warning("%s is read through brokers from here on: %s", task.slice_.topic, error)
            await self.close()
            self._direct = False
            yield None

    def _may_ask_brokers(self) -> bool:
        """Brokers know nothing of the entries of a compacted ledger."""
        return self._direct and self._task.options.read_mode == "auto" and not self._task.slice_.compacted

    def _another_source(self) -> EntrySource:
        """One that reads beside the first."""
        task = self._task
        if self._direct:
            return self._cluster.bookie_entries(task.slice_.topic, task.bookie_addresses)
        return self._cluster.broker_entries(task.slice_.topic, read_compacted=task.options.read_compacted)

    async def _states(self, topics: Sequence[str]) -> dict[str, TopicState]:
        """The topic's ledgers as they are now, and where their entries are."""
        if not self._direct:
            return await self._cluster.brokers.states(topics)
        catalog = await self._cluster.direct_catalog()
        states = (await catalog.states(topics)).values()
        return {one.topic: await catalog.with_metadata(one, {each.ledger_id for each in one.ledgers}) for one in states}


def _behind(ranges: tuple[LedgerRange, ...], block: EntryBlock) -> tuple[LedgerRange, ...]:
    """What is left of the ranges once the block is taken."""
    for place, part in enumerate(ranges):
        if part.ledger_id == block.ledger_id and part.first_entry_id <= block.entry_ids[-1] <= part.last_entry_id:
            following = block.entry_ids[-1] + 1
            rest = ranges[place + 1 :]
            return rest if following > part.last_entry_id else (replace(part, first_entry_id=following), *rest)
    return ranges


def _on_hole(options: SourceOptions) -> OnHole:
    def fail(hole: Hole) -> None:
        raise DataLoss(f"{hole}. With failOnDataLoss=false the query goes on without them")

    def note(hole: Hole) -> None:
        logger.warning("failOnDataLoss is false, so reading goes on: %s", hole)

    return fail if options.fail_on_data_loss else note
