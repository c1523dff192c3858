"""The operator's own plans, as it runs them."""

from __future__ import annotations

from magnetar.operator.plan.balance import Balance
from magnetar.operator.plan.cluster import plan_cluster
from magnetar.operator.plan.pool import plan_pool
from magnetar.operator.plan.pool_questions import pool_questions
from magnetar.operator.plans import Plans


def plans() -> Plans:
    """All of them."""
    return Plans(cluster=plan_cluster, pool=plan_pool, pool_questions=pool_questions, balancing=Balance)
