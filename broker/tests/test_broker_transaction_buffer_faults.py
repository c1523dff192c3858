"""Transaction buffers whose snapshots cannot be read or written, or whose markers cannot be stored."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.transactions import TransactionSettings
from magnetar.broker.states import BufferState
from magnetar.broker.testing.auth import ADMIN, TENANT_ADMIN, broker_settings, connected_as, grants, make_namespace
from magnetar.broker.testing.auth import TOPIC as ORDERS
from magnetar.broker.testing.clusters import MemoryCluster, until
from magnetar.broker.testing.sessions import MemoryBroker, ProtocolClient, message
from magnetar.broker.transactions.buffers.snapshot_codec import Aborted, Snapshot
from magnetar.broker.transactions.buffers.snapshot_topic import SnapshotsUnavailable
from magnetar.core.bundle import BundleName
from magnetar.core.clock import TimerHandle
from magnetar.core.errors import MagnetarError
from magnetar.core.topic_name import TopicName
from magnetar.managed.append_path import AppendPath
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from broker.tests.test_broker_transaction_buffer import TOPIC, Command, end, ended, loaded, send, texts

NAME = TopicName.parse(TOPIC)


class FakeSnapshots:
    """Keeps snapshots in memory; each call waits while `open` is not set, and fails while `failing`."""

    def __init__(self) -> None:
        self.kept: dict[str, tuple[Snapshot, list[Aborted]]] = {}
        self.failing = False
        self.writes = 0
        self.asked = asyncio.Event()
        self.open = asyncio.Event()
        self.open.set()

    kind = "Single"

    async def read(self, topic: TopicName, first_ledger_id: int = 0) -> tuple[Snapshot, list[Aborted]] | None:
        await self._pass()
        return self.kept.get(str(topic))

    async def write(self, snapshot: Snapshot, aborted: Sequence[Aborted]) -> None:
        self.writes += 1
        await self._pass()
        self.kept[snapshot.topic] = snapshot, list(aborted)

    async def delete(self, topic: TopicName) -> None:
        await self._pass()
        self.kept.pop(str(topic), None)

    def release(self, topic: TopicName) -> None:
        assert str(topic) == TOPIC

    async def close(self) -> None:
        self.open.set()

    async def _pass(self) -> None:
        self.asked.set()
        await self.open.wait()
        if self.failing:
            raise SnapshotsUnavailable("not now")


@asynccontextmanager
async def with_fake(**settings: int) -> AsyncIterator[tuple[MemoryBroker, ProtocolClient, FakeSnapshots]]:
    transactions = TransactionSettings(enabled=True, **settings)  # type: ignore[arg-type]
    async with MemoryBroker(BrokerSettings(transactions=transactions)) as broker:
        snapshots = FakeSnapshots()
        broker.service.transactions.use_snapshots(snapshots)
        yield broker, await broker.connect(), snapshots


async def test_nothing_is_stored_without_a_first_snapshot() -> None:
    async with with_fake() as (broker, client, snapshots):
        await client.producer(TOPIC)
        snapshots.failing = True
        client.send(Command.SEND, transactional(0, 1), **fields(0, 1))
        await client.expect(Command.CLOSE_PRODUCER)
        assert loaded(broker).number_of_entries == 0
        snapshots.failing = False
        await client.producer(TOPIC)
        (receipt,) = await send(client, 0, transaction=1)
        assert receipt.name == "SEND_RECEIPT"
        assert list(snapshots.kept) == [TOPIC]
        # A termination would wait for what was dropped.
        assert loaded(broker).buffer.unstored == 0  # type: ignore[union-attr]


async def test_what_comes_during_the_first_snapshot_keeps_its_order() -> None:
    async with with_fake() as (broker, client, snapshots):
        await client.producer(TOPIC)
        await client.consumer(TOPIC)
        snapshots.open.clear()
        client.send(Command.SEND, transactional(0, 1), **fields(0, 1))
        await until(lambda: loaded(broker).buffer.state is BufferState.FIRST_SNAPSHOTTING)  # type: ignore[union-attr]
        client.send(Command.SEND, transactional(1, None), **fields(1, None))
        answer = client.start(
            Command.END_TXN_ON_PARTITION, topic=TOPIC, txnid_most_bits=0, txnid_least_bits=1, txn_action=pb.ABORT
        )
        assert await client.round_trip() == []
        assert loaded(broker).number_of_entries == 0
        snapshots.open.set()
        receipts = [(await client.expect(Command.SEND_RECEIPT)).body for _ in range(2)]
        assert [receipt.message_id.entryId for receipt in receipts] == [0, 1]
        assert not (await client.answer(answer)).body.HasField("error")
        assert texts(await client.messages(1)) == [b"m1"]
        buffer = loaded(broker).buffer
        assert buffer is not None
        assert [marker[1] for marker in buffer.table.aborted.values()] == [2]


async def test_what_waits_for_the_first_snapshot_is_not_stored_behind_what_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Clients send both again: the second one would be stored before the first one, and once more behind it."""
    append = AppendPath.append
    under_way: list[Callable[[], None]] = []
    pending = vars(AppendPath)["pending_entries"].__get__  # Of a property, or what it is compiled to.

    def first_is_slow(self: AppendPath, payloads: Sequence[bytes], done: Any, context: object) -> None:
        if b"m0" in payloads[0]:
            under_way.append(lambda: done(MagnetarError("the bookies are away"), -1, -1, context))
        else:
            append(self, payloads, done, context)

    monkeypatch.setattr(AppendPath, "append", first_is_slow)
    monkeypatch.setattr(AppendPath, "pending_entries", property(lambda self: len(under_way) + pending(self)))
    async with with_fake() as (broker, client, snapshots):
        await client.producer(TOPIC)
        for number, transaction in enumerate((None, 1, None)):
            client.send(Command.SEND, transactional(number, transaction), **fields(number, transaction))
            await client.round_trip()  # Or they were stored together.
        assert len(under_way) == 1
        held = loaded(broker)._held
        assert held is not None
        async with asyncio.timeout(30):
            while not held.holding:  # It is asked first whether the transaction is open.
                await client.round_trip()
        under_way.pop()()
        await client.expect(Command.CLOSE_PRODUCER)
        async with asyncio.timeout(30):
            while not snapshots.kept:
                await client.round_trip()
        await client.producer(TOPIC)
        (receipt,) = await send(client, 3, transaction=1)
        assert receipt.body.message_id.entryId == 0
        assert loaded(broker).number_of_entries == 1
        # A termination would wait for what was dropped.
        assert loaded(broker).buffer.unstored == 0  # type: ignore[union-attr]


