"""What an aborted transaction had acknowledged is sent again: once, whatever is read, waits or is held meanwhile."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable

import pytest
from magnetar.broker.dispatch.hash_ring import consistent_slot, sticky_slot
from magnetar.broker.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.settings.broker import DispatchSettings
from magnetar.broker.subscriptions.dispatch_turns import TURN_BYTES
from magnetar.broker.subscriptions.entry_reader import ReadState
from magnetar.broker.subscriptions.held import hold_back, send_again, take_back
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.core.errors import MagnetarError
from magnetar.ledger.api import EntryUnreadable
from magnetar.wire.pulsar.enums import SubscriptionType
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from broker.tests import transaction_ack_stage
from broker.tests.subscription_stage import LEDGER, Stage
from broker.tests.transaction_ack_stage import SETTINGS, Client, topic_of

SHARED, KEY_SHARED = SubscriptionType.SHARED, SubscriptionType.KEY_SHARED
WHOLE = -1
FAR = 2_000_000
"""Later than the clock of a stage says at first, in ms."""


class TransactionStage(Stage):
    """A subscription of which one transaction holds messages."""

    def __init__(self, kind: SubscriptionType, settings: DispatchSettings | None = None) -> None:
        super().__init__(kind, settings)
        self.held: dict[tuple[int, int], int] = {}
        self.subscription.hide(self.held)

    def hold(self, name: str, *entry_ids: int) -> None:
        """A consumer acknowledges these in the transaction."""
        acked = {(LEDGER, entry_id): WHOLE for entry_id in entry_ids}
        self.held.update(acked)
        hold_back(self.subscription, self.consumers[name], acked)

    def show(self) -> list[tuple[int, int]]:
        """The first half of an abort: nothing is held any more."""
        positions = list(self.held)
        take_back(self.subscription, positions)
        self.held.clear()
        return positions

    def send_again(self, positions: list[tuple[int, int]]) -> None:
        """The second half."""
        sending = send_again(self.subscription, positions)
        with contextlib.suppress(StopIteration):
            while True:
                sending.send(None)

    def abort(self) -> None:
        self.send_again(self.show())


@pytest.fixture(params=[SHARED, KEY_SHARED])
def stage(request: pytest.FixtureRequest) -> TransactionStage:
    return TransactionStage(request.param)


def owner_of(dispatcher: KeySharedDispatcher, key: str) -> str:
    owner = dispatcher.selector.owner(dispatcher.selector.slot(key.encode()))
    assert owner is not None
    return owner.name


class History:
    """A random one: consumers of one subscription come, go, acknowledge in and out of transactions, and ask again."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.kind = chance.choice([SHARED, KEY_SHARED])
        settings = DispatchSettings(
            read_entries_max=chance.choice([1, 3, 7, 100]),
            unacked_messages_per_consumer_max=chance.choice([0, 2, 5, 30]),
            unacked_messages_per_subscription_max=chance.choice([0, 4, 12, 100]),
            look_ahead_max=chance.choice([0, 3, 10]),
        )
        self.stage = TransactionStage(self.kind, settings)
        self.names: list[str] = []
        self.steps = [self.publish, self.join, self.flow, self.acknowledge, self.ask_again, self.leave, self.hold]
        self.steps += [self.hold, self.abort, self.fail]

    def publish(self) -> None:
        cursor = self.stage.cursor
        self.stage.publish_keys("".join(self.chance.choices("abc", k=self.chance.randrange(1, 8))))
        if self.chance.random() < 0.3:
            cursor.cached_from = len(cursor.entries)

    def join(self) -> None:
        self.names.append(f"c{len(self.stage.connections)}")
        self.stage.join(self.names[-1], self.chance.choice([0, 1, 5, 50]))

    def flow(self) -> None:
        self.stage.flow(self.chance.choice(self.names), self.chance.choice([1, 2, 10]))

    def some(self, name: str) -> list[int]:
        """Of what a consumer holds."""
        pending = self.stage.consumers[name].pending.messages
        return [entry_id for _, entry_id in list(pending) if self.chance.random() < 0.5]

    def acknowledge(self) -> None:
        name = self.chance.choice(self.names)
        self.stage.ack(name, *self.some(name))

    def ask_again(self) -> None:
        name = self.chance.choice(self.names)
        self.stage.redeliver(name, *self.some(name))

    def leave(self) -> None:
        name = self.names.pop(self.chance.randrange(len(self.names)))
        self.stage.subscription.remove_consumer(self.stage.consumers[name])

    def hold(self) -> None:
        """Also what others hold, what waits, and what is being read."""
        name, cursor = self.chance.choice(self.names), self.stage.cursor
        left = [entry_id for entry_id in range(len(cursor.entries)) if entry_id not in cursor.acknowledged]
        foreign = [entry_id for entry_id in left if self.chance.random() < 0.3]
        self.stage.hold(name, *(foreign if self.chance.random() < 0.5 else self.some(name)))

    def abort(self) -> None:
        failures, self.stage.cursor.failures = self.stage.cursor.failures, 0
        self.stage.abort()
        self.stage.cursor.failures = failures

    def fail(self) -> None:
        self.stage.cursor.failures = self.chance.choice([0, 1])

    def step(self) -> None:
        stage = self.stage
        self.sends(self.chance.choice(self.steps) if self.names else self.join)
        if self.chance.random() < 0.6:
            self.sends(stage.reads.finish_those_under_way)
        if self.chance.random() < 0.6:
            self.sends(lambda: stage.timers.advance(self.chance.choice([0, 0, 200])))
        stage.validate()

    def sends(self, happen: Callable[[], None]) -> None:
        """Of what happens: it sends nothing that anybody holds, and nothing twice. What a consumer gives up is read
        again first, in the background, and so is not sent at once."""
        connections = self.stage.connections
        held = {entry_id for one in self.stage.subscription.consumers for _, entry_id in one.pending.messages}
        before = {name: len(one.messages) for name, one in connections.items()}
        happen()
        new = [one for name, each in connections.items() for one in each.messages[before.get(name, 0) :]]
        sent = [message.message_id.entryId for message in new]
        assert len(sent) == len(set(sent))
        assert not held & set(sent)

    def drain(self) -> None:
        """All is acknowledged by the last consumer, as soon as it is sent."""
        self.stage.cursor.failures = 0
        self.abort()
        for name in self.names[1:]:
            self.stage.subscription.remove_consumer(self.stage.consumers[name])
        if not self.names:
            self.join()
        name = self.names[0]
        self.stage.flow(name, 100_000)
        for _ in range(2 * len(self.stage.cursor.entries) + 2):
            self.sends(self.stage.reads.finish)
            self.sends(lambda: self.stage.timers.advance(1_000))
            pending = self.stage.consumers[name].pending.messages
            self.stage.ack(name, *(entry_id for _, entry_id in list(pending)))
        assert self.stage.cursor.backlog_entries == 0
        assert (self.stage.subscription.waiting_entries, self.stage.subscription.unacked_messages) == (0, 0)


