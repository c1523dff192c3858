"""Sessions that are lost, owners that do not notice, nodes that vanish: nobody confirms what another may own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
from magnetar.broker.bundles.namespace_bundles import BundleNotFound
from magnetar.broker.bundles.owned_bundles import OwnedBundle, OwnedBundles
from magnetar.broker.bundles.ownership import OwnershipLost, ownership_path
from magnetar.broker.peers.addresses import (
    AdvertisedListener,
    BrokerAddresses,
    decode_owner,
    encode_owner,
    parse_listeners,
)
from magnetar.broker.states import BundleState
from magnetar.broker.testing.clusters import MemoryCluster, until
from magnetar.broker.testing.sessions import message
from magnetar.broker.topics.topic import Topic
from magnetar.core.bundle import BundleName
from magnetar.core.errors import PeerError, SettingError
from magnetar.core.topic_name import TopicName
from magnetar.wire.pulsar.errors import PulsarError
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

TOPIC = "persistent://public/default/t"
CLOSE_PRODUCER = pb.BaseCommand.CLOSE_PRODUCER


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with MemoryCluster(2) as running:
        yield running


async def test_a_lost_session_lets_topics_go_and_takes_the_bundle_again(cluster: MemoryCluster) -> None:
    bundle = await cluster.take(cluster[0], TOPIC)
    client = await cluster[0].connect()
    await client.producer(TOPIC)
    await client.consumer(TOPIC)
    await client.publish(2)
    cluster[0].store.expire_session()
    await client.expect(CLOSE_PRODUCER)
    await until(lambda: cluster.owners(bundle) == [cluster[0]])
    assert not cluster[0].service.topics
    await client.producer(TOPIC, producer_id=2)
    await client.consumer(TOPIC, consumer_id=2)
    assert len(await client.messages(2, consumer_id=2)) == 2


async def test_a_lost_session_ends_the_service_at_once(cluster: MemoryCluster) -> None:
    bundle = await cluster.take(cluster[0], TOPIC)
    owned = cluster.owned(cluster[0], bundle)
    assert owned is not None
    cluster[0].store.expire_session()
    cluster[0].store.disconnect()
    await asyncio.sleep(0)
    assert owned.state is BundleState.IN_DOUBT
    with pytest.raises(PulsarError, match="not served by this instance"):
        await cluster[0].service.topic(TopicName.parse(TOPIC), create=True)
    answer = (await (await cluster[0].connect()).request(pb.BaseCommand.LOOKUP, topic=TOPIC)).body
    assert answer.error in (pb.ServiceNotReady, pb.MetadataError)
    cluster[0].store.reconnect()
    await until(lambda: owned.state is BundleState.ACTIVE)


async def test_a_bundle_is_taken_again_only_when_its_topics_are_let_go_of(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is loaded of the tenure before must not meet what is loaded of the next."""
    bundle = await cluster.take(cluster[0], TOPIC)
    client = await cluster[0].connect()
    await client.producer(TOPIC)
    owned, service = cluster.owned(cluster[0], bundle), cluster[0].service
    assert owned is not None
    abandon, go_on = service.abandon, asyncio.Event()

    async def abandon_slowly(topics: Any) -> None:
        await go_on.wait()
        await abandon(topics)

    monkeypatch.setattr(service, "abandon", abandon_slowly)
    cluster[0].store.expire_session()
    await asyncio.sleep(0.2)
    state, node = owned.state, await cluster[1].store.get(ownership_path(bundle))
    go_on.set()
    assert (state, node) == (BundleState.IN_DOUBT, None)
    await until(lambda: owned.state is BundleState.ACTIVE)


async def test_another_broker_is_quicker(cluster: MemoryCluster) -> None:
    bundle = await cluster.take(cluster[0], TOPIC)
    client = await cluster[0].connect()
    await client.producer(TOPIC)
    await client.publish(1)
    cluster[0].store.expire_session()
    cluster[0].store.disconnect()
    await cluster.take(cluster[1], TOPIC)
    cluster[0].store.reconnect()
    await until(lambda: cluster.owned(cluster[0], bundle) is None)
    assert cluster.owners(bundle) == [cluster[1]]
    await client.expect(CLOSE_PRODUCER)
    assert await cluster.lookup(cluster[0], TOPIC) is cluster[1]
    other = await cluster[1].connect()
    await other.producer(TOPIC)
    await other.publish(1)


