"""Whether a cluster or a namespace has moved, and where to.

Facts: Pulsar `AbstractTopic.getMigratedClusterUrlAsync`, `ClusterPoliciesImpl`, `LocalPolicies`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from magnetar.broker.migrated_topics import Destination
from magnetar.broker.resources import Resources, decode_document
from magnetar.metadata.node_cache import NodeCache

if TYPE_CHECKING:
    from magnetar.broker.policies.model import EffectivePolicies
    from magnetar.metadata.store import Node


class ClusterMigration(NamedTuple):
    """What a cluster's policies say: whether all of it has moved, and where what has moved is."""

    migrated: bool
    destination: Destination | None


class Destinations:
    """Where the topics of one cluster have moved; kept in memory until the configuration store tells of a change."""

    def __init__(self, resources: Resources, cluster: str) -> None:
        self._path = Resources.cluster_policies_path(cluster)
        self._cache: NodeCache[ClusterMigration] = NodeCache(
            resources.configuration_store, _decode, entries_max=1, often_missing=True
        )

    async def of(self, policies: EffectivePolicies) -> Destination | None:
        """Where the topics with these policies have moved; None: nowhere. Raises what the configuration store
        raises."""
        cluster = await self._cache.get(self._path)
        if cluster is None or not (cluster.migrated or policies.migrated):
            return None
        return cluster.destination

    @property
    def nothing_moves(self) -> bool:
        """Whether it is known that the cluster has no destination, for none of its namespaces."""
        return self._cache.knows(self._path) and self._cache.peek(self._path) is None

    def close(self) -> None:
        """Listen to the store no more."""
        self._cache.close()


def _decode(path: str, node: Node) -> ClusterMigration:
    document = decode_document(path, node)
    urls = document.get("migratedClusterUrl")
    return ClusterMigration(document.get("migrated") is True, _destination(urls) if isinstance(urls, dict) else None)


def _destination(urls: dict[str, Any]) -> Destination:
    names = ("serviceUrl", "serviceUrlTls", "brokerServiceUrl", "brokerServiceUrlTls")
    return Destination(*(str(urls.get(name) or "") for name in names))
