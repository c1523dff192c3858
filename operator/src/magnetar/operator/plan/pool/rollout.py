"""Restarts of a pool's pods for a new template: behind gates, one at a time; and what keeps pods from working."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from magnetar.operator.plan.actions import Delete, StartBookieDrain
from magnetar.operator.plan.facts import PodFacts
from magnetar.operator.plan.pool.builder import PlanBuilder, named
from magnetar.operator.plan.pool.members import STARTING, PoolView
from magnetar.operator.plan.pool.scale import zookeeper_serves
from magnetar.operator.plan.rollout import broken, failed_update, failing, next_restart, trouble

STARTING_SECONDS: Final = 120.0
"""How long a pod that is not ready yet is looked at often."""


def plan_rollout(view: PoolView, wanted_hash: str, builder: PlanBuilder) -> None:
    """Restart the next pod of an older template, or say what is waited for."""
    stateful, now = view.stateful, view.seen.now_seconds
    if stateful is None:
        return
    pods = [pod for pod in view.pods if pod.ordinal < view.desired]
    outdated = outdated_pods(pods, wanted_hash)
    failed = failed_update(pods, wanted_hash, now)
    if failed is not None and outdated and not _ended_for_its_volume(view, failed):
        builder.stalled(
            "RolloutFailed",
            f"{trouble(failed)}. No further bookie is restarted: correct the Bookie or the PulsarCluster, what is "
            "broken is then restarted first",
        )
    if not outdated:
        return
    done = f"{len(pods) - len(outdated)} of {len(pods)} bookies are restarted"
    if builder.restarted or stateful.deleting or not stateful.settled or stateful.template_hash != wanted_hash:
        # A pod that is deleted before would come back as it was.
        builder.waiting("Updating", done, busy=True)
        return
    order = order_gate(view)
    gate = order or (_DRAIN_BEGINS if _begins_drain(builder) else safety_gate(view))
    pod = next_restart(pods, wanted_hash, may_restart=not gate)
    if pod is not None and order and not broken(pod):
        pod = None
    if pod is None:
        builder.waiting("Updating", f"{done}; {gate or 'the last one is starting'}", busy=not order)
        return
    builder.do(Delete("Pod", pod.name, pod.uid, reason="it is of an older template"))
    builder.tell("BookieRestarted", f"{pod.name} is restarted to match the spec; {done}")
    builder.waiting("Updating", f"{done}; {pod.name} is being restarted", busy=True)
    builder.restarted = True


_DRAIN_BEGINS: Final = "a drain begins"


def _begins_drain(builder: PlanBuilder) -> bool:
    return any(isinstance(action, StartBookieDrain) for action in builder.controls)


def outdated_pods(pods: Sequence[PodFacts], wanted_hash: str) -> list[PodFacts]:
    """The pods of another template."""
    return [pod for pod in pods if pod.template_hash != wanted_hash]


def order_gate(view: PoolView) -> str:
    """What comes before this pool in an upgrade; empty: nothing."""
    status, resource = view.seen.cluster_status, view.seen.cluster_resource
    if status is None or resource is None or status.observed_generation != resource.generation:
        return "the PulsarCluster has changed, and was not looked at yet"
    if not zookeeper_serves(view):
        return "ZooKeeper comes first: bookies follow when all its servers are updated and ready"
    for other in sorted(view.seen.others, key=lambda other: other.name):
        found = other.status
        # A pod that is being restarted is not there for a moment; a pool that goes wants none, but has some still.
        expected = max(found.replicas, 0 if other.deleting else other.replicas)
        being_made = any(member.state == STARTING for member in found.members)
        if found.ready_replicas < expected or being_made:
            return f"bookies of pool {other.name} are not ready: one in all pools at a time"
        is_old = found.updated_replicas < expected or found.cluster_generation != resource.generation
        if other.name < view.seen.owner.name and found.replicas and is_old and not other.deleting:
            return f"pool {other.name} comes first"
    return ""


def safety_gate(view: PoolView) -> str:
    """Why a bookie of the pool must not be taken away for a while; empty: it may."""
    waits = _bookies_gate(view)
    if waits:
        return waits
    missing = view.seen.under_replicated_ledgers
    if missing is None:
        return "no bookie could say whether ledgers lack replicas"
    if missing:
        return f"{missing} ledgers lack replicas"
    return ""


def _bookies_gate(view: PoolView) -> str:
    ready = {
        member.ordinal
        for member in view.members
        if member.pod is not None and member.pod.ready and not member.pod.deleting and member.facts is not None
    }
    away = [f"{view.name}-{number}" for number in range(view.desired) if number not in ready]
    if away:
        return f"not ready: {named(away)}"
    if any(member.facts is not None and member.facts.drain != "None" for member in view.members):
        return "a bookie is being drained"
    # What cannot be healed for now is no reason to wait for ever.
    healing = [
        member.name
        for member in view.members
        if member.facts is not None and member.facts.limbo_ledgers > member.facts.limbo_ledgers_unhealed
    ]
    if healing:
        return f"being healed from the other bookies: {named(healing)}"
    quorum = view.cluster.spec.bookkeeper.write_quorum
    elsewhere = view.seen.writable_elsewhere
    # So few bookies that one can never be spared: it goes all the same, one at a time, or nothing could be updated.
    if view.writable + elsewhere - 1 < quorum <= view.desired + elsewhere - 1:
        return f"{view.writable + elsewhere} bookies take writes, which are kept {quorum} times: none can be spared"
    return ""


def count_matters(view: PoolView, wanted_hash: str) -> bool:
    """Whether a restart waits for nothing but the number of ledgers that lack replicas."""
    pods = [pod for pod in view.pods if pod.ordinal < view.desired]
    return bool(outdated_pods(pods, wanted_hash)) and not order_gate(view) and not _bookies_gate(view)


def plan_troubles(view: PoolView, replicas: int, builder: PlanBuilder) -> None:
    """Say what keeps pods from working, but for a rollout that fails and lost volumes."""
    now = view.seen.now_seconds
    for member in view.members:
        pod = member.pod
        if pod is None or member.ordinal >= replicas or member.last_volume_code is not None:
            continue
        if failing(pod, now) and not any(pod.name in note.message for note in builder.stalls):
            builder.stalled("PodFailing", trouble(pod))
    expected = min(replicas, view.desired)
    pods = {pod.ordinal: pod for pod in view.pods}
    away = [number for number in range(expected) if number not in pods or not pods[number].ready]
    if away and view.stateful is not None and view.stateful.stalled_message:
        builder.stalled("PodFailing", view.stateful.stalled_message)
    if away:
        young = any(number not in pods or now - pods[number].created_seconds < STARTING_SECONDS for number in away)
        names = named([f"{view.name}-{number}" for number in away])
        builder.waiting("Starting", f"{expected - len(away)} of {expected} bookies are ready; not {names}", busy=young)
        return
    silent = [member.name for member in view.members if member.ordinal < expected and member.facts is None]
    if silent:
        builder.waiting("NoAnswer", f"no answer at the control port of {named(silent)}", busy=True)
        return
    _say_full(view, builder)


def _say_full(view: PoolView, builder: PlanBuilder) -> None:
    """Bookies that answer and take no writes, of which too few do: nothing gets on, a drain neither. Autoscaling adds
    some by itself."""
    refusing = [
        member.name
        for member in view.members
        if member.facts is not None and not member.facts.writable and member.facts.drain == "None"
    ]
    found = view.writable + view.seen.writable_elsewhere
    if refusing and found < view.ensemble_size and view.seen.spec.autoscaling is None:
        builder.stalled(
            "TooFewBookies",
            f"{named(refusing)} take no writes, so that {found} bookies of the cluster do, and ledgers are spread over "
            f"{view.ensemble_size}: add bookies, or make room on their disks",
        )


def _ended_for_its_volume(view: PoolView, pod: PodFacts) -> bool:
    return any(member.pod is pod and member.last_volume_code is not None for member in view.members)
