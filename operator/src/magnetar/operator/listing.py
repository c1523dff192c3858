"""What exists of a cluster or a pool: one list per kind."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec
from magnetar.operator.api import ApiServer
from magnetar.operator.children.control import token_of, token_secret_name
from magnetar.operator.children.naming import INSTANCE_LABEL, NAME_LABEL, POOL_LABEL, label_text
from magnetar.operator.kubernetes.errors import Refused
from magnetar.operator.kubernetes.kinds import BOOKIE_POOL, Manifest
from magnetar.operator.plan.facts import Children, WorkloadFacts
from magnetar.operator.plan.warnings import in_doubt, with_warnings
from magnetar.operator.trim import claim_facts, pod_facts, warned, workload_facts

CLUSTER_KINDS: Final = (
    "ConfigMap",
    "Deployment",
    "Job",
    "NetworkPolicy",
    "PersistentVolumeClaim",
    "Pod",
    "PodDisruptionBudget",
    "Service",
    "StatefulSet",
)
"""What a cluster is made of, but for PodMonitors, which not every server knows, and the token's Secret, which is got by
its name: to list Secrets is more than the operator may."""
POOL_KINDS: Final = ("ConfigMap", "PersistentVolumeClaim", "Pod", "PodDisruptionBudget", "Service", "StatefulSet")
"""What a pool is made of."""
CLAIM: Final = "PersistentVolumeClaim"
WORKLOADS: Final = frozenset({"Deployment", "StatefulSet"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Objects:
    """The objects that were listed."""

    children: Children
    versions: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """By kind and name: what changes when anything of an object changes that the operator sets."""
    token: str = ""
    """The token of the control ports; empty: there is none yet."""


async def look_at(
    api: ApiServer,
    namespace: str,
    cluster: str,
    *,
    pool: str = "",
    sizes: Mapping[tuple[str, str], int],
    now_seconds: float,
) -> Objects:
    """All children of a cluster (without those of its pools, but for their claims), or of a pool. `sizes` are
    those that claims are to have, in bytes, by component and volume: where one is to grow, its class is asked whether
    it can."""
    kinds = list(POOL_KINDS if pool else CLUSTER_KINDS)
    if not pool and await api.knows("PodMonitor"):
        kinds.append("PodMonitor")
    wanted = {NAME_LABEL: "magnetar", INSTANCE_LABEL: cluster} | ({POOL_LABEL: pool} if pool else {})
    selector = label_text(wanted)
    without_pools = selector if pool else f"{selector},!{POOL_LABEL}"
    token, lists = await asyncio.gather(
        api.get("Secret", namespace, token_secret_name(cluster)),
        asyncio.gather(
            *(api.list(kind, namespace, selector if kind == CLAIM else without_pools) for kind in kinds),
        ),
    )
    listed: dict[str, Sequence[Manifest]] = dict(zip(kinds, lists, strict=True))
    pods = listed.pop("Pod")
    claims = [claim_facts(claim) for claim in listed.pop(CLAIM)]
    growing = {
        claim.storage_class for claim in claims if claim.requested_bytes < sizes.get((claim.component, claim.volume), 0)
    }
    expandable = await _expandable(api, growing)
    objects: dict[tuple[str, str], Manifest] = {}
    workloads: dict[tuple[str, str], WorkloadFacts] = {}
    versions: dict[tuple[str, str], str] = {}
    for kind, manifests in listed.items():
        for manifest in manifests:
            key = (kind, manifest["metadata"]["name"])
            versions[key] = version(manifest)
            if kind in WORKLOADS:
                workloads[key] = workload_facts(manifest)
            else:
                objects[key] = manifest
    if token is not None:
        objects["Secret", token_secret_name(cluster)] = token
    children = Children(
        objects=objects,
        pods=[pod_facts(pod) for pod in pods],
        claims=[replace(claim, expandable=expandable.get(claim.storage_class, False)) for claim in claims],
        workloads=workloads,
    )
    children = await _with_warnings(api, namespace, children, now_seconds)
    return Objects(children=children, versions=versions, token=token_of(token) if token is not None else "")


async def _with_warnings(api: ApiServer, namespace: str, children: Children, now_seconds: float) -> Children:
    """With what is told by Events alone; without it where the operator may not read them."""
    doubtful = in_doubt(children, now_seconds)
    try:
        told = await asyncio.gather(*(api.warnings(namespace, uid) for _, uid in doubtful))
    except Refused:
        return children
    events = {name: [warned(event) for event in events] for (name, _), events in zip(doubtful, told, strict=True)}
    return with_warnings(children, events, now_seconds)


def version(manifest: Manifest) -> str:
    """What changes when anybody changes what the operator sets of an object: its generation, or its resourceVersion if
    it has none; labels and owners, which generations do not count."""
    metadata = manifest["metadata"]
    number = metadata.get("generation") or metadata.get("resourceVersion", "")
    names = [metadata.get("labels") or {}, metadata.get("ownerReferences") or []]
    return f"{metadata.get('uid')} {number} {msgspec.json.encode(names, order='deterministic').decode()}"


async def _expandable(api: ApiServer, classes: set[str]) -> dict[str, bool]:
    """Whether volumes of these classes can grow. Where the operator may not read classes, it takes them to: the server
    refuses it else, and says why."""
    found = {}
    for name in sorted(classes - {""}):
        try:
            manifest = await api.get("StorageClass", "", name)
        except Refused:
            found[name] = True
        else:
            found[name] = bool((manifest or {}).get("allowVolumeExpansion"))
    return found


async def pools_of(api: ApiServer, namespace: str, cluster: str) -> list[Manifest]:
    """The cluster's Bookie resources, those of others too. They are told by their spec: labels are their makers'."""
    found = await api.list(BOOKIE_POOL, namespace)
    return [pool for pool in found if (pool.get("spec") or {}).get("clusterName") == cluster]
