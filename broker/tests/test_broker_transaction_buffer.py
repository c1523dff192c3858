"""Transactional messages: they count once their transaction is committed, whoever owns the topic then."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.policies import PolicySettings
from magnetar.broker.settings.transactions import TransactionSettings
from magnetar.broker.testing.sessions import MemoryBroker, ProtocolClient, Received, message
from magnetar.broker.topics.topic import PersistentTopic
from magnetar.core.topic_name import TopicName
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from broker.tests.conftest import Admin

Command = pb.BaseCommand
TOPIC = "persistent://public/default/topic"
SNAPSHOTS = "persistent://public/default/__transaction_buffer_snapshot"
ENABLED = BrokerSettings(transactions=TransactionSettings(enabled=True))


@asynccontextmanager
async def transactional(settings: BrokerSettings = ENABLED) -> AsyncIterator[tuple[MemoryBroker, ProtocolClient]]:
    async with MemoryBroker(settings) as broker:
        yield broker, await broker.connect()


async def send(client: ProtocolClient, *numbers: int, transaction: int | None = None) -> list[Received]:
    """Messages `m<number>` of one producer; their receipts or errors."""
    for number in numbers:
        bits: dict[str, Any] = {} if transaction is None else {"txnid_most_bits": 0, "txnid_least_bits": transaction}
        content = message(b"m%d" % number, sequence_id=number, **bits)
        client.send(Command.SEND, content, producer_id=1, sequence_id=number, **bits)
    return [await client._take(lambda one: one.name in ("SEND_RECEIPT", "SEND_ERROR")) for _ in numbers]


async def end(
    client: ProtocolClient, transaction: int, *, commit: bool = True, topic: str = TOPIC, low_water_mark: int = 0
) -> Any:
    """Ask for the end of a transaction as its coordinator does; the answer."""
    answer = await client.request(
        Command.END_TXN_ON_PARTITION,
        topic=topic,
        txnid_most_bits=0,
        txnid_least_bits=transaction,
        txn_action=pb.COMMIT if commit else pb.ABORT,
        txnid_least_bits_of_low_watermark=low_water_mark,
    )
    assert answer.name == "END_TXN_ON_PARTITION_RESPONSE"
    assert (answer.body.txnid_most_bits, answer.body.txnid_least_bits) == (0, transaction)
    return answer.body


async def ended(client: ProtocolClient, transaction: int, *, commit: bool = True, low_water_mark: int = 0) -> None:
    answer = await end(client, transaction, commit=commit, low_water_mark=low_water_mark)
    assert not answer.HasField("error"), answer


def texts(received: list[Received]) -> list[bytes]:
    return [one.payload[-2:] for one in received]


async def all_sent(client: ProtocolClient) -> list[bytes]:
    """What has come by now."""
    return texts([one for one in await client.round_trip() if one.name == "MESSAGE"])


def loaded(broker: MemoryBroker) -> PersistentTopic:
    topic: PersistentTopic = broker.service.topics[TOPIC]
    return topic


async def test_messages_count_once_their_transaction_is_committed() -> None:
    async with transactional() as (_, client):
        await client.producer(TOPIC)
        await client.consumer(TOPIC)
        client.send(Command.FLOW, consumer_id=1, messagePermits=100)
        await send(client, 0)
        await send(client, 1, 2, transaction=7)
        await send(client, 3)
        assert texts([await client.expect(Command.MESSAGE)]) == [b"m0"]
        assert await all_sent(client) == []
        await ended(client, 7)
        assert texts([await client.expect(Command.MESSAGE) for _ in range(3)]) == [b"m1", b"m2", b"m3"]


async def test_messages_of_an_aborted_transaction_are_never_sent() -> None:
    async with transactional() as (broker, client):
        await client.producer(TOPIC)
        await client.consumer(TOPIC, "first", initialPosition=1)
        await send(client, 0)
        await send(client, 1, transaction=1)
        await send(client, 2, transaction=2)
        await ended(client, 1, commit=False)
        await ended(client, 2)
        assert texts(await client.messages(2)) == [b"m0", b"m2"]
        await client.consumer(TOPIC, "second", consumer_id=2, initialPosition=1, subType=1)
        client.send(Command.FLOW, consumer_id=2, messagePermits=100)
        assert texts([await client.expect(Command.MESSAGE) for _ in range(2)]) == [b"m0", b"m2"]
        assert await all_sent(client) == []
        subscription = loaded(broker).subscriptions["second"]
        # The aborted message and both markers count as acknowledged.
        assert subscription.backlog == 2


async def test_the_first_snapshot_comes_before_the_first_message() -> None:
    async with transactional() as (broker, client):
        await client.producer(TOPIC)
        await send(client, 0)
        assert SNAPSHOTS not in broker.service.topics
        await send(client, 1, transaction=1)
        assert broker.service.topics[SNAPSHOTS].number_of_entries == 1
        stored = broker.service.topics[SNAPSHOTS].ledger
        entry = await stored.read_entry(stored.last_confirmed)
        assert entry.metadata().partition_key == TOPIC


@pytest.mark.parametrize("commit", [True, False])
async def test_the_next_owner_knows_what_was_open(*, commit: bool) -> None:
    async with transactional() as (broker, client):
        await client.producer(TOPIC)
        await client.consumer(TOPIC)
        await send(client, 0, transaction=1)
        await send(client, 1, transaction=2)
        await send(client, 2)
        await ended(client, 1, commit=False)
        await broker.service.unload(TopicName.parse(TOPIC))
        client = await broker.connect()
        await client.consumer(TOPIC)
        client.send(Command.FLOW, consumer_id=1, messagePermits=100)
        assert await all_sent(client) == []
        await ended(client, 2, commit=commit)
        expected = [b"m1", b"m2"] if commit else [b"m2"]
        assert texts([await client.expect(Command.MESSAGE) for _ in expected]) == expected
        assert await all_sent(client) == []


async def test_a_restart_with_the_snapshot_of_the_aborted() -> None:
    settings = replace(ENABLED, transactions=TransactionSettings(enabled=True, snapshot_changes_max=1))
    broker = MemoryBroker(settings)
    await broker.start()
    client = await broker.connect()
    await client.producer(TOPIC)
    await client.consumer(TOPIC)
    await send(client, 0, transaction=1)
    await ended(client, 1, commit=False)
    await send(client, 1, transaction=2)
    await ended(client, 2)
    buffer = loaded(broker).buffer
    assert buffer is not None
    await broker.stop()
    await broker.start()
    client = await broker.connect()
    await client.consumer(TOPIC)
    assert texts(await client.messages(1)) == [b"m1"]
    again = loaded(broker).buffer
    assert again is not None
    assert again.state.value == "Ready"
    assert list(again.table.aborted) == [(0, 1)]
    await broker.stop()


async def test_the_last_message_is_one_that_counts() -> None:
    async with transactional() as (_, client):
        await client.producer(TOPIC)
        await client.consumer(TOPIC)
        first = (await send(client, 0))[0].body.message_id
        await send(client, 1, transaction=1)
        answer = await client.request(Command.GET_LAST_MESSAGE_ID, consumer_id=1)
        assert answer.body.last_message_id.entryId == first.entryId
        await ended(client, 1, commit=False)
        answer = await client.request(Command.GET_LAST_MESSAGE_ID, consumer_id=1)
        assert answer.body.last_message_id.entryId == first.entryId
        last = (await send(client, 2, transaction=2))[0].body.message_id
        await ended(client, 2)
        answer = await client.request(Command.GET_LAST_MESSAGE_ID, consumer_id=1)
        assert answer.body.last_message_id.entryId == last.entryId


async def test_a_transaction_that_its_coordinator_forgot() -> None:
    async with transactional() as (broker, client):
        await client.producer(TOPIC)
        await send(client, 0, transaction=3)
        await send(client, 1, transaction=9)
        await ended(client, 9, low_water_mark=5)
        buffer = loaded(broker).buffer
        assert buffer is not None
        while buffer.table.open:
            await client.round_trip()
        assert list(buffer.table.aborted) == [(0, 3)]
        (refused,) = await send(client, 2, transaction=4)
        assert (refused.name, refused.body.error) == ("SEND_ERROR", pb.NotAllowedError)
        assert "has been ended" in refused.body.message


async def test_with_deduplication_a_late_message_is_refused_each_time_and_a_stored_one_has_its_receipt() -> None:
    async with transactional(replace(ENABLED, policies=PolicySettings(deduplication=True))) as (_, client):
        await client.producer(TOPIC)
        await send(client, 0, transaction=3)
        await ended(client, 3)
        for _ in range(2):
            again, late = await send(client, 0, 1, transaction=3)
            assert again.name == "SEND_RECEIPT"
            assert (late.name, late.body.error) == ("SEND_ERROR", pb.NotAllowedError)
        (receipt,) = await send(client, 1, transaction=4)
        assert receipt.name == "SEND_RECEIPT"


async def test_a_coordinator_that_has_forgotten_nothing_says_so_by_minus_one() -> None:
    """As Apache's does while its transaction 0 is open: an unsigned field with -1 in it."""
    async with transactional() as (broker, client):
        await client.producer(TOPIC)
        await send(client, 0, transaction=0)
        await send(client, 1, transaction=1)
        await ended(client, 1, low_water_mark=2**64 - 1)
        (receipt,) = await send(client, 2, transaction=2)
        assert receipt.name == "SEND_RECEIPT"
        buffer = loaded(broker).buffer
        assert buffer is not None
        assert list(buffer.table.open) == [(0, 0), (0, 2)]
        assert buffer.table.low_water_marks == {0: -1}
        await ended(client, 2, low_water_mark=1)
        assert buffer.table.low_water_marks == {0: 1}


