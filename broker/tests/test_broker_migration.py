"""A cluster or a namespace that moves to another cluster: who is sent there, when, and what stays."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest
from magnetar.broker.admin.topics.stats import StatsOptions, topic_stats
from magnetar.broker.admin.topics.stats_merge import merge_stats
from magnetar.broker.migrated_topics import MIGRATED_PROPERTY
from magnetar.broker.replication.states import Reason, ReplicatorState
from magnetar.broker.resources import Resources
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.policies import PolicySettings
from magnetar.broker.settings.transactions import TransactionSettings
from magnetar.broker.testing.clusters import MemoryCluster, until
from magnetar.broker.testing.sessions import MemoryBroker, ProtocolClient
from magnetar.client.client import PulsarClient
from magnetar.client.consumer import ConsumerOptions
from magnetar.client.message import OutgoingMessage
from magnetar.core.clock import SystemClock
from magnetar.core.errors import PeerError
from magnetar.core.ids import LATEST
from magnetar.core.topic_name import NamespaceName, TopicName
from magnetar.managed.compaction import COMPACTION_CURSOR
from magnetar.wire.pulsar.errors import PulsarError
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from broker.tests.test_broker_transaction_buffer import end, send
from broker.tests.two_clusters import (
    TOPIC,
    caught_up,
    linked_clusters,
    name_cluster,
    numbers,
    publish,
    replicate,
    stored,
    topic_of,
    two_clusters,
)

NAMESPACE: Final = NamespaceName("public", "default")
EARLIEST: Final = pb.CommandSubscribe.Earliest
CHECKED: Final = {"migration_check_seconds": 3_600}


@contextlib.asynccontextmanager
async def moving(**settings: Any) -> AsyncIterator[tuple[MemoryBroker, MemoryBroker]]:
    """A blue and a green broker, of a cluster each; blue's check runs when a test says so."""
    async with two_clusters(**{**CHECKED, **settings}) as (blue, green):
        yield blue[0], green[0]


async def move(blue: MemoryBroker, green: MemoryBroker, *, cluster: bool = True, namespace: bool = False) -> None:
    """Say that blue's cluster, or its namespace, has moved to green."""
    resources = Resources(blue.store)
    urls = {"serviceUrl": green.admin_url, "brokerServiceUrl": url_of(green)}
    path = Resources.cluster_policies_path("east")
    await resources.documents.put(path, {"migrated": cluster, "migratedClusterUrl": urls})
    if namespace:
        local = Resources.local_policies_path(NAMESPACE)
        await resources.local_documents.update(local, lambda document: {**document, "migrated": True})
        await blue.service.policies_changed(NAMESPACE)


def url_of(broker: MemoryBroker) -> str:
    return broker.running.settings.service_url


async def check(broker: MemoryBroker) -> None:
    await broker.service.upkeep.check_now("migration")


async def attach(broker: MemoryBroker, topic: str = TOPIC, version: int = 21) -> ProtocolClient:
    client = await broker.connect(protocol_version=version)
    await client.request(pb.BaseCommand.LOOKUP, topic=topic, authoritative=False)
    return client


def ask_to_publish(client: ProtocolClient, topic: str = TOPIC, producer_id: int = 1) -> None:
    client.start(pb.BaseCommand.PRODUCER, topic=topic, producer_id=producer_id, producer_name=f"p{producer_id}")


async def sent_away(client: ProtocolClient, kind: pb.CommandTopicMigrated.ResourceType) -> Any:
    """What the client is told, and that its producer or consumer is closed after that."""
    told: Any = (await client.expect(pb.BaseCommand.TOPIC_MIGRATED)).body
    assert told.resource_type == kind
    if kind == pb.CommandTopicMigrated.Producer:
        closed: Any = (await client.expect(pb.BaseCommand.CLOSE_PRODUCER)).body
        assert closed.producer_id == told.resource_id
    else:
        closed = (await client.expect(pb.BaseCommand.CLOSE_CONSUMER)).body
        assert closed.consumer_id == told.resource_id
    return told


