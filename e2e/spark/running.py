"""Scripts that use Spark, each run in a process of its own: JSON goes in, JSON comes out."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e import processes

CONFIGURATION = {
    # What is tried here is small, and must leave the machine to the server.
    "spark.master": "local[2]",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
}
"""Of every Spark here, unless it is said otherwise."""

LOG_SETTINGS = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""

NOT_THE_USERS = ("SPARK_HOME", "PYTHONPATH", "PYSPARK_SUBMIT_ARGS")
"""Variables by which another Spark than that of the interpreter would be taken."""

LOG_TAIL_LINES = 60


class ScriptFailed(Exception):
    """It ended with an error, too late, or not at all. The text has the end of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spark:
    """An interpreter with a PySpark, the Java that it starts, and how its sessions are configured.

    Scripts get sessions by `SparkSession.builder.getOrCreate()`, and are called with two paths: that of the JSON they
    are told, and that of the JSON they answer."""

    python: Path
    java_home: Path
    folder: Path
    """For arguments, answers, logs and whatever else a session leaves."""
    configuration: Mapping[str, str]
    """Beside CONFIGURATION, or instead of what stands there."""
    home: Path | None = None
    """SPARK_HOME, where it is not the interpreter's PySpark itself."""

    def run(self, script: Path, arguments: object, *, timeout_s: float = 600.0) -> Any:
        """What the script answers. Raises `ScriptFailed`."""
        return self.start(script, arguments).answer(timeout_s)

    def start(self, script: Path, arguments: object) -> RunningScript:
        """For scripts that are killed, or watched."""
        self.folder.mkdir(parents=True, exist_ok=True)
        number = sum(1 for _ in self.folder.glob("run-*"))
        folder = self.folder / f"run-{number}"
        folder.mkdir()
        (folder / "arguments.json").write_text(json.dumps(arguments))
        (folder / "log4j2.properties").write_text(LOG_SETTINGS)
        settings = {**CONFIGURATION, "spark.sql.warehouse.dir": str(folder / "warehouse"), **self.configuration}
        (folder / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
        environment = {
            "JAVA_HOME": str(self.java_home),
            # A script beside this one must not stand for a module of the same name.
            "PYTHONSAFEPATH": "1",
            "PYSPARK_PYTHON": str(self.python),
            "PYSPARK_DRIVER_PYTHON": str(self.python),
            "SPARK_CONF_DIR": str(folder),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        named = [] if self.home is None else [f"SPARK_HOME={self.home}"]
        without = [part for name in NOT_THE_USERS for part in ("-u", name)]
        program = [str(self.python), str(script), str(folder / "arguments.json"), str(folder / "answer.json")]
        command = ["env", *without, *named, *program]
        return RunningScript(processes.spawn(command, folder / "log", environment), folder)


class RunningScript:
    """A script with its Spark. Ends with `answer` or `kill`, whatever happens in between."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self._process = process
        self._folder = folder

    def answer(self, timeout_s: float) -> Any:
        """Waits for its end. Raises `ScriptFailed`."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise ScriptFailed(f"no answer in {timeout_s:.0f} s; {self.log_tail()}") from None
        finally:
            # Also when the test is interrupted meanwhile.
            self.kill()
        if code:
            raise ScriptFailed(f"it ended with {code}; {self.log_tail()}")
        return json.loads((self._folder / "answer.json").read_text())

    @property
    def ended(self) -> bool:
        """Whether it has, in whatever way."""
        return self._process.poll() is not None

    def wait_for_file(self, path: Path, timeout_s: float) -> None:
        """Until the script has made it. Raises `ScriptFailed` when that is too late, or the script ends before."""
        deadline = time.monotonic() + timeout_s
        while not path.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise ScriptFailed(f"there is no {path}; {self.log_tail()}")
            time.sleep(0.1)

    def kill(self) -> None:
        """SIGKILL to the script, its Java and its workers, unless it has ended."""
        if self._process.poll() is None:
            processes.kill_tree(self._process)

    def log_tail(self) -> str:
        """The end of what it printed."""
        log = self._folder / "log"
        return f"the end of {log}:\n" + "\n".join(log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])
