"""A real ZooKeeper for tests, from the jars that PySpark brings along."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import ssl
import subprocess
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from kazoo.client import KazooClient
from magnetar.core.errors import Misuse, Unavailable
from magnetar.net.free_ports import free_port

JARS: Final = ("zookeeper-3", "zookeeper-jute", "slf4j-api", "metrics-core", "snappy-java", "commons-io", "netty-")
"""How the names of the jars begin that a ZooKeeper server needs; PySpark's other 250 only slow Java down."""

START_SECONDS_MAX: Final = 120.0
"""A start takes about a second; a busy machine may need some more."""


@dataclass(frozen=True, slots=True)
class Membership:
    """One server's place in an ensemble."""

    number: int
    lines: tuple[str, ...]
    """The `server.N=…` lines, the same for all members."""


class ServerProcess:
    """A server that is a process of its own; a context manager that starts and stops it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start and wait until the server answers. `Unavailable`."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop in an orderly way; sessions go on when it is started again."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the server at once with SIGKILL, as if the machine had died."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Kill and start on the same port and data."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """Stop answering without closing a connection, until `resume`."""
        process = self._running()
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)

    def resume(self) -> None:
        """Go on after `pause`."""
        self._running().send_signal(signal.SIGCONT)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise Misuse("the server is not running")
        return self._process

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(how)
            process.wait()


class ZookeeperServer(ServerProcess):
    """One ZooKeeper server on a free port of 127.0.0.1.

    `Misuse` if Java or PySpark is not installed: a test that needs ZooKeeper fails then, it is not skipped."""

    def __init__(self, directory: Path, *, tick_ms: int = 500, membership: Membership | None = None) -> None:
        """Data and log go to the directory. Session timeouts are 2 to 20 ticks."""
        super().__init__()
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.url = f"zk:{self.address}"
        self._directory = directory
        self._tick_ms = tick_ms
        self._membership = membership

    @property
    def pid(self) -> int | None:
        """The id of the process, while it runs."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start and wait until the server answers."""
        self.launch()
        self.wait_until_it_answers()

    def launch(self) -> None:
        """Start and do not wait: a member of an ensemble answers only once there is a majority."""
        data = self._directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        settings = [f"tickTime={self._tick_ms}", f"dataDir={data}", f"clientPort={self.port}"]
        settings += ["clientPortAddress=127.0.0.1", "admin.enableServer=false", "maxClientCnxns=0"]
        settings += ["4lw.commands.whitelist=srvr,mntr", "initLimit=20", "syncLimit=10"]
        main = "org.apache.zookeeper.server.ZooKeeperServerMain"
        if self._membership is not None:
            main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
            settings += self._membership.lines
            (data / "myid").write_text(str(self._membership.number))
        config = self._directory / "zoo.cfg"
        config.write_text("\n".join(settings) + "\n")
        # It takes what it needs: 100 000 topics are 300 000 nodes.
        command = [_java(), "-Xms64m", "-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command += ["-cp", _class_path(), main, str(config)]
        with (self._directory / "zookeeper.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: S603

    def end_session(self, client_id: tuple[int, bytes]) -> None:
        """End a session from the side, as if the server had waited too long for its client.

        That client connects again at once, and may take the session back before it is closed: so it goes on until the
        server knows the session no more."""
        ended = False
        while not ended:
            client = KazooClient(self.address, client_id=client_id)
            client.start(timeout=START_SECONDS_MAX)
            ended = client.client_id[0] != client_id[0]
            client.stop()
            client.close()

    def mode(self) -> str | None:
        """`standalone`, `leader` or `follower`; None while it serves nobody."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1.0) as connection:
            connection.settimeout(1.0)
            connection.sendall(b"srvr")
            answer = b"".join(iter(lambda: connection.recv(4096), b""))
            for line in answer.decode(errors="replace").splitlines():
                if line.startswith("Mode: "):
                    return line.removeprefix("Mode: ")
        return None

    def wait_until_it_answers(self) -> None:
        """`Unavailable` when it does not in time."""
        process = self._running()
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline and process.poll() is None:
            if self.mode() is not None:
                return
            time.sleep(0.05)
        self._end(signal.SIGKILL)
        log = (self._directory / "zookeeper.log").read_text(errors="replace")
        raise Unavailable(f"ZooKeeper did not start; the end of its log:\n{log[-2000:]}")


class ZookeeperEnsemble:
    """Several servers of one ensemble; a context manager like one server."""

    def __init__(self, directory: Path, size: int = 3, *, tick_ms: int = 500) -> None:
        lines = tuple(f"server.{number}=127.0.0.1:{free_port()}:{free_port()}" for number in range(1, size + 1))
        self.servers = [
            ZookeeperServer(directory / str(number), tick_ms=tick_ms, membership=Membership(number, lines))
            for number in range(1, size + 1)
        ]
        self.address = ",".join(server.address for server in self.servers)
        self.url = f"zk:{self.address}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start all of them and wait until each answers."""
        for server in self.servers:
            server.launch()
        for server in self.servers:
            server.wait_until_it_answers()

    def kill(self) -> None:
        """End all servers at once with SIGKILL, as if their machines had died."""
        for server in self.servers:
            server.kill()

    def stop(self) -> None:
        """Stop all of them in an orderly way."""
        for server in self.servers:
            server.stop()

    def leader(self) -> ZookeeperServer:
        """The server that leads now. `Unavailable` when none does within the time of a start."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline:
            for server in self.servers:
                if server.pid is not None and server.mode() == "leader":
                    return server
            time.sleep(0.05)
        raise Unavailable("no server of the ensemble leads")


@dataclass(frozen=True, slots=True)
class EtcdTls:
    """The files of an etcd server that wants certificates of its clients, and those of a client."""

    certificate_file: Path
    key_file: Path
    trust_file: Path
    client_certificate_file: Path
    client_key_file: Path


class EtcdServer(ServerProcess):
    """One etcd server on free ports of 127.0.0.1."""

    def __init__(self, directory: Path, tls: EtcdTls | None = None) -> None:
        """With `tls` clients are served by TLS alone, and have to show a certificate."""
        super().__init__()
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._tls = tls
        self._scheme = "http" if tls is None else "https"
        self.url = f"etcd:{self._scheme}://{self.address}"
        self._peer_port = free_port()
        self._directory = directory

    @staticmethod
    def available() -> bool:
        """Whether the program is installed."""
        return shutil.which("etcd") is not None

    def start(self) -> None:
        """Start etcd and wait until it answers. `Unavailable`."""
        self._directory.mkdir(parents=True, exist_ok=True)
        client, peer = f"{self._scheme}://127.0.0.1:{self.port}", f"http://127.0.0.1:{self._peer_port}"
        command = ["etcd", "--name", "one", "--data-dir", str(self._directory / "data")]
        command += ["--listen-client-urls", client, "--advertise-client-urls", client]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        command += ["--initial-cluster", f"one={peer}"]
        context = None
        if (tls := self._tls) is not None:
            command += ["--cert-file", str(tls.certificate_file), "--key-file", str(tls.key_file)]
            command += ["--client-cert-auth", "--trusted-ca-file", str(tls.trust_file)]
            context = ssl.create_default_context(cafile=str(tls.trust_file))
            context.load_cert_chain(tls.client_certificate_file, tls.client_key_file)
        with (self._directory / "etcd.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: S603
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline and self._process.poll() is None:
            health = f"{client}/health"
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(health, timeout=1.0, context=context) as answer,  # noqa: S310
            ):
                if b"true" in answer.read():
                    return
            time.sleep(0.05)
        self.kill()
        raise Unavailable(f"etcd did not start; see {self._directory / 'etcd.log'}")


def _java() -> str:
    java = shutil.which("java")
    if java is None:
        raise Misuse("ZooKeeper tests need Java 17 or newer: apt-get install openjdk-17-jre-headless")
    return java


def _class_path() -> str:
    pyspark = importlib.util.find_spec("pyspark")
    if pyspark is None or pyspark.origin is None:
        raise Misuse("ZooKeeper tests take its jars from PySpark: uv sync --group peers")
    jars = (Path(pyspark.origin).parent / "jars").glob("*.jar")
    return ":".join(sorted(str(jar) for jar in jars if jar.name.startswith(JARS)))
