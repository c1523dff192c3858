"""Fewer and more bookies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from magnetar.operator.plan.actions import Apply, CancelBookieDrain, Delete, RetireLostBookie, StartBookieDrain
from magnetar.operator.plan.facts import PoolFacts
from magnetar.operator.plan.pool.plan import plan_pool
from magnetar.operator.resources.bookie import BookieStatus
from operator_fakes.plan_builders import NOW
from operator_fakes.pool_builders import (
    CRASHED,
    DONE,
    STATEFUL,
    PoolWorld,
    deleted,
    member_of,
    of,
    pod_name,
    replicas_of,
    said,
    stateful_of,
    told,
)

COPYING: dict[str, Any] = {"drain": "Replicate", "ledgers_total": 40, "ledgers_left": 12, "bytes_per_second": 3_000_000}


YOUNG: dict[str, Any] = {"ready": False, "phase": "Pending", "created_seconds": NOW - 60}


def drains(world: PoolWorld) -> list[str]:
    return [action.pod for action in of(plan_pool(world.seen()), StartBookieDrain)]


def test_more_bookies_are_made_at_once() -> None:
    plan = plan_pool(PoolWorld(replicas=5, desired=3).seen())
    assert replicas_of(plan) == 5
    assert "ScaledOut" in told(plan)
    assert plan.requeue_after_seconds == 2
    assert plan.status["phase"] == "Scaling out"


def test_fewer_bookies_are_drained_first_all_at_once() -> None:
    plan = plan_pool(PoolWorld(replicas=3, desired=5).seen())
    assert [action.pod for action in of(plan, StartBookieDrain)] == [pod_name(3), pod_name(4)]
    assert stateful_of(plan) is None
    assert told(plan).count("DrainStarted") == 1
    assert plan.status["phase"] == "Draining"


def test_a_drain_is_started_once_and_its_progress_is_told() -> None:
    plan = plan_pool(PoolWorld(replicas=3, desired=4, bookies={3: COPYING}).seen())
    assert not of(plan, StartBookieDrain)
    assert said(plan, "Reconciling") == (
        "True",
        "Draining",
        "blue-bookie-3: Replicate, 12 of 40 ledgers left, 3.0 MB/s",
    )
    member = member_of(plan, 3)
    assert member["state"] == "Draining"
    assert member["drain"] == {"step": "Replicate", "ledgersTotal": 40, "ledgersLeft": 12, "bytesPerSecond": 3_000_000}
    assert plan.requeue_after_seconds == 2


@pytest.mark.parametrize(
    ("finished", "stays"),
    [
        pytest.param([3, 4], 3, id="all"),
        pytest.param([4], 4, id="the highest"),
        pytest.param([3], 5, id="one below another that is not"),
        pytest.param([], 5, id="none"),
    ],
)
def test_the_number_falls_over_drained_bookies_at_the_end_only(finished: list[int], stays: int) -> None:
    bookies: dict[int, dict[str, Any] | None] = {n: (DONE if n in finished else COPYING) for n in (3, 4)}
    plan = plan_pool(PoolWorld(replicas=3, desired=5, bookies=bookies).seen())
    assert replicas_of(plan) == (stays if stays < 5 else None)
    assert ("BookieRemoved" in told(plan)) == (stays < 5)


def test_numbers_are_compared_as_numbers() -> None:
    world = PoolWorld(replicas=9, desired=12)
    assert drains(world) == [pod_name(9), pod_name(10), pod_name(11)]
    world.bookies = {9: COPYING, 10: DONE, 11: DONE}
    assert replicas_of(plan_pool(world.seen())) == 10


def test_the_statefulset_is_changed_only_if_it_is_the_one_that_was_seen() -> None:
    action = stateful_of(plan_pool(PoolWorld(replicas=3, desired=4, bookies={3: DONE}).seen()))
    assert isinstance(action, Apply)
    assert action.manifest["metadata"]["uid"] == f"{STATEFUL}-uid"
    assert action.manifest["metadata"]["resourceVersion"] == "41"


def test_a_done_bookie_that_takes_writes_is_not_drained() -> None:
    world = PoolWorld(replicas=3, desired=4, bookies={3: {"drain": "Done", "writable": True}})
    assert stateful_of(plan_pool(world.seen())) is None


def test_who_answers_under_another_name_proves_nothing() -> None:
    other = "blue-bookie-3.blue-bookie.there.svc.cluster.local:3181"
    world = PoolWorld(replicas=3, desired=4, bookies={3: DONE | {"bookie_id": other}})
    assert stateful_of(plan_pool(world.seen())) is None
    world = PoolWorld(replicas=3, desired=4, pods={3: CRASHED}, lost={3: {"bookie_id": other}})
    assert stateful_of(plan_pool(world.seen())) is None


@pytest.mark.parametrize(
    ("pod", "lost", "shrinks"),
    [
        pytest.param(CRASHED | {"exit_code": 5}, {}, True, id="retired, and the cluster does not know it"),
        pytest.param(CRASHED | {"exit_code": 5}, None, False, id="retired, nobody can say more"),
        pytest.param(CRASHED | {"exit_code": 5}, {"ledgers_left": 2}, False, id="retired, ledgers name it"),
        pytest.param(CRASHED | {"exit_code": 3}, {}, True, id="its disk is lost, and copied from the others"),
        pytest.param(CRASHED | {"exit_code": 4}, {}, False, id="its volumes are another bookie's"),
        pytest.param(YOUNG, {}, False, id="its volumes are older than its pod: whose are they?"),
        pytest.param(YOUNG | {"created_seconds": NOW - 7199}, {}, True, id="never started"),
        pytest.param({"ready": False, "phase": "Pending"}, {}, True, id="down for long"),
        pytest.param({"ready": False, "phase": "Pending"}, None, False, id="never started, as far as one sees"),
        pytest.param({"ready": False}, {}, False, id="starting: it may be about to register"),
        pytest.param({"ready": False, "deleting": True}, {}, False, id="stopping: it may run still"),
        pytest.param(CRASHED, {"registered": True}, False, id="was there a moment ago"),
        pytest.param(CRASHED, {"has_cookie": True}, False, id="known to the cluster"),
        pytest.param({}, {}, False, id="ready without an answer"),
    ],
)
def test_a_silent_bookie_goes_if_another_proves_that_it_holds_nothing(
    pod: dict[str, Any], lost: dict[str, Any] | None, shrinks: bool
) -> None:
    world = PoolWorld(
        replicas=3, desired=4, pods={3: pod}, bookies={3: None}, lost={3: lost} if lost is not None else {}
    )
    assert replicas_of(plan_pool(world.seen())) == (3 if shrinks else None)


def test_a_bookie_that_was_never_made_may_go() -> None:
    world = PoolWorld(replicas=3, desired=5, numbers=range(3), stateful={"replicas": 3}, lost={3: {}, 4: {}})
    assert replicas_of(plan_pool(world.seen())) == 3
    # Its volumes may have been deleted by hand.
    world.lost = {3: {}, 4: {"has_cookie": True}}
    assert stateful_of(plan_pool(world.seen())) is None
    world.lost = {}
    assert stateful_of(plan_pool(world.seen())) is None


@pytest.mark.parametrize(
    "stateful",
    [
        pytest.param({"replicas": 5}, id="its controller counts pods that we do not see"),
        pytest.param({"replicas": 3, "settled": False}, id="its controller may just make them"),
    ],
)
def test_pods_that_are_not_seen_yet_count(stateful: dict[str, Any]) -> None:
    world = PoolWorld(replicas=3, desired=5, numbers=range(3), stateful=stateful, lost={3: {}, 4: {}})
    assert stateful_of(plan_pool(world.seen())) is None


def test_a_pod_beyond_the_number_was_made_after_the_statefulset_was_seen() -> None:
    world = PoolWorld(replicas=4, desired=3, numbers=range(6))
    assert replicas_of(plan_pool(world.seen())) == 6
    world.pods = {4: {"deleting": True}, 5: {"deleting": True}}
    assert replicas_of(plan_pool(world.seen())) == 4


@pytest.mark.parametrize(
    ("step", "cancelled"),
    [("ReadOnly", True), ("Replicate", True), ("Verify", True), ("RemoveCookie", False), ("Done", False)],
)
def test_a_wish_that_grows_again_cancels_drains(step: str, cancelled: bool) -> None:
    plan = plan_pool(PoolWorld(replicas=5, bookies={4: {"drain": step, "writable": False}}).seen())
    assert [action.pod for action in of(plan, CancelBookieDrain)] == ([pod_name(4)] if cancelled else [])


def test_a_bookie_that_was_drained_and_is_to_stay_starts_empty() -> None:
    plan = plan_pool(PoolWorld(replicas=5, bookies={4: DONE}).seen())
    kinds = [action.kind for action in of(plan, Delete)]
    assert kinds == ["PersistentVolumeClaim", "PersistentVolumeClaim", "Pod"]
    assert deleted(plan, "Pod") == [pod_name(4)]
    assert not of(plan, CancelBookieDrain)


def test_volumes_go_when_the_number_has_gone_and_another_bookie_proves_it() -> None:
    world = PoolWorld(replicas=3, claimed=range(4), lost={3: {}})
    plan = plan_pool(world.seen())
    assert deleted(plan, "PersistentVolumeClaim") == [f"journal-{pod_name(3)}", f"ledgers-{pod_name(3)}"]
    assert isinstance(plan.actions[0], Apply)
    first = next(n for n, action in enumerate(plan.actions) if isinstance(action, Delete))
    assert any(
        isinstance(action, Apply) and action.manifest["kind"] == "StatefulSet" for action in plan.actions[:first]
    )


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"lost": {}}, id="nobody says"),
        pytest.param({"lost": {3: {"registered": True}}}, id="still registered"),
        pytest.param({"lost": {3: {"ledgers_left": 1}}}, id="a ledger names it"),
        pytest.param({"numbers": range(4), "lost": {3: {}}, "pods": {3: {"ready": False}}}, id="its pod is there"),
        pytest.param({"stateful": {"settled": False}}, id="the controller has not seen the number"),
        pytest.param({"desired": 4, "numbers": range(3)}, id="the number has not fallen"),
        pytest.param({"replicas": 4, "desired": 3}, id="the number is to grow"),
    ],
)
def test_volumes_stay_without_proof(change: dict[str, Any]) -> None:
    usual: dict[str, Any] = {"replicas": 3, "claimed": range(4), "lost": {3: {}}}
    plan = plan_pool(PoolWorld(**(usual | change)).seen())
    assert not deleted(plan, "PersistentVolumeClaim")


def test_a_bookie_that_was_stopped_undrained_comes_back_to_be_drained() -> None:
    plan = plan_pool(PoolWorld(replicas=3, claimed=range(5), lost={4: {"has_cookie": True}}).seen())
    assert replicas_of(plan) == 5


def test_one_that_cannot_come_back_is_retired() -> None:
    plan = plan_pool(PoolWorld(replicas=3, claimed=range(4), lost={3: {"ledgers_left": 4}}).seen())
    assert stateful_of(plan) is None
    assert len(of(plan, RetireLostBookie)) == 1


def test_fewer_than_an_ensemble_is_refused() -> None:
    plan = plan_pool(PoolWorld(replicas=1, desired=3).seen())
    assert not of(plan, StartBookieDrain)
    status, reason, message = said(plan, "Stalled")
    assert (status, reason) == ("True", "EnsembleTooLarge")
    assert "set replicas to 2 at least" in message.lower()
    assert "EnsembleTooLarge" in told(plan)


def test_drains_that_run_are_not_stopped_by_a_wish_that_is_refused() -> None:
    world = PoolWorld(replicas=1, desired=3, bookies={2: COPYING})
    plan = plan_pool(world.seen())
    assert not of(plan, StartBookieDrain)
    assert not of(plan, CancelBookieDrain)
    world.bookies = {2: DONE}
    assert replicas_of(plan_pool(world.seen())) == 2


def test_other_pools_bookies_count_unless_they_are_to_go_too() -> None:
    world = PoolWorld(replicas=0, desired=2, writable_elsewhere=3)
    assert drains(world) == [pod_name(0), pod_name(1)]
    other = PoolFacts(name="red", uid="red-uid", generation=1, deleting=False, replicas=0, status=BookieStatus())
    world.others = [other]
    assert drains(world) == []


def test_bookies_of_a_pool_that_is_deleted_count_for_nothing() -> None:
    world = PoolWorld(replicas=0, desired=2, writable_elsewhere=3)
    staying = PoolFacts(name="red", uid="red-uid", generation=1, deleting=False, replicas=3, status=BookieStatus())
    world.others = [staying]
    assert drains(world) == [pod_name(0), pod_name(1)]
    world.others = [replace(staying, deleting=True)]
    assert drains(world) == []


def test_drains_wait_for_bookies_that_take_writes() -> None:
    world = PoolWorld(replicas=2, desired=3, pods={0: {"ready": False}})
    plan = plan_pool(world.seen())
    assert not of(plan, StartBookieDrain)
    assert said(plan, "Stalled")[0] == "False"
    assert "1 do" in said(plan, "Reconciling")[2]


def test_a_silent_bookie_that_is_to_go_is_retired_in_time() -> None:
    pod = {"ready": False, "phase": "Pending", "waiting_reason": "Unschedulable"}
    world = PoolWorld(replicas=3, desired=4, pods={3: pod}, lost={3: {"has_cookie": True, "ledgers_left": 3}})
    assert len(of(plan_pool(world.seen()), RetireLostBookie)) == 1
    world.pods = {3: pod | {"created_seconds": world.now - 60}}
    assert not of(plan_pool(world.seen()), RetireLostBookie)
    world.pods, world.lost = {3: pod}, {3: {"has_cookie": True, "registered": True}}
    assert not of(plan_pool(world.seen()), RetireLostBookie)
