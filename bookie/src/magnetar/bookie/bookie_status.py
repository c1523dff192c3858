"""The BOOKIE_STATUS file: what somebody has asked of this bookie is so again after a restart.

One line, `1,READ_WRITE|READ_ONLY,<ms since 1970>,<manual>`, in every ledger directory; the newest counts (BookKeeper:
bookie/BookieStatus).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from magnetar.core.clock import Clock
from magnetar.core.disk import Disk

logger: Final = logging.getLogger(__name__)

STATUS_FILE: Final = "BOOKIE_STATUS"
LAYOUT_VERSION: Final = "1"
_READ_ONLY: Final = "READ_ONLY"
_READ_WRITE: Final = "READ_WRITE"


@dataclass(frozen=True, slots=True)
class SavedBookieStatus:
    """Whether a bookie takes writes."""

    read_only: bool
    manual: bool
    """Somebody has asked for it; free disks alone do not end it."""
    updated_ms: int = 0


def encode_status(status: SavedBookieStatus) -> bytes:
    """The file's content."""
    mode = _READ_ONLY if status.read_only else _READ_WRITE
    manual = "true" if status.manual else "false"
    return f"{LAYOUT_VERSION},{mode},{status.updated_ms},{manual}\n".encode()


def decode_status(content: bytes) -> SavedBookieStatus | None:
    """The status, or None when it is not one that we know. Without the last field, as BookKeeper wrote it once, a
    read-only mode was asked for by somebody."""
    lines = content.decode("utf-8", "replace").splitlines()
    fields = [part.strip() for part in lines[0].split(",")] if lines else []
    if len(fields) not in (3, 4) or fields[0] != LAYOUT_VERSION or fields[1] not in (_READ_ONLY, _READ_WRITE):
        return None
    if not fields[2].isascii() or not fields[2].isdigit():
        return None
    manual = len(fields) == 3 or fields[3].lower() == "true"
    return SavedBookieStatus(fields[1] == _READ_ONLY, manual, int(fields[2]))


def read_status(disk: Disk, directories: Sequence[Path]) -> SavedBookieStatus | None:
    """The newest status in the directories, or None. OSError."""
    newest: SavedBookieStatus | None = None
    for directory in directories:
        content = disk.read_whole(directory / STATUS_FILE)
        status = decode_status(content) if content is not None else None
        if content is not None and status is None:
            logger.warning("%s is damaged and is left out", directory / STATUS_FILE)
        if status is not None and (newest is None or status.updated_ms > newest.updated_ms):
            newest = status
    return newest


class StatusKeeper:
    """Writes the status when it changes. On the event loop."""

    def __init__(
        self,
        disk: Disk,
        directories: Sequence[Path],
        clock: Clock,
        now: Callable[[], tuple[bool, bool]],
        stored: SavedBookieStatus | None,
    ) -> None:
        """`now` gives (read-only, manual); `stored` is what `read_status` has found."""
        self._disk = disk
        self._directories = tuple(directories)
        self._now = now
        self._clock = clock
        self._lock = asyncio.Lock()
        self._changed = asyncio.Event()
        self._saved = (stored.read_only, stored.manual) if stored is not None else (False, False)

    def changed(self) -> None:
        """Have the status written soon, if it is another one than before."""
        self._changed.set()

    async def run(self) -> None:
        """Write whenever it has changed, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self.save()
            except OSError as error:
                logger.warning("the bookie's status could not be stored: %s", error)

    async def save(self) -> None:
        """Write the status of this moment, durably, unless it is written already. OSError when no directory took it."""
        async with self._lock:
            now = self._now()
            if now == self._saved:
                return
            content = encode_status(SavedBookieStatus(*now, self._clock.now_ms()))
            await asyncio.get_running_loop().run_in_executor(None, self._write, content)
            self._saved = now

    def _write(self, content: bytes) -> None:
        failures: list[OSError] = []
        for directory in self._directories:
            try:
                self._disk.replace_whole(directory / STATUS_FILE, content)
            except OSError as error:
                failures.append(error)
        if len(failures) == len(self._directories):
            raise failures[0]
        for failure in failures:
            logger.warning("the bookie's status could not be stored everywhere: %s", failure)
