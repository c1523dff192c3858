from __future__ import annotations

from pathlib import Path

import pytest
from magnetar.core.errors import SettingError
from magnetar.metadata.factory import open_store
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.metadata.rocksdb import RocksdbMetadataStore


async def test_memory() -> None:
    store = await open_store("memory:")
    assert isinstance(store, MemoryMetadataStore)
    await store.close()


async def test_rocksdb_takes_absolute_and_relative_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url in (f"rocksdb://{tmp_path}/absolute", "rocksdb:relative"):
        store = await open_store(url)
        assert isinstance(store, RocksdbMetadataStore)
        await store.close()
    assert {path.name for path in tmp_path.iterdir()} == {"absolute", "relative"}


@pytest.mark.parametrize(
    "url", ["", "memory", "memory:x", "rocksdb:", "rocksdb://host/dir", "zk:", "zookeeper:h:2181", "etcd:"]
)
async def test_other_urls_are_refused_with_those_that_are_accepted(url: str) -> None:
    with pytest.raises(SettingError, match="zk:h1:2181,h2:2181/chroot"):
        await open_store(url)
