"""Tells that what is to be replicated to other clusters is not: there is no geo-replication yet."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any, Final

from magnetar.broker.policies.model import EffectivePolicies
from magnetar.core.topic_name import TopicName

logger: Final = logging.getLogger(__name__)

TOLD_MAX: Final = 10_000
"""Namespaces that are remembered as told of; beyond, the oldest may be told of once more."""

NOT_REPLICATED: Final = {
    "msgRateIn": 0.0,
    "msgInCount": 0,
    "msgThroughputIn": 0.0,
    "bytesInCount": 0,
    "msgRateOut": 0.0,
    "msgOutCount": 0,
    "msgThroughputOut": 0.0,
    "bytesOutCount": 0,
    "msgRateExpired": 0.0,
    "msgExpiredCount": 0,
    "replicationBacklog": 0,
    "connected": False,
    "replicationDelayInSeconds": 0,
}
"""What a topic's statistics say of a cluster that gets nothing (Pulsar `ReplicatorStats`): nobody is connected."""


class Unreplicated:
    """One line for each namespace and the clusters that it names, however many topics it has."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, tuple[str, ...]], None] = {}

    def look(self, topic: TopicName, policies: EffectivePolicies) -> None:
        """These policies hold for a topic from now on."""
        clusters = policies.remote_clusters
        if not clusters:
            return
        key = str(topic.namespace_name), clusters
        if key in self._told:
            return
        self._told[key] = None
        if len(self._told) > TOLD_MAX:
            del self._told[next(iter(self._told))]
        tell(f"{topic.namespace_name}, {topic.local_name} among its topics,", clusters)


def tell(what: str, clusters: Collection[str]) -> None:
    """A line in the log."""
    logger.warning(
        "%s is to be replicated to %s: there is no geo-replication yet, and nothing is",
        what,
        ", ".join(sorted(clusters)),
    )


def replication_stats(policies: EffectivePolicies) -> dict[str, Any]:
    """`replication` of a topic's statistics."""
    return {cluster: dict(NOT_REPLICATED) for cluster in policies.remote_clusters}
