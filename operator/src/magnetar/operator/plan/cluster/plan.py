"""The plan of a PulsarCluster: what one pass does, and what is said of it, by what was seen. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from magnetar.operator.children.brokers import broker_children
from magnetar.operator.children.control import token_secret_name
from magnetar.operator.children.metadata_job import metadata_digest
from magnetar.operator.children.naming import FINALIZER
from magnetar.operator.children.policies import policy_children
from magnetar.operator.children.proxies import proxy_children
from magnetar.operator.children.read_only import read_only_children
from magnetar.operator.children.zookeeper import zookeeper_children
from magnetar.operator.kubernetes.kinds import Manifest
from magnetar.operator.plan.actions import (
    Action,
    BundleAction,
    EmitEvent,
    MakeControlToken,
    Plan,
    PodAction,
    SetBalanceDriver,
    SetFinalizer,
    SplitBundle,
    TransferBundle,
)
from magnetar.operator.plan.cluster.attached import plan_attached
from magnetar.operator.plan.cluster.brokers import plan_brokers
from magnetar.operator.plan.cluster.deletion import plan_deletion
from magnetar.operator.plan.cluster.deployments import RolloutGate
from magnetar.operator.plan.cluster.events import transitions
from magnetar.operator.plan.cluster.leftovers import finished_jobs, leftovers
from magnetar.operator.plan.cluster.parts import METADATA_READY, applied
from magnetar.operator.plan.cluster.proxies import plan_proxies
from magnetar.operator.plan.cluster.read_only import after_brokers, plan_read_only_brokers
from magnetar.operator.plan.cluster.start import (
    brokers_start_waits_for,
    brokers_update_waits_for,
    plan_bookies,
    plan_metadata,
)
from magnetar.operator.plan.cluster.status import ComponentPlans, cluster_status
from magnetar.operator.plan.cluster.zookeeper import plan_zookeeper
from magnetar.operator.plan.conditions import READY, holds, written
from magnetar.operator.plan.facts import ClusterSeen
from magnetar.operator.resources.cluster import BalanceSpec, PulsarClusterSpec, PulsarClusterStatus

IDLE_SECONDS: Final = 60.0
WAITING_SECONDS: Final = 30.0
BUSY_SECONDS: Final = 2.0
"""When to look again at the latest: nothing is to be done; something waits for what will wake us; work is under way
whose progress nobody tells of."""


LOAD_SECONDS: Final = 15.0
"""When to look again at the latest, in seconds, while the number of brokers goes by their load: a peak of minutes is to
be met, and brokers say anew so often. Still fewer calls of the API server than the guide promises."""


def plan_cluster(seen: ClusterSeen, moves_now: Sequence[Action] = ()) -> Plan:
    """What is to be done about a cluster. `moves_now` is what balancing has just decided; it is carried out if the
    brokers say that the operator balances.

    Children first, in the order in which they start; then Events; then what is asked of brokers, which may refuse.
    """
    if seen.resource.deleting:
        return plan_deletion(seen)
    parts = _parts(seen)
    moves = _balancing(seen, moves_now)
    status = cluster_status(seen, parts, moves)
    told = transitions(seen.status, status)
    if seen.cluster.spec.paused:
        return Plan(told=told, status=written(status), requeue_after_seconds=IDLE_SECONDS)
    objects, asked = zip(*(_split(part.actions) for part in parts.all()), strict=True)
    asked_of_all = [action for each in asked for action in each]
    return Plan(
        first=_foundations(seen),
        groups=[*objects, _rest(seen)],
        told=told,
        asked=[*asked_of_all, *_driver(seen), *moves, *_balanced(moves)],
        status=written(status),
        requeue_after_seconds=_wake(seen, parts, status),
    )


def _parts(seen: ClusterSeen) -> ComponentPlans:
    if seen.cluster.attached:
        return plan_attached(seen)
    zookeeper = plan_zookeeper(seen)
    metadata = plan_metadata(seen, zookeeper)
    bookies = plan_bookies(seen, metadata)
    gate = RolloutGate(
        start=brokers_start_waits_for(seen, zookeeper, metadata, bookies),
        update=brokers_update_waits_for(seen, zookeeper),
    )
    brokers = plan_brokers(seen, gate)
    return ComponentPlans(
        metadata=metadata,
        zookeeper=zookeeper,
        bookies=bookies,
        brokers=brokers,
        proxies=plan_proxies(seen, brokers),
        read_only_brokers=plan_read_only_brokers(seen, after_brokers(brokers)),
    )


def _foundations(seen: ClusterSeen) -> list[Action]:
    """What must be there before any pod."""
    found: list[Action] = []
    wanted = seen.cluster.spec.deletion_policy == "Delete"
    if wanted != (FINALIZER in seen.resource.finalizers):
        found.append(SetFinalizer(wanted))
    if ("Secret", token_secret_name(seen.cluster.name)) not in seen.children.objects:
        found.append(MakeControlToken())
    return found + applied(manifest for manifest in _policies(seen) if manifest["kind"] != "PodMonitor")


def _rest(seen: ClusterSeen) -> list[Action]:
    """What nothing depends on: monitoring, and what is not needed any more."""
    policies = _policies(seen)
    everything: list[Manifest] = [
        *zookeeper_children(seen.cluster),
        *broker_children(seen.cluster, None),
        *proxy_children(seen.cluster, 0),
        *read_only_children(seen.cluster, None),
        *policies,
    ]
    found = applied(manifest for manifest in policies if manifest["kind"] == "PodMonitor")
    found += leftovers(seen, everything)
    if holds(seen.status.conditions, METADATA_READY) and seen.status.metadata_digest == metadata_digest(seen.cluster):
        found += finished_jobs(seen)
    return found


def _policies(seen: ClusterSeen) -> list[Manifest]:
    return policy_children(seen.cluster, pod_monitors_known=seen.pod_monitors_known)


def _driver(seen: ClusterSeen) -> list[Action]:
    wanted = _driver_of(seen.cluster.spec.balance)
    if not seen.driver or seen.driver == wanted or seen.cluster.spec.hibernated:
        return []
    return [SetBalanceDriver(wanted)]


def _driver_of(balance: BalanceSpec) -> Literal["leader", "control"]:
    """The brokers' setting of who moves bundles (`magnetarLoadBalanceDriver`)."""
    # With "None", whoever might ask by the control port does not.
    return "leader" if balance.driver == "Leader" else "control"


