"""Memory that is free and still the process's: the C library keeps it, for what comes next.

RocksDB collects 16 MiB of an index before it makes a table of them. They are free then, but not at the end of the heap,
so glibc gives nothing of them back by itself: in a standalone with a million delayed messages some 25 MB.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any, Final

from magnetar.core.limits import MIB
from magnetar.core.process_memory import resident_bytes

PAUSE_SECONDS: Final = 10.0
"""Between two times at least. What was given back and is wanted again costs some 7 ms for 16 MiB, page by page."""

PAUSE_SECONDS_MAX: Final = 640.0
"""The pause doubles up to this while next to nothing goes back: what is free in small pieces stays free, and counts
as free again at the next time."""

GIVEN_BYTES_MIN: Final = 2 * MIB
"""Less than this is next to nothing."""

FREE_BYTES_MIN: Final = 8 * MIB

FREE_BYTES_MAX: Final = 64 * MIB
"""Giving back takes 2 to 3 ms for 24 MB, and who allocates meanwhile may have to wait: for more than this it would be
too long. A bookie with so much has large caches, and wants it again soon."""


class _Mallinfo2(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


class FreedMemory:
    """That of this process."""

    def __init__(self, now_seconds: Callable[[], float] = time.monotonic) -> None:
        self._now_seconds = now_seconds
        self._next_seconds = now_seconds()
        self._pause_seconds = PAUSE_SECONDS
        library = ctypes.CDLL(None)
        self._mallinfo2: Any = getattr(library, "mallinfo2", None)
        self._malloc_trim: Any = getattr(library, "malloc_trim", None)
        if self._mallinfo2 is not None:
            self._mallinfo2.restype = _Mallinfo2

    def give_back(self) -> bool:
        """Give back what is free, if that is much, not too much, and some time has passed. True when it was done; no
        other C library than glibc can be asked. Call it in another thread than the loop's."""
        if self._mallinfo2 is None or self._malloc_trim is None or self._now_seconds() < self._next_seconds:
            return False
        if not FREE_BYTES_MIN <= self._mallinfo2().fordblks <= FREE_BYTES_MAX:
            return False
        before_bytes = resident_bytes()
        self._malloc_trim(0)
        given = before_bytes - resident_bytes() >= GIVEN_BYTES_MIN
        self._pause_seconds = PAUSE_SECONDS if given else min(PAUSE_SECONDS_MAX, 2 * self._pause_seconds)
        self._next_seconds = self._now_seconds() + self._pause_seconds
        return True
