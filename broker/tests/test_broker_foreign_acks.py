"""Acknowledgements of entries that another consumer was sent, beside thousands of consumers of the subscription."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from magnetar.broker.dispatch.consumer import Consumer
from magnetar.broker.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.subscriptions.acknowledgement import SEARCHED_CONSUMERS_MAX
from magnetar.broker.subscriptions.held import hold_back, take_back
from magnetar.core.ids import Position
from magnetar.wire.pulsar.enums import SubscriptionType

from broker.tests.subscription_stage import LEDGER, Stage

MANY: Final = 1_000
BOTH: Final = [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED]


class Counted(dict[Any, Any]):
    """Counts what is looked at by whoever goes through it."""

    looks = 0

    def __iter__(self) -> Iterator[Any]:
        for one in super().__iter__():
            self.looks += 1
            yield one

    def keys(self) -> Any:
        return dict.fromkeys(self).keys()

    def values(self) -> Any:
        return [self[one] for one in self]


def counted(stage: Stage) -> Counted:
    """The consumers of the subscription; how many of them were looked at is counted from now on."""
    dispatcher, _ = stage.subscription.delivering
    assert dispatcher is not None
    dispatcher.consumers = Counted(dispatcher.consumers)
    return dispatcher.consumers


def crowd(kind: SubscriptionType, entries: int) -> tuple[Stage, Counted]:
    """One consumer that acknowledges, many that may be sent nothing, and the last to come, which holds all entries."""
    stage = Stage(kind)
    for number in range(MANY):
        stage.join(f"c{number}", permits=0)
    for number in range(entries):
        stage.publish(1, partition_key=f"k{number}")
    if kind is SubscriptionType.SHARED:
        stage.flow(f"c{MANY - 1}", entries)
    else:
        for number in range(1, MANY):
            stage.flow(f"c{number}", entries)
    stage.timers.advance(0)
    stage.reads.finish()
    return stage, counted(stage)


def index_of(stage: Stage) -> dict[Position, Consumer] | None:
    """Who holds what, where that is kept."""
    _, pump = stage.subscription.delivering
    assert pump is not None
    return pump.acknowledger._holders


def check_index(stage: Stage) -> None:
    """Of what consumers hold, it is kept who does; what they held before that began is found at few of them."""
    dispatcher, pump = stage.subscription.delivering
    assert dispatcher is not None
    assert pump is not None
    acknowledger = pump.acknowledger
    held = {one: holder for holder in stage.subscription.consumers for one in holder.pending.messages}
    index = acknowledger._holders or {}
    assert {one: held.get(one) for one in index} == index
    assert len(acknowledger._before) <= SEARCHED_CONSUMERS_MAX
    for position, holder in held.items():
        assert acknowledger.holder(position, dispatcher) is holder


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("at_once", [1, 200])
def test_acks_of_what_others_hold_look_at_all_consumers_no_more_than_once(kind: SubscriptionType, at_once: int) -> None:
    stage, consumers = crowd(kind, 400)
    held = sorted(entry_id for one in consumers for _, entry_id in one.pending.messages)
    consumers.looks = 0
    acknowledged = held[:200]
    for first in range(0, 200, at_once):
        stage.ack("c0", *acknowledged[first : first + at_once])
    assert consumers.looks <= 2 * MANY
    assert stage.consumers["c0"].messages_acknowledged == 200
    assert stage.subscription.unacked_messages == len(held) - 200
    check_index(stage)
    stage.validate()


def test_parts_of_batches_that_others_hold_look_at_all_consumers_no_more_than_once() -> None:
    stage, consumers = crowd(SubscriptionType.SHARED, 0)
    stage.publish(200, num_messages_in_batch=2)
    stage.flow(f"c{MANY - 1}", 400)
    stage.timers.advance(0)
    consumers.looks = 0
    stage.ack("c0", *range(200), left=0b10, size=2)
    assert consumers.looks <= 2 * MANY
    assert stage.subscription.unacked_messages == 200
    consumers.looks = 0
    stage.ack("c0", *range(200), left=0b01, size=2)
    assert consumers.looks <= MANY
    assert stage.subscription.unacked_messages == 0
    check_index(stage)


def test_transactions_of_what_others_hold_look_at_all_consumers_no_more_than_once() -> None:
    stage, consumers = crowd(SubscriptionType.SHARED, 400)
    consumers.looks = 0
    hold_back(stage.subscription, stage.consumers["c0"], {(LEDGER, entry_id): -1 for entry_id in range(200)})
    taken = take_back(stage.subscription, [(LEDGER, entry_id) for entry_id in range(200, 300)])
    assert consumers.looks <= 2 * MANY
    assert taken == [(LEDGER, entry_id) for entry_id in range(200, 300)]
    assert stage.consumers[f"c{MANY - 1}"].unacked_messages == 100
    check_index(stage)
    stage.validate()


def test_an_ack_of_what_waits_looks_at_one_queue() -> None:
    stage = Stage(SubscriptionType.KEY_SHARED)
    for number in range(MANY):
        stage.join(f"c{number}", permits=1)
    for number in range(2 * MANY):
        stage.publish(1, partition_key=f"k{number}")
    stage.timers.advance(0)
    stage.reads.finish()
    dispatcher = stage.subscription.key_shared
    assert isinstance(dispatcher, KeySharedDispatcher)
    held = {entry_id for one in stage.consumers.values() for _, entry_id in one.pending.messages}
    waiting = [entry_id for entry_id in range(stage.cursor.next_entry) if entry_id not in held]
    assert len(waiting) == dispatcher.waiting > 200
    queues: Any = Counted(dispatcher._ready)
    dispatcher._ready = queues
    stage.ack("c0", *waiting)
    assert queues.looks == 0
    assert dispatcher.waiting == 0
    for name in stage.consumers:
        stage.flow(name, 1_000)
    stage.timers.advance(0)
    sent = [entry_id for name in stage.consumers for entry_id in stage.received(name)]
    assert sorted(sent) == [each for each in range(2 * MANY) if each not in waiting]


def test_for_acks_of_what_waits_all_consumers_are_looked_at_once_a_turn() -> None:
    stage = Stage(SubscriptionType.KEY_SHARED)
    for number in range(MANY):
        stage.join(f"c{number}", permits=0)
    stage.timers.advance(0)
    # Room for the one whose key it is not: entries of all others wait.
    stage.flow("c0", 10_000)
    for number in range(MANY):
        stage.publish(1, partition_key=f"k{number}")
    stage.reads.finish()
    stage.timers.advance(0)
    waiting = stage.subscription.waiting_entries
    assert waiting > 900
    consumers = counted(stage)
    for entry_id in range(MANY):
        stage.ack("c0", entry_id)
    stage.timers.advance(0)
    assert stage.subscription.waiting_entries == 0
    assert consumers.looks <= 6 * MANY  # Now and in the next turn: their room, what waits, what they hold.


def test_of_few_consumers_nothing_is_kept() -> None:
    stage = Stage(SubscriptionType.SHARED)
    for number in range(SEARCHED_CONSUMERS_MAX):
        stage.join(f"c{number}", permits=100)
    stage.publish(200)
    stage.ack("c0", *range(200))
    assert stage.subscription.unacked_messages == 0
    assert index_of(stage) is None


def test_what_was_sent_before_many_came_is_found_at_those_who_were_there() -> None:
    stage = Stage(SubscriptionType.SHARED)
    stage.join("a", permits=150)
    stage.publish(150)
    for number in range(MANY):
        stage.join(f"c{number}", permits=0)
    stage.timers.advance(0)
    consumers = counted(stage)
    stage.ack("c0", *range(100))
    assert consumers.looks == MANY + 1
    assert stage.subscription.unacked_messages == 50
    check_index(stage)
    stage.leave("a")
    assert list(consumers) == stage.subscription.consumers
    check_index(stage)
    _, pump = stage.subscription.delivering
    assert pump is not None
    assert pump.acknowledger._before == []


def test_when_few_are_left_nothing_is_kept_any_more() -> None:
    stage, _ = crowd(SubscriptionType.SHARED, 10)
    for number in range(SEARCHED_CONSUMERS_MAX, MANY - 1):
        stage.subscription.remove_consumer(stage.consumers[f"c{number}"])
    stage.leave("c0")
    assert index_of(stage) is not None
    stage.ack("c1", *range(5))
    assert index_of(stage) is None
    assert stage.subscription.unacked_messages == 5
    check_index(stage)


class Crowded:
    """A subscription with nearly as many consumers as are searched, or some more."""

    def __init__(self, kind: SubscriptionType, more: int) -> None:
        self.stage = stage = Stage(kind)
        self.names = [f"c{number}" for number in range(SEARCHED_CONSUMERS_MAX + more)]
        for name in self.names:
            stage.join(name)
        for number in range(100):
            self.publish("", number)

    def publish(self, name: str, which: int) -> None:
        """An entry with a batch of two."""
        del name
        self.stage.publish(1, num_messages_in_batch=2, partition_key=f"k{which}")

    def ack(self, name: str, which: int) -> None:
        """Of a whole entry, whoever holds it."""
        self.stage.ack(name, which)
        assert all((LEDGER, which) not in one.pending for one in self.stage.subscription.consumers)

    def part(self, name: str, which: int) -> None:
        """Of one message of a batch."""
        self.stage.ack(name, which, left=1 + which % 2, size=2)

    def redeliver(self, name: str, which: int) -> None:
        """Of one entry, if it is this consumer's."""
        self.stage.redeliver(name, which)

    def redeliver_all(self, name: str, which: int) -> None:
        """Of whatever this consumer holds."""
        del which
        self.stage.redeliver(name)

    def leave(self, name: str, which: int) -> None:
        """Others are sent what this consumer held."""
        del which
        self.stage.leave(name)
        self.names.remove(name)

    def join(self, name: str, which: int) -> None:
        """One more, who is sent some."""
        del name, which
        self.names.append(f"c{len(self.stage.connections)}")
        self.stage.join(self.names[-1])

    def in_transaction(self, name: str, which: int) -> None:
        """A transaction acknowledges."""
        hold_back(self.stage.subscription, self.stage.consumers[name], {(LEDGER, which): -1})

    def abort(self, name: str, which: int) -> None:
        """A transaction that had a part of an entry is aborted."""
        del name
        take_back(self.stage.subscription, [(LEDGER, which)])


