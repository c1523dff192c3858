"""A cluster of parts from either side over one real ZooKeeper, below one folder."""

from __future__ import annotations

import contextlib
import uuid
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from magnetar.metadata.testing import ZookeeperServer
from magnetar.net.free_ports import free_port

from e2e.interchange import apache
from e2e.interchange.apache import ApacheAutoRecovery, ApacheBookie, ApacheBroker, Shell
from e2e.interchange.ledger_driver import LedgerClient, LedgerDriver
from e2e.interchange.ours import OurAutoRecovery, OurBookie, OurBroker
from e2e.interchange.parts import CLUSTER, BookiePart
from e2e.part import Part
from e2e.peers import distribution
from e2e.processes import wait_for

P = TypeVar("P", bound=Part)
REGISTERED_SECONDS_MAX = 30.0


class Cluster:
    """Starts what a test asks for and kills all of it in the end; `driver` is BookKeeper's Java client."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.zookeeper = ZookeeperServer(folder / "zookeeper")
        self._driver: LedgerDriver | None = None
        self._watcher: LedgerClient | None = None
        self._parts: list[Part] = []

    def __enter__(self) -> Self:
        self.zookeeper.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(self.zookeeper.kill)
            for part in self._parts:
                stack.callback(part.kill)
            if self._driver is not None:
                stack.callback(self._driver.close)

    @property
    def pulsar_uri(self) -> str:
        """The metadata service by Pulsar's driver."""
        return f"metadata-store:zk:{self.zookeeper.address}"

    @property
    def native_uri(self) -> str:
        """The metadata service by BookKeeper's own driver."""
        return f"zk+hierarchical://{self.zookeeper.address}/ledgers"

    @property
    def driver(self) -> LedgerDriver:
        if self._driver is None:
            self._driver = LedgerDriver(self.folder / "driver.log")
        return self._driver

    def client(self, *, v2: bool, **options: str | int | bool) -> LedgerClient:
        """A new BookKeeper client with the native metadata driver."""
        return self.driver.client(self.native_uri, v2=v2, **options)

    def our_bookie(self, name: str, **settings: str) -> OurBookie:
        return self.keep(OurBookie(self.folder / name, self.pulsar_uri, settings))

    def apache_bookie(self, name: str, **settings: str) -> ApacheBookie:
        return self.keep(ApacheBookie(self.folder / name, self.pulsar_uri, settings))

    def our_broker(self, quorums: tuple[int, int, int] = (3, 3, 2), **settings: str) -> OurBroker:
        return self.keep(OurBroker(self.folder / "our-broker", self.zookeeper.address, quorums, settings))

    def apache_broker(self, quorums: tuple[int, int, int] = (3, 3, 2), **settings: str) -> ApacheBroker:
        return self.keep(ApacheBroker(self.folder / "apache-broker", self.zookeeper.address, quorums, settings))

    def apache_autorecovery(self, **settings: str) -> ApacheAutoRecovery:
        configuration = self.configuration("recovery", **settings)
        return self.keep(ApacheAutoRecovery(self.folder / "apache-autorecovery", configuration))

    def our_autorecovery(self, **settings: str) -> OurAutoRecovery:
        configuration = self.configuration("recovery", **settings)
        return self.keep(OurAutoRecovery(self.folder / "our-autorecovery", configuration))

    def keep(self, part: P) -> P:
        """Kill this one too in the end."""
        self._parts.append(part)
        return part

    def start(self, *parts: Part) -> None:
        """Start them side by side; a bookie counts as started when clients see it."""
        for part in parts:
            part.launch()
        for part in parts:
            part.wait_until_ready()
        wanted = {part.id for part in parts if isinstance(part, BookiePart)}
        if wanted:
            self.wait_for_bookies(wanted)

    def wait_for_bookies(self, wanted: set[str], absent: frozenset[str] | set[str] = frozenset()) -> None:
        """Until BookKeeper's client lists these as writable and those not."""

        def listed() -> bool:
            writable, _ = self._watching().bookies()
            return wanted <= writable and not absent & writable

        wait_for(listed, REGISTERED_SECONDS_MAX, f"{wanted} writable, {absent} not")

    def _watching(self) -> LedgerClient:
        if self._watcher is None:
            self._watcher = self.client(v2=False)
        return self._watcher

    def shell(self, part: BookiePart | None = None, *, native: bool = False, **settings: str) -> Shell:
        """BookKeeper's shell: for a bookie's files with that bookie's settings, else for the cluster."""
        if part is not None:
            return Shell(part.configuration, self.folder)
        uri = self.native_uri if native else self.pulsar_uri
        # Of the shipped settings this one has no working default with BookKeeper's own driver.
        resolver = "org.apache.bookkeeper.net.ScriptBasedMapping"
        settings = {"reppDnsResolverClass": resolver, **settings} if native else settings
        return Shell(self.configuration("shell", metadataServiceUri=uri, **settings), self.folder)

    def configuration(self, name: str, **settings: str) -> Path:
        """A `bookkeeper.conf` for a tool: little in it differs from the shipped one."""
        target = self.folder / f"{name}-{uuid.uuid4().hex[:8]}.conf"
        values = {
            "metadataServiceUri": self.pulsar_uri,
            "zkTimeout": "10000",
            "allowLoopback": "true",
            "prometheusStatsHttpPort": str(free_port()),
            "httpServerPort": str(free_port()),
            **settings,
        }
        distribution.configure(distribution.home() / "conf" / "bookkeeper.conf", target, values)
        return target

    def initialize_pulsar(self, transaction_coordinators: int = 16) -> None:
        """What brokers want to find, made by Apache's own tool."""
        logs = self.folder / "logs"
        apache.initialize_cluster(
            self.zookeeper.address, CLUSTER, logs, transaction_coordinators=transaction_coordinators
        )
