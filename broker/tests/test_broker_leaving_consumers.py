"""Consumers that leave while they hold very much: it is given back in turns, and nothing overtakes it."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from magnetar.broker.settings.broker import DispatchSettings
from magnetar.broker.subscriptions.dispatch_turns import DUE_ENTRY_BYTES, TURN_BYTES
from magnetar.broker.subscriptions.letting_go import GIVEN_BACK_AT_ONCE
from magnetar.managed.entry import Entry
from magnetar.wire.pulsar.enums import SubscriptionType

from broker.tests.subscription_stage import LEDGER, Stage, stored_message

SHARED: Final = SubscriptionType.SHARED
KEY_SHARED: Final = SubscriptionType.KEY_SHARED
MANY: Final = 9_000
TURN_ENTRIES_MAX: Final = TURN_BYTES // DUE_ENTRY_BYTES + GIVEN_BACK_AT_ONCE
KEYS: Final = [stored_message(partition_key=f"k{number}") for number in range(50)]


def turn(stage: Stage) -> None:
    """One turn of the loop."""
    for timer in stage.timers.due():
        timer.callback()


def settle(stage: Stage) -> None:
    """All that follows."""
    while due := stage.timers.due():
        for timer in due:
            timer.callback()
        stage.reads.finish()


def held_by(kind: SubscriptionType, names: str, entries: int = MANY, few: int = 0, last_key: str = "k0") -> Stage:
    """Consumers that hold all entries, beside some that never ask for any."""
    stage = Stage(kind, DispatchSettings(unacked_messages_per_consumer_max=0, unacked_messages_per_subscription_max=0))
    stage.cursor.entries += [Entry(LEDGER, number, KEYS[number % len(KEYS)]) for number in range(entries - 1)]
    stage.cursor.append(stored_message(partition_key=last_key))
    for name in names:
        stage.join(name, permits=0)
    for number in range(few):
        stage.join(f"few{number}", permits=0)
    for name in names:
        stage.flow(name, entries)
    settle(stage)
    for number in range(few):
        stage.subscription.remove_consumer(stage.consumers[f"few{number}"])
    settle(stage)
    for name in names:
        stage.consumers[name].permits = 0
    assert stage.subscription.unacked_messages == entries - stage.subscription.waiting_entries
    assert stage.subscription.waiting_entries < entries / 2
    return stage


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_what_consumers_held_that_left_in_one_turn_is_given_back_in_turns(kind: SubscriptionType) -> None:
    stage = held_by(kind, "abc")
    stage.join("z", permits=0)
    settle(stage)
    waiting = stage.subscription.waiting_entries
    for name in "abc":
        stage.subscription.remove_consumer(stage.consumers[name])
    steps = []
    while stage.subscription.waiting_entries < MANY:
        steps.append(stage.subscription.waiting_entries - waiting)
        waiting = stage.subscription.waiting_entries
        turn(stage)
        assert len(steps) < 100
        assert stage.subscription.key_shared is None or not stage.subscription.key_shared.unsettled
    assert max(steps) <= TURN_ENTRIES_MAX
    assert stage.subscription.unacked_messages == 0
    stage.flow("z", MANY)
    settle(stage)
    assert stage.received("z") == list(range(MANY))
    stage.validate()


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_what_subscriptions_are_given_back_in_one_turn_is_bounded_for_all_of_them(kind: SubscriptionType) -> None:
    first = held_by(kind, "a")
    stages = [first, *(Stage(kind, beside=first) for _ in range(4))]
    for stage in stages[1:]:
        stage.cursor.entries += first.cursor.entries
        stage.join("a", permits=MANY)
    settle(first)
    for stage in stages:
        stage.join("z", permits=0)
    settle(first)
    for stage in stages:
        stage.subscription.remove_consumer(stage.consumers["a"])
    steps = []
    waiting = 0
    while waiting < MANY * len(stages):
        now = sum(stage.subscription.waiting_entries for stage in stages)
        steps.append(now - waiting)
        waiting = now
        turn(first)
        assert len(steps) < 200
    assert max(steps) <= TURN_ENTRIES_MAX


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_nothing_is_sent_before_all_is_given_back_that_was_held(kind: SubscriptionType) -> None:
    stage = held_by(kind, "a")
    stage.join("z", permits=MANY + 10)
    settle(stage)
    stage.subscription.remove_consumer(stage.consumers["a"])
    stage.publish(10, partition_key="k0")
    while stage.subscription.waiting_entries < MANY:
        assert stage.received("z") == []
        turn(stage)
    settle(stage)
    assert stage.received("z") == list(range(MANY + 10))


def test_what_is_read_while_much_is_given_back_comes_behind_it() -> None:
    stage = held_by(KEY_SHARED, "a", last_key="last")
    stage.join("z", permits=MANY + 50)
    settle(stage)
    stage.cursor.cached_from = MANY + 50
    stage.publish(50, partition_key="last")
    assert len(stage.reads) == 1
    stage.subscription.remove_consumer(stage.consumers["a"])
    assert stage.received("z") == [], "the read has ended"
    settle(stage)
    stage.reads.finish()
    settle(stage)
    assert stage.received("z") == list(range(MANY + 50))


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_what_is_read_again_while_much_is_given_back_is_not_lost(kind: SubscriptionType) -> None:
    stage = held_by(kind, "ab")
    stage.join("z", permits=0)
    settle(stage)
    for name in "ab":
        stage.redeliver(name, *sorted(entry for _, entry in stage.consumers[name].pending.messages)[:100])
    stage.flow("z", MANY)
    turn(stage)
    stage.subscription.remove_consumer(stage.consumers["a"])
    stage.subscription.remove_consumer(stage.consumers["b"])
    stage.reads.finish()
    settle(stage)
    assert sorted(stage.received("z")) == list(range(MANY))
    stage.validate()


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
@pytest.mark.parametrize("few", [0, 30])
def test_what_is_acknowledged_before_it_is_given_back_is_not_sent_again(kind: SubscriptionType, few: int) -> None:
    """With many consumers it is kept who holds what."""
    stage = held_by(kind, "a", few=few)
    for number in range(few):
        stage.join(f"more{number}", permits=0)
    stage.join("z", permits=0)
    settle(stage)
    stage.subscription.remove_consumer(stage.consumers["a"])
    last = MANY - 1
    stage.ack("z", *range(0, last, 2))
    stage.ack("z", last, left=0b01, size=2)
    assert stage.subscription.unacked_messages == 0
    stage.validate()
    settle(stage)
    assert stage.subscription.waiting_entries == MANY // 2
    stage.flow("z", MANY)
    for number in range(few):
        stage.subscription.remove_consumer(stage.consumers[f"more{number}"])
    settle(stage)
    assert stage.received("z") == list(range(1, MANY, 2))
    stage.validate()


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_who_comes_after_all_have_left_begins_at_the_mark(kind: SubscriptionType) -> None:
    stage = held_by(kind, "a")
    stage.join("z", permits=0)
    settle(stage)
    stage.subscription.remove_consumer(stage.consumers["a"])
    waiting = [stage.runtime.turns.waited_for]
    stage.subscription.remove_consumer(stage.consumers["z"])
    assert [*waiting, stage.runtime.turns.waited_for] == [True, False]
    stage.join("y", permits=MANY)
    settle(stage)
    assert stage.received("y") == list(range(MANY))
    stage.validate()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("jllarft"), st.integers(0, 5), st.integers(0, 600)), max_size=40))
def test_of_each_key_nothing_is_sent_before_what_is_given_back_whoever_comes_and_goes(
    moves: list[tuple[str, int, int]],
) -> None:
    entries = 1_200
    stage = held_by(KEY_SHARED, "ab", entries, last_key=f"k{(entries - 1) % len(KEYS)}")
    present, came = ["a", "b"], 0
    for move, which, count in moves:
        before = {name: len(stage.connections[name].messages) for name in present}
        name = present[which % len(present)]
        some = [entry for _, entry in list(stage.consumers[name].pending.messages)[:count]]
        if move == "j":
            came += 1
            present.append(stage.join(f"c{came}", permits=count).name)
        elif move == "l" and len(present) > 1:
            present.remove(name)
            # There is room for some of it in this turn.
            stage.runtime.turns.left_bytes = min(stage.runtime.turns.left_bytes, DUE_ENTRY_BYTES)
            stage.subscription.remove_consumer(stage.consumers[name])
        elif move == "a":
            stage.ack(present[0], *some)
        elif move == "r":
            stage.redeliver(name, *some)
        elif move == "f":
            stage.flow(name, count)
        else:
            turn(stage)
            stage.reads.finish_those_under_way()
        stage.validate()
        for one in present:
            check_order(stage, one, before.get(one, 0))
    settle(stage)
    last = stage.join("last", permits=0)
    for name in present:
        stage.subscription.remove_consumer(stage.consumers[name])
    stage.flow("last", entries)
    settle(stage)
    left = [entry for entry in range(entries) if entry not in stage.cursor.acknowledged]
    assert sorted(entry for _, entry in last.pending.messages) == left


def check_order(stage: Stage, name: str, sent_before: int) -> None:
    """All that is older than what a consumer was just sent, of the same key, is acknowledged or held by it."""
    held = stage.consumers[name].pending
    for message in stage.connections[name].messages[sent_before:]:
        entry = message.message_id.entryId
        for older in range(entry % len(KEYS), entry, len(KEYS)):
            assert older in stage.cursor.acknowledged or (LEDGER, older) in held, (name, entry, older)
