"""The pure parts of dispatch: rings, ranges, queues, delayed entries, what consumers hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.broker.dispatch import split_ranges
from magnetar.broker.dispatch.choice import new_dispatcher
from magnetar.broker.dispatch.consumer import Consumer, ConsumerIdentity, KeySharedPolicy
from magnetar.broker.dispatch.failover import FailoverDispatcher
from magnetar.broker.dispatch.hash_ring import (
    POINTS_PER_CONSUMER,
    POSITIVE_MASK,
    ConsistentHashSelector,
    consistent_slot,
    sticky_slot,
)
from magnetar.broker.dispatch.pending_acknowledgements import PendingAcknowledgements
from magnetar.broker.dispatch.redelivery import RedeliveryQueue
from magnetar.broker.dispatch.split_ranges import SplitRangeSelector
from magnetar.broker.dispatch.sticky_ranges import StickyRangeSelector
from magnetar.broker.settings.broker import DispatchSettings
from magnetar.broker.subscriptions.letting_go import LET_GO_ENTRIES_MAX
from magnetar.core.hashing import murmur3_32
from magnetar.managed.entry import Entry
from magnetar.wire.pulsar.enums import SubscriptionType
from magnetar.wire.pulsar.errors import PulsarError, ServerError

from broker.tests.straightforward_dispatch import failover_index
from broker.tests.subscription_stage import LEDGER, Stage, StagedConnection


def consumer(name: str, policy: KeySharedPolicy | None = None) -> Consumer:
    identity = ConsumerIdentity(1, name, SubscriptionType.KEY_SHARED)
    identity.key_shared = policy
    return Consumer(identity, StagedConnection())


def owners(selector: ConsistentHashSelector) -> list[str]:
    found = [selector.owner(slot) for slot in range(1, 65_536, 97)]
    return [one.name for one in found if one is not None]


def test_failover_ring_is_stable_and_spreads_topics() -> None:
    names = ["a", "b", "c"]
    chosen = [failover_index(f"persistent://t/n/topic-{number}", names) for number in range(60)]
    assert set(chosen) == {0, 1, 2}
    assert chosen == [failover_index(f"persistent://t/n/topic-{number}", names) for number in range(60)]
    assert failover_index("persistent://t/n/x", ["only"]) == 0


def test_the_failover_ring_begins_anew_behind_its_last_point() -> None:
    last = max(murmur3_32(b"only%d" % point) & POSITIVE_MASK for point in range(POINTS_PER_CONSUMER))
    topic = next(name for name in map(str, range(100_000)) if murmur3_32(name.encode()) & POSITIVE_MASK > last)
    assert failover_index(topic, ["only"]) == 0


def test_without_consumers_nobody_is_active() -> None:
    dispatcher = FailoverDispatcher("persistent://t/n/x", -1)
    only = consumer("only")
    dispatcher.add(only)
    dispatcher.remove(only)
    assert dispatcher.active is None
    assert dispatcher.room() == 0


def test_a_consumer_that_joins_takes_slots_only_for_itself() -> None:
    selector = ConsistentHashSelector()
    selector.add(consumer("a"))
    selector.add(consumer("b"))
    before = owners(selector)
    third = consumer("c")
    selector.add(third)
    after = owners(selector)
    assert all(now in (former, "c") for former, now in zip(before, after, strict=True))
    assert 0.1 < after.count("c") / len(after) < 0.6
    selector.remove(third)
    assert owners(selector) == before


def test_consumers_of_one_name_share_and_numbers_are_used_again() -> None:
    selector = ConsistentHashSelector()
    first, second = consumer("same"), consumer("same")
    selector.add(first)
    selector.add(second)
    ranges = selector.ranges(first)
    assert ranges
    assert selector.ranges(second)
    selector.remove(first)
    again = consumer("same")
    selector.add(again)
    assert selector.ranges(again) == ranges


def test_an_empty_ring_has_no_owner() -> None:
    selector = ConsistentHashSelector()
    one = consumer("a")
    selector.add(one)
    assert selector.owner(1) is one
    assert selector.ranges(one) == [(1, 65_535)]
    selector.remove(one)
    assert selector.owner(1) is None


def test_more_points_spread_slots_more_evenly() -> None:
    few, many = ConsistentHashSelector(1), ConsistentHashSelector(1_000)
    for selector in (few, many):
        for name in "abcd":
            selector.add(consumer(name))
    shares = [sorted(owners(selector).count(name) for name in "abcd") for selector in (few, many)]
    assert shares[1][-1] - shares[1][0] < shares[0][-1] - shares[0][0]


def test_who_joins_gets_the_lower_half_of_the_widest_range() -> None:
    selector = SplitRangeSelector()
    assert selector.owner(1) is None
    a, b, c, d = (consumer(name) for name in "abcd")
    selector.add(a)
    assert selector.ranges(a) == [(0, 65_536)]
    selector.add(b)
    assert [selector.ranges(one) for one in (b, a)] == [[(0, 32_768)], [(32_769, 65_536)]]
    selector.add(c)
    selector.add(d)
    assert [selector.ranges(one) for one in (c, b, d, a)] == [
        *([(0, 16_384)], [(16_385, 32_768)], [(32_769, 49_152)], [(49_153, 65_536)])
    ]
    assert [selector.owner(slot) for slot in (1, 16_384, 16_385, 49_152, 65_535)] == [c, c, b, d, a]
    assert selector.slot(b"key") == selector.slot_of_hash(murmur3_32(b"key")) == sticky_slot(b"key")


def test_the_range_above_takes_over_and_the_one_below_for_the_last() -> None:
    selector = SplitRangeSelector()
    a, b, c = (consumer(name) for name in "abc")
    for one in (a, b, c):
        selector.add(one)
    selector.remove(c)
    assert [selector.ranges(one) for one in (b, a)] == [[(0, 32_768)], [(32_769, 65_536)]]
    selector.remove(a)
    assert selector.ranges(b) == [(0, 65_536)]
    selector.remove(b)
    assert selector.owner(1) is None


@given(st.lists(st.integers(0, 12), max_size=60))
def test_ranges_in_halves_are_all_slots_whoever_comes_and_goes(moves: list[int]) -> None:
    selector = SplitRangeSelector()
    joined: list[Consumer] = []
    for move in moves:
        if move < len(joined):
            selector.remove(joined.pop(move))
        else:
            joined.append(consumer(str(move)))
            selector.add(joined[-1])
        ranges = sorted((selector.ranges(one)[0], one.name) for one in joined)
        edges = [edge for (start, end), _ in ranges for edge in (start, end + 1)]
        assert edges[:1] + edges[-1:] == ([0, 65_537] if joined else [])
        assert edges[1:-1:2] == edges[2:-1:2], "each begins where the one before ends"
        assert all(selector.owner(max(1, selector.ranges(one)[0][0])) is one for one in joined)


def test_a_range_of_one_slot_is_not_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_ranges, "STICKY_HASH_RANGE", 256)
    selector = SplitRangeSelector()
    for number in range(256):
        selector.add(consumer(str(number)))
    with pytest.raises(PulsarError, match="No more range can assigned to new consumer, assigned consumers 256") as hit:
        selector.add(consumer("one too many"))
    assert hit.value.code is ServerError.CONSUMER_ASSIGN_ERROR


@pytest.mark.parametrize(("consistent", "chosen"), [(False, "b"), (True, "a")])
def test_a_hash_ring_can_pick_for_partitions(consistent: bool, chosen: str) -> None:
    settings = DispatchSettings(failover_consistent_hashing=consistent)
    identity = ConsumerIdentity(1, "a", SubscriptionType.FAILOVER)
    topic = next(name for name in map(str, range(100)) if failover_index(name, ["a", "b"]) == 0)
    first = Consumer(identity, StagedConnection(), partition_index=1)
    dispatcher = new_dispatcher(topic, first, settings)
    dispatcher.add(first)
    dispatcher.add(consumer("b"))
    assert dispatcher.active is not None
    assert dispatcher.active.name == chosen


def test_sticky_owner_is_by_range() -> None:
    selector = StickyRangeSelector()
    one = consumer("a", KeySharedPolicy(sticky=True, ranges=[(10, 20), (0, 5)]))
    other = consumer("b", KeySharedPolicy(sticky=True, ranges=[(6, 9)]))
    selector.add(one)
    selector.add(other)
    assert [selector.owner(slot) for slot in (0, 5, 6, 9, 10, 20, 21)] == [one, one, other, other, one, one, None]
    assert selector.ranges(one) == [(0, 5), (10, 20)]
    selector.remove(one)
    assert selector.owner(5) is None


@given(st.binary())
def test_slots_lie_in_their_ranges(key: bytes) -> None:
    assert 1 <= consistent_slot(key) <= 65_535
    assert 1 <= sticky_slot(key) <= 65_535


@given(st.lists(st.tuples(st.sampled_from(["add", "discard", "take", "clear"]), st.integers(0, 30)), max_size=200))
def test_redelivery_queue_is_an_ordered_set(steps: list[tuple[str, int]]) -> None:
    queue = RedeliveryQueue()
    twin: dict[tuple[int, int], int] = {}
    for action, number in steps:
        position = (number % 3, number)
        if action == "add":
            assert queue.add(position, number + 1) == (position not in twin)
            twin.setdefault(position, number + 1)
        elif action == "discard":
            assert queue.discard(position) == twin.pop(position, None)
        elif action == "clear":
            queue.clear()
            twin.clear()
        else:
            count = number % 4
            expected = sorted(twin.items())[:count]
            assert queue.take(count) == expected
            for taken, _ in expected:
                del twin[taken]
        assert len(queue) == len(twin)
    assert queue.take_all() == sorted(twin.items())


def test_the_queue_gives_up_places_that_nobody_holds() -> None:
    queue = RedeliveryQueue()
    for number in range(1_000):
        queue.add((1, number), 1)
    for number in range(1_000):
        queue.discard((1, number))
    assert len(queue._heap) <= 64


def test_pending_counts_messages_and_hashes() -> None:
    pending = PendingAcknowledgements()
    entries = [Entry(1, number, b"") for number in range(3)]
    assert pending.add(entries, [1, 5, 2], [9, 9, 4]) == 8
    assert pending.add(entries[:1], [1], [9]) == 0
    assert pending.shrink((1, 1), 3) == 2
    assert pending.shrink((1, 1), 4) == 0
    assert pending.remove((1, 1)) == 3
    assert pending.holds_hash(9)
    assert pending.remove((1, 0)) == 1
    assert not pending.holds_hash(9)
    assert pending.remove((1, 0)) == 0
    assert pending.take_all() == [((1, 2), 4)]
    assert len(pending) == 0


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED])
def test_what_consumers_hold_of_skipped_entries_is_let_go_of_in_parts(kind: SubscriptionType) -> None:
    entries = LET_GO_ENTRIES_MAX + 100
    stage = Stage(kind, DispatchSettings(unacked_messages_per_consumer_max=0, unacked_messages_per_subscription_max=0))
    consumer = stage.join("a", permits=2 * entries)
    stage.publish(entries)
    stage.timers.advance(1_000)
    assert len(consumer.pending) == entries
    stage.subscription.expire_up_to((LEDGER, entries - 1))
    assert len(consumer.pending) == 100
    stage.timers.advance(0)
    assert (len(consumer.pending), stage.subscription.unacked_messages, consumer.unacked_messages) == (0, 0, 0)


def test_a_subscription_that_holds_too_much_goes_on_when_that_is_skipped() -> None:
    limits = DispatchSettings(unacked_messages_per_consumer_max=0, unacked_messages_per_subscription_max=10)
    stage = Stage(SubscriptionType.SHARED, limits)
    stage.join("a", permits=100)
    stage.publish(20)
    stage.timers.advance(1_000)
    assert len(stage.received("a")) == 10
    stage.subscription.expire_up_to((LEDGER, 9))
    stage.timers.advance(1_000)
    assert len(stage.received("a")) == 10


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_types_are_called_as_pulsar_calls_them(kind: SubscriptionType) -> None:
    assert kind.display_name.upper() == kind.name


def test_an_odd_range_leaves_the_larger_half_below_to_who_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Apache's brokers cut it: the end less half of the width, rounded down."""
    monkeypatch.setattr(split_ranges, "STICKY_HASH_RANGE", 7)
    first, second = consumer("first"), consumer("second")
    selector = SplitRangeSelector()
    selector.add(first)
    selector.add(second)
    assert (selector.ranges(second), selector.ranges(first)) == ([(0, 4)], [(5, 7)])
