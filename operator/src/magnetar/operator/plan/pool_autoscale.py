"""The number of bookies where the operator sets it by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from magnetar.operator.plan.actions import Scale
from magnetar.operator.plan.bookie_scale import BookieAdvice, wanted_bookies
from magnetar.operator.plan.pool_draft import Draft
from magnetar.operator.plan.pool_members import PoolView
from magnetar.operator.resources.bookie import UsageSample


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What autoscaling remembers."""

    history: Sequence[UsageSample] = ()
    scaled_at: str | None = None


def plan_autoscaling(view: PoolView, draft: Draft) -> Usage:
    """Set the resource's own number, where everybody sees it: the next pass goes by that."""
    seen = view.seen
    if seen.spec.autoscaling is None:
        return Usage()
    if (advice := _advice(view)) is None:
        return Usage(history=seen.status.usage_history, scaled_at=seen.status.scaled_at)
    if advice.replicas != seen.spec.replicas:
        draft.do(Scale("Bookie", seen.owner.name, seen.owner.uid, advice.replicas))
        draft.tell("Autoscaled", f"from {seen.spec.replicas} to {advice.replicas} bookies: {advice.reason}")
        draft.waiting("Autoscaling", f"{advice.replicas} bookies are wanted: {advice.reason}", busy=True)
    return Usage(history=advice.usage_history, scaled_at=advice.scaled_at)


def count_matters(view: PoolView) -> bool:
    """Whether a bookie could go if no ledger lacks replicas."""
    advice = _advice(view)
    return advice is not None and advice.needs_count


def _advice(view: PoolView) -> BookieAdvice | None:
    """None while the number changes: what is measured is of another one."""
    seen = view.seen
    if seen.spec.autoscaling is None or seen.resource.deleting or view.hibernated:
        return None
    if view.leaving or view.desired != view.wanted:
        return None
    return wanted_bookies(
        seen.spec,
        view.ensemble_size,
        seen.spec.replicas,
        [member.facts for member in view.members if member.facts is not None],
        seen.writable_elsewhere,
        seen.status,
        seen.under_replicated_ledgers,
        seen.now_seconds,
    )
