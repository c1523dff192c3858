from __future__ import annotations

import json
import pickle
from typing import cast

from magnetar.spark.cluster import ClusterConnections
from magnetar.spark.options.pushdown import EVERYTHING, MessageFilters
from magnetar.spark.options.reading import parse_source_options
from magnetar.spark.planning.planner import ReadPlanner
from magnetar.spark.positions import MessagePosition
from magnetar.spark.reading.table import Table
from magnetar.spark.reading.task import ReadTask
from magnetar.spark.reading.tasks import tasks_of
from magnetar.spark.slices import LedgerRange, Slice
from magnetar.spark.values.api import SchemaDefinition, SchemaVersions
from pyspark.sql.types import BinaryType, StructType

SCHEMA = StructType().add("value", BinaryType())


def names(count: int) -> list[str]:
    return [f"persistent://public/default/t{number}-partition-0" for number in range(count)]


async def tasks(count: int, filters: MessageFilters = EVERYTHING) -> list[ReadTask]:
    """One for each of so many topics."""
    topics = names(count)
    places = json.dumps(dict.fromkeys(topics, "1:0"))
    options = parse_source_options(
        {"service.url": "pulsar://h:1", "topics": ",".join(topics), "token": "secret", "startingOffsets": places}
    )
    definition = SchemaDefinition(type=2, data=b"{}" * 100, version=bytes(8))
    table = Table(
        definition=definition,
        versions={topic.removesuffix("-partition-0"): SchemaVersions([definition]) for topic in topics},
    )
    planner = ReadPlanner(options, cast("ClusterConnections", None), direct=False)
    part = LedgerRange(ledger_id=1, first_entry_id=0, last_entry_id=9, size_bytes=100)
    slices = [
        Slice(topic=topic, first=MessagePosition(1, 0), end=MessagePosition(1, 10), ranges=(part,)) for topic in topics
    ]
    return await tasks_of(slices, planner, table, filters, SCHEMA)


async def test_a_task_is_as_large_however_many_topics_there_are() -> None:
    wanted = MessageFilters(topics=frozenset(names(100)), keys=frozenset([b"k"]))
    one, many = (await tasks(1, wanted))[0], (await tasks(100, wanted))[0]
    assert abs(len(pickle.dumps(many)) - len(pickle.dumps(one))) < 100
    # What it needs is there.
    assert many.filters.keys == frozenset([b"k"])
    assert many.options.connection.token == "secret"
    assert list(many.table.versions) == ["persistent://public/default/t0"]
    assert "secret" not in repr(many)
