"""What a table looks like, before it is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from magnetar.spark import runtime
from magnetar.spark.errors import TopicMissing
from magnetar.spark.options.reading import SourceOptions, parse_source_options
from magnetar.spark.planning.planner import open_planner
from magnetar.spark.reading.table import Table, find_table
from magnetar.spark.shown_errors import shown_plainly
from magnetar.spark.values.spark_schema import struct_type_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def described(options: Mapping[str, str]) -> tuple[Table, StructType]:
    """The table, and Spark's columns for it."""
    with shown_plainly():
        parsed = parse_source_options(options)
        table = runtime.run(_find(parsed))
        return table, struct_type_of(table.columns(parsed))


async def _find(options: SourceOptions) -> Table:
    """What is not there has no part in it, as long as anything else says what columns there are: a stream may have read
    it before it was deleted. Those who read fail of it, or go on.

    Raises `TopicMissing` where nothing does."""
    planner = await open_planner(options)
    topics, missing = await planner.selected(options.filters)
    if missing and not topics and not options.raw_values:
        raise TopicMissing(
            f"{missing}, and so nothing says what columns it has. A stream that has read it before needs them from you "
            f"to {'go on' if not options.fail_on_data_loss else 'tell what is lost'}: .schema(…), or rawValues=true"
        )
    return await find_table(planner.cluster, options, topics)
