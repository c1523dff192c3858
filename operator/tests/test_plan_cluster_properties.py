"""Whatever is seen: no plan fails, or does what would do harm.

Strategies are made once, not in each draw: Hypothesis looks at each new one before its first value, which took half of
the time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from magnetar.operator.children.brokers import broker_children
from magnetar.operator.children.naming import BROKER, FINALIZER, INIT, PROXY, READ_ONLY_BROKER, ZOOKEEPER
from magnetar.operator.children.zookeeper import zookeeper_children
from magnetar.operator.plan.actions import Apply, Delete, EmitEvent, Plan, Scale, StartBrokerDrain
from magnetar.operator.plan.cluster.parts import alive, one_of, template_hash
from magnetar.operator.plan.cluster.plan import plan_cluster
from magnetar.operator.plan.facts import (
    BrokerFacts,
    Children,
    ClusterSeen,
    PodFacts,
    PoolFacts,
    ReadOnlyBrokerFacts,
    ResourceFacts,
    ZookeeperFacts,
)
from magnetar.operator.resources.cluster import PulsarClusterStatus
from magnetar.operator.resources.read_only import ReadOnlyBrokersStatus
from operator_fakes.cluster_builders import (
    GENERATION,
    asked,
    healthy,
    make_condition,
    make_pool,
    ours,
    respecified,
    told,
    with_pods,
    with_workload,
)
from operator_fakes.plan_builders import NOW, WANTED, make_claim, make_cluster, make_pod, make_workload

_CLUSTER = make_cluster()
_HASHES = st.sampled_from(
    [
        template_hash(one_of(zookeeper_children(_CLUSTER), "StatefulSet")),
        template_hash(one_of(broker_children(_CLUSTER, None), "Deployment")),
        WANTED,
        "",
    ]
)
_WAITS = st.sampled_from(["", "", "CrashLoopBackOff", "ImagePullBackOff", "Unschedulable", "ContainerCreating"])


def optional(**fields: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


SPECS = optional(
    hibernated=st.booleans(),
    paused=st.sampled_from([False, False, True]),
    deletionPolicy=st.sampled_from(["Retain", "Delete"]),
    broker=st.sampled_from(
        [
            {},
            {"replicas": 0},
            {"replicas": 1},
            {"replicas": 4},
            {"autoscaling": {"minReplicas": 1, "maxReplicas": 4, "stabilizationSeconds": 0}},
        ]
    ),
    proxy=st.sampled_from([{}, {"replicas": 0}]),
    metadata=st.sampled_from([{}, {"url": "zk:elsewhere:2181"}, {"zookeeper": {"storage": {"size": "20Gi"}}}]),
    readOnlyBrokers=st.sampled_from(
        [
            {},
            {"replicas": 0},
            {"replicas": 3},
            {"autoscaling": {"minReplicas": 1, "maxReplicas": 4, "stabilizationSeconds": 0}},
        ]
    ),
    attach=st.sampled_from([None, None, None, {"clusterName": "other"}]),
    balance=st.sampled_from([{"driver": "Operator"}, {"driver": "Leader"}, {"driver": "None"}]),
)


POD_FACTS = optional(
    ready=st.booleans(),
    deleting=st.booleans(),
    template_hash=_HASHES,
    waiting_reason=_WAITS,
    phase=st.sampled_from(["Running", "Pending", "Failed"]),
    restarts=st.integers(0, 5),
    exit_code=st.sampled_from([None, 0, 1]),
)


@st.composite
def pods(draw: st.DrawFn, component: str, count: st.SearchStrategy[int]) -> list[PodFacts]:
    return [make_pod(f"blue-{component}-{number}", component, **draw(POD_FACTS)) for number in range(draw(count))]


PODS = {
    component: pods(component, st.integers(0, count_max))
    for component, count_max in ((BROKER, 6), (ZOOKEEPER, 3), (READ_ONLY_BROKER, 4), (PROXY, 2), (INIT, 1))
}


def workloads(kind: str, name: str) -> st.SearchStrategy[Any]:
    facts = optional(
        replicas=st.integers(0, 6),
        updated=st.integers(0, 6),
        settled=st.booleans(),
        deleting=st.booleans(),
        template_hash=_HASHES,
        stalled_message=st.sampled_from(["", "", "exceeded quota"]),
        claim_sizes=st.sampled_from([{}, {"data": "10Gi"}, {"data": "20Gi"}]),
    )
    desired = st.integers(0, 6)
    made = st.builds(lambda count, more: replace(make_workload(kind, name, count), **more), desired, facts)
    return st.none() | made


WORKLOADS = {
    (kind, name): workloads(kind, name)
    for kind, name in (
        ("StatefulSet", "blue-zookeeper"),
        *(("Deployment", f"blue-{part}") for part in (BROKER, PROXY, READ_ONLY_BROKER)),
    )
}
BOOLEANS = st.booleans()
POOL_NAMES = st.sampled_from([[], ["blue"], ["blue", "more"]])
POOL_STATUSES = optional(
    replicas=st.integers(0, 4),
    updated_replicas=st.integers(0, 4),
    writable_replicas=st.integers(0, 4),
    cluster_generation=st.integers(GENERATION - 1, GENERATION),
    conditions=st.sampled_from([[], [make_condition("Stalled", "True", "EnsembleTooLarge", "words")]]),
)


@st.composite
def pools(draw: st.DrawFn) -> list[PoolFacts]:
    found = []
    for name in draw(POOL_NAMES):
        pool = make_pool(name)
        status = msgspec.structs.replace(pool.status, **draw(POOL_STATUSES))
        found.append(replace(pool, status=status, deleting=draw(BOOLEANS)))
    return found


BROKERS = st.builds(
    BrokerFacts,
    broker_id=st.just("broker:8080"),
    registered=st.booleans(),
    bundles=st.integers(0, 20),
    load_percent=st.integers(0, 100),
    drain=st.sampled_from(["None", "Running", "Done"]),
    bundles_left=st.integers(0, 5),
)
READ_ONLY_BROKERS = st.builds(
    ReadOnlyBrokerFacts, connections=st.integers(0, 5000), lag_seconds=st.floats(0, 100, allow_nan=False)
)
STATUSES = st.sampled_from(
    [
        PulsarClusterStatus(),
        PulsarClusterStatus(hibernated_replicas=3),
        healthy().status,
        msgspec.structs.replace(healthy().status, hibernated_replicas=3),
        msgspec.structs.replace(healthy().status, read_only_brokers=ReadOnlyBrokersStatus(hibernated_replicas=3)),
    ]
)


POOLS = pools()
INIT_STATUSES = st.sampled_from([{}, {"succeeded": 1}])
CONFIG_MAPS = st.integers(0, 8)
DELETING = st.sampled_from([False, False, False, True])
FINALIZERS = st.sampled_from([[], [FINALIZER]])
MODES: st.SearchStrategy[Literal["leader", "follower"]] = st.sampled_from(["leader", "follower"])
DRIVERS = st.sampled_from(["", "leader", "control"])


@st.composite
def snapshots(draw: st.DrawFn) -> ClusterSeen:
    brokers = draw(PODS[BROKER])
    servers = draw(PODS[ZOOKEEPER])
    readers = draw(PODS[READ_ONLY_BROKER])
    found = {key: workload for key, made in WORKLOADS.items() if (workload := draw(made)) is not None}
    objects = [
        ours("blue-uid", "Secret", "blue-control"),
        ours("blue-uid", "Job", "blue-init-x") | {"status": draw(INIT_STATUSES)},
        *(ours("blue-uid", "ConfigMap", f"blue-broker-{number}") for number in range(draw(CONFIG_MAPS))),
    ]
    claims = [
        make_claim(f"data-{pod.name}", ZOOKEEPER, "data", pod.ordinal, expandable=draw(BOOLEANS)) for pod in servers
    ]
    return ClusterSeen(
        cluster=make_cluster(**draw(SPECS)),
        resource=ResourceFacts(
            generation=GENERATION,
            deleting=draw(DELETING),
            finalizers=draw(FINALIZERS),
        ),
        status=draw(STATUSES),
        children=Children(
            objects={(one["kind"], one["metadata"]["name"]): one for one in (objects if draw(BOOLEANS) else [])},
            pods=[*brokers, *servers, *readers, *draw(PODS[PROXY]), *draw(PODS[INIT])],
            claims=claims,
            workloads=found,
        ),
        pools=draw(POOLS),
        zookeeper={pod.name: ZookeeperFacts(mode=draw(MODES)) for pod in servers if draw(BOOLEANS)},
        brokers={pod.name: draw(BROKERS) for pod in brokers if draw(BOOLEANS)},
        read_only_brokers={pod.name: draw(READ_ONLY_BROKERS) for pod in readers if draw(BOOLEANS)},
        driver=draw(DRIVERS),
        now_seconds=NOW,
    )


def broker_replicas(plan: Plan) -> list[int]:
    """What the plan sets the brokers' number to."""
    scaled = [action.replicas for action in asked(plan, Scale) if action.name == "blue-broker"]
    for action in asked(plan, Apply):
        manifest = action.manifest
        if (manifest["kind"], manifest["metadata"]["name"]) == ("Deployment", "blue-broker"):
            scaled.append(manifest["spec"]["replicas"])
    return scaled


