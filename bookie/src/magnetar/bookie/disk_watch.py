"""Decides whether the bookie takes writes: full or failing disks make it read-only, room brings it back.

A ledger is bound to its ledger directory and its journal, so one full disk means that a part of all ledgers cannot be
written. The whole bookie turns read-only then, as BookKeeper does by default (readOnlyModeOnAnyDiskFullEnabled): a
bookie that stays registered as writable while it refuses some ledgers would cost each of their writers an ensemble
change, and be chosen for new ones again and again. BookKeeper's other choice, read-only once all disks are full, is
not offered: with a RocksDB index per directory it goes on writing to the full ones until they fail. Journal and index
directories count here too.

What keeps a full disk cleanable is the reserve: adds stop while there is still room for what the caches hold, for a
new journal step and for `free_bytes_min` more, which only checkpoints, compaction, index deletes and marks use.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from magnetar.bookie.settings import DiskSettings
from magnetar.core.text import human_bytes

logger: Final = logging.getLogger(__name__)

REASON_DISK_FULL: Final = "the disk is full"
REASON_WRITE_FAILED: Final = "a write failed"
REASON_SETTING: Final = "the settings say so"
REASON_MANUAL: Final = "somebody has asked for it"
_OVER: Final = {
    REASON_DISK_FULL: "its disks have room again",
    REASON_WRITE_FAILED: "its disks have room, so writing is tried again",
    REASON_MANUAL: "somebody has asked for that",
}
"""How the end of a reason is told; of others only that they are over."""

DirectorySpace: TypeAlias = tuple[Path, int, int]
"""A directory, and the total and free bytes of its file system."""


class DiskState(enum.Enum):
    """How full the file system of a directory is."""

    USABLE = enum.auto()
    ALMOST_FULL = enum.auto()
    """Above the warn threshold: compaction that needs room should wait."""
    FULL = enum.auto()
    """Above the usage threshold or without free bytes: the bookie takes no adds any more."""


def disk_full(
    total_bytes: int, free_bytes: int, settings: DiskSettings, *, was_full: bool, pending_bytes: int = 0
) -> bool:
    """Whether a disk counts as full; once it does, it must get below the low water mark to count as usable again.

    `pending_bytes` is what may still be written to it after the last add."""
    used_share = 1 - free_bytes / max(1, total_bytes)
    limit = settings.usage_low_water if was_full else settings.usage_threshold
    return used_share >= limit or free_bytes < settings.free_bytes_min + pending_bytes


class WriteMode:
    """The reasons why the bookie is read-only, and the switch that follows from them. On the event loop."""

    def __init__(
        self, settings: DiskSettings, spaces: Callable[[], Sequence[DirectorySpace]], pending_bytes: int = 0
    ) -> None:
        """`spaces` looks at every directory; it may raise OSError. `pending_bytes`: see `disk_full`."""
        self._settings = settings
        self._look = spaces
        self._pending_bytes = pending_bytes
        self._reasons: dict[str, bool] = {}
        self._listeners: list[Callable[[bool], None]] = []
        self._states: dict[Path, DiskState] = {}
        self.spaces: tuple[DirectorySpace, ...] = ()
        """The disks' space as it was seen last, one for each directory."""
        self.free_bytes = 0
        """Free bytes of the directory that has the least."""

    @property
    def read_only(self) -> bool:
        """Whether ordinary adds are refused."""
        return bool(self._reasons)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why, oldest first; empty while the bookie is writable."""
        return tuple(self._reasons)

    @property
    def manual(self) -> bool:
        """Whether somebody has asked for it, so that only somebody can end it."""
        return any(self._reasons.values())

    @property
    def forced(self) -> bool:
        """Whether the settings want it."""
        return REASON_SETTING in self._reasons

    @property
    def recovery_writes(self) -> bool:
        """Whether there is room for recoveries beside the reserve."""
        room = self.free_bytes >= self._settings.free_bytes_min + self._pending_bytes
        return room and REASON_WRITE_FAILED not in self._reasons

    def disk_state(self, directory: Path) -> DiskState:
        """How full a directory's file system was at the last look."""
        return self._states.get(directory, DiskState.USABLE)

    def watch(self, listener: Callable[[bool], None]) -> None:
        """Be told of every change, with `read_only`."""
        self._listeners.append(listener)

    def add_reason(self, reason: str, *, manual: bool = False) -> None:
        """Turn read-only for this reason, if it was not there yet."""
        if self._reasons.get(reason) == manual:
            return
        self._reasons[reason] = manual
        if len(self._reasons) == 1:
            logger.warning("the bookie turns read-only: %s", reason)
        self._tell()

    def remove_reason(self, reason: str) -> None:
        """Take a reason back; the last one makes the bookie writable."""
        if self._reasons.pop(reason, None) is None:
            return
        if not self._reasons:
            logger.warning("the bookie takes writes again: %s", _OVER.get(reason, f'no longer "{reason}"'))
        self._tell()

    def remove_manual_reasons(self) -> None:
        """Take back what somebody has asked for."""
        for reason in [reason for reason, manual in self._reasons.items() if manual]:
            self.remove_reason(reason)

    def write_failed(self, error: OSError) -> None:
        """Journal or checkpoint could not write: read-only until a check finds room again."""
        if REASON_WRITE_FAILED not in self._reasons:
            logger.error("a write to the bookie's disk failed: %s", error)
        self.add_reason(REASON_WRITE_FAILED)

    def check(self) -> None:
        """Look at the disks now."""
        try:
            self.spaces = tuple(self._look())
        except OSError as error:
            self.write_failed(error)
            return
        room_before = self.recovery_writes
        self.free_bytes = min((free for _, _, free in self.spaces), default=0)
        for directory, total, free in self.spaces:
            self._note(directory, self._state(directory, total, free), free)
        if DiskState.FULL in self._states.values():
            self.add_reason(REASON_DISK_FULL)
        else:
            self.remove_reason(REASON_DISK_FULL)
            # Whether writing works can only be seen by writing; the next failure turns us back at once.
            self.remove_reason(REASON_WRITE_FAILED)
        if self.recovery_writes != room_before:
            self._tell()

    async def run(self) -> None:
        """Check every so often, until cancelled."""
        while True:
            await asyncio.sleep(self._settings.check_interval_seconds)
            self.check()

    def _state(self, directory: Path, total_bytes: int, free_bytes: int) -> DiskState:
        was_full = self._states.get(directory) is DiskState.FULL
        full = disk_full(total_bytes, free_bytes, self._settings, was_full=was_full, pending_bytes=self._pending_bytes)
        if full:
            return DiskState.FULL
        used_share = 1 - free_bytes / max(1, total_bytes)
        return DiskState.ALMOST_FULL if used_share >= self._settings.usage_warn_threshold else DiskState.USABLE

    def _note(self, directory: Path, state: DiskState, free_bytes: int) -> None:
        before = self._states.get(directory, DiskState.USABLE)
        self._states[directory] = state
        if state is not before:
            level = logging.INFO if state is DiskState.USABLE else logging.WARNING
            words = {DiskState.USABLE: "has room again", DiskState.ALMOST_FULL: "is almost full"}
            text = "the disk of %s %s: %s are free, %s are kept for checkpoints and deletions"
            kept = human_bytes(self._settings.free_bytes_min + self._pending_bytes)
            logger.log(level, text, directory, words.get(state, "is full"), human_bytes(free_bytes), kept)

    def _tell(self) -> None:
        for listener in self._listeners:
            listener(self.read_only)
