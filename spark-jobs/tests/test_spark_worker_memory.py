"""Spark's Python workers, and what their collector of garbage walks."""

from __future__ import annotations

import ctypes
import gc
import importlib.machinery
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from magnetar.spark import worker_memory
from magnetar.spark.worker_memory import YOUNG_OBJECTS, is_spark_worker, settle_worker


@pytest.fixture
def spark_worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    spec = importlib.machinery.ModuleSpec("pyspark.daemon", None)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec)
    monkeypatch.setattr(worker_memory, "_settled", False)
    threshold = gc.get_threshold()
    yield
    # What was frozen stays so: all that a process has run before would have to be walked again.
    gc.set_threshold(*threshold)


@pytest.mark.usefixtures("spark_worker")
def test_a_worker_walks_its_modules_no_more() -> None:
    settle_worker()
    kept = gc.get_freeze_count()
    made_later: list[list[int]] = [[] for _ in range(1000)]
    settle_worker()
    assert kept > 1000
    # Less, when something that was frozen has gone since.
    assert gc.get_freeze_count() <= kept, "what later tasks make is collected as ever"
    assert len(made_later) == 1000


@pytest.mark.usefixtures("spark_worker")
@pytest.mark.parametrize(("before", "after"), [(700, YOUNG_OBJECTS), (100_000, 100_000), (0, 0)])
def test_a_worker_looks_for_garbage_more_seldom_unless_somebody_has_decided(before: int, after: int) -> None:
    gc.set_threshold(before, 11, 12)
    settle_worker()
    assert gc.get_threshold() == (after, 11, 12)


@pytest.mark.usefixtures("spark_worker")
def test_freed_memory_is_kept_as_far_as_the_c_library_can_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []
    with_it = SimpleNamespace(mallopt=lambda name, value: told.append((name, value)))
    monkeypatch.setattr(ctypes, "CDLL", lambda _: with_it)
    settle_worker()
    assert told == [(-3, 16 << 20), (-1, 64 << 20)]
    monkeypatch.setattr(worker_memory, "_settled", False)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace())
    settle_worker()


def test_other_processes_are_left_alone() -> None:
    threshold, frozen = gc.get_threshold(), gc.get_freeze_count()
    settle_worker()
    assert not is_spark_worker()
    assert gc.get_freeze_count() <= frozen
    assert gc.get_threshold() == threshold
