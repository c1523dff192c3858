"""Replay: an archive of Parquet files back to topics, in order, each message once.

    python -m magnetar.spark.jobs.replay --service-url pulsar://host:6650 --archive s3a://bucket/orders --topic orders-2

Messages of one archived topic (partition) are written one after the other, as they lay in it: those of one key keep
their order, and so do those without a key. Keys, properties and event times are kept; message ids and publish times are
new. A replay that failed half-way goes on with --resume and what it printed: what is there already is not stored
again.

A key that was given as bytes comes back as such. (Archives from before `__keyIsBytes` was a column of theirs tell it
only where the topic's schema says that keys are bytes: KEY_VALUE, separated.) To hold a replay back, limit the topic's
publish rate in its policies."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Final

import typer
from magnetar.client.client import PulsarClient
from magnetar.client.producer import ProducerOptions
from magnetar.core.errors import MagnetarError
from magnetar.core.topic_name import TopicName
from magnetar.spark import runtime
from magnetar.spark.brokers.catalog import schema_definitions
from magnetar.spark.brokers.errors import user_error
from magnetar.spark.cluster import cluster_of
from magnetar.spark.errors import BadOption
from magnetar.spark.jobs.archive_layout import DATE_COLUMN, DESCRIPTION, TOPIC_FOLDER_COLUMN, ArchiveDescription
from magnetar.spark.jobs.archive_parts import ArchivePart, part_of_archive
from magnetar.spark.jobs.files import SparkFiles, under
from magnetar.spark.jobs.job import (
    FORMAT,
    ConnectionChoices,
    job_app,
    job_command,
    job_console,
    spark_session,
    write_choices,
)
from magnetar.spark.jobs.replay_plan import (
    ArchivedLedger,
    ReplayRound,
    new_name,
    rounds_of,
    schema_of_target,
    targets_of,
    tasks_in,
    topics_with_keys_apart,
)
from magnetar.spark.jobs.running import moment, short_topic, whole, whole_topic
from magnetar.spark.message_keys import KEY_IS_BYTES
from magnetar.spark.options.parsing import TIME_FORMS, parse_time_ms
from magnetar.spark.options.pushdown import KEY
from magnetar.spark.sink.targets import wire_schema
from magnetar.spark.values.api import SchemaDefinition
from magnetar.wire.pulsar.enums import SchemaType
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

NEEDED: Final = ("__topic", "__messageId", "__publishTime")
ORDER: Final = ("__topic", "__ledger", "__entry", "__index")
"""The columns that a message's place is taken apart to; they are not written."""

