"""Hosts: a name, a disk, a clock of its own, and the process that runs there now."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final

from magnetar.sim.disk import Platter, SimulatedDisk
from magnetar.sim.loop import SimulatedLoop
from magnetar.sim.process import Process

from e2e.simulation.network import Network

EPOCH_MS: Final = 1_800_000_000_000
"""What a right clock shows when a run begins."""


class SimulatedClock:
    """A `magnetar.core.clock.Clock` that is off by some time."""

    def __init__(self, loop: SimulatedLoop, skew_ms: int) -> None:
        self._loop = loop
        self.skew_ms = skew_ms
        """To be changed while no process runs: what is monotonic changes with it."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, as this host believes."""
        return EPOCH_MS + self.skew_ms + int(self._loop.time() * 1000)

    def monotonic_seconds(self) -> float:
        """Seconds that never go back; they count from another moment on every host."""
        return self._loop.time() + 1_000.0 + self.skew_ms / 1000 % 1_000


class SimulatedHost:
    """One host. One process at a time runs on it."""

    def __init__(self, name: str, loop: SimulatedLoop, network: Network, platter: Platter, skew_ms: int = 0) -> None:
        self.name = name
        self.platter = platter
        self.clock = SimulatedClock(loop, skew_ms)
        self.process: Process | None = None
        self.starts = 0
        self._loop = loop
        self._network = network
        platter.on_crash = self._crash

    @property
    def running(self) -> bool:
        """Whether a process is alive here."""
        return self.process is not None

    def start(self) -> Process:
        """A new process, which has nothing to do yet."""
        assert self.process is None
        self.starts += 1
        process = Process(f"{self.name}#{self.starts}", self.name)
        self._loop.register(process)
        self.process = process
        self._network.host_up(process)
        self._loop.trace.note(self.name, f"start {self.starts}")
        return process

    def run(self, work: Coroutine[Any, Any, Any], name: str = "main") -> None:
        """Run something in the process."""
        assert self.process is not None
        self.process.start(work, name)

    def disk(self) -> SimulatedDisk:
        """The disk, for the process that runs now."""
        assert self.process is not None
        return self.platter.mount(self.process)

    def kill(self) -> None:
        """SIGKILL: the kernel lives on, keeps what was written and closes the connections."""
        self._end(silently=False)

    def lose_power(self) -> None:
        """The host is off: unsynced writes are lost, and nobody is told."""
        if self._end(silently=True):
            self.platter.lose_power()

    def _crash(self, loses_power: bool) -> None:
        if loses_power:
            self.lose_power()
        else:
            self.kill()

    def _end(self, *, silently: bool) -> bool:
        process, self.process = self.process, None
        if process is None:
            return False
        process.alive = False
        self.platter.mounted = None
        self._network.host_down(process, silently=silently)
        self._loop.trace.note(self.name, "power lost" if silently else "killed")
        return True
