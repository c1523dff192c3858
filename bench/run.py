"""Side by side with Apache Pulsar: `python -m bench.run [--quick] [--servers a,b] [--generator go] [--rounds N]`.

Servers run one at a time on fresh data, with the same client and the same durability: every journal write is on disk
before its receipt. Apache runs at its leanest setting (1 GB heap, serial collector), as shipped, and, for information,
with the journal sync its standalone has off by default. Results go to bench/results as JSON and Markdown. A full round
writes some 10 GB of messages a server to the temporary folder and deletes them again.

Memory is PSS, which counts a page once however many processes map it. It flatters a Python server while other Python
processes run (this one is one); RSS beside it is the upper bound, except for Apache as shipped, whose collector maps
its heap several times.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pulsar
from rich.console import Console

from bench import features, report
from bench.generators import GENERATORS, Broken, Generator, GoLoad, PulsarPerf, Scenario
from bench.report import Metric, Results
from e2e import processes
from e2e.server import ApacheStandalone, MagnetarStandalone, StandaloneProcess

RESULTS = Path(__file__).parent / "results"
OURS, REFERENCE = "magnetar", "apache-lean"
FIRST_MESSAGE_TIMEOUT_S = 120.0
# A server that is starting refuses the first attempts; the client would report each.
_SILENT = logging.getLogger("bench.first-message")
_SILENT.setLevel(logging.CRITICAL + 1)
# After a start the servers still compile, compact and elect; idle figures are taken when that is over.
SETTLE_S = 10.0
WARM_UP_S = 20.0
# The run before leaves some of its own load in the one-minute average; others' work shows above this.
QUIET_LOAD = 2.5

SERVERS: dict[str, Callable[[Path], StandaloneProcess]] = {
    "magnetar": MagnetarStandalone,
    "apache-lean": lambda data: ApacheStandalone(data, lean=True),
    "apache-shipped": lambda data: ApacheStandalone(data, lean=False),
    "apache-nosync": lambda data: ApacheStandalone(data, lean=True, journal_sync=False),
}

SCENARIOS = [
    Scenario("1KiB-unbatched", 1024, batched=False),
    Scenario("1KiB-batched", 1024, batched=True),
    Scenario("100B-batched", 100, batched=True),
    Scenario("100-topics", 1024, batched=False, topics=100),
    Scenario("1000-per-s", 1024, batched=False, rate=1000),
    Scenario("drain", 1024, batched=True, backlog=1_000_000),
]
QUICK_BACKLOG = 200_000
FEATURE_MB, QUICK_FEATURE_MB = 500, 100
"""How much is compacted and offloaded."""


def metrics() -> list[Metric]:
    """Every row of the table, in its order; goals are ratios to Apache at its leanest."""
    found = [
        Metric("load_before", "load average of the machine before", "processes"),
        Metric("start_to_first_ack_s", "start to first acknowledged message", "s", goal=0.2),
        Metric("idle_pss_mb", "memory idle (PSS)", "MB", goal=1 / 3),
        Metric("idle_rss_mb", "memory idle (RSS)", "MB"),
        Metric("idle_cpu_percent", "CPU idle", "% of a core"),
    ]
    for name in ("1KiB-unbatched", "1KiB-batched", "100B-batched", "100-topics"):
        goal = 1.0 if name != "100-topics" else None
        found.append(Metric(f"{name}.published_per_s", f"{name}: published", "msg/s", goal=goal, more_is_better=True))
        found.append(Metric(f"{name}.consumed_per_s", f"{name}: consumed", "msg/s", more_is_better=True))
        found.append(Metric(f"{name}.cpu_s_per_million", f"{name}: server CPU per million", "s", goal=0.7))
        found.append(Metric(f"{name}.publish_p50_ms", f"{name}: publish p50", "ms"))
        found.append(Metric(f"{name}.publish_p99_ms", f"{name}: publish p99", "ms"))
    for key, label in (("publish", "publish"), ("end_to_end", "end to end")):
        for percentile in ("p50", "p99"):
            goal = 0.7 if (key, percentile) == ("publish", "p99") else None
            found.append(
                Metric(f"1000-per-s.{key}_{percentile}_ms", f"1000 msg/s: {label} {percentile}", "ms", goal=goal)
            )
    found.append(Metric("1000-per-s.cpu_percent", "1000 msg/s: server CPU", "% of a core"))
    found.append(Metric("drain.consumed_per_s", "backlog drain", "msg/s", goal=1.0, more_is_better=True))
    found.append(Metric("loaded_pss_mb", "memory after load (PSS)", "MB"))
    return found + features.metrics()


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run and how long."""

    servers: list[str]
    scenarios: list[Scenario]
    generator: Generator
    window_s: float
    idle_s: float
    rounds: int
    features: list[str]
    feature_mb: int


