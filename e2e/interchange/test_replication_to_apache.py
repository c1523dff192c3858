"""Our brokers replicate to a stock Apache broker: source positions in receipts, deduplication, order."""

from __future__ import annotations

import asyncio
import json
import urllib.request

import pulsar
import pytest
from magnetar.broker.resources import Resources
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.policies import PolicySettings
from magnetar.broker.testing.clusters import MemoryCluster, until
from magnetar.broker.testing.sessions import MemoryBroker, batch_message, message
from magnetar.broker.topics.topic import PersistentTopic
from magnetar.core.topic_name import TopicName
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from e2e.interchange import brokers
from e2e.interchange.cluster import Cluster
from e2e.interchange.parts import BrokerPart

TOPIC = "persistent://public/default/from-ours"
COUNT = 500
REMOTE = "apache"


async def publish(at: MemoryBroker, first: int, producer_name: str = "p") -> None:
    client = await at.connect()
    await client.request(pb.BaseCommand.LOOKUP, topic=TOPIC, authoritative=False)
    await client.request(pb.BaseCommand.PRODUCER, topic=TOPIC, producer_id=1, producer_name=producer_name)
    for number in range(first, first + COUNT):
        text = b"%d" % number
        entry = (
            batch_message(text, text + b"b", producer_name=producer_name, sequence_id=number)
            if number % 10 == 0
            else message(text, producer_name=producer_name, sequence_id=number)
        )
        client.send(pb.BaseCommand.SEND, entry, producer_id=1, sequence_id=number)
    for _ in range(COUNT):
        await client.expect(pb.BaseCommand.SEND_RECEIPT)
    await client.request(pb.BaseCommand.CLOSE_PRODUCER, producer_id=1)


async def caught_up(at: MemoryBroker) -> PersistentTopic:
    topic = await at.running.context.service.topic(TopicName.parse(TOPIC), create=True)
    assert isinstance(topic, PersistentTopic)
    await until(lambda: topic.replicators and topic.replicators.running and not topic.replicators.behind)
    return topic


async def replicate_with_a_cut(service_url: str) -> None:
    """Two thirds before and during a reload of the topic, the rest after it: all is sent, some of it perhaps twice."""
    settings = BrokerSettings(cluster_name="ours", policies=PolicySettings(replication_start_at="earliest"))
    async with MemoryCluster(1, settings) as ours:
        service = ours[0].running.context.service
        documents = service.resources.documents
        await documents.create(Resources.cluster_path(REMOTE), {"brokerServiceUrl": service_url})
        name = TopicName.parse(TOPIC)
        await documents.update(
            Resources.namespace_path(name.namespace_name),
            lambda document: {**document, "replication_clusters": ["ours", REMOTE]},
        )
        await service.policies_changed(name.namespace_name)
        await publish(ours[0], 0)
        await publish(ours[0], COUNT)
        await service.unload(name)
        await publish(ours[0], 2 * COUNT)
        topic = await caught_up(ours[0])
        assert topic.replicators is not None
        replicator = topic.replicators.running[REMOTE]
        assert replicator.receipts_by_position


def enable_deduplication(broker: BrokerPart) -> None:
    request = urllib.request.Request(
        f"{broker.admin_url}/admin/v2/namespaces/public/default/deduplication",
        data=json.dumps(True).encode(),
        headers={"Content-Type": "application/json"},
        method="POST",
    )
    with urllib.request.urlopen(request, timeout=30):
        pass


def read_payloads(service_url: str, count: int) -> list[str]:
    client = pulsar.Client(service_url)
    try:
        reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
        payloads = [reader.read_next(30_000).data().decode() for _ in range(count)]
        assert not reader.has_message_available()
        return payloads
    finally:
        client.close()


@pytest.mark.timeout(300)
def test_apache_stores_each_message_of_ours_once_and_in_order(cluster: Cluster) -> None:
    cluster.initialize_pulsar()
    cluster.start(cluster.our_bookie("bookie0"))
    broker = cluster.apache_broker((1, 1, 1))
    brokers.start_with_namespace(cluster, broker)
    enable_deduplication(broker)
    asyncio.run(replicate_with_a_cut(broker.service_url))
    wanted: list[str] = []
    for number in range(3 * COUNT):
        wanted += [str(number), f"{number}b"] if number % 10 == 0 else [str(number)]
    assert read_payloads(broker.service_url, len(wanted)) == wanted
