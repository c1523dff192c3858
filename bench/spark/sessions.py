"""Spark sessions that stay, each in a process of its own: told queries, and what they cost read from /proc.

The JVM connector needs an older Spark than our data source, so both have an interpreter of their own, and stay warm
side by side."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from e2e import processes
from e2e.spark import environments
from e2e.spark.running import LOG_SETTINGS, LOG_TAIL_LINES, NOT_THE_USERS

PROGRAM = Path(__file__).parent / "program.py"
JAVA_RELEASE = 17
JVM_PYSPARK = "3.4.4"
"""The newest Spark on which the connector that Maven Central has both reads and writes."""
JVM_CONNECTOR = "io.streamnative.connectors:pulsar-spark-connector_2.12:3.1.1.4"
START_SECONDS_MAX = 300.0
"""A first start downloads the connector."""
QUERY_SECONDS_MAX = 900.0

CONFIGURATION = {
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}
"""Of both; everything else is as Spark has it."""

FOR_OURS = {"spark.python.unix.domain.socket.enabled": "true"}
"""What its documentation recommends: Spark's workers and its JVM talk more cheaply."""

IN_THE_BACKGROUND = ("chrt", "--idle", "0", "ionice", "-c", "3")
"""Gets the processor only while nobody else wants it, as if executors were on other machines."""


class SessionFailed(Exception):
    """It ended, failed or did not answer in time. The text has the end of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Which Spark, and how it is started."""

    name: str
    python: Path
    configuration: Mapping[str, str]
    prefix: Sequence[str] = ()


def our_kind(cores: int, prefix: Sequence[str] = ()) -> Kind:
    """The repository's PySpark with our data source."""
    configuration = {"spark.master": f"local[{cores}]", **FOR_OURS}
    return Kind(name="ours", python=Path(sys.executable), configuration=configuration, prefix=prefix)


def jvm_kind(cores: int) -> Kind:
    """PySpark with the JVM connector; both are fetched when they are not there. Raises `environments.Unfit`."""
    return Kind(
        name="jvm",
        python=environments.python_with(JVM_PYSPARK, "3.11"),
        configuration={
            "spark.master": f"local[{cores}]",
            "spark.jars.packages": JVM_CONNECTOR,
            "spark.jars.ivy": str(environments.cache() / "ivy"),
        },
    )


class Session:
    """One driver with its JVM and its Python workers."""

    def __init__(self, kind: Kind, folder: Path) -> None:
        self.version = ""
        folder.mkdir(parents=True)
        self._log = folder / "log"
        settings = {**CONFIGURATION, "spark.sql.warehouse.dir": str(folder / "warehouse"), **kind.configuration}
        settings["spark.local.dir"] = str(folder)
        (folder / "log4j2.properties").write_text(LOG_SETTINGS)
        (folder / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
        environment = {name: value for name, value in os.environ.items() if name not in NOT_THE_USERS}
        environment |= {
            "JAVA_HOME": str(environments.java_home(JAVA_RELEASE)),
            "PYSPARK_PYTHON": str(kind.python),
            "PYSPARK_DRIVER_PYTHON": str(kind.python),
            "SPARK_CONF_DIR": str(folder),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        self._answers, writing = os.pipe()
        self._buffer = b""
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                [*kind.prefix, str(kind.python), str(PROGRAM), str(writing)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                pass_fds=[writing],
                start_new_session=True,
            )
        os.close(writing)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        processes.kill_tree(self._process)
        assert self._process.stdin is not None
        self._process.stdin.close()
        os.close(self._answers)

    def wait_until_ready(self) -> None:
        """Raises `SessionFailed`."""
        self.version = self._answer(START_SECONDS_MAX)["version"]

    def ask(self, told: Mapping[str, object]) -> Any:
        """Its answer. Raises `SessionFailed`."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(told).encode() + b"\n")
        self._process.stdin.flush()
        return self._answer(QUERY_SECONDS_MAX)

    def cpu_seconds(self) -> float:
        """Of the driver, the JVM and all Python workers so far."""
        return processes.cpu_seconds(processes.tree(self._process.pid))

    def _answer(self, seconds_max: float) -> Any:
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], seconds_max)
            some = os.read(self._answers, 1 << 16) if ready else b""
            if not some:
                lines = self._log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
                raise SessionFailed(f"{'it ended' if ready else 'no answer'}; the end of its log:\n" + "\n".join(lines))
            self._buffer += some
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)
