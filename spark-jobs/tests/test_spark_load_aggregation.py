"""A load history goes through Spark and comes out as it would be summed up by hand."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from magnetar.broker.load.history import schema_definition
from magnetar.spark.errors import BadOption
from magnetar.spark.jobs.load.aggregation import HISTORY_SCHEMA, NoLoadHistory, aggregate
from magnetar.spark.jobs.load.capacity import PlanOptions
from magnetar.spark.jobs.load.plan import make_plan
from spark_fakes.early_workers import early_workers
from spark_fakes.loads import EXAMPLE, lived, messages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# On a machine that does a lot else, the session alone may take more than a minute.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
MADE = replace(EXAMPLE, days=2)


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    pyspark_sql = pytest.importorskip("pyspark.sql")
    builder = pyspark_sql.SparkSession.builder.master("local[1]").appName("load-aggregation")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }.items():
        builder = builder.config(name, value)
    with early_workers():
        session = builder.getOrCreate()
    yield session
    session.stop()


def test_every_column_that_is_used_is_published() -> None:
    names = {name.split(" ")[0] for name in HISTORY_SCHEMA.split(", bundles ")[0].split(", ")}
    published = {field["name"] for field in json.loads(schema_definition())["fields"]}
    assert names <= published


def test_spark_sums_up_what_brokers_published(spark: SparkSession) -> None:
    rows = list(messages(MADE, rounds=4))
    # Some rounds come twice, in any order.
    rows += rows[: len(rows) // 3]
    random.Random(1).shuffle(rows)
    found = aggregate(spark.createDataFrame(pa.Table.from_pylist(rows)))
    expected = lived(MADE)
    assert len(found.broker_hours) == len(expected.broker_hours)
    for ours, wanted in zip(found.broker_hours, expected.broker_hours, strict=True):
        assert ours[:2] == wanted[:2]
        assert ours.rounds == 4
        assert ours[3:] == pytest.approx(wanted[3:], rel=1e-9)
    assert len(found.bundle_days) == len(expected.bundle_days)
    for one, other in zip(found.bundle_days, expected.bundle_days, strict=True):
        assert one[:3] == other[:3]
        assert one[3:] == pytest.approx(other[3:], rel=1e-9)
    assert make_plan(found, PlanOptions()).brokers.needed == make_plan(expected, PlanOptions()).brokers.needed


def test_another_topic_is_none_and_an_empty_one_says_so(spark: SparkSession) -> None:
    with pytest.raises(BadOption, match="no column takenMillis"):
        aggregate(spark.createDataFrame(pa.table({"value": [1]})))
    with pytest.raises(NoLoadHistory, match="loadBalancerHistoryEnabled"):
        aggregate(spark.createDataFrame(pa.Table.from_pylist(list(messages(replace(MADE, days=1)))).slice(0, 0)))
