"""Workloads of features: transactions, compaction, offloads, catching up. Each has a server of its own.

Transactions are those of Apache's `pulsar-perf transaction`, each of which publishes one message to two topics.
Compaction is asked for by REST and timed until its status says SUCCESS; so are offloads to files, which are then read
back by a reader. Delayed messages are a million (`delays.py`). A subscription that catches up is a gigabyte behind
(`catch_up.py`).
"""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pulsar

from bench import catch_up
from bench.delays import delays
from bench.generators import HERE, Broken
from bench.report import Metric
from e2e import processes
from e2e.peers import distribution
from e2e.server import ApacheStandalone, MagnetarStandalone, StandaloneProcess

_SILENT: Final = logging.getLogger("bench.features")
_SILENT.setLevel(logging.CRITICAL + 1)
Say = Callable[[str], None]

NAMES: Final = ("transactions", "compaction", "offload", "delays", "catch-up")
TRANSACTIONS: Final = {"transactionCoordinatorEnabled": "true"}
THREADS: Final = 16
JVM_START_S: Final = 6.0
WARM_UP_S: Final = 10.0
MESSAGE_BYTES: Final = 1024
KEYS: Final = 1000
MB: Final = 1_000_000
ENTRIES_PER_LEDGER: Final = 2_000
"""Of ten messages each, so that most ledgers are full and go."""
CATCH_UP_TIMES: Final = 2
"""As many MB behind as others take: a gigabyte in a whole run."""
DELAYED_PER_MB: Final = 2_000
"""A million for the 500 MB of a whole run."""
DONE_SECONDS_MAX: Final = 300.0
LINE: Final = re.compile(
    r"Throughput transaction:.*?---\s*(?P<rate>[\d.]+) transaction/s.*?send Latency:.*?med:\s*(?P<p50>[\d.]+)"
    r".*?99pct:\s*(?P<p99>[\d.]+)"
)
LINE_EVERY_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Interval:
    """One line of `pulsar-perf transaction`: of the ten seconds before it."""

    per_s: float
    send_p50_ms: float
    send_p99_ms: float


def metrics() -> list[Metric]:
    """Rows of the table."""
    return [
        Metric("transactions.per_s", "transactions of two messages: ended", "/s", more_is_better=True),
        Metric("transactions.send_p50_ms", "transactions: publish p50", "ms"),
        Metric("transactions.send_p99_ms", "transactions: publish p99", "ms"),
        Metric("transactions.cpu_ms_each", "transactions: server CPU each", "ms"),
        Metric("compaction.mb_per_s", "compaction of 1 KiB messages of 1000 keys", "MB/s", more_is_better=True),
        Metric("offload.mb_per_s", "offload to files", "MB/s", more_is_better=True),
        Metric("offload.read_mb_per_s", "reading what is offloaded", "MB/s", more_is_better=True),
        Metric("delays.published_per_s", "delayed messages: published", "/s", more_is_better=True),
        Metric("delays.mb_held", "… memory when ten subscriptions wait for all of them", "MB"),
        Metric("delays.delivered_per_s", "… taken by consumers in Python when due", "/s", more_is_better=True),
        Metric("delays.cpu_us_each", "… server CPU each", "µs"),
        Metric("delays.other_p99_ms", "… another topic's end to end p99 meanwhile", "ms"),
        *catch_up.metrics(),
    ]


def new_server(name: str, feature: str, data: Path) -> StandaloneProcess:
    """The server with the feature on."""
    settings = dict(TRANSACTIONS) if feature == "transactions" else {}
    if feature == "offload":
        store = data.parent / "store"
        store.mkdir(exist_ok=True)  # A store that is not there may be a file system that is not mounted.
        settings = {
            "managedLedgerOffloadDriver": "filesystem",
            # Not by namespace: Apache's brokers look for offloaders in their own folder then, whatever is set.
            "managedLedgerOffloadDeletionLagMs": "0",
            "fileSystemURI": f"file://{store}",
            "managedLedgerMaxEntriesPerLedger": str(ENTRIES_PER_LEDGER),
            "managedLedgerMinLedgerRolloverTimeMinutes": "0",
        }
        if name != "magnetar":
            profile = str(distribution.home() / "conf" / "filesystem_offload_core_site.xml")
            settings |= {"offloadersDirectory": str(distribution.offloaders()), "fileSystemProfilePath": profile}
    if name == "magnetar":
        return MagnetarStandalone(data, settings=settings)
    return ApacheStandalone(
        data, settings=settings, lean=name != "apache-shipped", journal_sync=name != "apache-nosync"
    )


def run(server: StandaloneProcess, feature: str, window_s: float, megabytes: int, say: Say) -> dict[str, float]:
    """The figures of one feature. Raises Broken."""
    try:
        if feature == "transactions":
            found = transactions(server, window_s)
        elif feature == "compaction":
            found = compaction(server, megabytes)
        elif feature == "catch-up":
            found = catch_up.catch_up(server, CATCH_UP_TIMES * megabytes, window_s)
        elif feature == "delays":
            found = delays(server, megabytes * DELAYED_PER_MB, window_s)
        else:
            found = offload(server, megabytes)
    except (urllib.error.URLError, pulsar.PulsarException) as error:
        raise Broken(str(error)) from error
    say(f"{feature}: " + ", ".join(f"{key} {value:,.2f}" for key, value in found.items()))
    return {f"{feature}.{key}": value for key, value in found.items()}


def intervals(output: str) -> list[Interval]:
    """The lines of figures, whatever else the tool logs between them."""
    found = (match for match in map(LINE.search, output.splitlines()) if match is not None)
    return [Interval(float(one["rate"]), float(one["p50"]), float(one["p99"])) for one in found]


