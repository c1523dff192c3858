"""What decides, as a pass calls it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from magnetar.balance.model import LoadSnapshot
from magnetar.operator.plan.actions import Plan, SplitBundle, TransferBundle
from magnetar.operator.plan.facts import ClusterSeen, PoolSeen
from magnetar.operator.plan.pool.questions import Questions
from magnetar.operator.resources.cluster import BalanceSpec, BundleMove

BundleAction: TypeAlias = TransferBundle | SplitBundle


class ClusterPlan(Protocol):
    """`plan.cluster.plan_cluster`."""

    def __call__(self, seen: ClusterSeen, moves_now: Sequence[BundleAction] = ()) -> Plan:
        """Say what to do for a cluster."""
        ...


class BalancePlanner(Protocol):
    """`plan.balance.Balance`: one per cluster, for it remembers."""

    def round(self, load: LoadSnapshot) -> Sequence[BundleAction]:
        """What to move and to split now."""
        ...

    def failed(self, action: BundleAction, error: str) -> None:
        """Note that a move was not carried out."""
        ...

    def moves(self) -> Sequence[BundleMove]:
        """The latest decisions, the latest first."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Plans:
    """The pure parts that a reconciler plans with."""

    cluster: ClusterPlan
    pool: Callable[[PoolSeen], Plan]
    pool_questions: Callable[[PoolSeen], Questions]
    balancing: Callable[[BalanceSpec], BalancePlanner]
