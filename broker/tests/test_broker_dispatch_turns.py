"""What subscriptions send in one turn of the event loop is bounded in all, and everybody has a slice of it."""

from __future__ import annotations

import pytest
from magnetar.broker.subscriptions.dispatch_turns import (
    DUE_ENTRY_BYTES,
    ENTRY_BYTES,
    PASS_BYTES,
    SLICE_BYTES,
    TURN_BYTES,
    DispatchTurns,
)
from magnetar.wire.pulsar.enums import SubscriptionType

from broker.tests.subscription_stage import LEDGER, Stage, Timers

SUBSCRIPTIONS = 60
BACKLOG = 300
ENTRIES_OF_TURN = TURN_BYTES // ENTRY_BYTES


class Pump:
    """Sends slices until it has no more."""

    def __init__(self, turns: DispatchTurns, name: str, sent: list[str], slices: int = 1) -> None:
        self._turns = turns
        self._name = name
        self._sent = sent
        self.slices = slices

    def turn(self) -> None:
        self._sent.append(self._name)
        self._turns.take(SLICE_BYTES - PASS_BYTES, 0)
        self.slices -= 1
        if self.slices:
            self._turns.wait(self)


class Damaged:
    def turn(self) -> None:
        raise RuntimeError("staged")


@pytest.fixture
def timers() -> Timers:
    return Timers()


@pytest.fixture
def turns(timers: Timers) -> DispatchTurns:
    return DispatchTurns(timers.call_later)


def test_passes_and_entries_count_beside_their_size(turns: DispatchTurns) -> None:
    assert turns.take(100, 3) == PASS_BYTES + 100 + 3 * ENTRY_BYTES
    assert turns.take_due(7) == PASS_BYTES + 7 * DUE_ENTRY_BYTES
    assert turns.left_bytes == TURN_BYTES - 2 * PASS_BYTES - 100 - 3 * ENTRY_BYTES - 7 * DUE_ENTRY_BYTES


def test_the_next_turn_has_all_of_it_again(turns: DispatchTurns, timers: Timers) -> None:
    turns.take(2 * TURN_BYTES, 1)
    assert turns.left_bytes < 0
    timers.advance(0)
    assert turns.left_bytes == TURN_BYTES


def test_those_who_wait_have_a_slice_each_in_their_order(turns: DispatchTurns, timers: Timers) -> None:
    sent: list[str] = []
    for name in "abc":
        turns.wait(Pump(turns, name, sent, slices=2))
    assert turns.waited_for
    timers.advance(0)
    assert sent == ["a", "b", "c", "a", "b", "c"]
    assert not turns.waited_for


def test_one_turn_serves_no_more_than_its_bytes(turns: DispatchTurns, timers: Timers) -> None:
    turns_of_loop: list[list[str]] = []
    sent: list[str] = []
    slices = TURN_BYTES // SLICE_BYTES
    waiting = [Pump(turns, str(number), sent) for number in range(2 * slices + 1)]
    for pump in waiting:
        turns.wait(pump)
    while turns.waited_for:
        (only,) = timers.due()
        only.callback()
        turns_of_loop.append(sent[:])
        sent.clear()
    assert [len(each) for each in turns_of_loop] == [slices, slices, 1]
    assert [name for each in turns_of_loop for name in each] == [str(number) for number in range(2 * slices + 1)]


def test_who_waits_twice_is_served_once(turns: DispatchTurns, timers: Timers) -> None:
    sent: list[str] = []
    pump = Pump(turns, "a", sent)
    turns.wait(pump)
    turns.wait(pump)
    timers.advance(0)
    assert sent == ["a"]


def test_who_leaves_is_not_served(turns: DispatchTurns, timers: Timers) -> None:
    sent: list[str] = []
    staying, leaving = Pump(turns, "a", sent), Pump(turns, "b", sent)
    turns.wait(leaving)
    turns.wait(staying)
    turns.leave(leaving)
    turns.leave(leaving)
    timers.advance(0)
    assert sent == ["a"]


