"""Our bookie beside Apache BookKeeper's: `python -m bench.bookies.run [--quick] [--rounds N] [--scenarios a,b]`.

Both kinds run one after the other, on fresh data, over a ZooKeeper of their own, from the same settings file (Apache's
`bookkeeper.conf`, every journal write forced to disk), under the same load from BookKeeper's own Java client. Rounds
begin with one kind and the other by turns. Results go to bench/results as JSON and Markdown, the table into
docs/bookie-benchmarks.md. Apache's bookies have a lean heap (512 MB, as much direct memory, serial collector): what
they need at least to keep up.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from bench import report
from bench.bookies.fleet import KINDS, OURS, REFERENCE, REGISTERED_S, Fleet, Load
from bench.bookies.scenarios import SCENARIOS, Scenario, metrics
from bench.generators import Broken
from bench.page import ROOT, TEXT_COLUMNS, with_table
from bench.report import Results
from e2e import processes
from e2e.interchange.apache import initialize_cluster
from e2e.peers import distribution

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
PAGE = ROOT / "docs" / "bookie-benchmarks.md"
DISK_BYTES_MIN = 45e9
"""Free where temporary files go: three bookies on a fast disk write a gigabyte a second, journals included."""
SETTLE_S = 5.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run and how long."""

    kinds: list[str]
    scenarios: list[Scenario]
    window_s: float
    size_factor: float
    rounds: int
    in_page: bool


def build() -> str:
    """Compile the load generator; its class path."""
    classes = HERE / "build"
    libraries = f"{distribution.home() / 'lib'}/*"
    classes.mkdir(exist_ok=True)
    subprocess.run(["javac", "-d", str(classes), "-cp", libraries, str(HERE / "LedgerLoad.java")], check=True)
    return f"{classes}:{libraries}"


def measure(kind: str, folder: Path, plan: Plan, class_path: str, say: Callable[[str], None]) -> dict[str, float]:
    """Every figure of one kind. A scenario that breaks leaves no figure."""
    figures: dict[str, float] = {"busy_before": processes.busy_cores(processes.QUIET_SECONDS)}
    with started(kind, folder / "shared") as fleet:
        begin = time.monotonic()
        fleet.start(1)
        figures["start_s"] = time.monotonic() - begin - REGISTERED_S
        time.sleep(SETTLE_S)
        figures["idle_pss_mb"] = processes.memory(fleet.pids).pss_bytes / 1e6
        for scenario in [each for each in plan.scenarios if not each.alone]:
            figures |= one(scenario, fleet, plan, class_path, say)
            if scenario.name == SCENARIOS[0].name:
                figures["loaded_pss_mb"] = processes.memory(fleet.pids).pss_bytes / 1e6
    shutil.rmtree(folder / "shared")
    for scenario in [each for each in plan.scenarios if each.alone]:
        with started(kind, folder / scenario.name) as fleet:
            figures |= one(scenario, fleet, plan, class_path, say)
        shutil.rmtree(folder / scenario.name)
    return figures


@contextlib.contextmanager
def started(kind: str, folder: Path) -> Iterator[Fleet]:
    """A fleet without bookies yet, its cluster made: Apache's bookies start only where one was made before."""
    fleet = Fleet(kind, folder)
    try:
        fleet.zookeeper.start()
        initialize_cluster(fleet.zookeeper.address, "bench", folder / "logs")
        yield fleet
    finally:
        fleet.stop()


def one(scenario: Scenario, fleet: Fleet, plan: Plan, class_path: str, say: Callable[[str], None]) -> dict[str, float]:
    """One scenario's figures, their keys prefixed with its name."""
    try:
        found = scenario.run(fleet, Load(fleet, class_path), plan.window_s, plan.size_factor)
    except (Broken, processes.NotReady, subprocess.TimeoutExpired, AssertionError) as failure:
        say(f"{scenario.name}: FAILED, {failure}")
        return {}
    say(f"{scenario.name}: " + ", ".join(f"{name} {value:,.2f}" for name, value in found.items()))
    return {f"{scenario.name}.{name}": value for name, value in found.items()}


