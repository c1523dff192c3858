"""What has to be asked of bookies before a pool can be planned, for asking walks through the ledgers' metadata."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.core.errors import Misuse
from magnetar.core.exit_codes import EXIT_EMPTY_VOLUME, EXIT_RETIRED
from magnetar.operator.plan.facts import PoolSeen
from magnetar.operator.plan.pool import autoscale
from magnetar.operator.plan.pool.children import pool_children
from magnetar.operator.plan.pool.members import Member, PoolView, view_of
from magnetar.operator.plan.pool.rollout import count_matters


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """To any bookie of the cluster that answers, but for the last one."""

    count_under_replicated: bool
    """How many ledgers lack replicas."""
    lost: tuple[tuple[str, str], ...]
    """What is known of these bookies: their pods' names, there may be no such pod, and their ids."""
    largest_ensemble: bool = False
    """How many bookies ledgers are spread over where it is most: asked of brokers."""


NOTHING = Questions(count_under_replicated=False, lost=())


def pool_questions(seen: PoolSeen) -> Questions:
    """By all but the answers: pods and claims were seen, and the bookies' own facts."""
    cluster, resource = seen.cluster, seen.cluster_resource
    if cluster is None or cluster.spec.hibernated or (resource is not None and resource.deleting):
        return NOTHING
    view = view_of(seen, cluster)
    return Questions(
        count_under_replicated=_count(view),
        lost=tuple((member.name, member.bookie_id) for member in view.members if _ask_about(view, member)),
        largest_ensemble=_would_drain(view) or autoscale.count_matters(view),
    )


def _would_drain(view: PoolView) -> bool:
    going = (member for member in view.members if member.ordinal >= view.wanted or member.replaced)
    return any(member.facts is not None and member.facts.drain == "None" for member in going)


def _count(view: PoolView) -> bool:
    if autoscale.count_matters(view):
        return True
    try:
        return count_matters(view, pool_children(view, view.desired).template_hash)
    except Misuse:
        return False


def _ask_about(view: PoolView, member: Member) -> bool:
    if member.facts is not None:
        return False
    if member.ordinal >= view.wanted:
        return True
    return member.stopped and (member.replaced or member.volume_code in (EXIT_EMPTY_VOLUME, EXIT_RETIRED))
