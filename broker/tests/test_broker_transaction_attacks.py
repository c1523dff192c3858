"""Transactions that clients end late, never, or on topics that are no longer as they were."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import replace
from typing import Any

import google_crc32c
import pytest
from magnetar.broker.settings.policies import PolicySettings
from magnetar.broker.testing.sessions import MemoryBroker, Received, batch_message, command_frame, message
from magnetar.broker.topics.topic import PersistentTopic
from magnetar.broker.transactions import coordinator as coordinator_module
from magnetar.broker.transactions.buffers import buffer as buffer_module
from magnetar.broker.transactions.buffers import buffer_table as buffer_table_module
from magnetar.broker.transactions.buffers.buffer import TransactionBuffer
from magnetar.broker.transactions.buffers.held_appends import HeldAppends
from magnetar.broker.transactions.pending_handle import PendingAckHandle
from magnetar.broker.transactions.pending_topic import TopicPendingAcks
from magnetar.core.topic_name import TopicName
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb
from magnetar.wire.pulsar.metadata import MessageMetadataView, skim

from broker.tests import transaction_ack_stage as acks
from broker.tests.test_broker_transaction_buffer import (
    ENABLED,
    TOPIC,
    Command,
    all_sent,
    end,
    ended,
    loaded,
    send,
    texts,
    transactional,
)
from broker.tests.transaction_stage import NOBODY, coordinator_stage

NAME = TopicName.parse(TOPIC)


# --- a transaction that has ended


async def test_a_message_after_the_end_is_refused_and_hides_nothing() -> None:
    async with transactional() as (_, client):
        await client.producer(TOPIC)
        await send(client, 0, transaction=1)
        await ended(client, 1)
        (late,) = await send(client, 1, transaction=1)
        assert (late.name, late.body.error) == ("SEND_ERROR", pb.NotAllowedError)
        await send(client, 2, transaction=3)
        await ended(client, 3, low_water_mark=2)
        await client.consumer(TOPIC, initialPosition=1)
        assert texts(await client.messages(2)) == [b"m0", b"m2"]


@pytest.mark.parametrize("commit", [True, False])
async def test_a_message_after_the_end_is_refused_by_the_next_owner(*, commit: bool) -> None:
    async with transactional() as (broker, client):
        await client.producer(TOPIC)
        await client.consumer(TOPIC)
        await send(client, 0, transaction=1)
        await ended(client, 1, commit=commit)
        await broker.service.abandon([loaded(broker)])
        client = await broker.connect()
        await client.producer(TOPIC)
        (late,) = await send(client, 1, transaction=1)
        assert (late.name, late.body.error) == ("SEND_ERROR", pb.NotAllowedError)


async def test_a_message_after_an_abort_is_refused_where_no_transaction_has_written_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such an abort leaves no marker. The message would hold back all that comes behind it."""
    monkeypatch.setattr(buffer_table_module, "UNMARKED_KEPT", 2)
    async with transactional() as (broker, client):
        await client.producer(TOPIC)
        await client.consumer(TOPIC)
        for transaction in (1, 2, 3):
            await ended(client, transaction, commit=False)
        (late,) = await send(client, 0, transaction=3)
        assert (late.name, late.body.error) == ("SEND_ERROR", pb.NotAllowedError)
        await send(client, 1)
        assert texts(await client.messages(1)) == [b"m1"]
        table = loaded(broker).buffer.table  # type: ignore[union-attr]
        assert (list(table.unmarked), list(table.open)) == ([(0, 2), (0, 3)], [])


# --- markers that clients make


def marker(number: int, transaction: int, *, commit: bool) -> bytes:
    """As brokers write it, but for its producer."""
    return message(
        b"",
        sequence_id=number,
        marker_type=21 if commit else 22,
        txnid_most_bits=0,
        txnid_least_bits=transaction,
    )