async def refused(client: ProtocolClient, kind: pb.CommandTopicMigrated.ResourceType) -> Any:
    """What the client is told that has asked for a producer or a consumer, and that it is to try again."""
    told: Any = (await client.expect(pb.BaseCommand.TOPIC_MIGRATED)).body
    assert told.resource_type == kind
    error: Any = (await client.expect(pb.BaseCommand.ERROR)).body
    assert error.error == pb.ServiceNotReady
    return told


async def consume(client: ProtocolClient, count: int, *, consumer_id: int = 1) -> list[bytes]:
    """Receive and acknowledge so many messages."""
    received = await client.messages(count, consumer_id=consumer_id, permits=1_000)
    for one in received:
        position: Any = one.body.message_id
        client.send(
            pb.BaseCommand.ACK,
            consumer_id=consumer_id,
            ack_type=pb.CommandAck.Individual,
            message_id=[pb.MessageIdData(ledgerId=position.ledgerId, entryId=position.entryId)],
        )
    return [one.payload for one in received]


async def test_producers_leave_at_once_and_consumers_once_their_backlog_is_read() -> None:
    async with moving() as (blue, green):
        client = await attach(blue)
        await client.producer(TOPIC, producer_name="p")
        await client.consumer(TOPIC, "drained", consumer_id=1)
        await client.consumer(TOPIC, "behind", consumer_id=2, initialPosition=EARLIEST)
        await client.publish(3)
        await consume(client, 3, consumer_id=1)
        topic = await topic_of(blue)
        await until(lambda: topic.subscriptions["drained"].cursor.backlog_entries == 0)
        await move(blue, green)
        await check(blue)

        told = await sent_away(client, pb.CommandTopicMigrated.Producer)
        assert (told.resource_id, told.brokerServiceUrl) == (1, url_of(green))
        told = await sent_away(client, pb.CommandTopicMigrated.Consumer)
        assert (told.resource_id, told.brokerServiceUrl, told.brokerServiceUrlTls) == (1, url_of(green), "")
        ask_to_publish(client)
        told = await refused(client, pb.CommandTopicMigrated.Producer)
        assert (told.resource_id, told.brokerServiceUrl) == (1, url_of(green))

        assert list(topic.subscriptions) == ["drained", "behind"]
        await consume(client, 3, consumer_id=2)
        assert (await sent_away(client, pb.CommandTopicMigrated.Consumer)).resource_id == 2
        await check(blue)
        assert list(topic.subscriptions) == []
        assert (topic.ledger.terminated, topic.ledger.properties[MIGRATED_PROPERTY]) == (True, "true")


async def test_nothing_moves_without_a_destination_and_a_namespace_moves_by_itself() -> None:
    async with moving() as (blue, green):
        client = await attach(blue)
        await client.producer(TOPIC, producer_name="p")
        await move(blue, green, cluster=False)
        await check(blue)
        await client.publish(1)
        await move(blue, green, cluster=False, namespace=True)
        await check(blue)
        await sent_away(client, pb.CommandTopicMigrated.Producer)
        ask_to_publish(client)
        await refused(client, pb.CommandTopicMigrated.Producer)


async def test_topics_are_passed_over_once_it_is_known_that_nothing_moves() -> None:
    """A check of many thousands costs nothing then."""
    async with moving() as (blue, green):
        client = await attach(blue)
        await client.producer(TOPIC, producer_name="p")
        topic = await topic_of(blue)
        await check(blue)
        visits = [blue.service.upkeep.migration.visit(topic)]
        await move(blue, green)
        visits.append(blue.service.upkeep.migration.visit(topic))
        assert [one is not None for one in visits] == [False, True]


@pytest.mark.parametrize("name", [TOPIC, "non-persistent://public/default/t"])
async def test_statistics_say_that_a_topic_has_moved(name: str) -> None:
    async with moving() as (blue, green):
        client = await attach(blue, name)
        await client.producer(name, producer_name="p")
        topic = blue.service.topics[name]

        async def told() -> Any:
            return (await topic_stats(topic, blue.running.context, StatsOptions())).get("migrated")

        assert await told() is None
        await move(blue, green)
        await check(blue)
        assert await told() is True
        merged = await merge_stats([{"migrated": True}, {}, {"migrated": True}])
        assert merged["migrated"] is True


