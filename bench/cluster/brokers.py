"""One broker against three, over the same bookie and the same number of topics, for each side."""

from __future__ import annotations

import shutil
from pathlib import Path

from bench.cluster import load, sides
from bench.cluster.group import Group, Plan, Say
from bench.cluster.load import Load
from bench.cluster.sides import Shape
from bench.generators import Broken
from bench.report import Metric, Results

TOPICS = 12
BUNDLES = 12
COUNTS = (1, 3)
LOADS = [Load("1KiB-unbatched", topics=TOPICS), Load("1KiB-batched", batched=True, topics=TOPICS)]
WARM_UP_S = 8.0


def column(side: str, brokers: int) -> str:
    """Its name in the table."""
    return f"{side} {brokers}"


def run(folder: Path, plan: Plan, say: Say) -> Results:
    """A column for each side and number of brokers."""
    results: Results = {}
    for name in (sides.OURS, sides.REFERENCE):
        for count in COUNTS:
            place = folder / f"{name}-{count}"
            with sides.running(name, place, Shape(brokers=count, bookies=1)) as side:
                results[column(name, count)] = _measure(side, plan, say)
            shutil.rmtree(place, ignore_errors=True)
    return results


def _measure(side: sides.Side, plan: Plan, say: Say) -> dict[str, float]:
    namespace = sides.new_namespace(side, "public/spread", BUNDLES)
    namespace.spread()
    prefix = namespace.spread_prefix(TOPICS)
    url = sides.service_url(side)
    brokers = [pid for broker in side.brokers for pid in broker.pids]
    parts = {"brokers": brokers, "servers": side.pids}
    found: dict[str, float] = {}
    load.run(Load("warm-up", topics=TOPICS), url, prefix, WARM_UP_S, {})
    for each in LOADS:
        try:
            seen = load.run(each, url, prefix, plan.window_s, parts)
        except Broken as failure:
            say(f"{column(side.name, len(side.brokers))} {each.name}: FAILED, {failure}")
            continue
        figures = {
            "published_per_s": seen.published_per_s,
            "consumed_per_s": seen.consumed_per_s,
            "publish_p99_ms": seen.publish_p99_ms,
            "broker_cpu_s_per_million": seen.cpu_s["brokers"] / max(1, seen.messages) * 1e6,
            "server_cores": seen.cpu_s["servers"] / plan.window_s,
            "published_per_core_s": seen.published_per_s * plan.window_s / max(0.01, seen.cpu_s["servers"]),
        }
        found |= {f"{each.name}.{key}": value for key, value in figures.items()}
        shown = ", ".join(f"{key} {value:,.2f}" for key, value in figures.items())
        say(f"{column(side.name, len(side.brokers))} {each.name}: {shown}")
    return found


def metrics() -> list[Metric]:
    """The goal compares our three brokers with our one."""
    found = []
    for each in LOADS:
        found += [
            Metric(f"{each.name}.published_per_s", f"{each.name}: published", "msg/s", goal=1.0, more_is_better=True),
            Metric(f"{each.name}.consumed_per_s", f"{each.name}: consumed", "msg/s", more_is_better=True),
            Metric(f"{each.name}.publish_p99_ms", f"{each.name}: publish p99", "ms"),
            Metric(f"{each.name}.broker_cpu_s_per_million", f"{each.name}: brokers' CPU per million", "s"),
            Metric(f"{each.name}.server_cores", f"{each.name}: cores used by brokers and bookie", ""),
            Metric(f"{each.name}.published_per_core_s", f"{each.name}: published per core used", "msg/s"),
        ]
    return found


GROUP = Group("brokers", "One broker and three", run, metrics(), column(sides.OURS, 3), column(sides.OURS, 1))
