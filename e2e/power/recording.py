"""Records what processes do to their files: the recorder's compiler, a process's environment, and the log read back."""

from __future__ import annotations

import enum
import mmap
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from e2e.disturbing import building

SOURCE: Final = Path(__file__).with_name("recorder.c")
_HEADER: Final = struct.Struct("<IIQQQqqIIIIQ")
_MAGIC: Final = 0x52574F50
_DURABLE: Final = 1
_SHARED: Final = struct.Struct("<QQQ")
"""Last number, whether all stands still, calls under way."""
FREEZE_SECONDS_MAX: Final = 60.0


class BrokenLog(Exception):
    """The log of a recording ends within a record, or holds what cannot be followed."""


class Kind(enum.IntEnum):
    """What was done; the numbers are those of `recorder.c`."""

    OPENED = 1
    WRITTEN = 2
    TRUNCATED = 3
    ALLOCATED = 4
    SYNCED = 5
    RENAMED = 6
    LINKED = 7
    UNLINKED = 8
    MADE_DIRECTORY = 9
    REMOVED_DIRECTORY = 10
    SYNCED_ALL = 11
    UNKNOWN = 12


@dataclass(frozen=True, slots=True)
class Event:
    """One change. It began after `begin` and was over before `end`: numbers of the recording's counter."""

    kind: Kind
    begin: int
    end: int
    inode: int = 0
    """Of the file or directory; 0 where a path tells."""
    offset: int = 0
    size: int = 0
    flags: int = 0
    path: str = ""
    other: str = ""
    """The new name of a rename or link."""
    data: bytes = b""

    @property
    def durable(self) -> bool:
        """Whether a write was durable on return by itself."""
        return self.kind is Kind.WRITTEN and bool(self.flags & _DURABLE)


def build(folder: Path) -> Path:
    """The recorder as a shared object in the folder. `NoCompiler`."""
    return building.build(SOURCE, folder)


class Recording:
    """Everything that recorded processes change below `root`, from now on."""

    def __init__(self, recorder: Path, root: Path, folder: Path) -> None:
        """`folder` gets the log; it must not be below the root."""
        folder.mkdir(parents=True, exist_ok=True)
        self.root = root.resolve()
        self.log = folder / "changes.log"
        self.log.touch()
        counter = folder / "counter"
        counter.write_bytes(_SHARED.pack(0, 0, 0))
        self._recorder = recorder
        self._counter = counter
        with counter.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), _SHARED.size)

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs in its environment to be recorded."""
        return {
            "LD_PRELOAD": str(self._recorder),
            "POWER_ROOT": str(self.root),
            "POWER_LOG": str(self.log),
            "POWER_COUNTER": str(self._counter),
        }

    def now(self) -> int:
        """Every change that led to what one has just seen ended at this number or before."""
        number: int = _SHARED.unpack(self._page[: _SHARED.size])[0]
        return number

    def freeze(self) -> None:
        """Let no recorded process change anything any more; what is under way is finished first. Then kill them: they
        hang."""
        self._page[8:16] = struct.pack("<Q", 1)
        deadline = time.monotonic() + FREEZE_SECONDS_MAX
        while _SHARED.unpack(self._page[: _SHARED.size])[2]:
            if time.monotonic() > deadline:
                raise BrokenLog("a call that was being recorded does not end")
            time.sleep(0.001)

    def events(self) -> list[Event]:
        """All changes, in the order in which they began. Only once no recorded process is left. `BrokenLog`."""
        return sorted(_read(self.log.read_bytes()), key=lambda event: event.begin)

    def close(self) -> None:
        """Let go of the counter."""
        self._page.close()


def _read(content: bytes) -> Iterator[Event]:
    view = memoryview(content)
    at = 0
    while at < len(view):
        if len(view) - at < _HEADER.size:
            raise BrokenLog(f"{len(view) - at} bytes are left over")
        fields = _HEADER.unpack_from(view, at)
        magic, kind, begin, end, inode, offset, size, flags, path_size, other_size, _, data_size = fields
        at += _HEADER.size
        if magic != _MAGIC or len(view) - at < path_size + other_size + data_size:
            raise BrokenLog(f"no whole record at {at - _HEADER.size}")
        path, at = bytes(view[at : at + path_size]).decode(), at + path_size
        other, at = bytes(view[at : at + other_size]).decode(), at + other_size
        data, at = bytes(view[at : at + data_size]), at + data_size
        yield Event(Kind(kind), begin, end, inode, offset, size, flags, path, other, data)
