"""Unloads, transfers and splits, with clients connected and loads under way."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from magnetar.balance.split_algorithms import BadSplit
from magnetar.broker.bundles.close_notices import CloseNotices
from magnetar.broker.bundles.moves import BundleNotOwned, UnknownDestination
from magnetar.broker.bundles.ownership import OwnershipLost, ownership_path
from magnetar.broker.peers.addresses import BrokerAddresses
from magnetar.broker.states import BundleState
from magnetar.broker.testing.clusters import MemoryCluster, until
from magnetar.broker.testing.sessions import MemoryBroker, ProtocolClient
from magnetar.core.bundle import BundleName
from magnetar.core.topic_name import TopicName
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.metadata.store import MUST_NOT_EXIST, StoreUnavailable
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

TOPIC = "persistent://public/default/t"
CLOSE_PRODUCER, CLOSE_CONSUMER = pb.BaseCommand.CLOSE_PRODUCER, pb.BaseCommand.CLOSE_CONSUMER


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with MemoryCluster(2) as running:
        yield running


async def with_clients(cluster: MemoryCluster, broker: MemoryBroker) -> tuple[BundleName, ProtocolClient]:
    bundle = await cluster.take(broker, TOPIC)
    client = await broker.connect()
    await client.producer(TOPIC)
    await client.consumer(TOPIC)
    return bundle, client


async def topics_in(cluster: MemoryCluster, bundle: BundleName, count: int) -> list[str]:
    """Names of so many topics of a bundle."""
    names = (f"{TOPIC}-{number}" for number in range(100 * count))
    return [name for name in names if TopicName.parse(name) in bundle][:count]


async def test_an_unload_tells_clients_when_the_next_broker_can_be_asked(cluster: MemoryCluster) -> None:
    bundle, client = await with_clients(cluster, cluster[0])
    await client.publish(3)
    gone: list[bool] = []
    cluster[0].store.watch(lambda change: gone.append(change.path == ownership_path(bundle)))
    await cluster[0].running.context.moves.unload(bundle)
    closed = (await client.expect(CLOSE_PRODUCER)).body
    assert any(gone), "the node went first"
    assert (closed.producer_id, closed.assignedBrokerServiceUrl) == (1, "")
    assert (await client.expect(CLOSE_CONSUMER)).body.consumer_id == 1
    assert not cluster.owners(bundle)
    assert not cluster[0].service.topics
    await cluster.take(cluster[1], TOPIC)
    other = await cluster[1].connect()
    await other.consumer(TOPIC)
    assert [each.payload[-2:] for each in await other.messages(3)] == [b"m0", b"m1", b"m2"]


async def test_acknowledgements_move_along(cluster: MemoryCluster) -> None:
    bundle, client = await with_clients(cluster, cluster[0])
    ids = await client.publish(3)
    await client.messages(3)
    client.send(pb.BaseCommand.ACK, consumer_id=1, ack_type=0, message_id=[ids[0], ids[1]])
    await client.round_trip()
    await cluster[0].running.context.moves.unload(bundle)
    await cluster.take(cluster[1], TOPIC)
    other = await cluster[1].connect()
    await other.consumer(TOPIC)
    assert [each.payload[-2:] for each in await other.messages(1)] == [b"m2"]


async def test_a_destination_has_the_bundle_before_clients_hear_of_it(cluster: MemoryCluster) -> None:
    bundle, client = await with_clients(cluster, cluster[0])
    there = cluster[1].running.settings
    await cluster[0].running.context.moves.unload(bundle, destination=there.broker_id)
    for command in (CLOSE_PRODUCER, CLOSE_CONSUMER):
        assert (await client.expect(command)).body.assignedBrokerServiceUrl == there.service_url
    assert cluster.owners(bundle) == [cluster[1]]
    await until(lambda: TOPIC in cluster[1].service.topics)


async def test_clients_are_not_sent_to_a_destination_that_another_was_quicker_than(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, client = await with_clients(cluster, cluster[0])
    moves = cluster[0].running.context.moves

    async def somebody_else(*_: object, **__: object) -> str:
        return "pulsar://third:6650"

    monkeypatch.setattr(moves, "_ask", somebody_else)
    await moves.unload(bundle, destination=cluster[1].running.settings.broker_id)
    for command in (CLOSE_PRODUCER, CLOSE_CONSUMER):
        assert (await client.expect(command)).body.assignedBrokerServiceUrl == ""


async def test_clients_hear_of_an_unload_that_fails_too(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their topics are closed: they would wait for ever for what nobody does."""
    bundle, client = await with_clients(cluster, cluster[0])
    moves = cluster[0].running.context.moves

    async def not_now(_: BundleName) -> None:
        raise StoreUnavailable("no answer")

    monkeypatch.setattr(moves, "_release", not_now)
    with pytest.raises(StoreUnavailable):
        await moves.unload(bundle)
    assert (await client.expect(CLOSE_PRODUCER)).body.assignedBrokerServiceUrl == ""


