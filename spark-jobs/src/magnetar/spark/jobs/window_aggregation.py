"""Windowed aggregation: how many messages there were, and sums and means of their columns, by window of time and group.

    python -m magnetar.spark.jobs.window_aggregation --service-url pulsar://host:6650 --topic orders \\
        --window 5min --watermark 10min --by customer --aggregate count --aggregate sum:amount --output-topic totals

A window is final once the watermark has passed its end: the latest time seen, less what --watermark says. Messages that
come later than that are left out. With --mode append each window comes out once, when it is final; with update it comes
out whenever it changes. Into a topic it comes as JSON, keyed by its group, exactly once."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Final

import typer
from magnetar.spark.errors import BadOption
from magnetar.spark.jobs.files import SparkFiles, under
from magnetar.spark.jobs.job import (
    FORMAT,
    ConnectionChoices,
    job_app,
    job_command,
    job_console,
    spark_session,
    stream_reader,
)
from magnetar.spark.jobs.running import (
    BytesPerBatch,
    Continuous,
    RowsSeen,
    StartingOffsets,
    Topics,
    TopicsPattern,
    run_to_end,
    selection_options,
    start,
    starting_options,
)
from magnetar.spark.jobs.window_columns import (
    WINDOW_END,
    WINDOW_START,
    Aggregate,
    Duration,
    check_names,
    parse_windows,
    plain,
)
from rich.console import Console

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

MODES: Final = ("append", "update", "complete")
DATE: Final = "window_date"
_TIME: Final = "__time"
ROWS_SHOWN: Final = 100
WRITES_NAME: Final = ("_magnetar", "writes")
"""The place in the checkpoint where the name of the query's writes is kept."""

app = job_app()


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowJob:
    """What is computed, and where it goes."""

    choices: ConnectionChoices
    window: Annotated[str, typer.Option(metavar="DURATION", help="How long a window is: 30s, 5min, 1h.")]
    topic: Topics = None
    topics_pattern: TopicsPattern = ""
    slide: Annotated[
        str, typer.Option(metavar="DURATION", help="After how long the next window begins; by default as one ends.")
    ] = ""
    watermark: Annotated[
        str,
        typer.Option(metavar="DURATION", help="How much older than the latest time seen a message may be: 30s, 10min."),
    ] = "10min"
    time: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="Which time: event (where a message has none, that of its publishing), publish, or the name of a "
            "column.",
        ),
    ] = "event"
    by: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN", help="A column to group by: __key, __topic, or one of the values. May be repeated."
        ),
    ] = None
    aggregate: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHAT",
            help="count, sum:COLUMN, avg:, min:, max:, distinct: (about). May be repeated; count by default.",
        ),
    ] = None
    output_topic: Annotated[
        str, typer.Option(metavar="NAME", help="Windows go to this topic, as JSON; it needs deduplication.")
    ] = ""
    output: Annotated[
        str,
        typer.Option(metavar="FOLDER", help="Windows go to Parquet files in this folder. By default to the terminal."),
    ] = ""
    checkpoint: Annotated[
        str,
        typer.Option(
            metavar="FOLDER",
            help="For open windows and how far topics are read; needed with --output-topic and --output.",
        ),
    ] = ""
    mode: Annotated[
        str,
        typer.Option(
            metavar="MODE",
            help="append: a window comes out when it is final; update: whenever it has changed; complete: all of "
            "them each time (terminal only). By default append, on the terminal update.",
        ),
    ] = ""
    starting_offsets: StartingOffsets = "earliest"
    continuous: Continuous = ""
    max_bytes_per_batch: BytesPerBatch = "1g"
    state_partitions: Annotated[
        int, typer.Option(min=1, metavar="NUMBER", help="In how many tasks windows are kept; a checkpoint fixes it.")
    ] = 8

    @property
    def output_mode(self) -> str:
        """How windows come out."""
        return self.mode or ("append" if self.output or self.output_topic else "update")

    @property
    def groups(self) -> Sequence[str]:
        """The columns to group by."""
        return self.by or ()

    def durations(self) -> tuple[Duration, Duration, Duration]:
        """A window's length, after how long the next one begins, and the watermark. Raises `BadOption`."""
        return *parse_windows(self.window, self.slide), Duration.parse("--watermark", self.watermark, 0)

    def aggregates(self) -> list[Aggregate]:
        """What is computed of each group. Raises `BadOption`."""
        return [Aggregate.parse(text) for text in self.aggregate or ["count"]]

    def source_options(self) -> dict[str, str]:
        """The data source's options for the stream that is read. Raises `BadOption`."""
        return {
            **self.choices.options(),
            **selection_options(self.topic, self.topics_pattern),
            **starting_options(self.starting_offsets, self.choices.further),
            "maxBytesPerTrigger": self.max_bytes_per_batch,
        }

    def check(self) -> None:
        """`BadOption` for what makes no query."""
        self.source_options()
        self.durations()
        self.aggregates()
        if self.output and self.output_topic:
            raise BadOption("say --output-topic, --output or neither, for the terminal; not both")
        if self.output_mode not in MODES:
            raise BadOption(f"--mode {self.mode!r}: {', '.join(MODES)} are accepted")
        if (self.output or self.output_topic) and not self.checkpoint:
            raise BadOption(
                "--checkpoint is not set: a folder is needed for what is in open windows, and how far topics are read"
            )
        if self.output and self.output_mode != "append":
            raise BadOption(f"--mode {self.mode}: files cannot be changed; append is possible with --output")
        if self.output_topic and self.mode == "complete":
            raise BadOption("--mode complete: messages of a topic cannot be replaced; append or update is possible")


