"""Spark's Python workers, and what their collector of garbage walks."""

from __future__ import annotations

import gc
import importlib.machinery
import sys

import pytest
from magnetar.spark import worker_memory
from magnetar.spark.worker_memory import is_spark_worker, keep_modules


@pytest.fixture
def spark_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.machinery.ModuleSpec("pyspark.daemon", None)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec)
    monkeypatch.setattr(worker_memory, "_kept", False)


@pytest.mark.usefixtures("spark_worker")
def test_a_worker_walks_its_modules_no_more() -> None:
    try:
        keep_modules()
        kept = gc.get_freeze_count()
        made_later: list[list[int]] = [[] for _ in range(1000)]
        keep_modules()
        assert kept > 1000
        assert gc.get_freeze_count() == kept, "what later tasks make is collected as ever"
        assert len(made_later) == 1000
    finally:
        gc.unfreeze()


def test_other_processes_are_left_alone() -> None:
    keep_modules()
    assert not is_spark_worker()
    assert not gc.get_freeze_count()
