"""What decides, as a pass calls it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from magnetar.balance.model import LoadSnapshot
from magnetar.operator.plan.actions import Plan, SplitBundle, TransferBundle
from magnetar.operator.plan.facts import ClusterSeen, PoolSeen
from magnetar.operator.resources.cluster import BalanceSpec


class PoolQuestions(Protocol):
    """What a pool's plan wants to know that takes a look through the ledgers' metadata."""

    @property
    def lost(self) -> Mapping[str, str]:
        """Bookie ids by pod, of those that do not answer."""
        ...

    @property
    def under_replicated(self) -> bool:
        """Whether to count the cluster's ledgers that lack replicas."""
        ...


class ClusterPlan(Protocol):
    """`plan.cluster.plan_cluster`."""

    def __call__(self, seen: ClusterSeen, moves_now: Sequence[TransferBundle | SplitBundle] = ()) -> Plan:
        """What to do."""
        ...


class Balancing(Protocol):
    """`plan.balance.Balance`: one per cluster, for it remembers."""

    def round(self, load: LoadSnapshot) -> Sequence[TransferBundle | SplitBundle]:
        """What to move and to split now."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Plans:
    """All of them."""

    cluster: ClusterPlan
    pool: Callable[[PoolSeen], Plan]
    pool_questions: Callable[[PoolSeen], PoolQuestions]
    balancing: Callable[[BalanceSpec], Balancing]
