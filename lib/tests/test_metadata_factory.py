from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from magnetar.core.errors import SettingError
from magnetar.metadata import zookeeper
from magnetar.metadata.factory import open_store
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.metadata.rocksdb import RocksdbMetadataStore
from magnetar.metadata.store import StoreUnavailable


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


async def test_without_a_root_to_make_no_database_is_made(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=f"no metadata at {tmp_path}/wrong: .*rocksdb:DATA/metadata"):
        await open_store(f"rocksdb://{tmp_path}/wrong", make_root=False)
    assert not list(tmp_path.iterdir())
    await (await open_store(f"rocksdb://{tmp_path}/right")).close()
    await (await open_store(f"rocksdb://{tmp_path}/right", make_root=False)).close()


@pytest.mark.parametrize(
    "url", ["", "memory", "memory:x", "rocksdb:", "rocksdb://host/dir", "zk:", "zookeeper:h:2181", "etcd:"]
)
async def test_other_urls_are_refused_with_those_that_are_accepted(url: str) -> None:
    with pytest.raises(SettingError, match="zk:h1:2181,h2:2181/chroot"):
        await open_store(url)


class SilentServers:
    """A session whose servers do not answer; the error names them."""

    def __init__(self, hosts: str, **_: Any) -> None:
        self.hosts = hosts

    async def open(self) -> None:
        raise StoreUnavailable(f"<{self.hosts}>")


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("zk:zk:2181", "zk:2181"),
        ("zk:h1:2181,zk:2181/chroot", "h1:2181,zk:2181"),
        ("zk:zk:2181/zk:x", "zk:2181"),
        ("zk:h:2181", "h:2181"),
    ],
)
async def test_a_zookeeper_server_may_be_called_as_the_scheme_is(
    url: str, hosts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper, "ZookeeperSession", SilentServers)
    with pytest.raises(StoreUnavailable, match=f"<{hosts}>"):
        await open_store(url)
