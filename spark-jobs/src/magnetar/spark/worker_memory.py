"""Spark's Python workers are used for many tasks, and after each the collector of garbage walks all that they have
(pyspark.daemon), most of which is modules: a sixth of a fast reader's CPU."""

from __future__ import annotations

import gc
import sys
from typing import Final

_DAEMON: Final = "pyspark.daemon"

YOUNG_OBJECTS: Final = 10_000
"""New ones between two collections of the youngest, where Python has 700: each entry is two objects that live until its
rows are made, and are in no cycle. Of small entries the collector took a quarter of the CPU."""

_kept = False


def keep_modules() -> None:
    """Call at the end of a task, when all is imported: what is there now is not walked any more, and what comes more
    seldom. Once for a process, and only in those that Spark's daemon forks: elsewhere the objects are not ours to
    decide about."""
    global _kept
    if not _kept and is_spark_worker():
        gc.collect()
        gc.freeze()
        young, *older = gc.get_threshold()
        if 0 < young < YOUNG_OBJECTS:  # 0: somebody wants no collections.
            gc.set_threshold(YOUNG_OBJECTS, *older)
        _kept = True  # Noted, as counting what is frozen walks all of it.


def is_spark_worker() -> bool:
    """Whether this is a worker of `python -m pyspark.daemon`."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == _DAEMON