def first_acknowledged(server: StandaloneProcess, started: float) -> float:
    """Seconds from the process's start until a stock client has a receipt, trying again as fast as it may."""
    while time.monotonic() - started < FIRST_MESSAGE_TIMEOUT_S:
        if not server.pids:
            raise processes.NotReady(server.log_tail())
        if not processes.accepts(server.port):
            time.sleep(0.01)
            continue
        client = pulsar.Client(server.service_url, operation_timeout_seconds=30, logger=_SILENT)
        try:
            client.create_producer("persistent://public/default/first").send(b"first")
            return time.monotonic() - started
        except pulsar.PulsarException:
            time.sleep(0.02)
        finally:
            client.close()
    raise processes.NotReady("no message acknowledged in time")


def measure(server: StandaloneProcess, plan: Plan, say: Callable[[str], None]) -> dict[str, float]:
    """Every figure of one server, from its start to its memory after load. A scenario that breaks leaves no figure."""
    load_before = os.getloadavg()[0]
    if load_before > QUIET_LOAD:
        say(f"NOT A QUIET MACHINE: load average {load_before:.1f}; the figures say little about the servers")
    started = time.monotonic()
    server.launch()
    figures = {"load_before": load_before, "start_to_first_ack_s": first_acknowledged(server, started)}
    say(f"first message acknowledged after {figures['start_to_first_ack_s']:.2f} s")
    time.sleep(SETTLE_S)
    before = processes.cpu_seconds(server.pids)
    time.sleep(plan.idle_s)
    figures["idle_cpu_percent"] = (processes.cpu_seconds(server.pids) - before) / plan.idle_s * 100
    used = processes.memory(server.pids)
    figures |= {"idle_pss_mb": used.pss_bytes / 1e6, "idle_rss_mb": used.rss_bytes / 1e6}
    say(f"idle: {figures['idle_pss_mb']:.0f} MB, {figures['idle_cpu_percent']:.1f} % of a core")
    warm_up(server, plan, say)
    for scenario in plan.scenarios:
        try:
            figures |= one(server, scenario, plan, say)
        except Broken as failure:
            say(f"{scenario.name}: FAILED, {failure}")
    figures["loaded_pss_mb"] = processes.memory(server.pids).pss_bytes / 1e6
    say(f"memory after load: {figures['loaded_pss_mb']:.0f} MB")
    return figures


def warm_up(server: StandaloneProcess, plan: Plan, say: Callable[[str], None]) -> None:
    """Unbatched load that is not reported: without it the first scenario measures a JVM's compiler."""
    scenario = Scenario("warm-up", 1024, batched=False)
    try:
        plan.generator.run(scenario, server.service_url, WARM_UP_S, lambda: 0.0)
    except Broken as failure:
        say(f"warm-up: FAILED, {failure}")


def one(server: StandaloneProcess, scenario: Scenario, plan: Plan, say: Callable[[str], None]) -> dict[str, float]:
    """The figures of one scenario, their keys prefixed with its name."""
    started = time.monotonic()
    seen = plan.generator.run(scenario, server.service_url, plan.window_s, lambda: processes.cpu_seconds(server.pids))
    if seen is None or seen.messages == 0:
        say(f"{scenario.name}: nothing measured with {plan.generator.name}")
        return {}
    found = {
        "published_per_s": seen.published_per_s,
        "consumed_per_s": seen.consumed_per_s,
        "cpu_s_per_million": seen.server_cpu_s / seen.messages * 1e6,
        "cpu_percent": seen.server_cpu_s / plan.window_s * 100,
        "publish_p50_ms": seen.publish_p50_ms,
        "publish_p99_ms": seen.publish_p99_ms,
        "end_to_end_p50_ms": seen.end_to_end_p50_ms,
        "end_to_end_p99_ms": seen.end_to_end_p99_ms,
        "client_cpu_s": seen.client_cpu_s,
        "failed": float(seen.failed),
    }
    say(
        f"{scenario.name}: in {seen.published_per_s:,.0f}/s, out {seen.consumed_per_s:,.0f}/s, publish p50/p99 "
        f"{seen.publish_p50_ms:.1f}/{seen.publish_p99_ms:.1f} ms, end to end {seen.end_to_end_p50_ms:.1f}/"
        f"{seen.end_to_end_p99_ms:.1f} ms, server {found['cpu_s_per_million']:.1f} s CPU per million, "
        f"client {seen.client_cpu_s:.1f} s CPU, {seen.failed} failed ({time.monotonic() - started:.0f} s)"
    )
    return {f"{scenario.name}.{key}": value for key, value in found.items()}


