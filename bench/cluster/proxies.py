"""Our broker reached directly, through our proxy, and through Apache's proxy: the same broker, one after the other."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from bench.cluster import load, sides
from bench.cluster.group import Group, Plan, Say
from bench.cluster.load import Load
from bench.cluster.sides import LeanApacheProxy
from bench.generators import Broken
from bench.report import Metric, Results
from e2e.cluster.local import LocalCluster, Size, start_all

DIRECT, OURS, REFERENCE = "direct", "magnetar proxy", "apache proxy"
LOADS = [
    Load("1KiB-unbatched"),
    Load("1KiB-batched", batched=True),
    Load("consume-1KiB-unbatched", backlog=200_000),
    Load("consume-1KiB-batched", batched=True, backlog=500_000),
    Load("1000-per-s", rate=1_000),
]
WARM_UP = Load("warm-up")
WARM_UP_S = 5.0


def run(folder: Path, plan: Plan, say: Say) -> Results:
    """A column for each way in."""
    size = Size(bookies=1, brokers=1, proxies=1)
    with LocalCluster(folder, size, broker_settings=sides.STEADY) as cluster:
        cluster.start()
        theirs = LeanApacheProxy(folder / "apache-proxy", cluster.settings.metadata_url, cluster.name)
        try:
            start_all([theirs])
            fronts = {
                DIRECT: cluster.brokers[0].service_url,
                OURS: cluster.proxies[0].service_url,
                REFERENCE: theirs.service_url,
            }
            proxies = {DIRECT: [], OURS: cluster.proxies[0].pids, REFERENCE: theirs.pids}
            broker = cluster.brokers[0].pids
            return measure(fronts, proxies, broker, plan, say)
        finally:
            theirs.kill()


def measure(
    fronts: Mapping[str, str], proxies: Mapping[str, list[int]], broker: list[int], plan: Plan, say: Say
) -> Results:
    """Every load through every front; neighbours in time are what is compared."""
    results: Results = {name: {} for name in fronts}
    for name, url in fronts.items():
        try:
            load.run(WARM_UP, url, _topic(WARM_UP, name), WARM_UP_S, {})
        except Broken as failure:
            say(f"warm-up, {name}: FAILED, {failure}")
    for each in LOADS:
        for name, url in fronts.items():
            parts = {"proxy": proxies[name], "broker": broker}
            try:
                seen = load.run(each, url, _topic(each, name), plan.window_s, parts)
            except Broken as failure:
                say(f"{each.name}, {name}: FAILED, {failure}")
                continue
            figures = _figures(each, seen)
            results[name] |= {f"{each.name}.{key}": value for key, value in figures.items()}
            say(f"{each.name}, {name}: " + ", ".join(f"{key} {value:,.2f}" for key, value in figures.items()))
    _compare_with_direct(results)
    return results


def _topic(each: Load, front: str) -> str:
    return f"persistent://public/default/{each.name}-{front.replace(' ', '-')}-{time.time_ns()}"


def _figures(each: Load, seen: load.Seen) -> dict[str, float]:
    if each.rate:
        return {
            "publish_p50_ms": seen.publish_p50_ms,
            "publish_p99_ms": seen.publish_p99_ms,
            "end_to_end_p99_ms": seen.end_to_end_p99_ms,
        }
    found = {"consumed_per_s": seen.consumed_per_s, "failed": float(seen.failed)}
    if not each.backlog:
        found |= {"published_per_s": seen.published_per_s, "publish_p99_ms": seen.publish_p99_ms}
    if seen.bytes_through and seen.cpu_s["proxy"]:
        found["proxy_cpu_s_per_gb"] = seen.cpu_s["proxy"] / (seen.bytes_through / 1e9)
    return found


def _compare_with_direct(results: Results) -> None:
    """Shares of what was reached without a proxy; milliseconds that the proxy adds."""
    direct = results[DIRECT]
    for name in (OURS, REFERENCE):
        found = results[name]
        for key in list(found):
            if key.endswith("_per_s") and direct.get(key):
                found[f"{key}.share"] = found[key] / direct[key]
            elif key.startswith("1000-per-s.") and key in direct:
                found[f"{key}.added"] = found[key] - direct[key]


def metrics() -> list[Metric]:
    """Goals: a share of direct, and not less than Apache's proxy."""
    found = []
    for each in LOADS:
        if each.rate:
            continue
        kinds = ("consumed",) if each.backlog else ("published", "consumed")
        for kind in kinds:
            key = f"{each.name}.{kind}_per_s"
            found.append(Metric(key, f"{each.name}: {kind}", "msg/s", goal=1.0, more_is_better=True))
            share = Metric(
                f"{key}.share", f"{each.name}: {kind}, of direct", "", 0.7, more_is_better=True, absolute=True
            )
            found.append(share)
        found.append(Metric(f"{each.name}.proxy_cpu_s_per_gb", f"{each.name}: the proxy's CPU per GB", "s"))
    for key, label in (
        ("publish_p50_ms", "publish p50"),
        ("publish_p99_ms", "publish p99"),
        ("end_to_end_p99_ms", "end to end p99"),
    ):
        found.append(Metric(f"1000-per-s.{key}", f"1000 msg/s: {label}", "ms"))
        found.append(Metric(f"1000-per-s.{key}.added", f"1000 msg/s: {label}, added", "ms"))
    return found


GROUP = Group("proxy", "Through a proxy", run, metrics(), OURS, REFERENCE)
