"""ACK in transactions and END_TXN_ON_SUBSCRIPTION, as clients and coordinators see them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from magnetar.broker.testing.sessions import MemoryBroker, batch_message
from magnetar.broker.transactions.pending_handle import PendingAckHandle
from magnetar.broker.transactions.pending_log import PendingAckLog, RecordDone
from magnetar.broker.transactions.pending_records import PendingAckRecord
from magnetar.managed.factory import ManagedLedgerFactory
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from broker.tests.transaction_ack_stage import (
    ABORT,
    COMMIT,
    EXCLUSIVE,
    FAILOVER,
    FIRST_OF_THREE,
    KEY_SHARED,
    LOG,
    REST_OF_THREE,
    SETTINGS,
    SHARED,
    Client,
    backlog,
    id_of,
    killed,
    one_batch,
    restarted,
    topic_of,
)


@pytest.fixture
async def memory_broker() -> AsyncIterator[MemoryBroker]:
    """A broker with transactions."""
    async with MemoryBroker(SETTINGS) as one:
        yield one


@pytest.fixture
def broker(memory_broker: MemoryBroker) -> MemoryBroker:
    return memory_broker


# --- individual


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED])
async def test_a_commit_acknowledges(broker: MemoryBroker, kind: int) -> None:
    client = await Client.of(broker, kind)
    await client.publish(3)
    ids = await client.receive(3)
    assert await client.ack(5, ids[0], ids[2]) is None
    assert backlog(broker) == 3
    assert await client.again(kind) == [ids[1]]
    assert await client.end(5, COMMIT) is None
    assert backlog(broker) == 1
    assert await client.again(kind) == [ids[1]]


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED])
async def test_an_abort_has_messages_sent_again(broker: MemoryBroker, kind: int) -> None:
    client = await Client.of(broker, kind)
    await client.publish(3)
    ids = await client.receive(3)
    await client.client.messages(0, permits=100)
    assert await client.ack(5, *ids) is None
    assert await client.nothing_more() == []
    assert await client.end(5, ABORT) is None
    assert await client.nothing_more() == ids
    assert backlog(broker) == 3
    assert await client.ack(6, *ids) is None
    assert await client.end(6, COMMIT) is None
    assert backlog(broker) == 0


async def test_held_messages_are_unacknowledged_at_nobody(broker: MemoryBroker) -> None:
    client = await Client.of(broker)
    await client.publish(3)
    ids = await client.receive(3)
    subscription = topic_of(broker).subscriptions["s"]
    assert subscription.unacked_messages == 3
    await client.ack(5, *ids[:2])
    assert subscription.unacked_messages == 1
    assert subscription.consumers[0].unacked_messages == 1
    await client.client.messages(0, permits=100)
    await client.end(5, ABORT)
    assert await client.nothing_more() == ids[:2]
    assert subscription.unacked_messages == 3


async def test_redelivered_messages_say_how_often(broker: MemoryBroker) -> None:
    client = await Client.of(broker)
    await client.publish(1)
    ids = await client.receive(1)
    await client.ack(5, *ids)
    await client.end(5, ABORT)
    (message,) = await client.client.messages(1)
    assert (id_of(message), message.body.redelivery_count) == (ids[0], 1)


async def test_a_conflict_is_told_and_changes_nothing(broker: MemoryBroker) -> None:
    client = await Client.of(broker)
    await client.publish(3)
    ids = await client.receive(3)
    assert await client.ack(5, ids[0]) is None
    assert await client.ack(6, ids[0], ids[1]) == pb.TransactionConflict
    assert await client.ack(5, ids[0]) == pb.TransactionConflict
    assert await client.ack(None, ids[2]) is None
    assert await client.ack(6, ids[2]) == pb.TransactionConflict
    assert await client.end(6, COMMIT) is None
    assert backlog(broker) == 2
    assert await client.end(5, COMMIT) is None
    assert backlog(broker) == 1
    assert await client.ack(7, ids[0]) == pb.TransactionConflict


async def test_one_consumer_acknowledges_what_another_one_was_sent(broker: MemoryBroker) -> None:
    client = await Client.of(broker)
    await client.consumer(SHARED, consumer_id=2)
    await client.publish(2)
    ids = await client.receive(2)
    assert await client.ack(5, *ids, consumer_id=2) is None
    assert topic_of(broker).subscriptions["s"].unacked_messages == 0
    await client.client.request(pb.BaseCommand.CLOSE_CONSUMER, consumer_id=1)
    await client.client.messages(0, consumer_id=2, permits=10)
    assert await client.nothing_more() == []


async def test_ends_may_be_repeated_and_be_of_nothing(broker: MemoryBroker) -> None:
    client = await Client.of(broker)
    await client.publish(1)
    ids = await client.receive(1)
    assert await client.end(4, COMMIT) is None
    assert not await broker.service.ledgers.exists(LOG)
    await client.ack(5, *ids)
    first, second = await asyncio.gather(client.end(5, COMMIT), client.end(5, COMMIT))
    assert (first, second) == (None, None)
    assert await client.end(5, COMMIT) is None
    assert await client.end(5, ABORT) is None
    assert backlog(broker) == 0


async def test_ends_where_there_is_nothing(broker: MemoryBroker) -> None:
    client = await Client.of(broker, subscribe=False)
    assert await client.end(5, COMMIT) is None
    await client.publish(1)
    assert await client.end(5, ABORT, subscription="gone") is None
    answer = await client.client.request(
        pb.BaseCommand.END_TXN_ON_SUBSCRIPTION,
        subscription={"topic": "non-persistent://public/default/n", "subscription": "s"},
        txn_action=COMMIT,
    )
    assert answer.name == "END_TXN_ON_SUBSCRIPTION_RESPONSE"
    assert not answer.body.HasField("error")


# --- batches


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED])
async def test_parts_of_a_batch_are_held_one_by_one(broker: MemoryBroker, kind: int) -> None:
    client = await Client.of(broker, kind)
    await client.publish(0)
    client.client.send(
        pb.BaseCommand.SEND, batch_message(b"a", b"b", b"c"), producer_id=1, sequence_id=0, num_messages=3
    )
    (batch,) = await client.receive(1)
    assert await client.ack(5, batch, sets={batch: FIRST_OF_THREE}) is None
    assert await client.ack(6, batch, sets={batch: ([0b100], 3)}) == pb.TransactionConflict
    assert await client.ack(6, batch) == pb.TransactionConflict
    assert await client.again(kind) == [batch]
    assert await client.ack(6, batch, sets={batch: REST_OF_THREE}) is None
    assert await client.again(kind) == []
    assert await client.end(6, ABORT) is None
    (message,) = await client.client.messages(0) or [await client.client.expect(pb.BaseCommand.MESSAGE)]
    assert list(message.body.ack_set) == [0b110]
    assert await client.end(5, COMMIT) is None
    assert await client.ack(7, batch, sets={batch: REST_OF_THREE}) is None
    assert await client.end(7, COMMIT) is None
    assert backlog(broker) == 0


async def test_what_is_left_of_a_batch_is_sent_with_its_ack_set(broker: MemoryBroker) -> None:
    client = await Client.of(broker)
    await client.publish(0)
    client.client.send(
        pb.BaseCommand.SEND, batch_message(b"a", b"b", b"c"), producer_id=1, sequence_id=0, num_messages=3
    )
    (batch,) = await client.receive(1)
    assert await client.ack(None, batch, sets={batch: ([0b011], 3)}) is None
    assert await client.ack(5, batch, sets={batch: ([0b101], 3)}) is None
    subscription = topic_of(broker).subscriptions["s"]
    assert subscription.unacked_messages == 1
    await client.client.request(pb.BaseCommand.CLOSE_CONSUMER, consumer_id=1)
    await client.consumer()
    (message,) = await client.client.messages(1, permits=10)
    assert list(message.body.ack_set) == [0b001]
    assert await client.ack(None, batch, sets={batch: ([0b110], 3)}) is None
    assert await client.again() == []
    assert backlog(broker) == 1
    assert await client.end(5, COMMIT) is None
    assert backlog(broker) == 0


async def test_a_plain_acknowledgement_beside_what_is_held_takes_no_more_than_it_names(broker: MemoryBroker) -> None:
    """The consumer has two messages of the three then, and the batch is no smaller for that."""
    client = await Client.of(broker)
    batch = await one_batch(client)
    subscription = topic_of(broker).subscriptions["s"]
    assert await client.ack(5, batch, sets={batch: ([0b101], 3)}) is None
    assert await client.ack(None, batch, sets={batch: ([0b110], 0)}) is None
    assert subscription.cursor.remaining_ack_set(batch) == [0b110]
    assert subscription.unacked_messages == 1
    assert await client.end(5, ABORT) is None
    (message,) = await client.client.messages(1, permits=10)
    assert (list(message.body.ack_set), subscription.unacked_messages) == ([0b110], 2)


@pytest.mark.parametrize("action", [COMMIT, ABORT])
async def test_who_has_acknowledged_the_rest_of_a_batch_has_nothing_of_it(broker: MemoryBroker, action: int) -> None:
    client = await Client.of(broker)
    batch = await one_batch(client)
    subscription = topic_of(broker).subscriptions["s"]
    assert await client.ack(5, batch, sets={batch: FIRST_OF_THREE}) is None
    assert await client.ack(None, batch, sets={batch: ([0b101], 3)}) is None
    assert await client.ack(None, batch, sets={batch: ([0b011], 3)}) is None
    assert subscription.unacked_messages == 0
    assert len(subscription.consumers[0].pending) == 0
    assert await client.end(5, action) is None
    assert backlog(broker) == (0 if action == COMMIT else 1)
    if action == ABORT:
        (message,) = await client.client.messages(1, permits=10)
        assert (list(message.body.ack_set), subscription.unacked_messages) == ([0b001], 1)


async def test_an_abort_takes_the_rest_of_a_batch_from_its_holder(broker: MemoryBroker) -> None:
    client = await Client.of(broker)
    batch = await one_batch(client)
    subscription = topic_of(broker).subscriptions["s"]
    assert await client.ack(5, batch, sets={batch: FIRST_OF_THREE}) is None
    assert subscription.unacked_messages == 2
    assert await client.end(5, ABORT) is None
    (message,) = await client.client.messages(1, permits=10)
    assert (list(message.body.ack_set), subscription.unacked_messages) == ([], 3)


async def test_a_part_that_is_acknowledged_leaves_the_rest_to_be_sent_again(broker: MemoryBroker) -> None:
    """An abort has the whole of a batch sent again. Before there is room for it, who had the rest acknowledges that."""
    client = await Client.of(broker)
    batch = await one_batch(client)
    assert await client.ack(5, batch, sets={batch: FIRST_OF_THREE}) is None
    assert await client.end(5, ABORT) is None
    assert await client.ack(6, batch, sets={batch: REST_OF_THREE}) is None
    assert await client.end(6, COMMIT) is None
    assert await client.shown(1) == [batch]
    assert await client.ack(7, batch) is None
    assert await client.end(7, COMMIT) is None
    assert backlog(broker) == 0


async def test_what_an_abort_shows_again_is_with_one_consumer_only(broker: MemoryBroker) -> None:
    client = await Client.of(broker)
    batch = await one_batch(client)
    await client.consumer(SHARED, consumer_id=2)
    subscription = topic_of(broker).subscriptions["s"]
    assert await client.ack(5, batch, sets={batch: FIRST_OF_THREE}) is None
    client.client.send(pb.BaseCommand.FLOW, consumer_id=2, messagePermits=10)
    await client.client.round_trip()
    subscription.consumers[0].permits = 0
    assert await client.end(5, ABORT) is None
    message = await client.client.expect(pb.BaseCommand.MESSAGE)
    assert (message.body.consumer_id, subscription.unacked_messages) == (2, 3)
    assert [len(consumer.pending) for consumer in subscription.consumers] == [0, 1]


# --- cumulative


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER])
async def test_cumulative_acknowledgements(broker: MemoryBroker, kind: int) -> None:
    client = await Client.of(broker, kind)
    await client.publish(5)
    ids = await client.receive(5)
    cumulative = pb.CommandAck.Cumulative
    assert await client.ack(5, ids[1], kind=cumulative) is None
    assert await client.ack(5, ids[0], kind=cumulative) == pb.TransactionConflict
    assert await client.ack(6, ids[3], kind=cumulative) == pb.TransactionConflict
    assert await client.ack(5, ids[2], kind=cumulative) is None
    assert backlog(broker) == 5
    assert await client.end(6, COMMIT) is None
    assert backlog(broker) == 5
    assert await client.end(5, COMMIT) is None
    assert backlog(broker) == 2
    assert await client.ack(7, ids[2], kind=cumulative) == pb.TransactionConflict
    assert await client.ack(7, ids[3], ids[4], kind=cumulative) == pb.NotAllowedError
    assert await client.ack(7, ids[4], kind=cumulative) is None
    assert await client.end(7, ABORT) is None
    assert await client.nothing_more() == []
    assert await client.again(kind) == ids[3:]


async def test_a_cumulative_acknowledgement_within_a_batch(broker: MemoryBroker) -> None:
    client = await Client.of(broker, EXCLUSIVE)
    await client.publish(1)
    content = batch_message(b"a", b"b", b"c")
    client.client.send(pb.BaseCommand.SEND, content, producer_id=1, sequence_id=1, num_messages=3)
    ids = await client.receive(2)
    assert await client.ack(5, ids[1], kind=pb.CommandAck.Cumulative, sets={ids[1]: FIRST_OF_THREE}) is None
    after = await restarted(broker)
    assert await after.end(5, COMMIT) is None
    await after.consumer(EXCLUSIVE)
    (message,) = await after.client.messages(1, permits=10)
    assert (id_of(message), list(message.body.ack_set)) == (ids[1], [0b110])


async def test_a_cumulative_acknowledgement_does_nothing_on_shared(broker: MemoryBroker) -> None:
    client = await Client.of(broker, SHARED)
    await client.publish(2)
    ids = await client.receive(2)
    assert await client.ack(5, ids[1], kind=pb.CommandAck.Cumulative) is None
    assert await client.end(5, COMMIT) is None
    assert backlog(broker) == 2


async def test_a_transaction_may_acknowledge_in_both_ways(broker: MemoryBroker) -> None:
    client = await Client.of(broker, EXCLUSIVE)
    await client.publish(4)
    ids = await client.receive(4)
    assert await client.ack(5, ids[3]) is None
    assert await client.ack(5, ids[1], kind=pb.CommandAck.Cumulative) is None
    assert await client.end(5, COMMIT) is None
    assert backlog(broker) == 1
    assert await client.again(EXCLUSIVE) == [ids[2]]
    after = await killed(broker)
    await after.consumer(EXCLUSIVE)
    assert await after.shown(1) == [ids[2]]


# --- after the end


@pytest.mark.parametrize("action", [COMMIT, ABORT])
async def test_an_acknowledgement_that_comes_after_the_end_is_refused(broker: MemoryBroker, action: int) -> None:
    """Nobody would end it again: the message would be with nobody."""
    client = await Client.of(broker)
    await client.publish(2)
    ids = await client.receive(2)
    # The coordinator noted the subscription, and the end overtook what the client then acknowledged there.
    assert await client.end(5, action) is None
    assert await client.ack(5, ids[0]) == pb.TransactionConflict
    assert await client.ack(6, ids[1]) is None
    assert await client.end(6, action) is None
    assert await client.ack(6, ids[0]) == pb.TransactionConflict
    pending = topic_of(broker).pending_acks.of(topic_of(broker).subscriptions["s"])
    assert not pending.held.transactions
    assert await client.again() == (ids[:1] if action == COMMIT else ids)
    assert await client.ack(7, ids[0]) is None
    assert await client.end(7, COMMIT) is None
    assert backlog(broker) == (0 if action == COMMIT else 1)


async def test_a_cumulative_acknowledgement_that_comes_after_the_end_is_refused(broker: MemoryBroker) -> None:
    client = await Client.of(broker, EXCLUSIVE)
    await client.publish(2)
    ids = await client.receive(2)
    assert await client.end(5, ABORT) is None
    assert await client.ack(5, ids[1], kind=pb.CommandAck.Cumulative) == pb.TransactionConflict
    assert await client.ack(6, ids[0], kind=pb.CommandAck.Cumulative) is None
    assert await client.end(6, COMMIT) is None
    assert backlog(broker) == 1


async def test_an_acknowledgement_of_what_its_coordinator_has_forgotten_is_refused(broker: MemoryBroker) -> None:
    client = await Client.of(broker)
    await client.publish(1)
    ids = await client.receive(1)
    assert await client.end(9, COMMIT, mark=7) is None
    assert await client.ack(7, ids[0]) == pb.TransactionConflict
    assert await client.ack(8, ids[0]) is None


# --- while something else is under way


async def test_what_is_acknowledged_while_its_transaction_ends_is_refused(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end would forget it with the transaction: neither acknowledged nor sent again."""
    client = await Client.of(broker)
    await client.publish(2)
    ids = await client.receive(2)
    await client.ack(5, ids[0])
    begun = asyncio.Event()
    held: list[Callable[[], None]] = []
    append = PendingAckLog.append

    def hold_back(log: PendingAckLog, record: PendingAckRecord, done: RecordDone) -> None:
        held.append(lambda: append(log, record, done))
        begun.set()

    monkeypatch.setattr(PendingAckLog, "append", hold_back)
    coordinator = await Client.of(broker, subscribe=False)
    ending = asyncio.create_task(coordinator.end(5, COMMIT))
    await begun.wait()
    assert await client.ack(5, ids[1]) == pb.TransactionConflict
    monkeypatch.undo()
    held.pop()()
    assert await ending is None
    assert await client.ack(6, ids[1]) is None
    assert await client.end(6, COMMIT) is None
    assert backlog(broker) == 0


