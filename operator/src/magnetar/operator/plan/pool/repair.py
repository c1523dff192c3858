"""Bookies that start anew: replaced ones, those with lost disks; and pods that are restarted, one a pass at most."""

from __future__ import annotations

from collections.abc import Sequence

from magnetar.core.exit_codes import EXIT_EMPTY_VOLUME, EXIT_RETIRED
from magnetar.operator.children.naming import REPLACE_ANNOTATION, to_be_replaced
from magnetar.operator.plan.actions import Annotate, Delete, EmitEvent, RetireLostBookie, StartBookieDrain
from magnetar.operator.plan.facts import PodFacts
from magnetar.operator.plan.pool.builder import PlanBuilder
from magnetar.operator.plan.pool.members import DOWN_SECONDS, Member, PoolView
from magnetar.operator.plan.pool.scale import ensemble_words, kept, progress, waits_for_brokers


def plan_fresh_starts(view: PoolView, builder: PlanBuilder) -> None:
    """One drained bookie that is to stay gets empty volumes; one whose lost entries are stored elsewhere again is
    started."""
    for member in kept(view):
        pod = member.pod
        if pod is None or pod.deleting:
            continue
        if _starts_empty(member):
            _empty(member, pod, builder)
            return
        if member.volume_code == EXIT_EMPTY_VOLUME and member.nameless:
            # What it has mounted is empty already: only the pause before its next start is cut short. Should there be
            # something left on one of its volumes, it ends as retired then.
            builder.do(Delete("Pod", pod.name, pod.uid, reason="its entries are stored elsewhere: it may start empty"))
            builder.tell("DiskReplaced", f"what {member.name} has lost is stored elsewhere again: it starts empty")
            builder.restarted = True
            return


def _starts_empty(member: Member) -> bool:
    """It is drained, and would not start with these volumes, or a person wants others."""
    if not member.drained:
        return False
    return member.facts is not None or member.volume_code == EXIT_RETIRED or member.replaced


def _empty(member: Member, pod: PodFacts, builder: PlanBuilder) -> None:
    """Claims first: without the pod they would be bound to the next one."""
    # Claims that are younger than the pod are not those that it has mounted: the next pod's, if the pod was not seen
    # as it is. Once the pod is restarted, it is younger than they are.
    old = [claim for claim in member.claims_kept if claim.created_seconds <= pod.created_seconds]
    for claim in old:
        builder.do(Delete("PersistentVolumeClaim", claim.name, claim.uid, reason=f"{member.name} is drained"))
    builder.do(Delete("Pod", pod.name, pod.uid, reason="it is drained, and starts again with empty volumes"))
    builder.tell(
        "BookieReplaced", f"all that {member.name} held is stored elsewhere: it starts again with empty volumes"
    )
    builder.restarted, builder.emptied = True, member.name


def plan_lost(view: PoolView, replicas: int, builder: PlanBuilder) -> None:
    """Have the others take over what bookies held that cannot serve it, and say what is the matter with volumes."""
    for member in view.members:
        code = member.volume_code
        if member.wrong_volume:
            words = member.pod.exit_message.strip() if member.pod is not None else ""
            builder.stalled(
                "WrongVolume",
                f"{member.name} has volumes of another bookie or cluster, or settings of other directories, and is "
                f"left alone: {words or 'see its log'}. Put back what was changed; or, if its data is not needed, "
                "delete the pod and its claims",
            )
        elif member.last_volume_code == EXIT_EMPTY_VOLUME:
            _say_lost(view, member, builder)
        if _is_lost(view, member, replicas, code):
            builder.ask(RetireLostBookie(member.bookie_id))


def _is_lost(view: PoolView, member: Member, replicas: int, code: int | None) -> bool:
    """Whether the others are to take over what it held, and the cluster to forget it."""
    lost = member.lost
    if lost is None or lost.registered or member.nameless or not member.stopped:
        return False
    if code == EXIT_EMPTY_VOLUME:
        return True
    if not lost.has_cookie:
        # It cannot start any more, whatever its volumes hold; others must have copies.
        return code == EXIT_RETIRED or (member.pod is None and member.ordinal >= max(replicas, view.wanted))
    pod = member.pod
    if pod is None or pod.deleting or member.wrong_volume:
        return False
    goes = member.replaced or member.ordinal >= view.wanted
    return goes and member.pod_seconds >= DOWN_SECONDS


def _say_lost(view: PoolView, member: Member, builder: PlanBuilder) -> None:
    lost = member.lost
    what = f"{member.name} has lost the contents of a volume"
    if lost is None:
        builder.waiting("ReplacingDisk", f"{what}; no bookie answers that could have its ledgers copied")
    elif lost.registered:
        builder.waiting("ReplacingDisk", f"{what}; its registration is still there", busy=True)
    else:
        builder.waiting(
            "ReplacingDisk",
            f"{what}; {lost.ledgers_left} ledgers are still to be copied from other bookies, then it starts empty",
            busy=True,
        )


def plan_replacements(view: PoolView, builder: PlanBuilder) -> None:
    """Drain one of the bookies that are to be replaced; those that do not run are left to `plan_lost`."""
    chosen = [member for member in view.staying if member.replaced]
    if not chosen:
        return
    _keep_wishes(chosen, builder)
    under_way = [member for member in chosen if member.draining or member.drained]
    if under_way:
        told = [f"{member.name}: {progress(member.facts)}" for member in under_way if member.facts is not None]
        builder.waiting("Replacing", "; ".join(told) or f"{under_way[0].name} is drained", busy=True)
        return
    member = chosen[0]
    if member.facts is None:
        builder.waiting(
            "Replacing",
            f"{member.name} is to be replaced but does not answer: waiting for the pod, or for the others to have "
            f"copied its ledgers once it has been down for {DOWN_SECONDS:.0f} s",
        )
        return
    if any(other.draining for other in view.members):
        builder.waiting("Replacing", f"{member.name} is replaced when no other bookie of the pool is drained")
        return
    if waits_for_brokers(view, builder):
        return
    others = view.staying_elsewhere + sum(
        1 for other in view.staying if other is not member and other.facts is not None and other.facts.writable
    )
    if others < view.ensemble_asked:
        builder.stalled(
            "ReplacementNeedsBookies",
            f"{member.name} is to be replaced, but without it {others} bookies take writes, and ledgers are spread "
            f"over {ensemble_words(view)}: add a bookie first, or remove the annotation {REPLACE_ANNOTATION}",
        )
        return
    message = f"{member.name} is to be replaced: it moves all its ledgers to other bookies"
    builder.ask(StartBookieDrain(member.name), EmitEvent("Normal", "DrainStarted", message))
    builder.waiting("Replacing", f"{member.name}: its drain begins", busy=True)


def _keep_wishes(chosen: Sequence[Member], builder: PlanBuilder) -> None:
    """Say it again on pods that have taken the place of those that were annotated: there it is seen and taken back."""
    for member in chosen:
        pod = member.pod
        if pod is None or pod.deleting or to_be_replaced(pod.annotations) or member.name == builder.emptied:
            continue
        builder.do(Annotate("Pod", pod.name, pod.uid, ((REPLACE_ANNOTATION, "true"),)))
        words = f"{member.name} was to be replaced when its pod went: that goes on with the new one"
        builder.tell("ReplacementGoesOn", f"{words}, until {REPLACE_ANNOTATION} is removed from it")
