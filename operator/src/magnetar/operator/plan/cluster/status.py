"""What is said of a cluster: conditions, a phase, numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from magnetar.operator.children.access import service_url, web_service_url
from magnetar.operator.children.naming import BROKER, label_text, selector
from magnetar.operator.children.owned import cluster_settings_without_effect
from magnetar.operator.plan.actions import Action, SplitBundle, TransferBundle
from magnetar.operator.plan.cluster.brokers import BrokersPlan
from magnetar.operator.plan.cluster.hibernation import remembered_brokers
from magnetar.operator.plan.cluster.parts import (
    ALL_READY,
    HIBERNATED,
    PODS_NOT_READY,
    SCALING,
    STARTING,
    STOPPING,
    UPDATE_WAITS,
    UPDATING,
    WAITING,
    ComponentPlan,
)
from magnetar.operator.plan.cluster.read_only import ReadOnlyBrokersPlan
from magnetar.operator.plan.cluster.start import metadata_written
from magnetar.operator.plan.conditions import (
    GETS_ON,
    READY,
    RECONCILING,
    STALLED,
    NewCondition,
    conditions,
    holds,
    settings_in_effect,
    timestamp,
)
from magnetar.operator.plan.facts import ClusterSeen
from magnetar.operator.resources.cluster import BundleMove, PulsarClusterStatus

PAUSED: Final = "Paused"
MOVES_MAX: Final = 10
"""The last moves kept in the status: what people look at, not a log."""

_PHASES: Final = {
    HIBERNATED: "Hibernated",
    PODS_NOT_READY: "Degraded",
    SCALING: "Scaling",
    STARTING: "Starting",
    STOPPING: "Hibernating",
    UPDATE_WAITS: "Updating",
    UPDATING: "Updating",
    WAITING: "Starting",
}
"""By the reason of the first component that is not as it should be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentPlans:
    """The plans of all components of a cluster."""

    metadata: ComponentPlan
    zookeeper: ComponentPlan
    bookies: ComponentPlan
    brokers: BrokersPlan
    proxies: ComponentPlan
    read_only_brokers: ReadOnlyBrokersPlan

    def all(self) -> list[ComponentPlan]:
        """In the order in which they start."""
        return [self.zookeeper, self.metadata, self.bookies, self.brokers, self.proxies, self.read_only_brokers]


def cluster_status(seen: ClusterSeen, parts: ComponentPlans, moves_now: Sequence[Action]) -> PulsarClusterStatus:
    """The status of a cluster."""
    cluster, generation = seen.cluster, seen.resource.generation
    new_conditions = _new_conditions(seen, parts)
    ready = new_conditions[0]
    address = cluster.address(cluster.entrance)
    return PulsarClusterStatus(
        observed_generation=generation,
        phase=_phase(seen, parts, new_conditions),
        version=cluster.version if ready.holds and ready.reason == ALL_READY else seen.status.version,
        service_url=service_url(cluster, address),
        web_service_url=web_service_url(cluster, address),
        zookeeper=parts.zookeeper.status,
        bookies=parts.bookies.status,
        brokers=parts.brokers.status,
        proxies=parts.proxies.status,
        read_only_brokers=parts.read_only_brokers.told,
        broker_replicas=parts.brokers.status.replicas,
        broker_selector=label_text(selector(cluster.name, BROKER)),
        broker_members=list(parts.brokers.members),
        last_moves=_moves(seen, moves_now),
        hibernated_replicas=remembered_brokers(seen),
        metadata_digest=metadata_written(seen),
        broker_load=parts.brokers.load,
        conditions=conditions(seen.status.conditions, new_conditions, generation, seen.now_seconds),
    )


def _new_conditions(seen: ClusterSeen, parts: ComponentPlans) -> list[NewCondition]:
    spec = seen.cluster.spec
    unready = [part.condition for part in parts.all() if not part.complete]
    stalled = stall(seen, parts)
    return [
        _ready(seen, parts, unready, stalled),
        _reconciling(seen, unready),
        NewCondition(STALLED, True, stalled.reason, stalled.message)
        if stalled is not None
        else NewCondition(STALLED, False, GETS_ON, "nothing needs a person"),
        *(part.condition for part in (parts.metadata, parts.zookeeper, parts.bookies, parts.brokers, parts.proxies)),
        *([parts.read_only_brokers.condition] if spec.read_only_brokers is not None else []),
        NewCondition(PAUSED, True, PAUSED, "the operator looks, and touches nothing; set paused to false")
        if spec.paused
        else NewCondition(PAUSED, False, "Active", "the operator looks after the cluster"),
        _hibernated(seen, parts),
        settings_in_effect(cluster_settings_without_effect(seen.cluster)),
    ]


