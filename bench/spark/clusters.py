"""A cluster of processes that is filled and then started again: nothing of its topics is in its memory."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.spark.filling import Rows, Target, fill
from e2e import processes
from e2e.cluster import admin
from e2e.cluster.local import LocalCluster, Size

NAMESPACE = "public/bench"
PARTITIONS = 4
BUNDLES = 4
BOOKIES = 2

BROKER_SETTINGS = {
    # One copy: what is compared is reading, and disks are small.
    "managedLedgerDefaultEnsembleSize": "1",
    "managedLedgerDefaultWriteQuorum": "1",
    "managedLedgerDefaultAckQuorum": "1",
    # Smaller than the smallest topic of a full run, so that scans through brokers are cold, too.
    "managedLedgerCacheSizeMB": "64",
    "loadBalancerSheddingEnabled": "false",
    "loadBalancerAutoBundleSplitEnabled": "false",
}
BOOKIE_SETTINGS = {"journalMaxBackups": "0"}
"""Journals that are done with would double what is on disk."""

DROP_CACHES = Path("/proc/sys/vm/drop_caches")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """Seconds of processors so far, or between two moments."""

    brokers: float
    bookies: float

    def since(self, before: Cpu) -> Cpu:
        """What came between."""
        return Cpu(brokers=self.brokers - before.brokers, bookies=self.bookies - before.bookies)


class FilledCluster:
    """One broker, two bookies, a ZooKeeper."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster

    def topic(self, name: str) -> str:
        """In the namespace of the bench."""
        return f"persistent://{NAMESPACE}/{name}"

    @property
    def service_url(self) -> str:
        return self._cluster.service_url

    @property
    def urls(self) -> dict[str, str]:
        """The options of a data source that say where the cluster is: ours and the connector's have the same."""
        return {"service.url": self.service_url, "admin.url": self._cluster.admin_url}

    def cpu(self) -> Cpu:
        """So far."""
        return Cpu(
            brokers=processes.cpu_seconds([pid for part in self._cluster.brokers for pid in part.pids]),
            bookies=processes.cpu_seconds([pid for part in self._cluster.bookies for pid in part.pids]),
        )

    def entry_logs(self) -> list[Path]:
        """The files that the bookies have the entries in."""
        return sorted(log for part in self._cluster.bookies for log in (part.folder / "ledgers").rglob("*.log"))

    def fill(self, name: str, rows: Rows, told: Callable[[int], None]) -> None:
        """Make a topic of these rows."""
        target = Target(
            service_url=self.service_url,
            admin_url=self._cluster.admin_url,
            topic=self.topic(name),
            partitions=PARTITIONS,
        )
        fill(rows, target, told)

    def restart(self) -> None:
        """Stop everything in order and start it again: what bookies had in memory is on disk, ledgers are closed."""
        self._cluster.restart()


@contextlib.contextmanager
def running(folder: Path) -> Iterator[FilledCluster]:
    """A started cluster without topics, killed afterwards."""
    size = Size(bookies=BOOKIES, brokers=1, proxies=0)
    with LocalCluster(folder, size, broker_settings=BROKER_SETTINGS) as cluster:
        for bookie in cluster.bookies:
            bookie.settings.update(BOOKIE_SETTINGS)
        cluster.start()
        url = f"{cluster.admin_url}/admin/v2/namespaces/{NAMESPACE}"
        admin.call("PUT", url, {"bundles": {"numBundles": BUNDLES}})
        # Nobody subscribes, and the messages are to stay.
        admin.call("POST", f"{url}/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
        yield FilledCluster(cluster)


def drop_page_cache() -> bool:
    """Have the kernel forget all files that it has in memory; False: it does not let us."""
    subprocess.run(["sync"], check=True)
    try:
        DROP_CACHES.write_text("3\n")
    except OSError:
        return False
    time.sleep(0.2)
    return True
