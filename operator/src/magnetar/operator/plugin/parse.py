"""Manifests as views. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, TypeVar

import msgspec
from magnetar.core.errors import PeerError
from magnetar.operator.children.naming import COMPONENT_LABEL, INSTANCE_LABEL, POOL_LABEL
from magnetar.operator.kubernetes.kinds import Manifest
from magnetar.operator.plugin.views import ClusterSummary, EventView, PodView, PoolSummary
from magnetar.operator.resources.bookie import BookieSpec, BookieStatus
from magnetar.operator.resources.cluster import PulsarClusterSpec, PulsarClusterStatus

T = TypeVar("T")

EVENTS_SHOWN_MAX: Final = 8
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


class OtherVersion(PeerError):
    """A resource that this version of the plugin cannot read."""


def seconds(text: str | None) -> float:
    """Since 1970, of an RFC 3339 time; 0 for none."""
    return datetime.fromisoformat(text).timestamp() if text else 0.0


def cluster_view(
    manifest: Manifest,
    pools: Iterable[Manifest] = (),
    pods: Iterable[Manifest] = (),
    events: Iterable[Manifest] = (),
    services: Iterable[Manifest] = (),
) -> ClusterSummary:
    """One cluster. Pools, pods and services must be its own; of events those about it are taken. `OtherVersion`."""
    metadata = manifest["metadata"]
    its_pools = sorted((pool_view(pool) for pool in pools), key=lambda pool: pool.name)
    its_pods = sorted((pod_view(pod) for pod in pods), key=lambda pod: pod.ordinal)
    return ClusterSummary(
        namespace=metadata["namespace"],
        name=metadata["name"],
        generation=metadata.get("generation", 0),
        created_seconds=seconds(metadata.get("creationTimestamp")),
        deleting="deletionTimestamp" in metadata,
        spec=_part(manifest, "spec", PulsarClusterSpec),
        status=_part(manifest, "status", PulsarClusterStatus),
        pools=tuple(its_pools),
        pods=tuple(its_pods),
        events=tuple(_events_about(metadata["name"], its_pools, its_pods, events)),
        addresses=tuple(_addresses(services)),
    )


def pool_view(manifest: Manifest) -> PoolSummary:
    """One pool. `OtherVersion`."""
    metadata = manifest["metadata"]
    return PoolSummary(
        name=metadata["name"],
        generation=metadata.get("generation", 0),
        deleting="deletionTimestamp" in metadata,
        spec=_part(manifest, "spec", BookieSpec),
        status=_part(manifest, "status", BookieStatus),
    )


def _part(manifest: Manifest, name: str, type_: type[T]) -> T:
    try:
        return msgspec.convert(manifest.get(name) or {}, type_)
    except msgspec.ValidationError as error:
        metadata = manifest["metadata"]
        raise OtherVersion(
            f"{manifest['kind']} {metadata['name']} is of another version than this plugin: {name}: {error}"
        ) from None


def pod_view(manifest: Manifest) -> PodView:
    """One pod."""
    metadata, spec, status = manifest["metadata"], manifest["spec"], manifest.get("status", {})
    labels = metadata.get("labels", {})
    component = labels.get(COMPONENT_LABEL, "")
    statuses = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
    reason, message = _trouble(status, statuses)
    ended = [seconds(end["finishedAt"]) for found in statuses if (end := _last_end(found)) and end.get("finishedAt")]
    names = [container["name"] for container in spec.get("containers", ())]
    names.sort(key=lambda name: name != component)
    annotations = {name: text for name, text in metadata.get("annotations", {}).items() if name != _LAST_APPLIED}
    return PodView(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        cluster=labels.get(INSTANCE_LABEL, ""),
        component=component,
        pool=labels.get(POOL_LABEL, ""),
        phase=status.get("phase", "Pending"),
        ready=any(found["type"] == "Ready" and found["status"] == "True" for found in status.get("conditions", ())),
        deleting="deletionTimestamp" in metadata,
        node=spec.get("nodeName", ""),
        address=status.get("podIP", ""),
        image=next((found["image"] for found in spec.get("containers", ()) if found["name"] == names[0]), ""),
        containers=tuple(names),
        restarts=sum(found.get("restartCount", 0) for found in statuses),
        restarted_seconds=max(ended, default=None),
        reason=reason,
        message=message,
        created_seconds=seconds(metadata.get("creationTimestamp")),
        annotations=annotations,
    )


def _last_end(status: Mapping[str, Any]) -> dict[str, Any] | None:
    for which in ("state", "lastState"):
        found: dict[str, Any] | None = status.get(which, {}).get("terminated")
        if found is not None:
            return found
    return None


def _trouble(status: Mapping[str, Any], statuses: Iterable[Mapping[str, Any]]) -> tuple[str, str]:
    """Why the pod does not run, if it does not: its containers know more than the pod."""
    for found in statuses:
        waiting = found.get("state", {}).get("waiting")
        end = _last_end(found)
        if waiting is not None and waiting.get("reason") not in ("ContainerCreating", "PodInitializing"):
            return waiting.get("reason", ""), _last_words(end) or _last_line(waiting.get("message", ""))
        if end is not None and "terminated" in found.get("state", {}) and end.get("reason") != "Completed":
            return end.get("reason", ""), _last_words(end)
    for condition in status.get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return condition.get("reason", ""), condition.get("message", "")
    return status.get("reason", ""), status.get("message", "")


def _last_words(end: Mapping[str, Any] | None) -> str:
    """The message of a container that has ended, which is the end of its log."""
    if end is None:
        return ""
    return _last_line(end.get("message", "")) or f"{end.get('reason', 'ended')}, exit code {end.get('exitCode')}"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def event_view(manifest: Manifest) -> EventView:
    """One event."""
    about = manifest.get("involvedObject", {})
    series = manifest.get("series") or {}
    times = (
        manifest.get("lastTimestamp"),
        series.get("lastObservedTime"),
        manifest.get("eventTime"),
        manifest.get("metadata", {}).get("creationTimestamp"),
    )
    return EventView(
        seconds=max((seconds(time) for time in times[:3] if time), default=seconds(times[3])),
        type=manifest.get("type", "Normal"),
        reason=manifest.get("reason", ""),
        about=f"{about.get('kind', '')}/{about.get('name', '')}",
        message=" ".join((manifest.get("message") or "").split()),
        count=series.get("count") or manifest.get("count") or 1,
    )


def _events_about(
    cluster: str, pools: Iterable[PoolSummary], pods: Iterable[PodView], events: Iterable[Manifest]
) -> list[EventView]:
    """The cluster's own and its pools' whatever they tell, and warnings about what belongs to it; the latest last."""
    own = {f"PulsarCluster/{cluster}", *(f"Bookie/{pool.name}" for pool in pools)}
    workloads = {f"{cluster}-{part}" for part in ("zookeeper", "broker", "proxy", "read-only-broker")} | {
        f"{p.name}-bookie" for p in pools
    }
    theirs = {f"{kind}/{name}" for kind in ("StatefulSet", "Deployment", "Service") for name in workloads}
    theirs |= {f"Pod/{pod.name}" for pod in pods}
    found = [event_view(event) for event in events]
    chosen = [e for e in found if e.about in own or (e.type != "Normal" and (e.about in theirs or _claim(e, theirs)))]
    return sorted(chosen, key=lambda event: event.seconds)[-EVENTS_SHOWN_MAX:]


def _claim(event: EventView, about: set[str]) -> bool:
    """A claim's name ends with its pod's."""
    kind, _, name = event.about.partition("/")
    return kind == "PersistentVolumeClaim" and any(
        pod.startswith("Pod/") and name.endswith(f"-{pod.removeprefix('Pod/')}") for pod in about
    )


def _addresses(services: Iterable[Manifest]) -> Iterable[str]:
    for service in services:
        for ingress in service.get("status", {}).get("loadBalancer", {}).get("ingress", ()):
            if found := ingress.get("hostname") or ingress.get("ip"):
                yield found
