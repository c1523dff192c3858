"""What decides, as a pass calls it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from magnetar.balance.model import LoadSnapshot
from magnetar.operator.plan.actions import BundleAction, Plan
from magnetar.operator.plan.balance import Balance
from magnetar.operator.plan.cluster.plan import plan_cluster
from magnetar.operator.plan.facts import ClusterSeen, PoolSeen
from magnetar.operator.plan.pool.plan import plan_pool
from magnetar.operator.plan.pool.questions import Questions, pool_questions
from magnetar.operator.resources.cluster import BalanceSpec


class BalancePlanner(Protocol):
    """`plan.balance.Balance`: one per cluster, for it remembers."""

    def round(self, load: LoadSnapshot) -> Sequence[BundleAction]:
        """What to move and to split now."""
        ...

    def failed(self, action: BundleAction) -> None:
        """Note that a move was not carried out."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Plans:
    """All of them: those that the operator goes by, unless a test has others."""

    cluster: Callable[[ClusterSeen, Sequence[BundleAction]], Plan] = plan_cluster
    pool: Callable[[PoolSeen], Plan] = plan_pool
    pool_questions: Callable[[PoolSeen], Questions] = pool_questions
    balancing: Callable[[BalanceSpec], BalancePlanner] = Balance
