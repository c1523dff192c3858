"""The plans that the operator goes by."""

from __future__ import annotations

from typing import Final

from magnetar.operator.plan.balance import Balance
from magnetar.operator.plan.cluster.plan import plan_cluster
from magnetar.operator.plan.pool.plan import plan_pool
from magnetar.operator.plan.pool.questions import pool_questions
from magnetar.operator.plans import Plans

ALL_PLANS: Final = Plans(cluster=plan_cluster, pool=plan_pool, pool_questions=pool_questions, balancing=Balance)