async def zombie(cluster: MemoryCluster, bundle: BundleName) -> None:
    """Broker 0 goes on believing that it owns a bundle which broker 1 has by now."""
    # It hears nothing of what happens to the node.
    cluster[0].running.context.ownership._by_path.pop(ownership_path(bundle))
    await cluster[1].store.delete(ownership_path(bundle))
    await cluster.take(cluster[1], TOPIC)


async def test_a_zombie_confirms_nothing(cluster: MemoryCluster) -> None:
    bundle = await cluster.take(cluster[0], TOPIC)
    client = await cluster[0].connect()
    await client.producer(TOPIC)
    await client.publish(1)
    await zombie(cluster, bundle)
    assert cluster.owners(bundle) == [cluster[0], cluster[1]], "that is what the test is about"
    other = await cluster[1].connect()
    await other.producer(TOPIC)
    await other.publish(1)
    client.send(pb.BaseCommand.SEND, message(b"late", sequence_id=9), producer_id=1, sequence_id=9)
    await client.expect(CLOSE_PRODUCER)
    assert [each.name for each in await client.round_trip()] == [], "no receipt"
    await until(lambda: cluster.owners(bundle) == [cluster[1]])
    await other.publish(1, first=5)
    assert await other.round_trip() == [], "the zombie did not take the topic back"


def _only_owner(cluster: MemoryCluster, bundle: BundleName) -> bool:
    return cluster.owners(bundle) == [cluster[0]]


async def test_a_load_that_spans_a_lost_session_is_let_go_of(cluster: MemoryCluster) -> None:
    for turns in range(0, 60, 4):
        await cluster.take(cluster[0], TOPIC)
        loading = asyncio.create_task(cluster[0].service.topic(TopicName.parse(TOPIC), create=True))
        for _ in range(turns):
            await asyncio.sleep(0)
        cluster[0].store.expire_session()
        bundle = await cluster.bundle_of(TOPIC)
        await asyncio.wait([loading])
        loaded = None if loading.exception() else loading.result()
        await until(partial(_only_owner, cluster, bundle))
        topic: Topic | None = cluster[0].service.topics.get(TOPIC)
        if topic is not None:
            assert not topic.closing, turns
            assert topic is loaded, turns
        await cluster[0].running.context.moves.unload(bundle)
        await cluster.settled()


async def test_a_node_that_was_removed_is_made_again(cluster: MemoryCluster) -> None:
    bundle = await cluster.take(cluster[0], TOPIC)
    client = await cluster[0].connect()
    await client.producer(TOPIC)
    await cluster[1].store.delete(ownership_path(bundle))
    await client.expect(CLOSE_PRODUCER)
    await until(lambda: cluster.owners(bundle) == [cluster[0]])
    assert (await cluster[1].store.get(ownership_path(bundle))) is not None


async def test_a_bundle_that_was_split_meanwhile_is_not_taken(cluster: MemoryCluster) -> None:
    bundle = await cluster.take(cluster[0], TOPIC)
    cluster[0].running.context.ownership.refuse_more()
    parts = await cluster[0].running.context.moves.split(bundle)
    with pytest.raises(BundleNotFound):
        await cluster[1].running.context.ownership.acquire(bundle)
    assert await cluster[1].store.get(ownership_path(bundle)) is None
    assert all(cluster.owners(part) == [cluster[0]] for part in parts)
    with pytest.raises(OwnershipLost):
        await cluster[0].running.context.ownership.acquire(BundleName.parse("public/default/0x00000000_0x00000001"))