def fewest_brokers(seen: ClusterSeen) -> int:
    """Those that are asked for, without those that have nothing to give away, or cannot be asked and serve nobody."""
    found = seen.children.workloads["Deployment", "blue-broker"]
    staying = [pod for pod in alive(seen.children.of(BROKER)) if not pod.deleting]
    done = {name for name, facts in seen.brokers.items() if facts.drain == "Done"}
    free = [pod for pod in staying if pod.name in done or (pod.name not in seen.brokers and not pod.ready)]
    return found.desired - len(free) - max(0, found.desired - len(staying))


@pytest.mark.slow
@given(snapshots())
@settings(max_examples=200, deadline=None)
def test_no_broker_goes_that_could_not_give_its_bundles_away_first(seen: ClusterSeen) -> None:
    spec, found = seen.cluster.spec, seen.children.workloads.get(("Deployment", "blue-broker"))
    if found is None or not found.desired or spec.hibernated or spec.broker.replicas == 0:
        return
    assert all(replicas >= fewest_brokers(seen) for replicas in broker_replicas(plan_cluster(seen)))


@st.composite
def shrinking(draw: st.DrawFn) -> ClusterSeen:
    """Some brokers are to go, and are in all stages of it."""
    count = draw(st.integers(2, 6))
    seen = respecified(healthy(brokers=count), broker={"replicas": draw(st.integers(1, count))})
    brokers = {name: draw(BROKERS) for name in seen.brokers if draw(st.integers(0, 4))}
    kept = {
        pod.name: draw(optional(ready=st.booleans(), deleting=st.sampled_from([False, False, True])))
        for pod in seen.children.of(BROKER)
        if draw(st.integers(0, 4))
    }

    def change(pod: PodFacts) -> PodFacts | None:
        if pod.component != BROKER:
            return pod
        return replace(pod, **kept[pod.name]) if pod.name in kept else None

    seen = with_workload(seen, "Deployment", "blue-broker", replicas=draw(st.integers(0, count)))
    return replace(with_pods(seen, change), brokers=brokers)