def run_windows(spark: SparkSession, job: WindowJob, console: Console) -> RowsSeen:
    """Aggregate until the end, or until told to stop. Raises `BadOption` and what the query failed of."""
    job.check()
    # As many tasks as that keep the windows; a checkpoint has its own number for ever.
    spark.conf.set("spark.sql.shuffle.partitions", str(job.state_partitions))
    rows = stream_reader(spark, job.choices).options(**job.source_options()).load()
    name = _lasting_name(SparkFiles(spark), job.checkpoint) if job.output_topic else ""
    return run_to_end(start(_writer(aggregated(rows, job), job, name), job.continuous), console)


def _lasting_name(files: SparkFiles, checkpoint: str) -> str:
    """What the query's writes go by, the same as long as its checkpoint is."""
    path = under(checkpoint, *WRITES_NAME)
    if not files.exists(path):
        files.write(path, f"windows-{uuid.uuid4()}")
    return files.read(path)


def aggregated(rows: DataFrame, job: WindowJob) -> DataFrame:
    """A row for each window and group: window_start, window_end, groups, aggregates. `BadOption`."""
    from pyspark.sql import functions as f

    aggregates, (length, step, watermark) = job.aggregates(), job.durations()
    check_names(job.groups, aggregates, rows.columns)
    moments: dict[str, Column] = {
        "event": f.coalesce(f.col("__eventTime"), f.col("__publishTime")),
        "publish": f.col("__publishTime"),
    }
    moment = moments.get(job.time)
    if moment is None:
        check_names((job.time,), (), rows.columns)
        numeric = dict(rows.dtypes).get(job.time) == "bigint"
        moment = f.timestamp_millis(f.col(job.time)) if numeric else f.col(job.time).cast("timestamp")
    functions = {"sum": f.sum, "avg": f.avg, "min": f.min, "max": f.max, "distinct": f.approx_count_distinct}
    computed = [
        (functions[one.function](one.column) if one.column else f.count("*")).alias(one.name) for one in aggregates
    ]
    window = f.window(_TIME, length.text, step.text)
    return (
        rows.withColumn(_TIME, moment)
        .withWatermark(_TIME, watermark.text)
        .groupBy(window, *(f.col(name).alias(plain(name)) for name in job.groups))
        .agg(*computed)
        .select(
            f.col("window.start").alias(WINDOW_START),
            f.col("window.end").alias(WINDOW_END),
            *(f.col(f"`{plain(name)}`") for name in job.groups),
            *(f.col(f"`{one.name}`") for one in aggregates),
        )
    )


def outgoing(windows: DataFrame, job: WindowJob) -> DataFrame:
    """The rows as messages: keyed by group, and where windows come out again and again, by window too, so that
    compaction keeps the newest of each."""
    from pyspark.sql import functions as f

    groups = [plain(name) for name in job.groups]
    parts = [f.coalesce(f.col(f"`{name}`").cast("string"), f.lit("")) for name in groups]
    if job.output_mode == "update" or not parts:
        parts.append(f.date_format(WINDOW_START, "yyyy-MM-dd'T'HH:mm:ss.SSSX"))
    return windows.withColumns({"__key": f.concat_ws("|", *parts), "__eventTime": f.col(WINDOW_END)})


def writer_of_batches(job: WindowJob, name: str) -> Callable[[DataFrame, int], None]:
    """Writes each micro-batch as one that is told from others by its number and the query's name.

    How rows come out of a shuffle differs from try to try, and brokers tell repetitions by their order. What a stream
    writes cannot be sorted, micro-batches can. One task is enough for them, and leaves brokers one name to remember."""
    options = {**replace(job.choices, further=()).options(), "topic": job.output_topic, "schemaType": "json"}
    order = [WINDOW_START, *map(plain, job.groups)]

    def write(windows: DataFrame, batch: int) -> None:
        rows = outgoing(windows, job).repartition(1).sortWithinPartitions(*(f"`{column}`" for column in order))
        rows.write.format(FORMAT).options(**options, writeId=f"{name}-{batch}").mode("append").save()

    return write


def _writer(windows: DataFrame, job: WindowJob, name: str) -> DataStreamWriter:
    if job.output_topic:
        writer = windows.writeStream.foreachBatch(writer_of_batches(job, name))
    elif job.output:
        from pyspark.sql import functions as f

        dated = windows.withColumn(DATE, f.to_date(WINDOW_START))
        writer = dated.writeStream.format("parquet").option("path", job.output).partitionBy(DATE)
    else:
        writer = windows.writeStream.format("console").option("truncate", "false").option("numRows", ROWS_SHOWN)
    if job.checkpoint:
        writer = writer.option("checkpointLocation", job.checkpoint)
    return writer.outputMode(job.output_mode).queryName("magnetar-windows")


@job_command(app)
def main(job: WindowJob) -> None:
    """Count, sum and average messages by window of time and group.

    Exit code: 0 all read, or told to stop, 1 failed, 2 wrong options.

    [dim]Example:[/]
      magnetar-spark windows --topic orders --window 5min --by customer \\\\
        --output-topic totals --checkpoint totals --continuous 10s
    """
    job.check()  # Before a session is there, whose executors are waited for.
    console = job_console()
    seen = run_windows(spark_session("window-aggregation"), job, console)
    where = job.output_topic or job.output or "the terminal"
    console.print(f"[bold]aggregated[/bold] {seen.rows:,} messages to {where}", highlight=False)


if __name__ == "__main__":
    app()
