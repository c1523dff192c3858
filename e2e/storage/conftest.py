"""These tests run our bookies as processes over a real ZooKeeper, set up by Apache's own settings file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.interchange import parts
from e2e.interchange.cluster import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """An empty cluster: ZooKeeper only. Skipped, with the reason, where Apache's distribution cannot be had."""
    reason = parts.missing()
    if reason is not None:
        pytest.skip(reason)
    with Cluster(tmp_path) as running:
        yield running
