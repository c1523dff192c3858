"""A live producer, alone and while somebody scans another topic of the same cluster.

Spark is on the machine of the cluster, which by itself costs a producer several times its latency, whatever Spark does:
hence the same scan of Parquet files, of which the cluster knows nothing, beside the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.generators import GoLoad, Scenario
from bench.report import Metric, Results
from bench.spark import scans
from bench.spark.clusters import drop_page_cache
from bench.spark.filling import Rows
from bench.spark.scans import Bench

ALONE, FILES, DIRECT, BROKERS = (
    "alone", "beside a scan of Parquet", "beside a direct scan", "beside a scan through brokers",
)  # fmt: skip
SIDES = {ALONE: None, FILES: scans.PARQUET, DIRECT: scans.DIRECT, BROKERS: scans.BROKERS}
MESSAGES_PER_S = 1_000
SIZE_BYTES = 1024
CHANGE_MAX = 1.10


@dataclass(slots=True)
class Scanning:
    """Scans one after the other until it is told to end."""

    bench: Bench
    topic: str
    side: str
    scans: int = 0
    seconds: float = 0.0

    def run(self, ended: threading.Event) -> None:
        """`bench.ours` is the session that scans."""
        while not ended.is_set():
            answer = self.bench.ours.ask(scans.told_of(self.bench, self.topic, self.side, "value"))
            self.scans += 1
            self.seconds += answer["seconds"]


def window(bench: Bench, topic: str, rows: Rows, name: str, window_s: float) -> dict[str, float]:
    """One window. What is scanned is not in the memory of the machine when it begins."""
    drop_page_cache()
    side = SIDES[name]
    scanning = Scanning(bench, topic, side) if side else None
    ended = threading.Event()
    thread = threading.Thread(target=scanning.run, args=[ended]) if scanning else None
    if thread:
        thread.start()
    before = bench.cluster.cpu()
    try:
        scenario = Scenario("live", SIZE_BYTES, batched=False, rate=MESSAGES_PER_S)
        found = GoLoad().run(scenario, bench.cluster.service_url, window_s, lambda: bench.cluster.cpu().brokers)
    finally:
        ended.set()
        if thread:
            thread.join()
    assert found is not None
    used = bench.cluster.cpu().since(before)
    result = {
        "published": found.published_per_s,
        "failed": float(found.failed),
        "p50": found.publish_p50_ms,
        "p99": found.publish_p99_ms,
        "brokers": used.brokers,
        "bookies": used.bookies,
    }
    if scanning and scanning.seconds:
        result["scanned"] = scanning.scans * rows.count * rows.size_bytes / scans.MB / scanning.seconds
    return result


def one_round(
    bench: Bench, topic: str, rows: Rows, window_s: float, told: Callable[[str], None], names: Sequence[str] = (*SIDES,)
) -> Results:
    """A window each."""
    results: Results = {}
    for name in names:
        told(f"live producer {name}")
        results[name] = window(bench, topic, rows, name, window_s)
    return results


METRICS = [
    Metric("published", "published", "msg/s"),
    Metric("failed", "failed", "messages"),
    Metric("p50", "receipt p50", "ms"),
    Metric("p99", "receipt p99", "ms", CHANGE_MAX),
    Metric("scanned", "scanned meanwhile", "MB/s"),
    Metric("brokers", "brokers' CPU", "s"),
    Metric("bookies", "bookies' CPU", "s"),
]
