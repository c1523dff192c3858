"""Views out of the API server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from magnetar.core.errors import MagnetarError, SettingError
from magnetar.operator.children.naming import COMPONENT_LABEL, INSTANCE_LABEL, NAME_LABEL, POOL_LABEL
from magnetar.operator.kubernetes.kinds import BOOKIE_POOL, PULSAR_CLUSTER, Manifest
from magnetar.operator.plugin.kubernetes import Kubernetes
from magnetar.operator.plugin.parse import cluster_view, pod_view
from magnetar.operator.plugin.views import ClusterSummary, PodView

OURS: Final = f"{NAME_LABEL}=magnetar"


def cluster_selector(cluster: str) -> str:
    """What the operator has labelled as a cluster's."""
    return f"{OURS},{INSTANCE_LABEL}={cluster}"


async def find_cluster(kubernetes: Kubernetes, name: str | None) -> Manifest:
    """The cluster of this name, else the only one of the namespace. `SettingError`."""
    namespace = kubernetes.namespace
    if name is not None:
        found = await kubernetes.get(PULSAR_CLUSTER, namespace, name)
        if found is not None:
            return found
    clusters = await kubernetes.list(PULSAR_CLUSTER, namespace)
    if name is None and len(clusters) == 1:
        return clusters[0]
    if name is None and clusters:
        names = ", ".join(sorted(cluster["metadata"]["name"] for cluster in clusters))
        raise SettingError(f"there are {len(clusters)} clusters in namespace {namespace}, name one: {names}")
    what = "no cluster" if name is None else f"no cluster {name}"
    raise SettingError(f"there is {what} in namespace {namespace}; {await _elsewhere(kubernetes, clusters)}")


async def _elsewhere(kubernetes: Kubernetes, here: Sequence[Manifest]) -> str:
    """Where clusters are, as far as the user may know."""
    try:
        found = here or await kubernetes.list(PULSAR_CLUSTER, None)
    except MagnetarError:
        found = ()
    if not found:
        return "give another namespace with -n"
    named = sorted(f"{one['metadata']['name']} (-n {one['metadata']['namespace']})" for one in found)
    return f"there are: {', '.join(named)}"


async def see_cluster(kubernetes: Kubernetes, name: str | None) -> ClusterSummary:
    """One cluster with all that belongs to it."""
    return await _complete(kubernetes, await find_cluster(kubernetes, name))


async def see_clusters(kubernetes: Kubernetes, *, everywhere: bool) -> list[ClusterSummary]:
    """All clusters of the namespace, or of all; of each only what its own resource says, and its age."""
    found = await kubernetes.list(PULSAR_CLUSTER, None if everywhere else kubernetes.namespace)
    return sorted((cluster_view(one) for one in found), key=lambda one: (one.namespace, one.name))


async def see_again(kubernetes: Kubernetes, view: ClusterSummary) -> ClusterSummary:
    """Look at a cluster again. `SettingError` if it is gone."""
    manifest = await kubernetes.get(PULSAR_CLUSTER, view.namespace, view.name)
    if manifest is None:
        raise SettingError(f"cluster {view.name} is gone")
    return await _complete(kubernetes, manifest)


async def _complete(kubernetes: Kubernetes, manifest: Manifest) -> ClusterSummary:
    name, namespace = manifest["metadata"]["name"], manifest["metadata"]["namespace"]
    pools, pods, services, events = await asyncio.gather(
        kubernetes.list(BOOKIE_POOL, namespace),
        kubernetes.list("Pod", namespace, cluster_selector(name)),
        kubernetes.list("Service", namespace, cluster_selector(name)),
        _events(kubernetes, namespace),
    )
    its_pools = [pool for pool in pools if pool["spec"].get("clusterName") == name]
    return cluster_view(manifest, its_pools, pods, events, services)


async def _events(kubernetes: Kubernetes, namespace: str) -> Sequence[Manifest]:
    """Not everybody may read them, and they are not what status stands on."""
    try:
        return await kubernetes.list("Event", namespace)
    except MagnetarError:
        return ()


async def find_pod(kubernetes: Kubernetes, name: str, component: str) -> PodView:
    """A pod of this component of any cluster. `SettingError` that names those that there are."""
    namespace = kubernetes.namespace
    manifest = await kubernetes.get("Pod", namespace, name)
    found = pod_view(manifest) if manifest is not None else None
    if found is not None and found.component == component and (component != "bookie" or found.pool):
        return found
    selector = f"{OURS},{COMPONENT_LABEL}={component}" + (f",{POOL_LABEL}" if component == "bookie" else "")
    names = sorted(pod["metadata"]["name"] for pod in await kubernetes.list("Pod", namespace, selector))
    what = f"{name} is no {component}'s pod" if found is not None else f"there is no pod {name}"
    there = f"there are: {', '.join(names)}" if names else f"there is no {component} at all: is it another namespace?"
    raise SettingError(f"{what} in namespace {namespace}; {there}")
