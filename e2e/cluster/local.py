"""A cluster below one folder: started in order, stopped in order, any part killed, paused or replaced meanwhile."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

from magnetar.metadata.testing import EtcdServer, ZookeeperEnsemble, ZookeeperServer
from magnetar.net.free_ports import free_port

from e2e.cluster.parts import LOOPBACK, Bookie, Broker, ClusterSettings, Proxy
from e2e.interchange.ours import PROGRAM
from e2e.part import Part

MetadataServers: TypeAlias = ZookeeperServer | ZookeeperEnsemble | EtcdServer
PREPARE_SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The first port of each kind; the others follow in turn. None: free ones."""

    bookies: int | None = None
    brokers: int | None = None
    brokers_http: int | None = None
    proxies: int | None = None
    proxies_http: int | None = None


FREE_PORTS = Ports()


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How many of each."""

    zookeepers: int = 1
    bookies: int = 4
    brokers: int = 3
    proxies: int = 1


class LocalCluster:
    """Ours throughout, over a real ZooKeeper, an ensemble of them, or etcd; or over one that runs already."""

    def __init__(
        self,
        folder: Path,
        size: Size,
        *,
        name: str = "local",
        ports: Ports = FREE_PORTS,
        metadata: MetadataServers | None = None,
        metadata_url: str | None = None,
        configuration_url: str | None = None,
        broker_settings: dict[str, str] | None = None,
        proxy_settings: dict[str, str] | None = None,
    ) -> None:
        self.name = name
        self.folder = folder
        self.metadata: MetadataServers | None = None
        """What it starts and stops itself; None when its metadata is elsewhere."""
        if metadata_url is None:
            self.metadata = metadata or _zookeeper(folder / "zookeeper", size.zookeepers)
            metadata_url = self.metadata.url
        replicas = min(3, size.bookies)
        self.settings = ClusterSettings(
            name=name,
            metadata_url=metadata_url,
            configuration_url=configuration_url,
            quorums=(replicas, replicas, max(1, replicas - 1)),
        )
        self._ports = ports
        self._broker_settings = broker_settings or {}
        self._proxy_settings = proxy_settings or {}
        self.bookies = [self._bookie(number) for number in range(size.bookies)]
        self.brokers = [self._broker(number) for number in range(size.brokers)]
        self.proxies = [self._proxy(number) for number in range(size.proxies)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def pids(self) -> list[int]:
        """Of all our processes; ZooKeeper is not ours."""
        return [pid for part in self.parts for pid in part.pids]

    @property
    def parts(self) -> list[Bookie | Broker | Proxy]:
        """In the order in which they are started."""
        return [*self.bookies, *self.brokers, *self.proxies]

    @property
    def ensemble(self) -> ZookeeperEnsemble:
        """Its ZooKeepers, when there are several."""
        assert isinstance(self.metadata, ZookeeperEnsemble)
        return self.metadata

    @property
    def service_url(self) -> str:
        """For clients: the proxies, or all brokers where there is none."""
        fronts: Sequence[Broker | Proxy] = self.proxies or self.brokers
        return "pulsar://" + ",".join(f"{LOOPBACK}:{front.port}" for front in fronts)

    @property
    def broker_service_url(self) -> str:
        """For clients that are to reach the brokers themselves."""
        return "pulsar://" + ",".join(f"{LOOPBACK}:{broker.port}" for broker in self.brokers)

    @property
    def admin_url(self) -> str:
        """For tools; a part that runs, if there is one."""
        fronts: Sequence[Broker | Proxy] = [*self.proxies, *self.brokers]
        return next((front for front in fronts if front.running), fronts[0]).admin_url

    def start(self, told: Callable[[str], None] = lambda _: None) -> None:
        """Start everything and wait until it serves; `told` hears what is being done."""
        if self.metadata is not None:
            told("metadata store")
            self.metadata.start()
        told("metadata")
        self.prepare()
        for kind, parts in (("bookies", self.bookies), ("brokers", self.brokers), ("proxies", self.proxies)):
            told(kind)
            start_all(parts)

    def prepare(self) -> None:
        """`magnetar init-metadata`, as an operator does it; changes nothing where it was done before."""
        command = [PROGRAM, "init-metadata", "--cluster", self.settings.name]
        command += ["--metadata-store", self.settings.metadata_url, "--web-service-url", self.brokers[0].admin_url]
        command += ["--broker-service-url", self.brokers[0].service_url]
        if self.settings.configuration_url is not None:
            command += ["--configuration-metadata-store", self.settings.configuration_url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PREPARE_SECONDS_MAX, check=False)
        assert done.returncode == 0, done.stderr

    def add_broker(self) -> Broker:
        """One more, not started."""
        self.brokers.append(self._broker(len(self.brokers)))
        return self.brokers[-1]

    def add_bookie(self) -> Bookie:
        """One more, not started."""
        self.bookies.append(self._bookie(len(self.bookies)))
        return self.bookies[-1]

    def stop(self) -> None:
        """In good order, from the top."""
        for parts in (self.proxies, self.brokers, self.bookies):
            for part in parts:
                part.stop()
        if self.metadata is not None:
            self.metadata.stop()

    def restart(self) -> None:
        """All of it, on the same data; what runs is stopped in good order first."""
        self.stop()
        self.start()

    def kill(self) -> None:
        """All at once."""
        with contextlib.ExitStack() as stack:
            if self.metadata is not None:
                stack.callback(self.metadata.kill)
            for part in self.parts:
                stack.callback(part.kill)

    def _bookie(self, number: int) -> Bookie:
        return Bookie(self.folder / f"bookie-{number}", self.settings, self._port(number, self._ports.bookies))

    def _broker(self, number: int) -> Broker:
        ports = self._ports
        return Broker(
            self.folder / f"broker-{number}",
            self.settings,
            self._port(number, ports.brokers),
            self._port(number, ports.brokers_http),
            **self._broker_settings,
        )

    def _proxy(self, number: int) -> Proxy:
        ports = self._ports
        return Proxy(
            self.folder / f"proxy-{number}",
            self.settings,
            self._port(number, ports.proxies),
            self._port(number, ports.proxies_http),
            **self._proxy_settings,
        )

    @staticmethod
    def _port(number: int, first: int | None) -> int:
        return free_port() if first is None else first + number


def start_all(parts: Sequence[Part]) -> None:
    """Side by side."""
    for part in parts:
        part.launch()
    for part in parts:
        part.wait_until_ready()


def _zookeeper(folder: Path, count: int) -> ZookeeperServer | ZookeeperEnsemble:
    return ZookeeperServer(folder) if count == 1 else ZookeeperEnsemble(folder, count)