def transactions(server: StandaloneProcess, window_s: float) -> dict[str, float]:
    """`pulsar-perf transaction` for a warm-up and the window, which is whole lines of ten seconds."""
    lines = max(1, round(window_s / LINE_EVERY_S))
    topics = [f"persistent://public/default/transactions-{time.time_ns()}-{name}" for name in "ab"]
    command = [str(distribution.home() / "bin" / "pulsar-perf"), "transaction", "-u", server.service_url]
    command += ["-au", server.admin_url, "--topics-c", f"{topics[0]}-unused", "-nmc", "0", "-nmp", "1"]
    command += [part for topic in topics for part in ("--topics-p", topic)]
    command += ["-threads", str(THREADS), "-time", str(int(WARM_UP_S + lines * LINE_EVERY_S + LINE_EVERY_S / 2))]
    folder = server.data.parent
    environment = {
        **os.environ,
        "PULSAR_MEM": "-Xmx512m -XX:MaxDirectMemorySize=512m",
        "PULSAR_GC": "-XX:+UseSerialGC",
        "PULSAR_LOG_DIR": str(HERE / "results" / "raw"),
    }
    program = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, cwd=folder
    )
    try:
        time.sleep(JVM_START_S + WARM_UP_S)
        before = processes.cpu_seconds(server.pids)
        time.sleep(lines * LINE_EVERY_S)
        cpu_s = processes.cpu_seconds(server.pids) - before
        output = program.communicate(timeout=60)[0]
    finally:
        processes.kill_tree(program)  # type: ignore[arg-type]
    figures = intervals(output)[-lines:]
    if not figures:
        raise Broken(f"pulsar-perf gave no figures: {output[-1000:]}")
    per_s = sum(one.per_s for one in figures) / len(figures)
    if per_s == 0:
        raise Broken(f"no transaction ended: {output[-1000:]}")
    return {
        "per_s": per_s,
        "send_p50_ms": sorted(one.send_p50_ms for one in figures)[len(figures) // 2],
        "send_p99_ms": sorted(one.send_p99_ms for one in figures)[len(figures) // 2],
        "cpu_ms_each": cpu_s * 1000 / (per_s * lines * LINE_EVERY_S),
    }


def compaction(server: StandaloneProcess, megabytes: int) -> dict[str, float]:
    """A topic of so many MB is compacted."""
    topic = "public/default/compacted"
    published = fill(server, topic, megabytes)
    seconds = done(server, topic, "compaction", None)
    return {"mb_per_s": published / MB / seconds}


def offload(server: StandaloneProcess, megabytes: int) -> dict[str, float]:
    """All ledgers of a topic but the last go to the store; bookies' copies go at once, and a reader reads all."""
    topic = "public/default/offloaded"
    fill(server, topic, megabytes)
    last = request(server, "GET", f"persistent/{topic}/internalStats")["ledgers"][-1]["ledgerId"]
    seconds = done(server, topic, "offload", {"ledgerId": last, "entryId": 0, "partitionIndex": -1})
    ledgers = request(server, "GET", f"persistent/{topic}/internalStats")["ledgers"]
    moved = sum(ledger["size"] for ledger in ledgers if ledger["offloaded"])
    if not moved:
        raise Broken(f"nothing is offloaded: {ledgers}")
    client = pulsar.Client(server.service_url, logger=_SILENT)
    try:
        reader = client.create_reader(f"persistent://{topic}", pulsar.MessageId.earliest, receiver_queue_size=5000)
        began = time.monotonic()
        read = 0
        while reader.has_message_available():
            read += len(reader.read_next(30_000).data())
        return {"mb_per_s": moved / MB / seconds, "read_mb_per_s": read / MB / (time.monotonic() - began)}
    finally:
        client.close()


def fill(server: StandaloneProcess, topic: str, megabytes: int) -> int:
    """Publish keyed messages; gives their bytes. A subscription keeps them."""
    count = megabytes * MB // MESSAGE_BYTES
    client = pulsar.Client(server.service_url, logger=_SILENT)
    failures: list[Any] = []

    def told(result: Any, _id: Any) -> None:
        if result != pulsar.Result.Ok:
            failures.append(result)

    try:
        client.subscribe(f"persistent://{topic}", "keep", initial_position=pulsar.InitialPosition.Earliest).close()
        producer = client.create_producer(
            f"persistent://{topic}", batching_enabled=True, batching_max_messages=10, block_if_queue_full=True
        )
        body = os.urandom(MESSAGE_BYTES)
        for number in range(count):
            producer.send_async(body, told, partition_key=str(number % KEYS))
        producer.flush()
    finally:
        client.close()
    if failures:
        raise Broken(f"{len(failures)} messages were not published: {failures[0]}")
    return count * MESSAGE_BYTES


def done(server: StandaloneProcess, topic: str, what: str, body: object) -> float:
    """Ask for it; the seconds until its status says SUCCESS."""
    path = f"persistent/{topic}/{what}"
    began = time.monotonic()
    request(server, "PUT", path, body)
    while True:
        status = request(server, "GET", path)
        taken = time.monotonic() - began
        if status["status"] == "SUCCESS":
            return taken
        if status["status"] == "ERROR" or taken > DONE_SECONDS_MAX:
            raise Broken(f"{what} says {status} after {taken:.0f} s")
        time.sleep(0.02)


def request(server: StandaloneProcess, method: str, path: str, body: object = None) -> Any:
    """The decoded answer of the admin API. Raises urllib's HTTPError."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    asked = urllib.request.Request(f"{server.admin_url}/admin/v2/{path}", data=data, method=method, headers=headers)
    with urllib.request.urlopen(asked, timeout=60) as answer:
        content = answer.read()
    return json.loads(content) if content else None
