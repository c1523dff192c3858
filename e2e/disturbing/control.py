"""What `disturb.c` does to one process, or to several: changed while they run, and counted by them."""

from __future__ import annotations

import mmap
import struct
import time
from pathlib import Path
from typing import Final

from e2e.disturbing import building

SOURCE: Final = Path(__file__).with_name("disturb.c")
_NUMBERS: Final = struct.Struct("<qqQQQQQ")
"""Offset of the wall clock, end of the stall, whether writes are forgotten, whether only syncs hang; reads of a moved
clock, calls that hung, calls that hang now. The same as in `disturb.c`, which has the folder behind it."""
_NUMBER_BYTES: Final = 8
_FOLDER_BYTES: Final = 4096


def build(folder: Path) -> Path:
    """The interposer as a shared object in the folder. `NoCompiler`."""
    return building.build(SOURCE, folder)


class Disturbance:
    """The clock and the disk of the processes that are started with `environment`."""

    def __init__(self, interposer: Path, file: Path, folder: Path) -> None:
        """`file` holds the control; the disk is what lies below `folder`."""
        below = str(folder.resolve()).encode()
        assert len(below) < _FOLDER_BYTES, folder
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(_NUMBERS.pack(0, 0, 0, 0, 0, 0, 0) + below.ljust(_FOLDER_BYTES, b"\0"))
        self.name = folder.name
        self._interposer = interposer
        self._file = file
        with file.open("r+b") as opened:
            self._page = mmap.mmap(opened.fileno(), _NUMBERS.size)

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs in its environment."""
        return {"LD_PRELOAD": str(self._interposer), "DISTURB_CONTROL": str(self._file)}

    @property
    def clock_ahead_s(self) -> float:
        """How far the wall clock is ahead of the machine's; negative: behind."""
        return self._number(0) / 1e9

    @property
    def clock_reads(self) -> int:
        """How often a wall clock was read that was not the machine's."""
        return self._number(4)

    @property
    def stalled_calls(self) -> int:
        """How many calls have hung so far."""
        return self._number(5)

    @property
    def hanging_calls(self) -> int:
        """How many calls hang now; those of a killed process stay in it."""
        return self._number(6)

    def set_clock(self, ahead_s: float) -> None:
        """The wall clock jumps to so many seconds ahead of the machine's."""
        self._set(0, "<q", int(ahead_s * 1e9))

    def stall(self, seconds: float, *, syncs_only: bool = False) -> None:
        """The disk does nothing for so long, from now on, or syncs nothing; 0 ends it."""
        self._set(3, "<Q", int(syncs_only))
        self._set(1, "<q", time.monotonic_ns() + int(seconds * 1e9) if seconds else 0)

    def forget_writes(self, forget: bool) -> None:
        """A planted mistake: what is written from now on is not there."""
        self._set(2, "<Q", int(forget))

    def close(self) -> None:
        """Let go of the control; the processes keep it."""
        self._page.close()

    def _number(self, index: int) -> int:
        number: int = _NUMBERS.unpack(self._page[:])[index]
        return number

    def _set(self, index: int, form: str, value: int) -> None:
        self._page[index * _NUMBER_BYTES : (index + 1) * _NUMBER_BYTES] = struct.pack(form, value)
