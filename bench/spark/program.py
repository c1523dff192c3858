"""Runs queries in the Spark it is started in, told line by line: JSON comes in on stdin, answers go to a descriptor.

Called with the number of the descriptor. Nothing but Spark and the standard library is imported: this runs in
environments that have nothing else. What it is told:

- {"do": "scan", "format": …, "options": …, "path": …, "columns": […] or null, "query": "write" or "count"}:
  `write` writes what is read nowhere. Answers {"seconds": …, "rows": … or null}.
- {"do": "parquet", "format": …, "options": …, "path": …, "compression": … or null}: writes it as Parquet.
"""

import json
import os
import sys
import time
from typing import Any

from pyspark.sql import DataFrame, SparkSession


def loaded(spark: SparkSession, told: dict[str, Any]) -> DataFrame:
    """What is told to be read."""
    reader = spark.read.format(told["format"]).options(**told["options"])
    return reader.load(told["path"]) if told.get("path") else reader.load()


def scan(spark: SparkSession, told: dict[str, Any]) -> dict[str, Any]:
    """Planning is part of what is measured: people wait for it."""
    begun = time.monotonic()
    rows = None
    frame = loaded(spark, told)
    if told["columns"]:
        frame = frame.select(*told["columns"])
    if told["query"] == "count":
        rows = frame.count()
    else:
        frame.write.format("noop").mode("overwrite").save()
    return {"seconds": time.monotonic() - begun, "rows": rows}


def parquet(spark: SparkSession, told: dict[str, Any]) -> dict[str, Any]:
    """Answers how long it took."""
    begun = time.monotonic()
    writer = loaded(spark, told).write.mode("overwrite")
    if told["compression"]:
        writer = writer.option("compression", told["compression"])
    writer.parquet(told["target"])
    return {"seconds": time.monotonic() - begun}


def main() -> None:
    """Until stdin ends."""
    spark = SparkSession.builder.getOrCreate()
    with os.fdopen(int(sys.argv[1]), "w") as answers:
        print(json.dumps({"version": spark.version}), file=answers, flush=True)
        for line in sys.stdin:
            told = json.loads(line)
            answer = scan(spark, told) if told["do"] == "scan" else parquet(spark, told)
            print(json.dumps(answer), file=answers, flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
