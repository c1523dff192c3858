"""The tools as they are: `pulsar-admin` in one JVM for a whole walk, `pulsarctl` as a process for each command."""

from __future__ import annotations

import base64
import os
import queue
import subprocess
import tempfile
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from e2e.clients import builds
from e2e.peers import distribution

DRIVER = Path(__file__).parent.parent / "clients" / "admin" / "AdminDriver.java"
COMMAND_SECONDS_MAX = 120.0
REQUEST_SECONDS_MAX = 40
"""Some wrong requests Apache's brokers leave unanswered."""


@dataclass(frozen=True, slots=True)
class Printed:
    """How a command ended."""

    succeeded: bool
    output: str
    complaint: str


class Tool(ABC):
    """A tool that asks one admin address."""

    name: str

    def __init__(self, admin_url: str) -> None:
        self.admin_url = admin_url

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def run(self, words: list[str]) -> Printed:
        """One command to its end."""

    @abstractmethod
    def close(self) -> None:
        """No more commands."""


class PulsarAdmin(Tool):
    """Apache's own, from the distribution."""

    name = "pulsar-admin"

    def __init__(self, admin_url: str) -> None:
        super().__init__(admin_url)
        self._folder = tempfile.TemporaryDirectory(prefix="pulsar-admin-")
        self._log = Path(self._folder.name) / "errors.log"
        java = ["java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dlog4j2.level=OFF"]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [*java, "-cp", f"{distribution.home() / 'lib'}/*", str(DRIVER), admin_url],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input: IO[str] = self._process.stdin
        # A command's answer is one line, the end of the process an empty one; whoever reads takes them one by one.
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def run(self, words: list[str]) -> Printed:
        self._input.write("\t".join(["--request-timeout", str(REQUEST_SECONDS_MAX), *words]) + "\n")
        self._input.flush()
        while not (line := self._lines.get(timeout=COMMAND_SECONDS_MAX)).startswith("RESULT "):
            assert line, f"pulsar-admin ended at {words}: {self._complained()}"
        _, succeeded, output, complaint = line.split()
        return Printed(succeeded == "true", _decoded(output), _decoded(complaint))

    def close(self) -> None:
        self._input.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._folder.cleanup()

    def _read(self, output: IO[str]) -> None:
        with output:
            for line in output:
                self._lines.put(line)
        self._lines.put("")

    def _complained(self) -> str:
        return self._log.read_text(errors="replace")[-2000:]


def _decoded(field: str) -> str:
    return "" if field == "=" else base64.b64decode(field).decode()


class Pulsarctl(Tool):
    """The Go one, as its module has it."""

    name = "pulsarctl"

    def __init__(self, admin_url: str) -> None:
        super().__init__(admin_url)
        self._program = builds.build_pulsarctl()
        # Its settings are kept below the user's folder; it is to find none.
        self._home = tempfile.TemporaryDirectory(prefix="pulsarctl-")

    def run(self, words: list[str]) -> Printed:
        address = [] if "--help" in words else ["-s", self.admin_url]
        ended = subprocess.run(
            [str(self._program), *words, *address],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env={**os.environ, "HOME": self._home.name, "NO_COLOR": "1"},
            timeout=COMMAND_SECONDS_MAX,
            check=False,
        )
        return Printed(ended.returncode == 0, ended.stdout, ended.stderr)

    def close(self) -> None:
        self._home.cleanup()
