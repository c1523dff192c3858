"""Our bookie beside Apache BookKeeper's: `python -m bench.bookies.run [--quick] [--rounds N] [--scenarios a,b]`.

Both kinds run one after the other, on fresh data, over a ZooKeeper of their own, from the same settings file (Apache's
`bookkeeper.conf`, every journal write forced to disk), under the same load from BookKeeper's own Java client. Results
go to bench/results as JSON and Markdown. Apache's bookies have a lean heap (512 MB, as much direct memory, serial
collector): what they need at least to keep up.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kazoo.client import KazooClient
from magnetar.ledger.ledger_paths import ledger_path
from magnetar.metadata.testing import ZookeeperServer
from rich.console import Console

from bench import report
from bench.bookies.scenarios import SCENARIOS, Scenario, metrics
from bench.generators import Broken, watch
from bench.report import Results
from e2e import processes
from e2e.interchange.apache import ApacheAutoRecovery, ApacheBookie, initialize_cluster
from e2e.interchange.ours import OurAutoRecovery, OurBookie
from e2e.interchange.parts import BookiePart
from e2e.peers import distribution

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
OURS, REFERENCE = "magnetar", "apache"
SETTLE_S = 5.0
GRACE_S = 180.0
REGISTERED_S = 5.0
LEAN = {"BOOKIE_MEM": "-Xms64m -Xmx512m -XX:MaxDirectMemorySize=512m", "BOOKIE_GC": "-XX:+UseSerialGC"}
# Both sides: what the machine has must not be the limit, and a load is no reason to turn read-only.
SETTINGS = {
    "diskUsageThreshold": "0.98",
    "autoRecoveryDaemonEnabled": "false",
    # Journals that are done with would fill the disk: 12 GB a bookie.
    "journalMaxBackups": "0",
}


class MeasuredBookie(BookiePart):
    """Counts as started when its port is open, which is what both kinds have in common."""

    def ready(self) -> bool:
        return processes.accepts(self.port)


class MeasuredMagnetarBookie(MeasuredBookie, OurBookie):
    """As its users run it."""


class MeasuredApacheBookie(MeasuredBookie, ApacheBookie):
    """With a heap that it can keep up with, and both compilers: as fast as it gets."""

    def environment(self) -> dict[str, str]:
        return {**super().environment(), **LEAN}


KINDS: dict[str, type[BookiePart]] = {OURS: MeasuredMagnetarBookie, REFERENCE: MeasuredApacheBookie}

RECOVERIES: dict[str, type[OurAutoRecovery] | type[ApacheAutoRecovery]] = {
    OURS: OurAutoRecovery,
    REFERENCE: ApacheAutoRecovery,
}


class Fleet:
    """Some bookies of one kind over one ZooKeeper."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self._folder = folder
        self.zookeeper = ZookeeperServer(folder / "zookeeper")
        self.bookies: list[BookiePart] = []

    def start(self, count: int) -> None:
        """Have that many, the first ones started already included."""
        while len(self.bookies) < count:
            uri = f"metadata-store:zk:{self.zookeeper.address}"
            bookie = KINDS[self.kind](self._folder / f"bookie{len(self.bookies)}", uri, SETTINGS)
            self.bookies.append(bookie)
            bookie.start()
        time.sleep(REGISTERED_S)

    @property
    def pids(self) -> list[int]:
        """Every process of the bookies."""
        return [pid for bookie in self.bookies for pid in bookie.pids]

    def cpu_seconds(self, others: list[int] | None = None) -> float:
        """User and system time of the bookies and some other processes so far."""
        return processes.cpu_seconds([*self.pids, *(others or [])])

    @contextlib.contextmanager
    def autorecovery(self) -> Iterator[list[int]]:
        """This kind's AutoRecovery in a process of its own, while the block runs; its process ids."""
        configuration = self.bookies[-1].configuration
        recovery = RECOVERIES[self.kind](self._folder / "autorecovery", configuration)
        recovery.launch()
        try:
            yield recovery.pids
        finally:
            recovery.kill()

    def metadata_text(self, ledger_id: int) -> str:
        """What the metadata store holds about a ledger; bookies' ids are readable in it."""
        client = KazooClient(self.zookeeper.address)
        client.start()
        try:
            return str(client.get(ledger_path(ledger_id))[0])
        finally:
            client.stop()
            client.close()

    def stop(self) -> None:
        """Kill everything."""
        for bookie in self.bookies:
            bookie.kill()
        self.zookeeper.kill()


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run and how long."""

    kinds: list[str]
    scenarios: list[Scenario]
    window_s: float
    size_factor: float
    rounds: int


def build() -> str:
    """Compile the load generator; its class path."""
    classes = HERE / "build"
    libraries = f"{distribution.home() / 'lib'}/*"
    classes.mkdir(exist_ok=True)
    subprocess.run(["javac", "-d", str(classes), "-cp", libraries, str(HERE / "LedgerLoad.java")], check=True)
    return f"{classes}:{libraries}"


class Load:
    """`LedgerLoad` against one fleet."""

    def __init__(self, fleet: Fleet, class_path: str) -> None:
        self._fleet = fleet
        self._command = ["java", "-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=1g", "-XX:+UseSerialGC"]
        self._command += ["--add-opens=java.base/java.nio=ALL-UNNAMED", "-cp", class_path, "LedgerLoad"]

    def arguments(self, options: dict[str, int | str]) -> list[str]:
        """The whole command."""
        given = {"zookeeper": self._fleet.zookeeper.address, **options}
        return [*self._command, *(f"{name}={value}" for name, value in given.items())]

    def measure(self, options: dict[str, int | str], window_s: float) -> dict[str, float]:
        """Run with a window; what it printed, with the bookies' CPU seconds under `cpu_s`. Raises Broken."""
        times: dict[str, int | str] = {
            "window_ms": int(window_s * 1000),
            "warmup_ms": int(max(5.0, window_s / 2) * 1000),
        }
        command = self.arguments({**times, **options})
        lines, cpu_s = watch(command, lambda: processes.cpu_seconds(self._fleet.pids), window_s * 2 + GRACE_S)
        found: dict[str, float] = json.loads(lines[-1])
        if found["failed"]:
            raise Broken(f"{found['failed']:.0f} adds failed")
        return {**found, "cpu_s": cpu_s}

    def fill(self, options: dict[str, int | str]) -> int:
        """Write one ledger; its id. Raises Broken."""
        command = self.arguments({"mode": "fill", **options})
        finished = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        if finished.returncode:
            raise Broken(f"filling a ledger failed: {finished.stderr[-2000:]}")
        found = json.loads(finished.stdout.splitlines()[-1])
        if found["failed"]:
            raise Broken(f"{found['failed']} adds failed")
        ledger_id: int = found["ledger"]
        return ledger_id


