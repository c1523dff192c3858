"""Clusters, tenants, namespaces and partitioned topics as documents in the metadata store.

Paths and JSON are Apache Pulsar's (`pulsar-broker-common/.../resources/*`), so that its brokers and tools read and
write the same nodes. Documents are kept as plain dictionaries: fields that this broker does not know survive a
change made by it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from magnetar.broker.begun_creations import BegunCreations
from magnetar.core.errors import MagnetarError, PeerError
from magnetar.core.topic_name import NamespaceName, TopicName, equal_bundle_boundaries, java_url_decode, java_url_encode
from magnetar.metadata.node_cache import NodeCache
from magnetar.metadata.store import MUST_NOT_EXIST, MetadataStore, Node, NodeNotFound, VersionConflict
from magnetar.metadata.sure_writes import delete_surely, put_surely

logger: Final = logging.getLogger(__name__)

Document: TypeAlias = dict[str, Any]

LOCAL_POLICIES_ROOT: Final = "/admin/local-policies/"
"""Below it is a node per namespace: the bundles in force, and what else holds in this cluster only."""

UPDATE_ATTEMPTS_MAX: Final = 10
"""Compare-and-set rounds before giving up; each lost round means that another writer got through."""

POLICIES_KEPT_MAX: Final = 10_000
"""Namespaces whose policies are kept in memory, about 10 kB each; others are read again."""

MARKS_KEPT_MAX: Final = 1_000
"""Deletions that begin and neither end nor are taken back. A mark that is forgotten stays, as after a crash."""

PARTITION_COUNTS_KEPT_MAX: Final = 20_000
"""Topics of which it is kept whether and how they are partitioned, some 100 bytes each."""


def _decode(path: str, value: bytes) -> Any:
    """A node's JSON; an empty node counts as an empty document. `PeerError`"""
    # The standard library's codec, which is loaded anyway: msgspec would add 40 ms to the start and gain nothing here.
    try:
        return json.loads(value) if value else {}
    except (ValueError, RecursionError) as error:
        raise PeerError(f"the metadata at {path} is not JSON: {error}") from error