def slots_of(key: str) -> tuple[int, int]:
    """Among those of a ring, and among sticky ranges."""
    return consistent_slot(key.encode()), sticky_slot(key.encode())


def come_back(stage: TransactionStage) -> None:
    """The consumer that has received everything, and acknowledged 4 to 8 of 0 to 9 in a transaction, comes anew."""
    stage.join("a")
    stage.publish_keys("k" * 10)
    stage.hold("a", *range(4, 9))
    stage.leave("a")
    stage.join("b", permits=0)


def test_what_reading_has_not_come_to_is_sent_when_it_does(stage: TransactionStage) -> None:
    come_back(stage)
    stage.abort()
    stage.flow("b", 100)
    assert stage.received("b") == list(range(10))
    assert stage.subscription.unacked_messages == 10


def test_what_reading_has_passed_is_sent_again(stage: TransactionStage) -> None:
    come_back(stage)
    stage.flow("b", 100)
    assert stage.received("b") == [0, 1, 2, 3, 9]
    stage.abort()
    assert stage.received("b") == [4, 5, 6, 7, 8]


def test_what_a_read_under_way_brings_is_sent_once(stage: TransactionStage) -> None:
    stage.cursor.cached_from = 10
    come_back(stage)
    stage.reads.finish()
    stage.cursor.rewind()
    stage.flow("b", 100)
    assert len(stage.reads) == 1
    stage.abort()
    assert stage.received("b") == list(range(10))


def test_what_a_read_has_brought_that_waits_for_its_turn_is_sent_once(stage: TransactionStage) -> None:
    come_back(stage)
    stage.cursor.cached_from = 10
    stage.flow("b", 100)
    stage.runtime.turns.take(TURN_BYTES, 0)
    stage.reads.finish()
    assert stage.cursor.next_entry == 10
    stage.abort()
    stage.timers.advance(0)
    assert stage.received("b") == list(range(10))


