"""Audit of topics for compaction and deduplication: what a compaction would leave and save, what lies there twice.

    python -m magnetar.spark.jobs.audit --service-url pulsar://host:6650 --topic prices --json audit.json

Messages count as alike when key, value, event time and properties are: the numbers by which brokers tell repetitions
are not part of a table, and a producer that came back under another name would have had others anyway."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from magnetar.spark.jobs.audit_report import (
    CompactionOutcome,
    DuplicateGroup,
    Duplicates,
    Gap,
    Silence,
    TopicAudit,
    document,
    show,
)
from magnetar.spark.jobs.job import (
    ConnectionChoices,
    job_app,
    job_command,
    job_console,
    json_file_option,
    reader,
    spark_session,
    write_report,
)
from magnetar.spark.jobs.running import Topics, TopicsPattern, moment, selection_options
from rich.console import Console

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SAMPLES_KEPT: Final = 20
GAPS_KEPT: Final = 1_000
MINUTE_MS: Final = 60_000
SOON_MS: Final = 60_000
"""A producer's retries come within its send timeout, 30 s unless set otherwise."""

app = job_app()


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditJob:
    """What an audit looks at."""

    choices: ConnectionChoices
    topic: Topics = None
    topics_pattern: TopicsPattern = ""
    keyless_stay: Annotated[
        bool,
        typer.Option(
            "--keyless-stay/--keyless-go",
            help="What a compaction does with messages without a key: as the brokers' topicCompactionRetainNullKey.",
        ),
    ] = False
    json_file: Annotated[Path | None, json_file_option("audit")] = None


def run_audit(spark: SparkSession, job: AuditJob) -> list[TopicAudit]:
    """An audit of each topic that has messages, by name. Raises `BadOption` and what reading fails of."""
    options = {"rawValues": "true", "allowDifferentTopicSchemas": "true"}
    rows = reader(spark, job.choices).options(**selection_options(job.topic, job.topics_pattern), **options).load()
    messages = messages_of(rows).persist()
    try:
        overview = {row["topic"]: row for row in _overview(messages).collect()}
        keys = {row["topic"]: row for row in _keys(messages).collect()}
        duplicates = _duplicates(messages)
        gaps = _gaps(messages)
        silences = _silences(messages)
    finally:
        messages.unpersist()
    return [
        TopicAudit(
            topic=topic,
            messages=row["messages"],
            bytes=row["bytes"],
            first=moment(row["first"]),
            last=moment(row["last"]),
            compaction=_compaction(row, keys.get(topic), keyless_stay=job.keyless_stay),
            duplicates=duplicates.get(topic, _NONE_ALIKE),
            gaps=gaps.get(topic, ()),
            silence=silences.get(topic),
        )
        for topic, row in sorted(overview.items())
    ]


def messages_of(rows: DataFrame) -> DataFrame:
    """What is looked at of each message: of values the length and a hash of them."""
    from pyspark.sql import functions as f

    place = f.split("__messageId", ":")
    properties = f.array_sort(f.map_entries("__messageProperties"))
    size = (
        f.coalesce(f.octet_length("value"), f.lit(0))
        + f.coalesce(f.octet_length("__key"), f.lit(0))
        + f.coalesce(f.octet_length(f.array_join(f.map_keys("__messageProperties"), "")), f.lit(0))
        + f.coalesce(f.octet_length(f.array_join(f.map_values("__messageProperties"), "")), f.lit(0))
    )
    return rows.select(
        f.regexp_replace("__topic", r"-partition-\d+$", "").alias("topic"),
        f.col("__topic").alias("part"),
        f.col("__key").alias("key"),
        f.col("__messageId").alias("id"),
        place[0].cast("bigint").alias("ledger"),
        place[1].cast("bigint").alias("entry"),
        f.coalesce(f.get(place, f.lit(2)).cast("int"), f.lit(0)).alias("index"),
        f.unix_millis("__publishTime").alias("published"),
        size.cast("bigint").alias("size"),
        (f.coalesce(f.octet_length("value"), f.lit(0)) == 0).alias("empty"),
        # An absent value or key is none that is empty; without the flags both would hash alike.
        f.xxhash64(
            "value", f.isnull("value"), "__key", f.isnull("__key"), f.unix_millis("__eventTime"), f.to_json(properties)
        ).alias("hash"),
    )


