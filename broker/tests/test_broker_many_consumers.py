"""Thousands of consumers of one subscription, or producers, on one connection: none of their changes looks at all."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.broker.dispatch import hash_ring
from magnetar.broker.dispatch.consumer import Consumer, ConsumerIdentity, KeySharedPolicy
from magnetar.broker.dispatch.entry_batch import EntryBatch
from magnetar.broker.dispatch.failover import FailoverDispatcher
from magnetar.broker.dispatch.hash_ring import POINTS_PER_CONSUMER, ConsistentHashSelector
from magnetar.broker.dispatch.shared import SharedDispatcher
from magnetar.broker.dispatch.split_ranges import SplitRangeSelector
from magnetar.broker.dispatch.sticky_ranges import StickyRangeSelector
from magnetar.broker.session import leaving as session_leaving
from magnetar.broker.session.acknowledge import Attachment
from magnetar.broker.session.consume import ConsumerCommands
from magnetar.broker.subscriptions.dispatch_turns import CONSUMER_BYTES, TURN_BYTES
from magnetar.broker.testing.sessions import MemoryBroker, ProtocolClient
from magnetar.broker.topics.topic import PersistentTopic
from magnetar.core.hashing import murmur3_32
from magnetar.managed.entry import Entry
from magnetar.net.connection import Connection
from magnetar.net.requests import TURN_SECONDS_MAX, ServerRequests
from magnetar.net.testing import until
from magnetar.wire.pulsar.enums import SubscriptionType
from magnetar.wire.pulsar.errors import PulsarError
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from broker.tests.straightforward_dispatch import Halves, Named, Ring, RoundRobin, failover_active
from broker.tests.subscription_stage import Stage, StagedConnection

Command = pb.BaseCommand
TOPIC: Final = "persistent://public/default/topic"
EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = range(4)
MANY: Final = 1_000
SLOTS: Final = [*range(1, 65_536, 331), 65_535]

MOVES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5), st.integers(0, 2)), max_size=40)
"""Who leaves, if there are so many, else somebody comes; by which name, and with which priority."""


def consumer(name: str, kind: SubscriptionType, priority: int = 0, policy: KeySharedPolicy | None = None) -> Consumer:
    identity = ConsumerIdentity(1, name, kind)
    identity.priority_level = priority
    identity.key_shared = policy
    return Consumer(identity, StagedConnection())


@given(MOVES, st.integers(-1, 3))
def test_failover_chooses_as_from_all_consumers(moves: list[tuple[int, int, int]], partition: int) -> None:
    dispatcher = FailoverDispatcher(TOPIC, partition)
    present: list[Consumer] = []
    for leaving, name, priority in moves:
        if leaving < len(present):
            dispatcher.remove(present.pop(leaving))
        else:
            present.append(consumer(str(name), SubscriptionType.FAILOVER, priority))
            dispatcher.add(present[-1])
        assert dispatcher.active is failover_active(TOPIC, partition, present)
        assert list(dispatcher.consumers) == present


@given(MOVES, st.sampled_from([3, 100]), st.integers(1, 4))
def test_the_ring_has_the_owners_of_one_that_is_sorted_anew(
    moves: list[tuple[int, int, int]], points: int, looked_at_every: int
) -> None:
    selector, straightforward = ConsistentHashSelector(points), Ring(points)
    present: list[Consumer] = []
    for number, (leaving, name, _) in enumerate(moves):
        if leaving < len(present):
            gone = present.pop(leaving)
            selector.remove(gone)
            straightforward.remove(gone)
        else:
            present.append(consumer(str(name), SubscriptionType.KEY_SHARED))
            selector.add(present[-1])
            straightforward.add(present[-1])
        if number % looked_at_every == 0:
            assert [selector.owner(slot) for slot in SLOTS[::20]] == [
                straightforward.owner(slot) for slot in SLOTS[::20]
            ]
    for one in present:
        for start, end in selector.ranges(one):
            assert straightforward.owner(start) is one
            assert straightforward.owner(end) is one


@given(MOVES)
def test_ranges_in_halves_are_those_of_a_search_for_the_widest(moves: list[tuple[int, int, int]]) -> None:
    selector, straightforward = SplitRangeSelector(), Halves()
    present: list[Consumer] = []
    for leaving, name, _ in moves:
        if leaving < len(present):
            gone = present.pop(leaving)
            selector.remove(gone)
            straightforward.remove(gone)
        else:
            present.append(consumer(str(name), SubscriptionType.KEY_SHARED))
            selector.add(present[-1])
            straightforward.add(present[-1])
        assert [selector.owner(slot) for slot in SLOTS] == [straightforward.owner(slot) for slot in SLOTS]


def test_ranges_that_are_there_no_more_are_forgotten() -> None:
    selector = SplitRangeSelector()
    staying = [consumer(str(number), SubscriptionType.KEY_SHARED) for number in range(10)]
    for one in staying:
        selector.add(one)
    for number in range(1_000):
        passing = consumer(f"passing {number}", SubscriptionType.KEY_SHARED)
        selector.add(passing)
        selector.remove(passing)
    assert len(selector._widest) < 100


@given(
    st.lists(
        st.tuples(
            st.integers(0, 12), st.lists(st.tuples(st.integers(0, 40), st.integers(0, 6)), min_size=1, max_size=3)
        ),
        max_size=25,
    )
)
def test_ranges_by_name_are_refused_where_any_overlap(moves: list[tuple[int, list[tuple[int, int]]]]) -> None:
    selector, straightforward = StickyRangeSelector(), Named()
    present: list[Consumer] = []
    for leaving, wanted in moves:
        if leaving < len(present):
            gone = present.pop(leaving)
            selector.remove(gone)
            straightforward.remove(gone)
            continue
        policy = KeySharedPolicy(sticky=True, ranges=[(start, start + width) for start, width in wanted])
        one = consumer("a", SubscriptionType.KEY_SHARED, policy=policy)
        try:
            selector.add(one)
            taken = True
        except PulsarError:
            taken = False
        assert straightforward.add(one) is taken
        if taken:
            present.append(one)
        assert [selector.owner(slot) for slot in range(50)] == [straightforward.owner(slot) for slot in range(50)]


@given(MOVES)
def test_shared_gives_turns_as_before(moves: list[tuple[int, int, int]]) -> None:
    dispatcher, straightforward = SharedDispatcher(1), RoundRobin()
    present: list[Consumer] = []
    rooms: dict[Consumer, int] = {}
    for number, (leaving, permits, priority) in enumerate(moves):
        if leaving < len(present):
            gone = present.pop(leaving)
            del rooms[gone]
            dispatcher.remove(gone)
            straightforward.remove(gone)
        else:
            one = consumer("a", SubscriptionType.SHARED, priority)
            one.allow(permits)
            rooms[one] = permits
            present.append(one)
            dispatcher.add(one)
            straightforward.add(one)
        batch = EntryBatch()
        batch.entries, batch.message_counts = [Entry(1, number, b"")], [1]
        assignments, _ = dispatcher.assign(batch, replayed=False)
        chosen = straightforward.next(rooms)
        assert [one for one, _ in assignments] == ([] if chosen is None else [chosen])
        if chosen is not None:
            chosen.permits -= 1
            rooms[chosen] -= 1


# --- how much is looked at


def test_points_are_hashed_once_for_each_consumer(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[bytes] = []

    def counted(data: bytes) -> int:
        hashed.append(data)
        return murmur3_32(data)

    monkeypatch.setattr(hash_ring, "murmur3_32", counted)
    failover, ring = FailoverDispatcher(TOPIC, -1), ConsistentHashSelector()
    present = [consumer(str(number), SubscriptionType.FAILOVER) for number in range(200)]
    for one in present:
        failover.add(one)
        ring.add(one)
    for one in present:
        failover.remove(one)
        ring.remove(one)
    # For the first: its points on the ring, and the topic.
    assert len(hashed) == len(present) * (2 * POINTS_PER_CONSUMER + 1)
    assert not ring._numbers._names


class LookedAt(StagedConnection):
    """Counts how often anybody wants to know whether it takes anything: once for each look at a consumer's room."""

    looks = 0

    @property
    def writable(self) -> bool:
        type(self).looks += 1
        return True

    @writable.setter
    def writable(self, value: bool) -> None:
        """It always does."""


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many consumers were looked at since this was called last; connections of stages count them."""
    monkeypatch.setattr("broker.tests.subscription_stage.StagedConnection", LookedAt)
    LookedAt.looks = 0

    def taken() -> int:
        count, LookedAt.looks = LookedAt.looks, 0
        return count

    return taken


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED])
def test_consumers_that_come_and_go_in_one_turn_have_all_looked_at_once(
    looks: Callable[[], int], kind: SubscriptionType
) -> None:
    stage = Stage(kind)
    stage.join("staying")
    stage.publish_keys("abcdefghij" * 10)
    stage.timers.advance(0)
    looks()
    for number in range(200):
        stage.join(f"c{number}", permits=0)
    stage.timers.advance(0)
    assert looks() < 3 * 200
    for number in range(200):
        stage.subscription.remove_consumer(stage.consumers[f"c{number}"])
    stage.timers.advance(0)
    assert looks() < 5 * 200
    assert len(stage.received("staying")) == 100


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED])
def test_consumers_that_ask_for_messages_in_one_turn_have_all_looked_at_within_its_share(
    looks: Callable[[], int], kind: SubscriptionType
) -> None:
    """One read may bring a FLOW of each: all were looked at for each, which took seconds."""
    stage = Stage(kind)
    for number in range(MANY):
        stage.join(f"c{number}", permits=0)
    stage.timers.advance(0)
    looks()
    for one in stage.consumers.values():
        stage.subscription.flow(one, 1)
    assert MANY < looks() < 4 * MANY + TURN_BYTES // CONSUMER_BYTES
    stage.timers.advance(0)
    stage.publish(MANY)
    stage.timers.advance(0)
    stage.timers.advance(0)
    assert sum(len(stage.received(name)) for name in stage.consumers) > 0
    stage.validate()


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED])
def test_what_those_held_who_left_in_one_turn_is_sent_once_to_who_stays(kind: SubscriptionType) -> None:
    stage = Stage(kind)
    for number in range(50):
        stage.join(f"c{number}", permits=10)
    stage.publish_keys("abcdefghijklmnopqrstuvwxyz" * 10)
    stage.timers.advance(0)
    held = {position for number in range(50) for position in stage.consumers[f"c{number}"].pending.messages}
    assert held
    stage.join("staying", permits=10_000)
    stage.timers.advance(0)
    first = len(stage.connections["staying"].messages)
    for number in range(50):
        stage.subscription.remove_consumer(stage.consumers[f"c{number}"])
    stage.timers.advance(0)
    stage.received("staying")
    sent = [(one.message_id.ledgerId, one.message_id.entryId) for one in stage.connections["staying"].messages]
    assert len(sent) == len(set(sent)) == 260
    assert held <= set(sent)
    assert first <= 260 - len(held)
    assert stage.subscription.unacked_messages == 260


def test_only_those_hear_of_another_receiver_for_whom_it_is_otherwise() -> None:
    """By descending names each that comes first is the receiver, and all others were told each time."""
    stage = Stage(SubscriptionType.FAILOVER)
    for number in reversed(range(100)):
        stage.join(f"c{number:02}", partition=0)
    told = [event for connection in stage.connections.values() for event in connection.events]
    assert len(told) == 199
    for number in range(99):
        stage.leave(f"c{number:02}")
    told = [event for connection in stage.connections.values() for event in connection.events]
    assert len(told) == 298
    assert stage.connections["c99"].events == ["c99 active", "c99 passive", "c99 active"]


async def test_a_client_that_catches_up_has_its_subscription_looked_at_once(looks: Callable[[], int]) -> None:
    stage = Stage(SubscriptionType.SHARED)
    connection = Connection(asyncio.get_running_loop(), lambda _: cast(Any, None))
    session: Any = SimpleNamespace(connection=connection, context=SimpleNamespace(service=None))
    commands = ConsumerCommands(session)
    for number in range(200):
        one = stage.join(f"c{number}")
        commands.requests.consumers[number] = Attachment(one, stage.subscription, cast(Any, None), 0.0)
    stage.timers.advance(0)
    looks()
    commands.writable_again()
    assert 200 <= looks() < 3 * 200


# --- the end of a connection


def slow(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock takes a quarter of what connections have of a turn, and consumers leave one by one."""
    monkeypatch.setattr(session_leaving, "LEAVING_AT_ONCE", 1)
    ticks = (TURN_SECONDS_MAX / 4 * tick for tick in itertools.count())
    monkeypatch.setattr(broker.service.limits.requests, "_now_seconds", ticks.__next__)