def long_tag(payload: bytes) -> bytes:
    """The same entry with a tag of three bytes for `marker_type`; without a checksum, which would not fit."""
    assert payload[:2] == b"\x0e\x01"
    size, content = int.from_bytes(payload[6:10], "big"), payload[10:]
    at = content.index(b"\xa0\x01")
    content = content[:at] + b"\xa0\x81\x00" + content[at + 2 :]
    return (size + 1).to_bytes(4, "big") + content


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("form", [bytes, long_tag], ids=["short-tag", "long-tag"])
async def test_the_next_owner_does_not_believe_a_marker_of_a_client(form: Any, *, commit: bool) -> None:
    async with transactional() as (broker, client):
        await client.producer(TOPIC)
        await client.consumer(TOPIC)
        await send(client, 0, transaction=1)
        client.send(Command.SEND, form(marker(1, 1, commit=commit)), producer_id=1, sequence_id=1)
        refused = await client.expect(Command.SEND_ERROR)
        assert refused.body.error == pb.NotAllowedError
        await broker.service.abandon([loaded(broker)])
        client = await broker.connect()
        await client.consumer(TOPIC)
        assert list(loaded(broker).buffer.table.open) == [(0, 1)]  # type: ignore[union-attr]
        await ended(client, 1)
        assert texts(await client.messages(1)) == [b"m0"]


async def test_a_marker_before_the_first_transactional_message_counts_for_nothing() -> None:
    async with transactional() as (broker, client):
        await client.producer(TOPIC)
        await client.consumer(TOPIC)
        await client.producer(TOPIC, producer_id=2)
        # Both are there before anything is stored.
        client.send(Command.SEND, marker(0, 1, commit=False), producer_id=2, sequence_id=0)
        assert [one.name for one in await send(client, 1, transaction=1)] == ["SEND_RECEIPT"]
        await client.expect(Command.SEND_RECEIPT)
        await broker.service.abandon([loaded(broker)])
        client = await broker.connect()
        await client.consumer(TOPIC)
        table = loaded(broker).buffer.table  # type: ignore[union-attr]
        assert (list(table.aborted), list(table.open)) == ([], [(0, 1)])
        await ended(client, 1)
        assert texts(await client.messages(1)) == [b"m1"]


def tag_of_three_bytes(payload: bytes) -> bytes:
    """The same entry with a longer tag for `txnid_least_bits`; without a checksum, which would not fit."""
    size, content = int.from_bytes(payload[6:10], "big"), payload[10:]
    at = content.index(b"\xb0\x01")
    return (size + 1).to_bytes(4, "big") + content[:at] + b"\xb0\x81\x00" + content[at + 2 :]


@pytest.mark.parametrize("form", [bytes, tag_of_three_bytes], ids=["short-tag", "long-tag"])
async def test_a_message_whose_command_names_no_transaction_begins_none_at_the_next_owner(form: Any) -> None:
    """It would be shown now, and hold up whatever comes behind it once another broker has read the topic."""
    async with transactional() as (broker, client):
        await client.producer(TOPIC)
        await client.consumer(TOPIC)
        await send(client, 0, transaction=1)
        await ended(client, 1)
        forged = message(b"forged", sequence_id=1, txnid_most_bits=0, txnid_least_bits=7)
        client.send(Command.SEND, form(forged), producer_id=1, sequence_id=1)
        refused = await client.expect(Command.SEND_ERROR)
        assert refused.body.error == pb.NotAllowedError
        await send(client, 2)
        await broker.service.abandon([loaded(broker)])
        client = await broker.connect()
        await client.consumer(TOPIC)
        assert list(loaded(broker).buffer.table.open) == []  # type: ignore[union-attr]
        assert texts(await client.messages(2)) == [b"m0", b"m2"]


async def test_messages_that_only_look_like_those_of_transactions_are_stored() -> None:
    async with transactional() as (_, client):
        await client.producer(TOPIC)
        await send(client, 0, transaction=1)
        contents = (message(b"\xb0\x01\xb8\x01", sequence_id=1), message(txnid_least_bits=7, sequence_id=2))
        for number, content in enumerate(contents, 1):
            client.send(Command.SEND, content, producer_id=1, sequence_id=number)
            await client.expect(Command.SEND_RECEIPT)


async def test_messages_that_only_look_like_markers_are_stored() -> None:
    async with transactional() as (_, client):
        await client.producer(TOPIC)
        await send(client, 0, transaction=1)
        for number, content in enumerate((message(b"\xa0\x01", sequence_id=1), message(marker_type=10)), 1):
            client.send(Command.SEND, content, producer_id=1, sequence_id=number)
            await client.expect(Command.SEND_RECEIPT)


