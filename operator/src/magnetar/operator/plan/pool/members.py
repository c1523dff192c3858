"""The bookies of a pool by number: what was seen of each, and whether it is proven that nothing is lost with it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Final

from magnetar.core.exit_codes import EXIT_EMPTY_VOLUME, EXIT_RETIRED, EXIT_WRONG_VOLUME
from magnetar.operator.children.context import BOOKIE_PORT, ClusterContext
from magnetar.operator.children.naming import BOOKIE, REPLACE_ANNOTATION, to_be_replaced
from magnetar.operator.plan.facts import BookieFacts, ClaimFacts, LostBookieFacts, PodFacts, PoolSeen, WorkloadFacts
from magnetar.operator.resources.bookie import BookieMember, Replacement

_STOPPED_PHASES: Final = frozenset({"Pending", "Failed", "Succeeded"})

DOWN_SECONDS: Final = 120.0
"""How long a pod that does not run is waited for before the others do without it: as long as AutoRecovery waits."""

CLAIM_SECONDS: Final = 30.0
"""A pod's claims are made just before the pod itself; older ones another pod had before."""

STARTING: Final = "Starting"
WRONG_VOLUME: Final = "WrongVolume"
"""States of a pool member, as its status names them."""

_VOLUME_CODES: Final = frozenset({EXIT_EMPTY_VOLUME, EXIT_WRONG_VOLUME, EXIT_RETIRED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One ordinal of the pool's StatefulSet, of which there is a pod or a claim, or should be a pod."""

    ordinal: int
    name: str
    """The name of its pod, whether or not there is one."""
    bookie_id: str
    pod: PodFacts | None = None
    claims: tuple[ClaimFacts, ...] = ()
    facts: BookieFacts | None = None
    """What the pod that was seen answers, if it does, under this bookie's own name."""
    lost: LostBookieFacts | None = None
    pod_expected: bool = False
    """The StatefulSet is to have it."""
    pod_seconds: float = 0.0
    """How long its pod has been there."""
    had_wrong_volume: bool = False
    """It was last said to have another bookie's volumes. That only ever keeps something from being done."""

    remembered: Replacement | None = None
    """The wish to replace it, as it was written down last."""

    @property
    def stopped(self) -> bool:
        """No process of it runs, as far as was seen: there is no pod, or its container waits to be started. One that
        has ended a moment ago or was just started is neither stopped nor answers."""
        if self.facts is not None:
            return False
        pod = self.pod
        return pod is None or (not pod.ready and (pod.phase in _STOPPED_PHASES or bool(pod.waiting_reason)))

    @property
    def volume_code(self) -> int | None:
        """With which of the exit codes about its volumes it has ended, and has not been started again."""
        return self.last_volume_code if self.stopped else None

    @property
    def last_volume_code(self) -> int | None:
        """The exit code for people: also while it is being started again, to end so once more or not."""
        pod = self.pod
        if pod is None or pod.ready or self.facts is not None or pod.exit_code not in _VOLUME_CODES:
            return None
        if pod.deleting and pod.running and not self.had_wrong_volume:
            # It ran, and is told to stop: the code is of an earlier run.
            return None
        return pod.exit_code

    @property
    def draining(self) -> bool:
        """Whether the bookie moves everything elsewhere, and has not finished."""
        return self.facts is not None and self.facts.drain not in ("None", "Done")

    @property
    def wrong_volume(self) -> bool:
        """Its volumes are another's; or were, and no process has started with them since that could say otherwise."""
        if self.last_volume_code is not None:
            return self.last_volume_code == EXIT_WRONG_VOLUME
        serves = self.facts is not None or (self.pod is not None and self.pod.ready)
        return self.had_wrong_volume and bool(self.claims_kept) and not serves

    @property
    def nameless(self) -> bool:
        """The cluster knows nothing of it: no registration, no cookie, no ledger names it."""
        lost = self.lost
        return lost is not None and not lost.registered and not lost.has_cookie and lost.ledgers_left == 0

    @property
    def drained(self) -> bool:
        """Proven: nothing that the cluster needs is on its volumes, and nothing will be by itself.

        Either it says so: its drain is done, it takes no writes, and it could not start again with these volumes. Or
        it does not run, another bookie says that the cluster does not know it, and it is known whose volumes it has."""
        if self.facts is not None:
            return self.facts.drain == "Done" and not self.facts.writable
        return self.nameless and self.stopped and self._has_its_own_volumes

    @property
    def _has_its_own_volumes(self) -> bool:
        """As far as can be known: they may have been exchanged, which only a bookie that starts with them finds out."""
        pod = self.pod
        if pod is None:
            return not self.pod_expected
        if self.wrong_volume or self.last_volume_code is not None:
            return not self.wrong_volume
        made_for_it = all(claim.created_seconds >= pod.created_seconds - CLAIM_SECONDS for claim in self.claims)
        return made_for_it or self.pod_seconds >= DOWN_SECONDS

    @property
    def replaced(self) -> bool:
        """A person wants it to start anew with empty volumes."""
        return (self.pod is not None and to_be_replaced(self.pod.annotations)) or self.replacement is not None

    @property
    def replacement(self) -> Replacement | None:
        """That wish, as it is to be remembered. It is about volumes, so it ends with them; a pod that never had the
        annotation takes nothing back."""
        pod, before = self.pod, self.remembered
        if pod is not None and REPLACE_ANNOTATION in pod.annotations:
            # Younger ones are the next pod's.
            old = [claim.uid for claim in self.claims_kept if claim.created_seconds <= pod.created_seconds]
            wanted = to_be_replaced(pod.annotations) and old
            return Replacement(pod_uid=pod.uid, claim_uids=old) if wanted else None
        if before is None or (pod is not None and pod.uid == before.pod_uid):
            return None
        return before if any(claim.uid in before.claim_uids for claim in self.claims_kept) else None

    @property
    def claims_kept(self) -> tuple[ClaimFacts, ...]:
        """The claims of the member that nobody has deleted yet."""
        return tuple(claim for claim in self.claims if not claim.deleting)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """A pool in its cluster."""

    seen: PoolSeen
    cluster: ClusterContext
    name: str
    """The name of the StatefulSet."""
    stateful: WorkloadFacts | None
    members: tuple[Member, ...]
    """By number: 2 comes before 10."""
    wanted: int
    """How many bookies there should be in the end."""

    @property
    def desired(self) -> int:
        """How many the StatefulSet has been told to run."""
        return self.stateful.desired if self.stateful is not None else 0

    @property
    def ensemble_size(self) -> int:
        """How many bookies must take writes, or no ledger can be made."""
        return self.cluster.spec.bookkeeper.ensemble_size

    @property
    def ensemble_asked(self) -> int:
        """The ensemble that somebody may ask for: so many must be left if bookies are drained."""
        asked = self.seen.largest_ensemble
        return max(self.ensemble_size, asked.size if asked is not None else 0)

    @property
    def ensemble_known(self) -> bool:
        """Whether brokers could say who asks for more. Where none is ready, none needs them now."""
        status = self.seen.cluster_status
        return self.seen.largest_ensemble is not None or status is None or not status.brokers.ready_replicas

    @property
    def larger_ensemble_of(self) -> str:
        """Who asks for more than the cluster; empty: nobody that is known."""
        asked = self.seen.largest_ensemble
        return asked.wanted_by if asked is not None and asked.size > self.ensemble_size else ""

    @property
    def hibernated(self) -> bool:
        """Whether nothing of the pool should run."""
        return self.cluster.spec.hibernated

    @property
    def pods(self) -> list[PodFacts]:
        """The pods of the pool, by number."""
        return [member.pod for member in self.members if member.pod is not None]

    @property
    def leaving(self) -> list[Member]:
        """The members with numbers that nobody wants any more."""
        return [member for member in self.members if member.ordinal >= self.wanted]

    @property
    def staying(self) -> list[Member]:
        """The members that stay."""
        return [member for member in self.members if member.ordinal < self.wanted]

    @property
    def writable(self) -> int:
        """Bookies of the pool that take writes."""
        return sum(1 for member in self.members if member.facts is not None and member.facts.writable)

    @property
    def staying_elsewhere(self) -> int:
        """Writable bookies of the cluster's other pools that are not to go themselves."""
        seen = self.seen
        if not seen.others:
            return seen.writable_elsewhere
        return min(seen.writable_elsewhere, sum(0 if other.deleting else other.replicas for other in seen.others))


def view_of(seen: PoolSeen, cluster: ClusterContext) -> PoolView:
    """Who is who. Objects whose names are not those that the StatefulSet gives are nobody's."""
    name = cluster.bookie(seen.owner.name)
    stateful = seen.children.workloads.get(("StatefulSet", name))
    pods = {
        number: replace(pod, ordinal=number)
        for pod in seen.children.of(BOOKIE, seen.owner.name)
        if (number := _number(pod.name, name)) is not None
    }
    claims: defaultdict[int, list[ClaimFacts]] = defaultdict(list)
    for claim in sorted(seen.children.claims, key=lambda claim: claim.name):
        is_its = claim.component == BOOKIE and claim.pool == seen.owner.name
        if is_its and claim.ordinal >= 0 and claim.name == f"{claim.volume}-{name}-{claim.ordinal}":
            claims[claim.ordinal].append(claim)
    desired = stateful.desired if stateful is not None else 0
    address = cluster.address(name)
    members = [
        Member(
            ordinal=number,
            name=f"{name}-{number}",
            bookie_id=f"{name}-{number}.{address}:{BOOKIE_PORT}",
            pod=pods.get(number),
            claims=tuple(claims[number]),
            pod_expected=number < desired,
        )
        for number in sorted({*pods, *claims, *range(desired)})
    ]
    before = {member.name: member for member in seen.status.members}
    return PoolView(
        seen=seen,
        cluster=cluster,
        name=name,
        stateful=stateful,
        members=tuple(_with_answers(seen, member, before.get(member.name)) for member in members),
        wanted=0 if seen.resource.deleting else seen.spec.replicas,
    )


def _number(pod: str, stateful: str) -> int | None:
    """The number of a pod, also of one that has no StatefulSet just now."""
    tail = pod.removeprefix(f"{stateful}-")
    return int(tail) if tail.isdecimal() and pod == f"{stateful}-{int(tail)}" else None


def _with_answers(seen: PoolSeen, member: Member, before: BookieMember | None) -> Member:
    pod, facts, lost = member.pod, seen.bookies.get(member.name), seen.lost.get(member.name)
    # An address may be another's by now: who answers must be who was meant.
    answers = pod is not None and facts is not None and facts.bookie_id == member.bookie_id
    return replace(
        member,
        facts=facts if answers else None,
        lost=lost if lost is not None and lost.bookie_id == member.bookie_id else None,
        had_wrong_volume=before is not None and before.state == WRONG_VOLUME,
        remembered=before.replacement if before is not None else None,
        pod_seconds=seen.now_seconds - pod.created_seconds if pod is not None else 0.0,
    )
