"""How full this broker's container or host is: CPU, memory, network. Linux' own files, read on demand.

The units are those of Pulsar's load reports (`LinuxBrokerHostUsageImpl`): CPU in percent of one core, memory in MiB,
network in kbit/s. A container's limits count where it has some (control groups, version 2, then 1); else the host's.

A broker does its work in one thread, and is full when it has one core to itself, however many there are. So CPU is the
fuller of two: what this process uses of one core, and what the container or host uses of all that it has. Whoever reads
the report, Apache's leader too, goes by usage over limit alone.
"""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import Final

from magnetar.core.clock import Clock
from magnetar.core.limits import MIB
from magnetar.core.process_memory import CONTAINER_MEMORY_FILES, UNLIMITED_BYTES_MIN

CGROUP: Final = "sys/fs/cgroup"
ETHERNET: Final = "1"
"""What `/sys/class/net/<interface>/type` holds for interfaces that carry traffic out of the host (ARPHRD_ETHER)."""

USABLE_STATES: Final = ("up", "unknown", "dormant")
KBIT_BYTES: Final = 1024 / 8
CORE_PERCENT: Final = 100.0
"""Of one core: all that a single thread can use."""


class Usage:
    """How much of something is used, and its limit; a limit of 0 is not known."""

    __slots__ = ("limit", "usage")

    def __init__(self, usage: float = 0.0, limit: float = 0.0) -> None:
        self.usage = usage
        self.limit = limit

    @property
    def percent(self) -> float:
        """0 while the limit is not known."""
        return 100.0 * self.usage / self.limit if self.limit > 0 else 0.0


class HostUsage:
    """One measurement of the host: CPU, memory and network."""

    __slots__ = ("bandwidth_in", "bandwidth_out", "cpu", "direct_memory", "memory")

    def __init__(self) -> None:
        self.cpu = Usage()
        self.memory = Usage()
        self.direct_memory = Usage()
        """A notion of the Java machine; always unknown."""
        self.bandwidth_in = Usage()
        self.bandwidth_out = Usage()

    def percents(self) -> list[float]:
        """Every resource's usage, in percent."""
        parts = (self.cpu, self.memory, self.direct_memory, self.bandwidth_in, self.bandwidth_out)
        return [part.percent for part in parts]


class _Counters:
    """What only ever grows, at one moment."""

    __slots__ = ("at_seconds", "cpu_seconds", "process_seconds", "received_bytes", "sent_bytes")

    def __init__(self, at_seconds: float) -> None:
        self.at_seconds = at_seconds
        self.cpu_seconds = 0.0
        self.process_seconds = 0.0
        self.received_bytes = 0.0
        self.sent_bytes = 0.0


