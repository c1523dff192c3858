"""What must be so when nothing goes wrong any more, as far as it is not so yet."""

from __future__ import annotations

from typing import Any, Final

from magnetar.operator.children.naming import (
    BOOKIE,
    BROKER,
    COMPONENT_LABEL,
    POOL_LABEL,
    PROXY,
    REPLACE_ANNOTATION,
    TEMPLATE_ANNOTATION,
    ZOOKEEPER,
)
from magnetar.operator.kubernetes.kinds import Manifest

from e2e.operator_simulation.workloads import is_leaving, is_ready
from e2e.operator_simulation.world import CLUSTER, NAMESPACE, World

CONFIGURATIONS_MAX: Final = 24
"""ConfigMaps of all components together: older ones may stay for a while, not for ever."""


def unmet(world: World, *, grown_too_far: bool = False) -> list[str]:
    """What is not as wished yet. A volume that cannot grow keeps its resource from being ready, and nothing else."""
    cluster = world.cluster()
    if cluster is None:
        return ["there is no cluster"]
    found = [] if grown_too_far else _conditions(cluster)
    found += _workload(world, "StatefulSet", f"{CLUSTER}-{ZOOKEEPER}", world.parameters.zookeepers)
    for pool in world.pools():
        found += [] if grown_too_far else _conditions(pool)
        name = pool["metadata"]["name"]
        found += _workload(world, "StatefulSet", f"{name}-{BOOKIE}", pool["spec"]["replicas"])
    found += _workload(world, "Deployment", f"{CLUSTER}-{BROKER}", cluster["spec"]["broker"].get("replicas"))
    if world.parameters.proxies:
        found += _workload(world, "Deployment", f"{CLUSTER}-{PROXY}", world.parameters.proxies)
    found += _volumes(world)
    found += _stored(world)
    found += world.replacements.unmet()
    for broker in world.software.brokers.running.values():
        if broker.drain != "None":
            found.append(f"broker {broker.pod} is being drained")
    configurations = len(world.store.all("ConfigMap"))
    if configurations > CONFIGURATIONS_MAX:
        found.append(f"there are {configurations} ConfigMaps")
    return found


def left_over(world: World, *, volumes: bool) -> list[str]:
    """What is there though the cluster was deleted; its volumes may be."""
    found = []
    for kind in world.store.kinds():
        if kind in ("StorageClass", "Event") or (kind == "PersistentVolumeClaim" and volumes):
            continue
        found += [f"{kind} {manifest['metadata']['name']} is there" for manifest in world.store.all(kind)]
    return found


def _conditions(resource: Manifest) -> list[str]:
    name = f"{resource['kind']} {resource['metadata']['name']}"
    generation, status = resource["metadata"]["generation"], resource.get("status", {})
    if status.get("observedGeneration") != generation:
        return [f"{name} was seen as of generation {status.get('observedGeneration')}, not {generation}"]
    ready = _condition(status, "Ready")
    if ready.get("status") != "True" or ready.get("observedGeneration") != generation:
        return [f"{name} is not ready: {ready.get('reason')}: {ready.get('message')}"]
    for type_ in ("Reconciling", "Stalled"):
        if _condition(status, type_).get("status") == "True":
            return [f"{name} is {type_}: {_condition(status, type_).get('message')}"]
    return []


def _condition(status: dict[str, Any], type_: str) -> dict[str, Any]:
    return next((found for found in status.get("conditions", ()) if found["type"] == type_), {})


def _workload(world: World, kind: str, name: str, wanted: int | None) -> list[str]:
    found = world.store.get(kind, NAMESPACE, name)
    if found is None or is_leaving(found):
        return [f"there is no {kind} {name}"]
    replicas = found["spec"]["replicas"]
    if replicas != wanted and (wanted is not None or replicas == 0):
        return [f"{kind} {name} is to have {replicas} pods, not {wanted}"]
    pods = [pod for pod in world.store.all("Pod") if pod["metadata"]["name"].startswith(f"{name}-")]
    if len(pods) != replicas:
        return [f"{kind} {name} has {len(pods)} pods, not {replicas}"]
    template = found["spec"]["template"]["metadata"]["annotations"][TEMPLATE_ANNOTATION]
    problems = []
    for pod in pods:
        metadata = pod["metadata"]
        if not is_ready(pod) or is_leaving(pod):
            problems.append(f"{metadata['name']} is not ready")
        if metadata["annotations"].get(TEMPLATE_ANNOTATION) != template:
            problems.append(f"{metadata['name']} is of an older template")
        if REPLACE_ANNOTATION in metadata["annotations"]:
            problems.append(f"{metadata['name']} is to be replaced")
    return problems


def _volumes(world: World) -> list[str]:
    """Each bookie has its claims, and there are no others."""
    wanted, found = set(), set()
    for pool in world.pools():
        name, storage = pool["metadata"]["name"], pool["spec"]["storage"]
        volumes = [
            volume if storage[volume]["count"] == 1 else f"{volume}-{number}"
            for volume in ("journal", "ledgers")
            for number in range(storage[volume]["count"])
        ]
        ordinals = range(pool["spec"]["replicas"])
        wanted |= {f"{volume}-{name}-{BOOKIE}-{ordinal}" for volume in volumes for ordinal in ordinals}
    for claim in world.store.all("PersistentVolumeClaim"):
        if claim["metadata"]["labels"].get(COMPONENT_LABEL) == BOOKIE and _has_pool(world, claim):
            found.add(claim["metadata"]["name"])
    return [f"claim {name} is missing" for name in sorted(wanted - found)] + [
        f"claim {name} was left behind" for name in sorted(found - wanted)
    ]


def _has_pool(world: World, claim: Manifest) -> bool:
    """Of a pool that was deleted with its cluster the volumes may stay."""
    pools = {pool["metadata"]["name"] for pool in world.pools()}
    return claim["metadata"]["labels"].get(POOL_LABEL) in pools


def _stored(world: World) -> list[str]:
    storage = world.software.storage
    metadata = storage.metadata
    if metadata is None:
        return ["ZooKeeper has no quorum"]
    found = storage.fully_replicated(metadata)
    found += [f"{bookie} is read-only" for bookie in storage.running if bookie not in storage.writable()]
    # Of a pool that was deleted while there was no cluster nobody could drain anything.
    pools = tuple(f"{pool['metadata']['name']}-{BOOKIE}-" for pool in world.pools())
    left = [bookie for bookie in metadata.cookies if bookie not in storage.running and bookie.startswith(pools)]
    return [*found, *(f"the cookie of {bookie} is left" for bookie in left)]
