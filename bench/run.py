"""Side by side with Apache Pulsar: `python -m bench.run [--quick] [--servers a,b] [--generator both] [--rounds N]`.

Servers run one at a time on fresh data, with the same client and the same durability: every journal write is on disk
before its receipt. Apache runs at its leanest setting (1 GB heap, serial collector); as shipped, and, for information,
with the journal sync its standalone has off by default, where --servers says so. Each load is run by two generators,
the Go one and Apache's `pulsar-perf`; rounds begin with one server and the other by turns. Results go to bench/results
as JSON and Markdown, the table into docs/performance.md, and what has a goal into the README. A full round writes some
60 GB of messages a server to the temporary folder, of which 10 GB stand at most, and deletes them again.

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
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pulsar
from rich.console import Console

from bench import features, report, workloads
from bench.generators import GENERATORS, Broken, Figures, Generator, Scenario, out_to_in
from bench.page import ROOT, TEXT_COLUMNS, with_table
from bench.report import Metric, Results
from bench.workloads import SCENARIOS
from e2e import processes
from e2e.server import ApacheStandalone, MagnetarStandalone, StandaloneProcess

RESULTS = Path(__file__).parent / "results"
README = ROOT / "README.md"
PAGE = ROOT / "docs" / "performance.md"
OURS, REFERENCE = "magnetar", "apache-lean"
FIRST_MESSAGE_TIMEOUT_S = 120.0
# A server that is starting refuses the first attempts; the client would report each.
_SILENT = logging.getLogger("bench.first-message")
_SILENT.setLevel(logging.CRITICAL + 1)
# After a start the servers still compile, compact and elect; idle figures are taken when that is over.
SETTLE_S = 10.0
WARM_UP_S = 20.0
QUIET_CORES = 0.3
"""Busy before a server is started: others' work shows above this."""

SERVERS: dict[str, Callable[[Path], StandaloneProcess]] = {
    "magnetar": MagnetarStandalone,
    "apache-lean": lambda data: ApacheStandalone(data, lean=True),
    "apache-shipped": lambda data: ApacheStandalone(data, lean=False),
    "apache-nosync": lambda data: ApacheStandalone(data, lean=True, journal_sync=False),
}

FEATURE_MB, QUICK_FEATURE_MB = 500, 100
"""How much is compacted and offloaded."""


def metrics(plan: Plan) -> list[Metric]:
    """Every row of the table, in its order; goals are ratios to Apache at its leanest."""
    return [
        Metric("busy_before", "cores of the machine busy before", "cores"),
        Metric("start_to_first_ack_s", "start to first acknowledged message", "s", goal=0.2),
        Metric("idle_pss_mb", "memory idle (PSS)", "MB", goal=1 / 3),
        Metric("idle_rss_mb", "memory idle (RSS)", "MB"),
        Metric("idle_cpu_percent", "CPU idle", "% of a core"),
        *workloads.metrics([generator.short for generator in plan.generators]),
        Metric("loaded_pss_mb", "memory after load (PSS)", "MB"),
        *features.metrics(),
    ]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run and how long."""

    servers: list[str]
    scenarios: list[Scenario]
    generators: list[Generator]
    window_s: float
    idle_s: float
    rounds: int
    features: list[str]
    feature_mb: int
    in_page: bool
    """Whether the table goes into the README."""


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
    # Not the load average, which still has the server before in it.
    busy_before = processes.busy_cores(processes.QUIET_SECONDS)
    if busy_before > QUIET_CORES:
        say(f"NOT A QUIET MACHINE: {busy_before:.1f} cores busy; the figures say little about the servers")
    started = time.monotonic()
    server.launch()
    figures = {"busy_before": busy_before, "start_to_first_ack_s": first_acknowledged(server, started)}
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
        for generator in plan.generators:
            try:
                figures |= one(server, scenario, generator, plan.window_s, say)
            except Broken as failure:
                say(f"{scenario.name} ({generator.short}): FAILED, {failure}")
    figures["loaded_pss_mb"] = processes.memory(server.pids).pss_bytes / 1e6
    say(f"memory after load: {figures['loaded_pss_mb']:.0f} MB")
    return figures


def warm_up(server: StandaloneProcess, plan: Plan, say: Callable[[str], None]) -> None:
    """Unbatched load that is not reported: without it the first scenario measures a JVM's compiler."""
    scenario = Scenario("warm-up", 1024, batched=False)
    try:
        plan.generators[0].run(scenario, server.service_url, WARM_UP_S, lambda: 0.0)
    except Broken as failure:
        say(f"warm-up: FAILED, {failure}")


