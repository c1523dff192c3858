"""Our cluster beside Apache's: `python -m bench.cluster.run [--quick] [--only NAME] [--rounds N]`.

Unloads and crashes as a stock client feels them, proxies, lookups, one broker and three, replication.
Sides and ways in are measured one after the other in one run, on fresh data, under the same client and the same
durability: what is compared was taken within minutes. Tables go to the terminal, to bench/results as JSON and into
docs/cluster-benchmarks.md (`--no-page`: not there).
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from pathlib import Path

from rich.console import Console

from bench import page, report
from bench.cluster import brokers, lookups, moves, proxies, replication
from bench.cluster.group import FULL, QUICK, Group, Plan
from e2e import processes

_ALL = (moves.GROUP, proxies.GROUP, lookups.GROUP, brokers.GROUP, replication.GROUP)
GROUPS = {group.name: group for group in _ALL}
# The run before leaves some of its own load in the one-minute average; others' work shows above this.
QUIET_LOAD = 2.5


def measure(group: Group, plan: Plan, rounds: int, console: Console) -> report.Results:
    """The median of so many rounds."""
    found = []
    for _ in range(rounds):
        if os.getloadavg()[0] > QUIET_LOAD:
            console.print(f"[red]not a quiet machine:[/] load average {os.getloadavg()[0]:.1f}, the figures say little")
        folder = Path(tempfile.mkdtemp(prefix=f"magnetar-bench-cluster-{group.name}-"))
        try:
            found.append(group.run(folder, plan, lambda text: console.print(f"  {text}", highlight=False)))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return report.median(found)


def main() -> None:
    """Runs what was asked for and writes each table when it is known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="8 s windows, few unloads and crashes")
    parser.add_argument("--only", choices=GROUPS, action="append", help="may repeat; all if left out")
    parser.add_argument("--rounds", type=int, default=1, help="take the median of so many rounds")
    parser.add_argument("--no-page", action="store_true", help="leave the documentation as it is")
    arguments = parser.parse_args()
    console = Console(width=160)
    processes.leave_nothing_behind()
    plan = QUICK if arguments.quick else FULL
    for name in arguments.only or GROUPS:
        group = GROUPS[name]
        console.print(f"[bold]{group.title}[/]")
        load_before = os.getloadavg()[0]
        results = measure(group, plan, arguments.rounds, console)
        taken = {
            "seconds a window": f"{plan.window_s:.0f}",
            "rounds": arguments.rounds,
            "cores": os.cpu_count(),
            "load average before": f"{load_before:.1f}",
        }
        figures = page.Figures(name, group.title, results, group.metrics, group.ours, group.reference)
        page.CLUSTER.write(figures, taken, console, in_page=not arguments.no_page)


if __name__ == "__main__":
    main()
