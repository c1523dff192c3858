"""Spark's own cluster of the repository's PySpark: a master, and workers on hosts of their own.

All of loopback's addresses are this machine, and to Spark different hosts: on one host it runs no task twice at a
time."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyspark
from magnetar.net.free_ports import free_port

from e2e import processes
from e2e.cluster import admin
from e2e.processes import wait_for
from e2e.spark.running import LOG_SETTINGS

HOSTS = ("127.0.0.2", "127.0.0.3")
MASTER_HOST = "127.0.0.1"
STARTED_SECONDS_MAX = 60.0


class SparkWorkers:
    """A context manager. Each of the workers has a core, and a place for executors of 512 MB."""

    def __init__(self, java_home: Path, folder: Path) -> None:
        self._java_home = java_home
        self._folder = folder
        self._http_port = free_port()
        self._started: list[subprocess.Popen[bytes]] = []
        self.url = f"spark://{MASTER_HOST}:{free_port()}"

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True)
        (self._folder / "log4j2.properties").write_text(LOG_SETTINGS)
        port = self.url.rpartition(":")[2]
        try:
            self._start("master.Master", MASTER_HOST, "--port", port, "--webui-port", str(self._http_port))
            wait_for(lambda: processes.accepts(int(port)), STARTED_SECONDS_MAX, "Spark's master does not come up")
            for host in HOSTS:
                place = ["--cores", "1", "--memory", "512m", "--work-dir", str(self._folder / host)]
                self._start("worker.Worker", host, *place, "--webui-port", str(free_port()), self.url)
            wait_for(self._complete, STARTED_SECONDS_MAX, f"not all workers come up, see {self._folder}")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()

    def _start(self, name: str, host: str, *words: str) -> None:
        home = Path(pyspark.__file__).parent
        environment = {
            "JAVA_HOME": str(self._java_home),
            "SPARK_HOME": str(home),
            "SPARK_CONF_DIR": str(self._folder),
            "SPARK_LOCAL_IP": host,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC",
        }
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", "--host", host, *words]
        self._started.append(processes.spawn(command, self._folder / f"{name}-{host}.log", environment))

    def _complete(self) -> bool:
        url = f"http://{MASTER_HOST}:{self._http_port}/json/"
        if not processes.answers(url):
            return False
        told: dict[str, Any] = admin.get_json(url)
        return bool(told["aliveworkers"] == len(HOSTS))

    def _end(self) -> None:
        for process in reversed(self._started):
            processes.kill_tree(process)