def one(
    server: StandaloneProcess, scenario: Scenario, generator: Generator, window_s: float, say: Callable[[str], None]
) -> dict[str, float]:
    """The figures of one scenario under one generator, their keys prefixed with the names of both."""
    started = time.monotonic()
    seen = generator.run(scenario, server.service_url, window_s, lambda: processes.cpu_seconds(server.pids))
    if seen is None:
        return {}
    if seen.messages == 0:
        raise Broken("no message was published or consumed in the window")
    found = figures_of(seen, scenario, window_s)
    say(
        f"{scenario.name} ({generator.short}): in {seen.published_per_s:,.0f}/s, out {seen.consumed_per_s:,.0f}/s, "
        f"publish p50/p99 {seen.publish_p50_ms:.1f}/{seen.publish_p99_ms:.1f} ms, end to end "
        f"{seen.end_to_end_p50_ms:.1f}/{seen.end_to_end_p99_ms:.1f} ms, CPU a message of the server "
        f"{found['server_cpu_us']:.1f} µs, of the client {found['client_cpu_us']:.1f} µs, {seen.failed} failed "
        f"({time.monotonic() - started:.0f} s)"
    )
    return {f"{workloads.prefix(generator.short, scenario)}.{key}": value for key, value in found.items()}


def figures_of(seen: Figures, scenario: Scenario, window_s: float) -> dict[str, float]:
    """What the table shows of what clients saw. A message counts once for each time that it was consumed."""
    found = {
        "published_per_s": seen.published_per_s,
        "consumed_per_s": seen.consumed_per_s,
        "server_cpu_us": seen.server_cpu_s / seen.messages * 1e6,
        "client_cpu_us": seen.client_cpu_s / seen.messages * 1e6,
        "server_cpu_percent": seen.server_cpu_s / window_s * 100,
        "publish_p50_ms": seen.publish_p50_ms,
        "publish_p99_ms": seen.publish_p99_ms,
        "end_to_end_p50_ms": seen.end_to_end_p50_ms,
        "end_to_end_p99_ms": seen.end_to_end_p99_ms,
        "failed": float(seen.failed),
    }
    if not scenario.backlog:
        found["out_to_in"] = out_to_in(seen.published_per_s, seen.consumed_per_s, scenario.subscriptions)
    return found


def in_turn(servers: list[str], index: int) -> list[str]:
    """The servers in the order of a round: every second one begins at the other end, so that none is always first."""
    return servers if index % 2 == 0 else servers[::-1]


def one_round(plan: Plan, index: int, console: Console) -> Results:
    """Each server once, one after the other, each with a new data folder that is deleted afterwards."""
    # The columns of the table stay in their order.
    results: Results = {name: {} for name in plan.servers}
    for name in in_turn(plan.servers, index) if plan.scenarios else []:
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
        for name in in_turn(plan.servers, index):
            results[name].update(one_feature(name, feature, plan, console))
    return results


