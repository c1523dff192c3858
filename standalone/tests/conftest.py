"""A standalone cluster as its users start it: in a process of its own."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

START_SECONDS_MAX = 20
"""Far above the truth, for machines that do a lot else."""
STOP_SECONDS_MAX = 15

READY = "Ctrl-C stops it."


class StandaloneProcess:
    """One process; its standard error is in a file, so that nobody has to keep reading."""

    def __init__(self, data: Path, output: Path, arguments: tuple[str, ...] = ()) -> None:
        self.data = data
        self._output = output
        command = [sys.executable, "-m", "magnetar.standalone", "standalone", "--data", str(data)]
        with output.open("wb") as file:
            self.process = subprocess.Popen(
                [*command, *(arguments or ("--port", "0", "--http-port", "0"))], stderr=file
            )

    @property
    def output(self) -> str:
        return self._output.read_text()

    @property
    def service_url(self) -> str:
        return self._url("service")

    @property
    def admin_url(self) -> str:
        return self._url("admin")

    def _url(self, name: str) -> str:
        found = re.search(rf"{name} URL\s+(\S+)", self.output)
        assert found is not None, self.output
        return found.group(1)

    def wait_until_ready(self) -> StandaloneProcess:
        deadline = time.monotonic() + START_SECONDS_MAX
        while READY not in self.output:
            assert self.process.poll() is None, self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(0.005)
        return self

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def wait(self) -> int:
        """The exit code."""
        return self.process.wait(STOP_SECONDS_MAX)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Tell it to stop; the exit code."""
        self.process.send_signal(number)
        return self.wait()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


StartStandalone = Callable[..., StandaloneProcess]


@pytest.fixture
def start_standalone(tmp_path: Path) -> Iterator[StartStandalone]:
    """`start_standalone(*arguments, data=...)`: does not wait; all are gone after the test."""
    with contextlib.ExitStack() as started:
        count = 0

        def start(*arguments: str, data: Path = tmp_path / "data") -> StandaloneProcess:
            nonlocal count
            count += 1
            standalone = StandaloneProcess(data, tmp_path / f"output-{count}.txt", arguments)
            started.callback(standalone.kill)
            return standalone

        yield start
