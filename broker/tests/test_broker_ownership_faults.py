"""Nodes that vanish unseen, writes with an unknown outcome: still one owner, and one at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from magnetar.broker.bundles.ownership import OwnershipLost, ownership_path
from magnetar.broker.resources import Resources
from magnetar.broker.testing.clusters import MemoryCluster, until
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.broker.topics.topic import PersistentTopic
from magnetar.core.bundle import BundleName
from magnetar.core.topic_name import NamespaceName, TopicName
from magnetar.managed.errors import ManagedLedgerFenced
from magnetar.metadata.store import NodeChange, Notification, StoreUnavailable
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

TOPIC = "persistent://public/default/t"
NAMESPACE = NamespaceName("public", "default")
CLOSE_PRODUCER = pb.BaseCommand.CLOSE_PRODUCER


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with MemoryCluster(2) as running:
        yield running


class LostAnswer:
    """The next write to a node happens, but its writer does not hear of it, nor anything else of the node, until
    `over`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, broker: MemoryBroker, path: str) -> None:
        self.written = False
        self._quiet = True
        store, put, get = broker.store, broker.store.put, broker.store.get

        def check(target: str) -> None:
            if target == path and self.written and self._quiet:
                raise StoreUnavailable("the connection broke under a request")

        async def put_and_be_cut_off(target: str, *arguments: Any, **named: Any) -> Any:
            check(target)
            stat = await put(target, *arguments, **named)
            self.written |= target == path
            check(target)
            return stat

        async def get_unless_cut_off(target: str, **named: Any) -> Any:
            check(target)
            return await get(target, **named)

        monkeypatch.setattr(store, "put", put_and_be_cut_off)
        monkeypatch.setattr(store, "get", get_unless_cut_off)

    def over(self) -> None:
        """The connection stands again."""
        self._quiet = False


def follower(cluster: MemoryCluster) -> MemoryBroker:
    return next(broker for broker in cluster.brokers if not broker.running.context.load.leading)


def leader(cluster: MemoryCluster) -> MemoryBroker:
    return next(broker for broker in cluster.brokers if broker.running.context.load.leading)


@pytest.mark.parametrize("told", [True, False])
async def test_a_node_that_vanishes_while_nobody_listens_is_noticed(cluster: MemoryCluster, told: bool) -> None:
    """After a reconnection the store tells only that something may have changed, and no longer watches the node."""
    bundle = await cluster.take(cluster[0], TOPIC)
    client = await cluster[0].connect()
    await client.producer(TOPIC)
    store = cluster[0].store
    store.disconnect()
    listeners, store.changes = store.changes, type(store.changes)()
    await cluster[1].store.delete(ownership_path(bundle))
    await cluster.take(cluster[1], TOPIC)
    store.changes = listeners
    if told:
        # As the oldest of too many watches is dropped.
        store._connected = True
        store.changes.tell([Notification(NodeChange.MODIFIED, ownership_path(bundle))])
    else:
        store.reconnect()
    await client.expect(CLOSE_PRODUCER)
    await until(lambda: cluster.owners(bundle) == [cluster[1]])


