"""What stops when while a cluster goes to sleep: proxies and read-only
brokers, brokers, bookies, ZooKeeper. Waking is the usual start."""

from __future__ import annotations

from magnetar.operator.children.naming import BROKER, PROXY, READ_ONLY_BROKER
from magnetar.operator.plan.cluster.parts import alive
from magnetar.operator.plan.facts import ClusterSeen


def brokers_may_stop(seen: ClusterSeen) -> bool:
    """No proxy and no read-only broker is left, and it is written down how many brokers there were."""
    spec = seen.cluster.spec
    remembered = spec.broker.replicas is not None or seen.status.hibernated_replicas is not None
    return remembered and not alive(seen.children.of(PROXY)) and not alive(seen.children.of(READ_ONLY_BROKER))


def zookeeper_may_stop(seen: ClusterSeen) -> bool:
    """Nobody needs it any more: no broker runs, and each pool has seen that the cluster is to sleep and has no pod."""
    asleep = all(
        pool.status.replicas == 0 and pool.status.cluster_generation == seen.resource.generation for pool in seen.pools
    )
    return asleep and not any(alive(seen.children.of(part)) for part in (PROXY, BROKER, READ_ONLY_BROKER))


def remembered_brokers(seen: ClusterSeen) -> int | None:
    """How many brokers there are to be after waking, where the spec does not say: kept until they are there again."""
    if seen.cluster.spec.broker.replicas is not None:
        return None
    found = seen.children.workloads.get(("Deployment", seen.cluster.broker))
    running = found.desired if found is not None else 0
    if not running:
        return seen.status.hibernated_replicas
    if not seen.cluster.spec.hibernated:
        return None
    return seen.status.hibernated_replicas or running
