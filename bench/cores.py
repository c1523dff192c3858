"""How throughput grows with `--processes`: `python -m bench.cores [--quick] [--counts 1,2,4] [--kinds brokers]`.

Each process of the kind that is measured has a fifth of a core (`--cores`), by a control group, so that four of them
are no more than one core and this needs no large machine. What is around them is not limited: for brokers one bookie
and the Go generator, for bookies BookKeeper's own client, which stripes each ledger over all of them with one copy.
Needs root, and for bookies Java and Apache's distribution.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from bench.bookies.fleet import OURS, SETTINGS, Fleet, Load, MeasuredMagnetarBookie
from bench.bookies.run import build
from bench.cpu_share import CpuShares
from bench.generators import Broken, GoLoad, Scenario
from e2e import processes
from e2e.cluster.local import LocalCluster, Size
from e2e.interchange.apache import initialize_cluster
from e2e.part import Part
from e2e.processes import wait_for

RESULTS = Path(__file__).parent / "results"
GOAL = 0.85
"""Of as many times one process's throughput as there are processes."""
START_SECONDS_MAX = 300.0
TOPICS = 64
"""Over sixteen bundles, of which four brokers have four each."""
MESSAGE_BYTES = 1024
LEDGERS = 8
OUTSTANDING = 2_000


def efficiency(rates: dict[int, float]) -> dict[int, float]:
    """By the number of processes: what they carry to so many times what one carries. 1 is as good as it gets."""
    one = rates[1]
    return {count: rate / (count * one) for count, rate in rates.items()}


def start(part: Part, count: int) -> list[int]:
    """Have it run by so many processes; which these are. Raises `NotReady`."""
    part.variables = {"MAGNETAR_PROCESSES": str(count), "MAGNETAR_PROCESSES_METRICS_PORT": "0"}
    part.launch()
    wait_for(
        lambda: not part.running or " ready: " in part.log_text(),
        START_SECONDS_MAX,
        f"{part.folder.name} does not come up",
    )
    assert part.running, part.log_tail()
    own, *children = part.pids
    workers = children or [own]
    assert len(workers) == count, workers
    return workers


def brokers(count: int, cores: float, window_s: float, folder: Path) -> float:
    """Messages a second that so many brokers take and give."""
    with LocalCluster(folder, Size(bookies=1, brokers=1, proxies=0)) as cluster, CpuShares(cores) as shares:
        assert cluster.metadata is not None
        cluster.metadata.start()
        cluster.prepare()
        cluster.bookies[0].start()
        workers = start(cluster.brokers[0], count)
        for pid in workers:
            shares.limit(pid)
        found = GoLoad().run(
            Scenario("cores", MESSAGE_BYTES, batched=False, topics=TOPICS),
            cluster.service_url,
            window_s,
            lambda: processes.cpu_seconds(workers),
        )
        if found is None or found.failed:
            raise Broken("messages failed")
        # In equals out, or the smaller of the two counts.
        return min(found.published_per_s, found.consumed_per_s)


def bookies(count: int, cores: float, window_s: float, folder: Path) -> float:
    """Entries a second that so many bookies take, with one copy of each."""
    fleet = Fleet(OURS, folder)
    try:
        fleet.zookeeper.start()
        initialize_cluster(fleet.zookeeper.address, "bench", folder / "logs")
        machine = MeasuredMagnetarBookie(folder / "bookie", f"metadata-store:zk:{fleet.zookeeper.address}", SETTINGS)
        fleet.bookies.append(machine)
        with CpuShares(cores) as shares:
            for pid in start(machine, count):
                shares.limit(pid)
            found = Load(fleet, build()).measure(
                {
                    "mode": "add",
                    "ledgers": LEDGERS,
                    "size": MESSAGE_BYTES,
                    "outstanding": OUTSTANDING,
                    "ensemble": count,
                    "write": 1,
                    "ack": 1,
                },
                window_s,
            )
        return found["added"] / found["seconds"]
    finally:
        fleet.stop()


KINDS: dict[str, Callable[[int, float, float, Path], float]] = {"brokers": brokers, "bookies": bookies}


def main() -> None:
    """Measures each kind with each number of processes, and writes what it found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="10 s windows instead of 30 s")
    parser.add_argument("--window", type=float, default=0.0, help="seconds of each window")
    parser.add_argument("--counts", default="1,2,4", help="numbers of processes, 1 among them")
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"of {', '.join(KINDS)}")
    parser.add_argument("--cores", type=float, default=0.2, help="share of a core of each process")
    given = parser.parse_args()
    window_s = given.window or (10.0 if given.quick else 30.0)
    processes.leave_nothing_behind()
    console = Console(width=120)
    results: dict[str, dict[str, dict[int, float]]] = {}
    for kind in given.kinds.split(","):
        rates: dict[int, float] = {}
        for count in map(int, given.counts.split(",")):
            folder = Path(tempfile.mkdtemp(prefix=f"magnetar-bench-cores-{kind}-{count}-"))
            try:
                rates[count] = KINDS[kind](count, given.cores, window_s, folder)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            share = efficiency(rates)[count]
            verdict = (
                "" if count == 1 else f", {share:.2f} of N times one ({'met' if share >= GOAL else 'missed'}, ≥ {GOAL})"
            )
            console.print(f"{kind}, {count} with {given.cores:g} of a core each: {rates[count]:,.0f} a second{verdict}")
        results[kind] = {"per_s": rates, "to_n_times_one": efficiency(rates)}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "cores.json").write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
