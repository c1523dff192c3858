"""Which entry logs a directory has, noted beside them, so that a start can tell that one is gone.

The note is durable before the index names a new log, and forgets a log that was deleted on purpose. BookKeeper's
bookies do not know it: what they have deleted in the meantime is told from what is lost by asking the index.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import google_crc32c
from magnetar.bookie.loss import WHAT_TO_DO, Losses, OnLoss
from magnetar.bookie.storage import entry_log_format
from magnetar.bookie.storage.entry_log_format import HEADER_BYTES, SIZE_BYTES, is_emptied
from magnetar.bookie.storage.index_api import LedgerIndex
from magnetar.core.disk import Disk
from magnetar.core.errors import Unavailable

logger: Final = logging.getLogger(__name__)

NOTE_FILE: Final = "entryLogs"
PLACES_PER_LOOK: Final = 10_000
"""Places of the index looked at once; bounds the memory for those that are lost."""
LOGS_TOLD_MAX: Final = 20
"""Each with a line of its own; whoever has lost more knows enough."""

Place: TypeAlias = tuple[int, int, int]
"""Where an entry is: ledger id, entry id, location."""


class EntryLogLost(Unavailable):
    """An entry log in which the index looks for entries is missing, or was cut. The text names the file."""


def list_logs(disk: Disk, directory: Path) -> list[int]:
    """Ids of the entry logs in a directory, ascending. OSError."""
    found = (entry_log_format.log_id_of(name) for name in disk.list_names(directory))
    return sorted(log_id for log_id in found if log_id is not None)


def read_note(disk: Disk, directory: Path) -> frozenset[int]:
    """The logs that were noted; none when nobody has noted any, or the note is damaged. OSError."""
    content = disk.read_whole(directory / NOTE_FILE)
    if content is None:
        return frozenset()
    try:
        log_ids = frozenset(int(word, 16) for word in content.split()[:-1])
    except ValueError:
        log_ids = frozenset()
    if content != _encode(log_ids):
        logger.warning("%s is damaged and left out: the logs that are there count", directory / NOTE_FILE)
        return frozenset()
    return log_ids


def write_note(disk: Disk, directory: Path, log_ids: Collection[int]) -> None:
    """Note these logs, durably. OSError."""
    disk.replace_whole(directory / NOTE_FILE, _encode(log_ids))


def check_entry_logs(disk: Disk, directory: Path, index: LedgerIndex, losses: Losses) -> None:
    """Tell of entry logs that are gone, and drop the places in them, so that nobody takes their entries for stored.

    A start that refuses damage looks into the index only when a log that was noted is missing; one that heals or
    accepts losses reads all of the index, and finds logs that were cut as well. Blocks.
    `EntryLogLost` unless losses are accepted, OSError."""
    sizes_bytes = {log_id: _LogFile(disk, directory, log_id).size_bytes for log_id in list_logs(disk, directory)}
    noted = read_note(disk, directory)
    if losses.on_loss is not OnLoss.REFUSE or not sizes_bytes.keys() >= noted:
        _LostPlaces(disk, directory, index, sizes_bytes, losses).drop()
    if noted != sizes_bytes.keys():
        write_note(disk, directory, sizes_bytes)


class _LostPlaces:
    """Places of the index where nothing stands any more."""

    def __init__(
        self, disk: Disk, directory: Path, index: LedgerIndex, sizes_bytes: Mapping[int, int], losses: Losses
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._index = index
        self._sizes_bytes = sizes_bytes
        self._losses = losses
        # Nothing was wanted of those: there was no room, or no time, for the index to say so.
        self._emptied = frozenset(
            log_id
            for log_id, size_bytes in sizes_bytes.items()
            if size_bytes == HEADER_BYTES and is_emptied(_LogFile(disk, directory, log_id, 0).head, size_bytes)
        )
        self._told: set[int] = set()

    def drop(self) -> None:
        """Tell of them, and have the index forget them."""
        for _ in self._index.ledger_ids():
            pass  # Reading is all: what cannot be read is raised.
        sizes_bytes = self._sizes_bytes
        last: dict[int, Place] = {}
        after: tuple[int, int] | None = (0, -1)
        while after is not None:
            places, after = self._index.places(after, PLACES_PER_LOOK)
            lost = []
            for place in places:
                location = place[2]
                log_id = location >> 32
                if location & 0xFFFF_FFFF >= sizes_bytes.get(log_id, 0):
                    lost.append(place)
                elif log_id not in last or location > last[log_id][2]:
                    last[log_id] = place
            self._forget(lost)
        # Only the last entry of a log can begin before its end and stop behind it.
        self._forget([place for place in last.values() if self._is_cut(place[2])])

    def _is_cut(self, location: int) -> bool:
        log_id, position = location >> 32, location & 0xFFFF_FFFF
        word = _LogFile(self._disk, self._directory, log_id, position - SIZE_BYTES).head[:SIZE_BYTES]
        return position + int.from_bytes(word, "big") > self._sizes_bytes[log_id]

    def _forget(self, lost: Sequence[Place]) -> None:
        for ledger_id, entry_id, location in lost:
            log_id = location >> 32
            if log_id not in self._told and log_id not in self._emptied and len(self._told) < LOGS_TOLD_MAX:
                self._told.add(log_id)
                path = self._directory / entry_log_format.file_name(log_id)
                size_bytes = self._sizes_bytes.get(log_id)
                what = "is missing" if size_bytes is None else f"ends at {size_bytes}"
                others = f"entry {ledger_id}:{entry_id}, and maybe others"
                self._losses.tell(EntryLogLost(f"{path} {what}: the index looks there for {others}. {WHAT_TO_DO}"))
        if lost:
            self._index.forget_places([(ledger_id, entry_id) for ledger_id, entry_id, _ in lost])


class _LogFile:
    """An entry log's size, and as much as a header of what stands at a position, if one is given. OSError."""

    def __init__(self, disk: Disk, directory: Path, log_id: int, position: int | None = None) -> None:
        file = disk.open(directory / entry_log_format.file_name(log_id))
        try:
            self.size_bytes = file.size_bytes()
            self.head = b"" if position is None else file.pread(HEADER_BYTES, position)
        finally:
            file.close()


def _encode(log_ids: Collection[int]) -> bytes:
    content = " ".join(f"{log_id:x}" for log_id in sorted(log_ids)).encode() + b"\n"
    return content + b"%08x\n" % google_crc32c.value(content)