async def test_an_unload_whose_session_is_lost_ends(cluster: MemoryCluster) -> None:
    bundle = await cluster.take(cluster[0], TOPIC)
    client = await cluster[0].connect()
    await client.producer(TOPIC)
    unloading = asyncio.create_task(cluster[0].running.context.moves.unload(bundle))
    await asyncio.sleep(0)
    cluster[0].store.expire_session()
    await unloading
    await client.expect(CLOSE_PRODUCER)
    assert cluster.owned(cluster[0], bundle) is None
    assert not cluster[0].service.topics


async def test_a_release_waits_for_the_store(cluster: MemoryCluster) -> None:
    bundle = await cluster.take(cluster[0], TOPIC)
    cluster[0].store.disconnect()
    unloading = asyncio.create_task(cluster[0].running.context.moves.unload(bundle))
    await asyncio.sleep(0.02)
    assert not unloading.done()
    cluster[0].store.reconnect()
    await unloading
    assert await cluster[1].store.get(ownership_path(bundle)) is None


async def test_what_an_earlier_process_left_is_taken_over(cluster: MemoryCluster) -> None:
    bundle = await cluster.bundle_of(TOPIC)
    earlier = cluster[1].store.another_session()
    own = cluster[1].running.context.ownership.own
    for disabled in (False, True):
        await earlier.put(ownership_path(bundle), encode_owner(own, disabled=disabled), ephemeral=True)
        await asyncio.sleep(0.01)
        await cluster.take(cluster[1], TOPIC)
        await earlier.close()
        assert cluster.owners(bundle) == [cluster[1]]
        await cluster[1].running.context.moves.unload(bundle)
        earlier = cluster[1].store.another_session()
    await earlier.close()


def owned(text: str) -> OwnedBundle:
    return OwnedBundle(BundleName.parse(text), 0, object())


def test_owned_bundles_are_found_by_topic() -> None:
    bundles = OwnedBundles()
    low, high = owned("a/b/0x00000000_0x40000000"), owned("a/b/0xc0000000_0xffffffff")
    bundles.add(high)
    bundles.add(low)
    for number in range(50):
        topic = TopicName.parse(f"persistent://a/b/{number}")
        expected = next((each for each in (low, high) if topic in each.name), None)
        assert bundles.of_topic(topic) is expected
    assert bundles.of_topic(TopicName.parse("persistent://a/c/1")) is None
    assert bundles.overlapping(BundleName.parse("a/b/0x30000000_0x50000000")) == [low]
    bundles.remove(owned("a/b/0x00000000_0x40000000"))
    bundles.remove(low)
    bundles.remove(high)
    assert not bundles.by_name


def test_listeners_are_understood() -> None:
    assert parse_listeners("") == {}
    assert parse_listeners("a:pulsar://h:1, a:https://h:2,b:pulsar+ssl://g:3") == {
        "a": AdvertisedListener(broker_service_url="pulsar://h:1", broker_https_url="https://h:2"),
        "b": AdvertisedListener(broker_service_url_tls="pulsar+ssl://g:3"),
    }


@pytest.mark.parametrize(
    "text",
    ["a", "a:", ":pulsar://h:1", "a:ftp://h:1", "a:pulsar://h", "a:pulsar://h:x", "a:pulsar://h:1,a:pulsar://h:2"]
    + ["a:pulsar://h:1,b:pulsar://h:1"],
)
def test_listeners_that_are_none(text: str) -> None:
    with pytest.raises(SettingError, match="advertisedListeners"):
        parse_listeners(text)


def test_owner_nodes_of_apache() -> None:
    addresses = BrokerAddresses(
        broker_id="h:8080",
        service_url="pulsar://h:6650",
        service_url_tls=None,
        web_service_url="http://h:8080",
        web_service_url_tls=None,
        listeners={"x": AdvertisedListener(broker_service_url="pulsar://x:1")},
    )
    assert decode_owner("/p", encode_owner(addresses, disabled=True)) == (addresses, True)
    for value in (b"", b"[]", b"x"):
        with pytest.raises(PeerError, match="/p"):
            decode_owner("/p", value)
