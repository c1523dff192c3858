"""Every test here needs Apache's parts; without Java or a way to get them it is skipped, with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.interchange import parts
from e2e.interchange.cluster import Cluster


@pytest.fixture(scope="session", autouse=True)
def apache_is_here() -> None:
    reason = parts.missing()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture
def cluster(apache_is_here: None, tmp_path: Path) -> Iterator[Cluster]:
    """An empty cluster: ZooKeeper only."""
    with Cluster(tmp_path) as running:
        yield running
