"""Archive: topics to Parquet, each message once, a run going on where the one before ended.

    python -m magnetar.spark.jobs.archive --service-url pulsar://host:6650 --topic orders --output s3a://bucket/orders

writes what is there and ends; run again (by cron, say), it adds what has come since. With --continuous 1min it goes on
until it is stopped. Nothing is lost and nothing is twice however often a run dies, as long as archive and checkpoint
stay together; readers that go by Spark's manifest (Spark itself does) see whole micro-batches only."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, cast

import typer
from magnetar.core.topic_name import TopicName
from magnetar.spark import runtime
from magnetar.spark.brokers.catalog import schema_definitions
from magnetar.spark.errors import BadOption, TopicMissing
from magnetar.spark.jobs.archive_layout import (
    CHECKPOINT,
    DATE_COLUMN,
    DESCRIPTION,
    SINK_LOG,
    TOPIC_FOLDER_COLUMN,
    ArchiveDescription,
    check_beginnings,
    check_columns,
    partition_columns,
)
from magnetar.spark.jobs.files import SparkFiles, under
from magnetar.spark.jobs.job import (
    ConnectionChoices,
    job_app,
    job_command,
    job_console,
    spark_session,
    stream_reader,
)
from magnetar.spark.jobs.running import (
    SIZES_PANEL,
    BytesPerBatch,
    Continuous,
    StartingOffsets,
    Topics,
    TopicsPattern,
    offsets_reached,
    offsets_table,
    run_to_end,
    selection_options,
    start,
    starting_options,
    whole_topic,
)
from magnetar.spark.message_keys import KEY_IS_BYTES
from magnetar.spark.options.parsing import Option, OptionValues
from magnetar.spark.options.pushdown import KEY
from magnetar.spark.options.reading import ALL_COLUMNS, OPTIONS, parse_source_options
from magnetar.spark.planning.planner import open_planner
from magnetar.spark.values.api import SchemaDefinition
from rich.console import Console

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COMPRESSIONS: Final = ("zstd", "snappy", "gzip", "lz4", "none")

SIZE_BYTES_MIN: Final = 1 << 20
"""The least size of micro-batches and files: smaller ones would be files without number."""

BYTES_PER_BATCH: Final = Option(
    name="--max-bytes-per-batch", default="2g", what="About how many stored bytes a micro-batch reads at the most."
)
FILE_BYTES: Final = Option(
    name="--file-bytes",
    default="128m",
    what="About how many stored bytes go into one file, where a micro-batch has as many.",
)

app = job_app()


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveJob:
    """What is to be archived where."""

    choices: ConnectionChoices
    output: Annotated[str, typer.Option(metavar="FOLDER", help="The archive's folder: a path, s3a://…, hdfs://…")]
    topic: Topics = None
    topics_pattern: TopicsPattern = ""
    checkpoint: Annotated[
        str,
        typer.Option(
            metavar="FOLDER",
            help="Where it stands how far topics are archived; by default _magnetar/checkpoint in the archive.",
        ),
    ] = ""
    raw: Annotated[
        bool,
        typer.Option(
            "--raw",
            help="Keep values as the bytes that were sent, in one column `value`, instead of columns decoded by the "
            "topic's schema: needed for topics of different schemas.",
        ),
    ] = False
    by_topic: Annotated[
        bool | None,
        typer.Option(
            "--by-topic/--no-by-topic", help="A folder for each topic; by default where several may be meant."
        ),
    ] = None
    starting_offsets: StartingOffsets = "earliest"
    subscription: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="A durable subscription that follows the archive, for it alone: it keeps what is not archived from "
            "being deleted, and shows how much that is. It may lag a micro-batch behind.",
        ),
    ] = ""
    continuous: Continuous = ""
    compression: Annotated[str, typer.Option(metavar="NAME", help=f"Of Parquet files: {', '.join(COMPRESSIONS)}.")] = (
        "zstd"
    )
    max_bytes_per_batch: BytesPerBatch = "2g"
    file_bytes: Annotated[
        str, typer.Option(metavar="SIZE", help=f"{FILE_BYTES.what} At least 1m.", rich_help_panel=SIZES_PANEL)
    ] = "128m"

    @property
    def selection(self) -> dict[str, str]:
        """Options of the data source that name the topics. Raises `BadOption`."""
        return selection_options(self.topic, self.topics_pattern)

    @property
    def checkpoint_path(self) -> str:
        """The folder of the checkpoint: the one that was named, or one in the archive."""
        return self.checkpoint or under(self.output, *CHECKPOINT)

    def source_options(self) -> dict[str, str]:
        """The data source's options for the stream that is read. Raises `BadOption`."""
        options = {
            **self.selection,
            **starting_options(self.starting_offsets, self.choices.further),
            "maxBytesPerTrigger": self.max_bytes_per_batch,
            "rawValues": str(self.raw).lower(),
            "keyType": "binary",
            "columns": self._columns(),
        }
        if self.subscription:
            options["predefinedSubscription"] = self.subscription
        return {**self.choices.options(), **options}

    def _columns(self) -> str:
        """Those that are asked for, with what keys need to be restored as they were."""
        asked = OptionValues(self.choices.options(), OPTIONS).names("columns") or (ALL_COLUMNS,)
        return json.dumps([*asked, KEY_IS_BYTES])

    def tasks_max(self) -> int:
        """In how many tasks a micro-batch is written, each of which makes a file a day (and topic). `BadOption`."""
        given = {BYTES_PER_BATCH.name: self.max_bytes_per_batch, FILE_BYTES.name: self.file_bytes}
        values = OptionValues(given, (BYTES_PER_BATCH, FILE_BYTES))
        batch, file = (cast("int", values.size_bytes(name, SIZE_BYTES_MIN)) for name in given)
        return max(1, math.ceil(batch / file))


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived:
    """What a run did."""

    rows: int
    batches: int
    offsets: dict[str, str]
    """By topic (partition) the first message that is not archived."""


