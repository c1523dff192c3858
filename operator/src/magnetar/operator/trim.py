"""Objects as Kubernetes has them, trimmed to facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from magnetar.core.errors import Misuse
from magnetar.operator.children.naming import BOOKIE, COMPONENT_LABEL, INSTANCE_LABEL, POOL_LABEL, TEMPLATE_ANNOTATION
from magnetar.operator.kubernetes.kinds import Manifest
from magnetar.operator.plan.conditions import seconds
from magnetar.operator.plan.facts import ClaimFacts, PodFacts, ResourceFacts, WorkloadFacts
from magnetar.operator.plan.warnings import LatestWarning
from magnetar.operator.resources.quantities import size_bytes

_STARTS: Final = frozenset({"", "ContainerCreating", "PodInitializing"})
"""What a container waits for that is as it should be."""
_OUT_OF_MEMORY: Final = "OOMKilled"


def resource_facts(manifest: Manifest) -> ResourceFacts:
    """The facts of a custom resource."""
    metadata = manifest["metadata"]
    return ResourceFacts(
        generation=metadata.get("generation", 0),
        deleting="deletionTimestamp" in metadata,
        finalizers=tuple(metadata.get("finalizers") or ()),
        owner_uids=[owner["uid"] for owner in metadata.get("ownerReferences") or ()],
        annotations=metadata.get("annotations") or {},
    )


_MARK: Final = "●"
"""The mark that an error of our own processes begins with (`magnetar.process.console.show_error`)."""


def pod_facts(manifest: Manifest) -> PodFacts:
    """The facts of a pod."""
    metadata, spec, status = manifest["metadata"], manifest.get("spec") or {}, manifest.get("status") or {}
    its_labels = metadata.get("labels") or {}
    component = its_labels.get(COMPONENT_LABEL, "")
    annotations = metadata.get("annotations") or {}
    container = _container(status.get("containerStatuses") or [], component)
    waiting_reason, waiting_message = _waiting(status, container)
    ended = _ended(container)
    readiness = _condition(status, "Ready")
    return PodFacts(
        name=metadata["name"],
        uid=metadata["uid"],
        component=component,
        pool=its_labels.get(POOL_LABEL, ""),
        ordinal=_ordinal(metadata),
        template_hash=annotations.get(TEMPLATE_ANNOTATION, ""),
        image=next((found["image"] for found in spec.get("containers") or [] if found["name"] == component), ""),
        ready=readiness.get("status") == "True",
        readiness_changed_seconds=_seconds(readiness.get("lastTransitionTime")),
        deleting="deletionTimestamp" in metadata,
        stops_by_seconds=_seconds(metadata.get("deletionTimestamp")),
        phase=status.get("phase", "Pending"),
        node=spec.get("nodeName", ""),
        address=status.get("podIP", ""),
        restarts=container.get("restartCount", 0),
        running="running" in (container.get("state") or {}),
        waiting_reason=waiting_reason,
        waiting_message=waiting_message,
        exit_code=ended.get("exitCode"),
        exit_message=_last_words(ended.get("message") or "") or ended.get("reason") or "",
        created_seconds=_seconds(metadata.get("creationTimestamp")),
        annotations=annotations,
        config_maps=[volume["configMap"]["name"] for volume in spec.get("volumes") or [] if "configMap" in volume],
    )


def claim_facts(manifest: Manifest) -> ClaimFacts:
    """The facts of a claim, but for whether it can grow."""
    metadata, spec = manifest["metadata"], manifest.get("spec") or {}
    its_labels = metadata.get("labels") or {}
    component, pool = its_labels.get(COMPONENT_LABEL, ""), its_labels.get(POOL_LABEL, "")
    name: str = metadata["name"]
    ordinal = _number(name)
    owner = f"{pool if component == BOOKIE else its_labels.get(INSTANCE_LABEL, '')}-{component}"
    return ClaimFacts(
        name=name,
        uid=metadata["uid"],
        component=component,
        pool=pool,
        volume=name.removesuffix(f"-{owner}-{ordinal}"),
        ordinal=ordinal,
        requested_bytes=_bytes(((spec.get("resources") or {}).get("requests") or {}).get("storage")),
        capacity_bytes=_bytes(((manifest.get("status") or {}).get("capacity") or {}).get("storage")),
        deleting="deletionTimestamp" in metadata,
        created_seconds=_seconds(metadata.get("creationTimestamp")),
        storage_class=spec.get("storageClassName") or "",
        bound=(manifest.get("status") or {}).get("phase", "Bound") == "Bound",
    )


def warned(event: Manifest) -> LatestWarning:
    """The warning in an Event. Newer reporters have the time elsewhere."""
    series = event.get("series") or {}
    stamp = event.get("lastTimestamp") or series.get("lastObservedTime") or event.get("eventTime")
    stamp = stamp or (event.get("metadata") or {}).get("creationTimestamp")
    return LatestWarning(
        reason=event.get("reason") or "", message=event.get("message") or "", told_seconds=_seconds(stamp)
    )


def workload_facts(manifest: Manifest) -> WorkloadFacts:
    """The facts of a StatefulSet or a Deployment."""
    metadata, spec, status = manifest["metadata"], manifest.get("spec") or {}, manifest.get("status") or {}
    template = (spec.get("template") or {}).get("metadata") or {}
    return WorkloadFacts(
        kind=manifest["kind"],
        name=metadata["name"],
        uid=metadata["uid"],
        desired=spec.get("replicas", 1),
        replicas=status.get("replicas", 0),
        ready=status.get("readyReplicas", 0),
        updated=status.get("updatedReplicas", 0),
        settled=status.get("observedGeneration", 0) >= metadata.get("generation", 0),
        deleting="deletionTimestamp" in metadata,
        resource_version=metadata.get("resourceVersion", ""),
        template_hash=(template.get("annotations") or {}).get(TEMPLATE_ANNOTATION, ""),
        claim_sizes={
            claim["metadata"]["name"]: str(claim["spec"]["resources"]["requests"]["storage"])
            for claim in spec.get("volumeClaimTemplates") or []
        },
        stalled_message=_stalled(status),
    )


def _stalled(status: Mapping[str, Any]) -> str:
    refused = _condition(status, "ReplicaFailure")
    if refused.get("status") == "True":
        return str(refused.get("message", ""))
    progressing = _condition(status, "Progressing")
    return str(progressing.get("message", "")) if progressing.get("status") == "False" else ""


def _condition(status: Mapping[str, Any], type_: str) -> Mapping[str, Any]:
    return next((found for found in status.get("conditions") or [] if found.get("type") == type_), {})


def _container(statuses: Sequence[Mapping[str, Any]], component: str) -> Mapping[str, Any]:
    """The component's own among the pod's containers, which has its name."""
    return next((found for found in statuses if found.get("name") == component), {})


def _waiting(status: Mapping[str, Any], container: Mapping[str, Any]) -> tuple[str, str]:
    """What the pod waits for: a node, a container that comes before, its own."""
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        return scheduled.get("reason", ""), scheduled.get("message", "")
    for candidate in [*(status.get("initContainerStatuses") or []), container]:
        waiting = (candidate.get("state") or {}).get("waiting") or {}
        if waiting.get("reason", "") not in _STARTS:
            # A container that is killed for its memory waits in CrashLoopBackOff, which says less.
            killed = _ended(candidate).get("reason") == _OUT_OF_MEMORY
            return _OUT_OF_MEMORY if killed else waiting["reason"], waiting.get("message", "")
    waiting = (container.get("state") or {}).get("waiting") or {}
    return waiting.get("reason", ""), waiting.get("message", "")


def _ended(container: Mapping[str, Any]) -> Mapping[str, Any]:
    """How it ended last."""
    now = (container.get("state") or {}).get("terminated")
    return now or (container.get("lastState") or {}).get("terminated") or {}


def _ordinal(metadata: Mapping[str, Any]) -> int:
    owners = metadata.get("ownerReferences") or []
    return _number(metadata["name"]) if any(owner.get("kind") == "StatefulSet" for owner in owners) else -1


def _number(name: str) -> int:
    """At the end of a name; -1 for none."""
    text = name.rpartition("-")[2]
    return int(text) if text.isascii() and text.isdigit() else -1


def _bytes(quantity: str | int | None) -> int:
    """0 for none, and for what nobody writes."""
    try:
        return size_bytes(quantity) if quantity is not None else 0
    except Misuse:
        return 0


def _seconds(stamp: str | None) -> float:
    return seconds(stamp) if stamp else 0.0


def _last_words(log: str) -> str:
    """Our programs mark what they tell people; the lines of the log before that are of no use to them."""
    return log.rpartition(_MARK)[2].strip()