async def test_ends_of_what_is_not_there() -> None:
    async with transactional() as (broker, client):
        answer = await end(client, 1, topic="persistent://public/default/never")
        assert not answer.HasField("error")
        await client.producer(TOPIC)
        await ended(client, 1, commit=False)
        assert loaded(broker).number_of_entries == 0
        await ended(client, 1)
        assert loaded(broker).number_of_entries == 1
        answer = await end(client, 1, topic="non-persistent://public/default/t")
        assert not answer.HasField("error")
        answer = await end(client, 1, topic="no topic/")
        assert answer.error == pb.InvalidTopicName


async def test_a_deleted_topic_leaves_no_snapshot() -> None:
    async with transactional() as (broker, client):
        await client.producer(TOPIC)
        await send(client, 0, transaction=1)
        await broker.service.delete(TopicName.parse(TOPIC), force=True)
        client = await broker.connect()
        await client.producer(TOPIC)
        await client.consumer(TOPIC)
        buffer = loaded(broker).buffer
        assert buffer is not None
        assert buffer.state.value == "NoSnapshot"


async def test_without_transactions_such_messages_are_refused() -> None:
    async with transactional(BrokerSettings()) as (_, client):
        await client.producer(TOPIC)
        (refused,) = await send(client, 0, transaction=1)
        assert (refused.name, refused.body.error) == ("SEND_ERROR", pb.NotAllowedError)
        assert refused.body.message == "Transaction buffer disable!"
        answer = await end(client, 1)
        assert (answer.error, answer.message) == (pb.NotAllowedError, "Transactions are not enabled.")


