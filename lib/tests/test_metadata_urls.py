"""Apache's ways to name a metadata store."""

from __future__ import annotations

import pytest
from magnetar.core.errors import SettingError
from magnetar.metadata.urls import store_url, zookeeper_url


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("zk:h:2181", "zk:h:2181"),
        ("zk:h:2181,i:2181/chroot", "zk:h:2181,i:2181/chroot"),
        ("metadata-store:zk:h:2181,i:2181", "zk:h:2181,i:2181"),
        ("zk://h:2181/ledgers", "zk:h:2181"),
        ("zk+null://h:2181;i:2181/ledgers", "zk:h:2181,i:2181"),
        ("zk+hierarchical://h:2181;i:2181/ledgers", "zk:h:2181,i:2181"),
        ("zk+hierarchical://h:2181,i:2181/some/where/ledgers/", "zk:h:2181,i:2181/some/where"),
        ("metadata-store:zk+hierarchical://h:2181/ledgers", "zk:h:2181"),
        ("rocksdb:///data/metadata", "rocksdb:///data/metadata"),
        ("metadata-store:memory:", "memory:"),
    ],
)
def test_forms(given: str, url: str) -> None:
    assert store_url(given) == url


def test_servers_and_root() -> None:
    assert zookeeper_url(" a:1 ; b:2,c:3,") == "zk:a:1,b:2,c:3"
    assert zookeeper_url("a:1", "/x/ledgers") == "zk:a:1/x"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("zk+longhierarchical://h:2181/ledgers", "longhierarchical"),
        ("zk+flat://h:2181/ledgers", "flat"),
        ("zk://h:2181/other", "does not end with /ledgers"),
        ("zk://h:2181", "does not end with /ledgers"),
        ("zk:///ledgers", "no ZooKeeper server"),
    ],
)
def test_refusals(given: str, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        store_url(given)
