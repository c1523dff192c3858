"""A pool of bookies as a plan sees it: everything is well unless a test says otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import msgspec
from magnetar.operator.children.bookies import bookie_children
from magnetar.operator.children.context import ClusterContext
from magnetar.operator.children.naming import BOOKIE, FINALIZER, TEMPLATE_ANNOTATION, OwnerResource
from magnetar.operator.plan.actions import Action, Apply, Create, Delete, EmitEvent, Plan
from magnetar.operator.plan.facts import (
    BookieFacts,
    Children,
    ClaimFacts,
    EnsembleFacts,
    LostBookieFacts,
    PodFacts,
    PoolFacts,
    PoolSeen,
    ResourceFacts,
    WorkloadFacts,
)
from magnetar.operator.resources.bookie import BookieSpec, BookieStatus
from magnetar.operator.resources.cluster import PulsarClusterStatus

from operator_fakes.plan_builders import NOW, make_claim, make_cluster, make_pod, make_workload

POOL: Final = "blue"
STATEFUL: Final = "blue-bookie"
GENERATION: Final = 7
VOLUMES: Final = {"journal": 10 * 1024**3, "ledgers": 50 * 1024**3}

DONE: Final[dict[str, Any]] = {"drain": "Done", "writable": False}
SILENT: Final = None
CRASHED: Final[dict[str, Any]] = {"ready": False, "waiting_reason": "CrashLoopBackOff", "restarts": 4}

CLUSTER_STATUS: Final[dict[str, Any]] = {
    "observedGeneration": GENERATION,
    "zookeeper": {"replicas": 3, "readyReplicas": 3, "updatedReplicas": 3, "desiredReplicas": 3},
    "conditions": [
        {
            "type": "MetadataReady",
            "status": "True",
            "reason": "Initialized",
            "message": "",
            "lastTransitionTime": "2025-10-09T08:53:20Z",
            "observedGeneration": GENERATION,
        }
    ],
}

ActionT = TypeVar("ActionT")


def pod_name(number: int) -> str:
    """The name of a bookie's pod."""
    return f"{STATEFUL}-{number}"


def bookie_id(number: int) -> str:
    """Its address, by which it is known."""
    return f"{pod_name(number)}.{STATEFUL}.here.svc.cluster.local:3181"


@dataclass
class PoolWorld:
    """Change what is not well, then `seen()`. What is said per bookie goes by its number."""

    replicas: int = 3
    desired: int | None = None
    """None: as many as `replicas`; -1: there is no StatefulSet."""
    numbers: Sequence[int] | None = None
    """The numbers of pods; by default as many as the StatefulSet is told to have."""
    claimed: Sequence[int] | None = None
    """Numbers with claims; by default those with pods."""
    spec: dict[str, Any] = field(default_factory=dict)
    cluster: dict[str, Any] = field(default_factory=dict)
    cluster_missing: bool = False
    cluster_deleting: bool = False
    cluster_generation: int = GENERATION
    cluster_status: dict[str, Any] = field(default_factory=dict)
    """Over `CLUSTER_STATUS`."""
    pods: dict[int, dict[str, Any]] = field(default_factory=dict)
    claims: dict[int, dict[str, Any]] = field(default_factory=dict)
    bookies: dict[int, dict[str, Any] | None] = field(default_factory=dict)
    """None: no answer. Those of pods that are not ready do not answer unless it is said."""
    lost: dict[int, dict[str, Any]] = field(default_factory=dict)
    stateful: dict[str, Any] = field(default_factory=dict)
    status: BookieStatus = field(default_factory=BookieStatus)
    deleting: bool = False
    finalizers: Sequence[str] = (FINALIZER,)
    writable_elsewhere: int = 0
    others: Sequence[PoolFacts] = ()
    under_replicated: int | None = 0
    largest_ensemble: EnsembleFacts | None = None
    now: float = NOW

    def seen(self) -> PoolSeen:
        cluster = make_cluster(POOL, **self.cluster)
        spec = msgspec.convert({"clusterName": POOL, "replicas": self.replicas} | self.spec, BookieSpec)
        desired = self.replicas if self.desired is None else self.desired
        wanted = wanted_hash(cluster, spec)
        numbers = range(max(desired, 0)) if self.numbers is None else self.numbers
        pods = [make_pod(pod_name(n), BOOKIE, **self._pod(n, wanted)) for n in numbers]
        return PoolSeen(
            owner=OWNER,
            resource=ResourceFacts(generation=2, deleting=self.deleting, finalizers=self.finalizers),
            spec=spec,
            status=self.status,
            cluster=None if self.cluster_missing else cluster,
            cluster_resource=ResourceFacts(generation=self.cluster_generation, deleting=self.cluster_deleting),
            cluster_status=msgspec.convert(CLUSTER_STATUS | self.cluster_status, PulsarClusterStatus),
            children=Children(pods=pods, claims=self._claims(numbers), workloads=self._workloads(desired, wanted)),
            bookies={pod.name: found for pod in pods if (found := self._bookie(pod)) is not None},
            lost={pod_name(n): make_lost(n, **facts) for n, facts in self.lost.items()},
            writable_elsewhere=self.writable_elsewhere,
            others=self.others,
            under_replicated_ledgers=self.under_replicated,
            largest_ensemble=self.largest_ensemble,
            now_seconds=self.now,
        )

    def _pod(self, number: int, wanted: str) -> dict[str, Any]:
        facts: dict[str, Any] = {"pool": POOL, "template_hash": wanted} | self.pods.get(number, {})
        return facts

    def _bookie(self, pod: PodFacts) -> BookieFacts | None:
        facts = self.bookies.get(pod.ordinal, {} if pod.ready else None)
        return make_bookie(pod.ordinal, **facts) if facts is not None else None

    def _claims(self, numbers: Sequence[int]) -> list[ClaimFacts]:
        claimed = numbers if self.claimed is None else self.claimed
        return [
            make_claim(
                f"{volume}-{pod_name(n)}",
                BOOKIE,
                volume,
                n,
                **{
                    "pool": POOL,
                    "requested_bytes": size,
                    "capacity_bytes": size,
                    "created_seconds": NOW - 7200,
                    **self.claims.get(n, {}),
                },
            )
            for n in claimed
            for volume, size in VOLUMES.items()
        ]

    def _workloads(self, desired: int, wanted: str) -> Mapping[tuple[str, str], WorkloadFacts]:
        if desired < 0:
            return {}
        sizes = {"journal": "10Gi", "ledgers": "50Gi"}
        usual: dict[str, Any] = {"template_hash": wanted, "claim_sizes": sizes, "resource_version": "41"}
        found = make_workload("StatefulSet", STATEFUL, desired, **usual)
        return {("StatefulSet", STATEFUL): replace(found, **self.stateful)}


