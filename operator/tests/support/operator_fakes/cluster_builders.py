"""A whole cluster as a plan sees it: all is well, and tests change what they are about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
from magnetar.operator.children.brokers import broker_children
from magnetar.operator.children.metadata_job import metadata_digest
from magnetar.operator.children.naming import BROKER, PROXY, ZOOKEEPER
from magnetar.operator.children.proxies import proxy_children
from magnetar.operator.children.zookeeper import zookeeper_children
from magnetar.operator.kubernetes.kinds import Manifest
from magnetar.operator.plan.actions import Action, Apply, Create, EmitEvent, Plan
from magnetar.operator.plan.cluster.parts import one_of, template_hash
from magnetar.operator.plan.cluster.plan import plan_cluster
from magnetar.operator.plan.facts import (
    BrokerFacts,
    Children,
    ClusterSeen,
    PodFacts,
    PoolFacts,
    ResourceFacts,
    WorkloadFacts,
    ZookeeperFacts,
)
from magnetar.operator.resources.bookie import BookieStatus
from magnetar.operator.resources.cluster import PulsarClusterStatus
from magnetar.operator.resources.common import Condition

from operator_fakes.plan_builders import NOW, make_claim, make_cluster, make_pod, make_workload

GENERATION = 3
A = TypeVar("A")


def fresh(**spec: Any) -> ClusterSeen:
    """Nothing is there yet but the resource."""
    return ClusterSeen(
        cluster=make_cluster(**spec),
        resource=ResourceFacts(generation=GENERATION),
        status=PulsarClusterStatus(),
        children=Children(),
        now_seconds=NOW,
    )


def healthy(*, brokers: int = 2, **spec: Any) -> ClusterSeen:
    """Everything runs, has for long, and was told of."""
    seen = fresh(**spec)
    cluster = seen.cluster
    zookeeper = template_hash(one_of(zookeeper_children(cluster), "StatefulSet")) if cluster.runs_zookeeper else ""
    names = [f"{cluster.zookeeper}-{number}" for number in range(3)] if cluster.runs_zookeeper else []
    pods = [make_pod(name, ZOOKEEPER, template_hash=zookeeper) for name in names]
    broker = template_hash(one_of(broker_children(cluster, None), "Deployment"))
    facts = {}
    for number in range(brokers):
        pod = make_pod(f"{cluster.broker}-{'abcdefgh'[number]}", BROKER, template_hash=broker)
        pods.append(pod)
        facts[pod.name] = BrokerFacts(broker_id=f"{pod.name}:8080", registered=True, bundles=10 + number)
    workloads = [make_workload("Deployment", cluster.broker, brokers, template_hash=broker)]
    if cluster.runs_zookeeper:
        sizes = {"data": "10Gi"}
        workloads.append(make_workload("StatefulSet", cluster.zookeeper, 3, template_hash=zookeeper, claim_sizes=sizes))
    if cluster.spec.proxy.replicas:
        proxy = template_hash(one_of(proxy_children(cluster, 0), "Deployment"))
        pods += [make_pod(f"{cluster.proxy}-{letter}", PROXY, template_hash=proxy) for letter in "ab"]
        workloads.append(make_workload("Deployment", cluster.proxy, 2, template_hash=proxy))
    children = Children(
        objects={("Secret", f"{cluster.name}-control"): ours(cluster.owner.uid, "Secret", f"{cluster.name}-control")},
        pods=pods,
        claims=[make_claim(f"data-{name}", ZOOKEEPER, "data", number) for number, name in enumerate(names)],
        workloads={(workload.kind, workload.name): workload for workload in workloads},
    )
    done = Condition(
        type="MetadataReady",
        status="True",
        reason="Initialized",
        message="",
        last_transition_time="2025-10-09T08:53:20Z",
        observed_generation=1,
    )
    seen = replace(
        seen,
        children=children,
        status=PulsarClusterStatus(conditions=[done], metadata_digest=metadata_digest(cluster)),
        pools=[make_pool(cluster.name)],
        zookeeper={name: ZookeeperFacts(mode="leader" if name.endswith("1") else "follower") for name in names},
        brokers=facts,
        driver="leader",
    )
    return told(seen)


def told(seen: ClusterSeen, **changes: Any) -> ClusterSeen:
    """The objects after a pass has written the status."""
    plan = plan_cluster(seen)
    return replace(seen, status=msgspec.convert(plan.status, PulsarClusterStatus), **changes)


def respecified(seen: ClusterSeen, *, pools_know: bool = True, **spec: Any) -> ClusterSeen:
    """Another spec, with what the first pass over it has written."""
    generation = seen.resource.generation + 1
    pools = [
        replace(pool, status=msgspec.structs.replace(pool.status, cluster_generation=generation))
        if pools_know
        else pool
        for pool in seen.pools
    ]
    resource = replace(seen.resource, generation=generation)
    return replace(seen, cluster=make_cluster(seen.cluster.name, **spec), resource=resource, pools=pools)


def make_pool(name: str, replicas: int = 3, **status: Any) -> PoolFacts:
    """A pool whose bookies all take writes."""
    usual: dict[str, Any] = {
        "observed_generation": 1,
        "cluster_generation": GENERATION,
        "replicas": replicas,
        "ready_replicas": replicas,
        "updated_replicas": replicas,
        "writable_replicas": replicas,
        "conditions": [make_condition("Ready", "True", "AllReady", "")],
    }
    return PoolFacts(
        name=name,
        uid=f"{name}-pool-uid",
        generation=1,
        deleting=False,
        replicas=replicas,
        status=BookieStatus(**(usual | status)),
    )


def make_condition(type_: str, status: Any, reason: str, message: str) -> Condition:
    """One of another resource."""
    return Condition(
        type=type_,
        status=status,
        reason=reason,
        message=message,
        last_transition_time="2025-10-09T08:53:20Z",
        observed_generation=1,
    )


def ours(uid: str, kind: str, name: str, **metadata: Any) -> Manifest:
    """An object that the operator has made for the owner of that uid."""
    return {
        "kind": kind,
        "metadata": {"name": name, "uid": f"{name}-uid", "ownerReferences": [{"uid": uid}], **metadata},
    }


def with_objects(seen: ClusterSeen, *manifests: Manifest) -> ClusterSeen:
    """These are there, too."""
    more = {(manifest["kind"], manifest["metadata"]["name"]): manifest for manifest in manifests}
    return replace(seen, children=replace(seen.children, objects={**seen.children.objects, **more}))


def with_pods(seen: ClusterSeen, change: Callable[[PodFacts], PodFacts | None]) -> ClusterSeen:
    """Each pod as `change` makes it; None: it is not there."""
    pods = [changed for pod in seen.children.pods if (changed := change(pod)) is not None]
    return replace(seen, children=replace(seen.children, pods=pods))


def with_pod(seen: ClusterSeen, name: str, **facts: Any) -> ClusterSeen:
    """One pod is different."""
    return with_pods(seen, lambda pod: replace(pod, **facts) if pod.name == name else pod)


def without_pods(seen: ClusterSeen, component: str) -> ClusterSeen:
    """A component has none."""
    return with_pods(seen, lambda pod: None if pod.component == component else pod)


def with_workload(seen: ClusterSeen, kind: str, name: str, **facts: Any) -> ClusterSeen:
    """A workload is different."""
    found = {**seen.children.workloads}
    found[kind, name] = replace(found[kind, name], **facts)
    return replace(seen, children=replace(seen.children, workloads=found))


def without_workload(seen: ClusterSeen, kind: str, name: str) -> ClusterSeen:
    """A workload is not there."""
    found: dict[tuple[str, str], WorkloadFacts] = {**seen.children.workloads}
    del found[kind, name]
    return replace(seen, children=replace(seen.children, workloads=found))


def applied(plan: Plan) -> list[str]:
    """What is applied: `Kind/name`."""
    manifests = [action.manifest for action in plan.actions if isinstance(action, Apply | Create)]
    return [f"{manifest['kind']}/{manifest['metadata']['name']}" for manifest in manifests]


def manifest_of(plan: Plan, kind: str, name: str) -> Manifest | None:
    """What is applied of one object."""
    found = [action.manifest for action in plan.actions if isinstance(action, Apply | Create)]
    return next((one for one in found if one["kind"] == kind and one["metadata"]["name"] == name), None)


def asked(plan: Plan, kind: type[A]) -> list[A]:
    """The actions of a type."""
    return [action for action in plan.actions if isinstance(action, kind)]


def events(plan: Plan) -> list[str]:
    """Reasons of what is told."""
    return [tell.reason for tell in asked(plan, EmitEvent)]


def condition_of(plan: Plan, type_: str) -> tuple[str, str, str]:
    """Status, reason and message."""
    found = next(one for one in plan.status["conditions"] if one["type"] == type_)
    return found["status"], found["reason"], found["message"]


def quiet(actions: Sequence[Action]) -> list[Action]:
    """The actions that change something: not what is applied in each pass, nor what is told."""
    return [action for action in actions if not hasattr(action, "manifest") and not isinstance(action, EmitEvent)]
