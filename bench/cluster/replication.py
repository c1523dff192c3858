"""Two clusters of a side, of which the first replicates to the second: a backlog, and a steady trickle.

A backlog is published into a namespace of the first cluster alone, and consumed there by a plain consumer: that is what
replication is compared with. An equal one is then replicated, from the moment at which the second cluster is added to
the namespace (`replicationStartAt=earliest`). The trickle is consumed at the second cluster.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.cluster import load, sides
from bench.cluster.group import Group, Plan, Say
from bench.cluster.load import Load
from bench.cluster.sides import OURS, REFERENCE, Shape, Side
from bench.generators import Broken
from bench.report import Metric, Results
from e2e import processes
from e2e.cluster import admin

WEST, EAST = "west", "east"
SETTINGS = {"replicationStartAt": "earliest"}
TRICKLE = Load("1000 msg/s", rate=1000)
BACKLOGS = {
    "1KiB-unbatched": (Load("1KiB-unbatched"), 20_000),
    "1KiB-batched": (Load("1KiB-batched", batched=True), 60_000),
}
"""Each with its messages for each second of a window."""
REST_S = 3.0
"""Caches keep entries for a second: a backlog is read from bookies, whoever reads it."""
WARM_UP_S = 8.0
POLLED_EVERY_S = 0.1
REPLICATED_SECONDS_MAX = 600.0
LAG_GOAL_MS = 50.0
RATE_GOAL, CPU_GOAL = 0.8, 1.5
"""Of a plain consumer's."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Both clusters of a side; the first knows the second."""

    west: Side
    east: Side

    @property
    def name(self) -> str:
        return self.west.name

    def parts(self) -> dict[str, list[int]]:
        """The brokers' processes, each cluster's for itself."""
        return {cluster: _broker_pids(side) for cluster, side in ((WEST, self.west), (EAST, self.east))}


def _broker_pids(side: Side) -> list[int]:
    return [pid for broker in side.brokers for pid in broker.pids]


def run(folder: Path, plan: Plan, say: Say) -> Results:
    """A column for each side."""
    results: Results = {}
    for name in (OURS, REFERENCE):
        place = folder / name
        shapes = {cluster: Shape(cluster=cluster, settings=SETTINGS) for cluster in (WEST, EAST)}
        with (
            sides.running(name, place / WEST, shapes[WEST]) as west,
            sides.running(name, place / EAST, shapes[EAST]) as east,
        ):
            results[name] = _measure(_connected(west, east), plan, say)
        shutil.rmtree(place, ignore_errors=True)
    return results


def _connected(west: Side, east: Side) -> Pair:
    # A namespace is created first, because a broker of Apache's knows its default tenant only then.
    for side in (west, east):
        sides.new_namespace(side, "public/warm-up", 1)
    there, tenants = east.brokers[0], {"adminRoles": [], "allowedClusters": [WEST, EAST]}
    urls = {"serviceUrl": there.admin_url, "brokerServiceUrl": there.service_url}
    admin.call("PUT", f"{west.brokers[0].admin_url}/admin/v2/clusters/{EAST}", urls)
    admin.call("POST", f"{west.brokers[0].admin_url}/admin/v2/tenants/public", tenants)
    return Pair(west, east)


def _measure(pair: Pair, plan: Plan, say: Say) -> dict[str, float]:
    _replicate(pair, "public/warm-up")
    _trickle(pair, "public/warm-up", WARM_UP_S, at=pair.east)
    sides.new_namespace(pair.west, "public/alone", 1)
    found = {
        f"alone.{key}": value for key, value in _trickle(pair, "public/alone", plan.window_s, at=pair.west).items()
    }
    beside = _trickle(pair, "public/warm-up", plan.window_s, at=pair.east)
    found |= {f"replicated.{key}": value for key, value in beside.items()}
    say(f"{pair.name} {TRICKLE.name}: {_shown(found)}")
    for kind, (each, per_window_s) in BACKLOGS.items():
        count = int(per_window_s * plan.window_s)
        try:
            of_kind = _backlog(pair, kind, each, count)
        except Broken as failure:
            say(f"{pair.name} {kind}: FAILED, {failure}")
            continue
        say(f"{pair.name} {kind}, {count:,} messages: {_shown(of_kind)}")
        found |= {f"{kind}.{key}": value for key, value in of_kind.items()}
    return found


def _trickle(pair: Pair, namespace: str, window_s: float, at: Side) -> dict[str, float]:
    topic = f"persistent://{namespace}/trickle-{time.time_ns()}"
    seen = load.run(
        TRICKLE, sides.service_url(pair.west), topic, window_s, pair.parts(), consume_url=sides.service_url(at)
    )
    return {
        "end_to_end_p50_ms": seen.end_to_end_p50_ms,
        "end_to_end_p99_ms": seen.end_to_end_p99_ms,
        "consumed_per_s": seen.consumed_per_s,
        "west_broker_cpu_us": seen.cpu_s[WEST] / max(1, seen.messages) * 1e6,
    }