def _overview(messages: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    keyless = f.isnull("key")
    return messages.groupBy("topic").agg(
        f.count("*").alias("messages"),
        f.sum("size").alias("bytes"),
        f.min("published").alias("first"),
        f.max("published").alias("last"),
        f.count_if(keyless).alias("keyless"),
        f.coalesce(f.sum(f.when(keyless, f.col("size"))), f.lit(0)).alias("keyless_bytes"),
        f.count_if(~keyless & f.col("empty")).alias("tombstones"),
    )


def _keys(messages: DataFrame) -> DataFrame:
    """Each partition is compacted by itself."""
    from pyspark.sql import functions as f

    newest = (
        messages.where(f.isnotnull("key"))
        .groupBy("topic", "part", "key")
        .agg(f.max_by(f.struct("size", "empty"), f.struct("ledger", "entry", "index")).alias("newest"))
    )
    gone: Column = f.col("newest.empty")
    return newest.groupBy("topic").agg(
        f.count("*").alias("keys"),
        f.count_if(gone).alias("deleted"),
        f.coalesce(f.sum(f.when(~gone, f.col("newest.size"))), f.lit(0)).alias("bytes_left"),
    )


def _compaction(overview: Any, keys: Any, *, keyless_stay: bool) -> CompactionOutcome:
    found, deleted, bytes_left = (keys["keys"], keys["deleted"], keys["bytes_left"]) if keys is not None else (0, 0, 0)
    bytes_left += overview["keyless_bytes"] if keyless_stay else 0
    return CompactionOutcome(
        keys=found,
        messages_left=found - deleted + (overview["keyless"] if keyless_stay else 0),
        bytes_left=bytes_left,
        bytes_saved=overview["bytes"] - bytes_left,
        tombstones=overview["tombstones"],
        keys_deleted=deleted,
        keyless=overview["keyless"],
        keyless_bytes=overview["keyless_bytes"],
        keyless_stay=keyless_stay,
    )


_NONE_ALIKE: Final = Duplicates(messages=0, bytes=0, groups=0, soon=0, soon_ms=SOON_MS, samples=())


def _duplicates(messages: DataFrame) -> Mapping[str, Duplicates]:
    from pyspark.sql import functions as f

    order = f.struct("ledger", "entry", "index")
    alike = (
        messages.groupBy("topic", "part", "hash")
        .agg(
            f.count("*").alias("copies"),
            f.max("size").alias("size"),
            f.min_by("key", order).alias("key"),
            f.min_by("id", order).alias("first_id"),
            f.max_by("id", order).alias("last_id"),
            (f.max("published") - f.min("published")).alias("apart"),
        )
        .where("copies > 1")
        .persist()
    )
    try:
        totals = alike.groupBy("topic").agg(
            f.sum(f.col("copies") - 1),
            f.sum((f.col("copies") - 1) * f.col("size")),
            f.count("*"),
            f.count_if(f.col("apart") <= SOON_MS),
        )
        samples: dict[str, list[DuplicateGroup]] = {}
        for row in alike.orderBy(f.desc("copies"), "topic", "first_id").limit(SAMPLES_KEPT).collect():
            group = DuplicateGroup(
                topic=row["part"],
                copies=row["copies"],
                key=row["key"],
                first_message_id=row["first_id"],
                last_message_id=row["last_id"],
                apart_ms=row["apart"] or 0,
            )
            samples.setdefault(row["topic"], []).append(group)
        return {
            row[0]: Duplicates(
                messages=row[1],
                bytes=row[2],
                groups=row[3],
                soon=row[4],
                soon_ms=SOON_MS,
                samples=samples.get(row[0], ()),
            )
            for row in totals.collect()
        }
    finally:
        alike.unpersist()


def _gaps(messages: DataFrame) -> Mapping[str, Sequence[Gap]]:
    from pyspark.sql import functions as f

    span = f.max("entry") - f.min("entry") + 1
    found: dict[str, list[Gap]] = {}
    rows = (
        messages.groupBy("topic", "part", "ledger")
        .agg(span.alias("entries"), (span - f.countDistinct("entry")).alias("missing"))
        .where("missing > 0")
        .orderBy(f.desc("missing"), "part", "ledger")
        .limit(GAPS_KEPT)
    )
    for row in rows.collect():
        gap = Gap(topic=row["part"], ledger_id=row["ledger"], entries_missing=row["missing"], of_entries=row["entries"])
        found.setdefault(row["topic"], []).append(gap)
    return found


def _silences(messages: DataFrame) -> Mapping[str, Silence]:
    """To the minute: that is as many rows a topic as there are minutes, and no sorting of all messages."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    minute = f.floor(f.col("published") / MINUTE_MS)
    before = f.lag("last").over(Window.partitionBy("topic").orderBy("minute"))
    apart = (
        messages.groupBy("topic", minute.alias("minute"))
        .agg(f.min("published").alias("first"), f.max("published").alias("last"))
        .withColumn("before", before)
        .where("before is not null")
    )
    longest = apart.groupBy("topic").agg(f.max_by(f.struct("before", "first"), f.col("first") - f.col("before")))
    return {row[0]: Silence(begin=moment(row[1][0]), end=moment(row[1][1])) for row in longest.collect()}


@job_command(app)
def main(job: AuditJob) -> None:
    """Tell what a compaction of topics would leave and save, what lies in them twice, and where they have gaps.

    Exit code: 0 told, 1 failed, 2 wrong options.

    [dim]Examples:[/]
      magnetar-spark audit --topic prices
      magnetar-spark audit --topics-pattern 'shop/orders/.*' --json audit.json
    """
    selection_options(job.topic, job.topics_pattern)  # Wrong options are told of before Spark starts.
    with Console(stderr=True).status("reading topics"):
        audits = run_audit(spark_session("audit"), job)
    if write_report(document(audits), job.json_file):
        show(audits, job_console())
        if not audits:
            Console().print("[bold]no messages[/bold] in these topics")


if __name__ == "__main__":
    app()
