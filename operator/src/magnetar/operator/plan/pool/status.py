"""What is said of a pool: its members, its conditions, its phase, and what has happened since that was last said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from magnetar.core.exit_codes import EXIT_EMPTY_VOLUME, EXIT_RETIRED
from magnetar.operator.children.naming import BOOKIE, label_text, selector
from magnetar.operator.children.owned import pool_settings_without_effect
from magnetar.operator.plan.actions import EmitEvent
from magnetar.operator.plan.conditions import (
    GETS_ON,
    READY,
    RECONCILING,
    STALLED,
    NewCondition,
    condition,
    conditions,
    newly_ignored,
    settings_in_effect,
    shortened,
)
from magnetar.operator.plan.facts import BookieFacts, PoolSeen
from magnetar.operator.plan.pool.builder import PlanBuilder, PlanNote, named
from magnetar.operator.plan.pool.members import STARTING, WRONG_VOLUME, Member, PoolView
from magnetar.operator.plan.rollout import broken, trouble
from magnetar.operator.resources.bookie import BookieMember, BookieStatus, DrainProgress, UsageSample
from magnetar.operator.resources.common import Condition

WRITABLE: Final = "Writable"
HIBERNATED: Final = "Hibernated"

BLOCKERS_NAMED_MAX: Final = 5
"""In a member's drain: the bookie itself names more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusFacts:
    """What the plan has found besides what was seen."""

    wanted_hash: str
    replicas: int | None
    """The replicas that the StatefulSet has by now; None: there is none yet."""
    usage_history: Sequence[UsageSample]
    scaled_at: str | None


def pool_status(view: PoolView, builder: PlanBuilder, facts: StatusFacts) -> BookieStatus:
    """The whole status."""
    seen, pods = view.seen, view.pods
    resource = seen.cluster_resource
    new_conditions = _new_conditions(view, builder, facts)
    return BookieStatus(
        observed_generation=seen.resource.generation,
        replicas=len(pods),
        ready_replicas=sum(pod.ready and not pod.deleting for pod in pods),
        updated_replicas=sum(pod.template_hash == facts.wanted_hash and not pod.deleting for pod in pods),
        writable_replicas=view.writable,
        cluster_generation=resource.generation if resource is not None else 0,
        scaled_at=facts.scaled_at,
        usage_history=list(facts.usage_history),
        selector=label_text(selector(view.cluster.name, BOOKIE, seen.owner.name)),
        members=_members(view, builder),
        phase=_phase(view, builder, new_conditions[0]),
        conditions=conditions(seen.status.conditions, new_conditions, seen.resource.generation, seen.now_seconds),
    )


def simple_status(seen: PoolSeen, builder: PlanBuilder) -> BookieStatus:
    """Without a cluster: what was known, and why nothing is done."""
    notes = [*builder.stalls, *builder.waits]
    note = notes[0] if notes else PlanNote("Deleting", "nothing holds the pool any more")
    new_conditions = [
        NewCondition(READY, False, note.reason, note.message),
        NewCondition(RECONCILING, not builder.stalls, note.reason, note.message),
        NewCondition(STALLED, bool(builder.stalls), note.reason if builder.stalls else GETS_ON, note.message),
    ]
    return msgspec.structs.replace(
        seen.status,
        observed_generation=seen.resource.generation,
        selector=label_text(selector(seen.spec.cluster_name, BOOKIE, seen.owner.name)),
        phase=note.phase,
        conditions=conditions(seen.status.conditions, new_conditions, seen.resource.generation, seen.now_seconds),
    )


def written(status: BookieStatus) -> dict[str, Any]:
    """The status in the form of JSON."""
    found = msgspec.to_builtins(status)
    assert isinstance(found, dict)
    return found