async def test_an_unload_during_the_first_snapshot_does_not_wait_for_it() -> None:
    async with with_fake() as (broker, client, snapshots):
        await client.producer(TOPIC)
        snapshots.open.clear()
        client.send(Command.SEND, transactional(0, 1), **fields(0, 1))
        await snapshots.asked.wait()
        await broker.service.unload(NAME)
        await client.expect(Command.CLOSE_PRODUCER)
        snapshots.open.set()
        await client.producer(TOPIC)
        assert loaded(broker).number_of_entries == 0
        await send(client, 0, transaction=1)


async def test_a_topic_whose_snapshot_cannot_be_read_is_not_served() -> None:
    async with with_fake() as (broker, client, snapshots):
        await client.producer(TOPIC)
        await client.consumer(TOPIC)
        await send(client, 0, transaction=1)
        await broker.service.unload(NAME)
        snapshots.failing = True
        client = await broker.connect()
        answer = await client.request(Command.SUBSCRIBE, topic=TOPIC, subscription="s", consumer_id=1, subType=0)
        assert (answer.name, answer.body.error) == ("ERROR", pb.ServiceNotReady)
        refused = await end(client, 1)
        assert refused.error == pb.ServiceNotReady
        snapshots.failing = False
        await client.consumer(TOPIC)
        await ended(client, 1)
        assert texts(await client.messages(1)) == [b"m0"]


async def test_snapshots_that_fail_are_written_later_and_nothing_is_wrong_before() -> None:
    async with with_fake(snapshot_interval_ms=1) as (broker, client, snapshots):
        await client.producer(TOPIC)
        await client.consumer(TOPIC)
        await send(client, 0, transaction=1)
        snapshots.failing = True
        await ended(client, 1, commit=False)
        writes = snapshots.writes
        while snapshots.writes < writes + 2:
            await client.round_trip()
        assert snapshots.kept[TOPIC][1] == []
        snapshots.failing = False
        while not snapshots.kept[TOPIC][1]:
            await client.round_trip()
        assert [bits for bits, _ in snapshots.kept[TOPIC][1]] == [(0, 1)]
        await send(client, 1)
        assert texts(await client.messages(1)) == [b"m1"]
        await broker.service.unload(NAME)


