"""Frames about transactions and delays that no stock client sends: each has its answer, and changes nothing else."""

from __future__ import annotations

import logging
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import pytest
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.testing.sessions import MemoryBroker, ProtocolClient, command_frame, message
from magnetar.broker.transactions import pending_state
from magnetar.broker.transactions.names import coordinator_topic
from magnetar.wire.pulsar.errors import ServerError
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from broker.tests import transaction_ack_stage as acks
from broker.tests.test_broker_transaction_buffer import TOPIC as T
from broker.tests.test_broker_transaction_buffer import Command, loaded, texts
from broker.tests.test_broker_transaction_inquiry import begun, looked

CONFLICT = ServerError.TRANSACTION_CONFLICT
HUGE = (1 << 64) - 1
CUMULATIVE = pb.CommandAck.Cumulative


@pytest.fixture
async def broker(caplog: pytest.LogCaptureFixture) -> AsyncIterator[MemoryBroker]:
    """With transactions; nothing goes wrong in it without a name."""
    async with MemoryBroker(acks.SETTINGS) as running:
        yield running
    assert [one for one in caplog.records if one.exc_info or one.levelno >= logging.ERROR] == []


def handle_of(broker: MemoryBroker) -> Any:
    topic = acks.topic_of(broker)
    return topic.pending_acks.of(topic.subscriptions["s"])


async def connected_to_coordinator(broker: MemoryBroker) -> ProtocolClient:
    client = await broker.connect()
    await client.request(Command.LOOKUP, topic=str(coordinator_topic(0)))
    assert not (await client.request(Command.TC_CLIENT_CONNECT_REQUEST, tc_id=0)).body.HasField("error")
    return client


# --- acknowledgements


@pytest.mark.parametrize("bits", [(HUGE, 1), (1, HUGE), (1 << 63, 1), (HUGE, HUGE), (77, 1)])
async def test_an_ack_of_what_can_be_no_transaction_holds_nothing(broker: MemoryBroker, bits: tuple[int, int]) -> None:
    client = await acks.Client.of(broker)
    await client.publish(1)
    (one,) = await client.receive(1)
    answer = await client.client.request(
        Command.ACK,
        consumer_id=1,
        ack_type=0,
        message_id=[{"ledgerId": one[0], "entryId": one[1]}],
        txnid_most_bits=bits[0],
        txnid_least_bits=bits[1],
    )
    assert answer.body.error == CONFLICT
    await looked(broker)
    assert not handle_of(broker).held.entries
    after = await acks.killed(broker)
    await after.consumer()
    assert await after.shown(1) == [one]
    assert not handle_of(broker).held.entries


@pytest.mark.parametrize(
    ("words", "size"),
    [([], -1), ([], 1 << 30), ([1], -(1 << 31)), ([0], 1 << 30), ([-1], 3), ([0, 0, 0, 0], 3), ([-(1 << 63)] * 20, 0)],
)
@pytest.mark.parametrize("kind", [pb.CommandAck.Individual, CUMULATIVE])
async def test_ack_sets_that_fit_no_batch_end_with_their_transaction(
    broker: MemoryBroker, words: list[int], size: int, kind: int
) -> None:
    client = await acks.Client.of(broker, acks.EXCLUSIVE)
    batch = await acks.one_batch(client)
    await client.publish(1)
    await client.ack(5, batch, kind=kind, sets={batch: (words, size)})
    assert await client.end(5, acks.ABORT) is None
    held = handle_of(broker).held
    assert (held.entries, held.sizes, held.transactions, held.cumulative, held._words) == ({}, {}, {}, None, 0)
    assert acks.backlog(broker) == 2
    after = await acks.killed(broker)
    await after.consumer(acks.EXCLUSIVE)
    assert len(await after.shown(2)) == 2


async def test_an_ack_that_names_huge_batches_takes_no_memory_for_them(broker: MemoryBroker) -> None:
    client = await acks.Client.of(broker)
    await client.publish(1)
    ((ledger_id, entry_id),) = await client.receive(1)
    ids = [{"ledgerId": ledger_id, "entryId": entry_id, "ack_set": [1], "batch_size": (1 << 31) - 1}] * 500
    frame = command_frame(
        Command.ACK,
        consumer_id=1,
        ack_type=0,
        message_id=ids,
        txnid_most_bits=0,
        txnid_least_bits=5,
        request_id=99,
    )
    tracemalloc.start()
    client.client.send_bytes(frame)
    answer = await client.client.answer(99)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert answer.body.error == ServerError.TOO_MANY_REQUESTS
    assert peak < 20_000_000
    assert handle_of(broker).held._words == 0