async def test_a_non_persistent_topic_takes_no_transactional_messages() -> None:
    async with transactional() as (_, client):
        await client.producer("non-persistent://public/default/topic")
        (refused,) = await send(client, 0, transaction=1)
        assert (refused.name, refused.body.error) == ("SEND_ERROR", pb.NotAllowedError)


async def test_a_duplicate_of_an_ended_transaction_has_its_receipt() -> None:
    settings = replace(ENABLED, policies=PolicySettings(deduplication=True))
    async with transactional(settings) as (_, client):
        await client.producer(TOPIC, producer_name="p")
        await send(client, 0, transaction=1)
        await ended(client, 1, low_water_mark=1)
        (again,) = await send(client, 0, transaction=1)
        assert again.name == "SEND_RECEIPT"
        (refused,) = await send(client, 1, transaction=1)
        assert refused.name == "SEND_ERROR"


async def test_statistics_of_a_buffer() -> None:
    async with transactional() as (broker, client), aiohttp.ClientSession() as session:
        admin = Admin(broker, session)
        await client.producer(TOPIC)
        await client.consumer(TOPIC)
        of_topic = "public/default/topic"
        base = "/admin/v3/transactions"
        await admin.check(("GET", f"{base}/transactionBufferInternalStats/{of_topic}", None, 404, "Snapshot"))
        first = (await send(client, 0, transaction=1))[0].body.message_id
        await send(client, 1, transaction=2)
        await ended(client, 1, commit=False, low_water_mark=0)
        status, stats = await admin("GET", f"{base}/transactionBufferStats/{of_topic}?lowWaterMarks=true")
        assert status == 200
        assert stats["recoverEndTime"] >= stats["recoverStartTime"] > 0
        assert stats["lastSnapshotTimestamps"] > 0
        assert {name: stats[name] for name in stats if not name.endswith(("Time", "Timestamps"))} == {
            "state": "Ready",
            "maxReadPosition": f"{first.ledgerId}:{first.entryId}",
            "lowWaterMarks": {"0": 0},
            "ongoingTxnSize": 1,
            "totalAbortedTransactions": 1,
            "snapshotType": "Single",
        }
        position = f"{first.ledgerId}:{first.entryId + 1}"
        await admin.check(
            ("GET", f"{base}/transactionInBufferStats/{of_topic}/0/1", None, 200, {"aborted": True}),
            (
                "GET",
                f"{base}/transactionInBufferStats/{of_topic}/0/2",
                None,
                200,
                {"startPosition": position, "aborted": False},
            ),
        )
        _, internal = await admin("GET", f"{base}/transactionBufferInternalStats/{of_topic}")
        assert internal["snapshotType"] == "Single"
        kept = internal["singleSnapshotSystemTopicInternalStats"]
        assert kept["managedLedgerName"] == "__transaction_buffer_snapshot"
        assert kept["managedLedgerInternalStats"]["numberOfEntries"] == 1
        _, topic = await admin("GET", "/admin/v2/persistent/public/default/topic/stats")
        counts = {name: topic[name] for name in ("ongoingTxnCount", "abortedTxnCount", "committedTxnCount")}
        assert counts == {"ongoingTxnCount": 1, "abortedTxnCount": 1, "committedTxnCount": 0}


