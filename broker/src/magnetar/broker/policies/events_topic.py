"""Where a namespace's topic policies are: its system topic `__change_events`, and how to know whether it is there."""

from __future__ import annotations

from typing import Final

from magnetar.broker.resources import Resources
from magnetar.core.errors import PeerError, Unavailable
from magnetar.core.topic_name import NamespaceName, TopicName
from magnetar.metadata.store import MetadataStore

EVENTS_TOPIC: Final = "__change_events"

_NAMES: Final = (EVENTS_TOPIC, f"{EVENTS_TOPIC}-partition-0")
"""The names of the nodes that say that the topic is there: not partitioned, or partitioned."""


class PoliciesTooLarge(PeerError):
    """Policies of a topic, or of all topics of a namespace, that would take more memory than there is for them."""


class PoliciesUnavailable(Unavailable):
    """Topic policies cannot be read or changed now."""


class PoliciesCrowded(PoliciesUnavailable):
    """Those of other namespaces take all the memory that there is for topic policies."""


def events_topic(namespace: NamespaceName) -> TopicName:
    """The system topic of a namespace."""
    return TopicName("persistent", namespace, EVENTS_TOPIC)


def namespace_of_node(path: str) -> NamespaceName | None:
    """The namespace whose system topic a metadata node stands for; None for every other node."""
    if EVENTS_TOPIC not in path:
        return None
    parent, _, name = path.rpartition("/")
    parts = parent.split("/")
    if name not in _NAMES or len(parts) != 5:
        return None
    try:
        namespace = NamespaceName(parts[2], parts[3])
    except PeerError:
        return None
    return namespace if parent == Resources.managed_ledgers_path(namespace) else None


async def existing_events_topics(
    store: MetadataStore, resources: Resources, namespace: NamespaceName
) -> list[TopicName]:
    """The system topic or its partitions; none while it is not there. The nodes are watched by being asked for."""
    parent, topic = Resources.managed_ledgers_path(namespace), events_topic(namespace)
    plain, first_partition = (f"{parent}/{name}" for name in _NAMES)
    if await store.exists(plain):
        return [topic]
    if not await store.exists(first_partition):
        return []
    count = await resources.partitions(topic)
    return [topic.partition(index) for index in range(count or 0)]
