"""The plan of a cluster that others run: nothing but read-only brokers is ours, and nothing is waited for."""

from __future__ import annotations

from magnetar.operator.plan.cluster.brokers import BrokersPlan
from magnetar.operator.plan.cluster.deployments import RolloutGate
from magnetar.operator.plan.cluster.parts import (
    ATTACHED,
    BOOKIES_READY,
    BROKERS_READY,
    METADATA_READY,
    PROXIES_READY,
    ZOOKEEPER_READY,
    ComponentPlan,
)
from magnetar.operator.plan.cluster.read_only import plan_read_only_brokers
from magnetar.operator.plan.cluster.status import ComponentPlans
from magnetar.operator.plan.conditions import NewCondition
from magnetar.operator.plan.facts import ClusterSeen


def plan_attached(seen: ClusterSeen) -> ComponentPlans:
    """What is there already is neither made nor judged: what is wrong with it, the read-only brokers say."""
    cluster = seen.cluster

    def others(type_: str, what: str) -> NewCondition:
        return NewCondition(type_, True, ATTACHED, f"{what} of cluster {cluster.pulsar_name}, which others run")

    return ComponentPlans(
        metadata=ComponentPlan(condition=others(METADATA_READY, "the metadata is that"), serving=True),
        zookeeper=ComponentPlan(
            condition=others(ZOOKEEPER_READY, f"{cluster.metadata_url} is the store"), serving=True
        ),
        bookies=ComponentPlan(condition=others(BOOKIES_READY, "entries are with the bookies"), serving=True),
        brokers=BrokersPlan(condition=others(BROKERS_READY, "who writes are the brokers"), serving=True),
        proxies=ComponentPlan(condition=others(PROXIES_READY, "proxies, if there are any, are those"), serving=True),
        read_only_brokers=plan_read_only_brokers(seen, RolloutGate(start="", update="")),
    )
