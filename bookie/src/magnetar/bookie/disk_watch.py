"""Decides whether the bookie takes writes: full or failing disks make it read-only, room brings it back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from magnetar.bookie.settings import DiskSettings

log = logging.getLogger(__name__)

REASON_DISK_FULL: Final = "the disk is full"
REASON_WRITE_FAILED: Final = "a write failed"
REASON_SETTING: Final = "the settings say so"


def disk_full(total_bytes: int, free_bytes: int, settings: DiskSettings, *, was_full: bool) -> bool:
    """Whether a disk counts as full; once it does, it must get below the low water mark to count as usable again."""
    used_share = 1 - free_bytes / max(1, total_bytes)
    limit = settings.usage_low_water if was_full else settings.usage_threshold
    return used_share >= limit or free_bytes < settings.free_bytes_min


class WriteMode:
    """The reasons why the bookie is read-only, and the switch that follows from them."""

    def __init__(self, settings: DiskSettings, usage: Callable[[], tuple[int, int]]) -> None:
        """`usage` gives (total, free) bytes of the fullest disk; it may raise OSError."""
        self._settings = settings
        self._usage = usage
        self._reasons: set[str] = set()
        self._listeners: list[Callable[[bool], None]] = []
        self.free_bytes = 0

    @property
    def read_only(self) -> bool:
        """Whether ordinary adds are refused."""
        return bool(self._reasons)

    @property
    def recovery_writes(self) -> bool:
        """Whether the reserve is still there for recoveries."""
        return self.free_bytes >= self._settings.free_bytes_min and REASON_WRITE_FAILED not in self._reasons

    def watch(self, listener: Callable[[bool], None]) -> None:
        """Be told of every change, with `read_only`."""
        self._listeners.append(listener)

    def add_reason(self, reason: str) -> None:
        """Turn read-only for this reason, if it was not there yet."""
        if reason in self._reasons:
            return
        self._reasons.add(reason)
        if len(self._reasons) == 1:
            log.warning("the bookie turns read-only: %s", reason)
        self._tell()

    def remove_reason(self, reason: str) -> None:
        """Take a reason back; the last one makes the bookie writable."""
        if reason not in self._reasons:
            return
        self._reasons.remove(reason)
        if not self._reasons:
            log.warning("the bookie takes writes again: no longer that %s", reason)
        self._tell()

    def write_failed(self, error: OSError) -> None:
        """Journal or checkpoint could not write: read-only until a check finds room again."""
        if REASON_WRITE_FAILED not in self._reasons:
            log.error("a write to the bookie's disk failed: %s", error)
        self.add_reason(REASON_WRITE_FAILED)

    def check(self) -> None:
        """Look at the disks now."""
        try:
            total, free = self._usage()
        except OSError as error:
            self.write_failed(error)
            return
        self.free_bytes = free
        full = disk_full(total, free, self._settings, was_full=REASON_DISK_FULL in self._reasons)
        if full:
            self.add_reason(REASON_DISK_FULL)
        else:
            self.remove_reason(REASON_DISK_FULL)
            # Whether writing works can only be seen by writing; the next failure turns us back at once.
            self.remove_reason(REASON_WRITE_FAILED)

    async def run(self) -> None:
        """Check every so often, until cancelled."""
        while True:
            await asyncio.sleep(self._settings.check_interval_seconds)
            self.check()

    def _tell(self) -> None:
        for listener in self._listeners:
            listener(self.read_only)
