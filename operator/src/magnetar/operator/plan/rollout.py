"""Restarts of StatefulSets' pods, which the operator does itself (`OnDelete`): which is next, and what keeps one from
starting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from magnetar.operator.plan.facts import PodFacts

UNSCHEDULABLE: Final = "Unschedulable"

IMAGE_FAILURES: Final = frozenset({"ErrImagePull", "ImagePullBackOff"})
"""What a container waits for whose image cannot be had."""

_FAILURES: Final = IMAGE_FAILURES | {
    "CrashLoopBackOff",
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImageNeverPull",
    "ImageInspectError",
    "InvalidImageName",
    "OOMKilled",
    "RunContainerError",
}
"""What a container may wait for that does not end by itself. Others, such as ContainerCreating, do."""

_VOLUME_FAILURES: Final = frozenset(
    {"FailedAttachVolume", "FailedBinding", "FailedMapVolume", "FailedMount", "ProvisioningFailed"}
)
"""By Events: what may end by itself, as nodes and storage are slow, unless something is missing."""

_MISSING: Final = ("not found", "non-existent", "no such")
"""In the words of an Event about a volume: what is named does not exist, or lacks a key."""

_HINTS: Final = {
    "CreateContainerConfigError": "a Secret or ConfigMap that it needs is missing",
    "FailedAttachVolume": "its volume cannot be attached to its node: see the storage's driver",
    "FailedBinding": "make a volume for the claim, or name a storage class that makes them",
    "FailedMount": "make what is missing in this namespace, or correct the name in pod.volumes; the pod starts within "
    "two minutes then",
    "ProvisioningFailed": "make the storage class, or make the pool anew with another storageClassName",
    "ErrImageNeverPull": "load the image onto the node, or set imagePullPolicy",
    "ErrImagePull": "check version, imageRepository and imagePullSecrets",
    "ImagePullBackOff": "check version, imageRepository and imagePullSecrets",
    "InvalidImageName": "check version and imageRepository",
    "OOMKilled": "raise resources.limits.memory",
    UNSCHEDULABLE: "add nodes or room on them, or lower resources.requests",
}

_VOLUME_HINTS: Final = {
    "volume node affinity": "its volume is on a node that it cannot be on: bring that node back or make room on it; if "
    "the node is lost for good, delete the pod and its claims, and what they held is copied from others",
    "PersistentVolumeClaim": "its volumes are not there: `kubectl describe pvc` says why; check storageClassName, and "
    "that the class is there and can make volumes",
    "persistentvolumeclaim": "its volumes are not there: `kubectl describe pvc` says why",
}
"""By words of the scheduler about what cannot be placed."""

RESTARTS_MAX: Final = 2
"""A container that has ended so often and is not ready will not be by waiting: between two ends it looks as if it only
started."""

VOLUME_SECONDS: Final = 120
"""How long a node may try to mount a volume that is there before a person should know."""

SCHEDULING_SECONDS: Final = 30
"""How long a pod may wait for a node or a volume before that is a failure: volumes are often made only when the pod is
there."""

STOPPING_SECONDS: Final = 60
"""How long after its time a pod that is deleted may still be there: its node says when it has stopped, unless it is
lost."""


def next_restart(
    pods: Sequence[PodFacts], wanted_hash: str, *, last: str | None = None, may_restart: bool
) -> PodFacts | None:
    """The pod of an older template to be deleted now, or None: wait, or all are as they should be.

    Pods that do not work go first, whatever `may_restart` says: they are not missed, and a corrected resource repairs
    them. Then, with `may_restart` (the caller has seen all pods that there should be, and what else must be well), one
    at a time while all are ready: the highest number first, the pod named `last` at the end. While one is going,
    nothing else is restarted. The same facts always give the same pod, so that a pass with an old view deletes none
    more.
    """
    if any(pod.deleting for pod in pods):
        return None
    outdated = [pod for pod in pods if pod.template_hash != wanted_hash]
    outdated.sort(key=lambda pod: (pod.name == last, -pod.ordinal))
    # One that is merely not ready yet may be about to be, and the others may lean on it: only if none of the new
    # template is starting, or if there is nothing to lose.
    starting = any(not pod.ready and pod.template_hash == wanted_hash for pod in pods)
    nothing_to_lose = not any(pod.ready for pod in pods)
    for pod in outdated:
        if not pod.ready and (broken(pod) or nothing_to_lose or not starting):
            return pod
    if may_restart and outdated and all(pod.ready for pod in pods):
        return outdated[0]
    return None


def broken(pod: PodFacts) -> bool:
    """Not ready, and not by waiting only."""
    if pod.ready:
        return False
    waits = pod.waiting_reason in _FAILURES | _VOLUME_FAILURES or pod.waiting_reason == UNSCHEDULABLE
    return waits or pod.phase == "Failed" or (pod.restarts >= RESTARTS_MAX and pod.exit_code not in (None, 0))


def failing(pod: PodFacts, now_seconds: float) -> bool:
    """Broken, and for long enough that a person should know; or it does not go, and nothing takes its place."""
    if pod.deleting:
        return 0 < pod.stops_by_seconds < now_seconds - STOPPING_SECONDS
    if not broken(pod):
        return False
    waited_seconds = now_seconds - pod.created_seconds
    if pod.waiting_reason in _VOLUME_FAILURES:
        return waited_seconds >= VOLUME_SECONDS or any(words in pod.waiting_message for words in _MISSING)
    return pod.waiting_reason != UNSCHEDULABLE or waited_seconds >= SCHEDULING_SECONDS


def failed_update(pods: Sequence[PodFacts], wanted_hash: str, now_seconds: float) -> PodFacts | None:
    """A pod of the wanted template that fails: the rollout stops there."""
    return next((pod for pod in pods if pod.template_hash == wanted_hash and failing(pod, now_seconds)), None)


def trouble(pod: PodFacts) -> str:
    """What a pod that is not ready says, for people: its name, what it waits for, its last words, what to do."""
    if pod.deleting:
        return (
            f"{pod.name} is deleted, and its node {pod.node} does not say that it has stopped: bring the node back; or "
            "if that is lost for good, delete it (`kubectl delete node`), and the pod starts elsewhere"
        )
    parts = [pod.name]
    if pod.waiting_reason:
        parts.append(pod.waiting_reason)
    if pod.waiting_message and pod.waiting_reason != "CrashLoopBackOff":
        parts.append(pod.waiting_message)
    if pod.exit_message:
        parts.append(f"its last words: {pod.exit_message.strip()}")
    elif pod.exit_code is not None:
        parts.append(f"its container ended with code {pod.exit_code}")
    if hint := _hint(pod):
        parts.append(hint)
    return ": ".join(parts) if len(parts) > 1 else f"{pod.name} is not ready"


def _hint(pod: PodFacts) -> str:
    if pod.waiting_reason == UNSCHEDULABLE:
        for words, hint in _VOLUME_HINTS.items():
            if words in pod.waiting_message:
                return hint
    return _HINTS.get(pod.waiting_reason, "")
