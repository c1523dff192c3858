"""A real ZooKeeper for tests, from the jars that PySpark brings along."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import IO, Final, Self

from magnetar.core.errors import Misuse, Unavailable

JARS: Final = ("zookeeper-3", "zookeeper-jute", "slf4j-api", "metrics-core", "snappy-java", "commons-io", "netty-")
"""How the names of the jars begin that a ZooKeeper server needs; PySpark's other 250 only slow Java down."""

START_SECONDS_MAX: Final = 30.0
"""A start takes about a second; a busy machine may need some more."""


class ZookeeperServer:
    """One ZooKeeper server on a free port of 127.0.0.1; a context manager that starts and stops it.

    `Misuse` if Java or PySpark is not installed: a test that needs ZooKeeper fails then, it is not skipped."""

    def __init__(self, directory: Path, *, tick_ms: int = 500) -> None:
        """Data and log go to the directory. Session timeouts are 2 to 20 ticks."""
        self.port = _free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._directory = directory
        self._tick_ms = tick_ms
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start and wait until the server answers."""
        self._directory.mkdir(parents=True, exist_ok=True)
        config = self._directory / "zoo.cfg"
        config.write_text(
            f"tickTime={self._tick_ms}\ndataDir={self._directory / 'data'}\nclientPort={self.port}\n"
            "clientPortAddress=127.0.0.1\nadmin.enableServer=false\nmaxClientCnxns=0\n"
            "4lw.commands.whitelist=srvr\n"
        )
        command = [_java(), "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command += ["-cp", _class_path(), "org.apache.zookeeper.server.ZooKeeperServerMain", str(config)]
        self._log = (self._directory / "zookeeper.log").open("ab")
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log)  # noqa: S603
        self._wait_until_it_answers(self._process)

    def stop(self) -> None:
        """Stop in an orderly way; sessions go on when it is started again."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """As if the machine had died."""
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
            raise Misuse("the ZooKeeper server is not running")
        return self._process

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(how)
            process.wait()
        if self._log is not None:
            self._log.close()
            self._log = None

    def _wait_until_it_answers(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1.0) as connection:
                connection.sendall(b"srvr")
                if connection.recv(64).startswith(b"Zookeeper version"):
                    return
            time.sleep(0.05)
        self._end(signal.SIGKILL)
        log = (self._directory / "zookeeper.log").read_text(errors="replace")
        raise Unavailable(f"ZooKeeper did not start; the end of its log:\n{log[-2000:]}")


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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