async def test_what_is_left_of_a_backlog_is_read_after_the_topic_is_loaded_again() -> None:
    async with moving() as (blue, green):
        client = await attach(blue)
        await client.producer(TOPIC, producer_name="p")
        await client.consumer(TOPIC, "behind", initialPosition=EARLIEST)
        await client.publish(2)
        await move(blue, green)
        await check(blue)
        await blue.service.unload(TopicName.parse(TOPIC))
        other = await attach(blue)
        await other.consumer(TOPIC, "behind")
        assert len(await consume(other, 2)) == 2
        await sent_away(other, pb.CommandTopicMigrated.Consumer)
        ask_to_publish(other)
        await refused(other, pb.CommandTopicMigrated.Producer)


async def test_a_topic_that_is_not_loaded_is_not_made_and_one_that_is_stored_takes_nothing() -> None:
    async with moving(migration_check_seconds=0) as (blue, green):
        client = await attach(blue)
        await client.producer(TOPIC, producer_name="p")
        await client.publish(1)
        await blue.service.unload(TopicName.parse(TOPIC))
        await move(blue, green)
        for name in (TOPIC, "persistent://public/default/new", "non-persistent://public/default/n"):
            fresh = await attach(blue, name)
            ask_to_publish(fresh, name, producer_id=4)
            assert (await refused(fresh, pb.CommandTopicMigrated.Producer)).resource_id == 4
            fresh.start(pb.BaseCommand.SUBSCRIBE, topic=name, subscription="s", consumer_id=5, subType=0)
            assert (
                await (sent_away if name == TOPIC else refused)(fresh, pb.CommandTopicMigrated.Consumer)
            ).resource_id == 5
        assert list(blue.service.topics) == [TOPIC]
        # Without a check nothing is marked, so that the cluster may be taken back.
        assert not (await topic_of(blue)).ledger.terminated


async def test_clients_that_do_not_know_the_command_are_only_closed() -> None:
    async with moving() as (blue, green):
        await move(blue, green)
        client = await attach(blue, version=19)
        ask_to_publish(client)
        answer: Any = (await client.expect(pb.BaseCommand.ERROR)).body
        assert answer.error == pb.ServiceNotReady
        assert [one.kind for one in await client.round_trip()] == []


async def test_non_persistent_topics_let_everybody_go() -> None:
    name = "non-persistent://public/default/n"
    async with moving() as (blue, green):
        client = await attach(blue, name)
        await client.producer(name, producer_name="p")
        await client.consumer(name)
        await move(blue, green)
        await check(blue)
        await sent_away(client, pb.CommandTopicMigrated.Producer)
        await client.expect(pb.BaseCommand.CLOSE_CONSUMER)
        client.start(pb.BaseCommand.SUBSCRIBE, topic=name, subscription="s", consumer_id=1, subType=0)
        await refused(client, pb.CommandTopicMigrated.Consumer)


async def test_producers_wait_until_the_other_clusters_have_everything() -> None:
    async with moving() as (blue, green):
        await name_cluster(blue, "west", "pulsar://127.0.0.1:1")
        await replicate(blue, "east", "west")
        client = await attach(blue)
        await client.producer(TOPIC, producer_name="p")
        await client.publish(2)
        await move(blue, green)
        await check(blue)
        topic = await topic_of(blue)
        assert topic.ledger.terminated
        await client.expect(pb.BaseCommand.CLOSE_PRODUCER)
        answer: Any = await client.request(pb.BaseCommand.PRODUCER, topic=TOPIC, producer_id=1, producer_name="p")
        assert answer.body.error == pb.ServiceNotReady
        await name_cluster(blue, "west", url_of(green))
        await caught_up(blue)
        await check(blue)
        ask_to_publish(client)
        await refused(client, pb.CommandTopicMigrated.Producer)
        assert numbers(await stored(green)) == [0, 1]
        assert topic.replicators is not None
        replicator = topic.replicators.running["west"]
        await until(lambda: replicator.state is ReplicatorState.TERMINATED)


