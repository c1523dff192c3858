"""What subscriptions send in one turn of the event loop is bounded in all, and everybody has a slice of it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from magnetar.broker.settings.broker import DispatchSettings
from magnetar.broker.subscriptions.delayed import AT_ONCE_MAX
from magnetar.broker.subscriptions.dispatch_turns import (
    DUE_ENTRY_BYTES,
    ENTRY_BYTES,
    LOOK_BYTES,
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
READ_ENTRIES_MAX = DispatchSettings().read_entries_max
DELAY_MS = 5_000


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
    assert turns.take_due(7, 9) == PASS_BYTES + 7 * DUE_ENTRY_BYTES + 9 * LOOK_BYTES
    assert turns.left_bytes == (
        TURN_BYTES - 2 * PASS_BYTES - 100 - 3 * ENTRY_BYTES - 7 * DUE_ENTRY_BYTES - 9 * LOOK_BYTES
    )


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


class Woken:
    def __init__(self) -> None:
        self.times = 0

    def wake(self) -> None:
        self.times += 1


def test_who_looks_at_all_consumers_is_woken_once_in_a_turn_and_others_each_time(
    turns: DispatchTurns, timers: Timers
) -> None:
    looking, quick = Woken(), Woken()
    for _ in range(5):
        turns.freed(looking, at_once=False)
        turns.freed(quick, at_once=True)
    assert (looking.times, quick.times) == (1, 5)
    timers.advance(0)
    assert (looking.times, quick.times) == (2, 5)


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


class Topic:
    """Subscriptions of one topic with as many entries each, of which all fall due at once, and what the loop does."""

    def __init__(self, subscriptions: int, backlog: int) -> None:
        first = Stage(SubscriptionType.SHARED)
        self.backlog = backlog
        self.stages = [first]
        self.stages += [Stage(SubscriptionType.SHARED, beside=first, same_topic=True) for _ in range(subscriptions - 1)]
        self.received: list[list[int]] = [[] for _ in self.stages]
        for stage in self.stages:
            stage.join("a", permits=10 * backlog)
            stage.publish(backlog, deliver_at_time=first.timers.now_ms() + DELAY_MS)
            while stage.subscription.delayed_entries < backlog:
                first.timers.advance(0)

    @property
    def left(self) -> int:
        """Entries that wait for their time."""
        return sum(stage.subscription.delayed_entries for stage in self.stages)

    @property
    def sent(self) -> int:
        """Entries that consumers have."""
        return sum(len(stage.connections["a"].messages) for stage in self.stages)

    def fall_due(self) -> list[tuple[int, int]]:
        """Until everything is sent: what was taken out and what was sent in each turn."""
        first = self.stages[0]
        first.timers.time_ms += DELAY_MS
        turns: list[tuple[int, int]] = []
        while self.sent < self.backlog * len(self.stages):
            left, sent = self.left, self.sent
            first.reads.finish_those_under_way()
            next_turn(first)
            turns.append((left - self.left, self.sent - sent))
            assert len(turns) < 10_000, "there is no end"
        return turns


@pytest.mark.slow
@pytest.mark.parametrize(("subscriptions", "backlog"), [(10, 2_000), (100, 200)])
def test_what_falls_due_for_all_subscriptions_of_a_topic_is_taken_and_sent_in_short_turns(
    subscriptions: int, backlog: int
) -> None:
    topic = Topic(subscriptions, backlog)
    for taken, sent in topic.fall_due():
        assert taken <= TURN_BYTES // DUE_ENTRY_BYTES + AT_ONCE_MAX
        assert sent <= ENTRIES_OF_TURN + READ_ENTRIES_MAX
    assert [stage.received("a") for stage in topic.stages] == [list(range(backlog))] * subscriptions


@pytest.mark.slow
def test_one_subscription_is_not_far_ahead_of_the_others_when_entries_fall_due() -> None:
    topic = Topic(10, 2_000)
    first = topic.stages[0]
    first.timers.time_ms += DELAY_MS
    while topic.sent < topic.backlog * len(topic.stages) // 2:
        first.reads.finish_those_under_way()
        next_turn(first)
    shares = sorted(len(stage.connections["a"].messages) for stage in topic.stages)
    assert shares[-1] - shares[0] <= ENTRIES_OF_TURN // 2
    first.reads.finish()


def test_looks_at_what_falls_due_count_though_nothing_is_taken_yet() -> None:
    topic = Topic(1, 2 * AT_ONCE_MAX)
    first = topic.stages[0]
    first.timers.advance(0)
    first.timers.time_ms += DELAY_MS
    (ordering,) = first.timers.due()
    ordering.callback()
    assert topic.left == 2 * AT_ONCE_MAX
    assert first.runtime.turns.left_bytes == TURN_BYTES - PASS_BYTES - AT_ONCE_MAX * LOOK_BYTES


def reading(subscriptions: int, replayed: bool) -> list[Stage]:
    """Each of these has a read under way, which is over."""
    stages = [Stage(SubscriptionType.SHARED)]
    stages += [Stage(SubscriptionType.SHARED, beside=stages[0]) for _ in range(subscriptions - 1)]
    for stage in stages:
        stage.join("a", permits=READ_ENTRIES_MAX)
        if replayed:
            stage.publish(READ_ENTRIES_MAX)
            stage.join("b", permits=READ_ENTRIES_MAX)
            stage.timers.advance(0)
            stage.leave("a")
        else:
            stage.cursor.cached_from = READ_ENTRIES_MAX
            stage.publish(READ_ENTRIES_MAX)
        stage.timers.advance(0)
    stages[0].timers.advance(0)
    assert len(stages[0].reads) == subscriptions
    return stages


def sent_in_turns(stages: list[Stage], name: str) -> list[int]:
    """How many entries all of them send in each turn, from the one in which all reads end on."""

    def sent() -> int:
        return sum(len(stage.connections[name].messages) for stage in stages)

    before = sent()
    stages[0].reads.finish_those_under_way()
    counts = [before, sent()]
    while waited_for(stages[0]):
        next_turn(stages[0])
        counts.append(sent())
    return [after - before for before, after in pairwise(counts)]


@pytest.mark.parametrize("replayed", [False, True])
def test_reads_that_end_together_are_sent_in_turns(replayed: bool) -> None:
    stages = reading(100, replayed)
    name = "b" if replayed else "a"
    turns = sent_in_turns(stages, name)
    assert max(turns) <= ENTRIES_OF_TURN + READ_ENTRIES_MAX
    assert sum(turns) == 100 * READ_ENTRIES_MAX
    for stage in stages:
        assert stage.received(name) == list(range(READ_ENTRIES_MAX))
        stage.validate()


def test_who_leaves_while_a_read_waits_for_its_turn_is_sent_nothing_and_holds_up_nobody() -> None:
    stages = reading(100, replayed=False)
    stages[0].reads.finish_those_under_way()
    leaving = [stage for stage in stages if not stage.connections["a"].messages]
    assert leaving
    for stage in leaving[::2]:
        stage.subscription.remove_consumer(stage.consumers["a"])
    while waited_for(stages[0]):
        next_turn(stages[0])
    for stage in stages:
        gone = stage in leaving[::2]
        assert len(stage.connections["a"].messages) == (0 if gone else READ_ENTRIES_MAX)
        if gone:
            stage.join("b", permits=READ_ENTRIES_MAX)
    while waited_for(stages[0]) or len(stages[0].reads):
        stages[0].reads.finish_those_under_way()
        next_turn(stages[0])
    for stage in leaving[::2]:
        assert stage.received("b") == list(range(READ_ENTRIES_MAX))


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