app = job_app()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayJob:
    """What is replayed where."""

    choices: ConnectionChoices
    archive: Annotated[
        str, typer.Option(metavar="FOLDER", help="The archive's folder, or a part of it: …/publish_date=2026-03-01.")
    ]
    topic: Annotated[str, typer.Option(metavar="NAME", help="The topic that all messages go to.")] = ""
    namespace: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Instead of --topic, a tenant/namespace: messages go to the topic of their own name in there.",
        ),
    ] = ""
    from_topic: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only of this topic. May be repeated.")
    ] = None
    published_from: Annotated[
        str, typer.Option(metavar="TIME", help="Only messages published then or later: 2026-03-01T12:00:00Z.")
    ] = ""
    published_before: Annotated[str, typer.Option(metavar="TIME", help="Only messages published before.")] = ""
    keep_partitions: Annotated[
        bool,
        typer.Option(
            "--keep-partitions",
            help="Each message goes to the partition of the number that it came from, whatever its key says.",
        ),
    ] = False
    resume: Annotated[
        str, typer.Option(metavar="NAME", help="Go on with a replay that failed, by what it printed.")
    ] = ""

    def published_ms(self) -> tuple[int | None, int | None]:
        """From when on, and up to before when. Raises `BadOption`."""
        before_ms = time_option("--published-before", self.published_before)
        return time_option("--published-from", self.published_from), before_ms

    def cluster_options(self) -> ConnectionChoices:
        """How the cluster is reached, without what is for the sink."""
        return replace(self.choices, further=())

    def sink_options(self) -> dict[str, str]:
        """What is written by. --service-url says where, for all that is asked and written. Raises `BadOption`."""
        further = self.choices.further_options()
        further.pop("service.url", None)
        return {**self.cluster_options().options(), **further}


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What was written."""

    rows: int
    name: str
    """The name under which the rows were written, by which the replay can be resumed."""


def run_replay(spark: SparkSession, job: ReplayJob, console: Console) -> Replayed:
    """All rounds. Raises `BadOption`, and what writing fails of."""
    files = SparkFiles(spark)
    archived = part_of_archive(files, job.archive)
    rows = archived_rows(spark, job, archived)
    ledgers = archived_ledgers(rows)
    rounds = rounds_of(ledgers)
    name = job.resume or new_name(uuid.uuid4().hex[:12], rounds)
    if not ledgers:
        return Replayed(rows=0, name=name)
    targets = targets_of({ledger.topic for ledger in ledgers}, job.topic, job.namespace)
    description = read_description(files, archived.archive)
    schemas = schema_of_target(description, targets)
    runtime.run(_prepare(job, schemas))
    raw = description is not None and description.raw
    apart = topics_with_keys_apart(schemas, targets) if raw else ()
    console.print(_table(ledgers, targets))
    console.print(f"should this replay fail, go on with --resume {name}", highlight=False)
    for number, part in enumerate(rounds):
        wanted = rows if len(rounds) == 1 else part_of(rows, part)
        frame = outgoing(in_order(wanted, tasks_in(name) or part.tasks), job, targets, keys_apart=apart)
        options = {**job.sink_options(), "writeId": f"replay-{name}-{number}"}
        if raw:
            options["rawValues"] = "true"
        frame.write.format(FORMAT).options(**options).mode("append").save()
        console.print(f"round {number + 1} of {len(rounds)}: {part.rows:,} messages", highlight=False)
    return Replayed(rows=sum(part.rows for part in rounds), name=name)


def archived_rows(spark: SparkSession, job: ReplayJob, archived: ArchivePart) -> DataFrame:
    """What of the archive is wanted, with its places as numbers. `BadOption` for what is no archive."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as f

    try:
        rows = spark.read.option("mergeSchema", "true").parquet(archived.archive)
    except AnalysisException as error:
        if error.getCondition() != "UNABLE_TO_INFER_SCHEMA":
            raise
        raise BadOption(f"{job.archive} is no archive of messages, or one without any: it has no files") from None
    within = archived.condition()
    rows = (rows if within is None else rows.where(within)).drop(DATE_COLUMN, TOPIC_FOLDER_COLUMN)
    missing = [name for name in NEEDED if name not in rows.columns]
    if missing:
        raise BadOption(f"{job.archive} is no archive of messages: it has no column {', '.join(missing)}")
    from_ms, before_ms = job.published_ms()
    if from_ms is not None:
        rows = rows.where(f.col("__publishTime") >= moment(from_ms))
    if before_ms is not None:
        rows = rows.where(f.col("__publishTime") < moment(before_ms))
    if job.from_topic:
        names = [str(TopicName.parse(topic)) for topic in job.from_topic]
        whole = f.regexp_replace("__topic", r"-partition-\d+$", "")
        rows = rows.where(whole.isin(names) | f.col("__topic").isin(names))
    place = f.split("__messageId", ":")
    return rows.withColumns(
        {
            "__ledger": place[0].cast("bigint"),
            "__entry": place[1].cast("bigint"),
            "__index": f.coalesce(f.get(place, f.lit(2)).cast("int"), f.lit(0)),
        }
    )


def archived_ledgers(rows: DataFrame) -> list[ArchivedLedger]:
    """What there is to be replayed."""
    from pyspark.sql import functions as f

    time_ms = f.unix_millis("__publishTime")
    found = rows.groupBy("__topic", "__ledger").agg(f.count("*"), f.min(time_ms), f.max(time_ms)).collect()
    return sorted(
        (ArchivedLedger(row[0], row[1], row[2], row[3] or 0, row[4] or 0) for row in found),
        key=lambda one: (one.topic, one.ledger_id),
    )


def part_of(rows: DataFrame, part: ReplayRound) -> DataFrame:
    """The rows of a round."""
    from pyspark.sql import functions as f

    wanted: Column = f.lit(False)
    for topic, (first, last) in part.ranges.items():
        wanted = wanted | ((f.col("__topic") == topic) & f.col("__ledger").between(first, last))
    return rows.where(wanted)


def in_order(rows: DataFrame, tasks: int) -> DataFrame:
    """Each topic (partition) in one task, in which its rows lie as they lay in it. What is in which task, and in which
    order, follows from the archive and the number of tasks alone."""
    return rows.repartition(tasks, "__topic").sortWithinPartitions(*ORDER)


