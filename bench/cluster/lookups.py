"""Lookups of topics that are owned, as many as one broker answers, and one at a time; the same generator for each side.

The generator prepares every frame beforehand and does little more than count, so that the broker is what is measured.
Topics are names in bundles that the broker owns: neither side loads a topic to answer for it.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import uvloop
from magnetar.net.connection import Connection
from magnetar.net.endpoints import connect
from magnetar.wire.framing import LENGTH_BYTES
from magnetar.wire.pulsar import requests
from magnetar.wire.pulsar.frame import command_splitter
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from bench.cluster import sides
from bench.cluster.group import Group, Plan, Say
from bench.cluster.receipts import percentile
from bench.cluster.sides import OURS, REFERENCE, Shape, Side
from bench.generators import Broken, warmup_s
from bench.report import Metric, Results
from e2e import processes

TOPICS = 10_000
BUNDLES = 16
CONNECTIONS = 8
OUTSTANDING = 50
"""Lookups without an answer on a connection."""
CONNECT_SECONDS_MAX = 10.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What the generator saw in its window."""

    per_s: float
    p50_ms: float
    p99_ms: float
    failed: int


class Asker:
    """One connection (a `net` handler): a new lookup for each answer. Its request ids are its topics' indexes."""

    def __init__(self, connection: Connection, topics: list[str], outstanding: int) -> None:
        self._connection = connection
        self._frames = [requests.lookup(index, topic) for index, topic in enumerate(topics)]
        self._asked_at = [0.0] * len(topics)
        self._outstanding = outstanding
        self._next = 0
        self._splitter = command_splitter()
        self.latencies_s: list[float] = []
        self.failed = 0
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self) -> None:
        self._connection.write(requests.connect(client_version="lookups"))

    def data_received(self, data: bytes) -> None:
        buffer, bounds = self._splitter.feed(data)
        now = time.perf_counter()
        for index in range(0, len(bounds), 2):
            # Answers carry no payload: the command is all that follows its size.
            command = pb.BaseCommand.FromString(buffer[bounds[index] + LENGTH_BYTES : bounds[index + 1]])
            if command.type == pb.BaseCommand.LOOKUP_RESPONSE:
                answer = command.lookupTopicResponse
                self.latencies_s.append(now - self._asked_at[answer.request_id])
                self.failed += answer.response != pb.CommandLookupTopicResponse.Connect
                self._ask(now)
            elif command.type == pb.BaseCommand.CONNECTED:
                for _ in range(self._outstanding):
                    self._ask(now)

    def writable_changed(self, writable: bool) -> None:
        """What is outstanding is bounded."""

    def connection_lost(self, error: Exception | None) -> None:
        if not self.over.done():
            self.over.set_result(None)

    def reset(self) -> None:
        """Count from here."""
        self.latencies_s, self.failed = [], 0

    def stop(self) -> None:
        self._connection.abort()

    def _ask(self, now: float) -> None:
        index = self._next
        self._next = index + 1 if index + 1 < len(self._frames) else 0
        self._asked_at[index] = now
        self._connection.write(self._frames[index])


async def ask(port: int, topics: list[str], plan: tuple[int, int], seconds: tuple[float, float]) -> Seen:
    """`plan`: connections and lookups outstanding on each; `seconds`: before the window and in it. Raises Broken."""
    connections, outstanding = plan
    askers: list[Asker] = []

    def make_handler(connection: Connection) -> Asker:
        askers.append(Asker(connection, topics[len(askers) :: connections], outstanding))
        return askers[-1]

    for _ in range(connections):
        await connect("127.0.0.1", port, make_handler, CONNECT_SECONDS_MAX)
    warm_up_s, window_s = seconds
    await asyncio.sleep(warm_up_s)
    for asker in askers:
        asker.reset()
    began = time.perf_counter()
    await asyncio.sleep(window_s)
    took_s = time.perf_counter() - began
    if any(asker.over.done() for asker in askers):
        raise Broken("the broker closed a connection")
    latencies = [latency for asker in askers for latency in asker.latencies_s]
    failed = sum(asker.failed for asker in askers)
    for asker in askers:
        asker.stop()
    await asyncio.gather(*(asker.over for asker in askers))
    if not latencies:
        raise Broken("no lookup was answered")
    return Seen(len(latencies) / took_s, percentile(latencies, 0.5) * 1e3, percentile(latencies, 0.99) * 1e3, failed)


def run(folder: Path, plan: Plan, say: Say) -> Results:
    """A column for each side."""
    results: Results = {}
    for name in (OURS, REFERENCE):
        with sides.running(name, folder / name, Shape()) as side:
            results[name] = _measure(side, plan, say)
        shutil.rmtree(folder / name, ignore_errors=True)
    return results


def _measure(side: Side, plan: Plan, say: Say) -> dict[str, float]:
    namespace = sides.new_namespace(side, "public/lookups", BUNDLES)
    namespace.spread()
    topics = [f"persistent://{namespace.name}/topic-{number}" for number in range(TOPICS)]
    port, pids = side.brokers[0].port, side.brokers[0].pids
    seconds = (warmup_s(plan.window_s), plan.window_s)
    before = processes.cpu_seconds(pids), time.monotonic()
    many = uvloop.run(ask(port, topics, (CONNECTIONS, OUTSTANDING), seconds))
    cpu_s, took_s = processes.cpu_seconds(pids) - before[0], time.monotonic() - before[1]
    one = uvloop.run(ask(port, topics, (1, 1), seconds))
    found = {
        "many.per_s": many.per_s,
        "many.p50_ms": many.p50_ms,
        "many.p99_ms": many.p99_ms,
        "many.cpu_s_per_million": cpu_s / took_s / many.per_s * 1e6,
        "one.p50_ms": one.p50_ms,
        "one.p99_ms": one.p99_ms,
        "failed": float(many.failed + one.failed),
    }
    say(f"{side.name}: " + ", ".join(f"{key} {value:,.2f}" for key, value in found.items()))
    return found


def metrics() -> list[Metric]:
    """The first one is what the issue asks for."""
    many = f"{CONNECTIONS} connections, {OUTSTANDING} outstanding on each"
    return [
        Metric("many.per_s", f"{many}: lookups", "/s", goal=1.0, more_is_better=True),
        Metric("many.p50_ms", f"{many}: p50", "ms"),
        Metric("many.p99_ms", f"{many}: p99", "ms"),
        Metric("many.cpu_s_per_million", f"{many}: the broker's CPU per million", "s"),
        Metric("one.p50_ms", "one at a time: p50", "ms"),
        Metric("one.p99_ms", "one at a time: p99", "ms"),
        Metric("failed", "lookups that failed", ""),
    ]


GROUP = Group("lookups", "Lookups", run, metrics(), OURS, REFERENCE)
