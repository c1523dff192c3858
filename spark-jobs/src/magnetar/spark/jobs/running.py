"""Streams that run until all is read, or until they are told to stop: their progress on a terminal, their offsets."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from magnetar.core.topic_name import InvalidTopicName, TopicName
from magnetar.spark.errors import BadOption
from magnetar.spark.jobs.files import SparkFiles, under
from rich.console import Console
from rich.table import Column, Table

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

LOOKED_AT_SECONDS: Final = 1
"""How often a query's progress is looked at. Spark keeps that of the last hundred micro-batches."""

TOPICS_SHOWN: Final = 30

SIZES_PANEL: Final = "Sizes"
"""Where help has how large files and micro-batches are."""

Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", metavar="NAME", help="A topic; with partitions: all of them. May be repeated."),
]
TopicsPattern = Annotated[
    str,
    typer.Option(
        "--topics-pattern",
        metavar="REGEX",
        help="Instead of --topic: a regular expression of one namespace's topics, public/default/orders-.*",
    ),
]
Continuous = Annotated[
    str,
    typer.Option(
        "--continuous",
        metavar="INTERVAL",
        help="Go on until stopped, with a micro-batch every so often: 30s, 1min. Without it the job ends once all that "
        "was there when it began is done.",
    ),
]
StartingOffsets = Annotated[
    str,
    typer.Option(
        "--starting-offsets",
        metavar="OFFSETS",
        help='Where the very first run begins: earliest, latest or {"topic": "ledger:entry"}. Later runs go on where '
        "the one before ended.",
    ),
]
BytesPerBatch = Annotated[
    str,
    typer.Option(
        "--max-bytes-per-batch",
        metavar="SIZE",
        help="About how many stored bytes a micro-batch reads at the most: 512m, 2g.",
        rich_help_panel=SIZES_PANEL,
    ),
]


def selection_options(topics: list[str] | None, pattern: str) -> dict[str, str]:
    """Options of the data source for the topics that a command was told. `BadOption`."""
    if bool(topics) == bool(pattern):
        raise BadOption("name topics by --topic or by --topics-pattern, one of both")
    if pattern:
        return {"topicsPattern": pattern}
    assert topics
    return {"topic": topics[0]} if len(topics) == 1 else {"topics": json.dumps(topics)}


def starting_options(starting_offsets: str, further: Sequence[str]) -> dict[str, str]:
    """Where a stream begins, unless a further option `startingTime=…` says so."""
    if any(pair.lower().startswith("startingtime=") for pair in further):
        return {}
    return {"startingOffsets": starting_offsets}


def short_topic(topic: str) -> str:
    """A complete name without what all topics have in front."""
    return topic.removeprefix("persistent://")


def whole_topic(topic: str) -> str:
    """The name without the partition."""
    try:
        return str(TopicName.parse(topic).partitioned_name())
    except InvalidTopicName:
        return topic


def moment(time_ms: int | None) -> datetime:
    """A time as Spark gives it to Python exactly: its own timestamps come in whatever zone this machine is in."""
    return datetime.fromtimestamp((time_ms or 0) / 1000, UTC)


class RowsSeen:
    """Adds up what micro-batches had, out of what a query reports again and again."""

    def __init__(self) -> None:
        self.rows_of: dict[int, int] = {}
        """By micro-batch."""

    def take(self, progress: Mapping[str, Any]) -> str | None:
        """A line about a micro-batch that was not seen before and had rows."""
        batch, rows = int(progress["batchId"]), int(progress.get("numInputRows") or 0)
        if not rows or self.rows_of.get(batch) == rows:
            return None
        self.rows_of[batch] = rows
        milliseconds = int(progress.get("durationMs", {}).get("triggerExecution", 0))
        rate = f" ({rows * 1000 / milliseconds:,.0f}/s)" if milliseconds else ""
        return f"batch {batch}: {rows:,} rows in {milliseconds / 1000:.1f} s{rate}; {self.rows:,} so far"

    @property
    def rows(self) -> int:
        """The rows of all micro-batches together."""
        return sum(self.rows_of.values())


def start(writer: DataStreamWriter, continuous: str) -> StreamingQuery:
    """The query, with the trigger that was asked for. `BadOption`."""
    if not continuous:
        return writer.trigger(availableNow=True).start()
    try:
        return writer.trigger(processingTime=_interval(continuous)).start()
    except ValueError as error:
        raise BadOption(f"--continuous {continuous!r} is not understood: 30s, 1min is accepted ({error})") from None


def run_to_end(query: StreamingQuery, console: Console) -> RowsSeen:
    """Wait until the query ends, or until this process is told to stop: what is not committed then is done again by the
    next run. Raises what the query failed of."""
    seen = RowsSeen()

    def look() -> None:
        for progress in query.recentProgress:
            line = seen.take(progress)
            if line is not None:
                console.print(line, highlight=False)

    with _interrupts():
        try:
            while not query.awaitTermination(LOOKED_AT_SECONDS):
                look()
        except KeyboardInterrupt:
            console.print("told to stop")
            query.stop()
    look()
    return seen


def offsets_reached(files: SparkFiles, checkpoint: str) -> dict[str, str]:
    """By topic the first message that the query of this checkpoint has not planned to read yet."""
    batches = [int(name) for name in files.names(under(checkpoint, "offsets")) if name.isdecimal()]
    if not batches:
        return {}
    return parse_offset_log(files.read(under(checkpoint, "offsets", str(max(batches)))))


def parse_offset_log(text: str) -> dict[str, str]:
    """Spark's file: a version, metadata of the micro-batch, then a line for each source, of which there is one."""
    lines = text.split("\n")
    found = json.loads(lines[2]) if len(lines) > 2 and lines[2].startswith("{") else {}
    return {str(topic): str(place) for topic, place in found.items()}


def whole(header: str) -> Column:
    """A table's column of names: they go on in the next line rather than being cut off."""
    return Column(header, overflow="fold")


def offsets_table(offsets: Mapping[str, str]) -> Table:
    """By topic the next message that would be read, as a table for the terminal."""
    table = Table(whole("topic"), "next message", box=None, padding=(0, 2, 0, 0))
    for topic in sorted(offsets)[:TOPICS_SHOWN]:
        table.add_row(short_topic(topic), offsets[topic])
    if len(offsets) > TOPICS_SHOWN:
        table.add_row(f"and {len(offsets) - TOPICS_SHOWN} more", "")
    return table


def _interval(text: str) -> str:
    """The interval in Spark's words, with a unit that Spark knows. Raises `ValueError`."""
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = text[len(number) :].strip()
    known = {"s": "seconds", "sec": "seconds", "m": "minutes", "min": "minutes", "h": "hours", "ms": "milliseconds"}
    if not number.strip().isdecimal() or not unit:
        raise ValueError("a number and its unit")
    return f"{number} {known.get(unit, unit)}"


@contextmanager
def _interrupts() -> Iterator[None]:
    """SIGTERM, with which Kubernetes ends pods, is as good as Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