def test_what_is_read_again_already_is_sent_once(stage: TransactionStage) -> None:
    stage.join("a")
    stage.publish_keys("k" * 4)
    stage.redeliver("a")
    assert len(stage.reads) == 1
    stage.hold("a", 1, 2)
    stage.abort()
    assert stage.received("a") == [0, 1, 2, 3, 0, 1, 2, 3]
    assert stage.subscription.unacked_messages == 4


def test_what_a_read_left_out_before_is_not_forgotten(stage: TransactionStage) -> None:
    stage.join("a")
    stage.publish_keys("k" * 4)
    stage.redeliver("a")
    stage.hold("a", 1, 2)
    assert stage.received("a") == [0, 1, 2, 3, 0, 3]
    stage.abort()
    assert stage.received("a") == [1, 2]


def test_what_cannot_be_read_again_is_sent_once(stage: TransactionStage) -> None:
    stage.join("a")
    stage.publish_keys("k" * 4)
    stage.redeliver("a")
    stage.cursor.failures = 1
    stage.hold("a", 1, 2)
    stage.abort()
    assert stage.received("a") == [0, 1, 2, 3]
    stage.timers.advance(1_000)
    assert stage.received("a") == [0, 1, 2, 3]


def test_what_is_read_anew_after_everybody_has_left_is_sent_once(stage: TransactionStage) -> None:
    """The consumer that leaves has a read under way. Only when that is over, the cursor goes back for the next one."""
    stage.join("a")
    stage.publish_keys("k" * 6)
    stage.hold("a", 2, 3)
    stage.redeliver("a", 0)
    stage.leave("a")
    stage.join("b")
    _, pump = stage.subscription.delivering
    assert pump is not None
    assert pump.reader.state is ReadState.REWINDING
    stage.abort()
    assert stage.received("b") == list(range(6))


def test_what_was_sent_since_it_is_shown_is_not_sent_again(stage: TransactionStage) -> None:
    come_back(stage)
    shown = stage.show()
    stage.flow("b", 100)
    stage.send_again(shown)
    assert stage.received("b") == list(range(10))


def test_what_waits_to_be_sent_again_is_sent_once(stage: TransactionStage) -> None:
    stage.join("a", permits=4)
    stage.publish_keys("k" * 4)
    stage.redeliver("a")
    shown = [(LEDGER, entry_id) for entry_id in range(4)]
    stage.send_again(shown)
    stage.flow("a", 100)
    assert stage.received("a") == [0, 1, 2, 3, 0, 1, 2, 3]


def test_what_waits_for_its_time_is_sent_once(stage: TransactionStage) -> None:
    """It is due while it would be read again: that read would send it, and so would its time."""
    stage.join("a")
    stage.publish(2, deliver_at_time=FAR)
    assert stage.received("a") == []
    stage.hold("a", 0, 1)
    stage.abort()
    stage.timers.advance(FAR)
    assert sorted(stage.received("a")) == [0, 1]
    assert stage.subscription.delayed_entries == 0


def test_what_comes_due_while_it_is_held_is_sent_after_the_abort(stage: TransactionStage) -> None:
    stage.join("a")
    stage.publish(2, deliver_at_time=FAR)
    stage.hold("a", 0, 1)
    stage.timers.advance(FAR)
    assert stage.received("a") == []
    stage.abort()
    assert sorted(stage.received("a")) == [0, 1]


def test_a_chunk_that_waits_for_its_consumer_is_sent_once() -> None:
    stage = TransactionStage(SHARED)
    stage.join("a", permits=1)
    stage.publish(1, uuid="u", num_chunks_from_msg=3, chunk_id=0)
    stage.join("b", permits=1)
    stage.publish(1, uuid="u", num_chunks_from_msg=3, chunk_id=1)
    assert (stage.received("a"), stage.received("b"), stage.subscription.waiting_entries) == ([0], [], 1)
    stage.hold("b", 1)
    stage.abort()
    stage.flow("a", 10)
    assert (stage.received("a"), stage.received("b")) == ([1], [])
    stage.join("c")
    assert (stage.received("a"), stage.received("b"), stage.received("c")) == ([], [], [])