def test_a_close_notice_that_comes_late_is_sent_at_once() -> None:
    close_notices = CloseNotices()
    told: list[str] = []
    close_notices.add(lambda url, url_tls: told.append("early"))
    assert not told
    close_notices.send()
    close_notices.add(lambda url, url_tls: told.append("late"))
    close_notices.send()
    assert told == ["early", "late"]


async def test_an_empty_bundle_goes_to_its_destination_too(cluster: MemoryCluster) -> None:
    bundle = await cluster.take(cluster[0], TOPIC)
    await cluster[0].running.context.moves.unload(bundle, destination=cluster[1].running.settings.broker_id)
    assert cluster.owners(bundle) == [cluster[1]]
    assert not cluster[1].service.topics


async def test_who_may_not_be_asked(cluster: MemoryCluster) -> None:
    bundle = await cluster.take(cluster[0], TOPIC)
    moves = cluster[0].running.context.moves
    with pytest.raises(UnknownDestination):
        await moves.unload(bundle, destination="gone:1")
    with pytest.raises(BundleNotOwned, match="not currently owned"):
        await cluster[1].running.context.moves.unload(bundle)
    with pytest.raises(BundleNotOwned, match="not currently owned"):
        await cluster[1].running.context.moves.split(bundle)
    with pytest.raises(BadSplit):
        await moves.split(bundle, "odd")
    await moves.unload(bundle, destination=cluster[0].running.settings.broker_id)
    assert cluster.owners(bundle) == [cluster[0]], "it stays where it is"


async def test_unloads_at_once_are_one(cluster: MemoryCluster) -> None:
    bundle, client = await with_clients(cluster, cluster[0])
    moves = cluster[0].running.context.moves
    first = asyncio.create_task(moves.unload(bundle))
    await asyncio.sleep(0)
    owned = cluster.owned(cluster[0], bundle)
    assert owned is not None
    assert owned.state is BundleState.UNLOADING
    await asyncio.gather(first, moves.unload(bundle), moves.unload(bundle))
    await client.expect(CLOSE_PRODUCER)
    assert CLOSE_PRODUCER not in [each.kind for each in await client.round_trip()]