def _balancing(seen: ClusterSeen, moves_now: Sequence[Action]) -> list[Action]:
    """Those that are carried out. Not while the leader, by what the brokers say, decides as well."""
    spec = seen.cluster.spec
    allowed = spec.balance.driver == "Operator" and seen.driver == "control" and not spec.hibernated and not spec.paused
    return list(moves_now) if allowed else []


def _balanced(moves: Sequence[Action]) -> list[Action]:
    transfers = [move for move in moves if isinstance(move, TransferBundle)]
    splits = [move for move in moves if isinstance(move, SplitBundle)]
    if not transfers and not splits:
        return []
    first = (transfers or splits)[0]
    words = f"{len(transfers)} bundles move, {len(splits)} are split; {first.bundle}: {first.reason}"
    return [EmitEvent("Normal", "Balanced", words)]


def _split(actions: Sequence[Action]) -> tuple[list[Action], list[Action]]:
    """What is about objects and what is asked of brokers, each with the Events that follow it."""
    objects: list[Action] = []
    asked: list[Action] = []
    last = objects
    for action in actions:
        if not isinstance(action, EmitEvent):
            last = asked if isinstance(action, PodAction | BundleAction) else objects
        last.append(action)
    return objects, asked


def _wake(seen: ClusterSeen, parts: ComponentPlans, status: PulsarClusterStatus) -> float:
    if any(part.busy for part in parts.all()):
        return BUSY_SECONDS
    longest = IDLE_SECONDS if holds(status.conditions, READY) else WAITING_SECONDS
    if _by_load(seen.cluster.spec) and not seen.cluster.spec.hibernated:
        longest = LOAD_SECONDS
    balance = seen.cluster.spec.balance
    return min(longest, float(balance.interval_seconds)) if balance.driver == "Operator" else longest


def _by_load(spec: PulsarClusterSpec) -> bool:
    """Whether any number of brokers goes by what they do."""
    read_only = spec.read_only_brokers
    return spec.broker.autoscaling is not None or (read_only is not None and read_only.autoscaling is not None)
