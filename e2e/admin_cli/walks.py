"""The whole walk of each tool, in the order in which it is taken."""

from __future__ import annotations

from e2e.admin_cli import walk_cluster, walk_namespaces, walk_pulsarctl, walk_topic_policies, walk_topics
from e2e.admin_cli.step import TOPIC, Step

WALKS: dict[str, list[Step]] = {
    "pulsarctl": walk_pulsarctl.WALK,
    "pulsar-admin": [
        *walk_cluster.CLUSTERS,
        *walk_cluster.BROKERS,
        *walk_cluster.TENANTS,
        *walk_namespaces.CREATION,
        *walk_cluster.RESOURCES,
        *walk_cluster.PLACEMENT,
        *walk_namespaces.ACCESS,
        *walk_namespaces.CLUSTERS,
        *walk_namespaces.QUOTAS,
        *walk_namespaces.SCHEMAS,
        *walk_namespaces.PROPERTIES,
        *walk_namespaces.POLICY_STEPS,
        *walk_namespaces.AFTERWARDS,
        *walk_topics.CREATION,
        *walk_topics.SUBSCRIPTIONS,
        *walk_topics.MESSAGES,
        *walk_topics.PERSISTENT,
        *walk_topics.UPKEEP,
        *walk_topics.SCHEMAS,
        *walk_topics.NON_PERSISTENT,
        *walk_topic_policies.WALK,
        *walk_namespaces.BUNDLES,
        *walk_topics.CLOSING,
        *walk_topics.DELETION,
        *walk_cluster.END,
    ],
}
"""Tools in the order in which they are walked: the last step of `pulsar-admin` ends the broker that it asks."""

PUBLISHED_TO = {"pulsarctl": walk_pulsarctl.TOPIC, "pulsar-admin": TOPIC}
