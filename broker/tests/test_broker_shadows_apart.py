"""Several shadows of one source at another broker than the source's."""

from __future__ import annotations

import pytest
from magnetar.broker.testing.clusters import MemoryCluster, until
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.core.errors import Unavailable
from magnetar.core.topic_name import TopicName
from magnetar.managed.cursors.storage import CursorStorage
from magnetar.managed.errors import ManagedLedgerFenced
from magnetar.managed.paths import cursor_path, ledger_path
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from broker.tests.test_broker_shadows import (
    NOTED,
    SHADOW,
    SOURCE,
    acknowledge,
    consumer_of,
    loaded,
    make_shadow,
    make_source,
    texts,
)


async def make_shadows(cluster: MemoryCluster, broker: MemoryBroker, count: int) -> list[str]:
    """Shadows that this broker has, which does not have their source."""
    bundle = await cluster.bundle_of(SOURCE)
    names = [f"{SHADOW}{number}" for number in range(100)]
    shadows = [each for each in names if await cluster.bundle_of(each) != bundle][:count]
    for shadow in shadows:
        await cluster.take(broker, shadow)
        assert await broker.service.shadows.create(TopicName.parse(shadow), NOTED)
    return shadows


async def test_shadows_of_one_source_at_one_broker_each_hear_where_it_ends() -> None:
    """Also of the last entry, of which the bookies do not say yet that it is confirmed; nobody tells them."""
    async with MemoryCluster(2) as cluster:
        first = await cluster.lookup(cluster[0], SOURCE)
        second = next(one for one in cluster.brokers if one is not first)
        producer = await make_source(first, 3)
        source = await first.service.topic(TopicName.parse(SOURCE), create=False)
        shadows = await make_shadows(cluster, second, 2)
        clients = [await consumer_of(second, shadow, initialPosition=pb.CommandSubscribe.Latest) for shadow in shadows]
        for shadow in shadows:
            assert (await loaded(second, shadow)).ledger.last_confirmed == source.ledger.last_confirmed
        await producer.publish(1, first=3)
        for client in clients:
            assert texts(await client.messages(1)) == [b"m3"]
            last = (await client.request(pb.BaseCommand.GET_LAST_MESSAGE_ID, consumer_id=1)).body.last_message_id
            assert (last.ledgerId, last.entryId) == source.ledger.last_confirmed


async def test_a_shadow_whose_deletion_failed_asks_nobody_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the one that is loaded then would find its place taken at the owner of the source."""
    async with MemoryCluster(2) as cluster:
        first = await cluster.lookup(cluster[0], SOURCE)
        second = next(one for one in cluster.brokers if one is not first)
        await make_source(first, 3)
        (shadow,) = await make_shadows(cluster, second, 1)
        source = await first.service.topic(TopicName.parse(SOURCE), create=False)
        await consumer_of(second, shadow)
        lost = await loaded(second, shadow)
        assert source.subscriptions

        async def out_of_reach(self: CursorStorage) -> None:
            raise Unavailable("the metadata store is out of reach")

        with monkeypatch.context() as patched:
            patched.setattr(CursorStorage, "delete", out_of_reach)
            with pytest.raises(Unavailable):
                await second.service.delete(TopicName.parse(shadow), force=True)
        await until(lambda: not source.subscriptions)
        again = await consumer_of(second, shadow)
        assert await loaded(second, shadow) is not lost
        assert texts(await again.messages(3)) == [b"m0", b"m1", b"m2"]


async def test_a_shadow_that_another_owner_has_when_it_is_deleted_asks_nobody_any_more() -> None:
    """Nobody has it any more who could let go of it."""
    async with MemoryCluster(2) as cluster:
        first = await cluster.lookup(cluster[0], SOURCE)
        second = next(one for one in cluster.brokers if one is not first)
        await make_source(first, 3)
        (shadow,) = await make_shadows(cluster, second, 1)
        source = await first.service.topic(TopicName.parse(SOURCE), create=False)
        await consumer_of(second, shadow)
        assert source.subscriptions
        path = ledger_path(TopicName.parse(shadow).persistence_name)
        node = await second.store.get(path)
        assert node is not None
        await second.store.put(path, node.value)
        with pytest.raises(ManagedLedgerFenced):
            await second.service.delete(TopicName.parse(shadow), force=True)
        await until(lambda: not source.subscriptions)
        again = await consumer_of(second, shadow)
        assert texts(await again.messages(3)) == [b"m0", b"m1", b"m2"]


async def test_a_shadow_whose_cursor_somebody_else_has_written_is_loaded_again(memory_broker: MemoryBroker) -> None:
    """As a former owner may that stood still. Nobody publishes here, and hears of it by that."""
    await make_source(memory_broker, 3)
    await make_shadow(memory_broker)
    client = await consumer_of(memory_broker)
    received = await client.messages(3)
    before = await loaded(memory_broker)
    path = cursor_path(TopicName.parse(SHADOW).persistence_name, "s")
    node = await memory_broker.store.get(path)
    assert node is not None
    await memory_broker.store.put(path, node.value)
    answer = await client.request(
        pb.BaseCommand.ACK,
        consumer_id=1,
        ack_type=pb.CommandAck.Individual,
        message_id=[received[0].body.message_id],
    )
    assert answer.body.HasField("error")
    await until(lambda: before.closing)
    again = await consumer_of(memory_broker)
    received = await again.messages(3)
    assert texts(received) == [b"m0", b"m1", b"m2"]
    await acknowledge(again, *received)
