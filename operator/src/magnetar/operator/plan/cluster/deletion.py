"""The end of a cluster. Without its volumes nothing is to be done: what it owns goes with it, claims stay.

All of it goes at once then, in no order: a finalizer for an order would be one more that holds a namespace for as long
as no operator runs. None is needed, as processes stop within seconds though ZooKeeper may be gone before them
(`MetadataStore.limit_waiting`), and what they have acknowledged is on their volumes.
"""

from __future__ import annotations

import msgspec
from magnetar.operator.children.naming import BROKER, FINALIZER, PROXY, READ_ONLY_BROKER
from magnetar.operator.plan.actions import Action, Delete, EmitEvent, Plan, SetFinalizer
from magnetar.operator.plan.cluster.parts import POD_FAILING, failures
from magnetar.operator.plan.conditions import READY, RECONCILING, STALLED, NewCondition, condition, conditions, written
from magnetar.operator.plan.facts import ClusterSeen, WorkloadFacts

DELETING = "Deleting"
_REASON = "the cluster is deleted"
_AGAIN_SECONDS = 2.0
_GONE_SECONDS = 60.0


def plan_deletion(seen: ClusterSeen) -> Plan:
    """With `deletionPolicy: Delete`: pools, workloads, and when no pod is left the volumes; then the resource may go.
    Also while it is paused, and without any drain: nothing is to be kept."""
    held = FINALIZER in seen.resource.finalizers
    if not held or seen.cluster.spec.deletion_policy == "Retain":
        words = "volumes stay; a cluster of the same name finds them"
        actions: list[Action] = [SetFinalizer(False)] if held else []
    else:
        actions, words = _steps(seen)
    found = condition(seen.status.conditions, READY)
    told = []
    if held and (found is None or found.reason != DELETING):
        told.append(EmitEvent("Normal", DELETING, f"the cluster is being deleted: {words}"))
    return Plan(
        first=actions,
        told=told,
        status=_status(seen, words),
        requeue_after_seconds=_AGAIN_SECONDS if held else _GONE_SECONDS,
    )


def _steps(seen: ClusterSeen) -> tuple[list[Action], str]:
    """Brokers and proxies first: they close what they have open on bookies and ZooKeeper, which have to be there."""
    first = [found for found in _workloads(seen) if found.kind == "Deployment"]
    jobs = [job["metadata"] for job in seen.children.jobs()]
    actions: list[Action] = [
        Delete(found.kind, found.name, found.uid, reason=_REASON) for found in first if not found.deleting
    ]
    actions += [
        Delete("Job", job["name"], job["uid"], reason=_REASON) for job in jobs if "deletionTimestamp" not in job
    ]
    serving = [pod for pod in seen.children.pods if pod.component in {BROKER, PROXY, READ_ONLY_BROKER}]
    if first or serving:
        return actions, f"bookies and ZooKeeper stop once {len(serving)} brokers and proxies are gone"
    actions += [Delete("Bookie", pool.name, pool.uid, reason=_REASON) for pool in seen.pools if not pool.deleting]
    actions += [
        Delete(found.kind, found.name, found.uid, reason=_REASON) for found in _workloads(seen) if not found.deleting
    ]
    left = len(seen.pools) + len(seen.children.workloads) + len(jobs)
    if not left:
        # Of a StatefulSet that was just being made anew: nothing else would ever stop them.
        alone = [pod for pod in seen.children.pods if not pod.deleting]
        actions += [Delete("Pod", pod.name, pod.uid, reason=_REASON) for pod in alone]
    if left or seen.children.pods:
        return actions, f"volumes are deleted once {left} workloads and {len(seen.children.pods)} pods are gone"
    claims = seen.children.claims
    actions += [
        Delete("PersistentVolumeClaim", claim.name, claim.uid, reason="deletionPolicy is Delete")
        for claim in claims
        if not claim.deleting
    ]
    if claims:
        return actions, f"{len(claims)} volumes are being deleted"
    return [SetFinalizer(False)], "nothing is left of it"


def _workloads(seen: ClusterSeen) -> list[WorkloadFacts]:
    return [found for _, found in sorted(seen.children.workloads.items())]


def _status(seen: ClusterSeen, words: str) -> dict[str, object]:
    stuck = failures([pod for pod in seen.children.pods if pod.deleting], seen.now_seconds)
    new_conditions = [
        NewCondition(READY, False, DELETING, words),
        NewCondition(RECONCILING, True, DELETING, words),
        NewCondition(STALLED, True, POD_FAILING, stuck) if stuck else NewCondition(STALLED, False, DELETING, words),
    ]
    generation = seen.resource.generation
    found = msgspec.structs.replace(
        seen.status,
        observed_generation=generation,
        phase=DELETING,
        conditions=conditions(seen.status.conditions, new_conditions, generation, seen.now_seconds),
    )
    return written(found)