OWNER: Final = OwnerResource(kind="Bookie", name=POOL, namespace="here", uid="pool-uid")


def wanted_hash(cluster: ClusterContext, spec: BookieSpec) -> str:
    """The digest that pods made by this spec have."""
    manifest = bookie_children(cluster, OWNER, spec, 0)[-1]
    found = manifest["spec"]["template"]["metadata"]["annotations"][TEMPLATE_ANNOTATION]
    assert isinstance(found, str)
    return found


def make_bookie(number: int, **facts: Any) -> BookieFacts:
    """What a bookie tells of itself: usual things but for `facts`."""
    usual: dict[str, Any] = {
        "bookie_id": bookie_id(number),
        "writable": facts.get("drain", "None") == "None",
        "total_bytes": 1000,
        "used_bytes": 100,
        "disk_usage_percent": 10,
    }
    return BookieFacts(**(usual | facts))


def make_lost(number: int, **facts: Any) -> LostBookieFacts:
    """Unless said otherwise: the cluster knows nothing of it."""
    usual: dict[str, Any] = {
        "bookie_id": bookie_id(number),
        "registered": False,
        "has_cookie": False,
        "ledgers_left": 0,
    }
    return LostBookieFacts(**(usual | facts))


def of(plan: Plan, kind: type[ActionT]) -> list[ActionT]:
    """A plan's actions of one kind."""
    found: list[Any] = list(plan.actions)
    return [action for action in found if isinstance(action, kind)]


def deleted(plan: Plan, kind: str) -> list[str]:
    """Names of what a plan deletes."""
    return [action.name for action in of(plan, Delete) if action.kind == kind]


def stateful_of(plan: Plan) -> Apply | Create | None:
    """How a plan writes the StatefulSet."""
    found: list[Apply | Create] = [*of(plan, Apply), *of(plan, Create)]
    return next((action for action in found if action.manifest["kind"] == "StatefulSet"), None)


def replicas_of(plan: Plan) -> int | None:
    """What the plan tells the StatefulSet to have; None: nothing."""
    action = stateful_of(plan)
    return action.manifest["spec"]["replicas"] if action is not None else None


def told(plan: Plan) -> list[str]:
    """Reasons of a plan's Events."""
    return [action.reason for action in of(plan, EmitEvent)]


def said(plan: Plan, type_: str) -> tuple[str, str, str]:
    """A condition's status, reason and message."""
    for found in plan.status["conditions"]:
        if found["type"] == type_:
            return found["status"], found["reason"], found["message"]
    raise AssertionError(f"no condition {type_}")


def status_of(plan: Plan) -> BookieStatus:
    """The status that a plan writes."""
    return msgspec.convert(plan.status, BookieStatus)


def member_of(plan: Plan, number: int) -> dict[str, Any]:
    """What is said of one bookie, wherever it stands."""
    found: list[dict[str, Any]] = [member for member in plan.status["members"] if member["name"] == pod_name(number)]
    return found[0]


def index_of(plan: Plan, wanted: Callable[[Action], bool]) -> int:
    """The place of the first action that is wanted."""
    return next(place for place, action in enumerate(plan.actions) if wanted(action))