def the_topic(broker: MemoryBroker) -> PersistentTopic:
    found = broker.service.topics[TOPIC]
    assert isinstance(found, PersistentTopic)
    return found


async def opened(client: ProtocolClient, kind: int, count: int = MANY) -> None:
    """Consumers `c0`, `c1` … of one subscription."""
    asked = [
        client.start(
            Command.SUBSCRIBE, topic=TOPIC, subscription="s", consumer_id=at, subType=kind, consumer_name=f"c{at}"
        )
        for at in range(count)
    ]
    for request_id in asked:
        assert (await client.answer(request_id)).name == "SUCCESS"


async def in_line(broker: MemoryBroker) -> None:
    """Until a connection has ended and waits for a turn to let go of more."""
    await until(lambda: broker.service.limits.requests.crowded)


@pytest.mark.parametrize("kind", [SHARED, FAILOVER, KEY_SHARED])
async def test_a_connection_with_very_many_consumers_ends_in_turns(
    memory_broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    """Others are served meanwhile, and have what its consumers held, once; those are sent nothing any more."""
    victim, other = await memory_broker.connect(), await memory_broker.connect()
    await opened(victim, kind)
    await other.producer(TOPIC)
    subscription = the_topic(memory_broker).subscriptions["s"]
    leaving = subscription.consumers
    for at in range(MANY):
        victim.send(Command.FLOW, consumer_id=at, messagePermits=200)
    await victim.round_trip()
    for first in range(0, 100, 20):
        await other.publish(20, first=first, partition_key=f"key {first}")
    await until(lambda: sum(one.messages_out for one in leaving) == 100)
    await other.consumer(TOPIC, subType=kind, consumer_name="other", consumer_id=MANY + 1)
    other.send(Command.FLOW, consumer_id=MANY + 1, messagePermits=1_000)
    await other.round_trip()
    slow(memory_broker, monkeypatch)
    await victim.abort()
    await in_line(memory_broker)
    await other.publish(10, first=100)
    assert len(subscription.consumers) > MANY // 2, "others are served before all is let go of"
    left = [len(subscription.consumers)]
    while len(subscription.consumers) > 1:
        await asyncio.sleep(0)
        left.append(len(subscription.consumers))
    assert max(before - after for before, after in itertools.pairwise(left)) <= 5
    received = [await other.expect(Command.MESSAGE) for _ in range(110)]
    ids = {(one.body.message_id.ledgerId, one.body.message_id.entryId) for one in received}
    assert len(ids) == 110
    assert not [one for one in await other.round_trip() if one.kind == Command.MESSAGE]
    assert sum(one.messages_out for one in leaving) == 100


async def test_what_a_connection_reserved_is_free_once_it_is_let_go_of_though_its_topic_goes_first(
    memory_broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = memory_broker.service.limits
    victim = await memory_broker.connect()
    await opened(victim, SHARED)
    await victim.producer(TOPIC)
    topic = the_topic(memory_broker)
    slow(memory_broker, monkeypatch)
    await victim.abort()
    await in_line(memory_broker)
    assert limits.connections.total == 0
    assert limits.client_memory.held_bytes
    await memory_broker.service.unload(topic.name)
    assert not topic.subscriptions["s"].consumers
    await until(lambda: not limits.requests.crowded)
    assert (limits.connections.total, limits.client_memory.held_bytes) == (0, 0)


async def test_a_broker_stops_while_it_lets_go_of_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async with MemoryBroker() as broker:
        victim = await broker.connect()
        await opened(victim, KEY_SHARED)
        subscription = the_topic(broker).subscriptions["s"]
        slow(broker, monkeypatch)
        await victim.abort()
        await in_line(broker)
    assert not subscription.consumers
    assert subscription.is_idle


async def test_names_and_subscriptions_of_a_connection_that_ended_are_free_at_once(
    memory_broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, other = await memory_broker.connect(), await memory_broker.connect()
    for at in range(MANY):
        await victim.producer(TOPIC, at, producer_name=f"p{at}", user_provided_producer_name=True)
    await victim.consumer(TOPIC, "exclusive", subType=EXCLUSIVE)
    slow(memory_broker, monkeypatch)
    for connection in memory_broker.running._ports.connections:
        session = cast(Any, connection._handler)
        if session.producers.attached():
            session.producers.publishes.paused = True  # Its last messages were too many to be stored at once.
    await victim.abort()
    await in_line(memory_broker)
    await other.producer(TOPIC, 1, producer_name="p999", user_provided_producer_name=True)
    await other.consumer(TOPIC, "exclusive", subType=EXCLUSIVE)
    assert len(the_topic(memory_broker).producers.by_name) > 1, "some are not let go of yet"
    await until(lambda: not memory_broker.service.limits.requests.crowded)
    assert list(the_topic(memory_broker).producers.by_name) == ["p999"]
    assert len(the_topic(memory_broker).subscriptions["exclusive"].consumers) == 1


@pytest.mark.parametrize(("former", "latter"), [(SHARED, EXCLUSIVE), (FAILOVER, SHARED), (KEY_SHARED, FAILOVER)])
async def test_who_comes_back_is_not_refused_for_consumers_of_its_former_connection(
    memory_broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, former: int, latter: int
) -> None:
    victim, other = await memory_broker.connect(), await memory_broker.connect()
    await opened(victim, former)
    slow(memory_broker, monkeypatch)
    await victim.abort()
    await in_line(memory_broker)
    subscription = the_topic(memory_broker).subscriptions["s"]
    assert len(subscription.consumers) > 1
    await other.consumer(TOPIC, subType=latter, consumer_name="back")
    assert [one.name for one in subscription.consumers] == ["back"]


async def test_who_comes_back_may_unsubscribe_before_its_former_connection_is_let_go_of(
    memory_broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, other = await memory_broker.connect(), await memory_broker.connect()
    await opened(victim, SHARED)
    slow(memory_broker, monkeypatch)
    await victim.abort()
    await in_line(memory_broker)
    await other.consumer(TOPIC, subType=SHARED)
    assert len(the_topic(memory_broker).subscriptions["s"].consumers) > 1
    assert (await other.request(Command.UNSUBSCRIBE, consumer_id=1)).name == "SUCCESS"
    assert "s" not in the_topic(memory_broker).subscriptions


async def test_nobody_unsubscribes_others_that_are_connected(memory_broker: MemoryBroker) -> None:
    victim, other = await memory_broker.connect(), await memory_broker.connect()
    await opened(victim, SHARED, 1)
    await other.consumer(TOPIC, subType=SHARED)
    refusal = await other.request(Command.UNSUBSCRIBE, consumer_id=1)
    assert (refusal.name, refusal.body.error) == ("ERROR", pb.MetadataError)
    assert len(the_topic(memory_broker).subscriptions["s"].consumers) == 2


def test_consumers_leave_together_by_subscription_and_where_there_were_few_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_leaving, "LEAVING_AT_ONCE", 2)
    many, few = object(), object()
    consumers: Any = {at: SimpleNamespace(subscription=few if at == 2 else many) for at in range(5)}
    assert session_leaving.steps_of(consumers) == [[2], [0, 1], [3, 4]]


async def test_producers_that_wait_for_exclusive_access_leave_in_turns(
    memory_broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, other = await memory_broker.connect(), await memory_broker.connect()
    await other.producer(TOPIC, producer_access_mode=pb.Exclusive)
    for at in range(200):
        victim.start(Command.PRODUCER, topic=TOPIC, producer_id=at, producer_access_mode=pb.WaitForExclusive)
    waiting = the_topic(memory_broker).producers.waiting
    await until(lambda: len(waiting) == 200)
    slow(memory_broker, monkeypatch)
    await victim.abort()
    await in_line(memory_broker)
    left = [len(waiting)]
    while waiting:
        await asyncio.sleep(0)
        left.append(len(waiting))
    assert max(before - after for before, after in itertools.pairwise(left)) <= 5


async def test_steps_are_gone_through_in_turns_with_those_of_others() -> None:
    ticks = (TURN_SECONDS_MAX / 2 * tick for tick in itertools.count())
    in_all = ServerRequests(ticks.__next__)
    gone: list[str] = []

    def steps(name: str) -> Any:
        for number in range(6):
            gone.append(f"{name}{number}")
            yield

    in_all.in_turns(steps("a"))
    in_all.in_turns(steps("b"))
    assert gone[:2] == ["a0", "a1"]
    while in_all.crowded:
        await asyncio.sleep(0)
    assert [one for one in gone if one[0] == "a"] == [f"a{number}" for number in range(6)]
    assert [one for one in gone if one[0] == "b"] == [f"b{number}" for number in range(6)]
    assert gone.index("b0") < gone.index("a5")
