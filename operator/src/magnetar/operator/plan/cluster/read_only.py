"""The part of a cluster's plan about read-only brokers: how many, when they start and get new templates.

They own no bundles, and nothing is lost with one: told to stop, it sends its consumers on to others by itself. So fewer
of them are made by a smaller number alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from magnetar.operator.children.access import service_url
from magnetar.operator.children.naming import READ_ONLY_BROKER
from magnetar.operator.children.read_only import read_only_children
from magnetar.operator.plan.actions import Action, Delete, EmitEvent
from magnetar.operator.plan.cluster.deployments import Deployment, RolloutGate
from magnetar.operator.plan.cluster.parts import (
    READ_ONLY_BROKERS_READY,
    ComponentPlan,
    alive,
    component_status,
    stall_of,
    under_way,
)
from magnetar.operator.plan.conditions import NewCondition, timestamp
from magnetar.operator.plan.facts import ClusterSeen, PodFacts, ReadOnlyBrokerFacts, WorkloadFacts
from magnetar.operator.plan.read_only_scale import wanted_read_only_brokers
from magnetar.operator.plan.rollout import broken, trouble
from magnetar.operator.resources.common import ComponentStatus
from magnetar.operator.resources.read_only import (
    ReadOnlyBrokerMember,
    ReadOnlyBrokersSpec,
    ReadOnlyBrokersStatus,
    ReadOnlyLoadStatus,
    ScaleChange,
)

READ_ONLY_BROKERS_DEFAULT: Final = 2
"""Where nobody says otherwise: one may stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOnlyBrokersPlan(ComponentPlan):
    """What is to be done about the read-only brokers."""

    told: ReadOnlyBrokersStatus | None = None
    """All that is said of them; None: there are to be none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _WantedNumber:
    wanted: int
    """While the cluster is awake."""
    load: ReadOnlyLoadStatus | None
    reason: str


def after_brokers(brokers: ComponentPlan) -> RolloutGate:
    """They start when a broker is ready, and are updated when all brokers are."""
    return RolloutGate(
        start="" if brokers.serving else "read-only brokers start once a broker is ready",
        update=""
        if brokers.complete
        else f"read-only brokers are updated after the brokers: {brokers.condition.message}",
    )


def plan_read_only_brokers(seen: ClusterSeen, gate: RolloutGate) -> ReadOnlyBrokersPlan:
    """As many as are wanted, once they may start; none where the spec has none."""
    cluster, spec = seen.cluster, seen.cluster.spec.read_only_brokers
    found = seen.children.workloads.get(("Deployment", cluster.read_only_broker))
    pods = alive(seen.children.of(READ_ONLY_BROKER))
    if spec is None:
        return _none(found, pods)
    number = _number(seen, spec, pods, found)
    replicas = _asleep_number(seen, spec, found) if cluster.spec.hibernated else number.wanted
    deployment = Deployment(
        type=READ_ONLY_BROKERS_READY,
        manifests=read_only_children(cluster, replicas),
        found=found,
        pods=pods,
        gate=gate,
        hibernated=cluster.spec.hibernated,
        now_seconds=seen.now_seconds,
    )
    current = deployment.condition(number.wanted, replicas)
    status = component_status(pods, deployment.wanted_hash, replicas, "" if current.holds else current.message)
    change = _change(seen, found, replicas, number.reason)
    return ReadOnlyBrokersPlan(
        condition=current,
        status=status,
        actions=[*deployment.actions(replicas), *_events(change)],
        stalled=stall_of(current),
        serving=any(pod.ready and not pod.deleting for pod in pods),
        busy=under_way(current),
        told=_told(seen, status, current, pods, number.load, change),
    )


def _none(found: WorkloadFacts | None, pods: Sequence[PodFacts]) -> ReadOnlyBrokersPlan:
    actions: list[Action] = []
    if found is not None and not found.deleting:
        actions.append(Delete(found.kind, found.name, found.uid, reason="the spec has no readOnlyBrokers"))
    return ReadOnlyBrokersPlan(
        condition=NewCondition(READ_ONLY_BROKERS_READY, True, "NoneWanted", "there are no read-only brokers"),
        status=component_status(pods, "", 0, ""),
        actions=actions,
        serving=True,
    )


def _before(seen: ClusterSeen) -> ReadOnlyBrokersStatus:
    """What was written of them last."""
    return seen.status.read_only_brokers or ReadOnlyBrokersStatus()


def _number(
    seen: ClusterSeen, spec: ReadOnlyBrokersSpec, pods: Sequence[PodFacts], found: WorkloadFacts | None
) -> _WantedNumber:
    """The spec says, or the autoscaling, or whoever scaled the Deployment."""
    before = _before(seen)
    running = (found.desired if found is not None else 0) or before.hibernated_replicas or READ_ONLY_BROKERS_DEFAULT
    if spec.replicas is not None:
        return _WantedNumber(wanted=spec.replicas, load=None, reason="readOnlyBrokers.replicas says so")
    if spec.autoscaling is None:
        return _WantedNumber(wanted=running, load=None, reason="somebody scaled the Deployment")
    if seen.cluster.spec.paused or seen.cluster.spec.hibernated:
        return _WantedNumber(wanted=running, load=before.load, reason="")
    facts = [
        seen.read_only_brokers[pod.name] for pod in pods if pod.name in seen.read_only_brokers and not pod.deleting
    ]
    wanted, load = wanted_read_only_brokers(spec.autoscaling, running, facts, before.load, seen.now_seconds)
    return _WantedNumber(wanted=wanted, load=load, reason=load.reason)


def _asleep_number(seen: ClusterSeen, spec: ReadOnlyBrokersSpec, found: WorkloadFacts | None) -> int:
    """None, once it is written down how many there were."""
    if found is None or spec.replicas is not None or _before(seen).hibernated_replicas is not None:
        return 0
    return found.desired


def _remembered(seen: ClusterSeen) -> int | None:
    """How many there are to be after waking, where the spec does not say: kept until they are there again."""
    spec, kept = seen.cluster.spec.read_only_brokers, _before(seen).hibernated_replicas
    if spec is None or spec.replicas is not None:
        return None
    found = seen.children.workloads.get(("Deployment", seen.cluster.read_only_broker))
    if found is None or not found.desired:
        return kept
    return (kept or found.desired) if seen.cluster.spec.hibernated else None


def _change(seen: ClusterSeen, found: WorkloadFacts | None, replicas: int, reason: str) -> ScaleChange | None:
    """What this pass does to the number, if anything."""
    asleep = seen.cluster.spec.hibernated or seen.cluster.spec.paused
    if asleep or found is None or not found.desired or replicas == found.desired:
        return None
    return ScaleChange(time=timestamp(seen.now_seconds), before=found.desired, after=replicas, reason=reason)


def _events(change: ScaleChange | None) -> list[Action]:
    if change is None:
        return []
    words = f"read-only brokers: {change.before} to {change.after}" + (f", {change.reason}" if change.reason else "")
    return [EmitEvent("Normal", "ScaledOut" if change.after > change.before else "ScaledIn", words)]


def _told(
    seen: ClusterSeen,
    status: ComponentStatus,
    current: NewCondition,
    pods: Sequence[PodFacts],
    load: ReadOnlyLoadStatus | None,
    change: ScaleChange | None,
) -> ReadOnlyBrokersStatus:
    cluster, before = seen.cluster, _before(seen)
    return ReadOnlyBrokersStatus(
        replicas=status.replicas,
        ready_replicas=status.ready_replicas,
        updated_replicas=status.updated_replicas,
        desired_replicas=status.desired_replicas,
        message=status.message,
        version=cluster.version if current.holds else before.version,
        service_url=service_url(cluster, cluster.address(cluster.read_only_broker)),
        members=_members(seen, pods),
        load=load,
        last_scale=change or before.last_scale,
        hibernated_replicas=_remembered(seen),
    )


def _members(seen: ClusterSeen, pods: Sequence[PodFacts]) -> list[ReadOnlyBrokerMember]:
    """In the order in which they were written before, newer ones at the end: the API server keeps a keyed list's
    order."""
    known = {member.name: number for number, member in enumerate(_before(seen).members)}
    ordered = sorted(pods, key=lambda pod: (known.get(pod.name, len(known)), pod.name))
    return [_member(pod, seen.read_only_brokers.get(pod.name)) for pod in ordered]


def _member(pod: PodFacts, facts: ReadOnlyBrokerFacts | None) -> ReadOnlyBrokerMember:
    state = "Stopping" if pod.deleting else "Ready" if pod.ready else "Down" if broken(pod) else "Starting"
    words = "its metrics are not to be had" if state == "Ready" and facts is None else ""
    return ReadOnlyBrokerMember(
        name=pod.name,
        state=state,
        connections=facts.connections if facts is not None else None,
        lag_seconds=round(facts.lag_seconds) if facts is not None else None,
        message=trouble(pod) if state == "Down" else words,
    )
