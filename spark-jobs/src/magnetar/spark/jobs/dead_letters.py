"""Dead-letter report: what lies in dead-letter topics, whose it was, why it is there, since when.

    python -m magnetar.spark.jobs.dead_letters --service-url pulsar://host:6650 --namespace shop/orders

Clients that give a message up write it to `<topic>-<subscription>-DLQ` with properties that say where it came from
(Java's RetryMessageUtil). Why it was given up they do not say; applications do, in properties of names that each has
chosen: --reason-property names further ones. Reasons that differ by numbers and ids alone count as the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from magnetar.spark import runtime
from magnetar.spark.errors import TopicMissing
from magnetar.spark.jobs.dead_letter_report import (
    NO_REASON,
    UNKNOWN,
    DeadLetters,
    Origin,
    OriginGroup,
    ReasonGroup,
    Sample,
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
from magnetar.spark.jobs.running import moment, whole_topic
from magnetar.spark.options.reading import parse_source_options
from magnetar.spark.planning.planner import open_planner
from rich.console import Console

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

DEFAULT_PATTERN: Final = ".*-DLQ"

REAL_TOPIC: Final = "REAL_TOPIC"
REAL_SUBSCRIPTION: Final = "REAL_SUBSCRIPTION"
ORIGIN_MESSAGE_IDS: Final = ("ORIGIN_MESSAGE_ID", "ORIGIN_MESSAGE_IDY_TIME")
"""Clients write both; the second name is a slip that Java's client stays compatible with (RetryMessageUtil)."""
RECONSUME_TIMES: Final = "RECONSUMETIMES"

REASON_PROPERTIES: Final = (
    "EXCEPTION_MESSAGE",
    "exception_message",
    "exceptionMessage",
    "exception-message",
    "x-exception-message",
    "x-exception-stacktrace",
    "EXCEPTION",
    "Exception",
    "exception",
    "ERROR_MESSAGE",
    "error_message",
    "errorMessage",
    "ERROR",
    "Error",
    "error",
    "FAILURE_REASON",
    "failure_reason",
    "REASON",
    "Reason",
    "reason",
    "CAUSE",
    "cause",
)
"""Names that applications are seen to use, Spring Cloud Stream among them; the first one that a message has counts."""

REASON_LENGTH_MAX: Final = 200
REASONS_KEPT_MAX: Final = 1_000
"""Reasons in the report, of all topics together; where each message has its own, most are counted only."""

app = job_app()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterJob:
    """What a report on dead letters looks at."""

    choices: ConnectionChoices
    namespace: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="tenant/namespace; public/default by default. May be repeated."),
    ] = None
    pattern: Annotated[
        str, typer.Option(metavar="REGEX", help="A regular expression for the dead-letter topics' own names.")
    ] = DEFAULT_PATTERN
    reason_property: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A property that says why a message was given up, before those of well-known names. May be repeated.",
        ),
    ] = None
    published_from: Annotated[
        str, typer.Option(metavar="TIME", help="Only what became a dead letter then or later: 2026-03-01T12:00:00Z.")
    ] = ""
    published_before: Annotated[str, typer.Option(metavar="TIME", help="Only what became one before.")] = ""
    json_file: Annotated[Path | None, json_file_option("report")] = None
    top: Annotated[int, typer.Option(min=1, metavar="NUMBER", help="How many reasons of each topic are shown.")] = 10


def run_dead_letters(spark: SparkSession, job: DeadLetterJob) -> DeadLetters:
    """Read all that match. Raises `BadOption` and what reading fails of."""
    topics = runtime.run(_topics(job))
    if not topics:
        return DeadLetters(topics=[], groups=[])
    options = {"topics": json.dumps(topics), "rawValues": "true"}
    if job.published_from:
        options["publishTimeFrom"] = job.published_from
    if job.published_before:
        options["publishTimeTo"] = job.published_before
    options["columns"] = "__topic,__messageId,__publishTime,__messageProperties"
    rows = reader(spark, job.choices).options(**options).load()
    found = by_reason(rows, (*(job.reason_property or ()), *REASON_PROPERTIES)).persist()
    try:
        return DeadLetters(topics=topics, groups=_groups(found))
    finally:
        found.unpersist()