def measure(kind: str, folder: Path, plan: Plan, class_path: str, say: Callable[[str], None]) -> dict[str, float]:
    """Every figure of one kind. A scenario that breaks leaves no figure."""
    figures: dict[str, float] = {"load_before": os.getloadavg()[0]}
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


def one_round(plan: Plan, class_path: str, console: Console) -> Results:
    """Each kind once, in folders that are deleted afterwards."""
    results: Results = {}
    for kind in plan.kinds:
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
    parser.add_argument("--quick", action="store_true", help="10 s windows and a third of the data")
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"of {', '.join(KINDS)}")
    parser.add_argument(
        "--scenarios", default="", help=f"of {', '.join(each.name for each in SCENARIOS)}; all if empty"
    )
    parser.add_argument("--rounds", type=int, default=1, help="take the median of so many rounds")
    arguments = parser.parse_args()
    chosen = [name for name in arguments.scenarios.split(",") if name]
    return Plan(
        kinds=[name for name in arguments.kinds.split(",") if name],
        scenarios=[each for each in SCENARIOS if not chosen or each.name in chosen],
        window_s=10.0 if arguments.quick else 30.0,
        size_factor=1 / 3 if arguments.quick else 1.0,
        rounds=arguments.rounds,
    )


def main() -> None:
    """Runs all rounds and writes their medians."""
    plan = parse()
    console = Console(width=160)
    processes.leave_nothing_behind()
    class_path = build()
    results = report.median([one_round(plan, class_path, console) for _ in range(plan.rounds)])
    title = f"bookies, {plan.window_s:.0f} s windows, {plan.rounds} round(s), {os.cpu_count()} cores"
    columns = report.header(results, OURS, REFERENCE)
    body = report.rows(results, metrics(), OURS, REFERENCE)
    console.print(report.terminal(columns, body, title))
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "bookies.json").write_text(json.dumps(results, indent=2) + "\n")
    (RESULTS / "bookies.md").write_text(report.markdown(columns, body, f"Side by side ({title})"))


if __name__ == "__main__":
    main()
