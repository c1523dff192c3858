"""Shared: round robin, acks of single entries, redelivery, limits of what is unacknowledged, delays, chunks."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from magnetar.broker.settings.broker import DispatchSettings
from magnetar.broker.subscriptions.delayed import AT_ONCE_MAX, DELAY_SECONDS_MAX
from magnetar.broker.subscriptions.delayed_index import DELAYED_ENTRIES_MAX
from magnetar.broker.subscriptions.pump import DUE_WAITING_MAX
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.wire.pulsar.enums import SubscriptionType
from magnetar.wire.pulsar.errors import PulsarError, ServerError

from broker.tests.subscription_stage import LEDGER, Stage, stored_message

SHARED = SubscriptionType.SHARED


def shared_stage(**limits: Any) -> Stage:
    return Stage(SHARED, DispatchSettings(**limits))


def fill(stage: Stage, count: int, **fields: Any) -> None:
    for _ in range(count):
        stage.cursor.append(stored_message(**fields))


def has_pump(subscription: Subscription) -> bool:
    return subscription._pump is not None


def test_turns_of_twenty_go_round() -> None:
    stage = shared_stage()
    fill(stage, 100)
    stage.join("a", permits=0)
    stage.join("b", permits=0)
    stage.consumers["a"].permits = 1000
    stage.flow("b", 1000)
    assert stage.received("a") == [*range(20), *range(40, 60), *range(80, 100)]
    assert stage.received("b") == [*range(20, 40), *range(60, 80)]
    assert stage.connections["a"].writes == 1
    stage.validate()


def test_single_entries_alternate() -> None:
    stage = shared_stage()
    stage.join("a")
    stage.join("b")
    for _ in range(4):
        stage.publish()
    assert stage.received("a") == [0, 2]
    assert stage.received("b") == [1, 3]


def test_lower_priority_numbers_come_first() -> None:
    stage = shared_stage()
    stage.join("late", priority=1)
    stage.join("first", permits=2, priority=0)
    stage.publish(5)
    assert stage.received("first") == [0, 1]
    assert stage.received("late") == [2, 3, 4]


def test_nothing_is_put_aside_when_all_permits_are_used() -> None:
    stage = shared_stage()
    fill(stage, 10, num_messages_in_batch=10)
    stage.join("a", permits=25)
    assert stage.received("a") == [0, 1, 2]
    assert stage.subscription.waiting_entries == 0
    stage.flow("a", 6)
    assert stage.received("a") == [3]


def test_what_a_consumer_held_goes_to_the_others_in_order() -> None:
    stage = shared_stage()
    stage.join("a", permits=4)
    stage.publish(4)
    stage.ack("a", 1)
    stage.join("b")
    stage.leave("a")
    assert stage.received("b") == [0, 2, 3]
    assert all(message.redelivery_count == 0 for message in stage.connections["b"].messages)
    stage.validate()


def test_when_the_last_one_leaves_reading_begins_anew() -> None:
    stage = shared_stage()
    stage.join("a")
    stage.publish(4)
    stage.ack("a", 0, 2)
    stage.leave("a")
    assert stage.subscription.unacked_messages == 0
    stage.join("b")
    assert stage.received("b") == [1, 3]


def test_without_consumers_there_is_no_pump_and_a_fence_holds_for_the_next_one() -> None:
    stage = shared_stage()
    subscription = stage.subscription
    stage.publish(2)
    assert (subscription.unacked_messages, subscription.delayed_entries, subscription.blocked) == (0, 0, False)
    stage.join("a")
    assert stage.received("a") == [0, 1]
    # A read that is under way is waited for.
    stage.cursor.cached_from = 4
    stage.publish(2)
    assert len(stage.reads)
    stage.leave("a")
    assert has_pump(subscription)
    stage.reads.finish()
    stage.join("b")
    assert stage.received("b") == [0, 1, 2, 3]
    stage.leave("b")
    assert not has_pump(subscription)
    subscription.acknowledged_by_broker()
    subscription.fence()
    with pytest.raises(PulsarError):
        stage.join("c")
    subscription.unfence()
    stage.join("d")
    assert stage.received("d") == [0, 1, 2, 3]


def test_redelivery_counts_up_until_acknowledged() -> None:
    stage = shared_stage()
    stage.join("a")
    stage.publish(3)
    stage.received("a")
    stage.redeliver("a", 1)
    assert stage.received("a") == [1]
    assert stage.last_message("a").redelivery_count == 1
    stage.redeliver("a", 1)
    assert stage.received("a") == [1]
    assert stage.last_message("a").redelivery_count == 2
    stage.redeliver("a", 7)  # Not held.
    assert stage.received("a") == []
    stage.redeliver("a")
    assert stage.received("a") == [0, 1, 2]
    assert [message.redelivery_count for message in stage.connections["a"].messages[-3:]] == [1, 3, 1]
    assert stage.consumers["a"].messages_redelivered == 5
    stage.validate()


def test_no_count_is_kept_of_what_is_acknowledged() -> None:
    stage = shared_stage()
    stage.join("a")
    stage.publish(3)
    stage.received("a")
    stage.redeliver("a", 0, 1)
    stage.received("a")
    assert len(stage.cursor.redeliveries) == 2
    stage.ack("a", 1)
    assert len(stage.cursor.redeliveries) == 1


def test_no_count_is_kept_of_what_is_acknowledged_while_it_waits() -> None:
    stage = shared_stage()
    stage.join("a", permits=2)
    stage.publish(2)
    stage.received("a")
    stage.redeliver("a")
    assert len(stage.cursor.redeliveries) == stage.subscription.waiting_entries == 2
    stage.ack("a", 0)
    assert len(stage.cursor.redeliveries) == 1


def test_counts_outlast_the_consumers() -> None:
    """What a consumer held goes to others, or to whoever comes next, and is counted only when a client has asked."""
    stage = shared_stage()
    stage.join("a")
    stage.publish(3)
    stage.received("a")
    stage.redeliver("a", 1)
    assert stage.received("a") == [1]
    stage.join("b", permits=0)
    stage.leave("a")
    stage.flow("b", 10)
    assert stage.received("b") == [0, 1, 2]
    assert [message.redelivery_count for message in stage.connections["b"].messages] == [0, 1, 0]
    stage.redeliver("b", 1)
    stage.received("b")
    stage.leave("b")
    stage.join("c")
    assert stage.received("c") == [0, 1, 2]
    assert [message.redelivery_count for message in stage.connections["c"].messages] == [0, 2, 0]


def test_what_the_broker_acknowledges_is_held_by_nobody() -> None:
    """Up to the mark, and the entry at the mark with it."""
    stage = shared_stage()
    consumer = stage.join("a")
    stage.publish(4)
    stage.received("a")
    held = sorted(consumer.pending.messages)
    assert len(held) == consumer.unacked_messages == 4
    assert stage.subscription.expire_up_to(held[1]) == 2
    assert sorted(consumer.pending.messages) == held[2:]
    assert consumer.unacked_messages == 2
    stage.validate()


def test_an_entry_acknowledged_while_it_waits_is_not_sent_again() -> None:
    stage = shared_stage()
    stage.join("a", permits=2)
    stage.publish(2)
    stage.received("a")
    stage.redeliver("a")
    stage.ack("a", 0)
    stage.flow("a", 10)
    assert stage.received("a") == [1]
    assert stage.subscription.waiting_entries == 0
    stage.validate()


def test_batch_index_acks_shrink_what_is_held_and_what_is_sent_again() -> None:
    stage = shared_stage()
    consumer = stage.join("a", permits=100)
    stage.publish(num_messages_in_batch=5)
    assert consumer.unacked_messages == 5
    stage.ack("a", 0, left=0b11010, size=5)
    assert consumer.unacked_messages == 3
    stage.received("a")
    stage.redeliver("a")
    assert stage.received("a") == [0]
    assert list(stage.last_message("a").ack_set) == [0b11010]
    assert consumer.permits == 100 - 5 - 3
    stage.ack("a", 0, left=0b00101, size=5)
    assert consumer.unacked_messages == 0
    assert stage.cursor.acknowledged == {0}
    assert consumer.messages_acknowledged == 5
    stage.validate()


def test_another_consumer_may_acknowledge() -> None:
    stage = shared_stage()
    a = stage.join("a")
    stage.publish(2)
    b = stage.join("b")
    stage.ack("b", 0, 1)
    assert (a.unacked_messages, b.unacked_messages) == (0, 0)
    assert stage.subscription.unacked_messages == 0


def test_cumulative_acks_do_nothing() -> None:
    stage = shared_stage()
    stage.join("a")
    stage.publish(3)
    stage.ack("a", 2, cumulative=True)
    assert stage.cursor.acknowledged == set()


def test_a_consumer_that_holds_too_much_is_blocked_until_half_is_acknowledged() -> None:
    stage = shared_stage(unacked_messages_per_consumer_max=10)
    consumer = stage.join("a")
    for _ in range(30):
        stage.publish()
    assert stage.received("a") == list(range(10))
    assert consumer.blocked
    stage.ack("a", *range(4))
    assert stage.received("a") == []
    stage.ack("a", 4)
    assert stage.received("a") == list(range(10, 15))
    assert consumer.unacked_messages == 10
    stage.validate()


def test_a_subscription_that_holds_too_much_is_blocked_until_half_is_acknowledged() -> None:
    stage = shared_stage(unacked_messages_per_subscription_max=10)
    stage.join("a")
    stage.join("b")
    for _ in range(20):
        stage.publish()
    assert len(stage.received("a")) + len(stage.received("b")) == 10
    assert stage.subscription.blocked
    stage.ack("a", 0, 1, 2, 3)
    assert stage.received("a") + stage.received("b") == []
    stage.ack("b", 4)
    assert len(stage.received("a")) + len(stage.received("b")) == 5
    assert stage.subscription.unacked_messages == 10


def test_entries_for_later_wait_for_their_time() -> None:
    stage = shared_stage()
    now_ms = stage.timers.now_ms()
    stage.join("a")
    stage.publish(deliver_at_time=now_ms + 5_000)
    stage.publish(deliver_at_time=now_ms + 2_000)
    stage.publish(deliver_at_time=now_ms - 1)
    stage.publish()
    assert stage.received("a") == [2, 3]
    assert stage.subscription.delayed_entries == 2
    assert stage.timers.pending == 1
    stage.timers.advance(2_000)
    assert stage.received("a") == [1]
    stage.timers.advance(3_000)
    assert stage.received("a") == [0]
    assert stage.timers.pending == 0
    stage.validate()


def test_entries_for_later_are_found_again_by_the_next_consumer() -> None:
    stage = shared_stage()
    stage.join("a")
    stage.publish(deliver_at_time=stage.timers.now_ms() + 1_000)
    stage.leave("a")
    assert stage.timers.pending == 0
    stage.join("b")
    stage.timers.advance(1_000)
    assert stage.received("b") == [0]


@pytest.mark.parametrize("own", [0, 1], ids=["waits for nothing", "waits for one entry"])
def test_who_read_no_further_for_delays_of_others_reads_on_when_there_is_room(own: int) -> None:
    """Nobody publishes or asks then, and what the subscription itself waits for is due in an hour."""
    stage = shared_stage()
    stage.join("a")
    stage.publish(own, deliver_at_time=stage.timers.now_ms() + 3_600_000)
    other, index = object(), stage.delays.opened()
    index.stand_at(other, 0)
    index.add(stage.timers.now_ms() + 1_000, (LEDGER + 1, 0), 0)
    # As if very many others were there.
    index.count += DELAYED_ENTRIES_MAX - 1
    stage.publish(2)
    stage.timers.advance(600_000)
    assert stage.received("a") == []
    index.count -= DELAYED_ENTRIES_MAX - 1
    stage.delays.leave(other)
    stage.timers.advance(DELAY_SECONDS_MAX * 1_000)
    assert stage.received("a") == [own, own + 1]
    stage.leave("a")
    assert stage.timers.pending == 0


def test_what_is_due_waits_until_less_is_to_be_sent() -> None:
    """A million that is due in one second would else weigh more than all that waits for its time."""
    entries = 2 * DUE_WAITING_MAX + AT_ONCE_MAX
    stage = shared_stage(unacked_messages_per_consumer_max=0, unacked_messages_per_subscription_max=0)
    stage.join("a", permits=1)
    stage.publish(entries, deliver_at_time=stage.timers.now_ms() + 1_000)
    stage.timers.advance(60_000)
    assert stage.received("a") == [0]
    assert stage.subscription.waiting_entries < DUE_WAITING_MAX + AT_ONCE_MAX
    assert stage.subscription.delayed_entries >= entries - DUE_WAITING_MAX - AT_ONCE_MAX
    got = []
    while stage.subscription.delayed_entries or stage.subscription.waiting_entries:
        stage.flow("a", 1_000)
        stage.timers.advance(1)
        got += stage.received("a")
        assert stage.subscription.waiting_entries < DUE_WAITING_MAX + AT_ONCE_MAX
    assert got == list(range(1, entries))


def test_chunks_of_a_message_go_to_one_consumer() -> None:
    stage = shared_stage(round_robin_messages_max=1)
    stage.join("a")
    stage.join("b")
    for index, uuid in enumerate("xyxyxy"):
        stage.cursor.append(stored_message(uuid=uuid, chunk_id=index // 2, num_chunks_from_msg=3))
    stage.subscription.entries_available()
    assert sorted([stage.received("a"), stage.received("b")]) == [[0, 2, 4], [1, 3, 5]]


def test_chunks_wait_for_their_consumer_while_others_are_served() -> None:
    stage = shared_stage()
    stage.join("a", permits=1)
    stage.publish(uuid="x", chunk_id=0, num_chunks_from_msg=2)
    stage.join("b")
    stage.publish(uuid="x", chunk_id=1, num_chunks_from_msg=2)
    stage.publish()
    assert stage.received("a") == [0]
    assert stage.received("b") == [2]
    assert stage.subscription.waiting_entries == 1
    stage.flow("a", 1)
    assert stage.received("a") == [1]
    assert stage.consumers["a"].chunks_out == 2


def test_chunks_go_elsewhere_when_their_consumer_leaves() -> None:
    stage = shared_stage()
    stage.join("a", permits=1)
    stage.publish(uuid="x", chunk_id=0, num_chunks_from_msg=2)
    stage.join("b")
    stage.publish(uuid="x", chunk_id=1, num_chunks_from_msg=2)
    stage.leave("a")
    assert stage.received("b") == [0, 1]


def test_failed_replays_are_tried_again_while_new_entries_go_on() -> None:
    stage = shared_stage()
    stage.join("a")
    stage.publish(2)
    stage.received("a")
    stage.cursor.failures = 1
    stage.redeliver("a")
    assert stage.received("a") == []
    stage.publish()
    assert stage.received("a") == [2]
    stage.timers.advance(100)
    assert stage.received("a") == [0, 1]
    stage.validate()


def test_another_type_is_refused_while_somebody_is_connected() -> None:
    stage = shared_stage()
    stage.join("a")
    with pytest.raises(PulsarError) as refused:
        stage.join("b", kind=SubscriptionType.KEY_SHARED)
    assert refused.value.code is ServerError.CONSUMER_BUSY


def test_disconnecting_everybody_sends_nothing_more() -> None:
    stage = shared_stage()
    stage.join("a")
    stage.publish(3)
    stage.join("b")
    stage.subscription.disconnect_all()
    assert stage.received("b") == []
    assert stage.connections["a"].events == ["a disconnected"]
    assert stage.subscription.is_idle


def test_statistics_have_pulsars_names() -> None:
    stage = shared_stage()
    stage.join("a", permits=10)
    stage.publish(4)
    stage.subscription.update_rates(2.0)
    statistics = stage.subscription.statistics()
    assert statistics["type"] == "Shared"
    assert statistics["msgRateOut"] == 2.0
    assert statistics["unackedMessages"] == 4
    assert statistics["msgBacklog"] == 4
    assert statistics["consumers"][0]["availablePermits"] == 6
    assert statistics["consumers"][0]["readPositionWhenJoining"] == "7:0"
    stage.leave("a")
    assert stage.subscription.statistics()["msgOutCounter"] == 4
    assert stage.subscription.statistics()["consumers"] == []


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 30)),
        st.tuples(st.just("chunks"), st.integers(2, 4)),
        st.tuples(st.just("join"), st.integers(0, 40)),
        st.tuples(st.just("leave"), st.integers(0, 9)),
        st.tuples(st.just("ack"), st.integers(0, 9)),
        st.tuples(st.just("again"), st.integers(0, 9)),
        st.tuples(st.just("flow"), st.integers(0, 9)),
        st.tuples(st.just("forget"), st.integers(0, 50)),
        st.tuples(st.just("read"), st.just(0)),
    ),
    max_size=40,
)


class LossChecker:
    """Drives a stage: each entry is unacknowledged at one consumer at most, and none is lost."""

    def __init__(self) -> None:
        self.stage = shared_stage(unacked_messages_per_consumer_max=60, unacked_messages_per_subscription_max=150)
        self.held: dict[str, list[int]] = {}
        self.joined = 0
        self.uuids = 0

    def step(self, action: str, value: int) -> None:
        stage = self.stage
        if action == "publish":
            stage.publish(value)
        elif action == "chunks":
            self.uuids += 1
            for chunk_id in range(value):
                stage.publish(uuid=f"u{self.uuids}", chunk_id=chunk_id, num_chunks_from_msg=value)
        elif action == "join":
            name = f"c{self.joined}"
            self.joined += 1
            self.held[name] = []
            stage.join(name, permits=value, priority=value % 2)
        elif action == "read" and len(stage.reads):
            stage.reads.finish_one()
        elif action == "forget":
            stage.cursor.cached_from = value
        elif self.held:
            self._consumer_step(action, list(self.held)[value % len(self.held)], value)
        self.look()
        stage.validate()

    def _consumer_step(self, action: str, name: str, value: int) -> None:
        held = self.held[name]
        if action == "leave":
            del self.held[name]
            self.stage.leave(name)
        elif action == "flow":
            self.stage.flow(name, value + 1)
        elif action == "ack" and held:
            self.stage.ack(name, held.pop(value % len(held)))
        elif action == "again" and held:
            self.stage.redeliver(name, held.pop(value % len(held)))

    def look(self) -> None:
        for name, held in self.held.items():
            messages = self.stage.connections[name].messages
            held += [message.message_id.entryId for message in messages]
            messages.clear()
        everything = [entry_id for held in self.held.values() for entry_id in held]
        assert len(everything) == len(set(everything)), "an entry is with one consumer only"
        assert not set(everything) & self.stage.cursor.acknowledged

    def drain(self) -> None:
        """With permits and acks for all, everything arrives."""
        self.step("join", 100)
        for _ in range(200):
            for name, held in self.held.items():
                self.stage.flow(name, 100)
                self.stage.reads.finish()
                self.look()
                self.stage.ack(name, *held)
                held.clear()
                self.stage.reads.finish()
                self.look()
            if self.stage.cursor.backlog_entries == 0:
                assert self.stage.subscription.waiting_entries == 0
                return
        raise AssertionError(f"stuck with {self.stage.cursor.backlog_entries} entries")


@settings(max_examples=100, deadline=None)
@given(STEPS)
@pytest.mark.slow
def test_nothing_is_lost_or_doubled_whatever_happens(steps: list[tuple[str, int]]) -> None:
    checker = LossChecker()
    for action, value in steps:
        checker.step(action, value)
    checker.drain()


def test_acks_of_what_nobody_holds_cost_the_same_with_many_consumers() -> None:
    def seconds(consumers: int) -> float:
        stage = shared_stage()
        for number in range(consumers):
            stage.join(f"c{number}", permits=0)
        stage.publish(1)
        stage.flow("c0", 1)
        stage.ack("c0", 0)
        # Unknown ones, one that is acknowledged already, and one that is not sent yet.
        stage.publish(1)
        ids = [*range(100, 5_100), *[0] * 5_000, 2]
        best = math.inf
        for _ in range(5):
            began = time.process_time()
            stage.ack("c0", *ids)
            best = min(best, time.process_time() - began)
        return best

    # They were looked for among all consumers: a hundred times as many took nearly a hundred times as long.
    assert seconds(400) < 10 * seconds(4)


def test_an_ack_of_another_consumers_entries() -> None:
    stage = shared_stage()
    first, second = stage.join("a", permits=2), stage.join("b", permits=0)
    stage.publish(2)
    assert stage.received("a") == [0, 1]
    stage.ack("b", 0, 0, 1, 0)
    assert (first.unacked_messages, second.unacked_messages, stage.subscription.unacked_messages) == (0, 0, 0)
    assert second.messages_acknowledged == 2
    assert stage.subscription.backlog == 0


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_permits_of_one_who_has_some_look_for_nothing(kind: SubscriptionType) -> None:
    stage = Stage(kind)
    stage.join("a", permits=1)
    looks: list[int] = []
    read_cached = stage.cursor.read_cached

    def counted(count_max: int, size_bytes_max: int) -> Any:
        looks.append(count_max)
        return read_cached(count_max, size_bytes_max)

    stage.cursor.read_cached = counted  # type: ignore[method-assign] # Of a fake.
    for _ in range(1_000):
        stage.flow("a", 1)
    assert looks == []
    stage.publish(1_100)
    assert len(stage.received("a")) == 1_001
    stage.flow("a", 1)
    assert len(stage.received("a")) == 1
