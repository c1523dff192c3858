from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest
from magnetar.auth.testing import token_of
from magnetar.broker.testing.auth import broker_settings, grants, make_namespace
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.client.message import OutgoingMessage
from magnetar.client.producer import ProducerOptions
from magnetar.core.topic_name import TopicName
from magnetar.spark.brokers.client_factory import make_client
from magnetar.spark.errors import AccessRefused, BadOption
from magnetar.spark.options.connection import ConnectionOptions
from magnetar.spark.positions import BEGINNING, MessagePosition
from magnetar.spark.reading.durable_cursor import DurableCursor

NAME = "persistent://public/default/t"
TOPIC = TopicName.parse(NAME)


class World:
    """A broker and a client, and five entries of two messages each."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.broker = broker
        self.client = make_client(
            ConnectionOptions(service_url=broker.running.settings.service_url, operation_timeout_seconds=5)
        )
        self.cursor = DurableCursor(self.client, "query")

    async def begin(self) -> int:
        """The ledger's id."""
        producer = await self.client.producer(TOPIC, ProducerOptions())
        for number in range(5):
            ids = await producer.send_batch([OutgoingMessage(b"%d" % number), OutgoingMessage(b"-")])
        return ids[0].ledger_id

    async def backlog(self) -> int:
        """Entries that the subscription has not acknowledged."""
        topic = await self.broker.service.topic(TOPIC, create=False)
        found: int = topic.subscriptions["query"].cursor.backlog_entries
        return found


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with MemoryBroker() as broker:
        made = World(broker)
        yield made
        await made.cursor.close()
        await made.client.close()


async def test_everything_before_a_position_is_acknowledged(world: World) -> None:
    ledger_id = await world.begin()
    await world.cursor.start([NAME])
    await world.cursor.start([NAME])
    assert await world.backlog() == 5
    for position, left in (
        (BEGINNING, 5),
        (MessagePosition(ledger_id, 0), 5),
        (MessagePosition(ledger_id, 0, 1), 5),
        (MessagePosition(ledger_id, 2), 3),
        (MessagePosition(ledger_id, 3, 1), 2),
        (MessagePosition(ledger_id, 1), 2),
        (MessagePosition(ledger_id, 5), 0),
    ):
        await world.cursor.move({NAME: position})
        assert await world.backlog() == left, position


async def test_a_new_subscription_may_begin_at_the_end(world: World) -> None:
    await world.begin()
    await DurableCursor(world.client, "query", from_earliest=False).start([NAME])
    assert await world.backlog() == 0


async def test_a_second_driver_gets_in(world: World) -> None:
    ledger_id = await world.begin()
    await world.cursor.start([NAME])
    second = DurableCursor(world.client, "query")
    await second.start([NAME])
    await second.move({NAME: MessagePosition(ledger_id, 2)})
    assert await world.backlog() == 3
    await world.cursor.move({NAME: MessagePosition(ledger_id, 4)})
    assert await world.backlog() == 1
    await second.close()
    await world.cursor.close()
    assert await world.backlog() == 1, "the subscription stays"


async def test_the_beginning_of_the_next_ledger(world: World) -> None:
    await world.begin()
    await world.cursor.start([NAME])
    await world.broker.service.unload(TOPIC)
    second_ledger = await world.begin()
    assert await world.backlog() == 10
    await world.cursor.move({NAME: MessagePosition(second_ledger, 0)})
    assert await world.backlog() == 5


async def test_unloading_and_a_lost_connection_are_got_over(world: World) -> None:
    ledger_id = await world.begin()
    await world.cursor.start([NAME])
    await world.broker.service.unload(TOPIC)
    await world.cursor.move({NAME: MessagePosition(ledger_id, 2)})
    assert await world.backlog() == 3
    for connection in world.client._parts.pool._connections.values():
        connection._connection.abort()
    await world.cursor.move({NAME: MessagePosition(ledger_id, 3)})
    await world.cursor.move({NAME: MessagePosition(ledger_id, 4)})
    assert await world.backlog() == 1


async def test_what_passes_is_only_a_warning(world: World, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        await world.cursor.start([NAME])
    assert "subscription query" in caplog.text
    ledger_id = await world.begin()
    await world.cursor.move({NAME: MessagePosition(ledger_id, 3)})
    assert await world.backlog() == 2, "what is new begins at the position"
    await world.cursor.forget(NAME)
    await world.cursor.forget(NAME)


async def test_rights_and_settings_are_errors(world: World) -> None:
    async with MemoryBroker(broker_settings()) as broker:
        topic = "persistent://acme/shop/orders"
        policies = {"autoSubscriptionCreationOverride": {"allowAutoSubscriptionCreation": False}}
        rights = grants({"maker": ["produce"], "both": ["produce", "consume"]})
        await make_namespace(broker, auth_policies=rights, **policies)
        url = broker.running.settings.service_url
        for role, kind in (("maker", AccessRefused), ("both", BadOption)):
            client = make_client(ConnectionOptions(service_url=url, token=token_of(role), operation_timeout_seconds=5))
            producer = await client.producer(TopicName.parse(topic))
            await producer.send(OutgoingMessage(b"x"))
            cursor = DurableCursor(client, "query")
            with pytest.raises(kind, match=r"predefinedSubscription.*query"):
                await cursor.start([topic])
            await cursor.close()
            await client.close()
