"""Two clusters with a configuration store each, and one topic in both."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, TypeAlias

from magnetar.broker.resources import Resources
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.policies import PolicySettings
from magnetar.broker.settings.transactions import TransactionSettings
from magnetar.broker.testing.clusters import MemoryCluster, until
from magnetar.broker.testing.sessions import MemoryBroker, SharedParts, message
from magnetar.broker.topics.topic import PersistentTopic
from magnetar.core.clock import Clock
from magnetar.core.topic_name import TopicName
from magnetar.ledger.testing import MemoryBookies
from magnetar.metadata.memory import MemoryMetadataStore, MemoryTree
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb
from magnetar.wire.pulsar.metadata import full_metadata

TOPIC: Final = "persistent://public/default/t"

Pair: TypeAlias = tuple[MemoryCluster, MemoryCluster]


@asynccontextmanager
async def two_clusters(
    start_at: str = "earliest", *, transactions: bool = False, clock: Clock | None = None, **settings: Any
) -> AsyncIterator[Pair]:
    """`east` and `west`, with a broker each, which go by the clock; `settings` are those of policies."""
    policies, of_transactions = (
        PolicySettings(replication_start_at=start_at, **settings),
        TransactionSettings(enabled=transactions),
    )
    east, west = (
        MemoryCluster(0, BrokerSettings(cluster_name=name, policies=policies, transactions=of_transactions))
        for name in ("east", "west")
    )
    async with east, west:
        for cluster in (east, west):
            await cluster.add(clock=clock)
            await cluster.settled()
        yield east, west


@asynccontextmanager
async def one_instance() -> AsyncIterator[tuple[MemoryBroker, MemoryBroker]]:
    """Brokers of the clusters `east` and `west`, which share a configuration store and nothing else. `public/default`
    is in `east`, and `west` is let in."""
    tree = MemoryTree()
    policies = PolicySettings(replication_start_at="earliest")
    async with AsyncExitStack() as stack:
        brokers: list[MemoryBroker] = []
        for name in ("east", "west"):
            shared = SharedParts(MemoryMetadataStore(), MemoryBookies(), MemoryMetadataStore(tree))
            broker = MemoryBroker(BrokerSettings(cluster_name=name, policies=policies), shared=shared)
            brokers.append(await stack.enter_async_context(broker))
        east, west = brokers
        resources = east.service.resources
        for broker in brokers:
            running = broker.running.settings
            await resources.documents.update(
                resources.cluster_path(running.cluster_name),
                lambda document, url=running.service_url: {**document, "brokerServiceUrl": url},
            )
        await resources.documents.update(
            resources.tenant_path("public"), lambda document: {**document, "allowedClusters": ["east", "west"]}
        )
        await share(east, replication_clusters=["east"], allowed_clusters=["east", "west"])
        yield east, west


async def share(at: MemoryBroker, **members: Any) -> None:
    """Change the policies of the namespace in the store that the clusters share; brokers hear of it by themselves."""
    resources = at.service.resources
    path = resources.namespace_path(TopicName.parse(TOPIC).namespace_name)
    await resources.documents.update(path, lambda document: {**document, **members})


async def name_cluster(at: MemoryBroker, name: str, url: str) -> None:
    resources = Resources(at.store)
    path = resources.cluster_path(name)
    if await resources.documents.get(path) is None:
        await resources.documents.create(path, {"brokerServiceUrl": url})
    else:
        await resources.documents.update(path, lambda document: {**document, "brokerServiceUrl": url})


async def replicate(at: MemoryBroker, *clusters: str) -> None:
    service = at.running.context.service
    path = service.resources.namespace_path("public/default")  # type: ignore[arg-type]
    await service.resources.documents.update(
        path, lambda document: {**document, "replication_clusters": list(clusters)}
    )
    await service.policies_changed(TopicName.parse(TOPIC).namespace_name)


async def topic_of(at: MemoryBroker) -> PersistentTopic:
    topic = await at.running.context.service.topic(TopicName.parse(TOPIC), create=True)
    assert isinstance(topic, PersistentTopic)
    return topic


async def publish(at: MemoryBroker, first: int, count: int, name: str = "p", **fields: Any) -> None:
    client = await at.connect()
    await client.request(pb.BaseCommand.LOOKUP, topic=TOPIC, authoritative=False)
    await client.request(pb.BaseCommand.PRODUCER, topic=TOPIC, producer_id=1, producer_name=name)
    for number in range(first, first + count):
        payload = message(b"%d" % number, producer_name=name, sequence_id=number, **fields)
        client.send(pb.BaseCommand.SEND, payload, producer_id=1, sequence_id=number)
    for _ in range(count):
        await client.expect(pb.BaseCommand.SEND_RECEIPT)
    await client.request(pb.BaseCommand.CLOSE_PRODUCER, producer_id=1)


async def stored(at: MemoryBroker) -> list[Any]:
    """The metadata of all entries of the topic."""
    topic = await topic_of(at)
    cursor = topic.ledger.new_non_durable_cursor("look", (-1, -1))
    entries: list[Any] = []
    while read := await cursor.read(1000, 1 << 30):
        entries += [full_metadata(entry.data) for entry in read]
    await cursor.close()
    return entries


def numbers(entries: list[Any], name: str = "p") -> list[int]:
    return [entry.sequence_id for entry in entries if entry.producer_name == name]


async def caught_up(at: MemoryBroker) -> None:
    topic = await topic_of(at)
    await until(lambda: topic.replicators is not None and topic.replicators.running and not topic.replicators.behind)


@asynccontextmanager
async def linked_clusters(**settings: Any) -> AsyncIterator[Pair]:
    """The topic is replicated both ways. `settings` are those of `two_clusters`."""
    async with two_clusters(**settings) as (east, west):
        await name_cluster(east[0], "west", west[0].running.settings.service_url)
        await name_cluster(west[0], "east", east[0].running.settings.service_url)
        for cluster in (east, west):
            await topic_of(cluster[0])
            await replicate(cluster[0], "east", "west")
        yield east, west
