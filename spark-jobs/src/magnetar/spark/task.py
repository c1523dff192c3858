"""What an executor does with a slice: entries, messages, columns, batches."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
from magnetar.spark.assembly.assembler import EntryAssembler
from magnetar.spark.assembly.neighbours import TopicNeighbours
from magnetar.spark.cluster import Cluster, cluster_of
from magnetar.spark.decode.columns import BadRecordPolicy, BatchBuilder
from magnetar.spark.entries import EntryBlock, EntrySource, Hole, OnHole
from magnetar.spark.errors import ClusterUnreachable, DataLoss
from magnetar.spark.options import SourceOptions
from magnetar.spark.pushdown import MessageFilters
from magnetar.spark.slices import LedgerRange, Slice
from magnetar.spark.table import Table

logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTask:
    """Everything that an executor has to know. Pickled with each partition."""

    slice_: Slice
    options: SourceOptions
    filters: MessageFilters
    table: Table
    arrow_schema: bytes
    """Of the batches, in Arrow's own serialised form."""
    direct: bool
    bookie_addresses: dict[str, tuple[str, int]]
    """Of those that have the slice's entries, as far as their ids do not say."""


async def batches_of(task: ReadTask) -> AsyncIterator[pa.RecordBatch]:
    """The rows of a slice. Raises what Spark shows the user."""
    cluster = await cluster_of(task.options.connection)
    part = task.slice_
    entries = TaskEntries(task, cluster)
    neighbours = TopicNeighbours(part.topic, entries.states, entries.another_source)
    assembler = EntryAssembler(part, neighbours, filtered_by_broker=not task.direct)
    builder = BatchBuilder(
        topic=part.topic,
        schema=pa.ipc.read_schema(pa.py_buffer(task.arrow_schema)),
        values=task.table.decoder(part.topic, cluster),
        filters=task.filters,
        first=part.first,
        end=part.end,
        policy=BadRecordPolicy(task.options.mode, task.options.corrupt_record_column),
    )
    try:
        async for block in entries.blocks(part.ranges, _on_hole(task.options)):
            builder.add(await assembler.feed(block))
            if builder.ready():
                for batch in await builder.take():
                    yield batch
        builder.add(await assembler.finish())
        for batch in await builder.take():
            yield batch
    finally:
        await neighbours.close()
        await entries.close()


class TaskEntries:
    """A slice's entries: from bookies; with readMode auto from brokers once bookies cannot be reached from here."""

    def __init__(self, task: ReadTask, cluster: Cluster) -> None:
        self._task = task
        self._cluster = cluster
        self._direct = task.direct
        self._source: EntrySource | None = None

    async def blocks(self, ranges: Sequence[LedgerRange], on_hole: OnHole) -> AsyncIterator[EntryBlock]:
        """As `EntrySource.blocks`."""
        rest = tuple(ranges)
        while rest:
            self._source = self.another_source()
            try:
                async for block in self._source.blocks(rest, on_hole):
                    yield block
                    rest = _behind(rest, block)
                return
            except ClusterUnreachable as error:
                if not self._direct or self._task.options.read_mode != "auto":
                    raise
                logger.warning("%s is read through brokers from here on: %s", self._task.slice_.topic, error)
                self._direct = False
            finally:
                await self.close()

    def another_source(self) -> EntrySource:
        """One that reads beside the first."""
        task = self._task
        if self._direct:
            return self._cluster.bookie_entries(task.slice_.topic, task.bookie_addresses)
        return self._cluster.broker_entries(task.slice_.topic, read_compacted=task.options.read_compacted)

    async def states(self, topics: Sequence[str]) -> dict[str, Any]:
        """The topic's ledgers as they are now."""
        catalog = await self._cluster.catalog(direct=self._direct)
        return await catalog.states(topics)

    async def close(self) -> None:
        """Let go of what is read from."""
        source, self._source = self._source, None
        if source is not None:
            await source.close()


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
