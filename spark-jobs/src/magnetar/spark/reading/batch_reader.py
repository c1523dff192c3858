"""Batches: planned once for what is loaded, read in as many tasks as there are slices.

Spark (4.0 to 4.3) keeps a data frame's plan for all that is done with it and with what is derived of it: it stays at
the topics' ends of its first use. A plan that was made with the filters of one query, it keeps too, and reads by it for
queries without these filters and for other uses of the frame in one query: hence `pushFilters` has to be asked for."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from magnetar.spark import runtime
from magnetar.spark.options.pushdown import push
from magnetar.spark.options.reading import SourceOptions, batch_bounds
from magnetar.spark.planning.planner import TopicRange, narrowed, open_planner
from magnetar.spark.reading.table import Table, find_table
from magnetar.spark.shown_errors import shown_plainly
from magnetar.spark.worker_memory import settle_worker
from pyspark.sql.datasource import DataSourceReader, InputPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from magnetar.spark.reading.task import ReadTask
    from pyspark.sql.types import StructType

PUSHDOWN_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"
"""Loaded where Spark plans with filters. Spark refuses readers that take filters where its setting for them is off, and
a reader cannot see settings."""


class SlicePartition(InputPartition):
    """One task of Spark's."""

    def __init__(self, task: ReadTask) -> None:
        super().__init__(task)


class PulsarBatchReader(DataSourceReader):
    """Reads what the options bound. Nothing is asked of the cluster before the plan is."""

    def __init__(self, options: SourceOptions, schema: StructType, table: Table | None) -> None:
        self._options = options
        self._filters = options.filters
        self._schema = schema
        self._table = table

    def partitions(self) -> list[InputPartition]:
        """One partition for each slice."""
        with shown_plainly():
            return list(map(SlicePartition, runtime.run(self._plan())))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one slice."""
        yield from read_task(partition)

    async def _plan(self) -> list[ReadTask]:
        from magnetar.spark.reading.tasks import tasks_of

        starting, ending = batch_bounds(self._options)
        if self._filters.nothing:
            return []
        planner = await open_planner(self._options)
        states = await planner.states(await planner.topics(self._filters))
        table = self._table or await find_table(planner.cluster, self._options, list(states))
        firsts = await planner.positions(starting, states.values(), "startingOffsets")
        ends = await planner.positions(ending, states.values(), "endingOffsets")
        reaches = [
            narrowed(TopicRange(state, firsts[topic], ends[topic]), self._filters) for topic, state in states.items()
        ]
        slices = await planner.slices([reach for reach in reaches if reach.first < reach.end], {})
        return await tasks_of(slices, planner, table, self._filters, self._schema)


class PushingBatchReader(PulsarBatchReader):
    """Takes Spark's filters over where they can be applied to messages that are not decoded yet."""

    def pushFilters(self, filters: Sequence[Any]) -> Iterator[Any]:  # noqa: N802 - Spark's name
        """Gives back those that Spark still has to apply."""
        self._filters, given_back = push(self._filters, list(filters))
        yield from given_back


def batch_reader(options: SourceOptions, schema: StructType, table: Table | None) -> PulsarBatchReader:
    """The reader for where it is asked for."""
    pushing = options.push_filters and PUSHDOWN_WORKER in sys.modules
    kind = PushingBatchReader if pushing else PulsarBatchReader
    return kind(options, schema, table)


def read_task(partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
    """The rows of a task, on an executor. Where there is nothing to read, Spark makes one partition of its own: None in
    4.0 and 4.1, without a value since."""
    from magnetar.spark.reading.task import batches_of

    if isinstance(partition, SlicePartition):
        with shown_plainly():
            yield from runtime.event_loop_thread().iterate(batches_of(partition.value))
        settle_worker()