async def test_other_brokers_see_that_it_is_being_unloaded(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, _ = await with_clients(cluster, cluster[0])
    goes_on = asyncio.Event()
    close = ManagedLedger.close

    async def slow_close(ledger: ManagedLedger) -> None:
        await goes_on.wait()
        await close(ledger)

    monkeypatch.setattr(ManagedLedger, "close", slow_close)
    unloading = asyncio.create_task(cluster[0].running.context.moves.unload(bundle))

    async def disabled() -> bool:
        node = await cluster[1].store.get(ownership_path(bundle))
        return bool(json.loads(node.value)["disabled"])

    while not await disabled():
        await asyncio.sleep(0.005)
    for broker in cluster.brokers:
        answer = (await (await broker.connect()).request(pb.BaseCommand.LOOKUP, topic=TOPIC)).body
        assert answer.error == pb.ServiceNotReady
    goes_on.set()
    await unloading
    assert await cluster[1].store.get(ownership_path(bundle)) is None


async def test_a_load_that_meets_an_unload_leaves_nothing_behind(cluster: MemoryCluster) -> None:
    bundle = await cluster.take(cluster[0], TOPIC)
    for turns in range(0, 40, 3):
        loading = [
            asyncio.create_task(cluster[0].service.topic(TopicName.parse(name), create=True))
            for name in await topics_in(cluster, bundle, 5)
        ]
        for _ in range(turns):
            await asyncio.sleep(0)
        await cluster[0].running.context.moves.unload(bundle)
        results = await asyncio.gather(*loading, return_exceptions=True)
        refused = [result for result in results if isinstance(result, BaseException)]
        assert all(isinstance(error, PulsarError) and error.code == ServerError.SERVICE_NOT_READY for error in refused)
        assert not cluster[0].service.topics, turns
        assert not cluster[0].service._loading
        assert not cluster.owners(bundle)
        await cluster.take(cluster[0], TOPIC)


async def test_a_split_is_not_noticed_by_clients(cluster: MemoryCluster) -> None:
    bundle = await cluster.take(cluster[0], TOPIC)
    names = await topics_in(cluster, bundle, 20)
    client = await cluster[0].connect()
    for number, name in enumerate(names):
        await client.producer(name, producer_id=number)
    parts = await cluster[0].running.context.moves.split(bundle)
    assert [part.range.low for part in parts] == [bundle.range.low, (bundle.range.low + bundle.range.high) // 2]
    assert parts[-1].range.high == bundle.range.high
    for number in range(len(names)):
        await client.publish(1, producer_id=number)
    assert await client.round_trip() == []
    ownership = cluster[0].running.context.ownership.owned()
    assert bundle not in ownership
    assert sorted(name for part in parts for name in ownership[part].topics) == sorted(names)
    assert all(TopicName.parse(name) in part for part in parts for name in ownership[part].topics)
    for broker in cluster.brokers:
        assert parts[0] in await broker.running.context.bundles.read_again(bundle.namespace)
        assert {await cluster.lookup(broker, name) for name in names} == {cluster[0]}
    node = await cluster[0].store.get("/admin/local-policies/public/default")
    policies = await cluster[0].store.get("/admin/policies/public/default")
    assert json.loads(node.value)["bundles"] == json.loads(policies.value)["bundles"]
    assert json.loads(node.value)["bundles"]["numBundles"] == 17
    assert await cluster[1].store.get(ownership_path(bundle)) is None


async def test_a_split_keeps_the_rest_of_the_local_policies(cluster: MemoryCluster) -> None:
    bundle = await cluster.take(cluster[0], TOPIC)
    documents = cluster[0].service.resources.local_documents
    path = "/admin/local-policies/public/default"
    await documents.update(path, lambda it: {**it, "namespaceAntiAffinityGroup": "g"})
    await cluster[0].running.context.moves.split(bundle)
    assert (await documents.get(path))["namespaceAntiAffinityGroup"] == "g"


async def test_splits_of_neighbours_at_once_both_happen(cluster: MemoryCluster) -> None:
    first = await cluster.take(cluster[0], TOPIC)
    other = next(name for name in (f"{TOPIC}-{n}" for n in range(100)) if TopicName.parse(name) not in first)
    second = await cluster.take(cluster[1], other)
    await asyncio.gather(cluster[0].running.context.moves.split(first), cluster[1].running.context.moves.split(second))
    current = await cluster[0].running.context.bundles.read_again(first.namespace)
    assert len(current.bundles) == 18
    assert first not in current
    assert second not in current


async def test_split_algorithms(cluster: MemoryCluster) -> None:
    bundle = await cluster.take(cluster[0], TOPIC)
    moves = cluster[0].running.context.moves
    assert await moves.split(bundle, "topic_count_equally_divide") == (bundle,), "without topics there is nothing to do"
    names = await topics_in(cluster, bundle, 9)
    for name in names:
        await cluster[0].service.topic(TopicName.parse(name), create=True)
    low, high = await moves.split(bundle, "topic_count_equally_divide")
    counts = [sum(TopicName.parse(name) in part for name in names) for part in (low, high)]
    assert sorted(counts) == [4, 5]
    middle = low.range.low + 5
    parts = await moves.split(low, "specified_positions_divide", boundaries=[middle])
    assert [part.range.high for part in parts] == [middle, low.range.high]


async def test_a_split_may_let_the_parts_go(cluster: MemoryCluster) -> None:
    bundle, client = await with_clients(cluster, cluster[0])
    parts = await cluster[0].running.context.moves.split(bundle, unload=True)
    await client.expect(CLOSE_PRODUCER)
    await until(lambda: not any(cluster.owners(part) for part in parts))


async def test_loads_go_on_while_their_bundle_is_split(cluster: MemoryCluster) -> None:
    bundle = await cluster.take(cluster[0], TOPIC)
    names = await topics_in(cluster, bundle, 30)
    loading = []
    splitting = None
    for number, name in enumerate(names):
        loading.append(asyncio.create_task(cluster[0].service.topic(TopicName.parse(name), create=True)))
        if number == 10:
            splitting = asyncio.create_task(cluster[0].running.context.moves.split(bundle))
        await asyncio.sleep(0)
    assert splitting is not None
    parts = await splitting
    topics = await asyncio.gather(*loading)
    owned = cluster[0].running.context.ownership.owned()
    assert sorted(str(topic.name) for topic in topics) == sorted(name for part in parts for name in owned[part].topics)
    for part in parts:
        assert not owned[part].loading
        await cluster[0].running.context.moves.unload(part)
    assert not cluster[0].service.topics


async def test_an_unload_during_a_split_takes_the_parts(cluster: MemoryCluster) -> None:
    bundle, _ = await with_clients(cluster, cluster[0])
    moves = cluster[0].running.context.moves
    splitting = asyncio.create_task(moves.split(bundle))
    await asyncio.sleep(0)
    await moves.unload(bundle)
    assert not any(cluster.owners(part) for part in await splitting)
    assert not cluster[0].service.topics


async def test_a_split_while_a_destination_is_asked_takes_the_parts_there(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts of a bundle that was being unloaded stayed so for ever, and nobody served their topics."""
    bundle, _ = await with_clients(cluster, cluster[0])
    moves, service = cluster[0].running.context.moves, cluster[0].service
    require_answer, close_topic = moves._require_answer, service.close_topic
    splits: list[asyncio.Task[tuple[BundleName, ...]]] = []

    async def asked(broker: BrokerAddresses) -> None:
        await require_answer(broker)
        if not splits:
            splits.append(asyncio.ensure_future(moves.split(bundle)))
            await asyncio.sleep(0)

    async def close_slowly(*arguments: Any) -> None:
        await asyncio.gather(*splits)
        await close_topic(*arguments)

    monkeypatch.setattr(moves, "_require_answer", asked)
    monkeypatch.setattr(service, "close_topic", close_slowly)
    await moves.unload(bundle, destination=cluster[1].running.settings.broker_id)
    (parts,) = await asyncio.gather(*splits)
    assert len(parts) == 2
    for part in parts:
        assert cluster.owners(part) == [cluster[1]]


async def test_an_unload_that_meets_the_end_of_a_split(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the very turn of the loop in which the split has ended and is not forgotten yet."""
    bundle, _ = await with_clients(cluster, cluster[0])
    moves = cluster[0].running.context.moves
    comers: list[asyncio.Task[None]] = []

    async def nothing_to_cut(*_: object) -> tuple[BundleName, ...]:
        comers.append(asyncio.ensure_future(moves.unload(bundle)))
        return (bundle,)

    monkeypatch.setattr(moves, "_split", nothing_to_cut)
    assert await moves.split(bundle) == (bundle,)
    await asyncio.gather(*comers)
    assert not cluster.owners(bundle)


async def test_a_split_into_what_another_owns_is_given_up(cluster: MemoryCluster) -> None:
    bundle = await cluster.take(cluster[0], TOPIC)
    parts = bundle.cut([(bundle.range.low + bundle.range.high) // 2])
    await cluster[1].store.put(
        ownership_path(parts[1]), b'{"nativeUrl":"pulsar://x:1"}', MUST_NOT_EXIST, ephemeral=True
    )
    with pytest.raises(OwnershipLost):
        await cluster[0].running.context.moves.split(bundle)
    assert await cluster[0].store.get(ownership_path(parts[0])) is None
    assert cluster.owners(bundle) == [cluster[0]]
    assert bundle in await cluster[0].running.context.bundles.read_again(bundle.namespace)


async def test_a_stopping_broker_hands_everything_over(cluster: MemoryCluster) -> None:
    bundle, client = await with_clients(cluster, cluster[0])
    await client.publish(2)
    stopping = cluster[0]
    await stopping.running.close()
    closed = (await client.expect(CLOSE_PRODUCER)).body
    assert (closed.producer_id, closed.assignedBrokerServiceUrl) == (1, cluster[1].running.settings.service_url)
    assert cluster.owners(bundle) == [cluster[1]]
    cluster.brokers.remove(stopping)
    assert await cluster.lookup(cluster[0], TOPIC) is cluster[0]
    other = await cluster[0].connect()
    await other.consumer(TOPIC)
    assert len(await other.messages(2)) == 2
    assert cluster.owners(bundle) == [cluster[0]]
    for each in stopping._clients:
        await each.close()
    assert stopping.ledgers is not None
    await stopping.ledgers.close()
    await stopping.store.close()


@pytest.mark.slow
async def test_a_bundle_of_many_topics_does_not_hold_up_the_loop(cluster: MemoryCluster) -> None:
    bundle = await cluster.take(cluster[0], TOPIC)
    names = await topics_in(cluster, bundle, 2_000)
    service = cluster[0].service
    for start in range(0, len(names), 200):
        await asyncio.gather(
            *(service.topic(TopicName.parse(name), create=True) for name in names[start : start + 200])
        )
    unloading = asyncio.create_task(cluster[0].running.context.moves.unload(bundle))
    longest_seconds = 0.0
    # What other tests have left for the collector is not the unload's.
    gc.collect()
    gc.disable()
    try:
        while not unloading.done():
            # The processor's time, as other programs have a share of the clock's.
            began_seconds = time.thread_time()
            await asyncio.sleep(0)
            longest_seconds = max(longest_seconds, time.thread_time() - began_seconds)
    finally:
        gc.enable()
    await unloading
    assert not service.topics
    assert longest_seconds < 0.1


async def test_an_unload_waits_for_a_deletion(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = await cluster.take(cluster[0], TOPIC)
    service = cluster[0].service
    name = TopicName.parse(TOPIC)
    await service.topic(name, create=True)
    goes_on = asyncio.Event()
    delete = ManagedLedger.delete

    async def slow_delete(ledger: ManagedLedger) -> None:
        await goes_on.wait()
        await delete(ledger)

    monkeypatch.setattr(ManagedLedger, "delete", slow_delete)
    deleting = asyncio.create_task(service.delete(name, force=True))
    await asyncio.sleep(0)
    unloading = asyncio.create_task(cluster[0].running.context.moves.unload(bundle))
    await asyncio.sleep(0.02)
    assert not unloading.done()
    assert await cluster[1].store.get(ownership_path(bundle)) is not None
    goes_on.set()
    await asyncio.gather(deleting, unloading)
    assert not await service.exists(name)


async def test_a_destination_that_does_not_answer_gets_nothing(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, client = await with_clients(cluster, cluster[0])
    context = cluster[0].running.context
    gone = replace(context.ownership.own, broker_id="gone:1", web_service_url="http://127.0.0.1:1")
    monkeypatch.setattr(context.load, "brokers", lambda: {"gone:1": gone})
    with pytest.raises(UnknownDestination, match="does not answer"):
        await context.moves.unload(bundle, destination="gone:1")
    assert cluster.owners(bundle) == [cluster[0]]
    assert await client.round_trip() == []