STEPS: Final = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *(Crowded.publish, Crowded.ack, Crowded.ack, Crowded.part, Crowded.redeliver, Crowded.redeliver_all),
                *(Crowded.leave, Crowded.join, Crowded.in_transaction, Crowded.abort),
            ]
        ),
        st.integers(0, 59),
        st.integers(0, 99),
    ),
    max_size=25,
)
"""What is done, by which consumer, to which entry."""


@settings(deadline=None)
@given(st.sampled_from(BOTH), st.integers(-2, 3), STEPS)
def test_what_is_kept_is_what_consumers_hold(
    kind: SubscriptionType, more: int, steps: list[tuple[Callable[[Crowded, str, int], None], int, int]]
) -> None:
    crowded = Crowded(kind, more)
    check_index(crowded.stage)
    for step, who, which in steps:
        step(crowded, crowded.names[who % len(crowded.names)], which)
        crowded.stage.timers.advance(0)
        crowded.stage.reads.finish()
        check_index(crowded.stage)
        crowded.stage.validate()


@pytest.mark.parametrize("kind", BOTH)
def test_acknowledgements_behind_the_end_look_at_no_consumer_that_knows_of_it(kind: SubscriptionType) -> None:
    stage = Stage(kind)
    names = [f"c{number}" for number in range(50)]
    for name in names:
        stage.join(name)
    stage.publish(1)
    stage.subscription.topic_terminated()
    for name in names:
        stage.ack(name, 0)
    stage.timers.advance(0)
    assert [stage.connections[name].events for name in names] == [[f"{name} end"] for name in names]
    consumers = counted(stage)
    for _ in range(10):
        stage.ack("c1", 0)
    assert consumers.looks == 0
    stage.leave("c1")
    stage.join("late")
    stage.publish(1)
    stage.join("later")
    assert [stage.connections[name].events for name in ("late", "later")] == [["late end"], []]
    for name in ("late", *names[2:], names[0]):
        stage.ack(name, 1)
    assert stage.connections["later"].events == ["later end"]