def _encode(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def decode_document(path: str, node: Node) -> Document:
    """A node's JSON object. An empty node counts as an empty document; `PeerError` for anything else."""
    document = _decode(path, node.value)
    if not isinstance(document, dict):
        raise PeerError(f"the metadata at {path} is not a JSON object")
    return document


class Documents:
    """JSON documents at paths, changed by compare-and-set.

    A write whose answer is lost is asked for again, and is no conflict with itself (`metadata.sure_writes`)."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._begun = BegunCreations()

    async def get(self, path: str) -> Any | None:
        """The document, or None. An empty node counts as an empty document. `PeerError` for what is no JSON."""
        node = await self._store.get(path)
        return None if node is None else _decode(path, node.value)

    async def create(self, path: str, document: object) -> None:
        """Raises `VersionConflict` when there is one already: not for the very document that an earlier request made
        here without being told so."""
        value = _encode(document)
        begun = self._begun.value(path) == value
        try:
            await put_surely(self._store, path, value, MUST_NOT_EXIST, asked_before=begun)
        except VersionConflict:
            raise
        except BaseException:
            self._begun.note(path, value)
            raise
        self._begun.forget(path)

    def begun(self, path: str) -> bool:
        """Whether a document was to be created there, and whoever asked was not told that it was: asking again is no
        conflict."""
        return self._begun.value(path) is not None

    def note_begun(self, path: str, document: object) -> None:
        """One that was created is not complete, and whoever asked for it will hear so."""
        self._begun.note(path, _encode(document))

    async def put(self, path: str, document: object) -> None:
        """Create or replace."""
        await self._store.put(path, _encode(document))

    async def write(self, path: str, document: object, version: int) -> None:
        """Replace exactly that version (`MUST_NOT_EXIST`: create). Raises `VersionConflict`."""
        await put_surely(self._store, path, _encode(document), version)

    async def update(self, path: str, change: Callable[[Document], Document]) -> Document:
        """Apply a change to what is there; tries again when another writer was faster. `NodeNotFound`, `PeerError`.

        What is there already is not written again: many who want the same do not get into each other's way."""
        for _ in range(UPDATE_ATTEMPTS_MAX):
            node = await self._store.get(path)
            if node is None:
                raise NodeNotFound(path)
            document = change(decode_document(path, node))
            value = _encode(document)
            if value == node.value:
                return document
            try:
                await put_surely(self._store, path, value, node.stat.version)
            except VersionConflict:
                continue
            return document
        raise VersionConflict(f"{path} kept changing under {UPDATE_ATTEMPTS_MAX} attempts to update it")

    async def delete(self, path: str) -> None:
        """Remove one document, whatever it says. `NodeNotFound`, `NodeHasChildren`."""
        for _ in range(UPDATE_ATTEMPTS_MAX):
            node = await self._store.get(path, watch=False)
            if node is None:
                raise NodeNotFound(path)
            try:
                await delete_surely(self._store, path, node)
            except VersionConflict:
                continue
            return
        raise VersionConflict(f"{path} kept changing under {UPDATE_ATTEMPTS_MAX} attempts to delete it")

    async def children(self, path: str) -> list[str]:
        """Names of the documents below."""
        return await self._store.children(path)

    async def exists(self, path: str) -> bool:
        """Whether there is one."""
        return await self._store.exists(path)


class Resources:
    """The configuration part of the metadata tree, by the names of its things.

    Clusters of one instance share the configuration store; what only one cluster's brokers need is in its local one
    (broker-internals section 1)."""

    def __init__(self, store: MetadataStore, configuration_store: MetadataStore | None = None) -> None:
        self.configuration_store = store if configuration_store is None else configuration_store
        self.documents = Documents(self.configuration_store)
        """Clusters, tenants, namespaces, partitioned topics, resource groups."""
        self.local_documents = Documents(store)
        """Local policies (the bundles in force), dynamic settings, racks of bookies."""
        self._store = store
        self._marks: dict[str, None] = {}
        """Partitioned topics that were marked as being deleted here, or may have been, and are not yet unmarked."""
        self._policies: NodeCache[Document] | None = None
        self._partitions: NodeCache[Document] | None = None

    @property
    def stores(self) -> tuple[MetadataStore, ...]:
        """The configuration store, and the cluster's own if that is another one."""
        both = (self.configuration_store, self._store)
        return both[:1] if both[0] is both[1] else both

    def close(self) -> None:
        """Forget what is kept of the stores, and listen to them no more."""
        for cache in (self._policies, self._partitions):
            if cache is not None:
                cache.close()
        self._policies = self._partitions = None

    @staticmethod
    def cluster_path(cluster: str) -> str:
        """Where a cluster's data is."""
        return f"/admin/clusters/{cluster}"

    @staticmethod
    def cluster_policies_path(cluster: str) -> str:
        """What a cluster's policies are: whether it has moved, and where to."""
        return f"{Resources.cluster_path(cluster)}/policies"

    @staticmethod
    def tenant_path(tenant: str) -> str:
        """Where a tenant's data is; its namespaces stand below."""
        return f"/admin/policies/{tenant}"

    @staticmethod
    def namespace_path(namespace: NamespaceName) -> str:
        """Where a namespace's policies are."""
        return f"/admin/policies/{namespace}"

    @staticmethod
    def local_policies_path(namespace: NamespaceName) -> str:
        """Where the bundles in force are."""
        return f"{LOCAL_POLICIES_ROOT}{namespace}"

    @staticmethod
    def partitioned_topics_path(namespace: NamespaceName, domain: str) -> str:
        """Parent of a namespace's partitioned topics."""
        return f"/admin/partitioned-topics/{namespace}/{domain}"

    @staticmethod
    def managed_ledgers_path(namespace: NamespaceName) -> str:
        """Parent of a namespace's persistent topics that exist."""
        return f"/managed-ledgers/{namespace}/persistent"

    def partitioned_topic_path(self, topic: TopicName) -> str:
        """Where one partitioned topic's data is."""
        parent = self.partitioned_topics_path(topic.namespace_name, topic.domain)
        return f"{parent}/{java_url_encode(topic.local_name)}"

    async def clusters(self) -> list[str]:
        """Names of the clusters."""
        return await self.documents.children("/admin/clusters")

    async def tenants(self) -> list[str]:
        """Names of the tenants."""
        return await self.documents.children("/admin/policies")

    async def namespaces(self, tenant: str) -> list[str]:
        """`tenant/namespace` of each namespace of a tenant."""
        return [f"{tenant}/{name}" for name in await self.documents.children(self.tenant_path(tenant))]

    async def policies(self, namespace: NamespaceName) -> Document | None:
        """A namespace's policies, or None when it does not exist. From memory once they were read: do not change it."""
        return await self._policies_cache().get(self.namespace_path(namespace))

    async def stands(self, namespace: NamespaceName) -> bool:
        """Whether there is such a namespace which nobody deletes, as the store has it now."""
        policies = await self.documents.get(self.namespace_path(namespace))
        return policies is not None and not policies.get("deleted")

    async def exists(self, namespace: NamespaceName) -> bool:
        """Whether there is such a namespace, also one that is being deleted, as the store has it now."""
        return await self.documents.exists(self.namespace_path(namespace))

    def peek_policies(self, namespace: NamespaceName) -> Document | None:
        """A namespace's policies from memory, without asking the store; None also when they are not there."""
        return self._policies_cache().peek(self.namespace_path(namespace))

    def _policies_cache(self) -> NodeCache[Document]:
        # Made on first use, as those who prepare a cluster keep nothing.
        if self._policies is None:
            self._policies = NodeCache(self.configuration_store, decode_document, entries_max=POLICIES_KEPT_MAX)
        return self._policies

    async def bundle_boundaries(self, namespace: NamespaceName) -> list[str]:
        """The boundaries in force; copied from the policies on first use, as Apache does."""
        local = await self.local_documents.get(self.local_policies_path(namespace))
        if local is None:
            policies = await self.policies(namespace)
            bundles = (policies or {}).get("bundles") or bundles_document(4)
            try:
                await self.local_documents.create(self.local_policies_path(namespace), {"bundles": bundles})
            except VersionConflict:
                return await self.bundle_boundaries(namespace)
            local = {"bundles": bundles}
        boundaries: list[str] = local["bundles"]["boundaries"]
        return boundaries

    async def partitions(self, topic: TopicName) -> int | None:
        """How many partitions a partitioned topic has, also while it is being deleted; None when it is not one."""
        return _partition_count(await self._partitions_cache().get(self.partitioned_topic_path(topic)))

    def peek_partitions(self, topic: TopicName) -> tuple[bool, int | None]:
        """Whether memory says how many partitions the topic has, and how many, None for a topic that is not
        partitioned. The store is not asked."""
        cache, path = self._partitions_cache(), self.partitioned_topic_path(topic)
        return cache.knows(path), _partition_count(cache.peek(path))

    async def partitioned_property(self, topic: TopicName, key: str) -> str | None:
        """What is noted under a key in the record of a partitioned topic; None: nothing, or it is not partitioned."""
        return _property(await self._partitions_cache().get(self.partitioned_topic_path(topic)), key)

    def peek_partitioned_property(self, topic: TopicName, key: str) -> str | None:
        """The same from memory, without asking the store."""
        return _property(self._partitions_cache().peek(self.partitioned_topic_path(topic)), key)

    def _partitions_cache(self) -> NodeCache[Document]:
        if self._partitions is None:
            kept = PARTITION_COUNTS_KEPT_MAX
            # Most topics have no partitions.
            self._partitions = NodeCache(
                self.configuration_store, decode_document, entries_max=kept, often_missing=True
            )
        return self._partitions

    async def is_being_deleted(self, topic: TopicName) -> bool:
        """Whether a partitioned topic is marked as about to go, as the store has it now."""
        document = await self.documents.get(self.partitioned_topic_path(topic))
        return document is not None and bool(document.get("deleted"))

    async def mark_deleted(self, topic: TopicName) -> tuple[int, bool]:
        """From now on nobody makes partitions of a partitioned topic anew or adds some (Pulsar
        `runWithMarkDeleteAsync`). How many there are, and whether the mark is ours, not somebody else's or left by one
        who died. `NodeNotFound`"""
        path = self.partitioned_topic_path(topic)

        def mark(document: Document) -> Document:
            if not document.get("deleted"):
                self._note_mark(path)
            return {**document, "deleted": True}

        document = await self.documents.update(path, mark)
        return int(document["partitions"]), path in self._marks

    async def unmark_deleted(self, topic: TopicName) -> None:
        """It is not deleted after all."""
        path = self.partitioned_topic_path(topic)
        try:
            await self.documents.update(path, lambda document: {**document, "deleted": False})
        except MagnetarError as error:
            logger.warning("%s stays marked as being deleted: %s", topic, error)
        else:
            self._marks.pop(path, None)

    async def delete_marked(self, topic: TopicName) -> None:
        """Remove the record of a partitioned topic that is marked. `NodeNotFound`"""
        path = self.partitioned_topic_path(topic)
        self._marks.pop(path, None)
        await self.documents.delete(path)

    def _note_mark(self, path: str) -> None:
        self._marks[path] = None
        if len(self._marks) > MARKS_KEPT_MAX:
            del self._marks[next(iter(self._marks))]

    async def partitioned_topics(self, namespace: NamespaceName, domain: str) -> list[str]:
        """Full names of a namespace's partitioned topics."""
        names = await self.documents.children(self.partitioned_topics_path(namespace, domain))
        return [f"{domain}://{namespace}/{java_url_decode(name)}" for name in names]

    async def persistent_topics(self, namespace: NamespaceName) -> list[str]:
        """Full names of the persistent topics that exist, partitions one by one."""
        names = await self._store.children(self.managed_ledgers_path(namespace))
        return [f"persistent://{namespace}/{java_url_decode(name)}" for name in names]


def _property(record: Document | None, key: str) -> str | None:
    properties = None if record is None else record.get("properties")
    value = properties.get(key) if isinstance(properties, dict) else None
    return None if value is None else str(value)


def _partition_count(document: Document | None) -> int | None:
    return None if document is None else int(document["partitions"])


def bundles_document(count: int) -> Document:
    """The `bundles` part of policies: `count` equal ranges of the hash space."""
    return {"boundaries": equal_bundle_boundaries(count), "numBundles": count}


def new_policies(cluster: str, bundle_count: int) -> Document:
    """Policies of a namespace made with nothing said, with the fields that Apache's own defaults have."""
    return {
        "auth_policies": {
            "namespace_auth": {},
            "destination_auth": {},
            "subscription_auth_roles": {},
        },
        "replication_clusters": [cluster],
        "allowed_clusters": [],
        "bundles": bundles_document(bundle_count),
        "backlog_quota_map": {},
        "clusterDispatchRate": {},
        "topicDispatchRate": {},
        "subscriptionDispatchRate": {},
        "replicatorDispatchRate": {},
        "clusterSubscribeRate": {},
        "publishMaxMessageRate": {},
        "latency_stats_sample_rate": {},
        "deleted": False,
        "encryption_required": False,
        "subscription_auth_mode": "None",
        "offload_threshold": -1,
        "offload_threshold_in_seconds": -1,
        "schema_compatibility_strategy": "UNDEFINED",
        "schema_validation_enforced": False,
        "subscription_types_enabled": [],
        "properties": {},
        "migrated": False,
    }


CLUSTER_DEFAULTS: Final[Mapping[str, str]] = {
    "brokerClientTlsTrustStoreType": "JKS",
    "brokerClientTlsKeyStoreType": "JKS",
    "brokerClientSslFactoryPlugin": "org.apache.pulsar.common.util.DefaultPulsarSslFactory",
}
"""What Apache's tools write into each cluster's record, although only clients in Java have a use for it."""


def cluster_data(service_url: str, web_service_url: str) -> Document:
    """A cluster's addresses for other clusters (Pulsar `ClusterData`)."""
    return {**CLUSTER_DEFAULTS, "serviceUrl": web_service_url, "brokerServiceUrl": service_url}


async def initialize_cluster_metadata(
    resources: Resources, cluster: str, cluster_data: Document, namespace_bundles: int = 16
) -> None:
    """What a new cluster's store must hold before a broker starts; running it again changes nothing but what
    `cluster_data` names: what is empty in it is taken away, what it leaves out stays.

    Apache: `PulsarClusterMetadataSetup` (tenants public and pulsar, their first namespaces)."""
    documents = resources.documents
    await _set_cluster(documents, Resources.cluster_path(cluster), cluster_data)
    for tenant, namespace in (("public", "default"), ("pulsar", "system")):
        path = Resources.tenant_path(tenant)
        known = await documents.get(path)
        if known is None:
            await documents.create(path, {"adminRoles": [], "allowedClusters": [cluster]})
        elif cluster not in (known.get("allowedClusters") or []):
            await documents.update(path, lambda document: _allowing(document, cluster))
        name = NamespaceName(tenant, namespace)
        if not await documents.exists(Resources.namespace_path(name)):
            await documents.create(Resources.namespace_path(name), new_policies(cluster, namespace_bundles))
    if not await resources.local_documents.exists("/bookies"):
        await resources.local_documents.put("/bookies", {})


async def _set_cluster(documents: Documents, path: str, data: Document) -> None:
    def change(before: Document) -> Document:
        return {name: value for name, value in {**before, **data}.items() if value != ""}

    if await documents.get(path) is None:
        try:
            await documents.create(path, change({}))
        except VersionConflict:
            # Somebody prepares the same cluster right now.
            logger.debug("%s is there already", path)
        else:
            return
    await documents.update(path, change)


def _allowing(tenant: Document, cluster: str) -> Document:
    allowed = tenant.get("allowedClusters") or []
    return tenant if cluster in allowed else {**tenant, "allowedClusters": [*allowed, cluster]}
