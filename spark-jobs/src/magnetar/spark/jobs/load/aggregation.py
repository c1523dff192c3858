"""From the topic of the load history to small tables, in Spark: what is a message for each broker and round becomes a
row for each broker and hour, and for each bundle and day."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from magnetar.spark.errors import BadOption, SparkSourceError
from magnetar.spark.jobs.load.model import HOURS_PER_DAY, BrokerHour, BundleDay, LoadHistory

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

HOUR_MS: Final = 3_600_000

HISTORY_SCHEMA: Final = (
    "takenMillis bigint, brokerId string, "
    "cpuUsagePercent double, cpuLimitPercent double, memoryUsageMib double, memoryLimitMib double, "
    "bandwidthInUsageKbits double, bandwidthInLimitKbits double, "
    "bandwidthOutUsageKbits double, bandwidthOutLimitKbits double, "
    "msgRateIn double, msgRateOut double, msgThroughputIn double, msgThroughputOut double, "
    "numTopics int, numProducers int, numConsumers int, numBundles int, "
    "bundles array<struct<namespace: string, range: string, msgRateIn: double, msgRateOut: double, "
    "msgThroughputIn: double, msgThroughputOut: double, topics: int, producers: int, consumers: int>>"
)
"""What is used of the columns that `magnetar.broker.load.history` publishes; there may be others."""


WHO_WRITES: Final = (
    "the leading broker writes it every few minutes where loadBalancerHistoryEnabled is true, which it is unless "
    "switched off or in a standalone"
)


class NoLoadHistory(SparkSourceError):
    """There is nothing to plan by."""


def aggregate(history: DataFrame) -> LoadHistory:
    """The tables. `history` is read once. `NoLoadHistory`, `BadOption` when it is some other topic's."""
    from pyspark.sql import functions as f

    wanted = [part.partition(" ")[0] for part in HISTORY_SCHEMA.split(", ") if ":" not in part]
    wanted.append("bundles")
    missing = [name for name in dict.fromkeys(wanted) if name not in history.columns]
    if missing:
        raise BadOption(f"the topic is no load history: it has no column {', '.join(missing)}")
    rows = (
        history.select(*dict.fromkeys(wanted))
        .where(f.col("takenMillis").isNotNull())
        # A leader that died while it wrote may have written a round twice.
        .dropDuplicates(["brokerId", "takenMillis"])
        # Else each table is made in as many tasks as shuffles have partitions, 200 for some megabytes.
        .coalesce(history.sparkSession.sparkContext.defaultParallelism)
        .withColumn("hour", f.floor(f.col("takenMillis") / HOUR_MS))
        .persist()
    )
    try:
        broker_hours = _broker_hours(rows)
        if not broker_hours:
            raise NoLoadHistory(f"the topic holds no load history yet: {WHO_WRITES}")
        return LoadHistory(broker_hours=broker_hours, bundle_days=_bundle_days(rows))
    finally:
        rows.unpersist()


def _broker_hours(rows: DataFrame) -> list[BrokerHour]:
    from pyspark.sql import functions as f

    def mean(name: str) -> Column:
        return f.avg(f.coalesce(f.col(name), f.lit(0.0)))

    found = rows.groupBy("brokerId", "hour").agg(
        f.countDistinct("takenMillis"),
        mean("cpuUsagePercent"),
        mean("cpuLimitPercent"),
        mean("memoryUsageMib"),
        mean("memoryLimitMib"),
        mean("bandwidthInUsageKbits"),
        mean("bandwidthInLimitKbits"),
        mean("bandwidthOutUsageKbits"),
        mean("bandwidthOutLimitKbits"),
        mean("msgRateIn"),
        mean("msgRateOut"),
        mean("msgThroughputIn"),
        mean("msgThroughputOut"),
        f.max("numTopics"),
        f.max(f.col("numProducers") + f.col("numConsumers")),
        f.max("numBundles"),
    )
    return sorted(BrokerHour(*row) for row in found.collect())


def _bundle_days(rows: DataFrame) -> list[BundleDay]:
    from pyspark.sql import functions as f

    rounds = rows.groupBy("hour").agg(f.countDistinct("takenMillis").alias("rounds"))
    each = rows.select("hour", "takenMillis", f.explode("bundles").alias("bundle")).select(
        "hour",
        f.col("bundle.namespace").alias("namespace"),
        f.col("bundle.range").alias("range"),
        (f.col("bundle.msgRateIn") + f.col("bundle.msgRateOut")).alias("rate"),
        (f.col("bundle.msgThroughputIn") + f.col("bundle.msgThroughputOut")).alias("throughput"),
        f.col("bundle.msgThroughputIn").alias("throughputIn"),
        f.col("bundle.topics").alias("topics"),
        (f.col("bundle.producers") + f.col("bundle.consumers")).alias("sessions"),
    )
    # A bundle is told only while it has a topic: what is missing of an hour's rounds counts as nothing.
    hours = (
        each.groupBy("namespace", "range", "hour")
        .agg(
            f.sum("rate").alias("rate"),
            f.sum("throughput").alias("throughput"),
            f.sum("throughputIn").alias("throughputIn"),
            f.max("topics").alias("topics"),
            f.max("sessions").alias("sessions"),
        )
        .join(f.broadcast(rounds), "hour")
    )
    found = (
        hours.withColumn("day", f.floor(f.col("hour") / HOURS_PER_DAY))
        .groupBy("namespace", "range", "day")
        .agg(
            f.max(f.col("rate") / f.col("rounds")),
            f.max(f.col("throughput") / f.col("rounds")),
            f.sum(f.col("throughputIn") / f.col("rounds")),
            f.max("topics"),
            f.max("sessions"),
            f.max("hour"),
        )
    )
    return sorted(BundleDay(*row) for row in found.collect())
