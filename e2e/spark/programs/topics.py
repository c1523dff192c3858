"""Reads and writes topics with the data source `pulsar` of the Spark it runs in, whichever that is.

Options are named alike in ours and in the JVM connector, so that the same steps are done with both. Called with two
paths: {"steps": [{"do": "read", …}, …]}, and where the list of the steps' answers goes. `remote` beside the steps makes
it a client of Spark Connect: of a server that is there, or of one that `local[2]` starts.

What a step has: `options` of the source or sink; `select`, expressions that make its columns; for writes `count`, of
how many ids (0, 1, …) in the column `id` the expressions make rows. Nothing but Spark and the standard library is
imported: this runs in environments that have nothing else.
"""

import json
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import struct, to_json, udf
from pyspark.sql.types import StringType

SOURCE = "pulsar"
WAIT_SECONDS_MAX = 120


def rows_of(frame: DataFrame) -> list[Any]:
    """Each as JSON has it: times as text, bytes in base64, null where there is nothing."""
    lines = frame.select(to_json(struct("*"), {"ignoreNullFields": "false"}).alias("line")).collect()
    return [json.loads(row.line) for row in lines]


def read(spark: SparkSession, step: dict[str, Any]) -> dict[str, Any]:
    """The columns as the source has them, and the rows that are selected of them."""
    frame = spark.read.format(SOURCE).options(**step["options"]).load()
    return {"columns": dict(frame.dtypes), "rows": rows_of(frame.selectExpr(*step["select"]))}


def until(holds: Callable[[], bool]) -> None:
    """Waits, within bounds."""
    give_up_at = time.monotonic() + WAIT_SECONDS_MAX
    while not holds() and time.monotonic() < give_up_at:
        time.sleep(0.1)


def slowly(slow: dict[str, Any]) -> Any:
    """A number as text, filled up with dots to 4 kB, so that no buffer keeps many of them.

    The first attempt of the first task stands still `at` one of them until there is a second one, and for some
    `seconds` more; then it makes the file `awake`. The second one makes the file `again`, and begins once the topic
    whose statistics are at `producing` has a producer, if that is named."""
    folder, producing = Path(slow["folder"]), slow["producing"]

    def produced_to() -> bool:
        with urllib.request.urlopen(producing, timeout=10) as answer:
            return bool(json.load(answer)["publishers"])

    def filled(number: int) -> str:
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 0 and context.attemptNumber() > 0:
            if not (folder / "again").exists():
                (folder / "again").touch()
                if producing:
                    until(produced_to)
        elif number == slow["at"]:
            until((folder / "again").exists)
            time.sleep(slow["seconds"])
            (folder / "awake").touch()
        return f"{number}".ljust(4096, ".")

    return udf(filled, StringType())


def write(spark: SparkSession, step: dict[str, Any]) -> None:
    """In two tasks, or as many as `tasks` says."""
    frame: DataFrame = spark.range(0, step["count"], 1, step.get("tasks", 2))
    if "slow" in step:
        frame = frame.select(slowly(step["slow"])("id").alias("id"))
    frame = frame.selectExpr(*step["select"])
    frame.write.format(SOURCE).options(**step["options"]).mode("append").save()


def stream(spark: SparkSession, step: dict[str, Any]) -> None:
    """Runs up to what is there now, from the `checkpoint` if there is one. Each micro-batch is put into a file of
    `folder`, named after its number, which a repetition replaces. In batch number `pause_in` it stops and waits to be
    killed: what was read is kept, and not committed; the file `paused` says so."""
    folder = Path(step["folder"])
    folder.mkdir(parents=True, exist_ok=True)

    def keep(batch: DataFrame, number: int) -> None:
        (folder / f"{number}.json").write_text(json.dumps(rows_of(batch)))
        if step.get("pause_in") == number:
            (folder / "paused").touch()
            time.sleep(3600)

    frame = spark.readStream.format(SOURCE).options(**step["options"]).load().selectExpr(*step["select"])
    query = frame.writeStream.foreachBatch(keep).option("checkpointLocation", step["checkpoint"])
    query.trigger(availableNow=True).start().awaitTermination()


def stream_write(spark: SparkSession, step: dict[str, Any]) -> None:
    """From a topic, read with the options in `source`, into another one; runs up to what is there now."""
    frame = spark.readStream.format(SOURCE).options(**step["source"]).load().selectExpr(*step["select"])
    query = frame.writeStream.format(SOURCE).options(**step["options"])
    query.option("checkpointLocation", step["checkpoint"]).trigger(availableNow=True).start().awaitTermination()


STEPS: dict[str, Callable[[SparkSession, dict[str, Any]], Any]] = {
    "read": read,
    "write": write,
    "stream": stream,
    "stream_write": stream_write,
}


def main(told: Path, answer: Path) -> None:
    arguments = json.loads(told.read_text())
    remote = arguments.get("remote")
    builder = SparkSession.builder
    spark = (builder.remote(remote) if remote else builder).getOrCreate()
    answers = [STEPS[step["do"]](spark, step) for step in arguments["steps"]]
    answer.write_text(json.dumps(answers))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
