"""Spark's Python workers are used for many tasks, and after each the collector of garbage walks all that they have
(pyspark.daemon), most of which is modules: a sixth of a fast reader's CPU."""

from __future__ import annotations

import gc
import sys
from typing import Final

_DAEMON: Final = "pyspark.daemon"

_kept = False


def keep_modules() -> None:
    """Call at the end of a task, when all is imported: what is there now is not walked any more. Once for a process,
    and only in those that Spark's daemon forks: elsewhere the objects are not ours to decide about."""
    global _kept
    if not _kept and is_spark_worker():
        gc.collect()
        gc.freeze()
        _kept = True  # Noted, as counting what is frozen walks all of it.


def is_spark_worker() -> bool:
    """Whether this is a worker of `python -m pyspark.daemon`."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == _DAEMON
