"""Forms in which Apache's and our brokers name their stores."""

from __future__ import annotations

import pytest
from magnetar.spark.bookies.metadata_urls import servers_of, urls_by_brokers, urls_by_option
from magnetar.spark.errors import ClusterUnreachable


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("zk:a:2181,b:2181/chroot", "zk:a:2181,b:2181/chroot"),
        ("metadata-store:zk:a:2181", "zk:a:2181"),
        ("zk+hierarchical://a:2181;b:2181/chroot/ledgers", "zk:a:2181,b:2181/chroot"),
        ("zk://a:2181/ledgers", "zk:a:2181"),
        ("a:2181,b:2181/chroot", "zk:a:2181,b:2181/chroot"),
        ("etcd:http://a:2379,http://b:2379", "etcd:http://a:2379,http://b:2379"),
    ],
)
def test_forms(given: str, url: str) -> None:
    assert urls_by_option(given) == (url, url)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("rocksdb:///data/metadata", "inside of one process"),
        ("memory:", "inside of one process"),
        ("metadata-store:rocksdb:///x", "inside of one process"),
        ("oxia://a:6648/default", "cannot be read directly"),
        ("zk+flat://a:2181/ledgers", "flat"),
        ("zk://a:2181/elsewhere", "does not end with /ledgers"),
        ("etcd:/etc/etcd.yml", "is not like"),
        ("hello:world", "which is none"),
    ],
)
def test_refused(given: str, said: str) -> None:
    with pytest.raises(ClusterUnreachable, match=said):
        urls_by_option(given)


def test_what_brokers_tell() -> None:
    store = {"metadataStoreUrl": "zk:a:2181/c", "ledgersRootPath": "/ledgers", "bookkeeperMetadataServiceUri": None}
    assert urls_by_brokers(store) == ("zk:a:2181/c", "zk:a:2181/c")
    assert urls_by_brokers({**store, "ledgersRootPath": "/x/ledgers"}) == ("zk:a:2181/c", "zk:a:2181/x")
    separate = {**store, "bookkeeperMetadataServiceUri": "metadata-store:zk:bk:2181"}
    assert urls_by_brokers(separate) == ("zk:a:2181/c", "zk:bk:2181")
    assert urls_by_brokers({"zookeeperServers": "zk:2181"}) == ("zk:zk:2181", "zk:zk:2181")
    for told in ({}, {"metadataStoreUrl": ""}, {"metadataStoreUrl": "rocksdb:///x"}):
        with pytest.raises(ClusterUnreachable):
            urls_by_brokers(told)
    with pytest.raises(ClusterUnreachable, match="ledgersRootPath"):
        urls_by_brokers({**store, "ledgersRootPath": "/x"})


def test_servers() -> None:
    assert servers_of("zk:a:2182,b/chroot") == [("a", 2182), ("b", 2181)]
    assert servers_of("zk:zk:2181") == [("zk", 2181)]
    assert servers_of("etcd:http://a:2379,https://b") == [("a", 2379), ("b", 2379)]
    assert servers_of("zk:[::1]:2181") == [("::1", 2181)]
