"""The number of bookies where the operator sets it by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from magnetar.operator.plan.actions import Scale
from magnetar.operator.plan.bookie_scale import SILENT_SECONDS, BookieAdvice, wanted_bookies
from magnetar.operator.plan.pool.builder import PlanBuilder
from magnetar.operator.plan.pool.members import PoolView
from magnetar.operator.resources.bookie import UsageSample


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageHistory:
    """What autoscaling remembers."""

    history: Sequence[UsageSample] = ()
    scaled_at: str | None = None


def plan_autoscaling(view: PoolView, builder: PlanBuilder) -> UsageHistory:
    """Set the resource's own number, where everybody sees it: the next pass goes by that."""
    seen = view.seen
    if seen.spec.autoscaling is None:
        return UsageHistory()
    if (advice := _advice(view)) is None:
        return UsageHistory(history=seen.status.usage_history, scaled_at=seen.status.scaled_at)
    if advice.replicas != seen.spec.replicas:
        builder.do(Scale("Bookie", seen.owner.name, seen.owner.uid, advice.replicas))
        builder.tell("Autoscaled", f"from {seen.spec.replicas} to {advice.replicas} bookies: {advice.reason}")
        builder.waiting("Autoscaling", f"{advice.replicas} bookies are wanted: {advice.reason}", busy=True)
    return UsageHistory(history=advice.usage_history, scaled_at=advice.scaled_at)


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
    limits, current = seen.spec.autoscaling, seen.spec.replicas
    advice = wanted_bookies(
        seen.spec,
        view.ensemble_asked,
        current,
        [member.facts for member in view.members if member.facts is not None],
        seen.writable_elsewhere,
        seen.status,
        seen.under_replicated_ledgers if view.ensemble_known else None,
        seen.now_seconds,
    )
    if advice.replicas > current >= limits.min_replicas and _some_only_start(view, limits.stabilization_seconds):
        return replace(advice, replicas=current, scaled_at=seen.status.scaled_at)
    return advice


def _some_only_start(view: PoolView, stabilization_seconds: float) -> bool:
    """Whether a bookie that does not answer may still be about to: more are not made for that. How long the pool has
    not been ready does not tell: it may have slept, waited for its cluster, or lacked something else."""
    patience_seconds = max(SILENT_SECONDS, stabilization_seconds)
    for member in view.staying:
        pod = member.pod
        if member.facts is not None or (pod is not None and pod.ready):
            continue
        if pod is None:
            return True
        if view.seen.now_seconds - max(pod.created_seconds, pod.readiness_changed_seconds) < patience_seconds:
            return True
    return False
