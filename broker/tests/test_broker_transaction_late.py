"""What comes of a transaction after its end, at an owner of the topic that did not hear of that end itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from magnetar.broker import slices
from magnetar.broker.settings.transactions import TransactionSettings
from magnetar.broker.testing.clusters import MemoryCluster, until
from magnetar.broker.testing.sessions import MemoryBroker, ProtocolClient, message
from magnetar.broker.transactions import pending_doubts, pending_state
from magnetar.broker.transactions.buffers import buffer_table
from magnetar.broker.transactions.earlier import EarlierTransactions
from magnetar.broker.transactions.names import coordinator_topic
from magnetar.core.errors import MagnetarError, Unavailable
from magnetar.core.topic_name import TopicName
from magnetar.managed.append_path import AppendPath
from magnetar.wire.pulsar.errors import ServerError
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from broker.tests import transaction_ack_stage as acks
from broker.tests.test_broker_transaction_buffer import ENABLED, TOPIC, Command, all_sent, ended, loaded, send, texts
from broker.tests.test_broker_transaction_inquiry import begun, looked

NAME = TopicName.parse(TOPIC)
EACH_CHANGE = replace(ENABLED, transactions=TransactionSettings(enabled=True, snapshot_changes_max=1))
"""Snapshots that leave the next owner nothing to read."""


async def end_at_coordinator(client: ProtocolClient, number: int, *, commit: bool) -> None:
    action = pb.COMMIT if commit else pb.ABORT
    answer = await client.request(Command.END_TXN, txnid_most_bits=0, txnid_least_bits=number, txn_action=action)
    assert not answer.body.HasField("error"), answer


async def taken_over(broker: MemoryBroker) -> ProtocolClient:
    """A connection to the topic's next owner, which finds no marker behind the snapshot."""
    buffer = loaded(broker).buffer
    assert buffer is not None
    await until(lambda: not buffer._writing and not buffer._changes)
    await broker.service.unload(NAME)
    client = await broker.connect()
    await client.producer(TOPIC)
    assert not loaded(broker).buffer.table.committed  # type: ignore[union-attr]
    return client


@pytest.mark.parametrize("another_is_open", [True, False])
@pytest.mark.parametrize("commit", [True, False])
async def test_a_late_message_is_refused_and_hides_nothing(*, commit: bool, another_is_open: bool) -> None:
    """An abort of it would hide the first one."""
    async with MemoryBroker(EACH_CHANGE) as broker:
        client = await broker.connect()
        if another_is_open:
            assert await begun(client, 600_000) == 0
        number = await begun(client, 600_000)
        await client.consumer(TOPIC)
        await client.producer(TOPIC)
        await send(client, 0, transaction=number)
        await end_at_coordinator(client, number, commit=commit)
        client = await taken_over(broker)
        await client.consumer(TOPIC)
        (late,) = await send(client, 1, transaction=number)
        assert (late.name, late.body.error) == ("SEND_ERROR", pb.NotAllowedError)
        await send(client, 2)
        await looked(broker)
        expected = [b"m0", b"m2"] if commit else [b"m2"]
        client.send(Command.FLOW, consumer_id=1, messagePermits=100)
        assert texts([await client.expect(Command.MESSAGE) for _ in expected]) == expected
        assert await all_sent(client) == []


async def test_what_is_open_at_its_coordinator_goes_on_at_the_next_owner() -> None:
    async with MemoryBroker(EACH_CHANGE) as broker:
        client = await broker.connect()
        first, second = await begun(client, 600_000), await begun(client, 600_000)
        await client.consumer(TOPIC)
        await client.producer(TOPIC)
        await send(client, 0, transaction=first)
        client = await taken_over(broker)
        await client.consumer(TOPIC)
        # The one is known by its message, the other one by its coordinator.
        for number, transaction in ((1, first), (2, second)):
            assert [one.name for one in await send(client, number, transaction=transaction)] == ["SEND_RECEIPT"]
        for transaction in (first, second):
            await end_at_coordinator(client, transaction, commit=True)
        assert texts(await client.messages(3)) == [b"m0", b"m1", b"m2"]
        table = loaded(broker).buffer.table  # type: ignore[union-attr]
        assert not table.vouched


