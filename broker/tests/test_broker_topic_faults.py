"""Topics whose loads, unloads and closes meet what nobody expects: clients are told, and nothing is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from magnetar.balance.settings import BalanceSettings
from magnetar.broker.bundles import moves as bundle_moves
from magnetar.broker.resources import Resources
from magnetar.broker.testing.clusters import MemoryCluster, until
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.broker.topics.producer_admission import ProducerAdmission
from magnetar.broker.topics.topic import PersistentTopic
from magnetar.core.errors import PeerError
from magnetar.core.topic_name import TopicName
from magnetar.metadata.store import StoreUnavailable
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

TOPIC = "persistent://public/default/t"
NAME = TopicName.parse(TOPIC)
CLOSE_PRODUCER, CLOSE_CONSUMER = pb.BaseCommand.CLOSE_PRODUCER, pb.BaseCommand.CLOSE_CONSUMER


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with MemoryCluster(2) as running:
        yield running


async def test_policies_that_change_during_a_load_hold_after_it(
    memory_broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = memory_broker.service
    began, go_on = asyncio.Event(), asyncio.Event()

    async def slow_prepare(_: PersistentTopic) -> None:
        began.set()
        await go_on.wait()

    monkeypatch.setattr(PersistentTopic, "prepare", slow_prepare)
    loading = asyncio.create_task(service.topic(NAME, create=True))
    await began.wait()
    await service.resources.documents.update(
        Resources.namespace_path(NAME.namespace_name), lambda policies: {**policies, "message_ttl_in_seconds": 7}
    )
    await service.policies_changed(NAME.namespace_name)
    go_on.set()
    topic = await loading
    assert topic.policies.message_ttl_seconds == 7


@pytest.mark.parametrize("cancelled_again", [False, True])
async def test_a_load_that_is_cancelled_leaves_no_ledger_open(
    memory_broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, *, cancelled_again: bool
) -> None:
    service = memory_broker.service
    prepared: list[PersistentTopic] = []
    preparing, closing, closed = asyncio.Event(), asyncio.Event(), asyncio.Event()
    close = PersistentTopic.close

    async def prepare_for_ever(topic: PersistentTopic) -> None:
        prepared.append(topic)
        preparing.set()
        await asyncio.Event().wait()

    async def close_slowly(topic: PersistentTopic) -> None:
        closing.set()
        await asyncio.sleep(0.001)
        await close(topic)
        closed.set()

    with monkeypatch.context() as patched:
        patched.setattr(PersistentTopic, "prepare", prepare_for_ever)
        patched.setattr(PersistentTopic, "close", close_slowly)
        wanted = asyncio.create_task(service.topic(NAME, create=True))
        await preparing.wait()
        loading = service._loading[str(NAME)]
        loading.cancel()
        await asyncio.wait_for(closing.wait(), 30)
        if cancelled_again:
            loading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wanted
        await asyncio.wait_for(closed.wait(), 30)
    topic = await service.topic(NAME, create=False)
    assert isinstance(topic, PersistentTopic)
    assert topic.ledger is not prepared[0].ledger


async def test_namespaces_of_loads_under_way_are_not_forgotten(
    memory_broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = memory_broker.service

    async def prepare_beside_many_namespaces(_: PersistentTopic) -> None:
        service.policies._forget_unused()

    monkeypatch.setattr(PersistentTopic, "prepare", prepare_beside_many_namespaces)
    topic = await service.topic(NAME, create=True)
    assert service.policies.of(NAME) is topic.policies
    assert topic.policies is not service.policies.defaults


async def test_clients_of_a_topic_that_does_not_close_in_time_are_told(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = await cluster.take(cluster[0], TOPIC)
    client = await cluster[0].connect()
    await client.producer(TOPIC)
    await client.consumer(TOPIC)
    ledger = cluster[0].service.topics[TOPIC].ledger

    async def never(_: ProducerAdmission) -> None:
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(ProducerAdmission, "drain", never)
        moves = cluster[0].running.context.moves
        patched.setattr(moves, "_balance", BalanceSettings(unloading_timeout_ms=50))
        await moves.unload(bundle)
    await client.expect(CLOSE_PRODUCER)
    await client.expect(CLOSE_CONSUMER)
    await cluster.take(cluster[0], TOPIC)
    topic = await cluster[0].service.topic(NAME, create=False)
    assert isinstance(topic, PersistentTopic)
    assert topic.ledger is not ledger


@pytest.mark.parametrize("where", ["close", "release"])
async def test_an_unload_ends_whatever_goes_wrong(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    bundle = await cluster.take(cluster[0], TOPIC)
    client = await cluster[0].connect()
    await client.producer(TOPIC)
    await client.consumer(TOPIC)
    context = cluster[0].running.context
    failures = iter([RuntimeError("nobody thought of this")] if where == "close" else [PeerError("refused")])
    target: Any = PersistentTopic if where == "close" else type(context.ownership)
    method = getattr(target, where)

    async def fail_once(*arguments: Any) -> None:
        for failure in failures:
            raise failure
        await method(*arguments)

    monkeypatch.setattr(target, where, fail_once)
    await context.moves.unload(bundle)
    await client.expect(CLOSE_PRODUCER)
    await client.expect(CLOSE_CONSUMER)
    assert cluster.owned(cluster[0], bundle) is None
    assert not cluster[0].service.topics
    await cluster.take(cluster[1], TOPIC)


async def test_an_unload_that_meets_a_split_which_fails_unloads_the_whole(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = await cluster.take(cluster[0], TOPIC)
    context = cluster[0].running.context

    async def unreachable(*_: object) -> None:
        raise StoreUnavailable("not now")

    with monkeypatch.context() as patched:
        patched.setattr(context.ownership, "claim_parts", unreachable)
        splitting = asyncio.create_task(context.moves.split(bundle))
        await asyncio.sleep(0)
        await context.moves.unload(bundle)
        with pytest.raises(StoreUnavailable):
            await splitting
    assert cluster.owned(cluster[0], bundle) is None


async def test_one_topic_that_is_slow_to_let_go_of_holds_up_no_other(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{TOPIC}-{number}" for number in range(3)]
    client = await cluster[0].connect()
    for number, name in enumerate(names):
        await cluster.take(cluster[0], name)
        await client.producer(name, producer_id=number)
    slow = cluster[0].service.topics[names[0]]
    go_on = asyncio.Event()
    abandon = PersistentTopic.abandon

    async def abandon_slowly(topic: PersistentTopic) -> None:
        if topic is slow:
            await go_on.wait()
        await abandon(topic)

    monkeypatch.setattr(PersistentTopic, "abandon", abandon_slowly)
    abandoning = asyncio.create_task(cluster[0].service.abandon(list(cluster[0].service.topics.values())))
    closed = {(await client.expect(CLOSE_PRODUCER)).body.producer_id for _ in names[1:]}
    assert closed == {1, 2}
    assert not abandoning.done()
    go_on.set()
    await abandoning
    await until(lambda: not cluster[0].service.topics)


async def test_a_broker_stops_to_the_end_whatever_the_store_refuses(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.take(cluster[0], TOPIC)
    client = await cluster[0].connect()
    await client.producer(TOPIC)
    await client.publish(3)
    stopping = cluster.brokers.pop(0)
    settings = stopping.service.settings
    soon = replace(settings, load=replace(settings.load, unload_after_stop_ms_max=100))
    monkeypatch.setattr(stopping.service, "settings", soon)

    async def refuse(*_: object) -> None:
        raise PeerError("the store refuses")

    monkeypatch.setattr(stopping.store, "delete", refuse)
    monkeypatch.setattr(bundle_moves, "RETRY_DELAY_SECONDS", 0.001)
    topic = stopping.service.topics[TOPIC]
    await stopping.stop()
    assert topic.closing
    assert not stopping.service.topics
    await stopping.store.close()
    await until(lambda: len(cluster[0].running.context.load.brokers()) == 1)
    await cluster.take(cluster[0], TOPIC)


async def test_brokers_that_make_a_partitioned_topic_at_once_agree(cluster: MemoryCluster) -> None:
    override = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 4}
    await cluster[0].service.resources.documents.update(
        Resources.namespace_path(NAME.namespace_name),
        lambda policies: {**policies, "autoTopicCreationOverride": override},
    )
    for broker in cluster.brokers:
        await broker.service.policies_changed(NAME.namespace_name)
    for number in range(5):
        name = TopicName.parse(f"{TOPIC}-{number}")
        counts = await asyncio.gather(*(broker.service.partitions(name, create=True) for broker in cluster.brokers))
        assert counts == [4, 4]