# --- topics that can hear of no end


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize(
    "topic",
    [
        "non-persistent://public/default/n",
        "persistent://public/default/parts",
        "persistent://public/default/__change_events",
        "persistent://public/default/t-s__transaction_pending_ack",
    ],
)
async def test_what_no_transaction_can_write_to_has_heard_of_its_end(topic: str, *, commit: bool) -> None:
    async with transactional() as (broker, client):
        await broker.service.partitioned.create(TopicName.parse("persistent://public/default/parts"), 2)
        if topic.startswith("non"):
            await client.producer(topic)
        await client.request(Command.LOOKUP, topic=topic)
        assert not (await end(client, 1, commit=commit, topic=topic)).HasField("error")
        answer = await client.request(
            Command.END_TXN_ON_SUBSCRIPTION,
            txnid_most_bits=0,
            txnid_least_bits=1,
            subscription={"topic": topic, "subscription": "s"},
            txn_action=pb.COMMIT if commit else pb.ABORT,
            txnid_least_bits_of_low_watermark=0,
        )
        assert not answer.body.HasField("error")


async def test_topics_that_refuse_keep_no_other_from_hearing() -> None:
    async with coordinator_stage() as stage:
        coordinator = await stage.open()
        topics = [f"persistent://public/default/{number}" for number in range(250)]
        stage.participants.refusals[topics[0]] = PulsarError(ServerError.NOT_ALLOWED_ERROR, "never")
        begun = await coordinator.new_transaction(600_000, NOBODY)
        await coordinator.add_partitions(begun.sequence, NOBODY, topics)
        with pytest.raises(PulsarError):
            await coordinator.end(begun.sequence, NOBODY, commit=True)
        assert {told[3] for told in stage.participants.told} == set(topics[1:])


# --- a subscription that goes back


@pytest.mark.parametrize("take_over", [acks.restarted, acks.killed])
async def test_what_is_read_again_is_not_acknowledged_by_a_replay(take_over: Any) -> None:
    async with MemoryBroker(acks.SETTINGS) as broker:
        client = await acks.Client.of(broker)
        await client.publish(4)
        ids = await client.receive(4)
        assert await client.ack(5, *ids[:2]) is None
        assert await client.ack(6, ids[2]) is None
        assert await client.end(5, acks.COMMIT) is None
        answer = await client.client.request(
            pb.BaseCommand.SEEK, consumer_id=1, message_id={"ledgerId": ids[0][0], "entryId": ids[0][1]}
        )
        assert answer.name == "SUCCESS"
        after = await take_over(broker)
        await after.consumer()
        assert await after.shown(3) == [ids[0], ids[1], ids[3]]
        assert await after.end(6, acks.ABORT) is None
        assert await after.shown(1) == [ids[2]]


async def test_what_is_open_when_a_subscription_goes_back_is_ended_by_the_next_owner() -> None:
    async with MemoryBroker(acks.SETTINGS) as broker:
        client = await acks.Client.of(broker)
        batch = await acks.one_batch(client)
        await client.publish(2)
        ids = [acks.id_of(one) for one in await client.client.messages(2, permits=10)]
        assert await client.ack(5, batch, sets={batch: acks.FIRST_OF_THREE}) is None
        assert await client.ack(6, ids[0]) is None
        await client.client.request(
            pb.BaseCommand.SEEK, consumer_id=1, message_id={"ledgerId": batch[0], "entryId": batch[1]}
        )
        after = await acks.killed(broker)
        assert await after.end(5, acks.COMMIT) is None
        assert await after.end(6, acks.COMMIT) is None
        await after.consumer()
        cursor = acks.topic_of(broker).subscriptions["s"].cursor
        assert cursor.remaining_ack_set(batch) == [0b110]
        assert cursor.is_acknowledged(ids[0])


# --- a topic that is let go of


@pytest.mark.parametrize("abandoned", [False, True], ids=["closed", "abandoned"])
async def test_a_topic_that_is_being_closed_opens_no_log_again(abandoned: bool) -> None:
    async with MemoryBroker(acks.SETTINGS) as broker:
        client = await acks.Client.of(broker)
        await client.publish(1)
        await client.ack(5, *await client.receive(1))
        topic = acks.topic_of(broker)
        subscription = topic.subscriptions["s"]
        await (topic.abandon() if abandoned else topic.close())
        with pytest.raises(PulsarError) as refused:
            await topic.pending_acks.of(subscription).end((0, 5), commit=True, low_water_mark=-1)
        assert refused.value.code == ServerError.SERVICE_NOT_READY
        assert acks.LOG not in broker.service.ledgers._open
        broker.service._forget(topic)


