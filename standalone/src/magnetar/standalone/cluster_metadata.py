"""Prepares a metadata store for a new cluster."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Final

from magnetar.bookie.cookie import instance_id
from magnetar.bookie.registration import LAYOUT, LAYOUT_PATH, READ_ONLY_PATH
from magnetar.broker.resources import Resources, initialize_cluster_metadata
from magnetar.core.topic_name import TopicName
from magnetar.metadata.factory import open_store
from magnetar.metadata.store import MUST_NOT_EXIST, MetadataStore, VersionConflict
from magnetar.metadata.urls import store_url

COORDINATORS_TOPIC: Final = "persistent://pulsar/system/transaction_coordinator_assign"
"""Its partitions are the transaction coordinators."""
GLOBAL_CLUSTER: Final = "global"
"""Stands for all clusters in old namespaces; Apache's tools expect it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCluster:
    """What is known about a cluster before it runs."""

    name: str
    web_service_url: str
    broker_service_url: str
    transaction_coordinators: int


async def prepare_cluster(metadata_url: str, cluster: NewCluster) -> str:
    """Make every node that is missing; returns the instance id. `SettingError`, `StoreUnavailable`."""
    store = await open_store(store_url(metadata_url))
    try:
        await prepare_ledgers(store)
        resources = Resources(store)
        await initialize_cluster_metadata(resources, cluster.name, cluster.broker_service_url, cluster.web_service_url)
        documents = resources.documents
        topic = resources.partitioned_topic_path(TopicName.parse(COORDINATORS_TOPIC))
        for path, document in (
            (Resources.cluster_path(GLOBAL_CLUSTER), {}),
            (topic, {"partitions": cluster.transaction_coordinators}),
        ):
            if not await documents.exists(path):
                await documents.create(path, document)
        return await instance_id(store)
    finally:
        await store.close()


async def prepare_ledgers(store: MetadataStore) -> None:
    """The nodes that bookies and BookKeeper's tools expect (Apache: BookKeeperAdmin.initNewCluster)."""
    for path, value in ((LAYOUT_PATH, LAYOUT), (READ_ONLY_PATH, b"")):
        # Somebody may be preparing the same cluster right now; the nodes are the same then.
        with contextlib.suppress(VersionConflict):
            if not await store.exists(path):
                await store.put(path, value, MUST_NOT_EXIST)