@pytest.mark.slow
@given(shrinking())
@settings(max_examples=300, deadline=None)
def test_fewer_brokers_are_never_fewer_than_those_that_are_needed(seen: ClusterSeen) -> None:
    plan = plan_cluster(seen)
    wanted = seen.cluster.spec.broker.replicas
    assert wanted is not None
    (replicas,) = broker_replicas(plan)
    assert replicas >= max(wanted, fewest_brokers(seen))
    drained = {action.pod for action in asked(plan, StartBrokerDrain)}
    assert len(drained) <= max(0, seen.children.workloads["Deployment", "blue-broker"].desired - wanted)


@pytest.mark.slow
@given(snapshots())
@settings(max_examples=300, deadline=None)
def test_no_pass_does_harm(seen: ClusterSeen) -> None:
    plan = plan_cluster(seen)
    deleted = asked(plan, Delete)
    if not seen.resource.deleting:
        assert sum(action.kind == "Pod" for action in deleted) <= 1
        assert not [action for action in deleted if action.kind in ("PersistentVolumeClaim", "Bookie", "Secret")]
        assert all(action.orphan for action in deleted if action.kind == "StatefulSet")
        if seen.cluster.spec.paused:
            assert all(isinstance(action, EmitEvent) for action in plan.actions)
    elif seen.cluster.spec.deletion_policy == "Retain":
        assert not deleted
    assert all(action.uid for action in deleted)
    drained = {action.pod for action in asked(plan, StartBrokerDrain)}
    assert not drained or drained < {pod.name for pod in seen.children.of(BROKER) if pod.ready}
    assert plan.requeue_after_seconds > 0


@pytest.mark.slow
@given(snapshots())
@settings(max_examples=200, deadline=None)
def test_what_lasts_is_told_once(seen: ClusterSeen) -> None:
    again = told(seen)
    assert msgspec.convert(plan_cluster(again).status, PulsarClusterStatus).conditions == again.status.conditions
    states = {action.reason for action in asked(plan_cluster(again), EmitEvent)}
    # Those that go with an action are told until it is seen to be done.
    assert states <= {"DrainStarted", "DrainCancelled", "ScaledIn", "ScaledOut", "VolumeGrown"}