async def test_a_snapshot_after_so_many_changes() -> None:
    async with with_fake(snapshot_changes_max=3) as (broker, client, snapshots):
        await client.producer(TOPIC)
        for number in range(3):
            await send(client, number, transaction=number + 1)
            await ended(client, number + 1, commit=number != 0)
        while snapshots.writes < 2:
            await client.round_trip()
        snapshot, aborted = snapshots.kept[TOPIC]
        assert [bits for bits, _ in aborted] == [(0, 1)]
        assert snapshot.max_read_position <= loaded(broker).ledger.last_confirmed


async def test_aborted_ones_whose_messages_are_gone_are_forgotten() -> None:
    async with with_fake() as (broker, client, _):
        await client.producer(TOPIC)
        await send(client, 0, transaction=1)
        await ended(client, 1, commit=False)
        topic = loaded(broker)
        await topic.ledger.roll()
        await send(client, 1, transaction=2)
        await topic.ledger.trim(retain=False)
        assert topic.buffer is not None
        await ended(client, 2, commit=False)
        assert list(topic.buffer.table.aborted) == [(0, 2)]


async def test_a_marker_that_cannot_be_stored_is_asked_for_again() -> None:
    async with with_fake() as (broker, client, _):
        await client.producer(TOPIC)
        await client.consumer(TOPIC)
        client.send(Command.FLOW, consumer_id=1, messagePermits=100)
        await send(client, 0, transaction=1)
        (bookie_id,) = broker.bookies.writable_bookies()
        bookie = broker.bookies.connection(bookie_id)
        bookie.stop()
        refused = await end(client, 1)
        assert refused.error in (pb.PersistenceError, pb.ServiceNotReady)
        bookie.heal()
        while (answer := await end(client, 1)).HasField("error"):
            assert answer.error in (pb.PersistenceError, pb.ServiceNotReady)
        assert texts([await client.expect(Command.MESSAGE)]) == [b"m0"]


def transactional(number: int, transaction: int | None) -> bytes:
    """What a SEND of this number carries."""

    bits = {} if transaction is None else {"txnid_most_bits": 0, "txnid_least_bits": transaction}
    return message(b"m%d" % number, sequence_id=number, **bits)  # type: ignore[arg-type]


def fields(number: int, transaction: int | None) -> dict[str, int]:
    """The fields of its command."""
    bits = {} if transaction is None else {"txnid_most_bits": 0, "txnid_least_bits": transaction}
    return {"producer_id": 1, "sequence_id": number, **bits}


async def test_the_other_broker_takes_over_and_has_the_snapshots() -> None:
    """The topic is at one broker, the snapshots at the other; then all of it is there."""
    settings = BrokerSettings(cluster_name="memory", transactions=TransactionSettings(enabled=True))
    async with MemoryCluster(2, settings) as cluster:
        first, second = cluster.brokers
        snapshots = "persistent://public/default/__transaction_buffer_snapshot"
        place = await cluster.bundle_of(snapshots)
        names = (f"persistent://public/default/topic{number}" for number in itertools.count())
        topic = await anext(elsewhere(cluster, names, place))
        await cluster.take(first, topic)
        await cluster.take(second, snapshots)
        client = await first.connect()
        await client.producer(topic)
        await client.consumer(topic)
        await send(client, 0, transaction=1)
        await send(client, 1, transaction=2)
        await send(client, 2, transaction=3)
        assert not (await end(client, 1, commit=False, topic=topic)).HasField("error")
        assert snapshots in second.service.topics
        assert snapshots not in first.service.topics
        await cluster.stop(first)
        client = await cluster.client_of(topic)
        await client.consumer(topic)
        client.send(Command.FLOW, consumer_id=1, messagePermits=100)
        assert not (await end(client, 3, topic=topic)).HasField("error")
        assert [one for one in await client.round_trip() if one.name == "MESSAGE"] == []
        assert not (await end(client, 2, topic=topic)).HasField("error")
        assert texts([await client.expect(Command.MESSAGE) for _ in range(2)]) == [b"m1", b"m2"]


