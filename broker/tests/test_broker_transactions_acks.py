"""ACK in transactions and END_TXN_ON_SUBSCRIPTION, as clients and coordinators see them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.transactions import TransactionSettings
from magnetar.broker.testing.sessions import MemoryBroker, ProtocolClient, Received, batch_message
from magnetar.broker.transactions import pending_log, pending_state
from magnetar.broker.transactions.pending_records import (
    AckedEntry,
    PendingAckOperation,
    PendingAckRecord,
    encode_record,
)
from magnetar.core.ids import EARLIEST
from magnetar.managed.factory import ManagedLedgerFactory
from magnetar.wire.pulsar.ack_parts import ACK_BYTES_AT_ONCE
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

TOPIC = "persistent://public/default/t"
LOG = "public/default/persistent/t-s__transaction_pending_ack"
PENDING = "/admin/v3/transactions/{}/public/default/t/s"
EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = 0, 1, 2, 3
COMMIT, ABORT = pb.COMMIT, pb.ABORT
SETTINGS = BrokerSettings(transactions=TransactionSettings(enabled=True))


@pytest.fixture
async def memory_broker() -> AsyncIterator[MemoryBroker]:
    """A broker with transactions."""
    async with MemoryBroker(SETTINGS) as one:
        yield one


@pytest.fixture
def broker(memory_broker: MemoryBroker) -> MemoryBroker:
    return memory_broker


def id_of(received: Received) -> tuple[int, int]:
    message_id = received.body.message_id
    return message_id.ledgerId, message_id.entryId


class Client:
    """A connection with a producer and consumers of one topic."""

    def __init__(self, client: ProtocolClient) -> None:
        self.client = client

    @staticmethod
    async def of(broker: MemoryBroker, kind: int = SHARED, *, subscribe: bool = True) -> Client:
        client = Client(await broker.connect())
        if subscribe:
            await client.consumer(kind)
        return client

    async def consumer(self, kind: int = SHARED, consumer_id: int = 1, **fields: Any) -> None:
        await self.client.consumer(
            TOPIC, "s", consumer_id, subType=kind, initialPosition=pb.CommandSubscribe.Earliest, **fields
        )

    async def publish(self, count: int, **fields: Any) -> None:
        if not hasattr(self, "publishing"):
            self.publishing = await self.client.producer(TOPIC)
        await self.client.publish(count, **fields)

    async def receive(self, count: int, consumer_id: int = 1) -> list[tuple[int, int]]:
        return [id_of(each) for each in await self.client.messages(count, consumer_id=consumer_id)]

    async def ack(
        self,
        transaction: int | None,
        *positions: tuple[int, int],
        consumer_id: int = 1,
        kind: int = pb.CommandAck.Individual,
        sets: dict[tuple[int, int], tuple[list[int], int]] | None = None,
    ) -> Any:
        """The error of the answer, None for none; `sets` has the ack set and the size of each batch."""
        ids = []
        for position in positions:
            words, size = (sets or {}).get(position, ([], 0))
            ids.append({"ledgerId": position[0], "entryId": position[1], "partition": -1, "ack_set": words})
            if size:
                ids[-1]["batch_size"] = size
        bits = {} if transaction is None else {"txnid_least_bits": transaction, "txnid_most_bits": 0}
        answer = await self.client.request(
            pb.BaseCommand.ACK, consumer_id=consumer_id, ack_type=kind, message_id=ids, **bits
        )
        assert answer.name == "ACK_RESPONSE"
        return answer.body.error if answer.body.HasField("error") else None

    async def end(self, transaction: int, action: int, *, mark: int = -1, subscription: str = "s") -> Any:
        """The error of the answer, None for none."""
        answer = await self.client.request(
            pb.BaseCommand.END_TXN_ON_SUBSCRIPTION,
            txnid_least_bits=transaction,
            txnid_most_bits=0,
            subscription={"topic": TOPIC, "subscription": subscription},
            txn_action=action,
            txnid_least_bits_of_low_watermark=mark & 0xFFFF_FFFF_FFFF_FFFF,
        )
        assert answer.name == "END_TXN_ON_SUBSCRIPTION_RESPONSE"
        assert (answer.body.txnid_least_bits, answer.body.txnid_most_bits) == (transaction, 0)
        return answer.body.error if answer.body.HasField("error") else None

    async def again(self, kind: int = SHARED) -> list[tuple[int, int]]:
        """What a consumer gets that comes anew."""
        answer = await self.client.request(pb.BaseCommand.CLOSE_CONSUMER, consumer_id=1)
        assert answer.name == "SUCCESS"
        self.client.inbox.clear()
        await self.consumer(kind)
        self.client.send(pb.BaseCommand.FLOW, consumer_id=1, messagePermits=3_000)
        return await self.nothing_more()

    async def shown(self, count: int, consumer_id: int = 1) -> list[tuple[int, int]]:
        """What a consumer is sent that takes anything: so many, wherever they are read from, and what comes with
        these."""
        self.client.send(pb.BaseCommand.FLOW, consumer_id=consumer_id, messagePermits=100)
        found = [id_of(await self.client.expect(pb.BaseCommand.MESSAGE)) for _ in range(count)]
        return found + await self.nothing_more()

    async def nothing_more(self) -> list[tuple[int, int]]:
        """What has come by now, without asking for more."""
        return [id_of(each) for each in await self.client.round_trip() if each.name == "MESSAGE"]


def topic_of(broker: MemoryBroker) -> Any:
    return broker.service.topics[TOPIC]


def backlog(broker: MemoryBroker) -> int:
    count: int = topic_of(broker).subscriptions["s"].backlog
    return count


async def restarted(broker: MemoryBroker) -> Client:
    """The next owner of the topic, which everybody has left."""
    await broker.stop()
    await broker.start()
    return await Client.of(broker, subscribe=False)


async def killed(broker: MemoryBroker) -> Client:
    """The next owner of a topic whose broker wrote nothing when it ended."""
    await broker.service.abandon([topic_of(broker)])
    return await Client.of(broker, subscribe=False)


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


FIRST_OF_THREE, REST_OF_THREE = ([0b110], 3), ([0b001], 3)


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


# --- the next owner


@pytest.mark.parametrize("take_over", [restarted, killed])
async def test_the_next_owner_knows_what_is_held(broker: MemoryBroker, take_over: Any) -> None:
    client = await Client.of(broker)
    await client.publish(4)
    ids = await client.receive(4)
    await client.ack(5, ids[0])
    await client.ack(6, ids[1])
    await client.ack(7, ids[2])
    await client.end(6, COMMIT)
    await client.end(7, ABORT)
    after = await take_over(broker)
    await after.consumer()
    assert await after.shown(2) == [ids[2], ids[3]]
    assert await after.ack(8, ids[0]) == pb.TransactionConflict
    assert await after.end(5, ABORT) is None
    assert await after.shown(1) == [ids[0]]
    assert backlog(broker) == 3


@pytest.mark.parametrize("take_over", [restarted, killed])
@pytest.mark.parametrize("action", [COMMIT, ABORT])
async def test_an_end_at_the_next_owner_comes_before_any_consumer(
    broker: MemoryBroker, take_over: Any, action: int
) -> None:
    client = await Client.of(broker, KEY_SHARED)
    await client.publish(3, partition_key="k")
    ids = await client.receive(3)
    await client.ack(5, *ids[:2])
    after = await take_over(broker)
    assert await after.end(5, action) is None
    assert backlog(broker) == (1 if action == COMMIT else 3)
    await after.consumer(KEY_SHARED)
    wanted = ids[2:] if action == COMMIT else ids
    assert await after.shown(len(wanted)) == wanted


async def test_key_shared_looks_for_the_keys_of_what_another_broker_held(broker: MemoryBroker) -> None:
    client = await Client.of(broker, KEY_SHARED)
    await client.publish(4, partition_key="k")
    ids = await client.receive(4)
    last = ids.pop()
    await client.ack(5, *ids)
    after = await killed(broker)
    await after.consumer(KEY_SHARED)
    assert await after.shown(1) == [last]
    assert await after.end(5, ABORT) is None
    assert await after.shown(3) == ids


async def test_records_of_apaches_brokers_are_taken_over(broker: MemoryBroker) -> None:
    """Refused acknowledgements are in its log, and commits whose acknowledgements its cursor has not stored."""
    client = await Client.of(broker)
    await client.publish(4)
    ids = await client.receive(4)
    await restarted(broker)
    log = await broker.service.ledgers.open(LOG)
    await log.open_cursor(pending_log.CURSOR_NAME, EARLIEST)

    def record(kind: PendingAckOperation, number: int, *positions: tuple[int, int]) -> bytes:
        acked = [AckedEntry(each, (), 0) for each in positions]
        return encode_record(PendingAckRecord(kind, (0, number), cumulative=False, entries=acked))

    ack, commit = PendingAckOperation.ACK, PendingAckOperation.COMMIT
    written = [record(ack, 5, *ids[:2]), record(ack, 6, ids[1]), record(commit, 5), record(ack, 7, ids[2])]
    done = asyncio.get_running_loop().create_future()
    log.appends.append(written, lambda *_: done.set_result(None), None)
    await done
    await log.close()
    after = await Client.of(broker, subscribe=False)
    await after.consumer()
    assert await after.shown(1) == [ids[3]]
    assert backlog(broker) == 2


async def test_batched_records(broker: MemoryBroker) -> None:
    await broker.stop()
    batched = TransactionSettings(enabled=True, pending_ack_batched=True, pending_ack_batch_records_max=3)
    async with MemoryBroker(replace(SETTINGS, transactions=batched)) as other:
        client = await Client.of(other)
        await client.publish(5)
        ids = await client.receive(5)
        assert await asyncio.gather(*(client.ack(5, each) for each in ids[:4])) == [None] * 4
        assert await client.end(5, COMMIT) is None
        assert await client.ack(6, ids[4]) is None
        log = topic_of(other).pending_acks.of(topic_of(other).subscriptions["s"]).log
        assert log.ledger.ledgers.number_of_entries() < 6
        entry = await log.ledger.read_entry(log.ledger.ledgers.first_position())
        assert entry.data.startswith(b"\x0e\x01\x00\x01")
        after = await restarted(other)
        assert await after.end(6, ABORT) is None
        assert backlog(other) == 1
    await broker.start()


async def test_the_log_is_trimmed(broker: MemoryBroker) -> None:
    await broker.stop()
    often = TransactionSettings(enabled=True, pending_ack_index_lag_min=2)
    async with MemoryBroker(replace(SETTINGS, transactions=often)) as other:
        client = await Client.of(other)
        await client.publish(12)
        for number, position in enumerate(await client.receive(12)):
            assert await client.ack(number, position) is None
            assert await client.end(number, COMMIT) is None
        log = topic_of(other).pending_acks.of(topic_of(other).subscriptions["s"]).log
        await client.client.round_trip()
        cursor = log.ledger.cursors[pending_log.CURSOR_NAME]
        assert cursor.mark_delete[1] >= 8
        after = await restarted(other)
        await after.consumer()
        assert backlog(other) == 0
    await broker.start()


async def test_transactions_that_their_coordinator_has_forgotten_are_aborted(broker: MemoryBroker) -> None:
    client = await Client.of(broker)
    await client.publish(3)
    ids = await client.receive(3)
    for number, position in zip((4, 5, 9), ids, strict=True):
        await client.ack(number, position)
    await client.client.messages(0, permits=100)
    assert await client.end(8, COMMIT, mark=5) is None
    again = [id_of(await client.client.expect(pb.BaseCommand.MESSAGE)) for _ in range(2)]
    assert again == ids[:2]
    assert await client.ack(10, ids[2]) == pb.TransactionConflict
    handle = topic_of(broker).pending_acks.of(topic_of(broker).subscriptions["s"])
    assert handle.held.low_water_marks == {0: 5}


# --- when something fails


async def test_an_acknowledgement_that_is_not_stored_is_told_and_stays_held(broker: MemoryBroker) -> None:
    client = await Client.of(broker)
    await client.publish(2)
    ids = await client.receive(2)
    assert await client.ack(5, ids[0]) is None
    (bookie,) = broker.bookies.bookies.values()
    bookie.stop()
    assert await client.ack(6, ids[1]) == pb.PersistenceError
    assert await client.end(6, COMMIT) == pb.PersistenceError
    bookie.heal()
    assert await client.ack(7, ids[1]) == pb.TransactionConflict
    assert await until_none(lambda: client.end(6, ABORT)) is None
    assert await client.ack(7, ids[1]) is None
    assert await client.end(7, COMMIT) is None
    assert await client.end(5, COMMIT) is None
    assert backlog(broker) == 0


async def until_none(attempt: Any) -> Any:
    """As a coordinator tries again."""
    for _ in range(50):
        if (error := await attempt()) is None:
            return None
        await asyncio.sleep(0.02)
    return error


async def test_a_log_that_cannot_be_read_keeps_consumers_out(broker: MemoryBroker) -> None:
    client = await Client.of(broker)
    await client.publish(1)
    ids = await client.receive(1)
    await client.ack(5, *ids)
    after = await restarted(broker)
    broken = pytest.MonkeyPatch()
    opened = ManagedLedgerFactory.open

    async def refuse(self: Any, name: str, *arguments: Any, **options: Any) -> Any:
        if name == LOG:
            raise pending_log.ManagedLedgerClosed("not now")
        return await opened(self, name, *arguments, **options)

    broken.setattr(ManagedLedgerFactory, "open", refuse)
    fields = {"topic": TOPIC, "subscription": "s", "consumer_id": 1, "subType": SHARED}
    answer = await after.client.request(pb.BaseCommand.SUBSCRIBE, **fields)
    assert (answer.name, answer.body.error) == ("ERROR", pb.ServiceNotReady)
    assert await after.end(5, COMMIT) == pb.ServiceNotReady
    broken.undo()
    await after.consumer()
    assert await after.end(5, COMMIT) is None
    assert backlog(broker) == 0


async def test_an_owner_whose_log_another_one_has_taken_ends_nothing(broker: MemoryBroker) -> None:
    client = await Client.of(broker)
    await client.publish(1)
    ids = await client.receive(1)
    await client.ack(5, *ids)
    other = ManagedLedgerFactory(
        broker.store,
        broker.ledgers,
        broker.service.clock,
        asyncio.get_running_loop(),  # type: ignore[arg-type]
    )
    await other.open(LOG)
    assert await client.end(5, COMMIT) == pb.ServiceNotReady
    assert backlog(broker) == 1
    assert any(each.name == "CLOSE_CONSUMER" for each in await client.client.round_trip())
    await other.close()


async def test_too_much_is_refused(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await Client.of(broker)
    await client.publish(3)
    ids = await client.receive(3)
    monkeypatch.setattr(pending_state, "HELD_ENTRIES_MAX", 2)
    assert await client.ack(5, *ids) == pb.TooManyRequests
    assert await client.ack(5, *ids[:2]) is None
    monkeypatch.setattr(pending_log, "WAITING_RECORDS_MAX", 0)
    assert await client.ack(6, ids[2]) == pb.TooManyRequests
    assert await client.end(5, COMMIT) is None


async def test_a_long_acknowledgement_is_answered_once_and_for_all_of_its_parts(broker: MemoryBroker) -> None:
    """It is taken in parts; what one of them is refused for is the answer."""
    assert 2 * ACK_BYTES_AT_ONCE < 2_000 * 18
    client = await Client.of(broker)
    await client.publish(2_000)
    ids = await client.receive(2_000)
    assert await client.ack(4, ids[0]) is None
    assert await client.ack(5, *ids) == pb.TransactionConflict
    assert await client.end(5, ABORT) is None
    assert await client.end(4, ABORT) is None
    client.client.inbox.clear()
    ids = sorted(await client.again())
    assert len(ids) == 2_000
    assert await client.ack(6, *ids) is None
    assert await client.end(6, COMMIT) is None
    assert backlog(broker) == 0


# --- deletion, and where there are none


async def test_unsubscribing_removes_the_log(broker: MemoryBroker) -> None:
    client = await Client.of(broker)
    await client.publish(1)
    ids = await client.receive(1)
    await client.ack(5, *ids)
    assert await broker.service.ledgers.exists(LOG)
    answer = await client.client.request(pb.BaseCommand.UNSUBSCRIBE, consumer_id=1)
    assert answer.name == "SUCCESS"
    assert not await broker.service.ledgers.exists(LOG)
    await client.consumer()
    client.client.send(pb.BaseCommand.FLOW, consumer_id=1, messagePermits=10)
    assert await client.nothing_more() == ids


@pytest.mark.parametrize("loaded", [True, False])
async def test_deleting_the_topic_removes_the_logs(broker: MemoryBroker, loaded: bool) -> None:
    client = await Client.of(broker)
    await client.publish(1)
    ids = await client.receive(1)
    await client.ack(5, *ids)
    if not loaded:
        await restarted(broker)
    topic = await broker.service.topic(pending_log.TopicName.parse(TOPIC), create=False)
    await broker.service.delete(topic.name, force=True)
    assert not await broker.service.ledgers.exists(LOG)
    assert not await broker.service.exists(topic.name)


async def test_a_seek_keeps_what_is_held(broker: MemoryBroker) -> None:
    client = await Client.of(broker)
    await client.publish(3)
    ids = await client.receive(3)
    await client.ack(None, ids[0])
    await client.ack(5, ids[1])
    first = {"ledgerId": ids[0][0], "entryId": ids[0][1]}
    assert (await client.client.request(pb.BaseCommand.SEEK, consumer_id=1, message_id=first)).name == "SUCCESS"
    await client.consumer()
    client.client.inbox.clear()
    client.client.send(pb.BaseCommand.FLOW, consumer_id=1, messagePermits=10)
    assert await client.nothing_more() == [ids[0], ids[2]]
    await client.end(5, COMMIT)
    assert backlog(broker) == 2


async def test_non_durable_subscriptions_have_no_log(broker: MemoryBroker) -> None:
    client = await Client.of(broker, subscribe=False)
    await client.publish(2)
    await client.consumer(EXCLUSIVE, durable=False)
    ids = await client.receive(2)
    assert await client.ack(5, ids[0]) is None
    assert await client.ack(6, ids[0]) == pb.TransactionConflict
    assert await client.end(5, COMMIT) is None
    assert topic_of(broker).subscriptions["s"].cursor.is_acknowledged(ids[0])
    assert not await broker.service.ledgers.exists(LOG)
    await client.client.request(pb.BaseCommand.CLOSE_CONSUMER, consumer_id=1)
    assert not topic_of(broker).pending_acks._handles


async def test_without_transactions_they_are_refused() -> None:
    async with MemoryBroker() as plain:
        client = await Client.of(plain)
        await client.publish(1)
        ids = await client.receive(1)
        assert await client.ack(5, *ids) == pb.NotAllowedError
        assert await client.end(5, COMMIT) == pb.NotAllowedError
        async with aiohttp.ClientSession() as session:
            for what in ("pendingAckStats", "pendingAckInternalStats"):
                async with session.get(plain.admin_url + PENDING.format(what)) as answer:
                    assert answer.status == 503
                    reason = (await answer.json())["reason"]
                    assert reason == "This Broker is not configured with transactionCoordinatorEnabled=true."


# --- the admin API


async def test_pending_ack_stats(broker: MemoryBroker, admin: Any) -> None:
    client = await Client.of(broker)
    await client.publish(1)
    content = batch_message(b"a", b"b", b"c")
    client.client.send(pb.BaseCommand.SEND, content, producer_id=1, sequence_id=1, num_messages=3)
    single, batch = await client.receive(2)
    never = {"state": "None", "ongoingTxnSize": 0, "recoverStartTime": 0, "recoverEndTime": 0}
    assert await admin("GET", PENDING.format("pendingAckStats")) == (200, never)
    assert (await admin("GET", PENDING.format("pendingAckInternalStats")))[0] == 503
    await client.ack(5, single)
    await client.ack(6, batch, sets={batch: FIRST_OF_THREE})
    await client.end(4, ABORT, mark=3)
    _, stats = await admin("GET", PENDING.format("pendingAckStats") + "?lowWaterMarks=true")
    assert (stats["state"], stats["ongoingTxnSize"], stats["lowWaterMarks"]) == ("Ready", 2, {"0": 3})
    _, internal = await admin("GET", PENDING.format("pendingAckInternalStats") + "?metadata=true")
    log = internal["pendingAckLogStats"]
    assert log["managedLedgerName"] == LOG
    assert log["managedLedgerInternalStats"]["numberOfEntries"] == 2
    assert list(log["managedLedgerInternalStats"]["cursors"]) == [pending_log.CURSOR_NAME]
    assert "metadata" in log["managedLedgerInternalStats"]["ledgers"][0]
    await restarted(broker)
    _, stats = await admin("GET", PENDING.format("pendingAckStats"))
    assert (stats["state"], stats["ongoingTxnSize"]) == ("Ready", 2)
    assert 0 < stats["recoverStartTime"] <= stats["recoverEndTime"]


async def test_position_stats_in_pending_ack(broker: MemoryBroker, admin: Any) -> None:
    client = await Client.of(broker)
    await client.publish(2)
    content = batch_message(b"a", b"b", b"c")
    client.client.send(pb.BaseCommand.SEND, content, producer_id=1, sequence_id=1, num_messages=3)
    first, single, batch = await client.receive(3)
    await client.ack(None, first)
    await client.ack(5, single)
    await client.ack(6, batch, sets={batch: FIRST_OF_THREE})

    async def state(position: tuple[int, int], index: str = "") -> str:
        query = f"?batchIndex={index}" if index else ""
        path = PENDING.format("positionStatsInPendingAck") + f"/{position[0]}/{position[1]}{query}"
        status, document = await admin("GET", path)
        return str(document["state"]) if status == 200 else str(status)

    assert await state(first) == "MarkDelete"
    assert await state(single) == "PendingAck"
    assert [await state(batch, index) for index in ("", "0", "1", "2", "3", "x")] == [
        *("PendingAck", "PendingAck", "NotInPendingAck", "NotInPendingAck", "InvalidPosition", "400")
    ]
    assert await state((batch[0], 99)) == "NotInPendingAck"


async def test_transaction_in_pending_ack_stats(broker: MemoryBroker, admin: Any) -> None:
    client = await Client.of(broker, EXCLUSIVE)
    await client.publish(2)
    content = batch_message(b"a", b"b", b"c")
    client.client.send(pb.BaseCommand.SEND, content, producer_id=1, sequence_id=1, num_messages=3)
    ids = await client.receive(3)
    path = PENDING.format("transactionInPendingAckStats") + "/0/5"
    assert await admin("GET", path) == (200, {})
    cumulative = pb.CommandAck.Cumulative
    await client.ack(5, ids[1], kind=cumulative)
    assert await admin("GET", path) == (200, {"cumulativeAckPosition": f"{ids[1][0]}:{ids[1][1]}"})
    await client.ack(5, ids[2], kind=cumulative, sets={ids[2]: ([0b100], 3)})
    assert await admin("GET", path) == (200, {"cumulativeAckPosition": f"{ids[2][0]}:{ids[2][1]}:1"})


async def test_pending_ack_stats_of_nothing(broker: MemoryBroker, admin: Any) -> None:
    client = await Client.of(broker)
    await client.publish(1)
    for what in ("pendingAckStats", "pendingAckInternalStats"):
        assert (await admin("GET", f"/admin/v3/transactions/{what}/public/default/t/other"))[0] == 404
        assert (await admin("GET", f"/admin/v3/transactions/{what}/public/default/none/s"))[0] == 404


async def test_the_logs_are_no_topics(broker: MemoryBroker, admin: Any) -> None:
    client = await Client.of(broker)
    await client.publish(1)
    ids = await client.receive(1)
    await client.ack(5, *ids)
    assert await broker.service.ledgers.exists(LOG)
    assert await admin("GET", "/admin/v2/persistent/public/default") == (200, [TOPIC])
    listed = await client.client.request(
        pb.BaseCommand.GET_TOPICS_OF_NAMESPACE, namespace="public/default", mode=pb.CommandGetTopicsOfNamespace.ALL
    )
    assert list(listed.body.topics) == [TOPIC]


async def test_nobody_opens_a_log_as_a_topic(broker: MemoryBroker, admin: Any) -> None:
    """Messages in it could not be replayed, and to open it elsewhere would take it from its owner."""
    client = await Client.of(broker)
    await client.publish(1)
    ids = await client.receive(1)
    await client.ack(5, *ids)
    topic = f"{TOPIC}-s__transaction_pending_ack"
    fields: dict[str, Any] = {"topic": topic, "producer_id": 9}
    answer = await client.client.request(pb.BaseCommand.PRODUCER, **fields)
    assert (answer.name, answer.body.error) == ("ERROR", pb.NotAllowedError)
    fields = {"topic": topic, "subscription": "r", "consumer_id": 9, "subType": 0, "force_topic_creation": False}
    answer = await client.client.request(pb.BaseCommand.SUBSCRIBE, **fields)
    assert (answer.name, answer.body.error) == ("ERROR", pb.NotAllowedError)
    assert await client.end(5, COMMIT) is None
    # What was left over goes with its namespace.
    assert (await admin("DELETE", "/admin/v2/persistent/public/default/t-s__transaction_pending_ack"))[0] == 204
    assert not await broker.service.ledgers.exists(LOG)
