"""Which topics a namespace has, by the nodes of the metadata store (Pulsar: broker/resources, MetaStoreImpl)."""

from __future__ import annotations

import json

from magnetar.core.errors import PeerError
from magnetar.core.topic_name import (
    PERSISTENT,
    InvalidTopicName,
    NamespaceName,
    TopicName,
    java_url_decode,
    java_url_encode,
)
from magnetar.managed import paths
from magnetar.metadata.store import MetadataStore
from magnetar.spark.errors import BadOption
from magnetar.spark.options.topic_patterns import TopicPatternOption, whole_local_name


def persistent_topic(name: str) -> TopicName:
    """The topic that a user names. Raises `BadOption`."""
    try:
        topic = TopicName.parse(name)
    except InvalidTopicName as error:
        raise BadOption(str(error)) from error
    if topic.domain != PERSISTENT:
        raise BadOption(f"{name}: what is not persistent is stored nowhere, so there is nothing to read")
    return topic


def ledgers_path(topic: TopicName) -> str:
    """The node of a topic's managed ledger."""
    return paths.ledger_path(topic.persistence_name)


def partitions_path(topic: TopicName) -> str:
    """The node of a topic with partitions."""
    return f"/admin/partitioned-topics/{topic.namespace_name}/{topic.domain}/{java_url_encode(topic.local_name)}"


async def partition_count(store: MetadataStore, topic: TopicName) -> int | None:
    """How many partitions a topic has; None when it has none, and while it is being deleted. Raises `PeerError`."""
    node = await store.get(partitions_path(topic), watch=False)
    if node is None:
        return None
    try:
        document = json.loads(node.value)
        return None if document.get("deleted") else int(document["partitions"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PeerError(f"the partitions of {topic} are stored as something else: {error!r}") from error


async def topics_of(store: MetadataStore, topic: TopicName) -> list[str]:
    """What stands for a name: its partitions, or itself; empty when there is neither."""
    count = await partition_count(store, topic) if topic.partition_index < 0 else None
    if count is not None:
        return [str(topic.partition(index)) for index in range(count)]
    if await store.exists(ledgers_path(topic), watch=False):
        return [str(topic)]
    if topic.partition_index >= 0:
        whole = await partition_count(store, topic.partitioned_name())
        return [str(topic)] if whole is not None and topic.partition_index < whole else []
    # Clusters of one instance may keep partitioned topics in another store; the partitions themselves are here.
    stored = await stored_topics(store, topic.namespace_name)
    return [str(each) for each in stored if each.partition_index >= 0 and whole_local_name(each) == topic.local_name]


async def stored_topics(store: MetadataStore, namespace: NamespaceName) -> list[TopicName]:
    """The topics and partitions of a namespace that have ledgers, or had some."""
    names = await store.children(f"{paths.ROOT}/{namespace}/{PERSISTENT}", watch=False)
    return [TopicName(PERSISTENT, namespace, java_url_decode(name)) for name in names]


async def matching_topics(store: MetadataStore, pattern: TopicPatternOption) -> list[str]:
    """Topics and partitions that are selected."""
    namespace = pattern.namespace
    found = {str(topic) for topic in await stored_topics(store, namespace) if pattern.means(topic)}
    partitioned = await store.children(f"/admin/partitioned-topics/{namespace}/{PERSISTENT}", watch=False)
    for encoded in partitioned:
        topic = TopicName(PERSISTENT, namespace, java_url_decode(encoded))
        if pattern.means(topic):
            count = await partition_count(store, topic) or 0
            found.update(f"{topic}-partition-{index}" for index in range(count))
    return sorted(found)
