"""Exclusive and Failover: one consumer receives, in order, within its permits."""

from __future__ import annotations

import pytest
from magnetar.broker.settings.broker import DispatchSettings
from magnetar.broker.testing.subscriptions import LEDGER, Stage, stored_message
from magnetar.wire.pulsar.command import Ack
from magnetar.wire.pulsar.enums import SubscriptionType
from magnetar.wire.pulsar.errors import PulsarError, ServerError

EXCLUSIVE = SubscriptionType.EXCLUSIVE
FAILOVER = SubscriptionType.FAILOVER


def test_entries_arrive_in_order_in_one_write() -> None:
    stage = Stage(EXCLUSIVE)
    stage.join("a")
    stage.publish(5)
    assert stage.received("a") == [0, 1, 2, 3, 4]
    stage.cursor.append(stored_message())
    stage.cursor.append(stored_message())
    stage.subscription.entries_available()
    assert stage.received("a") == [5, 6]
    assert stage.connections["a"].writes == 2


def test_a_backlog_is_read_in_large_batches() -> None:
    stage = Stage(EXCLUSIVE)
    for _ in range(250):
        stage.cursor.append(stored_message())
    stage.join("a")
    assert stage.received("a") == list(range(250))
    assert stage.connections["a"].writes == 3


def test_permits_bound_what_is_sent() -> None:
    stage = Stage(EXCLUSIVE)
    consumer = stage.join("a", permits=3)
    stage.publish(5)
    assert stage.received("a") == [0, 1, 2]
    assert consumer.permits == 0
    stage.flow("a", 1)
    assert stage.received("a") == [3]
    stage.flow("a", 10)
    assert stage.received("a") == [4]
    assert consumer.permits == 9


def test_a_batch_costs_its_messages_and_may_overdraw() -> None:
    stage = Stage(EXCLUSIVE)
    consumer = stage.join("a", permits=15)
    for _ in range(4):
        stage.cursor.append(stored_message(num_messages_in_batch=10))
    stage.subscription.entries_available()
    assert stage.received("a") == [0, 1]
    assert consumer.permits == -5
    stage.flow("a", 5)
    assert stage.received("a") == []
    stage.flow("a", 1)
    assert stage.received("a") == [2]


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER])
def test_no_limit_of_unacknowledged_messages_holds_for_one_receiver(kind: SubscriptionType) -> None:
    """As in Pulsar. The broker simulator found that an entry behind a batch that used the limit up was never sent."""
    stage = Stage(kind, DispatchSettings(unacked_messages_per_consumer_max=3))
    stage.join("a", permits=20)
    for messages in (1, 4, 1):
        stage.cursor.append(stored_message(num_messages_in_batch=messages))
    stage.subscription.entries_available()
    assert stage.received("a") == [0, 1, 2]
    stage.publish(10)
    assert stage.received("a") == list(range(3, 13))


def test_an_unwritable_connection_gets_nothing_until_it_recovers() -> None:
    stage = Stage(EXCLUSIVE)
    stage.join("a")
    stage.connections["a"].writable = False
    stage.publish(2)
    assert stage.received("a") == []
    stage.connections["a"].writable = True
    stage.subscription.writable_changed()
    assert stage.received("a") == [0, 1]


def test_the_brokers_own_metadata_is_left_out() -> None:
    stage = Stage(EXCLUSIVE)
    stage.join("a")
    message = stored_message(b"hello")
    stage.cursor.append(b"\x0e\x02\x00\x00\x00\x02\x08\x01" + message)
    stage.subscription.entries_available()
    assert stage.received("a") == [0]
    assert stage.connections["a"].payloads == [message]


def test_markers_are_acknowledged_and_never_sent() -> None:
    stage = Stage(EXCLUSIVE)
    stage.join("a")
    stage.publish(marker_type=21)
    stage.publish()
    assert stage.received("a") == [1]
    assert stage.cursor.acknowledged == {0}


def test_entries_that_nobody_can_read_are_skipped() -> None:
    stage = Stage(EXCLUSIVE)
    stage.join("a")
    stage.cursor.append(b"\xff\xff\xff\xff")
    stage.publish()
    assert stage.received("a") == [1]
    assert stage.cursor.acknowledged == {0}


def test_a_second_exclusive_consumer_is_refused() -> None:
    stage = Stage(EXCLUSIVE)
    first = stage.join("a")
    assert stage.subscription.exclusive_holder() is first
    with pytest.raises(PulsarError) as refused:
        stage.join("b")
    assert refused.value.code is ServerError.CONSUMER_BUSY
    with pytest.raises(PulsarError) as refused:
        stage.join("b", kind=SubscriptionType.SHARED)
    assert refused.value.code is ServerError.CONSUMER_BUSY


def test_the_type_may_change_when_nobody_is_connected() -> None:
    stage = Stage(EXCLUSIVE)
    stage.join("a")
    stage.publish(2)
    stage.leave("a")
    assert stage.subscription.is_idle
    stage.join("b", kind=SubscriptionType.SHARED)
    assert stage.subscription.type is SubscriptionType.SHARED
    assert stage.received("b") == [0, 1]


def test_the_next_consumer_begins_at_the_first_unacknowledged_entry() -> None:
    stage = Stage(EXCLUSIVE)
    stage.join("a")
    stage.publish(5)
    stage.ack("a", 0, 1, 3)
    stage.leave("a")
    stage.join("b")
    assert stage.received("b") == [2, 4]


def test_cumulative_ack_with_a_part_of_a_batch() -> None:
    stage = Stage(EXCLUSIVE)
    stage.join("a")
    stage.publish(3, num_messages_in_batch=4)
    stage.ack("a", 1, left=0b1100, cumulative=True)
    stage.leave("a")
    consumer = stage.join("b")
    assert stage.received("b") == [1, 2]
    assert list(stage.connections["b"].messages[0].ack_set) == [0b1100]
    assert consumer.permits == 1000 - 2 - 4