async def test_what_was_not_stored_when_the_log_was_taken_is_not_held_by_the_next_replay(broker: MemoryBroker) -> None:
    client = await Client.of(broker)
    await client.publish(2)
    ids = await client.receive(2)
    await client.ack(5, ids[0])
    assert broker.ledgers is not None
    other = ManagedLedgerFactory(broker.store, broker.ledgers, broker.service.clock, asyncio.get_running_loop())
    await other.open(LOG)
    assert await client.ack(6, ids[1]) == pb.ServiceNotReady
    await client.client.expect(pb.BaseCommand.CLOSE_CONSUMER)
    await other.close()
    await client.consumer()
    assert await client.receive(1) == [ids[1]]
    assert await client.ack(7, ids[1]) is None
    assert await client.end(7, COMMIT) is None
    assert await client.end(5, COMMIT) is None
    assert backlog(broker) == 0


async def test_a_replay_that_fails_by_a_mistake_is_tried_again(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All who wait for it hear an error; the next one finds what the log says."""
    client = await Client.of(broker)
    await client.publish(2)
    ids = await client.receive(2)
    await client.ack(5, ids[0])
    first = await restarted(broker)
    second = await Client.of(broker, subscribe=False)
    attempts = 0

    def replay(_: PendingAckLog) -> AsyncIterator[PendingAckRecord]:
        nonlocal attempts
        attempts += 1
        raise ValueError("a mistake")

    monkeypatch.setattr(PendingAckLog, "replay", replay)
    assert set(await asyncio.gather(first.end(5, COMMIT), second.end(5, COMMIT))) == {pb.UnknownError}
    assert attempts == 1
    assert await first.end(5, COMMIT) == pb.UnknownError
    assert attempts == 2
    assert "a mistake" in caplog.text
    monkeypatch.undo()
    assert await first.end(5, COMMIT) is None
    assert backlog(broker) == 1


@pytest.mark.parametrize("mistake", [ValueError("a mistake"), asyncio.CancelledError()])
async def test_an_end_that_fails_by_a_mistake_is_answered(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, mistake: BaseException
) -> None:
    client = await Client.of(broker)
    await client.publish(2)
    ids = await client.receive(2)
    await client.ack(5, ids[0])

    async def finish(*_: object, **__: object) -> None:
        raise mistake

    monkeypatch.setattr(PendingAckHandle, "_finish", finish)
    coordinator = await Client.of(broker, subscribe=False)
    assert await coordinator.end(5, COMMIT) == pb.UnknownError
    monkeypatch.undo()
    assert await coordinator.end(5, COMMIT) is None
    assert backlog(broker) == 1
