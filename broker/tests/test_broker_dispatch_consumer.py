"""One consumer by itself: how much it may hold unacknowledged, and how fast it was sent things."""

from __future__ import annotations

import pytest
from magnetar.broker.dispatch.consumer import Consumer, ConsumerIdentity
from magnetar.broker.states import ConsumerState
from magnetar.managed.entry import Entry
from magnetar.wire.pulsar.enums import SubscriptionType

from broker.tests.subscription_stage import LEDGER, StagedConnection, stored_message


def consumer(unacked_messages_max: int, kind: SubscriptionType = SubscriptionType.SHARED) -> Consumer:
    """One that may hold so many."""
    made = Consumer(ConsumerIdentity(1, "c", kind), StagedConnection(), unacked_messages_max=unacked_messages_max)
    made.allow(100)
    return made


def hold(one: Consumer, *entry_ids: int) -> int:
    """It was sent these entries, of one message each."""
    return one.hold([Entry(LEDGER, number, stored_message()) for number in entry_ids], [1] * len(entry_ids), None)


def test_a_consumer_is_held_to_its_limit_from_its_first_message_on() -> None:
    one = consumer(2)
    assert one.room == 2
    hold(one, 0)
    assert (one.room, one.blocked) == (1, False)
    hold(one, 1)
    assert (one.room, one.blocked) == (0, True)


def test_a_single_receiver_is_held_to_none() -> None:
    one = consumer(2, SubscriptionType.EXCLUSIVE)
    assert (one.room, one.unacked_messages_max) == (100, 0)


def test_who_is_blocked_or_gone_may_still_be_told_what_it_was_sent() -> None:
    """Such as the rest of a read that went beyond its limit."""
    one = consumer(2)
    assert hold(one, 0, 1) == 2
    assert hold(one, 2) == 1
    assert (one.blocked, one.unacked_messages) == (True, 3)
    one.become(ConsumerState.CLOSED)
    assert hold(one, 3) == 1
    assert (one.closed, one.unacked_messages) == (True, 4)


@pytest.mark.parametrize(("limit", "goes_on"), [(0, True), (3, True), (2, False), (1, False)])
def test_a_new_limit_lets_go_on_who_holds_less(limit: int, goes_on: bool) -> None:
    one = consumer(2)
    hold(one, 0, 1)
    one.limit(limit)
    assert (one.blocked, one.room > 0) == (not goes_on, goes_on)


def test_who_was_blocked_goes_on_at_half_and_is_told_once() -> None:
    one = consumer(4)
    hold(one, *range(4))
    assert [one.released(1) for _ in range(4)] == [False, True, False, False]


def test_each_counter_has_a_rate_of_its_own() -> None:
    one = consumer(10)
    one.messages_out, one.bytes_out, one.messages_redelivered = 20, 40, 60
    one.messages_acknowledged, one.chunks_out = 80, 100
    rates = one.rates
    each = (
        *(rates.messages_out, rates.bytes_out, rates.messages_redelivered),
        *(rates.messages_acknowledged, rates.chunks_out),
    )
    one.update_rates(10.0)
    assert [rate.per_second for rate in each] == [2.0, 4.0, 6.0, 8.0, 10.0]
    one.update_rates(10.0)
    assert [rate.per_second for rate in each] == [0.0] * 5