def one_round(plan: Plan, index: int, class_path: str, console: Console) -> Results:
    """Each kind once, in folders that are deleted afterwards; every second round begins with the other kind."""
    # The columns of the table stay in their order.
    results: Results = {kind: {} for kind in plan.kinds}
    for kind in plan.kinds if index % 2 == 0 else plan.kinds[::-1]:
        folder = Path(tempfile.mkdtemp(prefix=f"magnetar-bench-bookies-{kind}-"))
        console.print(f"[bold]{kind}[/]")
        try:
            results[kind] = measure(
                kind, folder, plan, class_path, lambda text: console.print(f"  {text}", highlight=False)
            )
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return results


def parse() -> Plan:
    """The command line as a plan."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="10 s windows, a third of the data, one round")
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"of {', '.join(KINDS)}")
    parser.add_argument(
        "--scenarios", default="", help=f"of {', '.join(each.name for each in SCENARIOS)}; all if empty"
    )
    parser.add_argument("--rounds", type=int, default=0, help="instead of 3 (1 with --quick); medians are shown")
    parser.add_argument("--no-page", action="store_true", help="leave the page's table as it is")
    arguments = parser.parse_args()
    needed_bytes = DISK_BYTES_MIN / 3 if arguments.quick else DISK_BYTES_MIN
    free_bytes = shutil.disk_usage(tempfile.gettempdir()).free
    if free_bytes < needed_bytes:
        folder, needed, free = tempfile.gettempdir(), needed_bytes / 1e9, free_bytes / 1e9
        parser.error(
            f"{needed:.0f} GB are needed at {folder} and {free:.0f} are free: bookies on a full disk take nothing. "
            "Free some, or set TMPDIR to a folder of another disk"
        )
    kinds = [name for name in arguments.kinds.split(",") if name]
    chosen = [name for name in arguments.scenarios.split(",") if name]
    return Plan(
        kinds=kinds,
        scenarios=[each for each in SCENARIOS if not chosen or each.name in chosen],
        window_s=10.0 if arguments.quick else 30.0,
        size_factor=1 / 3 if arguments.quick else 1.0,
        rounds=arguments.rounds or (1 if arguments.quick else 3),
        # A table of a part would take the place of all.
        in_page=not chosen and set(kinds) == set(KINDS) and not arguments.no_page,
    )


def main() -> None:
    """Runs all rounds and writes their medians."""
    plan = parse()
    console = Console(width=160)
    processes.leave_nothing_behind()
    class_path = build()
    write([one_round(plan, index, class_path, console) for index in range(plan.rounds)], plan, console)


def write(rounds: list[Results], plan: Plan, console: Console) -> None:
    """The terminal's table, the figures of each round as JSON, and the page's table."""
    title = f"bookies, {plan.window_s:.0f} s windows, {report.told(rounds)}, {os.cpu_count()} cores"
    results = report.median(rounds)
    columns = report.header(results, OURS, REFERENCE)
    body = report.rows(results, metrics(), OURS, REFERENCE, report.ranges(rounds))
    console.print(report.terminal(columns, body, title))
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "bookies.json").write_text(json.dumps({"results": results, "each_round": rounds}, indent=2) + "\n")
    (RESULTS / "bookies.md").write_text(report.markdown(columns, body, f"Side by side ({title})"))
    if plan.in_page:
        text = textwrap.fill(
            f"{time.strftime('%Y-%m-%d', time.gmtime())}; {title}, shared with the client.", TEXT_COLUMNS
        )
        table = report.markdown_table(columns, body)
        PAGE.write_text(with_table(PAGE.read_text(), "bookies", f"{text}\n\n{table}"))


if __name__ == "__main__":
    main()
