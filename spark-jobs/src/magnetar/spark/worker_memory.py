"""The memory of Spark's Python workers, which are forked once and used for many tasks.

Python and the C library are made for programs whose memory changes little by little. A reader takes megabytes, makes
columns of them and lets go of all, again and again: what both then do to find garbage and to give memory back was up to
a third of its CPU."""

from __future__ import annotations

import ctypes
import gc
import sys
from typing import Final

from magnetar.core.limits import MIB

_DAEMON: Final = "pyspark.daemon"

YOUNG_OBJECTS: Final = 10_000
"""New ones between two collections of the youngest, where Python has 700: each entry is two objects that live until its
rows are made, and are in no cycle."""

_FREED_BYTES_KEPT_MAX: Final = 64 * MIB
"""Bytes kept by each thread that allocates: what a task needs at a time, with large entries."""

_MAPPED_BYTES_MIN: Final = 16 * MIB
"""Smaller blocks come from what is kept."""

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
"""Parameters of mallopt(3), as in glibc's malloc.h."""

_settled = False


def settle_worker() -> None:
    """Call at the end of a task, when all is imported. Once for a process, and only in those that Spark's daemon forks:
    elsewhere the memory is not ours to decide about."""
    global _settled
    if _settled or not is_spark_worker():
        return
    _settled = True
    # Most of what is there now is modules, and after each task the daemon has all of it walked.
    gc.collect()
    gc.freeze()
    young, *older = gc.get_threshold()
    if 0 < young < YOUNG_OBJECTS:  # 0: somebody wants no collections.
        gc.set_threshold(YOUNG_OBJECTS, *older)
    _keep_freed_memory()


def _keep_freed_memory() -> None:
    """What is freed at the end of the heap stays there: the kernel would hand it out again page by page, zeroed."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # Other C libraries have none.
        mallopt(_MMAP_THRESHOLD, _MAPPED_BYTES_MIN)
        mallopt(_TRIM_THRESHOLD, _FREED_BYTES_KEPT_MAX)


def is_spark_worker() -> bool:
    """Whether this is a worker of `python -m pyspark.daemon`."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == _DAEMON