def one_feature(name: str, feature: str, plan: Plan, console: Console) -> dict[str, float]:
    """The figures of a feature at a new server that has it on; none where it breaks."""
    folder = Path(tempfile.mkdtemp(prefix=f"magnetar-bench-{name}-"))
    server = features.new_server(name, feature, folder / "data")
    try:
        console.print(f"[bold]{name}[/] {feature}")
        server.start()
        return features.run(
            server, feature, plan.window_s, plan.feature_mb, lambda text: console.print(f"  {text}", highlight=False)
        )
    except (Broken, processes.NotReady, OSError) as failure:
        console.print(f"  {feature}: [red]FAILED[/], {failure}", highlight=False)
        return {}
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def write(rounds: list[Results], plan: Plan, console: Console) -> None:
    """The terminal's table, latest.json (figures and what they were taken with), latest.md, and the pages' tables."""
    names = " and ".join(generator.name for generator in plan.generators)
    title = f"{names}, {plan.window_s:.0f} s windows, {report.told(rounds)}, {os.cpu_count()} cores"
    results = report.median(rounds)
    columns = report.header(results, OURS, REFERENCE)
    body = report.rows(results, metrics(plan), OURS, REFERENCE, report.ranges(rounds))
    console.print(report.terminal(columns, body, title))
    RESULTS.mkdir(exist_ok=True)
    day = time.strftime("%Y-%m-%d", time.gmtime())
    taken = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "generators": [generator.name for generator in plan.generators],
        "window_s": plan.window_s,
        "rounds": len(rounds),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "results": results,
        "each_round": rounds,
    }
    (RESULTS / "latest.json").write_text(json.dumps(taken, indent=2) + "\n")
    (RESULTS / "latest.md").write_text(report.markdown(columns, body, f"Side by side ({title})"))
    if plan.in_page:
        into_pages(results, rounds, plan, f"{day}; {title}.")


def into_pages(results: Results, rounds: list[Results], plan: Plan, text: str) -> None:
    """All rows go to the page about performance; those with a goal to the README. `text` comes before the tables."""
    columns, text = report.header(results, OURS, REFERENCE), textwrap.fill(text, TEXT_COLUMNS)
    for page, shown in ((README, [row for row in metrics(plan) if row.goal is not None]), (PAGE, metrics(plan))):
        body = report.rows(results, shown, OURS, REFERENCE, report.ranges(rounds))
        page.write_text(with_table(page.read_text(), "bench", f"{text}\n\n{report.markdown_table(columns, body)}"))


def parse() -> Plan:
    """The command line as a plan."""
    names = [*(each.name for each in SCENARIOS), *features.NAMES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="10 s windows, a small backlog, one round")
    parser.add_argument("--servers", default=f"{OURS},{REFERENCE}", help=f"of {', '.join(SERVERS)}")
    parser.add_argument("--scenarios", default="", help=f"of {', '.join(names)}; all if empty")
    parser.add_argument("--generator", choices=[*GENERATORS, "both"], default="both")
    parser.add_argument("--window", type=float, default=0.0, help="seconds, instead of 30 (10 with --quick)")
    parser.add_argument("--rounds", type=int, default=0, help="instead of 3 (1 with --quick); medians are shown")
    parser.add_argument("--no-page", action="store_true", help="leave the README's table as it is")
    arguments = parser.parse_args()
    chosen = [name for name in arguments.scenarios.split(",") if name]
    if unknown := set(chosen) - set(names):
        parser.error(f"there is no scenario {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    servers = [name for name in arguments.servers.split(",") if name]
    if unknown := set(servers) - set(SERVERS):
        parser.error(f"there is no server {', '.join(sorted(unknown))}; there are {', '.join(SERVERS)}")
    scenarios = [each for each in SCENARIOS if not chosen or each.name in chosen]
    used = GENERATORS if arguments.generator == "both" else (arguments.generator,)
    return Plan(
        servers=servers,
        scenarios=[workloads.quick(each) for each in scenarios] if arguments.quick else scenarios,
        generators=[GENERATORS[name]() for name in used],
        window_s=arguments.window or (10.0 if arguments.quick else 30.0),
        idle_s=10.0 if arguments.quick else 30.0,
        rounds=arguments.rounds or (1 if arguments.quick else 3),
        features=[name for name in features.NAMES if not chosen or name in chosen],
        feature_mb=QUICK_FEATURE_MB if arguments.quick else FEATURE_MB,
        # A table of a part would take the place of all.
        in_page=not chosen and not arguments.no_page,
    )


def main() -> None:
    """Runs all rounds, and writes the medians after each."""
    plan = parse()
    console = Console(width=180)
    processes.leave_nothing_behind()
    rounds: list[Results] = []
    for index in range(plan.rounds):
        rounds.append(one_round(plan, index, console))
        write(rounds, plan, console)  # Each time: a round takes half an hour, and the next one may be broken off.


if __name__ == "__main__":
    main()