def test_a_receipt_waits_for_the_cursor() -> None:
    stage = Stage(EXCLUSIVE)
    consumer = stage.join("a")
    stage.publish()
    ack = Ack()
    ack.positions = [(LEDGER, 0)]
    answers: list[object] = []
    stage.subscription.acknowledge(consumer, ack, answers.append)
    assert answers == []
    stage.cursor.persisted.pop()(None)
    assert answers == [None]


def test_redelivery_sends_everything_again_under_the_new_epoch() -> None:
    stage = Stage(EXCLUSIVE)
    stage.join("a")
    stage.publish(4)
    stage.ack("a", 0)
    assert not stage.last_message("a").HasField("consumer_epoch")
    stage.received("a")
    stage.redeliver("a", epoch=2)
    assert stage.received("a") == [1, 2, 3]
    assert stage.last_message("a").consumer_epoch == 2


def test_entries_out_of_the_cache_come_by_one_read_at_a_time() -> None:
    stage = Stage(EXCLUSIVE)
    for _ in range(150):
        stage.cursor.append(stored_message())
    stage.cursor.cached_from = 150
    stage.join("a")
    stage.subscription.entries_available()
    stage.flow("a", 1)
    assert len(stage.reads) == 1
    assert stage.received("a") == list(range(150))
    assert stage.cursor.background_reads == 2


def test_failed_reads_are_tried_again_and_nobody_is_stuck() -> None:
    stage = Stage(EXCLUSIVE)
    for _ in range(3):
        stage.cursor.append(stored_message())
    stage.cursor.cached_from = 3
    stage.cursor.failures = 4
    stage.join("a")
    assert stage.received("a") == []
    stage.subscription.entries_available()
    assert stage.cursor.background_reads == 1  # Pausing.
    for wait_ms in (100, 200, 400, 800):
        stage.timers.advance(wait_ms)
        stage.reads.finish()
    assert stage.received("a") == [0, 1, 2]
    assert stage.timers.pending == 0


def test_a_read_that_began_before_a_redelivery_is_dropped() -> None:
    stage = Stage(EXCLUSIVE)
    for _ in range(3):
        stage.cursor.append(stored_message())
    stage.cursor.cached_from = 3
    stage.join("a")
    assert len(stage.reads) == 1
    stage.redeliver("a")
    assert stage.received("a") == [0, 1, 2]
    assert stage.cursor.background_reads == 2


def test_large_entries_leave_in_turns() -> None:
    stage = Stage(EXCLUSIVE)
    for _ in range(10):
        stage.cursor.append(stored_message(bytes(2 << 20)))
    stage.join("a")
    first = stage.received("a")
    assert len(first) < 10
    stage.timers.advance(0)
    stage.timers.advance(0)
    assert first + stage.received("a") == list(range(10))


async def test_reset_disconnects_and_starts_there() -> None:
    stage = Stage(EXCLUSIVE)
    stage.join("a")
    stage.publish(5)
    stage.ack("a", 4, cumulative=True)
    await stage.subscription.reset((LEDGER, 2))
    assert stage.connections["a"].events == ["a disconnected"]
    stage.join("b")
    assert stage.received("b") == [2, 3, 4]


def test_a_fenced_subscription_lets_nobody_in() -> None:
    stage = Stage(EXCLUSIVE)
    stage.subscription.fence()
    with pytest.raises(PulsarError) as refused:
        stage.join("a")
    assert refused.value.code is ServerError.SERVICE_NOT_READY
    stage.subscription.unfence()
    stage.join("a")
    stage.subscription.close()
    assert stage.connections["a"].events == ["a disconnected"]
    assert stage.subscription.is_idle


def test_the_end_of_a_terminated_topic_is_told_once() -> None:
    stage = Stage(EXCLUSIVE)
    stage.join("a")
    stage.publish(2)
    stage.subscription.topic_terminated()
    assert stage.connections["a"].events == []
    stage.ack("a", 0, 1)
    stage.flow("a", 1)
    assert stage.connections["a"].events == ["a end"]


def test_failover_on_a_partition_goes_by_index_among_the_best_priority() -> None:
    stage = Stage(FAILOVER)
    for name, priority in (("c", 1), ("b", 0), ("a", 0), ("d", 0)):
        stage.join(name, priority=priority, partition=4)
    active = stage.subscription.active_consumer
    assert active is not None
    assert active.name == "b"  # a, b, d in order; 4 mod 3 = 1
    assert stage.connections["b"].events[-1] == "b active"
    assert stage.connections["d"].events == ["d passive"]
    assert stage.connections["c"].events[-1] == "c passive"


def test_failover_switch_begins_at_the_first_unacknowledged_entry() -> None:
    stage = Stage(FAILOVER)
    stage.join("a", partition=0)
    stage.join("b", partition=0)
    stage.publish(4)
    assert stage.received("a") == [0, 1, 2, 3]
    stage.ack("a", 0, 1)
    stage.leave("a")
    assert stage.received("b") == [2, 3]
    assert stage.connections["b"].events == ["b passive", "b active"]


def test_failover_waits_for_acks_of_a_consumer_that_stays() -> None:
    stage = Stage(FAILOVER)
    stage.join("b", partition=0)
    stage.publish(3)
    stage.join("a", partition=0)
    assert stage.connections["b"].events == ["b active", "b passive"]
    stage.ack("b", 0, 1)
    assert stage.received("a") == []
    stage.timers.advance(1_000)
    assert stage.received("a") == [2]
