"""Which shadows a source does not tell of its entries as it is to, when nothing is wrong any more."""

from __future__ import annotations

from magnetar.broker.replication.replicator import Replicator
from magnetar.broker.replication.states import ReplicatorState
from magnetar.broker.topics.topic import PersistentTopic

from e2e.broker_simulation.shadows.cluster import ShadowCluster


def untold(cluster: ShadowCluster) -> list[str]:
    """Empty: each source tells exactly the shadows that it is to tell, and they have confirmed all."""
    found: list[str] = []
    for source, shadows in cluster.shadows.sources.items():
        owners = cluster.owners(source)
        if len(owners) != 1:
            found.append(f"{source} is loaded by {[owner.node.name for owner in owners]}")
            continue
        running = owners[0].running
        topic = None if running is None else running.context.service.topics[source]
        assert isinstance(topic, PersistentTopic)
        replicators = {} if topic.shadow_replicators is None else topic.shadow_replicators.running
        if sorted(replicators) != sorted(shadows):
            found.append(f"{source} tells {sorted(replicators)}, not {sorted(shadows)}")
        found += [_said(one) for one in replicators.values() if one.state is not ReplicatorState.STARTED or one.backlog]
    return found


def _said(one: Replicator) -> str:
    return f"{one.label} is {one.state.value}, {one.reason.value or 'and says no reason'}, backlog {one.backlog}"