def _backlog(pair: Pair, kind: str, each: Load, count: int) -> dict[str, float]:
    """One consumed, one replicated."""
    # Namespaces of their own, because all topics of a namespace are replicated.
    consumed_at, replicated_at = f"public/consumed-{kind.lower()}", f"public/replicated-{kind.lower()}"
    sides.new_namespace(pair.west, consumed_at, 1)
    for side in (pair.west, pair.east):
        sides.new_namespace(side, replicated_at, 1)
    url, parts = sides.service_url(pair.west), pair.parts()
    filled = Load(each.name, batched=each.batched, backlog=count, rest_s=REST_S)
    # The first one is not reported: without it a JVM's compiler is measured.
    load.run(filled, url, f"persistent://{consumed_at}/first", 0.0, {})
    consumed = load.run(filled, url, f"persistent://{consumed_at}/consumed", 0.0, parts)
    topic = f"{replicated_at}/backlog"
    load.fill(filled, url, f"persistent://{topic}")
    time.sleep(REST_S)
    _replicate(pair, replicated_at)
    replicated_per_s, cpu_us = _replicated(pair, topic, count, parts)
    consumer_cpu_us = consumed.cpu_s[WEST] / consumed.messages * 1e6
    return {
        "consumed_per_s": consumed.consumed_per_s,
        "replicated_per_s": replicated_per_s,
        "rate": replicated_per_s / consumed.consumed_per_s,
        "consumer_cpu_us": consumer_cpu_us,
        "west_cpu_us": cpu_us[WEST],
        "east_cpu_us": cpu_us[EAST],
        "cpu": cpu_us[WEST] / consumer_cpu_us,
    }


def _replicate(pair: Pair, namespace: str) -> None:
    """From here on."""
    admin.call("POST", f"{pair.west.brokers[0].admin_url}/admin/v2/namespaces/{namespace}/replication", [WEST, EAST])


def _replicated(pair: Pair, topic: str, count: int, parts: Mapping[str, list[int]]) -> tuple[float, dict[str, float]]:
    """How many a second arrived, and each cluster's brokers' CPU a message in µs, between the first and the last."""
    deadline = time.monotonic() + REPLICATED_SECONDS_MAX
    first = 0
    began, before = 0.0, dict.fromkeys(parts, 0.0)
    while (arrived := _arrived(pair.east, topic)) < count:
        if time.monotonic() > deadline:
            raise Broken(f"{arrived} of {count} messages were replicated within {REPLICATED_SECONDS_MAX:.0f} s")
        if not first and arrived:
            first, began = arrived, time.monotonic()
            before = {name: processes.cpu_seconds(pids) for name, pids in parts.items()}
        time.sleep(POLLED_EVERY_S)
    took_s, counted = time.monotonic() - began, count - first
    if not first or not counted:
        raise Broken(f"{count} messages were replicated between two looks: too few to measure")
    used = {name: processes.cpu_seconds(pids) - before[name] for name, pids in parts.items()}
    return counted / took_s, {name: seconds / counted * 1e6 for name, seconds in used.items()}


def _arrived(side: Side, topic: str) -> int:
    """0 while the topic is not there."""
    url = f"{side.brokers[0].admin_url}/admin/v2/namespaces/{topic.rpartition('/')[0]}/topics"
    if f"persistent://{topic}" not in admin.get_json(url):
        return 0
    count: int = admin.get_json(f"{side.brokers[0].admin_url}/admin/v2/persistent/{topic}/stats")["msgInCounter"]
    return count


def _shown(found: Mapping[str, float]) -> str:
    return ", ".join(f"{key} {value:,.2f}" for key, value in found.items())


def metrics() -> list[Metric]:
    """Goals are ours alone: what the replicator costs beside a plain consumer of the same backlog."""
    found = []
    for kind in BACKLOGS:
        found += [
            Metric(f"{kind}.consumed_per_s", f"{kind} backlog: consumed", "msg/s", more_is_better=True),
            Metric(f"{kind}.replicated_per_s", f"{kind} backlog: replicated", "msg/s", more_is_better=True),
            Metric(
                f"{kind}.rate",
                f"{kind} backlog: replicated, of consumed",
                "",
                RATE_GOAL,
                more_is_better=True,
                absolute=True,
            ),
            Metric(f"{kind}.consumer_cpu_us", f"{kind} backlog: broker's CPU a message consumed", "µs"),
            Metric(f"{kind}.west_cpu_us", f"{kind} backlog: sending broker's CPU a message replicated", "µs"),
            Metric(f"{kind}.east_cpu_us", f"{kind} backlog: receiving broker's CPU a message replicated", "µs"),
            Metric(
                f"{kind}.cpu", f"{kind} backlog: sending broker's CPU, of a consumer's", "", CPU_GOAL, absolute=True
            ),
        ]
    for key, label in (("alone", "consumed at the first cluster"), ("replicated", "consumed at the second cluster")):
        goal = LAG_GOAL_MS if key == "replicated" else None
        found += [
            Metric(f"{key}.consumed_per_s", f"{TRICKLE.name}, {label}: consumed", "msg/s"),
            Metric(f"{key}.end_to_end_p50_ms", f"{TRICKLE.name}, {label}: end to end p50", "ms"),
            Metric(
                f"{key}.end_to_end_p99_ms",
                f"{TRICKLE.name}, {label}: end to end p99",
                "ms",
                goal,
                absolute=goal is not None,
            ),
            Metric(
                f"{key}.west_broker_cpu_us", f"{TRICKLE.name}, {label}: first cluster's broker's CPU a message", "µs"
            ),
        ]
    return found


GROUP = Group("replication", "Replication from one cluster to another", run, metrics(), OURS, REFERENCE)
