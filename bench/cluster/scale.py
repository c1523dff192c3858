"""How far a cluster of this machine's size goes: `python -m bench.cluster.scale [--topics N] [--connections N] …`.

100 000 topics in one namespace over three brokers, four bookies and a proxy; then 10 000 connections to one broker,
and 8 000 through one proxy, which has two open files for each.
Tables go to the terminal, to bench/results as JSON and into docs/cluster-benchmarks.md (`--no-page`: not there).
Needs two cores, some 4 GB of memory and a quarter of an hour.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from bench import page
from bench.cluster import scale_connections, scale_topics
from e2e import processes


def main() -> None:
    """Runs what was asked for and writes each table when it is known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=100_000, help="0: leave them out")
    parser.add_argument("--connections", type=int, default=10_000, help="0: leave them out")
    parser.add_argument("--proxied", type=int, default=8_000, help="connections through a proxy; 0: leave them out")
    parser.add_argument("--no-publish", action="store_true", help="load topics without publishing to each")
    parser.add_argument("--no-page", action="store_true", help="leave the documentation as it is")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long a publisher's latency is taken")
    arguments = parser.parse_args()
    console = Console(width=160)
    processes.leave_nothing_behind()

    def say(text: str) -> None:
        console.print(f"  {text}", highlight=False)

    runs: list[Callable[[Path], page.Figures]] = []
    if arguments.topics:
        publish = not arguments.no_publish
        runs.append(lambda folder: scale_topics.run(folder, arguments.topics, publish, say))
    if arguments.connections:
        runs.append(lambda folder: scale_connections.run(folder, arguments.connections, arguments.seconds, say))
    if arguments.proxied:
        runs.append(
            lambda folder: scale_connections.run_through_proxy(folder, arguments.proxied, arguments.seconds, say)
        )
    for run in runs:
        began, load_before = time.monotonic(), os.getloadavg()[0]
        folder = Path(tempfile.mkdtemp(prefix="magnetar-scale-"))
        try:
            figures = run(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        taken = {
            "seconds in all": f"{time.monotonic() - began:.0f}",
            "cores": os.cpu_count(),
            "load average before": f"{load_before:.1f}",
        }
        page.CLUSTER.write(figures, taken, console, in_page=not arguments.no_page)


if __name__ == "__main__":
    main()