async def test_a_replicator_is_not_sent_into_its_own_cluster() -> None:
    """Blue and green replicate to each other, and blue moves to green: what is published there stands there once."""
    async with linked_clusters(**CHECKED) as (east, west):
        blue, green = east[0], west[0]
        await publish(blue, 0, 2)
        await caught_up(blue)
        await move(blue, green)
        await check(blue)
        await publish(green, 2, 3)
        topic = await topic_of(green)
        assert topic.replicators is not None
        replicator = topic.replicators.running["east"]
        await until(lambda: replicator.reason is Reason.REFUSED)
        assert numbers(await stored(green)) == [0, 1, 2, 3, 4]
        assert not any(name.startswith("pulsar.repl.west") for name in topic.producers.by_name)


async def test_consumers_stay_too_until_the_other_clusters_have_everything() -> None:
    async with moving() as (blue, green):
        await name_cluster(blue, "west", "pulsar://127.0.0.1:1")
        await replicate(blue, "east", "west")
        client = await attach(blue)
        await client.producer(TOPIC, producer_name="p")
        await client.consumer(TOPIC, "drained", consumer_id=1)
        await client.publish(2)
        await consume(client, 2)
        topic = await topic_of(blue)
        await until(lambda: topic.subscriptions["drained"].cursor.backlog_entries == 0)
        await move(blue, green)
        await check(blue)
        await client.expect(pb.BaseCommand.CLOSE_PRODUCER)
        assert [one.kind for one in await client.round_trip()] == []
        await client.request(pb.BaseCommand.CLOSE_CONSUMER, consumer_id=1)
        await check(blue)
        assert list(topic.subscriptions) == ["drained"]
        await name_cluster(blue, "west", url_of(green))
        await caught_up(blue)
        await check(blue)
        assert list(topic.subscriptions) == []


async def test_the_other_cluster_gets_what_its_clients_need_before_they_are_sent_there() -> None:
    topic_name = "persistent://acme/orders/t-partition-1"
    async with moving(migration_creates_resources=True) as (blue, green):
        resources = Resources(blue.store)
        await resources.documents.create(
            "/admin/policies/acme", {"adminRoles": [], "allowedClusters": ["east", "west"]}
        )
        await resources.documents.create(
            "/admin/policies/acme/orders", {"replication_clusters": ["east"], "message_ttl_in_seconds": 77}
        )
        await blue.service.partitioned.create(TopicName.parse("persistent://acme/orders/t"), 2)
        client = await attach(blue, topic_name)
        await client.producer(topic_name, producer_name="p")
        await client.consumer(topic_name, "billing")
        await client.publish(1)
        await move(blue, green)
        # The tenant would be in a cluster that is not known there: the log says who refuses what.
        with pytest.raises(PeerError, match=rf"t-partition-1 waits: {green.admin_url}.*Clusters do not exist"):
            await check(blue)
        await name_cluster(green, "east", url_of(blue))
        await check(blue)
        assert await Resources(green.store).partitions(TopicName.parse("persistent://acme/orders/t")) == 2
        policies = await Resources(green.store).policies(NamespaceName("acme", "orders"))
        assert policies is not None
        assert (policies["message_ttl_in_seconds"], policies["replication_clusters"]) == (77, ["west"])
        made = green.service.topics[topic_name]
        assert list(made.subscriptions) == ["billing"]
        await sent_away(client, pb.CommandTopicMigrated.Producer)
        ask_to_publish(client, topic_name)
        await refused(client, pb.CommandTopicMigrated.Producer)
        # Again: what is there is no error.
        await blue.service.unload(TopicName.parse(topic_name))
        await check(blue)