async def test_a_coordinator_elsewhere_is_asked() -> None:
    async with MemoryCluster(2, replace(EACH_CHANGE, cluster_name="memory")) as cluster:
        here, there = cluster.brokers
        await cluster.take(here, str(coordinator_topic(0)))
        await cluster.take(there, TOPIC)
        assert await cluster.bundle_of(str(coordinator_topic(0))) != await cluster.bundle_of(TOPIC)
        of_coordinator, client = await here.connect(), await there.connect()
        kept, over = await begun(of_coordinator, 600_000), await begun(of_coordinator, 600_000)
        await end_at_coordinator(of_coordinator, over, commit=True)
        await client.consumer(TOPIC)
        await client.producer(TOPIC)
        (late,) = await send(client, 0, transaction=over)
        assert (late.name, late.body.error) == ("SEND_ERROR", pb.NotAllowedError)
        # Nobody needs to have it run before.
        owned = here.service.ownership.serving(coordinator_topic(0))
        await here.running.context.coordinators.abandon_in([owned])  # type: ignore[union-attr]
        await there.service.unload(NAME)
        client = await there.connect()
        await client.producer(TOPIC)
        (late,) = await send(client, 1, transaction=over)
        assert (late.name, late.body.error) == ("SEND_ERROR", pb.NotAllowedError)
        assert [one.name for one in await send(client, 2, transaction=kept)] == ["SEND_RECEIPT"]


async def test_what_is_no_longer_remembered_is_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer_table, "COMMITTED_KEPT", 1)
    async with MemoryBroker(ENABLED) as broker:
        client = await broker.connect()
        numbers = [await begun(client, 600_000) for _ in range(4)]
        await client.consumer(TOPIC)
        await client.producer(TOPIC)
        # What comes after this began since, as far as the topic knows.
        await send(client, 0, transaction=numbers[0])
        began = [await begun(client, 600_000) for _ in range(3)]
        for message_number, number in enumerate(began, 1):
            await send(client, message_number, transaction=number)
            await end_at_coordinator(client, number, commit=True)
        for number in began:
            (late,) = await send(client, 9, transaction=number)
            assert (late.name, late.body.error) == ("SEND_ERROR", pb.NotAllowedError)
        await end_at_coordinator(client, numbers[0], commit=True)
        assert texts(await client.messages(4)) == [b"m0", b"m1", b"m2", b"m3"]


class ToldStandings:
    """A `TransactionStandings` that answers what a test says, when it says so."""

    def __init__(self) -> None:
        self.open: set[tuple[int, int]] = set()
        self.newest = 100
        self.failure: MagnetarError | None = None
        self.asked: list[tuple[int, int]] = []
        self.held = asyncio.Event()
        self.held.set()

    def moment(self) -> int:
        return 1

    async def is_open(self, transaction: tuple[int, int], since: int, earlier: EarlierTransactions) -> bool:
        assert since == 1
        self.asked.append(transaction)
        await self.held.wait()
        if self.failure is not None:
            raise self.failure
        earlier.began_since(transaction[0], self.newest)
        return transaction[1] > self.newest or transaction in self.open


@asynccontextmanager
async def questioned() -> AsyncIterator[tuple[MemoryBroker, ToldStandings]]:
    """A broker whose topics ask the test."""
    async with MemoryBroker(ENABLED) as broker:
        standings = ToldStandings()
        broker.service.transactions._standings = standings
        try:
            yield broker, standings
        finally:
            standings.held.set()


async def test_transactions_that_began_since_are_not_asked_about() -> None:
    async with questioned() as (broker, standings):
        client = await broker.connect()
        await client.producer(TOPIC)
        await client.consumer(TOPIC)
        standings.open = {(0, 7)}
        for number, transaction in enumerate([7, 7, 101, 102, 101, 7, 103]):
            assert [one.name for one in await send(client, number, transaction=transaction)] == ["SEND_RECEIPT"]
        await ended(client, 7)
        assert [one.name for one in await send(client, 7, transaction=7)] == ["SEND_ERROR"]
        assert standings.asked == [(0, 7)]


