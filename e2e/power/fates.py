"""What becomes of that which nobody has made durable when the power is cut: chosen by a seed.

All but `ORDERED` are nearly as strict as POSIX allows (`files.py`): sectors, lengths and directories go by themselves.
`ORDERED` is a journaling file system (ext4 with data=ordered): changes of names and lengths reach the disk in their
order, all of them with any sync, and what a file has grown by is there as soon as its length is; what was written over
may be old.
"""

from __future__ import annotations

import enum
import random
from pathlib import Path

from e2e.power.files import SECTOR_BYTES, Directory, File
from e2e.power.replaying import Replay


class Style(enum.Enum):
    """How a disk treats what is not durable."""

    NOTHING = "nothing of it is kept"
    EVERYTHING = "all of it is kept"
    NAMES = "names are kept, content is not"
    LENGTHS = "names and lengths are kept, zeros instead of content"
    TORN = "the last change of each file is torn"
    REORDERED = "of each file the later sectors are kept, the earlier ones lost"
    RANDOM = "each sector, length and directory by itself"
    ORDERED = "as a journaling file system does"


class Fate:
    """One disk's decision about everything, by a seed."""

    def __init__(self, style: Style, seed: str, replay: Replay, cut: int) -> None:
        self._style = style
        self._random = random.Random(seed)
        self._kept_share = self._random.choice((0.1, 0.5, 0.9))
        self._journaled = self._random.randint(replay.committed, max(cut, replay.committed))
        """Names and lengths that had changed before this are on the disk; for `ORDERED`."""

    def names_kept(self, directory: Directory) -> int:
        """How many of the changes of its names the disk has."""
        count = len(directory.changes)
        match self._style:
            case Style.NOTHING:
                return 0
            case Style.ORDERED:
                return sum(change.end <= self._journaled for change in directory.changes)
            case Style.RANDOM | Style.REORDERED:
                return self._random.randint(0, count)
            case _:
                return count

    def content(self, file: File) -> bytes:
        """What the disk has of the file."""
        changes = file.changes
        count = len(changes)
        match self._style:
            case Style.NOTHING | Style.NAMES:
                return file.content(lambda _, touching: 0, 0)
            case Style.EVERYTHING:
                return file.all_of()
            case Style.LENGTHS:
                return file.content(lambda _, touching: 0, count)
            case Style.TORN:
                return self._torn(file)
            case Style.REORDERED:
                sectors = [sector for change in changes for sector in change.sectors(0)]
                lost = self._random.choice(sectors) if sectors else 0
                return file.content(lambda sector, touching: len(touching) * (sector >= lost), count)
            case Style.RANDOM:
                kept = self._random.choice((0, count, self._random.randint(0, count)))
                return file.content(lambda _, touching: self._some(len(touching)), kept)
            case Style.ORDERED:
                return self._ordered(file)

    def _some(self, count: int) -> int:
        return count if self._random.random() < self._kept_share else self._random.randrange(count)

    def _torn(self, file: File) -> bytes:
        if not file.changes:
            return file.all_of()
        last = len(file.changes) - 1
        sectors = file.changes[last].sectors(0)
        first_lost = self._random.randint(sectors.start, max(sectors.start, sectors.stop))

        def choose(sector: int, touching: list[int]) -> int:
            return len(touching) - (touching[-1] == last and sector >= first_lost)

        content = file.content(choose, self._random.choice((last, last + 1)))
        if self._random.random() < 0.5:
            content = content[: max(file.settled_size_bytes, first_lost * SECTOR_BYTES)]
        return content

    def _ordered(self, file: File) -> bytes:
        known = file.settled_size_bytes

        def choose(sector: int, touching: list[int]) -> int:
            return len(touching) if sector * SECTOR_BYTES >= known else self._random.randint(0, len(touching))

        return file.content(choose, sum(change.end <= self._journaled for change in file.changes))


def put_disk(top: Directory, fate: Fate, target: Path) -> None:
    """Make the folder what the disk has. It must be empty."""
    for name, entry in top.entries(fate.names_kept(top)).items():
        path = target / name
        if isinstance(entry, Directory):
            path.mkdir()
            put_disk(entry, fate, path)
        else:
            path.write_bytes(fate.content(entry))
