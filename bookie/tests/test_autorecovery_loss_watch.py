from __future__ import annotations

from magnetar.bookie.autorecovery.auditor.loss_watch import LossWatch

ALL = ("a", "b", "c", "d")
DELAY = 100.0


def test_without_a_delay_a_loss_is_due_at_once() -> None:
    watch = LossWatch(ALL)
    watch.observe(ALL, 0, 1.0)
    assert not watch.due(1.0)
    watch.observe(("a", "b", "c"), 0, 2.0)
    assert watch.due(2.0)
    assert watch.lost == {"d"}
    watch.audited()
    watch.observe(("a", "b", "c"), 0, 3.0)
    assert not watch.due(3.0), "an audit tells of a loss once"


def test_a_single_loss_is_given_time() -> None:
    watch = LossWatch(ALL)
    watch.observe(("a", "b", "c"), DELAY, 10.0)
    assert watch.waiting
    watch.observe(("a", "b", "c"), DELAY, 50.0)
    assert watch.due_at_seconds == 110.0, "the wait does not begin anew"
    assert not watch.due(109.0)
    assert watch.due(110.0)
    assert (watch.delayed, watch.cancelled) == (1, 0)


def test_who_comes_back_in_time_is_not_lost() -> None:
    watch = LossWatch(ALL)
    watch.observe(("a", "b", "c"), DELAY, 10.0)
    watch.observe(ALL, DELAY, 20.0)
    assert watch.due_at_seconds is None
    assert not watch.waiting
    assert watch.cancelled == 1
    watch.observe(("a", "b", "c"), DELAY, 30.0)
    assert watch.due_at_seconds == 130.0


def test_a_second_loss_ends_the_waiting_and_one_audit_is_for_both() -> None:
    watch = LossWatch(ALL)
    watch.observe(("a", "b", "c"), DELAY, 10.0)
    watch.observe(("a", "b"), DELAY, 20.0)
    assert watch.due(20.0)
    assert not watch.waiting
    assert watch.lost == {"c", "d"}


def test_one_comes_back_while_another_goes() -> None:
    watch = LossWatch(ALL)
    watch.observe(("a", "b", "c"), DELAY, 10.0)
    watch.observe(("a", "b", "d"), DELAY, 20.0)
    assert watch.lost == {"c"}
    assert watch.due_at_seconds == 120.0


def test_new_bookies_are_followed_too() -> None:
    watch = LossWatch(())
    watch.observe(ALL, 0, 1.0)
    watch.observe(("a", "b", "c"), 0, 2.0)
    assert watch.lost == {"d"}


def test_the_same_delay_again_asks_for_an_audit() -> None:
    watch = LossWatch(ALL)
    watch.observe(("a", "b", "c"), DELAY, 10.0)
    assert watch.delay_written(DELAY, changed=False, now_seconds=20.0)
    assert watch.cancelled == 1


def test_another_delay_begins_the_wait_anew() -> None:
    watch = LossWatch(ALL)
    assert not watch.delay_written(5.0, changed=True, now_seconds=1.0)
    watch.observe(("a", "b", "c"), DELAY, 10.0)
    assert not watch.delay_written(5.0, changed=True, now_seconds=20.0)
    assert watch.due_at_seconds == 25.0
    assert watch.delay_written(0, changed=True, now_seconds=21.0)
