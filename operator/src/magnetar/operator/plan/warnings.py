"""What Kubernetes tells of objects by Events alone: why a pod waits, is not made, or a volume is not there. Pure.

A pod whose Secret is missing says `ContainerCreating` for ever; a StatefulSet whose pods are refused says nothing at
all. Events are asked for only about those that give no reason by themselves, some at a time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from magnetar.operator.children.naming import BOOKIE, INIT
from magnetar.operator.kubernetes.kinds import Manifest
from magnetar.operator.plan.facts import Children, ClaimFacts, PodFacts
from magnetar.operator.plan.rollout import IMAGE_FAILURES, UNSCHEDULABLE

ASKED_MAX: Final = 6
"""Objects whose Events are asked for in one pass: pods of one template say the same."""
PODS_ASKED_MAX: Final = 3
CLAIMS_ASKED_MAX: Final = 1
"""How many of them may be pods, and how many claims that grow."""
QUIET_SECONDS: Final = 2.0
"""A pod that is younger gives no reason because it has none."""
RECENT_SECONDS: Final = 600.0
"""The kubelet tries a mount every two minutes, and tells of one of many failures only; after that nobody tries."""

_REASONS: Final = frozenset(
    {
        "FailedAttachVolume",
        "FailedBinding",
        "FailedCreate",
        "FailedMapVolume",
        "FailedMount",
        "FailedToRetrieveImagePullSecret",
        "ProvisioningFailed",
        "VolumeResizeFailed",
    }
)
_SILENT: Final = frozenset({"", "ContainerCreating", "PodInitializing"})
_NAMED: Final = re.compile(r'(secret|configmap) "([^"]+)" not found')
_KINDS: Final = {"secret": "Secret", "configmap": "ConfigMap"}

Name: TypeAlias = tuple[str, str]
"""An object's kind and name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestWarning:
    """The latest of an object's warnings."""

    reason: str
    message: str
    told_seconds: float
    """When it was told last."""


def in_doubt(children: Children, now_seconds: float) -> list[tuple[Name, str]]:
    """Whose Events are to be asked for, with their uids, the most telling first."""
    pods = [pod for pod in children.pods if _waits_silently(pod, now_seconds)][:PODS_ASKED_MAX]
    found: list[tuple[Name, str]] = [(("Pod", pod.name), pod.uid) for pod in pods]
    for (kind, name), workload in sorted(children.workloads.items()):
        if kind == "StatefulSet" and not workload.deleting and workload.replicas < workload.desired:
            found.append(((kind, name), workload.uid))
    if not children.of(INIT):
        jobs = [job for job in children.jobs() if _lacks_pods(job)]
        found += [(("Job", job["metadata"]["name"]), job["metadata"]["uid"]) for job in jobs]
    growing = [claim for claim in children.claims if 0 < claim.capacity_bytes < claim.requested_bytes]
    found += [(("PersistentVolumeClaim", claim.name), claim.uid) for claim in growing[:CLAIMS_ASKED_MAX]]
    for pod in children.pods:
        if pod.waiting_reason == UNSCHEDULABLE:
            unbound = (claim for claim in children.claims if not claim.bound and _is_of(claim, pod))
            found += [(("PersistentVolumeClaim", claim.name), claim.uid) for claim in unbound]
    return found[:ASKED_MAX]


def with_warnings(children: Children, warned: Mapping[Name, Sequence[LatestWarning]], now_seconds: float) -> Children:
    """The children as they are with what Events say of them."""
    known = {name: found for name, told in warned.items() if (found := _latest(children, told, now_seconds))}
    if not known:
        return children
    workloads = {
        name: replace(workload, stalled_message=workload.stalled_message or known[name].message)
        if name in known
        else workload
        for name, workload in children.workloads.items()
    }
    pods = [_with_warning(pod, children.claims, known) for pod in children.pods]
    told = {name: found.message for (kind, name), found in known.items() if kind == "PersistentVolumeClaim"}
    claims = [replace(claim, warning=told.get(claim.name, "")) for claim in children.claims]
    jobs = {name: told.message for name, told in known.items() if name[0] == "Job"}
    return replace(children, workloads=workloads, pods=pods, claims=claims, warnings=jobs)


def _with_warning(pod: PodFacts, claims: Sequence[ClaimFacts], known: Mapping[Name, LatestWarning]) -> PodFacts:
    if (told := known.get(("Pod", pod.name))) is not None:
        if pod.waiting_reason in IMAGE_FAILURES:
            return replace(pod, waiting_message=f"{told.message} {pod.waiting_message}")
        return replace(pod, waiting_reason=told.reason, waiting_message=told.message)
    for claim in claims:
        told = known.get(("PersistentVolumeClaim", claim.name))
        if told is not None and pod.waiting_reason == UNSCHEDULABLE and _is_of(claim, pod):
            return replace(pod, waiting_reason=told.reason, waiting_message=f"claim {claim.name}: {told.message}")
    return pod


def _latest(children: Children, told: Sequence[LatestWarning], now_seconds: float) -> LatestWarning | None:
    recent = [
        warned
        for warned in told
        if warned.reason in _REASONS
        and now_seconds - warned.told_seconds < RECENT_SECONDS
        and not _is_there_by_now(children, warned.message)
    ]
    return max(recent, key=lambda warned: warned.told_seconds, default=None)


def _is_there_by_now(children: Children, message: str) -> bool:
    """What it lacked: the next try is about to succeed."""
    found = _NAMED.search(message)
    return found is not None and (_KINDS[found[1]], found[2]) in children.objects


def _waits_silently(pod: PodFacts, now_seconds: float) -> bool:
    if pod.ready or pod.deleting or pod.phase != "Pending" or now_seconds - pod.created_seconds < QUIET_SECONDS:
        return False
    return bool(pod.node) and pod.waiting_reason in _SILENT | IMAGE_FAILURES


def _lacks_pods(job: Manifest) -> bool:
    status = job.get("status") or {}
    return not (status.get("succeeded") or status.get("active") or status.get("failed"))


def _is_of(claim: ClaimFacts, pod: PodFacts) -> bool:
    same = claim.component == pod.component and claim.ordinal == pod.ordinal
    return same and (claim.component != BOOKIE or claim.pool == pod.pool)
