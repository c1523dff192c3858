"""Control groups that give a process a share of one core, so that a small machine shows what a large one would do."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 20_000
"""Short, so that a process that has used up its share waits for milliseconds, not for the usual hundred."""


class NoControlGroups(Exception):
    """This machine lets nobody limit processes."""


class CpuShares:
    """Limits processes, each in a group of its own below version 2's or version 1's tree; the groups are gone in the
    end, and what still runs in them is free again. Needs root."""

    def __init__(self, cores: float, root: Path = ROOT) -> None:
        self._cores = cores
        self._second = (root / "cgroup.controllers").exists()
        self._parent = root if self._second else root / "cpu"
        self._groups: list[Path] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for group in self._groups:
            for pid in (group / "cgroup.procs").read_text().split():
                (self._parent / "cgroup.procs").write_text(pid)
            group.rmdir()

    def limit(self, pid: int) -> None:
        """From now on the process and its threads have their share. `NoControlGroups`."""
        quota_us = int(self._cores * PERIOD_US)
        group = self._parent / f"magnetar-bench-{os.getpid()}-{pid}"
        try:
            if self._second:
                (self._parent / "cgroup.subtree_control").write_text("+cpu")
            group.mkdir()
            self._groups.append(group)
            if self._second:
                (group / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
            else:
                (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                (group / "cpu.cfs_quota_us").write_text(str(quota_us))
            (group / "cgroup.procs").write_text(str(pid))
        except OSError as error:
            raise NoControlGroups(f"a process cannot be limited to {self._cores:g} of a core: {error}") from None