async def test_subscriptions_are_made_there_at_the_beginning_and_the_compactions_is_not() -> None:
    async with moving(migration_creates_resources=True) as (blue, green):
        await publish(green, 0, 2)
        await publish(blue, 2, 1)
        topic = await topic_of(blue)
        for name in ("billing", COMPACTION_CURSOR):
            await topic.create_subscription(name, (-1, -1))
        await move(blue, green)
        await check(blue)
        made = await topic_of(green)
        assert list(made.subscriptions) == ["billing"]
        assert made.subscriptions["billing"].cursor.backlog_entries == 2


async def test_what_nobody_has_read_yet_and_the_compactions_position_stay() -> None:
    async with moving() as (blue, green):
        await publish(blue, 0, 2)
        topic = await topic_of(blue)
        for name in ("behind", COMPACTION_CURSOR):
            await topic.create_subscription(name, (-1, -1))
        await topic.create_subscription("drained", LATEST)
        topic.subscriptions[COMPACTION_CURSOR].cursor.acknowledge_cumulative(topic.ledger.last_confirmed)
        await move(blue, green)
        for _ in range(2):
            await check(blue)
            assert list(topic.subscriptions) == ["behind", COMPACTION_CURSOR]
        client = await attach(blue)
        await client.consumer(TOPIC, "behind")
        assert len(await consume(client, 2)) == 2
        await sent_away(client, pb.CommandTopicMigrated.Consumer)


async def test_nobody_leaves_while_the_other_cluster_lacks_something() -> None:
    async with moving(migration_creates_resources=True) as (blue, green):
        client = await attach(blue)
        await client.producer(TOPIC, producer_name="p")
        await client.consumer(TOPIC, "s")
        await move(blue, green)
        resources = Resources(blue.store)
        path = Resources.cluster_policies_path("east")
        nowhere = {"serviceUrl": "http://127.0.0.1:1", "brokerServiceUrl": url_of(green)}
        await resources.documents.put(path, {"migrated": True, "migratedClusterUrl": nowhere})
        with pytest.raises(Exception, match=r"127\.0\.0\.1"):
            await check(blue)
        await client.publish(1)
        # Newcomers, too, go on here.
        await client.producer(TOPIC, producer_id=2, producer_name="q")
        await move(blue, green)
        await check(blue)
        await sent_away(client, pb.CommandTopicMigrated.Producer)


async def test_a_topic_waits_for_its_open_transactions() -> None:
    settings = BrokerSettings(
        cluster_name="east",
        policies=PolicySettings(migration_check_seconds=3_600),
        transactions=TransactionSettings(enabled=True),
    )
    async with MemoryCluster(1, settings) as blue, MemoryBroker() as green:
        client = await attach(blue[0])
        await client.producer(TOPIC, producer_name="p")
        await client.consumer(TOPIC)
        await send(client, 0, transaction=1)
        await move(blue[0], green)
        with pytest.raises(PulsarError):
            await check(blue[0])
        assert MIGRATED_PROPERTY not in (await topic_of(blue[0])).ledger.properties
        await send(client, 1, transaction=1)
        assert not (await end(client, 1, topic=TOPIC)).HasField("error")
        await check(blue[0])
        await sent_away(client, pb.CommandTopicMigrated.Producer)
        assert len(await consume(client, 2)) == 2
        await sent_away(client, pb.CommandTopicMigrated.Consumer)


async def test_our_own_client_goes_along() -> None:
    async with moving(migration_creates_resources=True) as (blue, green):
        client = PulsarClient(lambda: url_of(blue), SystemClock())
        try:
            name = TopicName.parse(TOPIC)
            producer = await client.producer(name)
            consumer = await client.consumer(name, ConsumerOptions(subscription="s"))
            await producer.send(OutgoingMessage(b"blue"))
            await consumer.acknowledge([(await consumer.receive()).id])
            await move(blue, green)
            await check(blue)
            await until(lambda: TOPIC in green.service.topics)
            await producer.send(OutgoingMessage(b"green"))
            message_of_green = await consumer.receive()
            assert message_of_green.payload == b"green"
            assert len(numbers(await stored(green), producer.name)) == 1
        finally:
            await client.close()