async def test_what_is_acknowledged_elsewhere_is_no_transactions(broker: MemoryBroker) -> None:
    client = await acks.Client.of(broker)
    batch = await acks.one_batch(client)
    await client.publish(2)
    ids = [acks.id_of(one) for one in await client.client.messages(2, permits=10)]
    assert await client.ack(None, ids[0]) is None
    assert await client.ack(None, batch, sets={batch: acks.FIRST_OF_THREE}) is None
    assert await client.ack(5, ids[0]) == CONFLICT
    assert await client.ack(5, ids[1], ids[0]) == CONFLICT
    assert await client.ack(5, batch, sets={batch: acks.FIRST_OF_THREE}) == CONFLICT
    # Nothing of a refused one is held.
    assert await client.ack(6, ids[1]) is None
    assert await client.ack(6, batch, sets={batch: acks.REST_OF_THREE}) is None
    assert await client.end(6, acks.COMMIT) is None
    assert acks.backlog(broker) == 0


async def test_cumulative_and_single_acks_of_several_transactions(broker: MemoryBroker) -> None:
    client = await acks.Client.of(broker, acks.EXCLUSIVE)
    await client.publish(6)
    ids = await client.receive(6)
    assert await client.ack(5, ids[1]) is None
    assert await client.ack(6, ids[3], kind=CUMULATIVE) is None
    assert await client.ack(7, ids[4], kind=CUMULATIVE) == CONFLICT
    assert await client.ack(6, ids[2], kind=CUMULATIVE) == CONFLICT
    assert await client.ack(6, kind=CUMULATIVE) == ServerError.NOT_ALLOWED_ERROR
    assert await client.ack(6, ids[4], ids[5], kind=CUMULATIVE) == ServerError.NOT_ALLOWED_ERROR
    assert await client.ack(5, ids[1]) == CONFLICT
    assert await client.ack(7, ids[5]) is None
    assert await client.end(6, acks.ABORT) is None
    assert await client.end(7, acks.COMMIT) is None
    assert await client.end(5, acks.COMMIT) is None
    assert acks.backlog(broker) == 4
    assert await client.again(acks.EXCLUSIVE) == [ids[0], ids[2], ids[3], ids[4]]


async def test_a_cumulative_ack_of_what_is_not_there_yet_takes_nothing(broker: MemoryBroker) -> None:
    client = await acks.Client.of(broker, acks.EXCLUSIVE)
    await client.publish(1)
    ((ledger_id, entry_id),) = await client.receive(1)
    for position in ((ledger_id, entry_id + 2), ((1 << 63) - 1, 0), (HUGE, HUGE)):
        assert await client.ack(5, position, kind=CUMULATIVE) is None
    assert handle_of(broker).held.cumulative is None
    await client.publish(3, first=1)
    assert await client.end(5, acks.COMMIT) is None
    assert acks.backlog(broker) == 4


async def test_an_ack_in_a_transaction_of_a_broker_without_is_refused() -> None:
    async with MemoryBroker(BrokerSettings()) as broker:
        client = await acks.Client.of(broker)
        await client.publish(1)
        (one,) = await client.receive(1)
        assert await client.ack(5, one) == ServerError.NOT_ALLOWED_ERROR
        bits: Any = {"txnid_most_bits": 0, "txnid_least_bits": 5}
        client.client.send(Command.SEND, message(b"m1", **bits), producer_id=1, sequence_id=1, **bits)
        refused = await client.client.expect(Command.SEND_ERROR)
        assert refused.body.error == pb.NotAllowedError
        assert acks.backlog(broker) == 1


# --- ends