async def test_nobody_is_asked_about_a_transaction_whose_marker_is_on_its_way() -> None:
    """Its end is known, also where it has written nothing."""
    async with questioned() as (broker, standings):
        client = await broker.connect()
        await client.producer(TOPIC)
        await client.consumer(TOPIC)
        (bookie,) = broker.bookies.bookies.values()
        bookie.hang()
        buffer = loaded(broker).buffer
        assert buffer is not None
        ending = asyncio.ensure_future(buffer.end((0, 7), commit=True, low_water_mark=0))
        await client.round_trip()
        (late,) = await send(client, 0, transaction=7)
        assert (late.name, late.body.error) == ("SEND_ERROR", pb.NotAllowedError)
        bookie.heal()
        await ending
        assert standings.asked == []


async def test_whoever_waits_is_answered_in_order_and_nobody_else_waits() -> None:
    async with questioned() as (broker, standings):
        client = await broker.connect()
        await client.producer(TOPIC)
        await client.producer(TOPIC, producer_id=2)
        standings.held.clear()
        standings.open = {(0, 8)}
        for number, transaction in enumerate([None, 7, None, 8, 7, None]):
            bits: Any = {} if transaction is None else {"txnid_most_bits": 0, "txnid_least_bits": transaction}
            content = message(b"m%d" % number, sequence_id=number, **bits)
            client.send(Command.SEND, content, producer_id=1, sequence_id=number, **bits)
            await client.round_trip() if number == 0 else None
        await client.publish(1, producer_id=2)
        assert [one for one in await client.round_trip() if one.body.producer_id == 1] == []
        standings.held.set()
        answers = [await client._take(lambda one: one.name.startswith("SEND_")) for _ in range(5)]
        assert [(one.name[5:], one.body.sequence_id) for one in answers] == [
            ("ERROR", 1),
            ("RECEIPT", 2),
            ("RECEIPT", 3),
            ("ERROR", 4),
            ("RECEIPT", 5),
        ]
        assert standings.asked == [(0, 7), (0, 8)]


async def test_what_waits_is_published_turn_by_turn_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "TURN_SECONDS_MAX", 0.0)
    async with questioned() as (broker, standings):
        client = await broker.connect()
        await client.producer(TOPIC)
        standings.held.clear()
        standings.open = {(0, 7), (0, 9)}
        for number in range(60):
            transaction = {0: 7, 30: 8, 45: 9}.get(number)
            bits: Any = {} if transaction is None else {"txnid_most_bits": 0, "txnid_least_bits": transaction}
            content = message(b"m%d" % number, sequence_id=number, **bits)
            client.send(Command.SEND, content, producer_id=1, sequence_id=number, **bits)
            assert await client.round_trip() == []
        standings.held.set()
        answers = [await client._take(lambda one: one.name.startswith("SEND_")) for _ in range(60)]
        assert [one.body.sequence_id for one in answers] == list(range(60))
        assert [one.body.sequence_id for one in answers if one.name == "SEND_ERROR"] == [30]
        assert standings.asked == [(0, 7), (0, 8), (0, 9)]


async def test_a_producer_comes_back_while_nobody_can_tell() -> None:
    async with questioned() as (broker, standings):
        client = await broker.connect()
        await client.producer(TOPIC)
        await client.producer(TOPIC, producer_id=2)
        standings.failure = Unavailable("moving")
        bits: Any = {"txnid_most_bits": 0, "txnid_least_bits": 7}
        client.send(Command.SEND, message(b"m0", **bits), producer_id=1, sequence_id=0, **bits)
        assert (await client.expect(Command.CLOSE_PRODUCER)).body.producer_id == 1
        await client.publish(1, producer_id=2)
        standings.failure, standings.open = None, {(0, 7)}
        await client.producer(TOPIC)
        assert [one.name for one in await send(client, 0, transaction=7)] == ["SEND_RECEIPT"]
        assert loaded(broker).number_of_entries == 2


