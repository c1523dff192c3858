"""The part of a cluster's plan about brokers: how many, when they start and get new templates, who goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from magnetar.operator.children.brokers import broker_children
from magnetar.operator.children.naming import BROKER
from magnetar.operator.plan.actions import Action, EmitEvent
from magnetar.operator.plan.broker_scale import wanted_brokers
from magnetar.operator.plan.cluster.broker_drains import ScaleIn, broker_numbers
from magnetar.operator.plan.cluster.deployments import Deployment, RolloutGate
from magnetar.operator.plan.cluster.hibernation import brokers_may_stop
from magnetar.operator.plan.cluster.parts import (
    BROKERS_READY,
    SCALING,
    ComponentPlan,
    alive,
    component_status,
    stall_of,
    under_way,
)
from magnetar.operator.plan.conditions import NewCondition
from magnetar.operator.plan.facts import BrokerFacts, ClusterSeen, PodFacts, WorkloadFacts
from magnetar.operator.plan.rollout import broken, trouble
from magnetar.operator.resources.cluster import BrokerLoadStatus, BrokerMember

BROKERS_DEFAULT: Final = 2
"""Where nobody says otherwise: one may stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokersPlan(ComponentPlan):
    """What is to be done about the brokers."""

    load: BrokerLoadStatus | None = None
    members: Sequence[BrokerMember] = ()


def plan_brokers(seen: ClusterSeen, gate: RolloutGate) -> BrokersPlan:
    """What is to be done about the brokers: as many as are wanted, once they may start."""
    cluster = seen.cluster
    found = seen.children.workloads.get(("Deployment", cluster.broker))
    pods = alive(seen.children.of(BROKER))
    wanted, load, reason = _wanted(seen, pods, found)
    numbers = _numbers(seen, pods, found, wanted)
    deployment = Deployment(
        type=BROKERS_READY,
        manifests=broker_children(cluster, numbers.replicas),
        found=found,
        pods=pods,
        gate=gate,
        hibernated=cluster.spec.hibernated,
        now_seconds=seen.now_seconds,
    )
    current = deployment.condition(wanted, numbers.replicas)
    if not cluster.spec.hibernated and numbers.message and stall_of(current) is None:
        current = NewCondition(
            BROKERS_READY, False, SCALING, f"{numbers.replicas} brokers, {wanted} wanted: {numbers.message}"
        )
    if current.holds and (silent := [pod.name for pod in pods if pod.ready and pod.name not in seen.brokers]):
        current = replace(current, message=f"{current.message}; no answer at the control port of {', '.join(silent)}")
    told = _scaled(seen, found, numbers.replicas, reason) if not cluster.spec.hibernated else []
    return BrokersPlan(
        condition=current,
        status=component_status(
            pods, deployment.wanted_hash, numbers.replicas, "" if current.holds else current.message
        ),
        actions=[*numbers.actions, *deployment.actions(numbers.replicas), *told],
        stalled=stall_of(current),
        serving=any(pod.ready and not pod.deleting for pod in pods),
        busy=under_way(current),
        load=load,
        members=_members(seen, pods),
    )


def _wanted(
    seen: ClusterSeen, pods: Sequence[PodFacts], found: WorkloadFacts | None
) -> tuple[int, BrokerLoadStatus | None, str]:
    """How many there should be while the cluster is awake, and why: the spec says, or the autoscaling, or whoever
    scaled the Deployment."""
    spec = seen.cluster.spec.broker
    running = found.desired if found is not None else 0
    before = running or seen.status.hibernated_replicas or BROKERS_DEFAULT
    if spec.replicas is not None:
        return spec.replicas, None, "broker.replicas says so"
    if spec.autoscaling is None:
        return before, None, "somebody scaled the Deployment"
    if seen.cluster.spec.paused or seen.cluster.spec.hibernated:
        return before, seen.status.broker_load, ""
    # Those that go are gone already for what it decides, else it would decide the same again.
    facts = [seen.brokers[pod.name] for pod in pods if pod.name in seen.brokers and not pod.deleting]
    draining = sum(one.drain != "None" for one in facts)
    return wanted_brokers(spec, max(1, before - draining), facts, seen.status.broker_load, seen.now_seconds)


def _numbers(seen: ClusterSeen, pods: Sequence[PodFacts], found: WorkloadFacts | None, wanted: int) -> ScaleIn:
    if not seen.cluster.spec.hibernated:
        return broker_numbers(pods, seen.brokers, found, wanted)
    # Nothing is drained: nobody is to take it.
    if found is None or not found.desired or brokers_may_stop(seen):
        return ScaleIn(replicas=0)
    return ScaleIn(replicas=found.desired)


def _scaled(seen: ClusterSeen, found: WorkloadFacts | None, replicas: int, reason: str) -> list[Action]:
    if found is None or not found.desired or replicas == found.desired:
        return []
    words = f"brokers: {found.desired} to {replicas}" + (f", {reason}" if reason else "")
    return [EmitEvent("Normal", "ScaledOut" if replicas > found.desired else "ScaledIn", words)]


def _members(seen: ClusterSeen, pods: Sequence[PodFacts]) -> list[BrokerMember]:
    """In the order in which they were written before, newer ones at the end: the API server keeps a keyed list's order,
    and what only stands elsewhere must not look different for ever."""
    known = {member.name: number for number, member in enumerate(seen.status.broker_members)}
    ordered = sorted(pods, key=lambda pod: (known.get(pod.name, len(known)), pod.name))
    return [_member(pod, seen.brokers.get(pod.name)) for pod in ordered]


def _member(pod: PodFacts, facts: BrokerFacts | None) -> BrokerMember:
    if facts is None:
        state = "Ready" if pod.ready else "Down" if broken(pod) else "Starting"
        words = "it does not answer on its control port" if pod.ready else trouble(pod)
        return BrokerMember(name=pod.name, state=state, message=words if state != "Starting" else "")
    if facts.drain != "None":
        state = "Drained" if facts.drain == "Done" else "Draining"
        words = f"{facts.bundles_left} bundles left" if facts.drain == "Running" else ""
        if facts.blockers:
            words = f"{words}, held up by {', '.join(facts.blockers)}"
    else:
        state = "Ready" if pod.ready else "Starting"
        words = ""
    return BrokerMember(
        name=pod.name, state=state, bundles=facts.bundles, load_percent=facts.load_percent, message=words
    )