def transitions(before: BookieStatus, now: BookieStatus) -> list[EmitEvent]:
    """What has happened since. What the plan does itself it tells with the action."""
    found = []
    states = {member.name: member.state for member in before.members}
    drained = [
        member.name for member in now.members if member.state == "Drained" and states.get(member.name) == "Draining"
    ]
    if drained:
        found.append(EmitEvent("Normal", "DrainDone", f"all that {named(drained)} held is stored elsewhere"))
    for member in now.members:
        if member.state == "DeadDisk" and states.get(member.name, "DeadDisk") != "DeadDisk":
            words = "the others copy its ledgers from what they have, then it starts empty"
            found.append(EmitEvent("Warning", "DiskLost", f"{member.name} has lost the contents of a volume: {words}"))
    found += _healing(before, now)
    old, new = condition(before.conditions, STALLED), condition(now.conditions, STALLED)
    was = old.reason if old is not None and old.status == "True" else ""
    if new is not None and new.status == "True" and new.reason != was:
        found.append(EmitEvent("Warning", new.reason, new.message))
    elif was and new is not None and new.status != "True":
        found.append(EmitEvent("Normal", "Recovered", f"it works again; the trouble was: {was}"))
    if (ignored := newly_ignored(before.conditions, now.conditions)) is not None:
        found.append(EmitEvent("Warning", ignored.reason, ignored.message))
    old, new = condition(before.conditions, READY), condition(now.conditions, READY)
    if old is not None and new is not None and _works(new) and not _works(old):
        found.append(EmitEvent("Normal", "Ready", new.message))
    return found


def _healing(before: BookieStatus, now: BookieStatus) -> list[EmitEvent]:
    """The condition of bookies that have lost entries and get them back. One that does not answer is where it was."""
    found = []
    lacked = {member.name: member.limbo_ledgers for member in before.members}
    for member in now.members:
        if member.limbo_ledgers and not lacked.get(member.name):
            found.append(EmitEvent("Warning", "InLimbo", f"{member.name}: {member.message}"))
        elif lacked.get(member.name) and not member.limbo_ledgers:
            found.append(EmitEvent("Normal", "Healed", f"{member.name} is out of limbo"))
    return found


def _limbo_words(facts: BookieFacts) -> str:
    if not facts.limbo_ledgers:
        return ""
    words = f"{facts.limbo_ledgers} ledgers may lack entries on its disks, and are healed from the other bookies"
    if not facts.limbo_ledgers_unhealed:
        return words
    return f"{words}; {facts.limbo_ledgers_unhealed} cannot be for now, {facts.limbo_entries_lost} entries are lost"


def _works(ready: Condition) -> bool:
    return ready.status == "True" and ready.reason != HIBERNATED


def _new_conditions(view: PoolView, builder: PlanBuilder, facts: StatusFacts) -> list[NewCondition]:
    return [
        _ready(view, builder, facts),
        _reconciling(view, builder),
        NewCondition(STALLED, True, builder.stalls[0].reason, _joined(builder.stalls))
        if builder.stalls
        else NewCondition(STALLED, False, GETS_ON, "nothing needs a person"),
        _writable(view),
        settings_in_effect(pool_settings_without_effect(view.cluster, view.seen.spec)),
    ]


def _joined(notes: Sequence[PlanNote]) -> str:
    return " | ".join(note.message for note in notes)


def _ready(view: PoolView, builder: PlanBuilder, facts: StatusFacts) -> NewCondition:
    if view.hibernated and not view.seen.resource.deleting:
        if view.pods or view.desired or builder.stalls:
            return NewCondition(
                READY, False, "Hibernating", "bookies stop, for the cluster is to sleep; all volumes stay"
            )
        # As is wished: who waits for that waits no longer.
        return NewCondition(READY, True, HIBERNATED, "no pods run, for the cluster is hibernated; all volumes stay")
    notes = [*builder.stalls, *builder.waits]
    if notes:
        return NewCondition(READY, False, notes[0].reason, notes[0].message)
    if facts.replicas is None or len(view.pods) != view.wanted or view.desired != view.wanted:
        return NewCondition(READY, False, "Scaling", f"{len(view.pods)} of {view.wanted} bookies are there")
    return NewCondition(READY, True, "AllReady", f"{view.wanted} of {view.wanted} bookies are ready and up to date")


def _reconciling(view: PoolView, builder: PlanBuilder) -> NewCondition:
    if view.cluster.spec.paused:
        return NewCondition(RECONCILING, False, "Paused", "nothing is done, for the cluster is paused")
    if builder.waits:
        return NewCondition(RECONCILING, True, builder.waits[0].reason, _joined(builder.waits))
    return NewCondition(RECONCILING, False, "Idle", "all is done that can be done by now")


def _writable(view: PoolView) -> NewCondition:
    """The condition of the pool's own bookies: whether each takes writes that should, and whether there are enough."""
    found, size = view.writable + view.seen.writable_elsewhere, view.ensemble_size
    refusing = [
        f"{member.name} ({'; '.join(member.facts.read_only_reasons) or 'read-only'})"
        for member in view.members
        if member.facts is not None and not member.facts.writable
    ]
    words = f"{view.writable} of {len(view.pods)} bookies take writes"
    if refusing:
        words += f"; not {named(refusing)}"
    if found < size:
        advice = f"ledgers are spread over {size} bookies, and {found} of the cluster take writes: add bookies"
        return NewCondition(WRITABLE, False, "TooFewBookies", f"{words}; {advice}, or make room on their disks")
    return NewCondition(WRITABLE, True, "EnoughBookies", words)


