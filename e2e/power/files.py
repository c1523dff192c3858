"""A file and a directory as a disk has them: what is settled, and what a power cut may keep, lose, tear or reorder.

Of a file each sector of 512 bytes goes by itself: it is on the disk as it was after any of the writes that touched it,
back to the last that was made durable. Its length goes by itself, too: longer than what was kept reads as zeros. Of a
directory the last changes of names may be lost, a rename as one; directories go independently of each other. That is
what POSIX promises, but for the order within a directory, on which RocksDB relies (CURRENT is renamed without a sync of
the MANIFEST's name) and which every journaling file system keeps. Real ones keep more order than that: see `fates.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

SECTOR_BYTES: Final = 512


@dataclass(slots=True)
class Change:
    """A write, or another length, that nobody has made durable."""

    end: int
    """It was over before this number of the recording."""
    offset: int
    data: bytes
    size_bytes: int
    """How long the file was afterwards."""
    cuts: bool = False
    """It made the file shorter."""

    def sectors(self, sectors_before: int) -> range:
        """The sectors whose content it changed."""
        if self.cuts:
            return range(self.size_bytes // SECTOR_BYTES, sectors_before)
        return range(self.offset // SECTOR_BYTES, -(-(self.offset + len(self.data)) // SECTOR_BYTES))


ChooseSector: TypeAlias = Callable[[int, list[int]], int]
"""(sector, the changes that touched it) to how many of these, from the first on, the disk has; each is named by its
place among the file's changes."""


class File:
    """One inode."""

    def __init__(self, settled: bytes = b"") -> None:
        self._settled = bytearray(settled)
        self._changes: list[Change] = []
        self._written_through: dict[int, int] = {}
        """Sector to how many changes, from the first on, are durable in it."""
        self._length_through = 0
        """So many changes, from the first on, are durable in its length: an inode has one length, the newest."""
        self._size_bytes = len(settled)

    @property
    def changes(self) -> list[Change]:
        """What is not durable, in order."""
        return self._changes

    @property
    def settled_size_bytes(self) -> int:
        """The length that is durable."""
        return self._length_after(0)

    def write(self, offset: int, data: bytes, end: int, *, durable: bool) -> None:
        """Some bytes; with `durable` their sectors are on the disk by then, as they are."""
        self._size_bytes = max(self._size_bytes, offset + len(data))
        change = Change(end, offset, data, self._size_bytes)
        self._changes.append(change)
        if durable:
            self._length_through = len(self._changes)
            self._written_through.update(dict.fromkeys(change.sectors(0), len(self._changes)))

    def resize(self, size_bytes: int, end: int) -> None:
        """Cut it off, or make it longer by zeros."""
        self._changes.append(Change(end, 0, b"", size_bytes, cuts=size_bytes < self._size_bytes))
        self._size_bytes = size_bytes

    def grow(self, size_bytes: int, end: int) -> None:
        """At least that long."""
        if size_bytes > self._size_bytes:
            self.resize(size_bytes, end)

    def sync(self, begin: int) -> None:
        """Whatever was over when this sync began is durable; what ran beside it may be or not."""
        # One that ran beside it and stands before one that is settled: both, to keep their order.
        settled = max((at + 1 for at, change in enumerate(self._changes) if change.end < begin), default=0)
        self._settled = bytearray(self.content(lambda _, touching: sum(at < settled for at in touching), settled))
        del self._changes[:settled]
        left = {sector: count - settled for sector, count in self._written_through.items() if count > settled}
        self._written_through = left
        self._length_through = max(0, self._length_through - settled)

    def content(self, choose: ChooseSector, size_after: int) -> bytes:
        """The file with the chosen version of each sector, and the length after so many changes."""
        size = self._length_after(size_after)
        touched = self._touched()
        longest = max((sector + 1) * SECTOR_BYTES for sector in (*touched, -1))
        image = bytearray(self._settled)
        image.extend(bytes(max(size, longest, len(image)) - len(image)))
        for sector, touching in touched.items():
            durable = self._written_through.get(sector, 0)
            count = max(choose(sector, touching), sum(at < durable for at in touching))
            for at in touching[:count]:
                self._apply(image, sector, self._changes[at])
        del image[size:]
        return bytes(image)

    def all_of(self) -> bytes:
        """As the process that wrote it sees it."""
        return self.content(lambda _, touching: len(touching), len(self._changes))

    def _touched(self) -> dict[int, list[int]]:
        touched: dict[int, list[int]] = {}
        sectors = -(-len(self._settled) // SECTOR_BYTES)
        for at, change in enumerate(self._changes):
            for sector in change.sectors(sectors):
                touched.setdefault(sector, []).append(at)
            sectors = max(sectors, -(-change.size_bytes // SECTOR_BYTES))
        return touched

    def _length_after(self, changes: int) -> int:
        changes = max(changes, self._length_through)
        return self._changes[changes - 1].size_bytes if changes else len(self._settled)

    @staticmethod
    def _apply(image: bytearray, sector: int, change: Change) -> None:
        begin, end = sector * SECTOR_BYTES, (sector + 1) * SECTOR_BYTES
        if change.cuts:
            at = max(begin, change.size_bytes)
            image[at:end] = bytes(min(end, len(image)) - at)
            return
        first, last = max(begin, change.offset), min(end, change.offset + len(change.data))
        image[first:last] = change.data[first - change.offset : last - change.offset]


@dataclass(slots=True)
class NameChange:
    """Names of one directory that changed together."""

    end: int
    names: dict[str, File | Directory | None]
    """None: the name is gone."""


@dataclass(slots=True)
class Directory:
    """One directory."""

    settled: dict[str, File | Directory] = field(default_factory=dict)
    changes: list[NameChange] = field(default_factory=list)
    """What is not durable, in order."""

    def sync(self, begin: int) -> None:
        """As `File.sync`."""
        settled = max((at + 1 for at, change in enumerate(self.changes) if change.end < begin), default=0)
        for change in self.changes[:settled]:
            _apply_names(self.settled, change)
        del self.changes[:settled]

    def entries(self, kept: int | None = None) -> dict[str, File | Directory]:
        """The names after so many of the changes that are not durable; as the process sees them without."""
        entries = dict(self.settled)
        for change in self.changes[:kept]:
            _apply_names(entries, change)
        return entries


def _apply_names(entries: dict[str, File | Directory], change: NameChange) -> None:
    for name, entry in change.names.items():
        if entry is None:
            entries.pop(name, None)
        else:
            entries[name] = entry
