"""What every process of a cluster has in common, and the settings that ours and Apache's parts are both given.

Ours and Apache's read the same files: Apache's shipped `bookkeeper.conf` and `broker.conf` with a few lines changed.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from magnetar.net.free_ports import free_port

from e2e import processes
from e2e.interchange import direct
from e2e.part import Part
from e2e.peers import distribution

LEAN_JVM = "-Xms64m -Xmx256m -XX:MaxDirectMemorySize=256m"
# The serial collector and the first compiler only: what starts fastest and costs least on a small machine.
LEAN_COLLECTOR = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"
SESSION_MS = 4_000
"""How long a killed process stays registered."""

CLUSTER = "interchange"
READY_PATH = "/admin/v2/clusters"
LEAN_BROKER = {
    "loadBalancerEnabled": "false",
    "functionsWorkerEnabled": "false",
    "transactionCoordinatorEnabled": "false",
}


def missing() -> str | None:
    """What this machine lacks for these tests, or None."""
    absent = [program for program in ("java", "javac") if shutil.which(program) is None]
    if absent:
        return f"Apache's parts need Java 17: no {', '.join(absent)}"
    if not distribution.available():
        return "Apache Pulsar is not unpacked and there is no Maven to fetch it with"
    return None


def jvm_environment(logs: Path) -> dict[str, str]:
    """For the distribution's scripts: little memory, no garbage collector's log, logs below a folder."""
    return {
        "BOOKIE_MEM": LEAN_JVM,
        "BOOKIE_GC": LEAN_COLLECTOR,
        "BOOKIE_GC_LOG": "-Xlog:disable",
        "BOOKIE_LOG_DIR": str(logs),
        "PULSAR_MEM": LEAN_JVM,
        "PULSAR_GC": LEAN_COLLECTOR,
        "PULSAR_GC_LOG": "-Xlog:disable",
        "PULSAR_LOG_DIR": str(logs),
    }


class BookiePart(Part):
    """A bookie of either side: its settings file, its directories, its address."""

    def __init__(self, folder: Path, metadata_uri: str, settings: dict[str, str]) -> None:
        super().__init__(folder)
        self.port = free_port()
        self.id = f"127.0.0.1:{self.port}"
        self.control_address = f"127.0.0.1:{free_port()}"
        """Of ours; Apache's bookies have no such port."""
        self.configuration = folder.with_suffix(".conf")
        self.metadata_uri = metadata_uri
        self.settings = settings

    @property
    def journal(self) -> Path:
        return self.folder / "journal" / "current"

    @property
    def ledgers(self) -> Path:
        return self.folder / "ledgers" / "current"

    def take_place_of(self, other: BookiePart) -> None:
        """Have the other's id and directories, so that cookies match."""
        self.folder, self.port, self.id = other.folder, other.port, other.id

    def configure(self) -> None:
        """Write the settings file."""
        settings = {
            "bookiePort": str(self.port),
            "advertisedAddress": "127.0.0.1",
            "allowLoopback": "true",
            "listeningInterface": "lo",
            "journalDirectory": str(self.folder / "journal"),
            "ledgerDirectories": str(self.folder / "ledgers"),
            "metadataServiceUri": self.metadata_uri,
            "zkTimeout": str(SESSION_MS),
            "diskUsageThreshold": "0.99",
            "journalSyncData": "true",
            "autoRecoveryDaemonEnabled": "false",
            # Ours alone; Apache's bookies pass over names that they do not know.
            "controlPort": self.control_address.rpartition(":")[2],
            "prometheusStatsHttpPort": str(free_port()),
            "httpServerPort": str(free_port()),
            **self.settings,
        }
        distribution.configure(distribution.home() / "conf" / "bookkeeper.conf", self.configuration, settings)

    def launch(self) -> None:
        self.configure()
        super().launch()

    def ready(self) -> bool:
        return direct.answers(self.id)


class BrokerPart(Part):
    """A broker of either side."""

    def __init__(
        self, folder: Path, zookeeper: str, quorums: tuple[int, int, int], settings: dict[str, str] | None = None
    ) -> None:
        super().__init__(folder)
        self.settings = settings or {}
        self.port = free_port()
        self.http_port = free_port()
        self.service_url = f"pulsar://127.0.0.1:{self.port}"
        self.admin_url = f"http://127.0.0.1:{self.http_port}"
        self.id = f"127.0.0.1:{self.http_port}"
        self.configuration = folder.with_suffix(".conf")
        self._zookeeper = zookeeper
        self._quorums = quorums

    def configure(self) -> None:
        ensemble, write_quorum, ack_quorum = self._quorums
        settings = {
            "clusterName": CLUSTER,
            "bindAddress": "127.0.0.1",
            "advertisedAddress": "127.0.0.1",
            "brokerServicePort": str(self.port),
            "webServicePort": str(self.http_port),
            "metadataStoreUrl": f"zk:{self._zookeeper}",
            "configurationMetadataStoreUrl": f"zk:{self._zookeeper}",
            "metadataStoreSessionTimeoutMillis": str(SESSION_MS),
            "managedLedgerDefaultEnsembleSize": str(ensemble),
            "managedLedgerDefaultWriteQuorum": str(write_quorum),
            "managedLedgerDefaultAckQuorum": str(ack_quorum),
            # Reads must go to the bookies, and an ensemble change must not wait half a minute for a dead one.
            "managedLedgerCacheSizeMB": "0",
            "bookkeeperClientTimeoutInSeconds": "5",
            # Ours alone; Apache's brokers pass over names that they do not know.
            "controlEnabled": "false",
            **LEAN_BROKER,
            **self.settings,
        }
        distribution.configure(distribution.home() / "conf" / "broker.conf", self.configuration, settings)

    def launch(self) -> None:
        self.configure()
        super().launch()

    def ready(self) -> bool:
        return processes.accepts(self.port) and processes.answers(f"{self.admin_url}{READY_PATH}")
