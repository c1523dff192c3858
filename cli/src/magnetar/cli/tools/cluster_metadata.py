"""Prepares a metadata store for a new cluster."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Final

from magnetar.bookie.cookie import instance_id
from magnetar.bookie.registration import LAYOUT, LAYOUT_PATH, READ_ONLY_PATH
from magnetar.broker.resources import Resources, initialize_cluster_metadata
from magnetar.broker.transactions.initialization import initialize_coordinators
from magnetar.core.errors import SettingError
from magnetar.core.topic_name import is_valid_name_part
from magnetar.metadata.factory import open_store
from magnetar.metadata.store import MUST_NOT_EXIST, MetadataStore, VersionConflict
from magnetar.metadata.urls import store_url

GLOBAL_CLUSTER: Final = "global"
"""Stands for all clusters in old namespaces; Apache's tools expect it."""


_SCHEMES: Final = {
    "serviceUrl": "http://",
    "serviceUrlTls": "https://",
    "brokerServiceUrl": "pulsar://",
    "brokerServiceUrlTls": "pulsar+ssl://",
}
"""What addresses begin with (Apache: ClusterDataImpl.checkPropertiesIfPresent)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCluster:
    """What is known about a cluster before it runs."""

    name: str
    data: dict[str, object]
    """ClusterData: where others reach it, by Apache's names."""
    transaction_coordinators: int
    namespace_bundles: int
    """Bundles of each of the first namespaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreUrls:
    """Where the metadata goes, by URL; None: with the rest of the cluster's."""

    metadata: str
    configuration: str | None = None
    bookkeeper: str | None = None
    """A cluster of bookies that exists already; nothing is made there."""


async def prepare_cluster(stores: StoreUrls, cluster: NewCluster) -> str:
    """Make every node that is missing; returns the bookies' instance id. `SettingError`, `StoreUnavailable`."""
    check_cluster(stores, cluster)
    async with contextlib.AsyncExitStack() as opened:

        async def opening(url: str) -> MetadataStore:
            store = await open_store(store_url(url))
            opened.push_async_callback(store.close)
            return store

        store = await opening(stores.metadata)
        shared = stores.configuration is None or store_url(stores.configuration) == store_url(stores.metadata)
        configuration = store if shared else await opening(stores.configuration or stores.metadata)
        if stores.bookkeeper is None:
            await prepare_ledgers(store)
            bookkeeper = store
        else:
            bookkeeper = await opening(stores.bookkeeper)
            if not await bookkeeper.exists(LAYOUT_PATH):
                raise SettingError(f"there is no BookKeeper cluster at {stores.bookkeeper}")
        resources = Resources(store, configuration)
        await initialize_cluster_metadata(resources, cluster.name, cluster.data, cluster.namespace_bundles)
        documents = resources.documents
        if not await documents.exists(Resources.cluster_path(GLOBAL_CLUSTER)):
            await documents.create(Resources.cluster_path(GLOBAL_CLUSTER), {})
        await initialize_coordinators(resources, cluster.transaction_coordinators)
        return await instance_id(bookkeeper)


async def prepare_ledgers(store: MetadataStore) -> None:
    """The nodes that bookies and BookKeeper's tools expect (Apache: BookKeeperAdmin.initNewCluster)."""
    for path, value in ((LAYOUT_PATH, LAYOUT), (READ_ONLY_PATH, b"")):
        # Somebody may be preparing the same cluster right now; the nodes are the same then.
        with contextlib.suppress(VersionConflict):
            if not await store.exists(path):
                await store.put(path, value, MUST_NOT_EXIST)


def check_cluster(stores: StoreUrls, cluster: NewCluster) -> None:
    """Before anything is made. `SettingError`."""
    if not is_valid_name_part(cluster.name):
        raise SettingError(f"--cluster {cluster.name!r}: a name has letters, digits and - = : . _ alone")
    for url in (stores.metadata, stores.configuration, stores.bookkeeper):
        if url is not None and store_url(url).startswith("memory:"):
            raise SettingError(f"{url} ends with this command: name a store that lasts, such as zk:localhost:2181")
    for name, scheme in _SCHEMES.items():
        url = str(cluster.data.get(name) or "")
        if url and not url.startswith(scheme):
            raise SettingError(f"{url!r} must begin with {scheme}: it is the cluster's {name}")
