"""How many pods a pool's StatefulSet is to have, and what bookies that go or stay are told."""

from __future__ import annotations

from typing import Final

from magnetar.core.exit_codes import EXIT_EMPTY_VOLUME
from magnetar.operator.plan.actions import CancelBookieDrain, Delete, EmitEvent, StartBookieDrain
from magnetar.operator.plan.conditions import holds
from magnetar.operator.plan.facts import BookieFacts
from magnetar.operator.plan.pool.builder import NAMED_MAX, PlanBuilder, named
from magnetar.operator.plan.pool.members import Member, PoolView

METADATA_READY: Final = "MetadataReady"

CANCELLABLE: Final = frozenset({"ReadOnly", "Replicate", "Verify"})
"""Steps of a drain with a way back."""


def replicas_to_apply(view: PoolView, builder: PlanBuilder) -> int | None:
    """What the StatefulSet is to have by now; None: it is not there, and it is not time to make it."""
    if view.hibernated:
        return _replicas_hibernated(view, builder)
    replicas = allowed_replicas(view)
    if view.stateful is None:
        return replicas if _may_begin(view, replicas, builder) else None
    if view.desired == 0 < replicas and not zookeeper_serves(view):
        builder.waiting("WaitingForZookeeper", "bookies are started when all ZooKeeper servers are ready")
        return view.desired
    return replicas


def allowed_replicas(view: PoolView) -> int:
    """The wish, or more: as many as the highest bookie needs to stay that is not proven to be drained; and spare ones
    where too few are left to copy to."""
    resumes = view.stateful is None or (view.desired == 0 and view.wanted > 0)
    needed = [member.ordinal + 1 for member in view.leaving if _is_needed(view, member, resumes=resumes)]
    return max([view.wanted + spares(view), *needed])


def spares(view: PoolView) -> int:
    """How many bookies more than wanted are to run for a while: so many have lost their disks that the rest are fewer
    than an ensemble. Nobody could then take over what was lost, and the lost ones could never start empty."""
    lost = [member for member in view.staying if member.volume_code == EXIT_EMPTY_VOLUME]
    if not any(member.lost is not None and member.lost.ledgers_left for member in lost):
        return 0
    rest = [member for member in view.staying if member.facts is None or not member.facts.writable]
    if any(member.volume_code is None for member in rest):
        # One that only starts may be enough.
        return 0
    return max(0, view.ensemble_size - (len(view.staying) - len(rest)) - view.staying_elsewhere)


def kept(view: PoolView) -> list[Member]:
    """The members that are to run and take writes, spare ones too."""
    wanted = view.wanted + spares(view)
    return [member for member in view.members if member.ordinal < wanted]


def _is_needed(view: PoolView, member: Member, *, resumes: bool) -> bool:
    """Whether a bookie that is to go must have a pod still."""
    if member.drained:
        return False
    if member.ordinal < view.desired:
        return not _never_was(view, member)
    if member.pod is not None:
        # On its way out; or the StatefulSet was not seen as it is.
        return not member.pod.deleting
    if not member.claims:
        return False
    # Its pod is gone. Started again, it can be drained, if it can start: the cluster must know it.
    return resumes or (member.lost is not None and member.lost.has_cookie)


def _never_was(view: PoolView, member: Member) -> bool:
    """Its pod was not made: the StatefulSet's controller has seen the number, and counts no pod that we do not see."""
    stateful = view.stateful
    if stateful is None or not stateful.settled or member.pod is not None or member.claims:
        return False
    return len(view.pods) >= stateful.replicas and member.nameless


def _replicas_hibernated(view: PoolView, builder: PlanBuilder) -> int | None:
    if view.stateful is None:
        # It was being made anew around its pods: without it they would run on.
        return max((pod.ordinal + 1 for pod in view.pods if not pod.deleting), default=None)
    status, resource = view.seen.cluster_status, view.seen.cluster_resource
    if view.desired == 0 or status is None or resource is None:
        return view.desired
    known = status.observed_generation == resource.generation
    read_only = status.read_only_brokers.replicas if status.read_only_brokers is not None else 0
    if known and status.brokers.replicas == status.proxies.replicas == read_only == 0:
        return 0
    builder.waiting("Hibernating", "bookies stop when no proxy and no broker is left")
    return view.desired


def _may_begin(view: PoolView, replicas: int, builder: PlanBuilder) -> bool:
    if view.seen.resource.deleting and replicas == 0:
        return False
    status = view.seen.cluster_status
    if status is not None and holds(status.conditions, METADATA_READY):
        return True
    builder.waiting(
        "WaitingForMetadata",
        f"bookies are made when PulsarCluster {view.cluster.name} has its condition {METADATA_READY}: see its "
        "conditions for what it waits for",
    )
    return False


def zookeeper_serves(view: PoolView) -> bool:
    """All servers of the operator's own ensemble run as they should."""
    if not view.cluster.runs_zookeeper:
        return True
    status = view.seen.cluster_status
    if status is None:
        return False
    found = status.zookeeper
    return 0 < found.desired_replicas == found.ready_replicas == found.updated_replicas == found.replicas