def test_a_dispatch_that_fails_keeps_nobody_from_the_next_turn(turns: DispatchTurns, timers: Timers) -> None:
    sent: list[str] = []
    turns.wait(Damaged())
    turns.wait(Pump(turns, "a", sent))
    with pytest.raises(RuntimeError, match="staged"):
        timers.advance(0)
    timers.advance(0)
    assert sent == ["a"]


def staged(kind: SubscriptionType, delay_ms: int = 0) -> list[Stage]:
    """Subscriptions of one broker. Each has a backlog, and a consumer that takes everything."""
    stages = [Stage(kind)]
    stages += [Stage(kind, beside=stages[0]) for _ in range(SUBSCRIPTIONS - 1)]
    fields = {"deliver_at_time": stages[0].timers.now_ms() + delay_ms} if delay_ms else {}
    for stage in stages:
        stage.join("a", permits=10 * BACKLOG)
        stage.timers.advance(0)
        stage.publish(BACKLOG, **fields)
    return stages


def waited_for(stage: Stage) -> bool:
    return stage.runtime.turns.waited_for


def next_turn(stage: Stage) -> None:
    """What the loop does in one turn: all timers that are due when it begins."""
    for timer in stage.timers.due():
        timer.callback()


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED, SubscriptionType.EXCLUSIVE])
def test_subscriptions_that_are_woken_at_once_send_no_more_than_a_turn(kind: SubscriptionType) -> None:
    stages = staged(kind)
    received: list[list[int]] = [stage.received("a") for stage in stages]
    while waited_for(stages[0]):
        before = sum(map(len, received))
        next_turn(stages[0])
        for has, stage in zip(received, stages, strict=True):
            has += stage.received("a")
        assert 0 < sum(map(len, received)) - before <= ENTRIES_OF_TURN
    assert received == [list(range(BACKLOG))] * SUBSCRIPTIONS


def test_one_who_has_much_to_send_does_not_keep_another_one_waiting_for_long() -> None:
    busy = Stage(SubscriptionType.SHARED)
    quiet = Stage(SubscriptionType.SHARED, beside=busy)
    for stage in (busy, quiet):
        stage.join("a", permits=100_000)
    busy.publish(5 * ENTRIES_OF_TURN)
    quiet.publish(1)
    assert quiet.received("a") == []
    next_turn(busy)
    assert quiet.received("a") == [0]
    assert len(busy.received("a")) < 3 * ENTRIES_OF_TURN


def test_delayed_entries_that_fall_due_at_once_are_looked_at_in_turns() -> None:
    stages = staged(SubscriptionType.SHARED, delay_ms=5_000)
    stages[0].timers.advance(0)
    assert sum(stage.subscription.delayed_entries for stage in stages) == SUBSCRIPTIONS * BACKLOG
    stages[0].timers.time_ms += 5_000
    next_turn(stages[0])
    assert 0 < sum(stage.subscription.delayed_entries for stage in stages) < SUBSCRIPTIONS * BACKLOG
    received: list[list[int]] = [[] for _ in stages]
    while waited_for(stages[0]):
        next_turn(stages[0])
        for has, stage in zip(received, stages, strict=True):
            has += stage.received("a")
    assert received == [list(range(BACKLOG))] * SUBSCRIPTIONS


def test_a_subscription_without_consumers_waits_for_no_turn() -> None:
    stage = Stage(SubscriptionType.SHARED)
    stage.join("a", permits=100_000)
    stage.runtime.turns.take(TURN_BYTES, 0)
    stage.publish(1)
    assert waited_for(stage)
    stage.leave("a")
    assert not waited_for(stage)
    stage.join("b")
    stage.timers.advance(0)
    assert stage.received("b") == [0]
    assert stage.last_message("b").message_id.ledgerId == LEDGER