async def test_an_unloaded_topic_with_transactions_goes_at_once() -> None:
    async with transactional() as (broker, client):
        await client.producer(TOPIC)
        await client.consumer(TOPIC, subType=1)
        await send(client, 0, transaction=1)
        await ended(client, 1)
        (got,) = await client.messages(1)
        bits = {"txnid_most_bits": 0, "txnid_least_bits": 2}
        await client.request(Command.ACK, consumer_id=1, ack_type=0, message_id=[got.body.message_id], **bits)
        gc.collect()
        gc.disable()
        try:
            await broker.service.unload(NAME)
            await client.round_trip()
            for _ in range(20):
                await asyncio.sleep(0)
            kinds = (TransactionBuffer, HeldAppends, TopicPendingAcks, PendingAckHandle)
            assert [one for one in gc.get_objects() if isinstance(one, kinds)] == []
            assert [one for one in gc.get_objects() if isinstance(one, PersistentTopic) and one.name == NAME] == []
        finally:
            gc.enable()


# --- a topic that is terminated


async def test_a_topic_with_open_transactions_is_not_terminated() -> None:
    async with transactional() as (broker, client):
        await client.producer(TOPIC)
        await client.consumer(TOPIC)
        await send(client, 0, transaction=1)
        with pytest.raises(PulsarError):
            await loaded(broker).terminate()
        await send(client, 1, transaction=2)
        await ended(client, 1)
        await ended(client, 2, commit=False)
        await loaded(broker).terminate()
        assert texts(await client.messages(1)) == [b"m0"]
        assert await all_sent(client) == []
        # What has nothing here need not be stored.
        for commit in (True, False):
            await ended(client, 3, commit=commit)


async def test_a_termination_waits_for_messages_of_transactions_on_their_way() -> None:
    async with transactional() as (broker, client):
        await client.producer(TOPIC)
        await send(client, 0, transaction=1)
        await ended(client, 1)
        topic = loaded(broker)
        (bookie,) = broker.bookies.bookies.values()
        bookie.hang()
        bits: Any = {"txnid_most_bits": 0, "txnid_least_bits": 2}
        client.send(Command.SEND, message(b"m1", sequence_id=1, **bits), producer_id=1, sequence_id=1, **bits)
        await client.round_trip()
        terminating = asyncio.ensure_future(topic.terminate())
        await client.round_trip()
        bookie.heal()
        with pytest.raises(PulsarError):
            await terminating
        await ended(client, 2)


# --- what a SEND says of its transaction


@pytest.mark.parametrize(
    "bits", [{"txnid_most_bits": 0, "txnid_least_bits": 6}, {"txnid_most_bits": 0}, {"txnid_least_bits": 5}]
)
async def test_a_message_of_another_transaction_than_its_command_says_is_refused(bits: Any) -> None:
    async with transactional() as (broker, client):
        await client.producer(TOPIC)
        content = message(b"m0", sequence_id=0, **bits)
        client.send(Command.SEND, content, producer_id=1, sequence_id=0, txnid_most_bits=0, txnid_least_bits=5)
        refused = await client.expect(Command.SEND_ERROR)
        assert refused.body.error == pb.NotAllowedError
        assert loaded(broker).number_of_entries == 0


IN_SEVEN: dict[str, Any] = {"txnid_most_bits": 0, "txnid_least_bits": 7}


