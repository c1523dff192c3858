"""Spark's Python workers, and what their collector of garbage walks."""

from __future__ import annotations

import gc
import importlib.machinery
import sys
from collections.abc import Iterator

import pytest
from magnetar.spark import worker_memory
from magnetar.spark.worker_memory import YOUNG_OBJECTS, is_spark_worker, keep_modules


@pytest.fixture
def spark_worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    spec = importlib.machinery.ModuleSpec("pyspark.daemon", None)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec)
    monkeypatch.setattr(worker_memory, "_kept", False)
    threshold = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*threshold)


@pytest.mark.usefixtures("spark_worker")
def test_a_worker_walks_its_modules_no_more() -> None:
    keep_modules()
    kept = gc.get_freeze_count()
    made_later: list[list[int]] = [[] for _ in range(1000)]
    keep_modules()
    assert kept > 1000
    assert gc.get_freeze_count() == kept, "what later tasks make is collected as ever"
    assert len(made_later) == 1000


@pytest.mark.usefixtures("spark_worker")
@pytest.mark.parametrize(("before", "after"), [(700, YOUNG_OBJECTS), (100_000, 100_000), (0, 0)])
def test_a_worker_looks_for_garbage_more_seldom_unless_somebody_has_decided(before: int, after: int) -> None:
    gc.set_threshold(before, 11, 12)
    keep_modules()
    assert gc.get_threshold() == (after, 11, 12)


def test_other_processes_are_left_alone() -> None:
    threshold = gc.get_threshold()
    keep_modules()
    assert not is_spark_worker()
    assert not gc.get_freeze_count()
    assert gc.get_threshold() == threshold