def plan_drains(view: PoolView, replicas: int, builder: PlanBuilder) -> None:
    """Start the drains of those that go, cancel those of others, say how far they are."""
    cancelled = [
        member.name
        for member in kept(view)
        if member.facts is not None and member.facts.drain in CANCELLABLE and not member.replaced
    ]
    if cancelled:
        builder.ask(*map(CancelBookieDrain, cancelled))
        builder.ask(EmitEvent("Normal", "DrainCancelled", f"they stay and take writes again: {named(cancelled)}"))
    going = [member for member in view.leaving if member.ordinal < replicas and not member.drained]
    if not going:
        return
    fresh = [member for member in going if member.facts is not None and member.facts.drain == "None"]
    if fresh and _may_drain(view, builder):
        # All at once: what one of them holds must not go to the next.
        names = [member.name for member in fresh]
        why = "the pool is deleted" if view.seen.resource.deleting else f"{view.wanted} replicas are wanted"
        builder.ask(*map(StartBookieDrain, names))
        words = f"{why}: all ledgers are moved to other bookies from {named(names)}"
        if view.seen.largest_ensemble is None:
            words += f"; no broker runs that could say whether a namespace asks for more than {view.ensemble_size}"
        builder.ask(EmitEvent("Normal", "DrainStarted", words))
    if any(member.draining for member in going) or (fresh and view.ensemble_known and not builder.stalls):
        builder.waiting("Draining", _progress(going), busy=True)
    silent = [member for member in going if member.facts is None]
    if silent:
        builder.waiting(
            "WaitingForBookies",
            f"these do not answer, so they cannot be drained: {named([member.name for member in silent])}. Each goes "
            "when it answers and is drained, or when another bookie says that no ledger names it",
        )


def _may_drain(view: PoolView, builder: PlanBuilder) -> bool:
    if waits_for_brokers(view, builder):
        return False
    size, elsewhere, whose = view.ensemble_asked, view.staying_elsewhere, view.larger_ensemble_of
    if view.wanted + elsewhere < size:
        if view.seen.resource.deleting:
            advice = (
                "deleted alone, a pool is drained first: make another pool, or delete the PulsarCluster, which takes "
                "its pools with it"
            )
        else:
            fewer = f"have {whose} ask for fewer" if whose else "lower bookkeeper.ensembleSize of the cluster"
            advice = f"set replicas to {size - elsewhere} at least, or {fewer}"
        builder.stalled(
            "EnsembleTooLarge",
            f"{view.wanted} bookies here and {elsewhere} that take writes in other pools are fewer than the "
            f"{ensemble_words(view)} that ledgers are spread over: none is drained. "
            f"{advice[0].upper()}{advice[1:]}",
        )
        return False
    ready = sum(1 for member in view.staying if member.facts is not None and member.facts.writable) + elsewhere
    if ready < size:
        builder.waiting(
            "WaitingForBookies",
            f"drains begin when {size} of the bookies that stay take writes, as many as ledgers are spread over: "
            f"{ready} do",
        )
        return False
    return True


def waits_for_brokers(view: PoolView, builder: PlanBuilder) -> bool:
    """Whether it is still to be found out how many bookies must be left."""
    if not view.ensemble_known:
        builder.waiting(
            "WaitingForBrokers",
            "no bookie is drained until a broker says how many bookies the ledgers of namespaces are spread over",
            busy=True,
        )
    return not view.ensemble_known


def ensemble_words(view: PoolView) -> str:
    """How many bookies must be left, and who asks for so many."""
    whose = view.larger_ensemble_of
    return f"{view.ensemble_asked} (by {whose})" if whose else str(view.ensemble_asked)


def _progress(going: list[Member]) -> str:
    parts = [f"{member.name}: {progress(member.facts)}" for member in going[:NAMED_MAX] if member.facts is not None]
    more = len(going) - len(parts)
    return "; ".join(parts) + (f"; {more} more" if more > 0 else "")


def progress(facts: BookieFacts) -> str:
    """How far a drain is, for people."""
    if facts.drain == "None":
        return "its drain begins"
    found = f"{facts.drain}, {facts.ledgers_left} of {facts.ledgers_total} ledgers left"
    if facts.bytes_per_second:
        found += f", {facts.bytes_per_second / 1e6:.1f} MB/s"
    if facts.blockers:
        found += f", held up by {'; '.join(facts.blockers[:NAMED_MAX])}"
    return found


def claims_to_delete(view: PoolView, replicas: int) -> list[Delete]:
    """Claims of numbers that are gone, each proven to hold nothing that the cluster needs."""
    stateful = view.stateful
    if stateful is None or stateful.deleting or not stateful.settled or view.hibernated:
        return []
    gone = max(replicas, view.desired, view.wanted)
    return [
        Delete(
            "PersistentVolumeClaim", claim.name, claim.uid, reason=f"{member.name} has gone, all is stored elsewhere"
        )
        for member in view.members
        if member.ordinal >= gone and member.pod is None and member.nameless and not member.wrong_volume
        for claim in member.claims_kept
    ]


def tell_scaling(view: PoolView, replicas: int, builder: PlanBuilder) -> None:
    """Events of the StatefulSet's number."""
    before = view.desired
    if view.stateful is None:
        if not view.pods:
            builder.tell("PoolStarted", f"{replicas} bookies are made")
    elif replicas > before:
        why = ", for too few are left to copy to what others have lost" if spares(view) else ""
        builder.tell("ScaledOut", f"from {before} to {replicas} bookies{why}")
    elif replicas < before and not view.hibernated:
        gone = [member.name for member in view.members if replicas <= member.ordinal < before]
        builder.tell("BookieRemoved", f"{named(gone)}: drained, and stopped for good; {replicas} bookies stay")
    elif replicas < before:
        builder.tell("Hibernated", f"{before} bookies stop, their volumes stay")