@pytest.mark.parametrize(
    ("content", "command"),
    [
        pytest.param(marker(1, 1, commit=True), {}, id="the end of a transaction"),
        pytest.param(message(b"m1", sequence_id=1, **IN_SEVEN), {}, id="its command names no transaction"),
        pytest.param(
            message(b"m1", sequence_id=1, **IN_SEVEN),
            {"txnid_most_bits": 0, "txnid_least_bits": 5},
            id="its command names another transaction",
        ),
    ],
)
async def test_what_is_never_stored_is_not_acknowledged_as_a_duplicate(content: bytes, command: Any) -> None:
    """A client that missed the refusal sends it again, and what came behind it is stored by then."""
    async with transactional(replace(ENABLED, policies=PolicySettings(deduplication=True))) as (broker, client):
        await client.producer(TOPIC)
        await send(client, 0)
        for behind in (["SEND_RECEIPT"], []):
            client.send(Command.SEND, content, producer_id=1, sequence_id=1, **command)
            refused = await client._take(lambda one: one.name in ("SEND_RECEIPT", "SEND_ERROR"))
            assert (refused.name, refused.body.error) == ("SEND_ERROR", pb.NotAllowedError)
            assert [one.name for _ in behind for one in await send(client, 2)] == behind
        assert loaded(broker).number_of_entries == 2


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("made", [message, batch_message])
@pytest.mark.parametrize("checksum", [True, False])
async def test_a_message_whose_command_alone_names_the_transaction_is_of_it(
    made: Any, *, checksum: bool, commit: bool
) -> None:
    """As the Go client sends them (pulsar-client-go#1498)."""
    async with transactional() as (broker, client):
        await client.producer(TOPIC)
        await client.consumer(TOPIC)
        for number, bits in enumerate([{"txnid_most_bits": 0, "txnid_least_bits": 5}, {}]):
            content = made(b"m%d" % number, sequence_id=number)
            content = content if checksum else content[6:]
            client.send(Command.SEND, content, producer_id=1, sequence_id=number, **bits)
            assert (await client.expect(Command.SEND_RECEIPT)).body.sequence_id == number
        # The next owner knows it by what is stored.
        await broker.service.abandon([loaded(broker)])
        client = await broker.connect()
        await client.consumer(TOPIC)
        await ended(client, 5, commit=commit)
        count = 2 if commit else 1
        found = await client.messages(count)
        assert [metadata_of(one).txnid_least_bits for one in found] == [5, -1][-count:]
        assert [one.payload[-2:] for one in found] == [b"m0", b"m1"][-count:]


def metadata_of(found: Received) -> MessageMetadataView:
    """Of a message as it was sent to a consumer, whose checksum is right where there is one."""
    if found.payload[:2] == b"\x0e\x01":
        assert int.from_bytes(found.payload[2:6], "big") == google_crc32c.value(found.payload[6:])
    return skim(found.payload)


# --- what clients can make grow


@pytest.mark.parametrize("refused", [False, True], ids=["all are stored", "one is refused"])
async def test_what_is_written_into_messages_does_not_count_as_brought(*, refused: bool) -> None:
    """Else each of them would make what the broker holds of publishers less than nothing, and its limit none."""
    async with transactional() as (broker, client):
        await client.producer(TOPIC)
        for number in range(3):
            other: dict[str, Any] = {"txnid_most_bits": 0, "txnid_least_bits": 7} if refused and number == 1 else {}
            client.send(
                Command.SEND,
                message(b"m%d" % number, sequence_id=number, **other),
                producer_id=1,
                sequence_id=number,
                txnid_most_bits=0,
                txnid_least_bits=3,
            )
        answers = [await client._take(lambda one: one.name in ("SEND_RECEIPT", "SEND_ERROR")) for _ in range(3)]
        second = "SEND_ERROR" if refused else "SEND_RECEIPT"
        assert [one.name for one in answers] == ["SEND_RECEIPT", second, "SEND_RECEIPT"]
        assert broker.service.limits.publish_buffer.held_bytes == 0
        await ended(client, 3)


async def test_a_coordinator_has_so_many_transactions_whatever_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_module, "OPEN_MAX", 3)
    async with coordinator_stage() as stage:
        coordinator = await stage.open()
        begun = [await coordinator.new_transaction(600_000, NOBODY) for _ in range(3)]
        with pytest.raises(PulsarError) as refused:
            await coordinator.new_transaction(600_000, NOBODY)
        assert refused.value.code == ServerError.TOO_MANY_REQUESTS
        await coordinator.end(begun[1].sequence, NOBODY, commit=True)
        assert (await coordinator.new_transaction(600_000, NOBODY)).sequence == 3


async def test_the_names_of_all_transactions_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_module, "ALL_NAMES_CHARACTERS_MAX", 100)
    async with coordinator_stage() as stage:
        coordinator = await stage.open()
        first, second = [(await coordinator.new_transaction(600_000, NOBODY)).sequence for _ in range(2)]
        await coordinator.add_partitions(first, NOBODY, ["a" * 40])
        # Three on their way at once: one of them is too many.
        wanted = [coordinator.add_subscriptions(second, NOBODY, [("b" * 20, str(one) * 10)]) for one in range(3)]
        outcomes = await asyncio.gather(*wanted, return_exceptions=True)
        refused = [one.code for one in outcomes if isinstance(one, PulsarError)]
        assert refused == [ServerError.TOO_MANY_REQUESTS]
        coordinator = await stage.open()
        with pytest.raises(PulsarError):
            await coordinator.add_partitions(second, NOBODY, ["c"])
        await coordinator.end(first, NOBODY, commit=True)
        await coordinator.add_partitions(second, NOBODY, ["c" * 40])


