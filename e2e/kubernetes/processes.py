"""Long-running processes that outlive the program that starts them: by a file with the process's number each."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from e2e.kubernetes.places import DIRECT

POLL_SECONDS: Final = 0.1
START_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 10.0
LINES_SHOWN: Final = 5
"""Of the log of a process that died."""


_PROXIES: Final = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")


class NodeTrouble(Exception):
    """The node cannot do what was asked; the message says why and what helps."""


def past_proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables by which programs reach the node without the machine's proxy; none where it has no proxy."""
    if not any(environment.get(name) for name in _PROXIES):
        return {}
    have = environment.get("NO_PROXY") or environment.get("no_proxy") or ""
    hosts = ",".join(dict.fromkeys([*filter(None, have.split(",")), *DIRECT]))
    return {"NO_PROXY": hosts, "no_proxy": hosts}


def run(*command: str | Path, stdin: str | None = None) -> str:
    """Run a command to its end. Returns what it printed. Errors: `NodeTrouble` with what it said."""
    words = [str(word) for word in command]
    try:
        environment = {**os.environ, **past_proxies(os.environ)}
        result = subprocess.run(words, input=stdin, capture_output=True, text=True, check=False, env=environment)
    except FileNotFoundError as error:
        raise NodeTrouble(f"{words[0]} is not on this machine") from error
    if result.returncode:
        raise NodeTrouble(f"{' '.join(words)}: {result.stderr.strip() or result.stdout.strip()}")
    return result.stdout


def succeeds(*command: str | Path) -> bool:
    """Whether a command ends well; one that is not there does not."""
    try:
        run(*command)
    except NodeTrouble:
        return False
    return True


def began(pid: int) -> str:
    """When a process began, and since which start of the machine that is counted (Linux: proc_pid_stat(5))."""
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return f"{ticks}@{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}"


@dataclass(frozen=True, slots=True)
class Processes:
    """The processes of one node: `state` has their numbers, `logs` what they print."""

    state: Path
    logs: Path

    def start(self, name: str, command: Sequence[str | Path]) -> None:
        """Start one unless it runs, in a session of its own."""
        if self.pid(name) is not None:
            return
        words = [str(word) for word in command]
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        pid = os.posix_spawnp(
            words[0],
            words,
            {**os.environ, **past_proxies(os.environ)},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(self.logs / f"{name}.log"), flags, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )
        self._file(name).write_text(f"{pid} {began(pid)}\n")

    def pid(self, name: str) -> int | None:
        """Its number while it runs. A process that ended but was not waited for has no program any more; one that has
        the number now, such as after a start of the machine, is another one."""
        try:
            number, since = self._file(name).read_text().split()
            pid = int(number)
            os.readlink(f"/proc/{pid}/exe")
            return pid if began(pid) == since else None
        except (OSError, ValueError):
            return None

    def running(self) -> dict[str, int]:
        """All that run, by name."""
        names = sorted(file.stem for file in self.state.glob("*.pid"))
        return {name: pid for name in names if (pid := self.pid(name)) is not None}

    def stop(self, name: str, how: signal.Signals = signal.SIGTERM) -> None:
        """End one, in good order if it does so within `STOP_SECONDS_MAX`."""
        for each in (how, signal.SIGKILL):
            if (pid := self.pid(name)) is None:
                break
            os.kill(pid, each)
            ends = time.monotonic() + STOP_SECONDS_MAX
            while self.pid(name) == pid and time.monotonic() < ends:
                time.sleep(POLL_SECONDS)
        self._file(name).unlink(missing_ok=True)

    def wait_until(self, name: str, serves: Callable[[], bool]) -> None:
        """Until a process serves. Errors: `NodeTrouble` if it died or takes too long."""
        ends = time.monotonic() + START_SECONDS_MAX
        while not serves():
            if self.pid(name) is None:
                raise NodeTrouble(f"{name} ended while it started:\n{self._last_lines(name)}")
            if time.monotonic() > ends:
                raise NodeTrouble(f"{name} does not serve after {START_SECONDS_MAX:.0f} s:\n{self._last_lines(name)}")
            time.sleep(POLL_SECONDS)

    def _file(self, name: str) -> Path:
        return self.state / f"{name}.pid"

    def _last_lines(self, name: str) -> str:
        lines = (self.logs / f"{name}.log").read_text(errors="replace").splitlines()[-LINES_SHOWN:]
        return "\n".join([*lines, f"(all of it: {self.logs / name}.log)"])