async def elsewhere(cluster: MemoryCluster, names: Iterator[str], place: BundleName) -> AsyncIterator[str]:
    """Topics that are not in this bundle."""
    for name in names:
        if await cluster.bundle_of(name) != place:
            yield name


@pytest.mark.parametrize("role", [ADMIN, TENANT_ADMIN, "both"])
async def test_only_super_users_end_transactions(role: str) -> None:
    """Coordinators are brokers; who else asks does not even hear whether there is such a transaction."""
    settings = replace(broker_settings(), transactions=TransactionSettings(enabled=True))
    async with MemoryBroker(settings) as broker:
        await make_namespace(broker, auth_policies=grants({"both": ["produce", "consume"]}))
        client = await connected_as(broker, role)
        answer = await end(client, 1, topic=ORDERS)
        if role == ADMIN:
            assert not answer.HasField("error")
        else:
            assert answer.error == pb.TransactionNotFound


async def test_snapshots_are_written_with_the_brokers_own_credentials() -> None:
    settings = replace(broker_settings(), transactions=TransactionSettings(enabled=True))
    async with MemoryBroker(settings) as broker:
        await make_namespace(broker, auth_policies=grants({"both": ["produce", "consume"]}))
        client, coordinator = await connected_as(broker, "both"), await connected_as(broker, ADMIN)
        await client.producer(ORDERS)
        await client.consumer(ORDERS)
        await send(client, 0, transaction=1)
        assert not (await end(coordinator, 1, topic=ORDERS)).HasField("error")
        assert texts(await client.messages(1)) == [b"m0"]


async def test_an_end_that_waits_for_the_first_snapshot_is_answered_when_the_topic_goes() -> None:
    async with with_fake() as (broker, client, snapshots):
        await client.producer(TOPIC)
        snapshots.open.clear()
        snapshots.asked.clear()
        client.send(Command.SEND, transactional(0, 1), **fields(0, 1))
        await snapshots.asked.wait()
        buffer = loaded(broker).buffer
        assert buffer is not None
        ending = asyncio.ensure_future(buffer.end((0, 1), commit=True, low_water_mark=0))
        await client.round_trip()
        assert not ending.done()
        await broker.service.unload(NAME)
        with pytest.raises(PulsarError) as refused:
            await asyncio.wait_for(ending, 10)
        assert refused.value.code == ServerError.SERVICE_NOT_READY
        snapshots.open.set()


async def test_the_last_of_so_many_changes_takes_the_snapshot_without_a_timer() -> None:
    """As at Apache's brokers, which compare by "at least"."""
    async with with_fake(snapshot_changes_max=1, snapshot_interval_ms=10**9) as (_, client, snapshots):
        await client.producer(TOPIC)
        await send(client, 0, transaction=1)
        assert snapshots.writes == 1
        await ended(client, 1)
        async with asyncio.timeout(30):
            while snapshots.writes < 2:
                await client.round_trip()


async def test_what_is_on_its_way_is_stored_before_the_first_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the snapshot markers are believed, and nobody has looked for forged ones in these messages."""
    on_their_way = [1]
    monkeypatch.setattr(AppendPath, "pending_entries", property(lambda _: on_their_way[0]))
    async with with_fake() as (_, client, snapshots):
        await client.producer(TOPIC)
        bits: Any = {"txnid_most_bits": 0, "txnid_least_bits": 7}
        client.send(Command.SEND, message(b"m1", sequence_id=1, **bits), producer_id=1, sequence_id=1, **bits)
        for _ in range(5):
            await client.round_trip()
        assert snapshots.writes == 0
        on_their_way[0] = 0
        await client.expect(Command.SEND_RECEIPT)
        assert snapshots.writes == 1


async def test_a_change_waits_for_its_snapshot_as_many_milliseconds_as_are_set() -> None:
    async with with_fake(snapshot_interval_ms=4_000) as (broker, client, _):
        await client.producer(TOPIC)
        await send(client, 0, transaction=1)
        buffer = loaded(broker).buffer
        assert buffer is not None
        delays: list[float] = []
        call_later = buffer._call_later

        def watched(delay: float, callback: Callable[[], None], /) -> TimerHandle:
            delays.append(delay)
            return call_later(delay, callback)

        buffer._call_later = watched
        await ended(client, 1)
        assert delays == [4.0]