def run_archive(spark: SparkSession, job: ArchiveJob, console: Console) -> Archived:
    """Archive until the end, or until told to stop. Raises `BadOption` and what the query failed of."""
    files = SparkFiles(spark)
    begun = bool(files.names(under(job.checkpoint_path, "offsets")))
    check_beginnings(
        planned=begun,
        committed=bool(files.names(under(job.checkpoint_path, "commits"))),
        files=files.exists(under(job.output, SINK_LOG)),
        checkpoint=job.checkpoint_path,
        output=job.output,
    )
    tasks_max = job.tasks_max()
    description = _described(files, job, begun=begun)
    # How Parquet has timestamps that others can read too.
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    rows = stream_reader(spark, job.choices).options(**job.source_options()).load()
    _write_down(files, under(job.output, *DESCRIPTION), description)
    writer = (
        with_folders(with_text_keys(rows), by_topic=description.by_topic)
        .coalesce(tasks_max)
        .writeStream.format("parquet")
        .option("path", job.output)
        .option("checkpointLocation", job.checkpoint_path)
        .option("compression", job.compression)
        .partitionBy(*partition_columns(by_topic=description.by_topic))
        .queryName("magnetar-archive")
    )
    seen = run_to_end(start(writer, job.continuous), console)
    return Archived(rows=seen.rows, batches=len(seen.rows_of), offsets=offsets_reached(files, job.checkpoint_path))


def with_text_keys(rows: DataFrame) -> DataFrame:
    """Keys as messages have them: texts, and base64 of those that were given as bytes, which __keyIsBytes tells."""
    from pyspark.sql import functions as f

    if KEY not in rows.columns:
        return rows.drop(KEY_IS_BYTES)
    return rows.withColumn(KEY, f.when(f.col(KEY_IS_BYTES), f.base64(KEY)).otherwise(f.col(KEY).cast("string")))


def with_folders(rows: DataFrame, *, by_topic: bool) -> DataFrame:
    """With the columns that folders are made of: a topic is tenant.namespace.topic there, which for exotic names is not
    exact; the column __topic is. `BadOption` where the topic has such columns itself."""
    from pyspark.sql import functions as f

    check_columns(rows.columns, partition_columns(by_topic=by_topic))
    if by_topic:
        name = f.regexp_replace(f.col("__topic"), r"^persistent://|-partition-\d+$", "")
        rows = rows.withColumn(TOPIC_FOLDER_COLUMN, f.translate(name, "/", "."))
    return rows.withColumn(DATE_COLUMN, f.to_date(f.col("__publishTime")))


def _described(files: SparkFiles, job: ArchiveJob, *, begun: bool) -> ArchiveDescription:
    schemas = runtime.run(_schemas(job, begun=begun))
    path = under(job.output, *DESCRIPTION)
    before = ArchiveDescription.from_json(files.read(path)) if files.exists(path) else None
    by_topic = job.by_topic
    if by_topic is None:
        by_topic = before.by_topic if before is not None else "topic" not in job.selection
    now = ArchiveDescription(raw=job.raw, by_topic=by_topic, schemas=schemas)
    return before.joined(now) if before is not None else now


def _write_down(files: SparkFiles, path: str, description: ArchiveDescription) -> None:
    text = description.to_json()
    if not files.exists(path) or files.read(path) != text:
        files.write(path, text)


async def _schemas(job: ArchiveJob, *, begun: bool) -> dict[str, list[SchemaDefinition]]:
    options = parse_source_options(job.source_options())
    planner = await open_planner(options)
    found: dict[str, list[SchemaDefinition]] = {}
    # Topics that an archive has begun with may be deleted since: what becomes of it is up to the stream.
    topics, missing = await planner.selected(options.filters)
    if missing and not begun:
        raise TopicMissing(missing)
    for topic in sorted(set(map(whole_topic, topics))):
        found[topic] = await schema_definitions(planner.cluster.client, TopicName.parse(topic), options.connection)
    return found


@job_command(app)
def main(job: ArchiveJob) -> None:
    """Archive topics to Parquet, each message once; a run goes on where the one before ended.

    Exit code: 0 archived (also where nothing was new), 1 failed, 2 wrong options.

    [dim]Examples:[/]
      magnetar-spark archive --topic orders --output archive/orders
      magnetar-spark archive --topics-pattern 'shop/orders/.*' \\\\
        --output s3a://bucket/shop --continuous 1min
    """
    if job.compression not in COMPRESSIONS:
        raise BadOption(f"--compression {job.compression!r}: {', '.join(COMPRESSIONS)} are accepted")
    job.source_options()
    job.tasks_max()  # Before a session is there, whose executors are waited for.
    console = job_console()
    done = run_archive(spark_session("archive"), job, console)
    what = f"{done.rows:,} messages in {done.batches} micro-batches" if done.rows else "nothing new"
    console.print(f"[bold]archived[/bold] {what} to {job.output}; topics are archived up to", highlight=False)
    console.print(offsets_table(done.offsets))


if __name__ == "__main__":
    app()
