"""A process of a cluster: started, killed, stopped and continued, with what it writes kept."""

from __future__ import annotations

import signal
import subprocess
from abc import ABC, abstractmethod
from pathlib import Path

from e2e import processes
from e2e.processes import wait_for

START_SECONDS_MAX = 60.0


class Part(ABC):
    """A process with a folder of its own; its log is kept beside the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder.with_suffix(".log")
        self.variables: dict[str, str] = {}
        """What its environment has besides."""
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> list[str]:
        """What to run."""

    @abstractmethod
    def ready(self) -> bool:
        """Whether it serves."""

    def environment(self) -> dict[str, str]:
        return self.variables

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """How it ended; None while it runs, or was never started."""
        return self._process.poll() if self._process is not None else None

    @property
    def pids(self) -> list[int]:
        return processes.tree(self._process.pid) if self._process is not None and self.running else []

    def launch(self) -> None:
        """Start it and do not wait."""
        assert not self.running, f"{self.folder.name} is running already"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._process = processes.spawn(self.command(), self.log, self.environment())

    def wait_until_ready(self) -> None:
        wait_for(lambda: not self.running or self.ready(), START_SECONDS_MAX, f"{self.folder.name} does not come up")
        assert self.running, f"{self.folder.name} ended while starting; the end of its log:\n{self.log_tail()}"

    def wait_until_ended(self) -> None:
        """By itself."""
        wait_for(lambda: not self.running, START_SECONDS_MAX, f"{self.folder.name} does not end")

    def start(self) -> None:
        self.launch()
        self.wait_until_ready()

    def kill(self) -> None:
        """SIGKILL to it and to what it started."""
        if self._process is not None:
            processes.kill_tree(self._process)

    def pause(self) -> None:
        """SIGSTOP: it answers nothing and its connections stay open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Go on after `pause`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """SIGTERM, and wait until it has ended."""
        if self._process is not None:
            processes.end(self._process)

    def log_text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def log_tail(self, lines: int = 30) -> str:
        return "\n".join(self.log_text().splitlines()[-lines:])
