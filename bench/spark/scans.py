"""Cold scans of one topic by everybody who can read it, in turns."""

from __future__ import annotations

import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.report import Metric, Results
from bench.spark.clusters import FilledCluster, drop_page_cache
from bench.spark.filling import Rows
from bench.spark.sessions import Session

DIRECT, BROKERS, JVM = "direct", "through brokers", "JVM connector"
PARQUET, PARQUET_DEFAULT = "Parquet", "Parquet, snappy"
RAW = "cat"
QUERIES = ("value", "all", "count")
RATIO_WANTED = 2.0
BROKER_PERCENT_MAX = 1.0
MB = 1_000_000
MILLION = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One topic that is scanned."""

    name: str
    title: str
    size_bytes: int
    per_batch: int
    share: float
    """Of the gigabytes that are asked for."""

    def rows(self, gigabytes: float) -> Rows:
        """What it is filled with: whole batches."""
        batches = max(1, round(gigabytes * self.share * 1e9 / self.size_bytes / self.per_batch))
        return Rows(count=batches * self.per_batch, size_bytes=self.size_bytes, per_batch=self.per_batch)


SHAPES = (
    Shape(name="1KiB-batched", title="1 KiB rows, 100 a batch", size_bytes=1024, per_batch=100, share=1.0),
    Shape(name="100B-batched", title="100 B rows, 1 000 a batch", size_bytes=100, per_batch=1000, share=0.1),
    Shape(name="1KiB-unbatched", title="1 KiB rows, each on its own", size_bytes=1024, per_batch=1, share=0.1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One scan."""

    side: str
    query: str
    seconds: float
    spark_cpu_seconds: float
    brokers_cpu_seconds: float = 0.0
    bookies_cpu_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What scans are made with."""

    cluster: FilledCluster
    ours: Session
    jvm: Session
    folder: Path
    """For Parquet files."""


class WrongCount(Exception):
    """Somebody does not see all rows."""


def steps(rounds: int) -> list[tuple[str, str]]:
    """Query and side of each scan, in the order they are made in: sides take turns."""
    sides = (DIRECT, BROKERS, JVM, PARQUET, PARQUET_DEFAULT)
    one = [("raw", RAW), *((query, side) for query in QUERIES for side in sides)]
    return one * rounds


def told_of(bench: Bench, topic: str, side: str, query: str) -> dict[str, object]:
    """The query as a session is told it, as a user of that source would write it."""
    told: dict[str, object] = {
        "do": "scan",
        "format": "pulsar",
        "options": {**bench.cluster.urls, "topic": bench.cluster.topic(topic)},
        "columns": ["value"] if query == "value" else None,
        "query": "count" if query == "count" else "write",
    }
    if side in (PARQUET, PARQUET_DEFAULT):
        return {**told, "format": "parquet", "options": {}, "path": str(parquet_path(bench, topic, side))}
    if side != JVM:
        mode = {"readMode": "bookies" if side == DIRECT else "brokers"}
        # Spark does not tell Python data sources which columns are wanted: this option does.
        columns = {"columns": "value"} if query == "value" else {}
        told["options"] = {**bench.cluster.urls, "topic": bench.cluster.topic(topic), **mode, **columns}
    return told


def parquet_path(bench: Bench, topic: str, side: str) -> Path:
    """Where the rows are as Parquet."""
    return bench.folder / f"{topic}-{'snappy' if side == PARQUET_DEFAULT else 'plain'}.parquet"


def write_parquet(bench: Bench, topic: str) -> Iterator[str]:
    """Both forms, with all columns, as Spark writes what it has read from the topic. Tells what it does."""
    for side, compression in ((PARQUET, "uncompressed"), (PARQUET_DEFAULT, None)):
        yield f"{side} is written"
        told = told_of(bench, topic, DIRECT, "all")
        target = str(parquet_path(bench, topic, side))
        bench.ours.ask({**told, "do": "parquet", "compression": compression, "target": target})


def scan(bench: Bench, topic: str, rows: int, side: str, query: str) -> Sample:
    """One scan, with nothing of the files in memory. Raises `WrongCount`."""
    if side == RAW:
        return _raw(bench.cluster)
    session = bench.jvm if side == JVM else bench.ours
    drop_page_cache()
    servers, spark = bench.cluster.cpu(), session.cpu_seconds()
    answer = session.ask(told_of(bench, topic, side, query))
    used = bench.cluster.cpu().since(servers)
    if query == "count" and answer["rows"] != rows:
        raise WrongCount(f"{side} counts {answer['rows']} rows of {topic}, which has {rows}")
    return Sample(
        side=side,
        query=query,
        seconds=answer["seconds"],
        spark_cpu_seconds=session.cpu_seconds() - spark,
        brokers_cpu_seconds=used.brokers,
        bookies_cpu_seconds=used.bookies,
    )


def _raw(cluster: FilledCluster) -> Sample:
    drop_page_cache()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.monotonic()
    with Path("/dev/null").open("wb") as nowhere:
        subprocess.run(["cat", *map(str, cluster.entry_logs())], stdout=nowhere, check=True)
    seconds = time.monotonic() - begun
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Sample(side=RAW, query="value", seconds=seconds, spark_cpu_seconds=cpu_seconds)


def warm_up(bench: Bench, topic: str, told: Callable[[str], None]) -> None:
    """Each query once by each side on a small topic: JVMs compile, workers import."""
    for note in write_parquet(bench, topic):
        told(note)
    for query in QUERIES:
        for side in (DIRECT, BROKERS, JVM, PARQUET, PARQUET_DEFAULT):
            told(f"warming up: {query}, {side}")
            (bench.jvm if side == JVM else bench.ours).ask(told_of(bench, topic, side, query))


def figures(samples: list[Sample], rows: Rows) -> Results:
    """Of one round. MB are those of the values, whatever else is read."""
    results: Results = {}
    megabytes = rows.count * rows.size_bytes / MB
    millions = rows.count / MILLION
    for sample in samples:
        cpu_seconds = max(sample.spark_cpu_seconds, 0.01)
        found = results.setdefault(sample.side, {})
        key = sample.query
        found[f"{key} rows/s"] = rows.count / sample.seconds
        found[f"{key} MB/s"] = megabytes / sample.seconds
        found[f"{key} MB/s of a core"] = megabytes / cpu_seconds
        found[f"{key} Spark CPU"] = sample.spark_cpu_seconds / millions
        if sample.side in (DIRECT, BROKERS, JVM):
            found[f"{key} brokers CPU"] = sample.brokers_cpu_seconds / millions
            found[f"{key} bookies CPU"] = sample.bookies_cpu_seconds / millions
            everything = sample.spark_cpu_seconds + sample.brokers_cpu_seconds + sample.bookies_cpu_seconds
            found[f"{key} all CPU"] = everything / millions
            found[f"{key} broker percent"] = 100 * sample.brokers_cpu_seconds / sample.seconds
    return results


def metrics() -> list[Metric]:
    """What the table of a shape shows."""
    shown: list[Metric] = []
    for key, label in (("value", "the values"), ("all", "all columns"), ("count", "count()")):
        shown += [
            Metric(f"{key} rows/s", f"{label}: rows", "1/s"),
            Metric(f"{key} MB/s", f"{label}: values", "MB/s"),
            Metric(f"{key} MB/s of a core", f"{label}: values per core", "MB/s", RATIO_WANTED, more_is_better=True),
            Metric(f"{key} Spark CPU", f"{label}: Spark's CPU per million rows", "s"),
            Metric(f"{key} brokers CPU", f"{label}: brokers' CPU per million rows", "s"),
            Metric(f"{key} bookies CPU", f"{label}: bookies' CPU per million rows", "s"),
            Metric(f"{key} all CPU", f"{label}: all CPU per million rows", "s"),
            Metric(
                f"{key} broker percent", f"{label}: a broker's CPU meanwhile", "% of a core", BROKER_PERCENT_MAX,
                absolute=True,
            ),
        ]  # fmt: skip
    return shown
