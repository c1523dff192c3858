"""The edges of dispatch: a limit reached by one large read, two things that one acknowledgement ends, what is bounded,
and what a consumer that leaves or comes back must not leave behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from magnetar.broker.dispatch.consumer import PERMITS_MAX, Consumer, ConsumerIdentity, KeySharedPolicy
from magnetar.broker.dispatch.entry_batch import EntryBatch
from magnetar.broker.dispatch.hash_ring import POINTS_PER_CONSUMER, ConsistentHashSelector, NameNumbers, consistent_slot
from magnetar.broker.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.dispatch.redelivery import RedeliveryQueue
from magnetar.broker.dispatch.shared import CHUNKED_MESSAGES_MAX, WAITING_ENTRIES_MAX, SharedDispatcher
from magnetar.broker.policies.limiter import RateLimiter
from magnetar.broker.policies.model import EffectivePolicies, Rate
from magnetar.broker.settings.broker import DispatchSettings
from magnetar.broker.subscriptions.delayed import AT_ONCE_MAX
from magnetar.broker.subscriptions.delayed_index import DELAYED_ENTRIES_MAX
from magnetar.broker.subscriptions.filtering import unacknowledged, within_batch
from magnetar.core.ids import Position
from magnetar.ledger.api import EntryUnreadable
from magnetar.managed.entry import Entry
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.wire.pulsar.enums import SubscriptionType

from broker.tests.subscription_stage import LEDGER, MemoryCursor, Stage, StagedConnection, stored_message

EXCLUSIVE, FAILOVER = SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER
SHARED, KEY_SHARED = SubscriptionType.SHARED, SubscriptionType.KEY_SHARED


def consumer(number: int, kind: SubscriptionType, permits: int = 10) -> Consumer:
    """One that belongs to no subscription."""
    made = Consumer(ConsumerIdentity(number, f"c{number}", kind), StagedConnection())
    made.allow(permits)
    return made


def fill(stage: Stage, count: int, messages: int = 0, **fields: Any) -> None:
    """Entries that are there before anybody looks; batches of so many messages, if any are named."""
    batch: dict[str, Any] = {"num_messages_in_batch": messages} if messages else {}
    for _ in range(count):
        stage.cursor.append(stored_message(sequence_id=len(stage.cursor.entries), **batch, **fields))


def key_of(owner: str) -> str:
    """A key that `a` or `b` has when both are there; alone `a` has all."""
    selector = ConsistentHashSelector()
    for name in "ab":
        selector.add(Consumer(ConsumerIdentity(1, name, KEY_SHARED), StagedConnection()))
    keys = (str(number) for number in range(1_000))
    return next(key for key in keys if getattr(selector.owner(consistent_slot(key.encode())), "name", "") == owner)


# --- limits of what is not acknowledged


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_one_read_of_a_backlog_stops_at_a_consumers_limit(kind: SubscriptionType) -> None:
    stage = Stage(kind, DispatchSettings(unacked_messages_per_consumer_max=10))
    fill(stage, 30)
    held = stage.join("a")
    assert stage.received("a") == list(range(10))
    assert (held.unacked_messages, held.blocked) == (10, True)


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_one_read_of_a_backlog_stops_at_the_subscriptions_limit(kind: SubscriptionType) -> None:
    stage = Stage(kind, DispatchSettings(unacked_messages_per_subscription_max=10))
    fill(stage, 30)
    stage.join("a")
    assert stage.received("a") == list(range(10))
    assert stage.subscription.blocked


def test_entries_whose_time_has_come_stop_at_the_subscriptions_limit() -> None:
    stage = Stage(SHARED, DispatchSettings(unacked_messages_per_subscription_max=10))
    fill(stage, 30, deliver_at_time=stage.timers.now_ms() + 1_000)
    stage.join("a")
    stage.timers.advance(1_000)
    assert stage.received("a") == list(range(10))
    stage.ack("a", *range(5))
    assert stage.received("a") == list(range(10, 15))


def test_a_part_of_a_batch_that_is_acknowledged_makes_room() -> None:
    limits = DispatchSettings(unacked_messages_per_consumer_max=10, unacked_messages_per_subscription_max=0)
    stage = Stage(SHARED, limits)
    fill(stage, 1, messages=10)
    fill(stage, 3)
    stage.join("a")
    assert stage.received("a") == [0]
    stage.ack("a", 0, left=0b0000011111, size=10)
    assert stage.received("a") == [1, 2, 3]
    stage.validate()


def test_one_acknowledgement_that_frees_the_consumer_frees_the_subscription_too() -> None:
    stage = Stage(
        SHARED, DispatchSettings(unacked_messages_per_consumer_max=10, unacked_messages_per_subscription_max=10)
    )
    fill(stage, 30)
    stage.join("a")
    assert stage.received("a") == list(range(10))
    stage.ack("a", *range(5))
    assert stage.received("a") == list(range(10, 15))


def test_a_subscription_goes_on_when_who_held_all_of_its_limit_leaves() -> None:
    stage = Stage(SHARED, DispatchSettings(unacked_messages_per_subscription_max=10))
    fill(stage, 30)
    stage.join("a")
    stage.join("b")
    assert stage.received("a") == list(range(10))
    assert stage.received("b") == []
    stage.leave("a")
    assert stage.received("b") == list(range(10))


def test_a_consumer_whose_connection_ends_under_a_write_leaves_nobody_blocked() -> None:
    stage = Stage(SHARED, DispatchSettings(unacked_messages_per_subscription_max=10))
    stage.join("a", permits=0)
    written = stage.connections["a"].write_parts

    def end(parts: list[bytes]) -> None:
        written(parts)
        stage.leave("a")

    stage.connections["a"].write_parts = end  # type: ignore[method-assign]
    fill(stage, 30)
    stage.flow("a", 100)
    assert stage.received("a") == list(range(10))
    assert not stage.subscription.blocked
    stage.join("b")
    assert stage.received("b") == list(range(10))


def test_permits_of_key_shared_are_messages() -> None:
    stage = Stage(KEY_SHARED)
    fill(stage, 10, messages=10)
    owed = stage.join("a", permits=25)
    assert stage.received("a") == [0, 1, 2]
    assert owed.permits == -5


def test_permits_are_as_many_as_tools_can_read_at_most() -> None:
    owed = consumer(1, SHARED, permits=PERMITS_MAX)
    owed.allow(PERMITS_MAX)
    assert owed.permits == PERMITS_MAX == 2**31 - 1


# --- order, and who gets what


def test_a_queue_that_gave_up_places_is_still_in_order() -> None:
    queue = RedeliveryQueue()
    numbers = [number * 7_919 % 1_000 for number in range(1_000)]
    for number in numbers:
        queue.add((1, number), 1)
    for number in numbers[:700]:
        queue.discard((1, number))
    assert len(queue._heap) < 1_000
    assert [position[1] for position, _ in queue.take_all()] == sorted(numbers[700:])


def test_where_two_points_fall_together_who_came_first_keeps_the_slot() -> None:
    selector = ConsistentHashSelector()
    points: dict[int, list[str]] = {}
    for number in range(40):
        selector.add(consumer(number, KEY_SHARED))
        for point in range(POINTS_PER_CONSUMER):
            slot = consistent_slot(f"c{number}\0000\000{point}".encode())
            points.setdefault(slot, []).append(f"c{number}")
    shared = {slot: names for slot, names in points.items() if len(set(names)) > 1}
    assert shared
    for slot, names in shared.items():
        owner = selector.owner(slot)
        assert owner is not None
        assert owner.name == names[0]


def test_a_key_moves_by_the_acknowledgement_that_also_frees_its_former_consumer() -> None:
    stage = Stage(KEY_SHARED, DispatchSettings(unacked_messages_per_consumer_max=1))
    key = key_of("b")
    stage.cursor.append(stored_message(partition_key=key))
    stage.cursor.append(stored_message(partition_key=key))
    stage.join("a")
    assert stage.received("a") == [0]
    assert stage.consumers["a"].blocked
    stage.join("b")
    assert stage.received("b") == []
    stage.ack("a", 0)
    assert stage.received("b") == [1]
    stage.validate()


def test_what_has_no_room_is_kept_also_where_the_cursor_goes_back_to_what_is_behind_it() -> None:
    stage = Stage(KEY_SHARED)
    key, other = key_of("b"), key_of("a")
    stage.join("a", permits=1)
    stage.join("b", permits=3)
    for name, messages in ((other, 1), (other, 1), (key, 3), (other, 1)):
        stage.cursor.append(stored_message(partition_key=name, num_messages_in_batch=messages))
    stage.subscription.entries_available()
    assert (stage.received("a"), stage.received("b")) == ([0], [2])
    stage.flow("a", 10)
    assert stage.received("a") == [1, 3]


def test_who_gives_everything_back_holds_no_key() -> None:
    stage = Stage(KEY_SHARED)
    key = key_of("b")
    stage.cursor.append(stored_message(partition_key=key))
    held = stage.join("a")
    assert stage.received("a") == [0]
    stage.redeliver("a")
    assert stage.received("a") == [0]
    stage.validate()
    stage.ack("a", 0)
    assert not held.pending.holds_hash(consistent_slot(key.encode()))
    stage.join("b")
    stage.cursor.append(stored_message(partition_key=key))
    stage.subscription.entries_available()
    assert stage.received("b") == [1]


def test_what_is_acknowledged_while_its_key_waits_counts_no_more() -> None:
    stage = Stage(KEY_SHARED)
    stage.join("a", permits=2)
    stage.publish_keys("xx")
    assert stage.received("a") == [0, 1]
    stage.redeliver("a")
    assert stage.subscription.waiting_entries == 2
    stage.ack("a", 0)
    assert stage.subscription.waiting_entries == 1
    stage.flow("a", 10)
    assert stage.received("a") == [1]
    assert stage.subscription.waiting_entries == 0
    stage.publish_keys("x")
    assert stage.received("a") == [2]


def test_an_entry_named_twice_in_one_command_is_sent_again_once() -> None:
    stage = Stage(SHARED)
    asking = stage.join("a")
    stage.publish(2)
    stage.received("a")
    stage.redeliver("a", 1, 1)
    assert stage.received("a") == [1]
    assert stage.last_message("a").redelivery_count == 1
    assert asking.messages_redelivered == 1


def test_each_batch_has_what_is_left_of_itself() -> None:
    stage = Stage(SHARED)
    stage.join("a")
    stage.publish(3, num_messages_in_batch=4)
    stage.received("a")
    stage.ack("a", 0, left=0b1100, size=4)
    stage.ack("a", 2, left=0b0110, size=4)
    stage.redeliver("a")
    assert stage.received("a") == [0, 1, 2]
    assert [list(one.ack_set) for one in stage.connections["a"].messages[-3:]] == [[0b1100], [], [0b0110]]


@pytest.mark.parametrize(
    ("words", "messages", "left"),
    [([-1], 64, 64), ([-1], 10, 10), ([-1, -1], 70, 70), ([-1, 1], 65, 65), ([0b1010], 4, 2), ([-1 << 63], 64, 1)],
)
def test_what_an_ack_set_leaves_of_a_batch(words: list[int], messages: int, left: int) -> None:
    """Words may be signed, and name messages that the batch does not have."""
    assert unacknowledged(within_batch(words, messages)) == left


# --- one receiver


def test_a_standby_that_asks_for_messages_again_changes_nothing() -> None:
    stage = Stage(FAILOVER)
    stage.join("a", partition=0)
    stage.join("b", partition=0)
    stage.publish(3)
    assert stage.received("a") == [0, 1, 2]
    stage.redeliver("b", epoch=1)
    assert (stage.received("a"), stage.received("b")) == ([], [])


def test_a_second_change_of_the_receiver_waits_as_the_first_one_would() -> None:
    """What the first one may still acknowledge would else be sent twice."""
    stage = Stage(FAILOVER)
    stage.join("c", partition=0)
    stage.publish(3)
    assert stage.received("c") == [0, 1, 2]
    stage.join("b", partition=0)
    stage.join("a", partition=0)
    assert stage.received("a") == []
    stage.ack("c", 0, 1)
    stage.timers.advance(1_000)
    assert (stage.received("a"), stage.received("b")) == ([2], [])


# --- delays


def test_what_has_become_due_behind_an_entry_that_waits_is_sent_once() -> None:
    stage = Stage(SHARED)
    fill(stage, 1, messages=3)
    fill(stage, 1)
    fill(stage, 1, deliver_at_time=stage.timers.now_ms() + 1_000)
    stage.join("a", permits=3)
    assert stage.received("a") == [0]
    assert stage.subscription.delayed_entries == 1, "all three were read at once"
    stage.timers.advance(1_000)
    received = []
    for _ in range(5):
        stage.flow("a", 1)
        received += stage.received("a")
    assert sorted(received) == [1, 2]


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER])
def test_one_receiver_is_sent_everything_at_once(kind: SubscriptionType) -> None:
    """As in Pulsar: only the shared types deliver later."""
    stage = Stage(kind)
    fill(stage, 1, deliver_at_time=stage.timers.now_ms() + 3_600_000)
    fill(stage, 1)
    stage.join("a", partition=0)
    assert stage.received("a") == [0, 1]
    assert stage.subscription.delayed_entries == 0


def test_delayed_entries_behind_many_that_are_skipped_come_at_their_time() -> None:
    stage = Stage(SHARED)
    fill(stage, AT_ONCE_MAX + 5, deliver_at_time=stage.timers.now_ms() + 5_000)
    stage.join("a", permits=100)
    stage.timers.advance(1_000)
    assert stage.subscription.delayed_entries == AT_ONCE_MAX + 5
    stage.subscription.expire_up_to((LEDGER, AT_ONCE_MAX + 1))
    stage.timers.advance(5_000)
    assert stage.received("a") == list(range(AT_ONCE_MAX + 2, AT_ONCE_MAX + 5))
    assert stage.subscription.delayed_entries == 0


# --- damaged entries


class Damaged(MemoryCursor):
    """Has entries that no bookie can read, as long as they are in `damaged`; nothing is cached."""

    def __init__(self) -> None:
        super().__init__()
        self.damaged: set[int] = set()
        self.cached_from = 1_000

    async def read(self, count_max: int, size_bytes_max: int) -> list[Entry]:
        if self.next_entry in self.damaged:
            self.background_reads += 1
            raise EntryUnreadable((LEDGER, self.next_entry), "damaged")
        before_damage = min([one for one in self.damaged if one > self.next_entry], default=len(self.entries))
        return await super().read(min(count_max, before_damage - self.next_entry), size_bytes_max)

    async def read_positions(self, positions: Sequence[Position]) -> list[Entry]:
        for position in positions:
            if position[1] in self.damaged:
                self.background_reads += 1
                raise EntryUnreadable(position, "damaged")
        return await super().read_positions(positions)


def damaged_stage(*damaged: int, kind: SubscriptionType = SHARED) -> tuple[Stage, Damaged]:
    """A subscription whose cursor has some damaged entries."""
    stage = Stage(kind)
    cursor = Damaged()
    cursor.damaged.update(damaged)
    replaced: Any = cursor
    stage.cursor = cursor
    stage.subscription.cursor = replaced
    return stage, cursor


def test_a_damaged_entry_stops_no_other_one_and_comes_when_it_can_be_read() -> None:
    stage, cursor = damaged_stage(1)
    fill(stage, 4)
    stage.join("a")
    assert stage.received("a") == [0, 2, 3]
    stage.timers.advance(15_000)
    assert stage.received("a") == []
    reads = cursor.background_reads
    stage.timers.advance(60_000)
    assert stage.received("a") == []
    assert cursor.background_reads <= reads + 8, "now and then"
    cursor.damaged.clear()
    stage.timers.advance(15_000)
    assert stage.received("a") == [1]
    stage.validate()


def test_an_entry_that_is_damaged_when_it_is_to_be_sent_again_stops_no_other_one() -> None:
    stage, cursor = damaged_stage()
    fill(stage, 6)
    stage.join("a", permits=4)
    assert stage.received("a") == [0, 1, 2, 3]
    cursor.damaged.add(1)
    stage.redeliver("a")
    stage.flow("a", 100)
    reads = cursor.background_reads
    assert sorted(stage.received("a")) == [0, 2, 3, 4, 5]
    assert cursor.background_reads <= reads + 4
    cursor.damaged.clear()
    stage.timers.advance(15_000)
    assert stage.received("a") == [1]
    stage.validate()


def test_what_was_damaged_once_is_not_sent_again_with_what_is_damaged_next() -> None:
    stage, cursor = damaged_stage(1)
    fill(stage, 2)
    stage.join("a")
    assert stage.received("a") == [0]
    cursor.damaged.clear()
    stage.timers.advance(15_000)
    assert stage.received("a") == [1]
    cursor.damaged.add(2)
    stage.publish(2)
    assert stage.received("a") == [3]
    cursor.damaged.clear()
    stage.timers.advance(15_000)
    assert stage.received("a") == [2]


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER, KEY_SHARED])
def test_where_there_is_an_order_all_waits_for_a_damaged_entry(kind: SubscriptionType) -> None:
    stage, cursor = damaged_stage(1, kind=kind)
    fill(stage, 4)
    stage.join("a", partition=0)
    assert stage.received("a") == [0]
    stage.timers.advance(60_000)
    assert stage.received("a") == []
    cursor.damaged.clear()
    stage.timers.advance(15_000)
    assert stage.received("a") == [1, 2, 3]


# --- rates


def test_each_rate_counts_what_was_sent() -> None:
    """The loosest one as well: it may be the only one that is left."""
    stage = Stage(SHARED)
    policies = EffectivePolicies(
        ledger=ManagedLedgerSettings(), dispatch=DispatchSettings(), subscription_dispatch_rate=Rate(10)
    )
    of_topic = RateLimiter(Rate(15), stage.timers, stage.timers.call_later, "topic")
    stage.subscription.follow(policies, of_topic)
    fill(stage, 100)
    stage.join("a")
    assert stage.received("a") == list(range(10))
    assert of_topic.room()[0] == 5


def test_a_rate_holds_for_who_comes_back() -> None:
    stage = Stage(SHARED)
    policies = EffectivePolicies(ledger=ManagedLedgerSettings(), dispatch=DispatchSettings())
    stage.subscription.follow(replace(policies, subscription_dispatch_rate=Rate(10)), None)
    fill(stage, 100)
    stage.join("a")
    assert stage.received("a") == list(range(10))
    stage.leave("a")
    stage.join("b")
    assert stage.received("b") == []
    stage.timers.advance(1_000)
    assert len(stage.received("b")) == 10


# --- bounds, and what is left behind


def batch_of(entries: list[Entry]) -> EntryBatch:
    """Single messages."""
    batch = EntryBatch()
    batch.entries = entries
    batch.message_counts = [1] * len(entries)
    return batch


def chunk(entry_id: int, uuid: str, chunk_id: int, chunks: int = 2) -> Entry:
    """A part of a large message."""
    return Entry(LEDGER, entry_id, stored_message(uuid=uuid, chunk_id=chunk_id, num_chunks_from_msg=chunks))


def test_a_chunked_message_that_is_sent_is_not_remembered() -> None:
    dispatcher = SharedDispatcher(20)
    dispatcher.add(consumer(1, SHARED))
    batch = batch_of([chunk(0, "u", 0), chunk(1, "u", 1)])
    batch.has_chunks = True
    dispatcher.assign(batch, replayed=False)
    assert not dispatcher._chunk_consumers


@pytest.mark.slow
def test_chunked_messages_that_are_half_sent_are_remembered_up_to_a_bound() -> None:
    dispatcher = SharedDispatcher(20)
    dispatcher.add(consumer(1, SHARED, permits=2 * CHUNKED_MESSAGES_MAX))
    batch = batch_of([chunk(number, f"u{number}", 0) for number in range(CHUNKED_MESSAGES_MAX + 10)])
    batch.has_chunks = True
    dispatcher.assign(batch, replayed=False)
    assert len(dispatcher._chunk_consumers) == CHUNKED_MESSAGES_MAX
    assert f"u{CHUNKED_MESSAGES_MAX + 9}" in dispatcher._chunk_consumers


def test_reading_stops_when_too_much_waits_for_one_consumer() -> None:
    dispatcher = SharedDispatcher(20)
    dispatcher.add(consumer(1, SHARED))
    # While somebody has room, what waits does so for the consumer of its chunks.
    dispatcher.keep(batch_of([Entry(LEDGER, number, b"") for number in range(WAITING_ENTRIES_MAX - 1)]))
    assert dispatcher.room() == 10
    dispatcher.keep(batch_of([Entry(LEDGER, WAITING_ENTRIES_MAX, b"")]))
    assert dispatcher.room() == 0


LOOK_AHEAD_MAX = 20_000


def test_the_look_ahead_of_many_consumers_is_bounded_altogether() -> None:
    dispatcher = KeySharedDispatcher(KeySharedPolicy(), ConsistentHashSelector())
    dispatcher.limit(2_000, LOOK_AHEAD_MAX)
    for number in range(20):
        dispatcher.add(consumer(number, KEY_SHARED))
    dispatcher.redeliver([((LEDGER, number), 1 + number % 1_000) for number in range(LOOK_AHEAD_MAX - 1)])
    assert dispatcher.room() == 200
    dispatcher.redeliver([((LEDGER, LOOK_AHEAD_MAX), 1)])
    assert dispatcher.room() == 0


def test_reading_stops_when_too_many_entries_of_the_topic_wait_for_their_time() -> None:
    stage = Stage(SHARED)
    stage.join("a")
    pump = stage.subscription._pump
    assert pump is not None
    index = stage.subscription._delayed_of_topic.opened()
    index.count = DELAYED_ENTRIES_MAX - 1
    stage.publish()
    assert stage.received("a") == [0]
    index.count = DELAYED_ENTRIES_MAX
    stage.publish()
    assert stage.received("a") == []
    index.count = 0
    stage.publish()
    assert stage.received("a") == [1, 2]


def test_counters_keep_what_every_consumer_that_left_was_sent() -> None:
    stage = Stage(EXCLUSIVE)
    before = 0
    for number in range(3):
        stage.join(f"c{number}")
        stage.publish(2)
        stage.leave(f"c{number}")
        statistics = stage.subscription.statistics()
        assert statistics["bytesOutCounter"] > before
        before = statistics["bytesOutCounter"]
        stage.cursor.acknowledge([(LEDGER, entry.entry_id) for entry in stage.cursor.entries])
    size = sum(len(entry.data) for entry in stage.cursor.entries)
    assert (before, statistics["msgOutCounter"]) == (size, 6)


def test_numbers_of_a_name_are_given_out_again_and_nothing_stays_of_a_name_that_nobody_has() -> None:
    numbers = NameNumbers()
    assert [numbers.take("name") for _ in range(3)] == [0, 1, 2]
    numbers.give_back("name", 1)
    assert numbers.take("name") == 1
    for number in range(3):
        numbers.give_back("name", number)
    assert not numbers._names
    assert numbers.take("name") == 0
