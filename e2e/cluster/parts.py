"""The processes of a local cluster, each with the settings file that a user would write for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from magnetar.net.free_ports import free_port

from e2e import processes
from e2e.interchange.ours import program
from e2e.interchange.parts import READY_PATH
from e2e.part import Part

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """What the parts of one cluster have in common."""

    name: str = "local"
    metadata_url: str
    configuration_url: str | None = None
    """Where clusters of an instance keep what they share; None: with the rest."""
    session_timeout_ms: int = 6_000
    """How long a dead broker's topics wait for another owner."""
    quorums: tuple[int, int, int] = (3, 3, 2)
    """Ensemble, write and ack quorum."""


class ConfiguredPart(Part):
    """One of our processes, run as `magnetar KIND run --conf FILE`."""

    kind: str
    mistake = ""
    """A planted one."""

    def __init__(self, folder: Path, settings: dict[str, str]) -> None:
        super().__init__(folder)
        self.configuration = folder.with_suffix(".conf")
        self.settings = settings

    def command(self) -> list[str]:
        return [*program(self.mistake), self.kind, "run", "--conf", str(self.configuration)]

    def launch(self) -> None:
        self.configuration.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"{name}={value}" for name, value in self.settings.items()]
        self.configuration.write_text("\n".join(lines) + "\n")
        super().launch()

    @property
    def address(self) -> str:
        """Where it is reached, for people."""
        raise NotImplementedError


class Bookie(ConfiguredPart):
    """`magnetar bookie run`."""

    kind = "bookie"

    def __init__(self, folder: Path, cluster: ClusterSettings, port: int, **settings: str) -> None:
        self.port = port
        self.id = f"{LOOPBACK}:{port}"
        self.http_port = free_port()
        super().__init__(
            folder,
            {
                "bookiePort": str(port),
                "advertisedAddress": LOOPBACK,
                "allowLoopback": "true",
                "metadataServiceUri": f"metadata-store:{cluster.metadata_url}",
                "zkTimeout": str(cluster.session_timeout_ms),
                "journalDirectories": str(folder / "journal"),
                "ledgerDirectories": str(folder / "ledgers"),
                "httpServerEnabled": "true",
                "httpServerPort": str(self.http_port),
                "controlPort": str(free_port()),
                "diskUsageThreshold": "0.99",
                **settings,
            },
        )

    @property
    def address(self) -> str:
        return self.id

    def ready(self) -> bool:
        return processes.accepts(self.port) and processes.answers(f"http://{LOOPBACK}:{self.http_port}/heartbeat")


class Broker(ConfiguredPart):
    """`magnetar broker run`."""

    kind = "broker"

    def __init__(self, folder: Path, cluster: ClusterSettings, port: int, http_port: int, **settings: str) -> None:
        self.port = port
        self.http_port = http_port
        self.id = f"{LOOPBACK}:{http_port}"
        self.service_url = f"pulsar://{LOOPBACK}:{port}"
        self.admin_url = f"http://{LOOPBACK}:{http_port}"
        self.control_address = f"{LOOPBACK}:{free_port()}"
        ensemble, write_quorum, ack_quorum = cluster.quorums
        super().__init__(
            folder,
            {
                "clusterName": cluster.name,
                "bindAddress": LOOPBACK,
                "advertisedAddress": LOOPBACK,
                "brokerServicePort": str(port),
                "webServicePort": str(http_port),
                "metadataStoreUrl": cluster.metadata_url,
                "configurationMetadataStoreUrl": cluster.configuration_url or cluster.metadata_url,
                "metadataStoreSessionTimeoutMillis": str(cluster.session_timeout_ms),
                "managedLedgerDefaultEnsembleSize": str(ensemble),
                "managedLedgerDefaultWriteQuorum": str(write_quorum),
                "managedLedgerDefaultAckQuorum": str(ack_quorum),
                "bookkeeperClientTimeoutInSeconds": "5",
                "controlPort": self.control_address.rpartition(":")[2],
                **settings,
            },
        )

    @property
    def address(self) -> str:
        return f"{self.service_url}  {self.admin_url}"

    def ready(self) -> bool:
        # The one path that no broker wants credentials for.
        return processes.accepts(self.port) and processes.answers(f"{self.admin_url}/status.html")


class Proxy(ConfiguredPart):
    """`magnetar proxy run`."""

    kind = "proxy"

    def __init__(self, folder: Path, cluster: ClusterSettings, port: int, http_port: int, **settings: str) -> None:
        self.port = port
        self.http_port = http_port
        self.service_url = f"pulsar://{LOOPBACK}:{port}"
        self.admin_url = f"http://{LOOPBACK}:{http_port}"
        super().__init__(
            folder,
            {
                "clusterName": cluster.name,
                "bindAddress": LOOPBACK,
                "servicePort": str(port),
                "webServicePort": str(http_port),
                "metadataStoreUrl": cluster.metadata_url,
                "configurationMetadataStoreUrl": cluster.configuration_url or cluster.metadata_url,
                "metadataStoreSessionTimeoutMillis": str(cluster.session_timeout_ms),
                "brokerProxyAllowedTargetPorts": "*",
                "controlPort": str(free_port()),
                **settings,
            },
        )

    @property
    def address(self) -> str:
        return f"{self.service_url}  {self.admin_url}"

    def ready(self) -> bool:
        return processes.accepts(self.port) and processes.answers(f"{self.admin_url}{READY_PATH}")
