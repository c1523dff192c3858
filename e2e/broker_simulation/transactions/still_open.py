"""Looks into brokers: which transactions are not over."""

from __future__ import annotations

from magnetar.broker.topics.topic import PersistentTopic

from e2e.broker_simulation.cluster import Cluster


def still_open(cluster: Cluster) -> list[str]:
    """Whatever is held, by whom: topics, subscriptions, coordinators."""
    held: list[str] = []
    for broker in cluster.brokers:
        if broker.running is None:
            continue
        context, where = broker.running.context, broker.node.name
        for topic in context.service.topics.values():
            if not isinstance(topic, PersistentTopic) or topic.buffer is None:
                continue
            held += [f"{one} on {topic.name} at {where}" for one in topic.buffer.table.open]
            if topic.pending_acks is not None:
                for subscription in topic.subscriptions.values():
                    transactions = topic.pending_acks.of(subscription).held.transactions
                    held += [f"{one} on {subscription.name} of {topic.name} at {where}" for one in transactions]
        if context.coordinators is not None:
            held += [
                f"{one.active} of coordinator {one.coordinator} at {where}"
                for one in context.coordinators.counts()
                if one.active
            ]
    return held
