"""Keeps the garbage collector out of runs on simulated time."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collector_off() -> Iterator[None]:
    """No collection within: what is torn down when the collector likes would be torn down at another moment in another
    run. One follows: a run's own frames have to be gone by then, as they hold its world."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.collect()
        if collecting:
            gc.enable()


def freeze_modules() -> None:
    """Collections need not look at them again: one follows each run. Once in a process, when all of them are loaded: a
    second time would keep a run's world for good."""
    if not gc.get_freeze_count():
        gc.freeze()
