"""Whatever is seen, also of different moments: no bookie that may be needed is taken away."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from magnetar.operator.children.naming import REPLACE_ANNOTATION
from magnetar.operator.plan.actions import (
    Apply,
    CancelBookieDrain,
    Create,
    Delete,
    EmitEvent,
    Plan,
    RetireLostBookie,
    StartBookieDrain,
)
from magnetar.operator.plan.facts import ClaimFacts, PodFacts, PoolSeen
from magnetar.operator.plan.pool.plan import plan_pool
from magnetar.operator.plan.pool.questions import pool_questions
from magnetar.operator.resources.bookie import BookieStatus
from operator_fakes.plan_builders import NOW
from operator_fakes.pool_builders import DONE, PoolWorld, bookie_id, of, pod_name, stateful_of

NUMBERS = range(13)
"""Two digits among them."""


def some(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[int, Any]]:
    """Of few bookies, or of all alike: of many at random nothing would come to pass."""
    alike = st.builds(lambda value: dict.fromkeys(NUMBERS, value), strategy)
    return st.dictionaries(st.sampled_from(NUMBERS), strategy, max_size=4) | alike


def facts(**optional: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=optional)


BOOLEANS = st.booleans()
NUMBER_SETS = st.frozensets(st.sampled_from(NUMBERS)).map(sorted)
RANGES = st.integers(0, 13).map(range)

PODS = facts(
    ready=BOOLEANS,
    deleting=BOOLEANS,
    phase=st.sampled_from(["Pending", "Running", "Failed"]),
    waiting_reason=st.sampled_from(["", "CrashLoopBackOff", "ContainerCreating"]),
    exit_code=st.sampled_from([None, 0, 1, 2, 3, 4, 5]),
    restarts=st.integers(0, 4),
    template_hash=st.just("old"),
    annotations=st.just({REPLACE_ANNOTATION: "true"}),
    created_seconds=st.sampled_from([NOW - 3600, NOW - 40, NOW - 10]),
)
BOOKIES = st.sampled_from([None, DONE, DONE | {"writable": True}]) | facts(
    drain=st.sampled_from(["None", "ReadOnly", "Replicate", "Verify", "RemoveCookie", "Done"]),
    writable=BOOLEANS,
    bookie_id=st.just("another:3181"),
)
LOST = facts(
    registered=BOOLEANS, has_cookie=BOOLEANS, ledgers_left=st.integers(0, 2), bookie_id=st.just("another:3181")
)
CLAIMS = facts(deleting=BOOLEANS, created_seconds=st.sampled_from([NOW - 7200, NOW - 60]), expandable=BOOLEANS)
STATEFUL = facts(
    settled=BOOLEANS,
    replicas=st.integers(0, 13),
    deleting=BOOLEANS,
    template_hash=st.just("old"),
    claim_sizes=st.just({"journal": "1Gi", "ledgers": "50Gi"}),
)

WORLDS = st.builds(
    PoolWorld,
    replicas=st.integers(0, 13),
    desired=st.integers(-1, 13),
    numbers=st.none() | RANGES | NUMBER_SETS,
    claimed=st.none() | RANGES | NUMBER_SETS,
    pods=some(PODS),
    bookies=some(BOOKIES),
    lost=some(LOST),
    claims=some(CLAIMS),
    stateful=st.just({}) | STATEFUL,
    cluster=st.sampled_from([{}, {}, {}, {"hibernated": True}, {"paused": True}]),
    cluster_status=st.sampled_from([{}, {}, {"conditions": []}, {"brokers": {"replicas": 1}}]),
    cluster_missing=st.sampled_from([False] * 9 + [True]),
    cluster_deleting=st.sampled_from([False] * 9 + [True]),
    deleting=st.sampled_from([False, False, True]),
    writable_elsewhere=st.integers(0, 3),
    under_replicated=st.sampled_from([None, 0, 0, 3]),
    status=st.sampled_from([BookieStatus(), BookieStatus(replicas=3)]),
)


class Truth:
    """What the facts prove, told anew."""

    def __init__(self, seen: PoolSeen) -> None:
        self.seen = seen
        self.pods = {pod.ordinal: pod for pod in seen.children.pods}
        self.claims: dict[int, list[ClaimFacts]] = {}
        for claim in seen.children.claims:
            self.claims.setdefault(claim.ordinal, []).append(claim)
        self.stateful = next(iter(seen.children.workloads.values()), None)
        self.desired = self.stateful.desired if self.stateful is not None else 0

    def answers(self, number: int) -> bool:
        found = self.seen.bookies.get(pod_name(number))
        return number in self.pods and found is not None and found.bookie_id == bookie_id(number)

    def unknown(self, number: int) -> bool:
        """Another bookie says that the cluster does not know it."""
        lost = self.seen.lost.get(pod_name(number))
        if lost is None or lost.bookie_id != bookie_id(number):
            return False
        return not (lost.registered or lost.has_cookie or lost.ledgers_left)

    def runs_not(self, number: int) -> bool:
        pod = self.pods.get(number)
        if pod is None:
            return True
        return not pod.ready and (pod.phase in ("Pending", "Failed", "Succeeded") or bool(pod.waiting_reason))

    def drained(self, number: int) -> bool:
        if self.answers(number):
            found = self.seen.bookies[pod_name(number)]
            return found.drain == "Done" and not found.writable
        return self.unknown(number) and self.runs_not(number) and self.has_its_own_volumes(number)

    def has_its_own_volumes(self, number: int) -> bool:
        pod = self.pods.get(number)
        if pod is None:
            return number >= self.desired
        if pod.exit_code in (3, 5):
            return True
        fresh = all(claim.created_seconds >= pod.created_seconds - 30 for claim in self.claims.get(number, ()))
        return pod.exit_code != 4 and (fresh or self.seen.now_seconds - pod.created_seconds >= 120)

    def never_was(self, number: int) -> bool:
        stateful = self.stateful
        if number in self.pods or number in self.claims or stateful is None:
            return False
        return stateful.settled and len(self.pods) >= stateful.replicas and self.unknown(number)


def check_number(truth: Truth, plan: Plan) -> None:
    action = stateful_of(plan)
    if action is None:
        return
    replicas = action.manifest["spec"]["replicas"]
    metadata = action.manifest["metadata"]
    if truth.stateful is not None:
        assert isinstance(action, Apply)
        assert metadata["uid"] == truth.stateful.uid
        assert metadata["resourceVersion"] == truth.stateful.resource_version
    else:
        assert isinstance(action, Create)
    cluster = truth.seen.cluster
    assert cluster is not None
    if cluster.spec.hibernated:
        if truth.stateful is None:
            assert replicas == 1 + max(number for number, pod in truth.pods.items() if not pod.deleting)
        else:
            assert replicas in (0, truth.desired)
        return
    for number in range(replicas, truth.desired):
        assert truth.drained(number) or truth.never_was(number), number
    for number, pod in truth.pods.items():
        if number >= max(replicas, truth.desired) and not pod.deleting:
            assert truth.drained(number), number
    if truth.stateful is None:
        for number in truth.claims:
            assert number < replicas or truth.drained(number) or number in truth.pods, number


def check_claims(truth: Truth, plan: Plan) -> None:
    claims = {claim.uid: claim for found in truth.claims.values() for claim in found}
    applied = False
    for action in plan.actions:
        if isinstance(action, Apply) and action.manifest["kind"] == "StatefulSet":
            applied = True
        if not isinstance(action, Delete) or action.kind != "PersistentVolumeClaim":
            continue
        claim = claims[action.uid]
        assert truth.drained(claim.ordinal)
        pod: PodFacts | None = truth.pods.get(claim.ordinal)
        assert pod is None or truth.answers(claim.ordinal) or pod.exit_code != 4
        if pod is None:
            assert applied
            assert claim.ordinal >= truth.desired
            assert truth.unknown(claim.ordinal)
        else:
            assert claim.created_seconds <= pod.created_seconds
            assert Delete("Pod", pod.name, pod.uid, reason="it is drained, and starts again with empty volumes") in [
                *plan.actions
            ]


def check_bookies(truth: Truth, plan: Plan, wanted: int) -> None:
    numbers = {pod_name(number): number for number in NUMBERS}
    for action in plan.actions:
        if isinstance(action, StartBookieDrain):
            number = numbers[action.pod]
            assert truth.answers(number)
            assert number >= wanted or REPLACE_ANNOTATION in truth.pods[number].annotations
        elif isinstance(action, CancelBookieDrain):
            assert numbers[action.pod] < wanted
        elif isinstance(action, RetireLostBookie):
            number = next(number for number in NUMBERS if bookie_id(number) == action.bookie_id)
            assert not truth.answers(number)
            assert not truth.seen.lost[pod_name(number)].registered
            assert truth.runs_not(number)


@settings(max_examples=15, deadline=None)
@given(WORLDS)
def test_whatever_is_seen(world: PoolWorld) -> None:
    check(world)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None)
@given(WORLDS)
def test_whatever_else_is_seen(world: PoolWorld) -> None:
    check(world)


def check(world: PoolWorld) -> None:
    seen = world.seen()
    plan = plan_pool(seen)
    truth = Truth(seen)
    check_number(truth, plan)
    check_claims(truth, plan)
    check_bookies(truth, plan, 0 if world.deleting else world.replicas)
    restarts = [action for action in of(plan, Delete) if action.kind == "Pod"]
    goes = world.deleting and (world.cluster_missing or world.cluster_deleting)
    assert len(restarts) <= 1 or goes
    assert {action.kind for action in of(plan, Delete)} <= {"Pod", "PersistentVolumeClaim", "StatefulSet"}
    assert all(action.orphan for action in of(plan, Delete) if action.kind == "StatefulSet")
    if world.cluster.get("paused") and not world.cluster_missing and not world.cluster_deleting:
        assert all(isinstance(action, EmitEvent) for action in plan.actions) or world.deleting
    msgspec.convert(plan.status, BookieStatus)
    assert plan.requeue_after_seconds in (2, 30, 60)
    questions = pool_questions(seen)
    assert all(not truth.answers(int(pod.rsplit("-", 1)[1])) for pod, _ in questions.lost)
