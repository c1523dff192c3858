"""From a metadata URL to an open store."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from magnetar.core.errors import SettingError
from magnetar.metadata.store import MetadataStore
from magnetar.metadata.urls import CONFIG_MARK

ACCEPTED_URLS: Final = (
    "memory:, rocksdb:///absolute/directory, rocksdb:relative/directory, zk:h1:2181,h2:2181/chroot, "
    "etcd:http://h1:2379,http://h2:2379, etcd:https://h1:2379?config=FILE"
)


SCHEMES: Final = ("memory", "rocksdb", "zk", "etcd")


def check_url(url: str) -> None:
    """`SettingError` for a URL that `open_store` would not take for one of any store, or whose files cannot be
    used."""
    scheme, colon, rest = url.partition(":")
    if not colon or scheme not in SCHEMES or (scheme == "memory") == bool(rest):
        raise _unknown(url)
    if scheme == "rocksdb":
        _directory(url, rest)
    if scheme == "etcd" and CONFIG_MARK in rest:
        from magnetar.metadata.etcd_access import read_access

        read_access(url)


async def open_store(
    url: str,
    *,
    session_timeout_ms: int | None = None,
    operation_timeout_ms: int | None = None,
    make_root: bool = True,
) -> MetadataStore:
    """Open the store that a URL names. `SettingError` if it names none, `StoreUnavailable` if it cannot be opened.

    The timeouts are those of sessions with remote stores and of waiting for a connection to one; None is Pulsar's
    default. Without `make_root` a chroot or a database that is not there is not made. Each call for `memory:` is a tree
    of its own.
    Backends are imported here, as each costs start-up time."""
    scheme, colon, rest = url.partition(":")
    if scheme == "memory" and colon and not rest:
        from magnetar.metadata.memory import MemoryMetadataStore

        return MemoryMetadataStore()
    if scheme == "rocksdb" and rest:
        from magnetar.metadata.rocksdb import RocksdbMetadataStore

        directory = _directory(url, rest)
        return RocksdbMetadataStore(directory) if make_root else RocksdbMetadataStore.open_existing(Path(directory))
    if scheme == "zk" and rest:
        from magnetar.metadata.zookeeper import OPERATION_TIMEOUT_MS, SESSION_TIMEOUT_MS, ZookeeperMetadataStore

        # With its scheme: a host may be called `zk`, too.
        return await ZookeeperMetadataStore.open(
            url,
            session_timeout_ms=session_timeout_ms or SESSION_TIMEOUT_MS,
            operation_timeout_ms=operation_timeout_ms or OPERATION_TIMEOUT_MS,
            make_root=make_root,
        )
    if scheme == "etcd" and rest:
        from magnetar.metadata import etcd

        return await etcd.EtcdMetadataStore.open(
            url,
            session_timeout_ms=session_timeout_ms or etcd.SESSION_TIMEOUT_MS,
            operation_timeout_ms=operation_timeout_ms or etcd.OPERATION_TIMEOUT_MS,
        )
    raise _unknown(url)


def _unknown(url: str) -> SettingError:
    return SettingError(f"metadata URL {url!r} is not one of {ACCEPTED_URLS}")


def _directory(url: str, rest: str) -> str:
    if not rest.startswith("//"):
        return rest
    if not rest.startswith("///"):
        raise SettingError(f"metadata URL {url!r} has two slashes and not three; accepted: {ACCEPTED_URLS}")
    return rest.removeprefix("//")