async def test_what_is_asked_of_a_part_does_not_undo_its_split(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = cluster[0]
    context = broker.running.context
    bundle = await cluster.take(broker, TOPIC)
    follow, stop = asyncio.Event(), asyncio.Event()
    update = context.service.resources.documents.update

    async def slow_update(path: str, change: Any) -> Any:
        if path == Resources.namespace_path(NAMESPACE):
            follow.set()
            await stop.wait()
        return await update(path, change)

    monkeypatch.setattr(context.service.resources.documents, "update", slow_update)
    splitting = asyncio.create_task(context.moves.split(bundle))
    await follow.wait()
    part = await cluster.bundle_of(TOPIC)
    assert part != bundle, "the cut is stored, the parts are not served yet"
    assert await cluster.lookup(cluster[1], TOPIC) is broker
    assert (await context.ownership.acquire(part)).ours
    stop.set()
    for each in await splitting:
        node = await broker.store.get(ownership_path(each))
        assert node is not None
        assert node.stat.owned_by_this_session
        assert cluster.owners(each) == [broker]


async def test_a_split_with_an_unknown_outcome_leaves_one_owner(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = await cluster.take(cluster[0], TOPIC)
    client = await cluster[0].connect()
    await client.producer(TOPIC)
    lost = LostAnswer(monkeypatch, cluster[0], Resources.local_policies_path(NAMESPACE))
    with pytest.raises(StoreUnavailable):
        await cluster[0].running.context.moves.split(bundle)
    assert lost.written
    lost.over()
    part = await cluster.bundle_of(TOPIC)
    assert part != bundle
    await cluster.take(cluster[1], TOPIC)
    await client.expect(CLOSE_PRODUCER)
    await until(lambda: cluster.owned(cluster[0], bundle) is None)
    assert cluster.owners(part) == [cluster[1]]
    assert await cluster.lookup(cluster[0], TOPIC) is cluster[1]


async def test_a_split_is_done_once_its_cut_is_stored(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The policies are another store's, which may be away."""
    bundle = await cluster.take(cluster[0], TOPIC)
    lost = LostAnswer(monkeypatch, cluster[0], Resources.namespace_path(NAMESPACE))
    parts = await cluster[0].running.context.moves.split(bundle)
    assert lost.written
    lost.over()
    assert len(parts) == 2
    assert all(cluster.owners(part) == [cluster[0]] for part in parts)
    assert await cluster.lookup(cluster[1], TOPIC) is cluster[0]


async def test_a_node_that_was_made_unheard_does_not_hide_the_bundle(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = follower(cluster)
    bundle = await cluster.bundle_of(TOPIC)
    lost = LostAnswer(monkeypatch, broker, ownership_path(bundle))
    answer = await (await broker.connect()).request(pb.BaseCommand.LOOKUP, topic=TOPIC, authoritative=True)
    lost.over()
    assert answer.body.error == pb.ServiceNotReady
    assert not cluster.owners(bundle)
    found = await cluster.lookup(leader(cluster), TOPIC)
    assert found is broker, "the leader sees the node"
    client = await found.connect()
    await client.producer(TOPIC)
    assert cluster.owners(bundle) == [broker]


async def test_what_is_taken_while_the_broker_begins_to_stop_is_given_back(cluster: MemoryCluster) -> None:
    ownership = cluster[0].running.context.ownership
    bundle = await cluster.bundle_of(TOPIC)
    taking = asyncio.create_task(ownership.acquire(bundle))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    ownership.refuse_more()
    with pytest.raises(OwnershipLost, match="shutting down"):
        await taking
    assert bundle not in ownership.owned()
    assert await cluster[1].store.get(ownership_path(bundle)) is None


async def test_a_node_that_vanishes_while_it_is_taken_is_noticed(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = cluster[0].running.context
    bundle = await cluster.bundle_of(TOPIC)
    read_again = context.bundles.read_again

    async def meddled_with(namespace: NamespaceName) -> Any:
        found = await read_again(namespace)
        if await cluster[1].store.exists(ownership_path(bundle)):
            await cluster[1].store.delete(ownership_path(bundle))
            await cluster.take(cluster[1], TOPIC)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(context.bundles, "read_again", meddled_with)
        await asyncio.gather(context.ownership.acquire(bundle), return_exceptions=True)
    await until(lambda: cluster.owners(bundle) == [cluster[1]])


async def replaced_unheard(cluster: MemoryCluster, bundle: BundleName) -> None:
    """Broker 1 owns the bundle, and broker 0, which stood still meanwhile, has not heard of it yet."""
    cluster[0].running.context.ownership._by_path.pop(ownership_path(bundle))
    await cluster[1].store.delete(ownership_path(bundle))
    await cluster.take(cluster[1], TOPIC)


async def test_who_was_replaced_unheard_deletes_no_topic(cluster: MemoryCluster) -> None:
    bundle = await cluster.take(cluster[0], TOPIC)
    topic = await cluster[0].service.topic(TopicName.parse(TOPIC), create=True)
    await replaced_unheard(cluster, bundle)
    client = await cluster[1].connect()
    await client.producer(TOPIC)
    await client.consumer(TOPIC)
    await client.publish(3)
    topic.last_active_seconds = float("-inf")
    await asyncio.gather(cluster[0].service.upkeep.check_now("inactive topics"), return_exceptions=True)
    await until(lambda: cluster.owners(bundle) == [cluster[1]])
    await client.publish(1, first=3)
    await cluster[1].service.unload(TopicName.parse(TOPIC))
    await client.consumer(TOPIC, consumer_id=2)
    assert len(await client.messages(4, consumer_id=2)) == 4


async def test_who_was_replaced_unheard_deletes_no_subscription(cluster: MemoryCluster) -> None:
    bundle, client = await cluster.take(cluster[0], TOPIC), await cluster[0].connect()
    await client.producer(TOPIC)
    await client.consumer(TOPIC)
    await client.publish(3)
    topic = cluster[0].service.topics[TOPIC]
    assert isinstance(topic, PersistentTopic)
    (name,) = topic.subscriptions
    await replaced_unheard(cluster, bundle)
    await cluster[1].service.topic(TopicName.parse(TOPIC), create=False)
    with pytest.raises(ManagedLedgerFenced):
        await topic.delete_subscription(name, force=True)
    await cluster[1].service.unload(TopicName.parse(TOPIC))
    loaded = await cluster[1].service.topic(TopicName.parse(TOPIC), create=False)
    assert list(loaded.subscriptions) == [name]
