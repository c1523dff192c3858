"""Stores for tests of what stands on one: in memory and on the disk, and a second session on the same tree."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from magnetar.metadata.local import LocalStore
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.metadata.rocksdb import RocksdbMetadataStore


@pytest.fixture(params=["memory", "rocksdb"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LocalStore]:
    opened: LocalStore = MemoryMetadataStore() if request.param == "memory" else RocksdbMetadataStore(tmp_path)
    yield opened
    await opened.close()


@pytest.fixture
async def other(store: LocalStore) -> AsyncIterator[LocalStore]:
    assert isinstance(store, MemoryMetadataStore | RocksdbMetadataStore)
    opened = store.another_session()
    yield opened
    await opened.close()