def test_a_damaged_entry_that_is_tried_again_later_is_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = TransactionStage(SHARED)
    stage.join("a")
    stage.cursor.cached_from = 1
    damage: list[MagnetarError] = [EntryUnreadable((LEDGER, 0), "damaged")]
    background = stage.cursor._background

    def read() -> None:
        background()
        if damage:
            raise damage.pop()

    monkeypatch.setattr(stage.cursor, "_background", read)
    stage.publish(2)
    assert stage.received("a") == [1]
    stage.hold("a", 0)
    stage.abort()
    assert stage.received("a") == []
    stage.timers.advance(60_000)
    assert stage.received("a") == [0]


def test_what_is_acknowledged_and_shown_again_before_it_is_known_who_owns_it_is_sent() -> None:
    """The subscription is at its limit when a consumer leaves, so that nobody looks at who owns what it held."""
    stage = TransactionStage(KEY_SHARED, DispatchSettings(unacked_messages_per_subscription_max=10))
    stage.join("a")
    stage.publish_keys("k")
    stage.join("b")
    dispatcher = stage.subscription.key_shared
    assert dispatcher is not None
    others = [chr(code) for code in range(97, 123) if owner_of(dispatcher, chr(code)) == "b"]
    stage.publish_keys(others[0] * 9)
    assert (stage.received("a"), stage.received("b")) == ([0], list(range(1, 10)))
    stage.leave("a")
    assert (dispatcher.unsettled, dispatcher.waiting) == (True, 1)
    stage.hold("b", 0)
    stage.abort()
    stage.ack("b", *range(1, 10))
    assert stage.received("b") == [0]


@pytest.mark.parametrize("sticky_first", [False, True])
async def test_another_key_shared_mode_since_the_acknowledgement_does_not_matter(*, sticky_first: bool) -> None:
    """Both modes cut keys into slots, but not alike: the owner of the one slot may not be that of the other."""
    key = next(f"k{number}" for number in range(99) if slots_of(f"k{number}")[0] != slots_of(f"k{number}")[1])
    ring, sticky = slots_of(key)
    modes = [
        pb.KeySharedMeta(keySharedMode=pb.AUTO_SPLIT),
        pb.KeySharedMeta(keySharedMode=pb.STICKY, hashRanges=[pb.IntRange(start=sticky, end=sticky)]),
    ]
    first, then = reversed(modes) if sticky_first else modes
    async with MemoryBroker(SETTINGS) as broker:
        client = await Client.of(broker, subscribe=False)
        await client.consumer(transaction_ack_stage.KEY_SHARED, keySharedMeta=first)
        await client.publish(1, partition_key=key)
        ids = await client.receive(1)
        assert await client.ack(5, *ids) is None
        await client.client.request(pb.BaseCommand.CLOSE_CONSUMER, consumer_id=1)
        await client.consumer(transaction_ack_stage.KEY_SHARED, keySharedMeta=then)
        client.client.send(pb.BaseCommand.FLOW, consumer_id=1, messagePermits=10)
        assert await client.nothing_more() == []
        assert await client.end(5, transaction_ack_stage.ABORT) is None
        assert await client.shown(1) == ids
        dispatcher = topic_of(broker).subscriptions["s"].key_shared
        (consumer,) = dispatcher.consumers
        assert list(consumer.pending.per_hash) == [ring if sticky_first else sticky]


async def test_the_slots_of_messages_that_a_transaction_holds_are_forgotten_with_it() -> None:
    async with MemoryBroker(SETTINGS) as broker:
        client = await Client.of(broker, transaction_ack_stage.KEY_SHARED)
        await client.publish(4)
        ids = await client.receive(4)
        client.client.send(pb.BaseCommand.FLOW, consumer_id=1, messagePermits=10)
        _, pump = topic_of(broker).subscriptions["s"].delivering
        for transaction, action in ((5, transaction_ack_stage.ABORT), (6, transaction_ack_stage.COMMIT)):
            assert await client.ack(transaction, *ids) is None
            assert sorted(pump.acknowledger.held_slots) == ids
            assert await client.end(transaction, action) is None
            assert pump.acknowledger.held_slots == {}


@pytest.mark.parametrize("first", range(0, 500, 100))
def test_whatever_happens_each_entry_is_with_one_consumer_and_none_is_lost(first: int) -> None:
    for seed in range(first, first + 100):
        history = History(seed)
        for _ in range(80):
            history.step()
        history.drain()
