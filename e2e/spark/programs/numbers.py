"""Reads, copies and checks topics of numbered messages, and stands still or dies where it is told to.

Called with two paths: {"steps": [{"do": "scan", …}, …]}, and where the list of the steps' answers goes. Nothing but
Spark and the standard library is imported. What every step has: `number`, the expression of a message's number."""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr, udf
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import LongType

SOURCE = "pulsar"

TOTALS = {
    "count": "count(*)",
    "sum": "sum(number)",
    "squares": "sum(pmod(number * number, 1000003))",
    "hashes": "CAST(sum(CAST(hash AS DECIMAL(38, 0))) AS STRING)",
    "hash": "bit_xor(hash)",
}
"""Of the columns `number` and `hash`."""

PLACES = {
    "rows": "count(*)",
    "least": "min(place)",
    "greatest": "max(place)",
    "places": "sum(place)",
    "first": "min(number - place)",
    "last": "max(number - place)",
}
"""Of the columns `number` and `place`, the place in the batch."""


def totals(frame: DataFrame, columns: Mapping[str, str], by: tuple[str, ...] = ()) -> DataFrame:
    return frame.groupBy(*by).agg(*[expr(text).alias(name) for name, text in columns.items()])


def watch(spark: SparkSession, file: Path) -> threading.Event:
    """Keeps in the file how many tasks are done, until the event is set."""
    ended = threading.Event()
    tracker = spark.sparkContext.statusTracker()

    def look() -> None:
        while not ended.wait(0.1):
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            done = max((stage.numCompletedTasks for stage in stages if stage is not None), default=0)
            part = file.with_suffix(".part")
            part.write_text(str(done))
            part.rename(file)

    threading.Thread(target=look, daemon=True).start()
    return ended


def scan(spark: SparkSession, step: dict[str, Any]) -> dict[str, Any]:
    """The totals of all messages, and of each entry where its messages are. The file `progress` tells how many tasks
    are done."""
    frame = spark.read.format(SOURCE).options(**step["options"]).load()
    messages = frame.selectExpr(
        "__topic AS topic",
        f"{step['number']} AS number",
        "xxhash64(value) AS hash",
        "CAST(split_part(__messageId, ':', 1) AS BIGINT) AS ledger",
        "CAST(split_part(__messageId, ':', 2) AS BIGINT) AS entry",
        "CAST(split_part(__messageId, ':', 3) AS BIGINT) AS place",
    )
    ended = watch(spark, Path(step["progress"]))
    begun = time.monotonic()
    entries = totals(messages, {**PLACES, **TOTALS}, ("topic", "ledger", "entry")).persist()
    found = [row.asDict() for row in entries.select("topic", "ledger", "entry", *PLACES).collect()]
    seconds = time.monotonic() - begun
    ended.set()
    whole = entries.selectExpr(
        "sum(count) AS count",
        "sum(sum) AS sum",
        "sum(squares) AS squares",
        "CAST(sum(CAST(hashes AS DECIMAL(38, 0))) AS STRING) AS hashes",
        "bit_xor(hash) AS hash",
    )
    answer = {"seconds": seconds, "entries": found, "totals": whole.collect()[0].asDict()}
    entries.unpersist()
    return answer


def expected(spark: SparkSession, step: dict[str, Any]) -> dict[str, Any]:
    """The totals of the messages below `count`."""
    values = spark.range(step["count"]).selectExpr("id AS number", f"xxhash64({step['value_of_id']}) AS hash")
    return totals(values, TOTALS).collect()[0].asDict()


def troubled(step: dict[str, Any], query: str) -> Any:
    """A number as it is; at those that `step` names for this query the process dies, or waits to be killed, once."""
    flags = Path(step["flags"])
    incidents = {number: kind for name, kind, number in step["incidents"] if name == query}

    def same(number: int) -> int:
        kind = incidents.get(number)
        flag = flags / f"{query}-{kind}-{number}"
        if kind is not None and not flag.exists():
            flag.touch()
            if kind == "exit":
                os._exit(9)
            time.sleep(3600)
        return number

    return udf(same, LongType())


def copy(spark: SparkSession, step: dict[str, Any]) -> list[int]:
    """Two queries side by side, both from the source's beginning: one writes files, one into the topic `target`.
    With `available_now` they end with what is there, else never. Answers how many micro-batches each has had."""

    def start(name: str, form: str, options: Mapping[str, str]) -> StreamingQuery:
        source = spark.readStream.format(SOURCE).options(**step["source"])
        frame = source.option("predefinedSubscription", f"copying-{name}").load()
        numbers = frame.select(
            troubled(step, name)(expr(step["number"])).alias("number"), expr("__topic AS source"), expr("value")
        )
        if form == SOURCE:
            numbers = numbers.selectExpr("CAST(number AS STRING) AS value", "source AS __key")
        else:
            numbers = numbers.selectExpr("number", "source", "xxhash64(value) AS hash")
        writer = numbers.writeStream.format(form).options(**options)
        writer = writer.option("checkpointLocation", f"{step['folder']}/{name}-checkpoint")
        if step["available_now"]:
            writer = writer.trigger(availableNow=True)
        return writer.start()

    queries = [
        start("files", "parquet", {"path": f"{step['folder']}/files"}),
        start("topic", SOURCE, step["target"]),
    ]
    for query in queries:
        query.awaitTermination()
    return [query.lastProgress.batchId for query in queries if query.lastProgress is not None]


def check_files(spark: SparkSession, step: dict[str, Any]) -> dict[str, Any]:
    """The totals of what is in the files, and how many numbers there are."""
    frame = spark.read.parquet(f"{step['folder']}/files")
    return totals(frame, {**TOTALS, "different": "count(DISTINCT number)"}).collect()[0].asDict()


STEPS: dict[str, Callable[[SparkSession, dict[str, Any]], Any]] = {
    "scan": scan,
    "expected": expected,
    "copy": copy,
    "check_files": check_files,
}


def main(told: Path, answer: Path) -> None:
    spark = SparkSession.builder.getOrCreate()
    answers = [STEPS[step["do"]](spark, step) for step in json.loads(told.read_text())["steps"]]
    answer.write_text(json.dumps(answers))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
