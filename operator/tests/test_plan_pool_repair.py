"""Replacements and lost disks."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from magnetar.operator.children.naming import REPLACE_ANNOTATION
from magnetar.operator.plan.actions import Annotate, CancelBookieDrain, Delete, RetireLostBookie, StartBookieDrain
from magnetar.operator.plan.pool.plan import plan_pool
from magnetar.operator.resources.bookie import BookieMember, BookieStatus
from operator_fakes.plan_builders import NOW
from operator_fakes.pool_builders import (
    CRASHED,
    DONE,
    PoolWorld,
    bookie_id,
    deleted,
    member_of,
    of,
    pod_name,
    replicas_of,
    said,
    stateful_of,
    status_of,
    told,
)

REPLACE: dict[str, Any] = {"annotations": {REPLACE_ANNOTATION: "true"}}
EMPTY_DISK: dict[str, Any] = CRASHED | {"exit_code": 3, "exit_message": "holds no cookie"}
WRONG: dict[str, Any] = CRASHED | {"exit_code": 4, "exit_message": "the cookie has another instanceId"}
RETIRED: dict[str, Any] = CRASHED | {"exit_code": 5}


def test_any_bookie_is_replaced_by_an_annotation() -> None:
    world = PoolWorld(replicas=4, pods={1: REPLACE})
    plan = plan_pool(world.seen())
    assert of(plan, StartBookieDrain) == [StartBookieDrain(pod_name(1))]
    world.bookies = {1: {"drain": "Replicate"}}
    plan = plan_pool(world.seen())
    assert not of(plan, CancelBookieDrain)
    assert plan.status["phase"] == "Replacing"
    world.bookies = {1: DONE}
    plan = plan_pool(world.seen())
    assert deleted(plan, "Pod") == [pod_name(1)]
    assert len(deleted(plan, "PersistentVolumeClaim")) == 2
    assert stateful_of(plan) is None
    assert "BookieReplaced" in told(plan)


NEW_POD: dict[str, Any] = {"uid": "of-the-new-pod"}


def in_the_middle_of_a_replacement() -> PoolWorld:
    """The drain of bookie 1 is under way, and that it is wished is written down."""
    world = PoolWorld(replicas=4, pods={1: REPLACE}, bookies={1: {"drain": "Replicate"}})
    plan = plan_pool(world.seen())
    assert member_of(plan, 1)["replacement"]["claimUids"]
    world.status = status_of(plan)
    world.pods = {1: NEW_POD}
    return world


def test_a_replacement_goes_on_when_its_pod_was_evicted() -> None:
    world = in_the_middle_of_a_replacement()
    remembered = world.status
    world.numbers, world.claimed = (0, 2, 3), range(4)
    plan = plan_pool(world.seen())
    assert member_of(plan, 1)["replacement"] == msgspec.to_builtins(remembered.members[1].replacement)
    world.numbers, world.status = None, status_of(plan)
    plan = plan_pool(world.seen())
    assert of(plan, Annotate) == [Annotate("Pod", pod_name(1), "of-the-new-pod", ((REPLACE_ANNOTATION, "true"),))]
    assert not of(plan, CancelBookieDrain)
    assert "ReplacementGoesOn" in told(plan)
    # Until the annotation is seen it is of the earlier pod: nobody has taken it back.
    world.status = status_of(plan)
    assert of(plan_pool(world.seen()), Annotate)
    world.pods = {1: NEW_POD | REPLACE}
    plan = plan_pool(world.seen())
    assert not of(plan, Annotate)
    assert member_of(plan, 1)["replacement"]["podUid"] == "of-the-new-pod"


def test_a_bookie_that_did_not_drain_yet_is_replaced_all_the_same() -> None:
    world = in_the_middle_of_a_replacement()
    world.bookies = {}
    plan = plan_pool(world.seen())
    assert of(plan, StartBookieDrain) == [StartBookieDrain(pod_name(1))]


def test_a_replacement_is_taken_back_by_removing_the_annotation() -> None:
    world = in_the_middle_of_a_replacement()
    world.pods = {}
    plan = plan_pool(world.seen())
    assert of(plan, CancelBookieDrain) == [CancelBookieDrain(pod_name(1))]
    assert "DrainCancelled" in told(plan)
    assert "replacement" not in member_of(plan, 1)
    world.status, world.pods = status_of(plan), {1: NEW_POD}
    assert not of(plan_pool(world.seen()), Annotate)


def test_it_is_taken_back_of_a_new_pod_that_does_not_have_it_yet() -> None:
    world = in_the_middle_of_a_replacement()
    world.pods = {1: NEW_POD | {"annotations": {REPLACE_ANNOTATION: "false"}}}
    plan = plan_pool(world.seen())
    assert of(plan, CancelBookieDrain) == [CancelBookieDrain(pod_name(1))]
    assert not of(plan, Annotate)
    assert "replacement" not in member_of(plan, 1)


def test_a_replacement_ends_with_the_volumes_it_was_about() -> None:
    world = in_the_middle_of_a_replacement()
    before = world.status
    world.pods, world.bookies = {1: REPLACE}, {1: DONE}
    plan = plan_pool(world.seen())
    assert deleted(plan, "Pod") == [pod_name(1)]
    assert "replacement" not in member_of(plan, 1)
    # Even if that could not be written down any more.
    world.status, world.pods, world.bookies = before, {1: NEW_POD}, {}
    world.claims = {1: {"uid": "of-a-new-volume"}}
    plan = plan_pool(world.seen())
    assert not of(plan, Annotate)
    assert not of(plan, StartBookieDrain)
    assert "replacement" not in member_of(plan, 1)


def test_a_new_pod_that_is_drained_is_emptied_without_more_ado() -> None:
    world = in_the_middle_of_a_replacement()
    world.bookies = {1: DONE}
    plan = plan_pool(world.seen())
    assert deleted(plan, "Pod") == [pod_name(1)]
    assert not of(plan, Annotate)


def test_without_its_annotation_a_drain_is_cancelled() -> None:
    plan = plan_pool(PoolWorld(replicas=4, bookies={1: {"drain": "Replicate"}}).seen())
    assert of(plan, CancelBookieDrain) == [CancelBookieDrain(pod_name(1))]


def test_one_is_replaced_at_a_time() -> None:
    world = PoolWorld(replicas=5, pods={1: REPLACE, 3: REPLACE})
    assert of(plan_pool(world.seen()), StartBookieDrain) == [StartBookieDrain(pod_name(1))]
    world.bookies = {3: {"drain": "Verify"}}
    assert not of(plan_pool(world.seen()), StartBookieDrain)


def test_a_replacement_needs_others() -> None:
    plan = plan_pool(PoolWorld(replicas=2, pods={0: REPLACE}).seen())
    assert not of(plan, StartBookieDrain)
    assert said(plan, "Stalled")[:2] == ("True", "ReplacementNeedsBookies")


def test_a_replacement_waits_for_other_drains() -> None:
    world = PoolWorld(replicas=3, desired=4, pods={0: REPLACE}, bookies={3: {"drain": "Replicate"}})
    assert not of(plan_pool(world.seen()), StartBookieDrain)


def test_a_bookie_that_is_down_is_replaced_once_the_others_have_its_ledgers() -> None:
    pod = REPLACE | {"ready": False, "phase": "Pending", "waiting_reason": "Unschedulable"}
    world = PoolWorld(replicas=4, pods={2: pod}, lost={2: {"has_cookie": True, "ledgers_left": 7}})
    plan = plan_pool(world.seen())
    assert of(plan, RetireLostBookie) == [RetireLostBookie(bookie_id(2))]
    assert not of(plan, Delete)
    world.lost = {2: {}}
    plan = plan_pool(world.seen())
    assert deleted(plan, "Pod") == [pod_name(2)]
    assert len(deleted(plan, "PersistentVolumeClaim")) == 2


def test_a_claim_younger_than_the_pod_is_the_next_pods() -> None:
    world = PoolWorld(replicas=4, bookies={2: DONE}, claims={2: {"created_seconds": NOW - 5}})
    plan = plan_pool(world.seen())
    assert not deleted(plan, "PersistentVolumeClaim")
    assert deleted(plan, "Pod") == [pod_name(2)]


def test_a_claim_as_old_as_the_pod_is_the_pods() -> None:
    """A StatefulSet makes both one after the other, and Kubernetes tells the time of either in whole seconds."""
    same: dict[str, Any] = {"created_seconds": NOW - 3600}
    world = PoolWorld(replicas=4, bookies={2: DONE}, pods={2: same}, claims={2: same})
    assert len(deleted(plan_pool(world.seen()), "PersistentVolumeClaim")) == 2


def test_claims_that_are_going_are_not_deleted_again() -> None:
    world = PoolWorld(replicas=4, bookies={2: DONE}, claims={2: {"deleting": True}})
    plan = plan_pool(world.seen())
    assert not deleted(plan, "PersistentVolumeClaim")
    assert deleted(plan, "Pod") == [pod_name(2)]


def test_a_lost_disk_is_copied_from_the_others_before_the_bookie_starts_empty() -> None:
    world = PoolWorld(replicas=3, pods={1: EMPTY_DISK}, lost={1: {"has_cookie": True, "ledgers_left": 9}})
    world.status = BookieStatus(members=[BookieMember(name=pod_name(1), state="Writable")])
    plan = plan_pool(world.seen())
    assert of(plan, RetireLostBookie) == [RetireLostBookie(bookie_id(1))]
    assert not of(plan, Delete)
    assert member_of(plan, 1)["state"] == "DeadDisk"
    assert "9 ledgers" in said(plan, "Reconciling")[2]
    assert "DiskLost" in told(plan)
    world.status = status_of(plan)
    assert "DiskLost" not in told(plan_pool(world.seen()))


def test_then_it_is_started_with_the_empty_volume_that_it_has() -> None:
    plan = plan_pool(PoolWorld(replicas=3, pods={1: EMPTY_DISK}, lost={1: {}}).seen())
    assert deleted(plan, "Pod") == [pod_name(1)]
    assert not deleted(plan, "PersistentVolumeClaim")
    assert not of(plan, RetireLostBookie)
    assert "DiskReplaced" in told(plan)


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param({"exit_code": 3}, id="it is ready again"),
        pytest.param({"exit_code": 3, "ready": False}, id="it is being started again"),
    ],
)
def test_an_exit_code_of_earlier_proves_nothing(pod: dict[str, Any]) -> None:
    plan = plan_pool(PoolWorld(replicas=3, pods={1: pod}, lost={1: {"has_cookie": True}}).seen())
    assert not of(plan, RetireLostBookie)
    assert not of(plan, Delete)


def test_what_is_left_beside_a_lost_disk_is_given_up_when_it_is_retired() -> None:
    plan = plan_pool(PoolWorld(replicas=3, pods={1: RETIRED}, lost={1: {}}).seen())
    assert len(deleted(plan, "PersistentVolumeClaim")) == 2
    assert deleted(plan, "Pod") == [pod_name(1)]


@pytest.mark.parametrize("lost", [None, {"ledgers_left": 1}, {"has_cookie": True}, {"registered": True}])
def test_a_retired_bookie_keeps_its_volumes_until_nothing_names_it(lost: dict[str, Any] | None) -> None:
    plan = plan_pool(PoolWorld(replicas=3, pods={1: RETIRED}, lost={1: lost} if lost is not None else {}).seen())
    assert not of(plan, Delete)
    assert len(of(plan, RetireLostBookie)) == (1 if lost == {"ledgers_left": 1} else 0)


def test_a_lost_disk_waits_if_nobody_can_be_asked() -> None:
    plan = plan_pool(PoolWorld(replicas=3, pods={1: EMPTY_DISK}).seen())
    assert not of(plan, RetireLostBookie)
    assert "no bookie answers" in said(plan, "Reconciling")[2]


def test_a_spare_bookie_is_made_where_too_few_are_left_to_copy_to() -> None:
    lost = {"has_cookie": True, "ledgers_left": 2}
    world = PoolWorld(replicas=3, pods={0: EMPTY_DISK, 2: EMPTY_DISK}, lost={0: lost, 2: lost})
    plan = plan_pool(world.seen())
    assert replicas_of(plan) == 4
    assert len(of(plan, RetireLostBookie)) == 2
    world.desired = 4
    plan = plan_pool(world.seen())
    assert stateful_of(plan) is None
    assert not of(plan, StartBookieDrain)
    # They are back: the spare one is drained.
    world.pods, world.lost = {}, {}
    assert of(plan_pool(world.seen()), StartBookieDrain) == [StartBookieDrain(pod_name(3))]


def test_a_spare_bookie_that_was_on_its_way_out_takes_writes_again() -> None:
    lost = {"has_cookie": True, "ledgers_left": 2}
    world = PoolWorld(replicas=3, desired=4, pods={0: EMPTY_DISK, 2: EMPTY_DISK}, lost={0: lost, 2: lost})
    world.bookies = {3: {"drain": "Replicate"}}
    plan = plan_pool(world.seen())
    assert of(plan, CancelBookieDrain) == [CancelBookieDrain(pod_name(3))]
    # Drained before it was needed, it is of no use until it starts anew.
    world.bookies = {3: DONE}
    plan = plan_pool(world.seen())
    assert stateful_of(plan) is None
    assert deleted(plan, "Pod") == [pod_name(3)]
    assert len(deleted(plan, "PersistentVolumeClaim")) == 2
    # Where others can take over, it goes as it was to.
    world.writable_elsewhere = 1
    assert replicas_of(plan_pool(world.seen())) == 3


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"writable_elsewhere": 1}, id="other pools have room"),
        pytest.param({"pods": {0: EMPTY_DISK, 2: {"ready": False}}}, id="one is only starting"),
        pytest.param({"lost": {0: {}, 2: {"has_cookie": True}}}, id="nothing is to be copied"),
        pytest.param({"lost": {}}, id="nobody can be asked"),
    ],
)
def test_no_spare_bookie_without_need(change: dict[str, Any]) -> None:
    lost = {"has_cookie": True, "ledgers_left": 2}
    usual: dict[str, Any] = {"pods": {0: EMPTY_DISK, 2: EMPTY_DISK}, "lost": {0: lost, 2: lost}}
    assert stateful_of(plan_pool(PoolWorld(**(usual | change)).seen())) is None


def test_what_a_bookie_ended_with_before_it_ran_says_nothing_when_it_is_told_to_stop() -> None:
    stopping = {"ready": False, "deleting": True, "running": True, "phase": "Running", "exit_code": 4}
    world = PoolWorld(replicas=3, numbers=range(4), pods={3: stopping}, lost={3: {}})
    plan = plan_pool(world.seen())
    assert "WrongVolume" not in told(plan)
    assert member_of(plan, 3)["state"] == "Down"


def test_a_wrong_volume_is_told_and_never_touched() -> None:
    world = PoolWorld(replicas=3, pods={1: WRONG}, lost={1: {}})
    plan = plan_pool(world.seen())
    assert not of(plan, Delete)
    assert not of(plan, RetireLostBookie)
    assert said(plan, "Stalled")[:2] == ("True", "WrongVolume")
    assert "another instanceId" in said(plan, "Stalled")[2]
    assert member_of(plan, 1)["state"] == "WrongVolume"
    assert told(plan) == ["WrongVolume"]
    world.replicas, world.desired, world.pods, world.lost = 3, 4, {3: WRONG}, {3: {"has_cookie": True}}
    assert not of(plan_pool(world.seen()), RetireLostBookie)


def test_claims_that_were_anothers_when_the_pod_went_are_kept() -> None:
    world = PoolWorld(replicas=3, claimed=range(4), lost={3: {}})
    world.status = BookieStatus(members=[BookieMember(name=pod_name(3), state="WrongVolume")])
    plan = plan_pool(world.seen())
    assert not of(plan, Delete)
    assert said(plan, "Stalled")[1] == "WrongVolume"
    assert member_of(plan, 3)["state"] == "WrongVolume"


@pytest.mark.parametrize("pod", [CRASHED, {"ready": False, "waiting_reason": "ImagePullBackOff"}, {"ready": False}])
def test_volumes_that_were_anothers_are_so_until_a_process_has_started_with_them(pod: dict[str, Any]) -> None:
    """A restart, say for an image that is not there, makes them no better."""
    world = PoolWorld(replicas=3, desired=4, pods={3: pod | {"created_seconds": NOW - 3600}}, lost={3: {}})
    world.status = BookieStatus(members=[BookieMember(name=pod_name(3), state="WrongVolume")])
    plan = plan_pool(world.seen())
    assert stateful_of(plan) is None
    assert not of(plan, Delete)
    assert member_of(plan, 3)["state"] == "WrongVolume"
    world.lost = {3: {"has_cookie": True}}
    assert not of(plan_pool(world.seen()), RetireLostBookie)
    # Its own process knows better.
    world.pods, world.lost = {3: RETIRED}, {3: {}}
    assert replicas_of(plan_pool(world.seen())) == 3
    world.pods, world.lost = {}, {}
    assert member_of(plan_pool(world.seen()), 3)["state"] == "Writable"


def test_two_bookies_start_anew_one_after_the_other() -> None:
    plan = plan_pool(PoolWorld(replicas=5, bookies={1: DONE, 2: DONE}).seen())
    assert deleted(plan, "Pod") == [pod_name(1)]
    assert len(deleted(plan, "PersistentVolumeClaim")) == 2
