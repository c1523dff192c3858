"""A reconciler with plans that a test makes up, in a small world."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from magnetar.balance.model import LoadSnapshot
from magnetar.operator.children.context import Defaults
from magnetar.operator.kubernetes.kinds import Manifest
from magnetar.operator.plan.actions import Action, BundleAction, Plan, SplitBundle, TransferBundle
from magnetar.operator.plan.facts import ClusterSeen, PoolSeen
from magnetar.operator.plan.pool.questions import NOTHING
from magnetar.operator.plans import Plans
from magnetar.operator.reconcile import Dependencies, Key, Reconciler
from magnetar.operator.resources.cluster import BalanceSpec

from operator_fakes.small_kubernetes import RecordedEvents, SettableClock, SmallApiServer, SmallControls

BLUE = Key("PulsarCluster", "here", "blue")
COLD = Key("Bookie", "here", "cold")
MOVE = TransferBundle("public/default/0x00000000_0x40000000", "broker-a", "broker-b", "busy")
SPLIT = SplitBundle("public/default/0x40000000_0x80000000", "broker-a", "range_equally_divide", "hot")


@dataclass
class ScriptedBalancePlanner:
    """Decides what it was told to."""

    spec: BalanceSpec
    rounds: list[LoadSnapshot] = field(default_factory=list)
    failures: list[BundleAction] = field(default_factory=list)

    def round(self, load: LoadSnapshot) -> Sequence[BundleAction]:
        self.rounds.append(load)
        return [MOVE, SPLIT]

    def failed(self, action: BundleAction) -> None:
        self.failures.append(action)


class ReconcilerStage:
    """A reconciler, its world, and plans that say what `first`, `actions`, further `groups` and `status` say."""

    def __init__(self) -> None:
        self.api = SmallApiServer()
        self.controls = SmallControls()
        self.clock = SettableClock()
        self.told = RecordedEvents()
        self.actions: list[Action] = []
        self.first: Sequence[Action] = ()
        self.groups: list[Sequence[Action]] = []
        self.status: dict[str, Any] = {"phase": "Fine"}
        self.questions = NOTHING
        self.clusters: list[ClusterSeen] = []
        self.pools: list[PoolSeen] = []
        self.moves_now: Sequence[BundleAction] = ()
        self.balancings: list[ScriptedBalancePlanner] = []
        self.leads = True
        self.restart()

    def restart(self) -> None:
        """Another process of the operator looks after the same world."""
        self.reconciler = Reconciler(
            Dependencies(
                api=self.api,
                controls=self.controls,
                clock=self.clock,
                defaults=Defaults(image_repository="images", version="1"),
                events=self.told,
                make_token=lambda: "chance",
                plans=Plans(
                    cluster=self._cluster,
                    pool=self._pool,
                    pool_questions=lambda _: self.questions,
                    balancing=self._balancing,
                ),
                may_act=lambda: self.leads,
            )
        )

    def _cluster(self, seen: ClusterSeen, moves_now: Sequence[BundleAction] = ()) -> Plan:
        self.clusters.append(seen)
        self.moves_now = moves_now
        return Plan(
            first=self.first,
            groups=[self.actions, *self.groups],
            asked=moves_now,
            status=self.status,
            requeue_after_seconds=60,
        )

    def _pool(self, seen: PoolSeen) -> Plan:
        self.pools.append(seen)
        groups = [self.actions, *self.groups]
        return Plan(first=self.first, groups=groups, status=self.status, requeue_after_seconds=30)

    def _balancing(self, spec: BalanceSpec) -> ScriptedBalancePlanner:
        self.balancings.append(ScriptedBalancePlanner(spec))
        return self.balancings[-1]

    def put(self, kind: str, name: str, component: str = "", pool: str = "", **fields: Any) -> Manifest:
        """An object with the cluster's labels."""
        labels = {"app.kubernetes.io/name": "magnetar", "app.kubernetes.io/instance": "blue"}
        labels |= {"app.kubernetes.io/component": component} if component else {}
        labels |= {"pulsar.magnetar.dev/pool": pool} if pool else {}
        metadata = {"name": name, "namespace": "here", "labels": labels} | fields.pop("metadata", {})
        return self.api.put({"apiVersion": "v1", "kind": kind, "metadata": metadata, **fields})

    def put_pod(self, name: str, component: str, address: str, pool: str = "") -> None:
        owners = [{"kind": "StatefulSet"}]
        status = {"phase": "Running", "podIP": address, "conditions": [{"type": "Ready", "status": "True"}]}
        self.put("Pod", name, component, pool, status=status, metadata={"ownerReferences": owners})

    def put_cluster(self, **spec: Any) -> Manifest:
        return self.put("PulsarCluster", "blue", spec=spec)

    def put_pool(self, name: str = "cold", **fields: Any) -> Manifest:
        return self.put("Bookie", name, spec={"clusterName": "blue"} | fields.pop("spec", {}), **fields)

    def did(self, verb: str) -> list[tuple[str, str]]:
        return [(kind, name) for its_verb, kind, name in self.api.calls if its_verb == verb]


def small_stage() -> ReconcilerStage:
    """With a cluster and its token."""
    found = ReconcilerStage()
    found.put_cluster()
    found.put("Secret", "blue-control", data={"token": base64.b64encode(b"secret").decode()})
    return found