@pytest.mark.parametrize("kind", [Command.END_TXN_ON_PARTITION, Command.END_TXN_ON_SUBSCRIPTION])
async def test_an_end_that_does_not_say_how_ends_nothing(broker: MemoryBroker, kind: Any) -> None:
    client = await acks.Client.of(broker)
    await client.publish(1)
    (one,) = await client.receive(1)
    assert await client.ack(5, one) is None
    bits: Any = {"txnid_most_bits": 0, "txnid_least_bits": 5}
    where: Any = {"topic": acks.TOPIC}
    if kind == Command.END_TXN_ON_SUBSCRIPTION:
        where = {"subscription": {"topic": acks.TOPIC, "subscription": "s"}}
    answer = await client.client.request(kind, **bits, **where)
    assert answer.body.error == ServerError.NOT_ALLOWED_ERROR
    assert acks.topic_of(broker).number_of_entries == 1
    assert await client.end(5, acks.COMMIT) is None
    assert acks.backlog(broker) == 0


async def test_an_end_without_a_low_water_mark_ends_no_other(broker: MemoryBroker) -> None:
    """0, which is what its absence reads as, would end the coordinator's first one."""
    client = await acks.Client.of(broker)
    await client.publish(1)
    (one,) = await client.receive(1)
    content: Any = {"txnid_most_bits": 0, "txnid_least_bits": 0}
    assert await client.ack(0, one) is None
    client.client.send(Command.SEND, message(b"m1", **content), producer_id=1, sequence_id=1, **content)
    await client.client.expect(Command.SEND_RECEIPT)
    bits: Any = {"txnid_most_bits": 0, "txnid_least_bits": 5, "txn_action": pb.COMMIT}
    answer = await client.client.request(Command.END_TXN_ON_PARTITION, topic=acks.TOPIC, **bits)
    assert not answer.body.HasField("error")
    subscription = {"topic": acks.TOPIC, "subscription": "s"}
    answer = await client.client.request(Command.END_TXN_ON_SUBSCRIPTION, subscription=subscription, **bits)
    assert not answer.body.HasField("error")
    await broker.service.upkeep.check_now("rates")
    topic = acks.topic_of(broker)
    assert list(topic.buffer.table.open) == [(0, 0)]
    assert list(handle_of(broker).held.transactions) == [(0, 0)]
    assert (topic.buffer.table.low_water_marks, handle_of(broker).held.low_water_marks) == ({0: -1}, {0: -1})


async def test_an_end_is_decided_once(broker: MemoryBroker) -> None:
    client = await broker.connect()
    number = await begun(client, 600_000)
    await client.consumer(T)
    await client.producer(T)
    bits: Any = {"txnid_most_bits": 0, "txnid_least_bits": number}
    client.send(Command.SEND, message(b"m0", **bits), producer_id=1, sequence_id=0, **bits)
    await client.expect(Command.SEND_RECEIPT)
    requests = [client.start(Command.END_TXN, txn_action=action, **bits) for action in (pb.COMMIT, pb.ABORT) * 3]
    answers = [(await client.answer(one)).body for one in requests]
    errors = [one.error if one.HasField("error") else None for one in answers]
    assert errors[0] is None
    allowed = (ServerError.INVALID_TXN_STATUS, ServerError.TRANSACTION_NOT_FOUND)
    assert all(error in allowed for error in errors[1::2])
    assert all(error is None or error in allowed for error in errors[::2])
    assert texts(await client.messages(1)) == [b"m0"]
    assert list(loaded(broker).buffer.table.aborted) == []  # type: ignore[union-attr]


# --- coordinators


@pytest.mark.parametrize("ttl_ms", [0, 1, HUGE, 1 << 63])
async def test_a_transaction_of_no_time_is_aborted_at_once(broker: MemoryBroker, ttl_ms: int) -> None:
    """A number that is negative in Java is no centuries."""
    client = await connected_to_coordinator(broker)
    begun = await client.request(Command.NEW_TXN, tc_id=0, txn_ttl_seconds=ttl_ms)
    assert not begun.body.HasField("error")
    bits: Any = {"txnid_most_bits": 0, "txnid_least_bits": begun.body.txnid_least_bits}
    while True:
        answer = await client.request(Command.ADD_PARTITION_TO_TXN, partitions=[T], **bits)
        if answer.body.HasField("error") and answer.body.error == ServerError.TRANSACTION_NOT_FOUND:
            break
    answer = await client.request(Command.END_TXN, txn_action=pb.COMMIT, **bits)
    assert answer.body.error == ServerError.TRANSACTION_NOT_FOUND


