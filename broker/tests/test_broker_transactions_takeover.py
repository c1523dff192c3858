"""What transactions hold, at the next owner of a topic, when something fails, when it is deleted, and as told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from magnetar.broker.testing.auth import ADMIN, access_settings, connected_as, grants, make_namespace
from magnetar.broker.testing.sessions import MemoryBroker, batch_message
from magnetar.broker.transactions import pending_log, pending_state
from magnetar.broker.transactions.pending_records import (
    AckedEntry,
    PendingAckOperation,
    PendingAckRecord,
    encode_record,
)
from magnetar.core.ids import EARLIEST
from magnetar.core.topic_name import TopicName
from magnetar.managed.errors import ManagedLedgerClosed
from magnetar.managed.factory import ManagedLedgerFactory
from magnetar.metadata.store import StoreUnavailable
from magnetar.wire.pulsar.ack_parts import ACK_BYTES_AT_ONCE
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from broker.tests.transaction_ack_stage import (
    ABORT,
    COMMIT,
    EXCLUSIVE,
    FIRST_OF_THREE,
    KEY_SHARED,
    LOG,
    PENDING,
    SETTINGS,
    SHARED,
    TOPIC,
    Client,
    backlog,
    id_of,
    killed,
    restarted,
    topic_of,
    with_transactions,
)


@pytest.fixture
async def memory_broker() -> AsyncIterator[MemoryBroker]:
    """A broker with transactions."""
    async with MemoryBroker(SETTINGS) as one:
        yield one


@pytest.fixture
def broker(memory_broker: MemoryBroker) -> MemoryBroker:
    return memory_broker


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


async def test_batched_records() -> None:
    async with with_transactions(pending_ack_batched=True, pending_ack_batch_records_max=3) as other:
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


async def test_the_log_is_trimmed() -> None:
    async with with_transactions(pending_ack_index_lag_min=2) as other:
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
            raise ManagedLedgerClosed("not now")
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
    assert broker.ledgers is not None
    loop = asyncio.get_running_loop()
    other = ManagedLedgerFactory(broker.store, broker.ledgers, broker.service.clock, loop)
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


async def test_what_is_stored_makes_room_for_further_acknowledgements(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await Client.of(broker)
    await client.publish(8)
    ids = await client.receive(8)
    monkeypatch.setattr(pending_log, "WAITING_RECORDS_MAX", 2)
    monkeypatch.setattr(pending_log, "WAITING_BYTES_MAX", 2 * (pending_log.RECORD_BYTES + pending_log.ENTRY_BYTES))
    for one in ids:
        assert await client.ack(5, one) is None
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


async def test_a_log_that_cannot_be_made_is_tried_again(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await Client.of(broker)
    await client.publish(1)
    ids = await client.receive(1)
    opened = ManagedLedgerFactory.open

    async def refuse(self: Any, name: str, *arguments: Any, **options: Any) -> Any:
        if name == LOG:
            raise StoreUnavailable("no store")
        return await opened(self, name, *arguments, **options)

    monkeypatch.setattr(ManagedLedgerFactory, "open", refuse)
    assert await client.ack(5, *ids) == pb.MetadataError
    assert await client.end(5, ABORT) == pb.MetadataError
    monkeypatch.undo()
    # It is not known what is stored, so that it stays held until it is ended.
    assert await client.ack(6, *ids) == pb.TransactionConflict
    assert await client.end(5, ABORT) is None
    assert await client.ack(6, *ids) is None
    assert await client.end(6, COMMIT) is None
    assert backlog(broker) == 0


@pytest.mark.parametrize("what", ["subscription", "topic"])
async def test_a_deletion_that_is_cut_short_may_be_repeated(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    client = await Client.of(broker)
    await client.publish(1)
    ids = await client.receive(1)
    await client.ack(5, *ids)
    name = topic_of(broker).name

    async def delete() -> None:
        if what == "topic":
            await broker.service.delete(name, force=True)
        else:
            await (await broker.service.topic(name, create=False)).delete_subscription("s", force=True)

    async def refuse(self: Any, name: str) -> None:
        raise StoreUnavailable("no store")

    monkeypatch.setattr(ManagedLedgerFactory, "delete", refuse)
    with pytest.raises(StoreUnavailable):
        await delete()
    monkeypatch.undo()
    assert await broker.service.ledgers.exists(LOG)
    await broker.service.unload(name)
    await delete()
    assert not await broker.service.ledgers.exists(LOG)


async def test_a_topic_is_closed_with_an_end_under_way(broker: MemoryBroker) -> None:
    client = await Client.of(broker)
    await client.publish(3)
    ids = await client.receive(3)
    await client.ack(5, *ids)
    topic = topic_of(broker)
    handle = topic.pending_acks.of(topic.subscriptions["s"])
    ending = asyncio.ensure_future(handle.end((0, 5), commit=True, low_water_mark=-1))
    await asyncio.sleep(0)
    await broker.service.close_topic(topic)
    await ending
    after = await restarted(broker)
    await after.consumer()
    assert backlog(broker) == 0


async def test_coordinators_are_super_users() -> None:
    """Brokers show their own credentials; a client that would end a transaction of others hears of none."""
    async with MemoryBroker(replace(SETTINGS, access=access_settings())) as guarded:
        await make_namespace(guarded, auth_policies=grants({"client": ["produce", "consume"]}))
        topic = "persistent://acme/shop/orders"
        client = await connected_as(guarded, "client")
        await client.producer(topic)
        await client.consumer(topic, subType=SHARED, initialPosition=pb.CommandSubscribe.Earliest)
        await client.publish(1)
        (message,) = await client.messages(1)
        acked = {"message_id": [message.body.message_id], "txnid_least_bits": 5, "txnid_most_bits": 0}
        answer = await client.request(pb.BaseCommand.ACK, consumer_id=1, ack_type=pb.CommandAck.Individual, **acked)
        assert not answer.body.HasField("error")
        end = {"txnid_least_bits": 5, "subscription": {"topic": topic, "subscription": "s"}, "txn_action": COMMIT}
        refused = await client.request(pb.BaseCommand.END_TXN_ON_SUBSCRIPTION, **end)
        assert refused.body.error == pb.TransactionNotFound
        subscription = guarded.service.topics[topic].subscriptions["s"]
        assert subscription.backlog == 1
        coordinator = await connected_as(guarded, ADMIN)
        ended = await coordinator.request(pb.BaseCommand.END_TXN_ON_SUBSCRIPTION, **end)
        assert not ended.body.HasField("error")
        assert subscription.backlog == 0


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
    topic = await broker.service.topic(TopicName.parse(TOPIC), create=False)
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