async def test_what_waits_is_not_stored_behind_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client sends both again: the second one would be stored before the first one, and twice."""
    append = AppendPath.append
    under_way: list[Callable[[], None]] = []

    def first_is_slow(self: AppendPath, payloads: Sequence[bytes], done: Any, context: object) -> None:
        if b"m0" in payloads[0]:
            under_way.append(lambda: done(MagnetarError("the bookies are away"), -1, -1, context))
        else:
            append(self, payloads, done, context)

    monkeypatch.setattr(AppendPath, "append", first_is_slow)
    async with questioned() as (broker, standings):
        client = await broker.connect()
        await client.producer(TOPIC)
        standings.held.clear()
        standings.open = {(0, 7)}
        for number, transaction in enumerate((None, 7, None)):
            bits: Any = {} if transaction is None else {"txnid_most_bits": 0, "txnid_least_bits": transaction}
            content = message(b"m%d" % number, sequence_id=number, **bits)
            client.send(Command.SEND, content, producer_id=1, sequence_id=number, **bits)
            await client.round_trip()
        assert standings.asked == [(0, 7)]
        under_way.pop()()
        await client.expect(Command.CLOSE_PRODUCER)
        standings.held.set()
        await client.producer(TOPIC)
        assert [one.name for one in await send(client, 3, transaction=7)] == ["SEND_RECEIPT"]
        assert loaded(broker).number_of_entries == 1


async def test_a_topic_goes_without_waiting_for_an_answer() -> None:
    async with questioned() as (broker, standings):
        client = await broker.connect()
        await client.producer(TOPIC)
        standings.held.clear()
        bits: Any = {"txnid_most_bits": 0, "txnid_least_bits": 7}
        client.send(Command.SEND, message(b"m0", **bits), producer_id=1, sequence_id=0, **bits)
        await client.round_trip()
        assert standings.asked
        await broker.service.unload(NAME)
        assert (await client.expect(Command.CLOSE_PRODUCER)).body.producer_id == 1
        standings.held.set()
        await client.producer(TOPIC)
        assert loaded(broker).number_of_entries == 0


# --- acknowledgements


def begin_ack(client: acks.Client, transaction: int, position: tuple[int, int]) -> int:
    """An ACK whose answer is asked for later, by this request id."""
    ids = [{"ledgerId": position[0], "entryId": position[1]}]
    bits: Any = {"txnid_most_bits": 0, "txnid_least_bits": transaction}
    return client.client.start(Command.ACK, consumer_id=1, ack_type=0, message_id=ids, **bits)


async def errors_of(client: acks.Client, requests: list[int]) -> list[int | None]:
    bodies = [(await client.client.answer(one)).body for one in requests]
    return [one.error if one.HasField("error") else None for one in bodies]


async def subscribed_and_ended(client: ProtocolClient, subscription: bool, *, commit: bool) -> int:
    """A transaction that is over, with or without the subscription."""
    number = await begun(client, 600_000)
    if subscription:
        bits: Any = {"txnid_most_bits": 0, "txnid_least_bits": number}
        one = {"topic": acks.TOPIC, "subscription": "s"}
        answer = await client.request(Command.ADD_SUBSCRIPTION_TO_TXN, subscription=[one], **bits)
        assert not answer.body.HasField("error")
    await end_at_coordinator(client, number, commit=commit)
    return number


@pytest.mark.parametrize("take_over", [acks.restarted, acks.killed])
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("cumulative", [True, False])
async def test_a_late_acknowledgement_is_refused_and_holds_nothing(
    take_over: Callable[[MemoryBroker], Any], *, commit: bool, cumulative: bool
) -> None:
    async with MemoryBroker(acks.SETTINGS) as broker:
        client = await acks.Client.of(broker, acks.EXCLUSIVE)
        await client.publish(2)
        number = await subscribed_and_ended(client.client, True, commit=commit)
        kind = pb.CommandAck.Cumulative if cumulative else pb.CommandAck.Individual
        after = await take_over(broker)
        await after.consumer(acks.EXCLUSIVE)
        first, _ = await after.receive(2)
        assert await after.ack(number, first, kind=kind) == ServerError.TRANSACTION_CONFLICT
        handle = acks.topic_of(broker).pending_acks.of(acks.topic_of(broker).subscriptions["s"])
        assert not handle.held.knows((0, number))
        assert not handle.held.entries
        assert not handle.held._numbers
        assert await after.ack(None, first, kind=kind) is None
        assert acks.backlog(broker) == 1


@pytest.mark.parametrize("action", [acks.COMMIT, acks.ABORT])
async def test_what_the_log_says_of_an_end_needs_nobody_to_be_asked(action: int) -> None:
    async with questioned() as (broker, standings):
        client = await acks.Client.of(broker)
        await client.publish(2)
        first, second = await client.receive(2)
        standings.open = {(0, 5)}
        assert await client.ack(5, first) is None
        assert await client.end(5, action) is None
        asked = len(standings.asked)
        after = await acks.killed(broker)
        await after.consumer()
        assert await after.ack(5, second) == ServerError.TRANSACTION_CONFLICT
        assert len(standings.asked) == asked


async def test_acknowledgements_are_answered_once_their_transaction_is_known() -> None:
    async with questioned() as (broker, standings):
        client = await acks.Client.of(broker)
        await client.publish(4)
        ids = await client.receive(4)
        standings.held.clear()
        standings.open = {(0, 8)}
        begun_acks = [begin_ack(client, *one) for one in ((7, ids[0]), (8, ids[1]), (7, ids[2]))]
        # Who has none of them waits for nothing, and what is held is held already.
        assert await client.ack(101, ids[0]) == ServerError.TRANSACTION_CONFLICT
        assert await client.ack(None, ids[3]) is None
        standings.held.set()
        conflict = ServerError.TRANSACTION_CONFLICT
        assert await errors_of(client, begun_acks) == [conflict, None, conflict]
        assert sorted(standings.asked) == [(0, 7), (0, 8)]
        assert await client.shown(2) == [ids[0], ids[2]]
        # By now it is known what began since.
        assert await client.ack(101, ids[0]) is None
        assert await client.ack(8, ids[2]) is None
        assert len(standings.asked) == 2


async def test_an_end_that_comes_before_the_answer_counts() -> None:
    """A client may end its transaction without waiting for the answers to what it acknowledged."""
    async with questioned() as (broker, standings):
        client = await acks.Client.of(broker)
        await client.publish(1)
        ids = await client.receive(1)
        standings.held.clear()
        begun_ack = begin_ack(client, 7, ids[0])
        assert await client.end(7, acks.COMMIT) is None
        standings.held.set()
        assert await errors_of(client, [begun_ack]) == [None]
        assert acks.backlog(broker) == 0


async def test_what_nobody_can_tell_stays_held_until_the_end() -> None:
    async with questioned() as (broker, standings):
        client = await acks.Client.of(broker)
        await client.publish(1)
        ids = await client.receive(1)
        standings.failure = Unavailable("moving")
        assert await client.ack(7, ids[0]) is None
        assert await client.shown(0) == []
        assert await client.end(7, acks.COMMIT) is None
        assert acks.backlog(broker) == 0


async def test_so_many_acknowledgements_wait_for_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_doubts, "WAITING_MAX", 2)
    async with questioned() as (broker, standings):
        client = await acks.Client.of(broker)
        await client.publish(3)
        ids = await client.receive(3)
        standings.held.clear()
        standings.open = {(0, 7)}
        begun_acks = [begin_ack(client, 7, one) for one in ids[:2]]
        assert await client.ack(7, ids[2]) == ServerError.TOO_MANY_REQUESTS
        standings.held.set()
        assert await errors_of(client, begun_acks) == [None, None]
        assert await client.ack(7, ids[2]) is None


async def test_an_end_that_is_no_longer_remembered_is_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_state, "ENDED_KEPT", 1)
    async with questioned() as (broker, standings):
        client = await acks.Client.of(broker)
        await client.publish(4)
        ids = await client.receive(4)
        standings.open = {(0, 7)}
        assert await client.ack(7, ids[0]) is None
        for transaction, one in ((101, ids[1]), (102, ids[2])):
            assert await client.ack(transaction, one) is None
            assert await client.end(transaction, acks.COMMIT) is None
        standings.newest = 200
        assert await client.ack(101, ids[3]) == ServerError.TRANSACTION_CONFLICT
        assert standings.asked == [(0, 7), (0, 101)]