async def test_a_transaction_of_centuries_is_open_after_a_restart(broker: MemoryBroker) -> None:
    client = await connected_to_coordinator(broker)
    begun = await client.request(Command.NEW_TXN, tc_id=0, txn_ttl_seconds=(1 << 63) - 1)
    bits: Any = {"txnid_most_bits": 0, "txnid_least_bits": begun.body.txnid_least_bits}
    await broker.stop()
    await broker.start()
    client = await connected_to_coordinator(broker)
    answer = await client.request(Command.ADD_PARTITION_TO_TXN, partitions=[T], **bits)
    assert not answer.body.HasField("error")
    answer = await client.request(Command.END_TXN, txn_action=pb.ABORT, **bits)
    assert not answer.body.HasField("error")


async def test_participants_of_every_kind_keep_no_transaction_from_its_end(broker: MemoryBroker) -> None:
    client = await connected_to_coordinator(broker)
    begun = await client.request(Command.NEW_TXN, tc_id=0, txn_ttl_seconds=600_000)
    bits: Any = {"txnid_most_bits": 0, "txnid_least_bits": begun.body.txnid_least_bits}
    for topics in (["persistent://a/b"], ["", T], ["persistent://public/default/" + "x" * 64_000] * 2):
        answer = await client.request(Command.ADD_PARTITION_TO_TXN, partitions=topics, **bits)
        assert answer.body.HasField("error"), topics
    kinds = [
        "non-persistent://public/default/n",
        "persistent://public/default/never",
        "persistent://public/none/never",
        "persistent://nobody/none/never",
        "persistent://public/default/t-partition-7",
        str(coordinator_topic(1)),
        str(coordinator_topic(1).partitioned_name()),
        "persistent://pulsar/system/__transaction_log_0",
        "persistent://public/default/__change_events",
        "persistent://public/default/__transaction_buffer_snapshot",
    ]
    many = [f"persistent://public/default/n{number}" for number in range(1_000)]
    for topics in (kinds, many, []):
        answer = await client.request(Command.ADD_PARTITION_TO_TXN, partitions=topics, **bits)
        assert not answer.body.HasField("error"), answer
    for one in kinds:
        for name in ("s", "", "никто", "__compaction", "a/b"):
            subscriptions = [{"topic": one, "subscription": name}]
            answer = await client.request(Command.ADD_SUBSCRIPTION_TO_TXN, subscription=subscriptions, **bits)
            assert not answer.body.HasField("error"), answer
    answer = await client.request(Command.END_TXN, txn_action=pb.COMMIT, **bits)
    assert not answer.body.HasField("error"), answer
    coordinators = broker.running.context.coordinators
    assert coordinators is not None
    assert (await coordinators.stats(0)).open_transactions == 0
    assert not any(topic in broker.service.topics for topic in many)


# --- delays and permits


async def test_due_times_of_every_kind(broker: MemoryBroker) -> None:
    client = await broker.connect()
    await client.producer(T)
    await client.consumer(T, subType=acks.SHARED)
    times = [0, 1, -1, -(1 << 63), (1 << 63) - 1, 1 << 62]
    for number, due_ms in enumerate(times):
        await client.publish(1, first=number, deliver_at_time=due_ms)
    await client.publish(1, first=len(times))
    for _ in range(3):
        client.send(Command.FLOW, consumer_id=1, messagePermits=(1 << 32) - 1)
        client.send(Command.FLOW, consumer_id=1, messagePermits=1_000_000)
    got = [await client.expect(Command.MESSAGE) for _ in range(5)]
    assert sorted(texts(got)) == [b"m0", b"m1", b"m2", b"m3", b"m6"]
    assert [one for one in await client.round_trip() if one.name == "MESSAGE"] == []
    # The next owner begins with the same.
    await broker.stop()
    await broker.start()
    client = await broker.connect()
    await client.consumer(T, subType=acks.SHARED)
    client.send(Command.FLOW, consumer_id=1, messagePermits=1_000_000)
    assert len([await client.expect(Command.MESSAGE) for _ in range(5)]) == 5
    assert [one for one in await client.round_trip() if one.name == "MESSAGE"] == []


async def test_words_of_batches_are_bounded(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_state, "HELD_WORDS_MAX", 2)
    client = await acks.Client.of(broker)
    batch = await acks.one_batch(client)
    assert await client.ack(5, batch, sets={batch: ([0b110], 200)}) == ServerError.TOO_MANY_REQUESTS
    assert await client.ack(5, batch, sets={batch: acks.FIRST_OF_THREE}) is None
