"""From slices to what Spark hands to its executors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from magnetar.spark.options.pushdown import EVERYTHING, MessageFilters
from magnetar.spark.options.reading import SourceOptions
from magnetar.spark.planning.planner import ReadPlanner
from magnetar.spark.reading.table import Table
from magnetar.spark.reading.task import ReadTask
from magnetar.spark.slices import Slice
from magnetar.spark.topics import TopicSelection
from magnetar.spark.values.spark_schema import arrow_schema_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


async def tasks_of(
    slices: Sequence[Slice], planner: ReadPlanner, table: Table, filters: MessageFilters, schema: StructType
) -> list[ReadTask]:
    """One for each slice. `schema` is what Spark wants, which may be less than the table has.

    What was of use in planning alone stays behind: there may be as many topics as tasks."""
    arrow_schema = arrow_schema_of(schema).serialize().to_pybytes()
    addresses = await planner.addresses()
    options = replace(planner.options, selection=TopicSelection(), starting=None, ending=None, filters=EVERYTHING)
    filters = replace(filters, topics=None, topic_prefixes=(), partitions=None)
    return [
        ReadTask(
            slice_=one,
            options=options,
            filters=filters,
            table=table.of(one.topic),
            arrow_schema=arrow_schema,
            direct=planner.direct and _on_bookies(one, options),
            bookie_addresses=addresses,
        )
        for one in slices
    ]


def _on_bookies(one: Slice, options: SourceOptions) -> bool:
    """Whether bookies have all of a slice. What only tiered storage has is read through brokers, unless they are ruled
    out."""
    return options.read_mode == "bookies" or all(part.metadata for part in one.ranges)