def outgoing(rows: DataFrame, job: ReplayJob, targets: Mapping[str, str], *, keys_apart: Collection[str]) -> DataFrame:
    """The rows in the form that the sink takes. `keys_apart`: the archived topics whose keys are bytes where no column
    says it."""
    from pyspark.sql import functions as f

    if job.keep_partitions:
        number = f.regexp_extract("__topic", r"-partition-(\d+)$", 1)
        rows = rows.withColumn("__partition", f.when(number != "", number.cast("int")))
    if KEY in rows.columns:
        are_bytes = f.col("__topic").isin(*keys_apart) if keys_apart else f.lit(False)
        if KEY_IS_BYTES in rows.columns:
            are_bytes = f.coalesce(KEY_IS_BYTES, are_bytes)
        key = f.when(are_bytes, f.unbase64(KEY)).otherwise(f.encode(KEY, "UTF-8"))
        rows = rows.withColumns({KEY: key, KEY_IS_BYTES: are_bytes})
    places = f.create_map(*(f.lit(text) for pair in sorted(targets.items()) for text in pair))
    return rows.withColumn("__topic", places[f.col("__topic")]).drop(*ORDER[1:])


def read_description(files: SparkFiles, archive: str) -> ArchiveDescription | None:
    """What is written down about the archive; None where there is nothing."""
    path = under(archive, *DESCRIPTION)
    return ArchiveDescription.from_json(files.read(path)) if files.exists(path) else None


async def _prepare(job: ReplayJob, schemas: Mapping[str, SchemaDefinition | None]) -> None:
    """Topics without a schema get that of the archived ones."""
    connection = job.cluster_options().connection()
    client = (await cluster_of(connection)).client
    for target, schema in schemas.items():
        if schema is None or schema.type == SchemaType.NONE:
            continue
        name = TopicName.parse(target)
        try:
            if not await schema_definitions(client, name, connection):
                await _register(client, name, schema)
        except MagnetarError as error:
            raise user_error(error, f"preparing {target}", connection.service_url) from error


async def _register(client: PulsarClient, name: TopicName, schema: SchemaDefinition) -> None:
    partition = (await client.topics(name, create=True))[0]
    producer = await client.producer(partition, ProducerOptions(schema=wire_schema(schema)))
    await producer.close()


def _table(ledgers: Iterable[ArchivedLedger], targets: Mapping[str, str]) -> Table:
    rows: dict[tuple[str, str], list[ArchivedLedger]] = {}
    for ledger in ledgers:
        rows.setdefault((whole_topic(ledger.topic), targets[ledger.topic]), []).append(ledger)
    table = Table(
        whole("archived topic"), whole("to"), "messages", "published from", "until", box=None, padding=(0, 2, 0, 0)
    )
    for (topic, target), found in sorted(rows.items()):
        first, last = min(one.first_ms for one in found), max(one.last_ms for one in found)
        table.add_row(
            short_topic(topic),
            short_topic(target),
            f"{sum(one.rows for one in found):,}",
            f"{moment(first):%Y-%m-%d %H:%M:%S}",
            f"{moment(last):%Y-%m-%d %H:%M:%S}",
        )
    return table


def time_option(name: str, text: str) -> int | None:
    """A point in time that a command was told. `BadOption`."""
    if not text:
        return None
    time_ms = parse_time_ms(text)
    if time_ms is None:
        raise BadOption(f"{name} {text!r} is not understood; {TIME_FORMS}")
    return time_ms


@job_command(app, write_choices)
def main(job: ReplayJob) -> None:
    """Write an archive of Parquet files back to topics: in order, each message once.

    Topics need deduplication, or --option deliveryGuarantee=at-least-once.

    Exit code: 0 written, 1 failed (--resume goes on), 2 wrong options.

    [dim]Examples:[/]
      magnetar-spark replay --archive archive/orders --topic orders-again
      magnetar-spark replay --archive s3a://bucket/shop --namespace shop/copy \\\\
        --published-from 2026-03-01
    """
    console = job_console()
    # What is wrong is told of before Spark starts.
    job.sink_options()
    job.published_ms()
    targets_of((), job.topic, job.namespace)
    done = run_replay(spark_session("replay"), job, console)
    console.print(f"[bold]replayed[/bold] {done.rows:,} messages of {job.archive}", highlight=False)


if __name__ == "__main__":
    app()
