"""Key_Shared: one key, one consumer, in order, whoever comes and goes."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from magnetar.broker.dispatch.consumer import KeySharedPolicy
from magnetar.broker.dispatch.hash_ring import consistent_slot
from magnetar.broker.settings.broker import DispatchSettings
from magnetar.wire.pulsar.enums import SubscriptionType
from magnetar.wire.pulsar.errors import PulsarError, ServerError

from broker.tests.subscription_stage import Stage, stored_message

KEY_SHARED = SubscriptionType.KEY_SHARED
KEYS = "abcdefgh"


def owner(stage: Stage, key: str) -> str:
    dispatcher = stage.subscription.key_shared
    assert dispatcher is not None
    consumer = dispatcher.selector.owner(dispatcher.selector.slot(key.encode()))
    assert consumer is not None
    return consumer.name


def moved_key(stage: Stage, before: dict[str, str], to: str) -> str:
    """A key that another consumer owned before."""
    return next(key for key, name in before.items() if name != to and owner(stage, key) == to)


def owners(stage: Stage) -> dict[str, str]:
    return {chr(code): owner(stage, chr(code)) for code in range(33, 127)}


def test_keys_stay_with_their_consumer() -> None:
    stage = Stage(KEY_SHARED)
    stage.join("a")
    stage.join("b")
    stage.publish_keys(KEYS * 5)
    got = {name: stage.received(name) for name in "ab"}
    assert sorted(got["a"] + got["b"]) == list(range(40))
    for name, entry_ids in got.items():
        assert entry_ids == sorted(entry_ids)
        assert all(owner(stage, KEYS[entry_id % 8]) == name for entry_id in entry_ids)
    assert got["a"]
    assert got["b"]


def test_a_slow_consumer_does_not_stop_the_others() -> None:
    stage = Stage(KEY_SHARED)
    stage.join("a", permits=1)
    stage.join("b")
    mine = next(key for key, name in owners(stage).items() if name == "a")
    other = next(key for key, name in owners(stage).items() if name == "b")
    stage.publish_keys(mine * 3 + other * 3)
    assert stage.received("a") == [0]
    assert stage.received("b") == [3, 4, 5]
    assert stage.subscription.waiting_entries == 2
    stage.publish_keys(mine)
    stage.flow("a", 10)
    assert stage.received("a") == [1, 2, 6]
    stage.validate()


def test_what_was_sent_from_between_waiting_entries_is_not_sent_again() -> None:
    """When nobody has room the cursor goes back, but not behind what somebody has."""
    stage = Stage(KEY_SHARED)
    stage.join("a", permits=1)
    stage.join("b", permits=2)
    mine = next(key for key, name in owners(stage).items() if name == "a")
    other = next(key for key, name in owners(stage).items() if name == "b")
    for key, messages in ((mine, 1), (mine, 1), (other, 2)):
        stage.cursor.append(stored_message(partition_key=key, num_messages_in_batch=messages))
    stage.subscription.entries_available()
    assert (stage.received("a"), stage.received("b")) == ([0], [2])
    stage.flow("a", 10)
    stage.flow("b", 10)
    assert (stage.received("a"), stage.received("b")) == ([1], [])
    stage.validate()


def test_look_ahead_is_bounded() -> None:
    stage = Stage(KEY_SHARED)
    stage.join("a", permits=0)
    stage.join("b")
    dispatcher = stage.subscription.key_shared
    assert dispatcher is not None
    dispatcher.limit(5, 0)
    mine = next(key for key, name in owners(stage).items() if name == "a")
    other = next(key for key, name in owners(stage).items() if name == "b")
    for _ in range(30):
        stage.publish_keys(mine)
    stage.publish_keys(other)
    assert stage.received("b") == []
    assert stage.subscription.waiting_entries == 10
    stage.flow("a", 100)
    assert stage.received("a") == list(range(30))
    assert stage.received("b") == [30]


def test_a_moved_key_drains_before_its_new_owner_gets_it() -> None:
    stage = Stage(KEY_SHARED)
    stage.join("a")
    before = owners(stage)
    stage.publish_keys("".join(before))
    stage.received("a")
    stage.join("b")
    key = moved_key(stage, before, "b")
    first = list(before).index(key)
    stage.publish_keys(key * 2)
    assert stage.received("b") == []
    stage.ack("a", first)
    assert stage.received("b") == [len(before), len(before) + 1]
    stage.validate()


def test_a_moved_key_drains_until_all_that_its_former_owner_holds_is_acknowledged() -> None:
    stage = Stage(KEY_SHARED)
    stage.join("a")
    before = owners(stage)
    stage.publish_keys("".join(before) * 2)
    stage.received("a")
    stage.join("b")
    key = moved_key(stage, before, "b")
    first = list(before).index(key)
    stage.publish_keys(key)
    stage.ack("a", first)
    assert stage.received("b") == []
    stage.ack("a", len(before) + first)
    assert stage.received("b") == [2 * len(before)]
    stage.validate()


def test_a_moved_key_goes_on_when_its_former_owner_leaves() -> None:
    stage = Stage(KEY_SHARED)
    stage.join("a")
    before = owners(stage)
    stage.publish_keys("".join(before))
    stage.join("b")
    key = moved_key(stage, before, "b")
    stage.publish_keys(key)
    stage.leave("a")
    assert stage.received("b") == list(range(len(before) + 1))
    stage.validate()


def test_a_negative_ack_of_a_draining_key_moves_it() -> None:
    stage = Stage(KEY_SHARED)
    stage.join("a")
    before = owners(stage)
    stage.publish_keys("".join(before))
    stage.join("b")
    key = moved_key(stage, before, "b")
    first = list(before).index(key)
    stage.publish_keys(key)
    stage.redeliver("a", first)
    assert stage.received("b") == [first, len(before)]
    stage.validate()


def test_out_of_order_when_allowed() -> None:
    stage = Stage(KEY_SHARED)
    policy = KeySharedPolicy(allow_out_of_order=True)
    stage.join("a", key_shared=policy)
    before = owners(stage)
    stage.publish_keys("".join(before))
    stage.join("b", key_shared=policy)
    stage.publish_keys(moved_key(stage, before, "b"))
    assert stage.received("b") == [len(before)]


def test_another_mode_is_refused() -> None:
    stage = Stage(KEY_SHARED)
    stage.join("a")
    for policy in (KeySharedPolicy(allow_out_of_order=True), KeySharedPolicy(sticky=True, ranges=[(0, 1)])):
        with pytest.raises(PulsarError) as refused:
            stage.join("b", key_shared=policy)
        assert refused.value.code is ServerError.CONSUMER_BUSY


def test_sticky_ranges_get_their_keys_and_others_wait_for_nobody() -> None:
    stage = Stage(KEY_SHARED)
    stage.join("low", key_shared=KeySharedPolicy(sticky=True, ranges=[(0, 32_767)]))
    dispatcher = stage.subscription.key_shared
    assert dispatcher is not None
    low = next(key for key in KEYS if dispatcher.selector.slot(key.encode()) <= 32_767)
    high = next(key for key in KEYS if dispatcher.selector.slot(key.encode()) > 32_767)
    stage.publish_keys(high + low)
    assert stage.received("low") == [1]
    stage.join("high", key_shared=KeySharedPolicy(sticky=True, ranges=[(32_768, 65_535)]))
    assert stage.received("high") == [0]


@pytest.mark.parametrize(
    "ranges",
    [[], [(0, 100), (100, 200)], [(5, 4)], [(0, 65_536)], [(-1, 3)], [(1_500, 1_600)], [(500, 1_000)], [(0, 9_000)]],
)
def test_bad_or_taken_ranges_are_refused(ranges: list[tuple[int, int]]) -> None:
    stage = Stage(KEY_SHARED)
    stage.join("a", key_shared=KeySharedPolicy(sticky=True, ranges=[(1_000, 1_999), (3_000, 3_999)]))
    with pytest.raises(PulsarError) as refused:
        stage.join("b", key_shared=KeySharedPolicy(sticky=True, ranges=ranges))
    assert refused.value.code is ServerError.CONSUMER_ASSIGN_ERROR
    assert len(stage.subscription.consumers) == 1


def test_a_refused_first_consumer_leaves_no_trace() -> None:
    stage = Stage(KEY_SHARED)
    with pytest.raises(PulsarError):
        stage.join("a", key_shared=KeySharedPolicy(sticky=True))
    assert stage.subscription.is_idle
    stage.join("b")


def test_statistics_show_the_ranges() -> None:
    stage = Stage(KEY_SHARED)
    stage.join("a")
    stage.join("b")
    statistics = stage.subscription.statistics()
    assert statistics["keySharedMode"] == "AUTO_SPLIT"
    slots = sorted(tuple(one) for consumer in statistics["consumers"] for one in consumer["keyHashRangeArrays"])
    assert slots[0][0] == 1
    assert slots[-1][1] == 65_535
    assert all(former[1] + 1 == latter[0] for former, latter in pairwise(slots))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.text(KEYS, min_size=1, max_size=12)),
        st.tuples(st.just("join"), st.integers(0, 5)),
        st.tuples(st.just("leave"), st.integers(0, 9)),
        st.tuples(st.just("ack"), st.integers(0, 9)),
        st.tuples(st.just("flow"), st.integers(0, 9)),
        st.tuples(st.just("forget"), st.integers(0, 50)),
        st.tuples(st.just("read"), st.just(0)),
        st.tuples(st.just("fail"), st.just(0)),
    ),
    max_size=40,
)


class OrderChecker:
    """Drives a stage, and holds each key to: in order, and unacknowledged at one consumer at a time."""

    def __init__(self) -> None:
        self.stage = Stage(KEY_SHARED)
        self.keys: list[str] = []
        self.connected: list[str] = []
        self.last: dict[str, int] = defaultdict(lambda: -1)
        self.outstanding: dict[str, list[int]] = {}
        self.joined = 0

    def step(self, action: str, value: str | int) -> None:
        stage = self.stage
        if isinstance(value, str):
            self.keys += value
            stage.publish_keys(value)
        elif action == "join":
            name = f"c{self.joined}"
            self.joined += 1
            self.connected.append(name)
            self.outstanding[name] = []
            stage.join(name, permits=value)
        elif action == "read" and len(stage.reads):
            stage.reads.finish_one()
        elif action == "fail":
            stage.cursor.failures = 1
            stage.timers.advance(1_000)
        elif action == "forget":
            stage.cursor.cached_from = value
        elif self.connected:
            self._consumer_step(action, self.connected[value % len(self.connected)], value)
        self._look()
        stage.validate()

    def _consumer_step(self, action: str, name: str, value: int) -> None:
        stage = self.stage
        if action == "leave":
            self.connected.remove(name)
            gone = self.outstanding.pop(name)
            for entry_id in gone:  # They come again, in order.
                self.last[self.keys[entry_id]] = min(self.last[self.keys[entry_id]], entry_id - 1)
            stage.leave(name)
        elif action == "flow":
            stage.flow(name, value + 1)
        elif self.outstanding[name]:
            entry_id = self.outstanding[name].pop(value % len(self.outstanding[name]))
            stage.ack(name, entry_id)

    def _look(self) -> None:
        for name in self.connected:
            connection = self.stage.connections[name]
            for message in connection.messages:
                entry_id = message.message_id.entryId
                key = self.keys[entry_id]
                assert entry_id > self.last[key], "a key's entries arrive in order"
                self.last[key] = entry_id
                self.outstanding[name].append(entry_id)
            connection.messages.clear()
        for key in KEYS:
            holders = [name for name, ids in self.outstanding.items() if any(self.keys[one] == key for one in ids)]
            assert len(holders) <= 1, "a key is unacknowledged at one consumer only"

    def drain(self) -> None:
        """With permits and acks for all, everything arrives."""
        stage = self.stage
        stage.cursor.failures = 0
        if not self.connected:
            self.step("join", 5)
        for _ in range(200):
            for name in self.connected:
                self.step("flow", self.connected.index(name))
                stage.flow(name, 1_000)
                stage.reads.finish()
                stage.timers.advance(20_000)
                stage.reads.finish()
                self._look()
                while self.outstanding[name]:
                    stage.ack(name, self.outstanding[name].pop())
                    stage.reads.finish()
                    self._look()
            if stage.cursor.backlog_entries == 0:
                return
        raise AssertionError(f"stuck with {stage.cursor.backlog_entries} entries")


@settings(max_examples=150, deadline=None)
@given(STEPS)
@example([("publish", "aaaabb"), ("join", 5), ("join", 1), ("flow", 0), ("leave", 0)])
@pytest.mark.slow
def test_order_per_key_whatever_happens(steps: list[tuple[str, str | int]]) -> None:
    checker = OrderChecker()
    for action, value in steps:
        checker.step(action, value)
    checker.drain()


def test_keys_keep_their_order_where_ranges_are_halved() -> None:
    stage = Stage(KEY_SHARED, DispatchSettings(key_shared_consistent_hashing=False))
    stage.join("a")
    stage.publish_keys(KEYS)
    assert stage.received("a") == list(range(8))
    # What `a` holds of the keys that `b` gets drains first.
    stage.join("b")
    moved = [key for key in KEYS if owner(stage, key) == "b"]
    assert 0 < len(moved) < len(KEYS)
    stage.publish_keys(KEYS)
    kept = [8 + index for index, key in enumerate(KEYS) if key not in moved]
    assert (stage.received("a"), stage.received("b")) == (kept, [])
    stage.ack("a", *range(8))
    assert stage.received("b") == [8 + index for index, key in enumerate(KEYS) if key in moved]


def test_slots_are_never_zero() -> None:
    assert all(1 <= consistent_slot(str(number).encode()) <= 65_535 for number in range(1_000))


def test_entries_for_later_go_to_the_owner_of_their_key() -> None:
    stage = Stage(SubscriptionType.KEY_SHARED)
    for name in "ab":
        stage.join(name)
    for key in KEYS:
        stage.publish(partition_key=key)
    owners = {entry_id: name for name in "ab" for entry_id in stage.received(name)}
    assert set(owners.values()) == {"a", "b"}
    for key in KEYS:
        stage.publish(partition_key=key, deliver_at_time=stage.timers.now_ms() + 1_000)
    stage.timers.advance(1_000)
    later = {entry_id - len(KEYS): name for name in "ab" for entry_id in stage.received(name)}
    assert later == owners