async def test_the_first_message_behind_a_snapshot_is_known_to_the_next_owner() -> None:
    async with transactional() as (broker, client):
        await client.producer(TOPIC)
        await client.consumer(TOPIC)
        await send(client, 0)
        await send(client, 1, transaction=1)
        await broker.service.abandon([loaded(broker)])
        client = await broker.connect()
        await client.consumer(TOPIC)
        client.send(Command.FLOW, consumer_id=1, messagePermits=100)
        assert texts([await client.expect(Command.MESSAGE)]) == [b"m0"]
        assert await all_sent(client) == []
        await ended(client, 1)
        assert texts([await client.expect(Command.MESSAGE)]) == [b"m1"]


async def test_an_answer_that_comes_after_the_end_aborts_nothing() -> None:
    async with transactional() as (broker, client):
        await client.producer(TOPIC)
        await client.consumer(TOPIC)
        await send(client, 0, transaction=1)
        await ended(client, 1)
        buffer = loaded(broker).buffer
        assert buffer is not None
        await buffer.abort((0, 1))
        assert dict(buffer.table.aborted) == {}
        assert texts(await client.messages(1)) == [b"m0"]


async def test_a_coordinator_that_waits_no_more_takes_nothing_back() -> None:
    async with transactional() as (broker, client):
        await client.producer(TOPIC)
        await client.consumer(TOPIC)
        await send(client, 0, transaction=1)
        buffer = loaded(broker).buffer
        assert buffer is not None
        (bookie,) = broker.bookies.bookies.values()
        bookie.hang()
        ending = asyncio.ensure_future(buffer.end((0, 1), commit=True, low_water_mark=0))
        await client.round_trip()
        ending.cancel()
        await asyncio.wait([ending])
        again = asyncio.ensure_future(buffer.end((0, 1), commit=True, low_water_mark=0))
        await client.round_trip()
        bookie.heal()
        await again
        assert texts(await client.messages(1)) == [b"m0"]
        assert loaded(broker).number_of_entries == 2


async def test_an_end_that_cannot_be_stored_is_no_success() -> None:
    """As on a topic that another kind of broker has terminated."""
    async with transactional() as (broker, client):
        await client.producer(TOPIC)
        await send(client, 0, transaction=1)
        await loaded(broker).ledger.terminate()
        assert (await end(client, 1)).HasField("error")


async def test_a_message_on_the_heels_of_the_end_is_refused() -> None:
    """Before the marker is stored."""
    async with transactional() as (broker, client):
        await client.producer(TOPIC)
        await client.consumer(TOPIC)
        await send(client, 0, transaction=1)
        (bookie,) = broker.bookies.bookies.values()
        bookie.hang()
        buffer = loaded(broker).buffer
        assert buffer is not None
        ending = asyncio.ensure_future(buffer.end((0, 1), commit=True, low_water_mark=0))
        await client.round_trip()
        (late,) = await send(client, 1, transaction=1)
        assert (late.name, late.body.error) == ("SEND_ERROR", pb.NotAllowedError)
        bookie.heal()
        await ending
        assert texts(await client.messages(1)) == [b"m0"]


async def test_what_one_read_brings_of_several_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    async with transactional() as (broker, client):
        await client.producer(TOPIC)
        await send(client, 0)
        frames = b""
        for number, transaction in ((1, 1), (2, 1), (3, 2), (4, 1), (5, 3)):
            bits: Any = {"txnid_most_bits": 0, "txnid_least_bits": transaction}
            content = message(b"m%d" % number, sequence_id=number, **bits)
            frames += command_frame(Command.SEND, content, producer_id=1, sequence_id=number, **bits)
        client.send_bytes(frames)
        for _ in range(5):
            await client.expect(Command.SEND_RECEIPT)
        buffer = loaded(broker).buffer
        assert buffer is not None
        assert [bits[1] for bits in buffer.table.open] == [1, 2, 3]
        # No more may be open; those that are go on.
        monkeypatch.setattr(buffer_module, "OPEN_MAX", 3)
        assert [one.name for one in await send(client, 6, transaction=3)] == ["SEND_RECEIPT"]
        assert [one.name for one in await send(client, 7, transaction=4)] == ["SEND_ERROR"]