async def test_statistics_without_transactions(admin: Any) -> None:
    path = "/admin/v3/transactions/transactionBufferStats/public/default/topic"
    await admin.check(("GET", path, None, 503, "transactionCoordinatorEnabled=true"))


async def test_deduplication_goes_past_markers() -> None:
    """A marker's sequence id is -1 in an unsigned field: more than a cursor's property can hold."""
    policies = PolicySettings(deduplication=True, deduplication_snapshot_entries=1)
    async with transactional(replace(ENABLED, policies=policies)) as (broker, client):
        await client.producer(TOPIC, producer_name="p")
        await send(client, 0, transaction=1)
        await ended(client, 1)
        await broker.service.unload(TopicName.parse(TOPIC))
        client = await broker.connect()
        assert (await client.producer(TOPIC, producer_name="p")).last_sequence_id == 0
        await send(client, 1)
        deduplication = loaded(broker).deduplication
        assert deduplication is not None
        assert deduplication.stored == {"p": 1}
        await broker.service.unload(TopicName.parse(TOPIC))
        client = await broker.connect()
        assert (await client.producer(TOPIC, producer_name="p")).last_sequence_id == 1


async def test_compaction_sees_what_consumers_see() -> None:
    async with transactional() as (broker, client):
        await client.producer(TOPIC)
        await send(client, 0, transaction=1)
        await ended(client, 1, commit=False)
        await send(client, 1)
        await send(client, 2, transaction=2)
        topic = loaded(broker)
        entries, ledger = topic.visible_entries, topic.ledger.ledgers
        hidden = [
            entries.hides((await topic.ledger.read_entry(ledger.entry_at(index))).metadata()) for index in range(4)
        ]
        assert hidden == [True, True, False, False]
        assert entries.end() == ledger.entry_at(2)
        await ended(client, 2)
        assert entries.end() == topic.ledger.last_confirmed


async def test_transactions_without_a_coordinator_are_aborted_again_and_again() -> None:
    """Each low-water mark may leave some behind, not the first one alone."""
    async with transactional() as (broker, client):
        await client.producer(TOPIC)
        for number, lost in enumerate((3, 13)):
            await send(client, number, transaction=lost)
            await ended(client, lost + 5, low_water_mark=lost)
            table = loaded(broker).buffer.table  # type: ignore[union-attr]
            for _ in range(100):
                if not table.open:
                    break
                await client.round_trip()
            assert (0, lost) in table.aborted