def one_round(plan: Plan, console: Console) -> Results:
    """Each server once, one after the other, each with a new data folder that is deleted afterwards."""
    results: Results = {}
    for name in plan.servers if plan.scenarios else []:
        folder = Path(tempfile.mkdtemp(prefix=f"magnetar-bench-{name}-"))
        server = SERVERS[name](folder / "data")
        console.print(f"[bold]{name}[/]")
        try:
            results[name] = measure(server, plan, lambda text: console.print(f"  {text}", highlight=False))
        except (processes.NotReady, OSError) as failure:
            console.print(f"  [red]did not run:[/] {failure}", highlight=False)
        finally:
            server.stop()
            shutil.rmtree(folder, ignore_errors=True)
    for feature in plan.features:
        for name in plan.servers:
            results.setdefault(name, {}).update(one_feature(name, feature, plan, console))
    return results


def one_feature(name: str, feature: str, plan: Plan, console: Console) -> dict[str, float]:
    """The figures of a feature at a new server that has it on; none where it is not there or breaks."""
    folder = Path(tempfile.mkdtemp(prefix=f"magnetar-bench-{name}-"))
    server = features.new_server(name, feature, folder / "data")
    try:
        if server is None:
            return {}
        console.print(f"[bold]{name}[/] {feature}")
        server.start()
        return features.run(
            server, feature, plan.window_s, plan.feature_mb, lambda text: console.print(f"  {text}", highlight=False)
        )
    except (Broken, processes.NotReady, OSError) as failure:
        console.print(f"  {feature}: [red]FAILED[/], {failure}", highlight=False)
        return {}
    finally:
        if server is not None:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def write(results: Results, plan: Plan, console: Console) -> None:
    """The terminal's table, latest.json (figures and what they were taken with) and latest.md."""
    title = f"{plan.generator.name}, {plan.window_s:.0f} s windows, {plan.rounds} round(s), {os.cpu_count()} cores"
    columns = report.header(results, OURS, REFERENCE)
    body = report.rows(results, metrics(), OURS, REFERENCE)
    console.print(report.terminal(columns, body, title))
    RESULTS.mkdir(exist_ok=True)
    taken = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "generator": plan.generator.name,
        "window_s": plan.window_s,
        "rounds": plan.rounds,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "results": results,
    }
    (RESULTS / "latest.json").write_text(json.dumps(taken, indent=2) + "\n")
    (RESULTS / "latest.md").write_text(report.markdown(columns, body, f"Side by side ({title})"))


def parse() -> Plan:
    """The command line as a plan."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="10 s windows and a small backlog")
    parser.add_argument("--servers", default=",".join(SERVERS), help=f"of {', '.join(SERVERS)}")
    parser.add_argument(
        "--scenarios", default="", help=f"of {', '.join([*(s.name for s in SCENARIOS), *features.NAMES])}; all if empty"
    )
    parser.add_argument("--generator", choices=GENERATORS, default="go")
    parser.add_argument("--window", type=float, default=0.0, help="seconds, instead of 30 (10 with --quick)")
    parser.add_argument("--rounds", type=int, default=1, help="take the median of so many rounds")
    arguments = parser.parse_args()
    chosen = [name for name in arguments.scenarios.split(",") if name]
    scenarios = [each for each in SCENARIOS if not chosen or each.name in chosen]
    if arguments.quick:
        scenarios = [
            Scenario(each.name, each.size_bytes, each.batched, each.topics, each.rate, min(each.backlog, QUICK_BACKLOG))
            for each in scenarios
        ]
    generator: GoLoad | PulsarPerf = GENERATORS[arguments.generator]()
    window_s = arguments.window or (10.0 if arguments.quick else 30.0)
    servers = [name for name in arguments.servers.split(",") if name]
    return Plan(
        servers=servers,
        scenarios=scenarios,
        generator=generator,
        window_s=window_s,
        idle_s=10.0 if arguments.quick else 30.0,
        rounds=arguments.rounds,
        features=[name for name in features.NAMES if not chosen or name in chosen],
        feature_mb=QUICK_FEATURE_MB if arguments.quick else FEATURE_MB,
    )


def main() -> None:
    """Runs all rounds and writes their medians."""
    plan = parse()
    console = Console(width=180)
    processes.leave_nothing_behind()
    rounds = [one_round(plan, console) for _ in range(plan.rounds)]
    write(report.median(rounds), plan, console)


if __name__ == "__main__":
    main()