def by_reason(rows: DataFrame, names: Sequence[str]) -> DataFrame:
    """A row for each topic, subscription, dead-letter topic and reason."""
    from pyspark.sql import functions as f

    def told(*names: str) -> Column:
        return f.coalesce(*(f.nullif(f.col("__messageProperties")[name], f.lit("")) for name in names))

    partition = r"-partition-\d+$"
    dead_letter_topic = f.regexp_replace("__topic", partition, "")
    topic = f.regexp_replace(told(REAL_TOPIC), partition, "")
    # <topic>-<subscription>-DLQ, unless another name was chosen.
    rest = f.substring(dead_letter_topic, f.length(topic) + f.lit(2), f.length(dead_letter_topic))
    by_name = f.when(
        f.startswith(dead_letter_topic, f.concat(topic, f.lit("-"))) & rest.rlike("(?i)-dlq$"),
        f.regexp_replace(rest, "(?i)-dlq$", ""),
    )
    sample = f.struct(f.col("__messageId").alias("id"), told(*ORIGIN_MESSAGE_IDS).alias("origin"), "published")
    return (
        rows.withColumn("published", f.unix_millis("__publishTime"))
        .select(
            f.coalesce(topic, f.lit(UNKNOWN)).alias("topic"),
            f.coalesce(told(REAL_SUBSCRIPTION), by_name, f.lit(UNKNOWN)).alias("subscription"),
            dead_letter_topic.alias("dead_letter_topic"),
            _without_numbers(told(*names)).alias("reason"),
            told(RECONSUME_TIMES).try_cast("int").alias("tries"),
            "published",
            sample.alias("sample"),
        )
        .groupBy("topic", "subscription", "dead_letter_topic", "reason")
        .agg(
            f.count("*").alias("messages"),
            f.max("tries").alias("tries"),
            f.min_by("sample", "published").alias("oldest"),
            f.max_by("sample", "published").alias("newest"),
        )
    )


def _without_numbers(reason: Column) -> Column:
    """The first line, without what differs from message to message: ids and numbers are #."""
    from pyspark.sql import functions as f

    line = f.substring_index(f.trim(reason), "\n", 1)
    ids = f.regexp_replace(line, r"\b(?=[0-9a-fA-F-]*\d)[0-9a-fA-F][0-9a-fA-F-]{7,}\b", "#")
    plain = f.regexp_replace(ids, r"\d+(\.\d+)?", "#")
    return f.coalesce(f.nullif(f.substring(plain, 1, REASON_LENGTH_MAX), f.lit("")), f.lit(NO_REASON))


def _groups(found: DataFrame) -> list[OriginGroup]:
    from pyspark.sql import functions as f

    names = ("topic", "subscription", "dead_letter_topic")
    totals = found.groupBy(*names).agg(
        f.sum("messages"), f.count("*"), f.min("oldest.published"), f.max("newest.published")
    )
    reasons: dict[Origin, list[ReasonGroup]] = {}
    for row in found.orderBy(f.desc("messages"), "reason").limit(REASONS_KEPT_MAX).collect():
        origin = Origin(topic=row[0], subscription=row[1], dead_letter_topic=row[2])
        reasons.setdefault(origin, []).append(
            ReasonGroup(
                reason=row["reason"],
                messages=row["messages"],
                reconsumed_max=row["tries"],
                oldest=_sample(row["oldest"]),
                newest=_sample(row["newest"]),
            )
        )
    groups: list[OriginGroup] = []
    for row in totals.collect():
        origin = Origin(topic=row[0], subscription=row[1], dead_letter_topic=row[2])
        those = tuple(reasons.get(origin, ()))
        groups.append(
            OriginGroup(
                origin=origin,
                messages=row[3],
                reasons_found=row[4],
                first=moment(row[5]),
                last=moment(row[6]),
                reasons=those,
            )
        )
    return sorted(groups, key=lambda one: (-one.messages, one.origin.topic, one.origin.subscription))


def _sample(row: Any) -> Sample:
    return Sample(message_id=row["id"], origin_message_id=row["origin"], published=moment(row["published"]))


async def _topics(job: DeadLetterJob) -> list[str]:
    """Those that there are, without their partitions."""
    found: set[str] = set()
    for namespace in job.namespace or ("public/default",):
        pattern = f"persistent://{namespace.strip('/')}/{job.pattern}"
        options = parse_source_options({**job.choices.options(), "topicsPattern": pattern})
        planner = await open_planner(options)
        try:
            found.update(map(whole_topic, await planner.topics(options.filters)))
        except TopicMissing:
            continue
    return sorted(found)


@job_command(app)
def main(job: DeadLetterJob) -> None:
    """Tell what lies in dead-letter topics: of which topics and subscriptions, why, since when.

    Exit code: 0 told (also where there are none), 1 failed, 2 wrong options.

    [dim]Examples:[/]
      magnetar-spark dead-letters --namespace shop/orders
      magnetar-spark dead-letters --namespace shop/orders \\\\
        --published-from 2026-03-01 --json - | jq .messages
    """
    with Console(stderr=True).status("reading topics"):
        report = run_dead_letters(spark_session("dead-letters"), job)
    if write_report(document(report), job.json_file):
        show(report, job_console(), job.top)


if __name__ == "__main__":
    app()
