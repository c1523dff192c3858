"""Delayed entries: the index that the subscriptions of a topic share, and what each of them waits for."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from magnetar.broker.subscriptions.delay_bucket import BUCKET_MS
from magnetar.broker.subscriptions.delayed import AT_ONCE_MAX, DelayedEntries
from magnetar.broker.subscriptions.delayed_index import (
    DELAYED_ENTRIES_MAX,
    FORGOTTEN_AT_ONCE_MAX,
    LOOK_ENTRIES,
    TopicDelays,
)
from magnetar.broker.subscriptions.position_set import SPAN_ENTRIES_MAX, PositionSet
from magnetar.core.ids import Position

from broker.tests.subscription_stage import Timers


def take_turns(timers: Timers, delayed: DelayedEntries) -> list[list[Position]]:
    """All that is due now, in as many turns as it takes; the first ones may only order what is there."""
    turns: list[list[Position]] = []
    while delayed.passed_ms(timers.now_ms()) < timers.now_ms():
        turns.append([position for position, _ in delayed.take_due(timers.now_ms())])
        delayed.arm(timers.now_ms())
        assert len(turns) < 1_000, "there is no end"
    return turns


def take_all(timers: Timers, delayed: DelayedEntries) -> list[Position]:
    """All that is due now, in order."""
    return [position for turn in take_turns(timers, delayed) for position in turn]


def test_delayed_entries_have_one_timer_for_the_first() -> None:
    timers = Timers()
    fired: list[int] = []
    delayed = DelayedEntries(timers, timers.call_later, lambda: fired.append(timers.now_ms()), TopicDelays())
    start_ms = timers.now_ms()
    for seconds in (5, 3, 4):
        delayed.add(start_ms + seconds * 1_000, (1, seconds), 7)
        delayed.arm(start_ms)
    assert timers.pending == 1
    timers.advance(3_000)
    assert fired == [start_ms + 3_000]
    assert delayed.take_due(timers.now_ms()) == [((1, 3), 7)]
    delayed.discard_up_to((1, 4))
    delayed.arm(timers.now_ms())
    timers.advance(10_000)
    assert delayed.take_due(timers.now_ms()) == [((1, 5), 7)]
    assert timers.pending == 0


def test_what_is_due_and_cannot_be_taken_yet_is_not_looked_at_in_every_turn() -> None:
    timers, delays = Timers(), TopicDelays()
    fired: list[int] = []
    delayed = DelayedEntries(timers, timers.call_later, lambda: fired.append(timers.now_ms()), delays)
    delayed.add(timers.now_ms() + 1_000, (1, 1), 7)
    delayed.arm(timers.now_ms())
    timers.advance(1_000)
    assert len(fired) == 1
    assert delays.index is not None
    delays.index.count += DELAYED_ENTRIES_MAX
    for _ in range(3):
        # Whoever sends has 10 000 others that wait, and asks whether more may be read.
        assert delayed.must_wait()
        assert not timers.due()
    timers.advance(10_000)
    assert len(fired) == 2
    assert delayed.must_wait()
    # Once it is taken, the timer stands where it is needed.
    delays.index.count -= DELAYED_ENTRIES_MAX
    delayed.add(timers.now_ms() + 2_000, (1, 2), 7)
    assert delayed.take_due(timers.now_ms()) == [((1, 1), 7)]
    delayed.arm(timers.now_ms())
    timers.advance(2_000)
    assert len(fired) == 3


def test_who_is_let_go_of_waits_for_nothing_and_leaves_what_others_wait_for() -> None:
    timers, delays = Timers(), TopicDelays()
    fired: list[str] = []
    first = DelayedEntries(timers, timers.call_later, lambda: fired.append("first"), delays)
    second = DelayedEntries(timers, timers.call_later, lambda: fired.append("second"), delays)
    for delayed in (first, second):
        delayed.add(timers.now_ms() + 1_000, (1, 1), 0)
        delayed.put_aside(timers.now_ms())
    first.let_go()
    assert timers.pending == 1
    timers.advance(1_000)
    there = [delays.index is not None]
    second.let_go()
    there.append(delays.index is not None)
    assert (fired, there, timers.pending) == (["second"], [True, False], 0)


def test_so_many_entries_that_were_put_aside_lead_to_a_look() -> None:
    timers = Timers()
    looks: list[int] = []
    delays = TopicDelays(let_go=looks.append)
    delayed = DelayedEntries(timers, timers.call_later, lambda: None, delays)
    for number in range(2 * LOOK_ENTRIES):
        delayed.add(timers.now_ms() + 1_000, (1, number), 0)
        delayed.put_aside(timers.now_ms())
        assert len(looks) == (number + 1) // LOOK_ENTRIES


class JumpingClock:
    """The wall clock of `Timers`, moved; timers go on as ever."""

    def __init__(self, timers: Timers) -> None:
        self.ahead_ms = 0
        self._timers = timers

    def now_ms(self) -> int:
        return self._timers.now_ms() + self.ahead_ms

    def monotonic_seconds(self) -> float:
        return self._timers.monotonic_seconds()


@pytest.mark.parametrize("wrong_ms", [-600_000, 600_000])
def test_a_clock_that_is_put_right_delays_nothing_for_long(wrong_ms: int) -> None:
    timers = Timers()
    clock = JumpingClock(timers)
    fired: list[int] = []
    delayed = DelayedEntries(clock, timers.call_later, lambda: fired.append(1), TopicDelays())
    start_ms = clock.now_ms()
    clock.ahead_ms = wrong_ms
    if wrong_ms < 0:
        # The timer is set by a clock that is behind, and the clock is put right then.
        delayed.add(start_ms + 2_000, (1, 1), 0)
        delayed.arm(clock.now_ms())
    else:
        # The timer is set by a clock that was right, and the clock goes past the entry's time.
        delayed.add(start_ms + wrong_ms, (1, 1), 0)
        delayed.arm(start_ms)
    clock.ahead_ms = max(0, wrong_ms)
    timers.advance(10_000)
    assert fired == [1]


def test_far_delays_are_looked_at_again_all_the_time() -> None:
    timers = Timers()
    fired: list[int] = []
    delayed = DelayedEntries(timers, timers.call_later, lambda: fired.append(1), TopicDelays())
    delayed.add(timers.now_ms() + 2 * 3_600_000 + 1, (1, 1), 0)
    delayed.arm(timers.now_ms())
    timers.advance(2 * 3_600_000)
    assert fired == []
    timers.advance(1)
    assert fired == [1]


def staged_delays(count: int) -> tuple[Timers, DelayedEntries]:
    """So many entries that are due in a second."""
    timers = Timers()
    delayed = DelayedEntries(timers, timers.call_later, lambda: None, TopicDelays())
    for number in range(count):
        delayed.add(timers.now_ms() + 1_000, (1, number), 0)
    return timers, delayed


def test_what_is_due_at_the_same_time_comes_in_parts() -> None:
    timers, delayed = staged_delays(2 * AT_ONCE_MAX + 1)
    timers.advance(1_000)
    sizes = list(map(len, take_turns(timers, delayed)))
    assert sum(sizes) == 2 * AT_ONCE_MAX + 1
    assert max(sizes) == AT_ONCE_MAX
    assert timers.pending == 0


def test_entries_that_are_skipped_are_forgotten() -> None:
    timers, delayed = staged_delays(2 * AT_ONCE_MAX + 1)
    delayed.arm(timers.now_ms())
    delayed.discard_up_to((1, 2 * AT_ONCE_MAX - 1))
    assert len(delayed) == 1
    timers.advance(1_000)
    assert take_all(timers, delayed) == [(1, 2 * AT_ONCE_MAX)]
    delayed.discard_up_to((9, 9))
    assert timers.pending == 0


def test_all_that_is_delayed_may_become_due_in_parts() -> None:
    timers, delayed = staged_delays(AT_ONCE_MAX + 1)
    delayed.hurry()
    delayed.arm(timers.now_ms())
    assert [len(delayed.take_due(timers.now_ms())) for _ in range(3)] == [AT_ONCE_MAX, 1, 0]
    delayed.add(timers.now_ms() + 1, (2, 1), 0)
    assert not delayed.take_due(timers.now_ms())


class Model:
    """What one subscription waits for, as a plain list."""

    def __init__(self, timers: Timers, delays: TopicDelays) -> None:
        self.timers = timers
        self.waiting: dict[Position, int] = {}
        self.delayed = DelayedEntries(timers, timers.call_later, self.take, delays)
        self.taken: list[Position] = []

    def read(self, position: Position, deliver_at_ms: int) -> None:
        if deliver_at_ms <= self.delayed.passed_ms(self.timers.now_ms()):
            assert deliver_at_ms <= self.timers.now_ms()
            return
        self.waiting[position] = deliver_at_ms
        self.delayed.add(deliver_at_ms, position, position[1])
        self.delayed.arm(self.timers.now_ms())

    def take(self) -> None:
        for position, key_hash in self.delayed.take_due(self.timers.now_ms()):
            assert key_hash == position[1]
            assert self.waiting.pop(position) <= self.timers.now_ms()
        self.delayed.arm(self.timers.now_ms())

    def check(self) -> None:
        assert len(self.delayed) == len(self.waiting)
        assert not [at_ms for at_ms in self.waiting.values() if at_ms <= self.timers.now_ms()]


DELAYS_MS = st.one_of(
    st.integers(min_value=1, max_value=50),
    st.integers(min_value=1, max_value=5 * BUCKET_MS),
    st.sampled_from([BUCKET_MS - 1, BUCKET_MS, BUCKET_MS + 1, 2_000_000]),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.integers(0, 2), st.integers(0, 40)),
        st.tuples(st.just("wait"), st.just(0), st.integers(1, 3 * BUCKET_MS)),
        st.tuples(st.just("skip"), st.integers(0, 2), st.integers(0, 40)),
        st.tuples(st.just("hurry"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("clear"), st.integers(0, 2), st.just(0)),
    ),
    max_size=60,
)


@settings(deadline=None, max_examples=100)
@given(STEPS, st.lists(DELAYS_MS, min_size=41, max_size=41))
def test_subscriptions_of_a_topic_wait_each_for_itself(steps: list[tuple[str, int, int]], delays_ms: list[int]) -> None:
    timers, delays = Timers(), TopicDelays()
    start_ms = timers.now_ms()
    subscriptions = [Model(timers, delays) for _ in range(3)]
    for step, which, number in steps:
        subscription = subscriptions[which]
        if step == "read":
            subscription.read((number // 10, number), start_ms + delays_ms[number])
        elif step == "wait":
            timers.advance(number)
        elif step == "skip":
            subscription.delayed.discard_up_to((number // 10, number))
            subscription.waiting = {at: ms for at, ms in subscription.waiting.items() if at > (number // 10, number)}
        elif step == "hurry":
            subscription.delayed.hurry()
            got = [position for position, _ in subscription.delayed.take_due(timers.now_ms())]
            assert sorted(got) == sorted(subscription.waiting)
            subscription.waiting.clear()
        else:
            subscription.delayed.clear()
            subscription.waiting.clear()
        timers.advance(0)
        for each in subscriptions:
            each.check()
    timers.advance(2_000_000)
    assert not any(map(len, (each.delayed for each in subscriptions)))
    assert delays.index is None
    assert timers.pending == 0


def test_a_clock_that_is_put_back_delivers_nothing_early() -> None:
    timers = Timers()
    clock = JumpingClock(timers)
    delayed = DelayedEntries(clock, timers.call_later, lambda: None, TopicDelays())
    start_ms = clock.now_ms()
    clock.ahead_ms = 3 * BUCKET_MS
    assert delayed.passed_ms(clock.now_ms()) == start_ms + 3 * BUCKET_MS
    delayed.add(start_ms + 4 * BUCKET_MS, (1, 1), 0)
    clock.ahead_ms = 0
    assert delayed.take_due(clock.now_ms()) == []
    assert delayed.passed_ms(clock.now_ms()) == start_ms
    delayed.add(start_ms + 10, (1, 2), 0)
    delayed.arm(clock.now_ms())
    timers.advance(10)
    assert delayed.take_due(clock.now_ms()) == [((1, 2), 0)]
    timers.advance(4 * BUCKET_MS)
    assert delayed.take_due(clock.now_ms()) == [((1, 1), 0)]


def test_an_entry_that_is_due_before_what_was_looked_at_is_found() -> None:
    """The clock was put back after it had gone far ahead, and nobody has looked since."""
    timers = Timers()
    clock = JumpingClock(timers)
    fired: list[int] = []
    delayed = DelayedEntries(clock, timers.call_later, lambda: fired.append(clock.now_ms()), TopicDelays())
    start_ms = clock.now_ms()
    clock.ahead_ms = 3 * BUCKET_MS
    delayed.passed_ms(clock.now_ms())
    delayed.add(start_ms + 4 * BUCKET_MS, (1, 1), 0)
    delayed.arm(clock.now_ms())
    clock.ahead_ms = 0
    delayed.add(start_ms + 10, (1, 2), 0)
    delayed.arm(clock.now_ms())
    timers.advance(10)
    assert fired == [start_ms + 10]
    assert delayed.take_due(clock.now_ms()) == [((1, 2), 0)]


def test_what_is_due_now_does_not_overtake_what_was_due_before() -> None:
    """A part of what was due is still to be taken out: an entry that is read meanwhile comes behind it."""
    timers, delayed = staged_delays(AT_ONCE_MAX + 1)
    timers.advance(1_000)
    now_ms = timers.now_ms()
    while not (first := delayed.take_due(now_ms)):
        pass
    assert delayed.passed_ms(now_ms) < now_ms
    delayed.add(now_ms, (2, 0), 0)
    assert [*(position for position, _ in first), *take_all(timers, delayed)] == [
        *((1, number) for number in range(AT_ONCE_MAX + 1)),
        (2, 0),
    ]


@pytest.mark.parametrize("skipped", [False, True])
def test_what_comes_after_all_was_hurried_waits_for_its_time(skipped: bool) -> None:
    timers, delayed = staged_delays(10)
    delayed.hurry()
    if skipped:
        delayed.discard_up_to((9, 9))
    else:
        assert len(delayed.take_due(timers.now_ms())) == 10
    delayed.add(timers.now_ms() + 600_000, (10, 0), 1)
    assert delayed.take_due(timers.now_ms()) == []
    timers.advance(600_000)
    assert take_all(timers, delayed) == [(10, 0)]


def test_what_is_over_is_forgotten_in_parts() -> None:
    timers, delays = Timers(), TopicDelays()
    first, second = (DelayedEntries(timers, timers.call_later, lambda: None, delays) for _ in range(2))
    entries = FORGOTTEN_AT_ONCE_MAX + AT_ONCE_MAX
    for number in range(entries):
        first.add(timers.now_ms() + 1_000, (1, number), 0)
    first.add(timers.now_ms() + 3 * BUCKET_MS, (2, 0), 0)
    second.add(timers.now_ms() + 3 * BUCKET_MS, (2, 0), 0)
    index = delays.index
    assert index is not None
    assert index.count == entries + 1
    timers.advance(2 * BUCKET_MS)
    assert take_all(timers, first)
    assert index.count == entries + 1, "the second has not looked yet"
    assert take_all(timers, second) == []
    assert index.count == 1
    while (known := index._known.count) > 1:
        index.forget()
        assert known - FORGOTTEN_AT_ONCE_MAX <= index._known.count < known


def test_a_million_delayed_entries_of_ten_subscriptions_weigh_less_than_twenty_megabytes() -> None:
    """Here an eightieth of the entries; the rest is proportional."""
    timers, delays = Timers(), TopicDelays()
    subscriptions = [DelayedEntries(timers, timers.call_later, lambda: None, delays) for _ in range(10)]
    entries = 12_500
    tracemalloc.start()
    try:
        for number in range(entries):
            position = (number // 5_000, number % 5_000)
            for delayed in subscriptions:
                delayed.add(timers.now_ms() + 60_000, position, 1)
        used, _ = tracemalloc.get_traced_memory()
        assert all(len(delayed) == entries for delayed in subscriptions)
        timers.advance(60_000)
        tracemalloc.reset_peak()
        while len(subscriptions[0]):
            subscriptions[0].take_due(timers.now_ms())
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used / entries < 20, "bytes for an entry, with ten subscriptions"
    assert most - used < 9 * BUCKET_MS + 5 * entries + 200 * AT_ONCE_MAX, "bytes to order them, and those of one look"


POSITIONS = st.tuples(st.integers(0, 3), st.one_of(st.integers(0, 100), st.sampled_from([SPAN_ENTRIES_MAX, 1 << 40])))


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["add", "discard", "up to"]), POSITIONS)))
def test_sets_of_positions_are_sets(steps: list[tuple[str, Position]]) -> None:
    real, model = PositionSet(), set[Position]()
    for step, position in steps:
        if step == "add":
            assert real.add(position) == (position not in model)
            model.add(position)
        elif step == "discard":
            assert real.discard(position) == (position in model)
            model.discard(position)
        else:
            real.discard_up_to(position)
            model = {each for each in model if each > position}
        assert real.count == len(model)
        assert all(each in real for each in model)
        assert position not in model or position in real
    real.clear()
    assert not any(each in real for each in model)
