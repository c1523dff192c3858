"""Bookies of one kind that are measured, and the load that they are under."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from kazoo.client import KazooClient
from magnetar.ledger.ledger_paths import ledger_path
from magnetar.metadata.testing import ZookeeperServer

from bench.generators import Broken, watch
from e2e import processes
from e2e.interchange.apache import ApacheAutoRecovery, ApacheBookie
from e2e.interchange.ours import OurAutoRecovery, OurBookie
from e2e.interchange.parts import BookiePart

OURS, REFERENCE = "magnetar", "apache"
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
