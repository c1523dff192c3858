"""Our processes as their users start them: a standalone cluster, and a cluster of bookies and brokers."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from magnetar.metadata.testing import ZookeeperServer

START_SECONDS_MAX = 60
"""Far above the truth, for machines that do a lot else."""
STOP_SECONDS_MAX = 60

READY = "Ctrl-C stops it."


class StandaloneProcess:
    """One process; both outputs are in files, so that nobody has to keep reading."""

    def __init__(self, data: Path, output: Path, arguments: tuple[str, ...] = ()) -> None:
        self.data = data
        self._errors = output
        self._output = output.with_suffix(".out")
        command = [sys.executable, "-m", "magnetar.cli", "standalone", "--data", str(data)]
        with output.open("wb") as errors, self._output.open("wb") as file:
            self.process = subprocess.Popen(
                [*command, *(arguments or ("--port", "0", "--http-port", "0"))], stdout=file, stderr=errors
            )

    @property
    def ready_lines(self) -> str:
        """Its standard output."""
        return self._output.read_text()

    @property
    def output(self) -> str:
        """Its standard error."""
        return self._errors.read_text()

    @property
    def service_url(self) -> str:
        return self._url("service")

    @property
    def admin_url(self) -> str:
        return self._url("admin")

    def _url(self, name: str) -> str:
        found = re.search(rf"{name} URL\s+(\S+)", self.ready_lines)
        assert found is not None, self.ready_lines
        return found.group(1)

    def wait_until_ready(self) -> StandaloneProcess:
        deadline = time.monotonic() + START_SECONDS_MAX
        while READY not in self.ready_lines:
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


class ServiceProcess:
    """`magnetar …` as a process; both outputs are in files."""

    def __init__(self, folder: Path, arguments: tuple[object, ...], environment: dict[str, str]) -> None:
        self._output = folder.with_suffix(".out")
        self._errors = folder.with_suffix(".err")
        command = [sys.executable, "-m", "magnetar.cli", *map(str, arguments)]
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=errors, env={**os.environ, "NO_COLOR": "1", **environment}
            )

    @property
    def output(self) -> str:
        return self._output.read_text()

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    def wait_until_ready(self) -> ServiceProcess:
        deadline = time.monotonic() + START_SECONDS_MAX
        while " ready: " not in self.output:
            assert self.process.poll() is None, self.errors
            assert time.monotonic() < deadline, self.errors
            time.sleep(0.005)
        return self

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


StartService = Callable[..., ServiceProcess]


@pytest.fixture
def start_service(tmp_path: Path) -> Iterator[StartService]:
    """`start_service(*arguments, environment=...)`: does not wait; all are gone after the test."""
    with contextlib.ExitStack() as started:
        count = 0

        def start(*arguments: object, environment: dict[str, str] | None = None) -> ServiceProcess:
            nonlocal count
            count += 1
            service = ServiceProcess(tmp_path / f"service-{count}", arguments, environment or {})
            started.callback(service.kill)
            return service

        yield start


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperServer]:
    with ZookeeperServer(tmp_path_factory.mktemp("zookeeper"), tick_ms=200) as server:
        yield server


@pytest.fixture
def metadata_url(zookeeper_server: ZookeeperServer, tmp_path: Path) -> str:
    """A part of a real ZooKeeper that only this test uses."""
    return f"zk:{zookeeper_server.address}/{tmp_path.name}"