def stall(seen: ClusterSeen, parts: ComponentPlans) -> NewCondition | None:
    """What a person has to do something about; what the spec names first, for pods that fail may be its consequence."""
    stalled = next((part.stalled for part in parts.all() if part.stalled is not None), None)
    if not seen.troubles:
        return stalled
    words = [trouble.message for trouble in seen.troubles] + ([stalled.message] if stalled is not None else [])
    return NewCondition(STALLED, True, seen.troubles[0].reason, " | ".join(words))


def _asleep(parts: ComponentPlans) -> bool:
    """Whether nothing of the cluster runs."""
    return not any(part.status.replicas for part in parts.all())


def _ready(
    seen: ClusterSeen, parts: ComponentPlans, unready: Sequence[NewCondition], stalled: NewCondition | None
) -> NewCondition:
    if seen.cluster.spec.hibernated:
        # What the spec wishes is there: who waits for that waits no longer.
        words = "no pods run, as hibernated says; all volumes stay"
        return (
            NewCondition(READY, True, HIBERNATED, words)
            if _asleep(parts)
            else NewCondition(READY, False, STOPPING, "pods stop")
        )
    if stalled is not None:
        return NewCondition(READY, False, stalled.reason, stalled.message)
    if unready:
        return NewCondition(READY, False, unready[0].reason, f"{unready[0].type}: {unready[0].message}")
    return NewCondition(READY, True, ALL_READY, "all components are ready and up to date")


def _reconciling(seen: ClusterSeen, unready: Sequence[NewCondition]) -> NewCondition:
    if seen.cluster.spec.paused:
        return NewCondition(RECONCILING, False, PAUSED, "nothing is done, for paused is set")
    working = [current for current in unready if current.reason != HIBERNATED]
    if working:
        return NewCondition(RECONCILING, True, working[0].reason, f"{working[0].type}: {working[0].message}")
    return NewCondition(RECONCILING, False, "Idle", "all is as the spec says")


def _hibernated(seen: ClusterSeen, parts: ComponentPlans) -> NewCondition:
    if not seen.cluster.spec.hibernated:
        return NewCondition(HIBERNATED, False, "Awake", "the cluster is to run")
    if _asleep(parts):
        return NewCondition(HIBERNATED, True, HIBERNATED, "no pods run, all volumes stay; set hibernated to false")
    stopping = next(part.condition for part in reversed(parts.all()) if part.status.replicas)
    return NewCondition(HIBERNATED, False, STOPPING, f"{stopping.type}: {stopping.message}")


def _phase(seen: ClusterSeen, parts: ComponentPlans, new_conditions: Sequence[NewCondition]) -> str:
    spec = seen.cluster.spec
    if spec.paused:
        return PAUSED
    if spec.hibernated:
        return HIBERNATED if _asleep(parts) else "Hibernating"
    if stall(seen, parts) is not None:
        return STALLED
    if new_conditions[0].holds:
        return READY
    if (found := _PHASES.get(new_conditions[0].reason)) is not None:
        return found
    # What a pool does: it has its own word for that.
    at_work = (pool for pool in seen.pools if not pool.deleting and not holds(pool.status.conditions, READY))
    return next((pool.status.phase for pool in at_work if pool.status.phase), "Degraded")


def _moves(seen: ClusterSeen, moves_now: Sequence[Action]) -> list[BundleMove]:
    if seen.cluster.spec.balance.driver != "Operator":
        return list(seen.moves or seen.status.last_moves)[:MOVES_MAX]
    now = timestamp(seen.now_seconds)
    found = [move for action in moves_now if (move := _move(action, now)) is not None]
    return [*found, *seen.status.last_moves][:MOVES_MAX]


def without_moves(status: dict[str, Any], moves: Sequence[Action], now_seconds: float) -> dict[str, Any]:
    """A status of that time, as JSON, without these moves: they were decided and not carried out."""
    undone = [msgspec.to_builtins(_move(action, timestamp(now_seconds))) for action in moves]
    kept = [move for move in status.get("lastMoves", ()) if move not in undone]
    return {**status, "lastMoves": kept} if undone and "lastMoves" in status else status


def _move(action: Action, now: str) -> BundleMove | None:
    if isinstance(action, TransferBundle):
        return BundleMove(
            time=now,
            kind="unload",
            bundle=action.bundle,
            source=action.source_broker_id,
            destination=action.destination_broker_id,
            reason=action.reason,
        )
    if isinstance(action, SplitBundle):
        return BundleMove(time=now, kind="split", bundle=action.bundle, source=action.broker_id, reason=action.reason)
    return None
