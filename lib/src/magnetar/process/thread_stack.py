"""The stack of another thread, told without touching its frames.

`sys._current_frames()` gives the frames themselves. The other thread goes on while they are walked, so what its
functions hold may end in the thread that looks: sockets and timers of a loop, which belong to the loop's thread. A
broker crashed in such a walk (CPython 3.11.7, SIGSEGV in `f_back`). `faulthandler` reads the stack in one go and holds
nothing.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import re
import tempfile
from typing import IO, Final

logger: Final = logging.getLogger(__name__)

FRAMES_MAX: Final = 15
"""Innermost frames that are told: those of our code, and who called it."""

PATH_PARTS: Final = 2
"""Folders and files of a path that are told: `trimming/choice.py`."""

TEXT_BYTES_MAX: Final = 4 * 1024 * 1024
"""More than a hundred threads with a hundred frames each, which is all that faulthandler tells."""

_FRAME: Final = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')


class ThreadStack:
    """Tells of one thread, over and over; a millisecond or less of the processor each time, in which no other thread
    runs Python."""

    def __init__(self, thread_id: int) -> None:
        """`thread_id`: as `threading.get_ident` says it."""
        self._heading = f"0x{thread_id:016x}"
        self._file = _file_in_memory()

    def tell(self) -> str:
        """The innermost frames in one line, the innermost one first; empty when there is none to be seen. Of more than
        a hundred threads the older ones, such as the main one, are not."""
        if self._file is None:
            return ""
        self._file.seek(0)
        self._file.truncate()
        faulthandler.dump_traceback(self._file.fileno(), all_threads=True)
        return stack_in(os.pread(self._file.fileno(), TEXT_BYTES_MAX, 0).decode(errors="replace"), self._heading)

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()


def _file_in_memory() -> IO[bytes] | None:
    """Written to as fast on a machine whose disks stand still. None where there is no room for any: a process that is
    to serve does not fail for that."""
    try:
        if hasattr(os, "memfd_create"):
            return open(os.memfd_create("thread-stack"), "w+b", buffering=0)
        return tempfile.TemporaryFile(buffering=0)
    except OSError as error:
        logger.warning("long turns of the event loop are told without what ran: %s", error)
        return None


def stack_in(text: str, heading: str) -> str:
    """The stack of the thread with this in its heading, out of faulthandler's text on all threads."""
    found: list[str] = []
    within = False
    for line in text.splitlines():
        frame = _FRAME.fullmatch(line)
        if frame is None:
            if found:
                break
            within = heading in line
        elif within and len(found) < FRAMES_MAX:
            path, number, name = frame.groups()
            found.append(f"{name} ({'/'.join(path.split('/')[-PATH_PARTS:])}:{number})")
    return " < ".join(found)
