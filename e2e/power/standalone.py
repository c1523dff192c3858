"""`magnetar standalone` under trial."""

from __future__ import annotations

import sys
from pathlib import Path

from e2e import processes
from e2e.power.cluster_check import ClusterCheck
from e2e.power.cluster_load import ClusterLoad
from e2e.power.history import ClusterHistory
from e2e.power.recording import Recording
from e2e.server import MagnetarStandalone


class _SmallStandalone(MagnetarStandalone):
    """With everything small, recorded."""

    def __init__(self, data: Path, options: list[str], mistake: str) -> None:
        super().__init__(data)
        self.log = data.parent.parent / "standalone.log"
        self.recording: Recording | None = None
        self._options = options
        self._mistake = mistake

    def launch(self) -> None:
        """Without making the folder: that is what is looked at."""
        self._process = processes.spawn(self.command(), self.log, self.environment())

    def command(self) -> list[str]:
        ports = ["--port", str(self.port), "--http-port", str(self.http_port)]
        command = [sys.executable, "-m", "e2e.power.small", "standalone"]
        return [*command, "--data", str(self.data), *ports, *self._options]

    def environment(self) -> dict[str, str]:
        assert self.recording is not None
        return {**self.recording.environment, "POWER_MISTAKE": self._mistake}


class StandaloneSubject:
    """See `trial.Subject`."""

    def __init__(self, disk: Path, options: list[str], mistake: str = "") -> None:
        """`mistake` is one of `mistakes.CODE`, or empty."""
        self._server = _SmallStandalone(disk / "data", options, mistake)

    def start(self, recording: Recording) -> None:
        self._server.recording = recording
        self._server.log.write_text("")
        self._server.start()

    def load(self, recording: Recording, seed: int, seconds: float) -> ClusterHistory:
        return ClusterLoad(self._server, recording, seed, seconds).run()

    def check(self, recording: Recording, history: ClusterHistory, cut: int) -> list[str]:
        problems = ClusterCheck(self._server, recording, history, cut).problems()
        if "Traceback" in self.log_text():
            problems.append("the log holds the stack of an error")
        return problems

    def settled(self, history: ClusterHistory, cut: int) -> ClusterHistory:
        return history.settled(cut)

    def kill(self) -> None:
        self._server.kill()

    def log_text(self) -> str:
        return self._server.log.read_text(errors="replace")
