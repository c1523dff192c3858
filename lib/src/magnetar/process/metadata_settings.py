"""Where a process finds its cluster's metadata."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from magnetar.core.settings_file import GivenSettings
from magnetar.metadata.factory import check_url, open_store
from magnetar.metadata.store import MetadataStore
from magnetar.metadata.urls import store_url, with_config, zookeeper_url

SESSION_TIMEOUT_MS: Final = 30_000
"""zkTimeout in Pulsar's `bookkeeper.conf`, metadataStoreSessionTimeoutMillis in its `broker.conf` and `proxy.conf`."""
CONFIG_PATH: Final = "metadataStoreConfigPath"
"""Pulsar's name of the setting that says how the store is reached: a file with TLS for etcd."""
SESSION_TIMEOUT_MS_MIN: Final = 100
SESSION_TIMEOUT_MS_MAX: Final = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataSettings:
    """Where the cluster's metadata is."""

    url: str
    session_timeout_ms: int = SESSION_TIMEOUT_MS

    async def open(self, *, operation_timeout_ms: int | None = None, make_root: bool = True) -> MetadataStore:
        """The store. `SettingError`, `StoreUnavailable` if it does not answer in time (None: Pulsar's default). Without
        `make_root` nothing is made where nothing is."""
        return await open_store(
            self.url,
            session_timeout_ms=self.session_timeout_ms,
            operation_timeout_ms=operation_timeout_ms,
            make_root=make_root,
        )


def session_timeout_ms(given: GivenSettings, name: str) -> int:
    """The session timeout that a setting gives. `SettingError`."""
    return given.number(name, SESSION_TIMEOUT_MS, SESSION_TIMEOUT_MS_MIN, SESSION_TIMEOUT_MS_MAX)


def pulsar_metadata(given: GivenSettings) -> MetadataSettings | None:
    """metadataStoreUrl with metadataStoreConfigPath, or zookeeperServers; None when neither is set. `SettingError`."""
    url, servers = given.text("metadataStoreUrl"), given.text("zookeeperServers")
    timeout_ms = session_timeout_ms(given, "metadataStoreSessionTimeoutMillis")
    if url is None and servers is None:
        return None
    found = store_url(url) if url else zookeeper_url(servers or "")
    found = with_config(found, given.text(CONFIG_PATH))
    check_url(found)
    return MetadataSettings(url=found, session_timeout_ms=timeout_ms)