def _phase(view: PoolView, builder: PlanBuilder, ready: NewCondition) -> str:
    if view.cluster.spec.paused:
        return "Paused"
    if builder.stalls:
        return STALLED
    if view.seen.resource.deleting:
        return "Deleting"
    if view.hibernated:
        return "Hibernating" if view.pods else "Hibernated"
    if builder.waits:
        return builder.waits[0].phase
    return READY if ready.holds else "Scaling"


def _is_member(view: PoolView, member: Member) -> bool:
    """Hibernated, a bookie is its volumes."""
    return member.pod is not None or member.ordinal < view.desired or bool(member.claims)


def _members(view: PoolView, builder: PlanBuilder) -> list[BookieMember]:
    """In the order in which they were written before, for the API server keeps it; newer ones follow by number."""
    known = {member.name: place for place, member in enumerate(view.seen.status.members)}
    found = [member for member in view.members if _is_member(view, member)]
    found.sort(key=lambda member: (known.get(member.name, len(known)), member.ordinal))
    return [_member(view, member, emptied=member.name == builder.emptied) for member in found]


def _member(view: PoolView, member: Member, *, emptied: bool) -> BookieMember:
    facts = member.facts
    state, message = _state(view, member)
    known = next((one for one in view.seen.status.members if one.name == member.name), None)
    drain = None
    if facts is not None and facts.drain != "None":
        drain = DrainProgress(
            step=facts.drain,
            ledgers_total=facts.ledgers_total,
            ledgers_left=facts.ledgers_left,
            bytes_per_second=facts.bytes_per_second,
            message="; ".join(facts.blockers[:BLOCKERS_NAMED_MAX]),
        )
    return BookieMember(
        name=member.name,
        bookie_id=member.bookie_id,
        state=state,
        limbo_ledgers=facts.limbo_ledgers if facts is not None else known.limbo_ledgers if known is not None else 0,
        disk_usage_percent=facts.disk_usage_percent if facts is not None and facts.total_bytes else None,
        message=message,
        drain=drain,
        replacement=None if emptied else member.replacement,
    )


def _state(view: PoolView, member: Member) -> tuple[str, str]:
    pod, facts = member.pod, member.facts
    if facts is not None:
        if facts.drain == "Done":
            return "Drained", "all that it held is stored elsewhere"
        if facts.drain != "None":
            return "Draining", ""
        if facts.writable:
            return "Writable", _limbo_words(facts)
        return "ReadOnly", "; ".join([*facts.read_only_reasons, *filter(None, [_limbo_words(facts)])])
    if member.last_volume_code is not None and pod is not None:
        return _state_of_volumes(member, shortened(pod.exit_message.strip()))
    if pod is None:
        return _state_without_pod(view, member)
    if member.wrong_volume:
        return WRONG_VOLUME, "its volumes were another's when a process last started with them"
    if pod.deleting:
        return "Down", "its pod is stopping"
    if broken(pod):
        return "Down", shortened(trouble(pod))
    if pod.ready:
        return "Down", "its pod is ready, but it does not answer at its control port"
    return STARTING, pod.waiting_message or pod.waiting_reason


def _state_without_pod(view: PoolView, member: Member) -> tuple[str, str]:
    if view.hibernated:
        return "Down", "hibernated"
    if member.wrong_volume:
        return WRONG_VOLUME, "its pod has gone; its claims are left alone, for they were another's"
    if member.ordinal < view.desired:
        return STARTING, "its pod is being made"
    return ("Drained", "its volumes are deleted") if member.nameless else ("Down", "its volumes are still there")


def _state_of_volumes(member: Member, last_words: str) -> tuple[str, str]:
    lost = member.lost
    left = f"{lost.ledgers_left} ledgers name it still" if lost is not None else "no other bookie could be asked"
    if member.wrong_volume:
        return WRONG_VOLUME, last_words
    if member.last_volume_code == EXIT_EMPTY_VOLUME:
        return "DeadDisk", "it is to start empty" if member.nameless else left
    assert member.last_volume_code == EXIT_RETIRED
    if member.nameless:
        return "Drained", "the cluster does not know it any more"
    return "Down", f"the cluster does not know it any more; {left}"
