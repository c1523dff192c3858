"""Where a cluster's metadata is: by option `metadata.url`, or as brokers tell tools. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from magnetar.core.errors import SettingError
from magnetar.metadata.etcd_access import parse_endpoints
from magnetar.metadata.urls import LEDGERS_NAME, STORE_PREFIX, store_url, zookeeper_url
from magnetar.spark.errors import ClusterUnreachable

ZOOKEEPER_PORT: Final = 2181
ETCD_PORT: Final = 2379


class MetadataUrls(NamedTuple):
    """Two addresses, in the form that `magnetar.metadata.factory.open_store` takes: `zk:…` or `etcd:…`."""

    brokers: str
    """The store of topics and of the ledgers that each has."""
    bookies: str
    """Ledgers' own metadata and the bookies; mostly the same."""


def urls_by_option(given: str) -> MetadataUrls:
    """Where option `metadata.url` says that the metadata is. Raises `ClusterUnreachable` for a store that
    cannot be read directly."""
    url = _usable(given, "option metadata.url")
    return MetadataUrls(url, url)


def urls_by_brokers(told: Mapping[str, object]) -> MetadataUrls:
    """For the answer of `/admin/v2/brokers/internal-configuration` (Pulsar: InternalConfigurationData). Raises
    `ClusterUnreachable`."""
    # Brokers before 2.10 tell only the servers.
    servers = _text(told, "zookeeperServers")
    given = _text(told, "metadataStoreUrl") or (f"zk:{servers}" if servers else "")
    if not given:
        raise ClusterUnreachable("the brokers do not say where their metadata store is (see option metadata.url)")
    brokers = _usable(given, "the brokers' metadataStoreUrl")
    separate = _text(told, "bookkeeperMetadataServiceUri")
    if separate and separate != "null":
        return MetadataUrls(brokers, _usable(separate, "the brokers' bookkeeperMetadataServiceUri"))
    root = _text(told, "ledgersRootPath").rstrip("/") or LEDGERS_NAME
    if root == LEDGERS_NAME or not brokers.startswith("zk:"):
        return MetadataUrls(brokers, brokers)
    try:
        return MetadataUrls(brokers, zookeeper_url(brokers.removeprefix("zk:").partition("/")[0], root))
    except SettingError as error:
        raise ClusterUnreachable(f"the brokers' ledgersRootPath: {error}") from error


def servers_of(url: str) -> list[tuple[str, int]]:
    """(host, port) of each server of a store."""
    if url.startswith("etcd:"):
        return [_host_and_port(address, ETCD_PORT) for address, _ in parse_endpoints(url)]
    hosts = url.removeprefix("zk:").partition("/")[0]
    return [_host_and_port(host, ZOOKEEPER_PORT) for host in hosts.split(",") if host]


def _text(told: Mapping[str, object], name: str) -> str:
    value = told.get(name)
    return value.strip() if isinstance(value, str) else ""


def _usable(given: str, who: str) -> str:
    """The URL in our form; `who` says it, for errors."""
    try:
        url = store_url(given)
        scheme = url.partition(":")[0]
        if scheme in ("rocksdb", "memory"):
            raise ClusterUnreachable(
                f"{who} is {given!r}: that store is inside of one process, nobody else can open it"
            )
        if scheme == "etcd":
            parse_endpoints(url)
            return url
    except SettingError as error:
        raise ClusterUnreachable(f"{who}: {error}") from error
    if scheme == "zk":
        return url
    if "://" in url or given.strip().startswith(STORE_PREFIX + scheme + ":/"):
        raise ClusterUnreachable(f"{who} is {given!r}: a metadata store of that kind cannot be read directly")
    # Pulsar takes what has no scheme for ZooKeeper's servers: h1:2181,h2:2181/chroot.
    host, _, port = url.partition("/")[0].split(",")[0].rpartition(":")
    if not port.isdigit() and host:
        raise ClusterUnreachable(f"{who} is {given!r}, which is none: like zk:host:2181 or etcd:http://host:2379")
    return f"zk:{url}"


def _host_and_port(address: str, port: int) -> tuple[str, int]:
    host, colon, given = address.rpartition(":")
    if not colon or not given.isdigit():
        return address.strip("[]"), port
    return host.strip("[]"), int(given)