class HostUsageMeter:
    """Measures; CPU and network are averages since the latest call that is `window_seconds` back, so that there are
    none before. It keeps the calls of that time."""

    def __init__(
        self,
        clock: Clock,
        *,
        nic_speed_gbps: float | None = None,
        root: Path = Path("/"),
        window_seconds: float = 0.0,
        processors: int | None = None,
    ) -> None:
        """`processors`: of the host; None: as many as the kernel lets this process use."""
        self._clock = clock
        self._nic_speed_gbps = nic_speed_gbps
        self._root = root
        self._window_seconds = window_seconds
        self._processors = len(os.sched_getaffinity(0)) if processors is None else processors
        self._before: deque[_Counters] = deque()

    def average_over(self, window_seconds: float) -> None:
        """Over how long CPU and network are averaged from now on."""
        self._window_seconds = window_seconds

    def measure(self) -> HostUsage:
        """What is used now. Files that are missing or odd leave their part unknown. Some ten small reads."""
        names = self._interfaces()
        now = _Counters(self._clock.monotonic_seconds())
        now.cpu_seconds, now.process_seconds = self._cpu_seconds(), self._process_seconds()
        now.received_bytes, now.sent_bytes = self._bytes(names, "rx_bytes"), self._bytes(names, "tx_bytes")
        usage = HostUsage()
        usage.memory = self._memory()
        usage.cpu.limit = self._cpu_limit_percent()
        usage.bandwidth_in.limit = usage.bandwidth_out.limit = self._bandwidth_limit_kbits(names)
        before = self._since(now.at_seconds)
        if before is not None:
            elapsed_seconds = now.at_seconds - before.at_seconds
            usage.cpu = self._cpu(before, now, usage.cpu.limit)
            received = max(0.0, now.received_bytes - before.received_bytes)
            sent = max(0.0, now.sent_bytes - before.sent_bytes)
            usage.bandwidth_in.usage = received / KBIT_BYTES / elapsed_seconds
            usage.bandwidth_out.usage = sent / KBIT_BYTES / elapsed_seconds
        self._before.append(now)
        return usage

    def _since(self, now_seconds: float) -> _Counters | None:
        """The latest that is far enough back; older ones are forgotten."""
        found = None
        while self._before and now_seconds - self._before[0].at_seconds >= max(self._window_seconds, 1e-3):
            found = self._before.popleft()
        if found is not None:
            self._before.appendleft(found)
        return found

    @staticmethod
    def _cpu(before: _Counters, now: _Counters, limit_percent: float) -> Usage:
        elapsed_seconds = now.at_seconds - before.at_seconds
        used = 100.0 * max(0.0, now.cpu_seconds - before.cpu_seconds) / elapsed_seconds
        own = 100.0 * max(0.0, now.process_seconds - before.process_seconds) / elapsed_seconds
        around, process = Usage(used, limit_percent), Usage(min(own, CORE_PERCENT), CORE_PERCENT)
        return process if process.percent > around.percent else around

    def _text(self, *parts: str) -> str | None:
        try:
            return self._root.joinpath(*parts).read_text(encoding="ascii", errors="replace").strip()
        except OSError:
            return None

    def _number(self, *parts: str) -> float | None:
        text = self._text(*parts)
        try:
            return float(text) if text else None
        except ValueError:
            return None

    def _keyed(self, *parts: str) -> dict[str, float]:
        """A file of `name number` lines; a colon behind the name and a unit behind the number are let pass."""
        found: dict[str, float] = {}
        for line in (self._text(*parts) or "").splitlines():
            words = line.split()
            if len(words) >= 2 and words[1].lstrip("-").isdigit():
                found[words[0].rstrip(":")] = float(words[1])
        return found

    def _cpu_seconds(self) -> float:
        used = self._keyed(CGROUP, "cpu.stat").get("usage_usec")
        if used is not None:
            return used / 1e6
        for folder in ("cpuacct", "cpu,cpuacct", "cpu"):
            used = self._number(CGROUP, folder, "cpuacct.usage")
            if used is not None:
                return used / 1e9
        words = (self._text("proc", "stat") or "").partition("\n")[0].split()
        ticks = [float(word) for word in words[1:] if word.isdigit()]
        # The fourth and fifth are idle and waiting for the disk; see proc(5).
        return (sum(ticks) - sum(ticks[3:5])) / os.sysconf("SC_CLK_TCK")

    def _process_seconds(self) -> float:
        """Of this process; 0: not known. See proc(5): the name in brackets may have blanks."""
        words = (self._text("proc", "self", "stat") or "").rpartition(")")[2].split()
        ticks = [float(word) for word in words[11:13] if word.isdigit()]
        return sum(ticks) / os.sysconf("SC_CLK_TCK")

    def _cpu_limit_percent(self) -> float:
        quota, _, period = (self._text(CGROUP, "cpu.max") or "").partition(" ")
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            return 100.0 * int(quota) / int(period)
        for folder in ("cpu", "cpu,cpuacct"):
            limit, length = (self._number(CGROUP, folder, f"cpu.cfs_{what}_us") for what in ("quota", "period"))
            if limit is not None and length is not None and limit > 0 and length > 0:
                return 100.0 * limit / length
        return 100.0 * self._processors

    def _memory(self) -> Usage:
        """Without what the kernel would give back at once (inactive pages of files), as Kubernetes counts it."""
        host = self._keyed("proc", "meminfo")
        total_bytes = host.get("MemTotal", 0.0) * 1024
        for used_name, limit_name in CONTAINER_MEMORY_FILES:
            used, limit = self._number(used_name), self._number(limit_name)
            if used is not None and limit is not None and limit < UNLIMITED_BYTES_MIN:
                pages = self._keyed(f"{used_name.rpartition('/')[0]}/memory.stat")
                used -= pages.get("total_inactive_file", pages.get("inactive_file", 0.0))
                return Usage(max(0.0, used) / MIB, (min(limit, total_bytes) or limit) / MIB)
        return Usage((total_bytes - host.get("MemAvailable", 0.0) * 1024) / MIB, total_bytes / MIB)

    def _interfaces(self) -> list[str]:
        folder = self._root / "sys" / "class" / "net"
        try:
            names = sorted(path.name for path in folder.iterdir())
        except OSError:
            return []
        return [
            name
            for name in names
            if self._text("sys/class/net", name, "type") == ETHERNET
            and (self._text("sys/class/net", name, "operstate") or "").lower() in USABLE_STATES
        ]

    def _bytes(self, names: list[str], counter: str) -> float:
        return sum(self._number("sys/class/net", name, "statistics", counter) or 0.0 for name in names)

    def _bandwidth_limit_kbits(self, names: list[str]) -> float:
        if self._nic_speed_gbps is not None:
            return self._nic_speed_gbps * len(names) * 1024 * 1024
        # In Mbit/s; virtual ones say -1 or nothing.
        return sum(max(0.0, self._number("sys/class/net", name, "speed") or 0.0) for name in names) * 1024
