"""The seam between a test and the server it runs against: ours, or Apache's as the reference."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Protocol

from magnetar.net.free_ports import free_port

from e2e import processes
from e2e.peers import distribution

READY_PATH = "/admin/v2/namespaces/public/default"
# What our server does without being asked and Apache's must be told to.
APACHE_FEATURES = {"acknowledgmentAtBatchIndexLevelEnabled": "true"}
APACHE_STARTS_MAX = 5
APACHE_CALM_S = 1.0
# A calm server logs some 30 kB in that time, one in the storm 4 MB.
APACHE_STORM_LOG_BYTES = 1_000_000


class Server(Protocol):
    """A whole standalone cluster on loopback whose data outlives its process."""

    @property
    def name(self) -> str:
        """Which one it is, for messages."""

    @property
    def service_url(self) -> str:
        """For clients."""

    @property
    def admin_url(self) -> str:
        """For tools."""

    @property
    def pids(self) -> list[int]:
        """Every process of the server, empty when it is down."""

    def start(self) -> None:
        """Returns when producers and admin calls are served; raises processes.NotReady otherwise."""

    def kill(self) -> None:
        """SIGKILL to all of it."""

    def restart(self) -> None:
        """Starts again on the same data; ends a running one in good order first."""

    def stop(self) -> None:
        """Ends in good order; data stays."""


class StandaloneProcess(ABC):
    """What both implementations share: one process, two ports, one data folder."""

    name = "standalone"
    start_timeout_s = 60.0

    def __init__(self, data: Path, port: int = 0, http_port: int = 0) -> None:
        self.data = data
        self.port = port or free_port()
        self.http_port = http_port or free_port()
        self.service_url = f"pulsar://127.0.0.1:{self.port}"
        self.admin_url = f"http://127.0.0.1:{self.http_port}"
        self.log = data.parent / f"{data.name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pids(self) -> list[int]:
        if self._process is None or self._process.poll() is not None:
            return []
        return processes.tree(self._process.pid)

    @abstractmethod
    def command(self) -> list[str]:
        """What to run."""

    def environment(self) -> dict[str, str]:
        return {}

    def launch(self) -> None:
        """Starts the process and does not wait for it."""
        assert not self.pids, "already running"
        self.data.mkdir(parents=True, exist_ok=True)
        self._process = processes.spawn(self.command(), self.log, self.environment())

    def start(self) -> None:
        self.launch()
        assert self._process is not None
        try:
            processes.wait_until_ready(
                self._process, self.port, f"{self.admin_url}{READY_PATH}", timeout_s=self.start_timeout_s
            )
        except processes.NotReady as failure:
            processes.kill_tree(self._process)
            raise processes.NotReady(f"{failure}; the end of {self.log}:\n{self.log_tail()}") from None

    def log_tail(self, lines: int = 20) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def kill(self) -> None:
        if self._process is not None:
            processes.kill_tree(self._process)

    def restart(self) -> None:
        self.stop()
        self.start()

    def stop(self) -> None:
        if self._process is not None:
            processes.end(self._process)


class MagnetarStandalone(StandaloneProcess):
    """Our own, as a user runs it: `magnetar standalone` with the environment's interpreter. `settings` are names and
    values of a broker's settings."""

    name = "magnetar"

    def __init__(
        self, data: Path, port: int = 0, http_port: int = 0, *, settings: dict[str, str] | None = None
    ) -> None:
        super().__init__(data, port, http_port)
        self.settings = settings or {}

    def command(self) -> list[str]:
        program = Path(sys.executable).parent / "magnetar"
        ports = ["--port", str(self.port), "--http-port", str(self.http_port)]
        settings = [part for name, value in self.settings.items() for part in ("--set", f"{name}={value}")]
        return [str(program), "standalone", "--data", str(self.data), *ports, *settings]


class ApacheStandalone(StandaloneProcess):
    """Apache Pulsar's standalone without functions and stream storage.

    `journal_sync` forces every journal write to disk before it is answered, which is our own rule and the default of
    Apache's cluster configuration, but not of its standalone one. `lean` gives it 1 GB of heap and the serial
    collector, the setting at which it costs least; otherwise the heap is as shipped. `settings` are lines of its
    configuration file.
    """

    name = "apache"
    start_timeout_s = 120.0

    def __init__(
        self,
        data: Path,
        port: int = 0,
        http_port: int = 0,
        *,
        journal_sync: bool = True,
        lean: bool = True,
        settings: dict[str, str] | None = None,
    ) -> None:
        super().__init__(data, port, http_port)
        self.journal_sync = journal_sync
        self.lean = lean
        self.settings = settings or {}

    def command(self) -> list[str]:
        home = distribution.home()
        configuration = self.data.parent / f"{self.data.name}.conf"
        settings = {
            "bindAddress": "127.0.0.1",
            "advertisedAddress": "127.0.0.1",
            "listeningInterface": "lo",
            "brokerServicePort": str(self.port),
            "webServicePort": str(self.http_port),
            "journalSyncData": "true" if self.journal_sync else "false",
            **self.settings,
        }
        distribution.configure(home / "conf" / "standalone.conf", configuration, settings)
        store = ["--metadata-dir", str(self.data / "metadata"), "--bookkeeper-dir", str(self.data / "bookkeeper")]
        launch = [str(home / "bin" / "pulsar"), "standalone", "-nfw", "-nss", "-a", "127.0.0.1"]
        return [*launch, "-c", str(configuration), *store]

    def start(self) -> None:
        """Starts until it is calm.

        After a SIGKILL the registrations of the dead process are still in Apache's RocksDB; now and then the new one's
        locks on them invalidate and revalidate each other without end, and nothing is served. Starting again helps.
        """
        for _ in range(APACHE_STARTS_MAX):
            super().start()
            before = self.log.stat().st_size
            time.sleep(APACHE_CALM_S)
            if self.log.stat().st_size - before < APACHE_STORM_LOG_BYTES:
                return
            self.kill()
        raise processes.NotReady(f"Apache's standalone did not become calm in {APACHE_STARTS_MAX} starts")

    def environment(self) -> dict[str, str]:
        variables = {
            "PULSAR_STANDALONE_CONF": str(self.data.parent / f"{self.data.name}.conf"),
            "PULSAR_LOG_DIR": str(self.data.parent / f"{self.data.name}.logs"),
        }
        if self.lean:
            variables["PULSAR_MEM"] = "-Xmx1g -XX:MaxDirectMemorySize=1g"
            variables["PULSAR_GC"] = "-XX:+UseSerialGC"
        return variables


def new_server(kind: str | None = None, data: Path | None = None) -> StandaloneProcess:
    """The server tests run against: `kind`, else the environment's MAGNETAR_E2E_SERVER, else ours.

    Without `data` it gets a new temporary folder.
    """
    chosen = kind or os.environ.get("MAGNETAR_E2E_SERVER", "magnetar")
    folder = data or Path(tempfile.mkdtemp(prefix=f"magnetar-e2e-{chosen}-")) / "data"
    if chosen == "magnetar":
        return MagnetarStandalone(folder)
    if chosen == "apache":
        return ApacheStandalone(folder, settings=APACHE_FEATURES)
    raise ValueError(f"unknown server {chosen!r}: magnetar or apache")
