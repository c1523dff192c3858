"""What clients open and close by thousands is freed at once, not when the collector of cycles comes by: it looks at
long-lived objects seldom (docs/adr/0025)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp.web_protocol import RequestHandler
from magnetar.auth.testing import token_of
from magnetar.broker.session.access import SessionAccess
from magnetar.broker.session.server_session import ServerSession
from magnetar.broker.subscriptions.delayed import DelayedEntries
from magnetar.broker.subscriptions.entry_reader import EntryReader, RetryTimer
from magnetar.broker.subscriptions.pump import Pump
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.testing.auth import ADMIN, broker_settings
from magnetar.broker.testing.sessions import MemoryBroker, ProtocolClient
from magnetar.broker.topics.non_persistent_topic import NonPersistentTopic
from magnetar.broker.topics.producer_admission import ProducerAdmission
from magnetar.broker.topics.topic import PersistentTopic
from magnetar.ledger.append_pipeline import BookieAnswers
from magnetar.managed.cursors.cursor import Cursor
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.net.connection import Connection
from magnetar.net.http.watched import Watched
from magnetar.net.testing import freed
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

Command = pb.BaseCommand
TOPIC = "persistent://public/default/t"
OTHER = "non-persistent://public/default/t"
OF_A_SUBSCRIPTION = (Pump, EntryReader, RetryTimer, DelayedEntries)
OF_A_READER = (*OF_A_SUBSCRIPTION, Subscription, Cursor)
OF_A_TOPIC = (PersistentTopic, NonPersistentTopic, ProducerAdmission, ManagedLedger, Cursor, BookieAnswers)
OF_A_SESSION = (ServerSession, SessionAccess, Connection)
OF_A_REQUEST = (RequestHandler, Watched)


@pytest.fixture
async def guarded() -> AsyncIterator[MemoryBroker]:
    async with MemoryBroker(broker_settings()) as broker:
        yield broker


async def consume(client: ProtocolClient, topic: str = TOPIC, **fields: Any) -> None:
    await client.producer(topic)
    await client.consumer(topic, **fields)
    client.send(Command.FLOW, consumer_id=1, messagePermits=10)
    await client.publish(3)
    for _ in range(3):
        await client.expect(Command.MESSAGE)


async def close_both(client: ProtocolClient) -> None:
    await client.request(Command.CLOSE_CONSUMER, consumer_id=1)
    await client.request(Command.CLOSE_PRODUCER, producer_id=1)


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("kind", [0, 1, 2, 3])
async def test_what_a_subscription_needs_for_its_consumers_goes_with_them(client: ProtocolClient, kind: int) -> None:
    async def work() -> None:
        await consume(client, subType=kind)
        await close_both(client)

    await freed(OF_A_SUBSCRIPTION, work)


@pytest.mark.usefixtures("no_collector")
async def test_a_subscription_goes_with_its_reader_or_when_it_is_deleted(client: ProtocolClient) -> None:
    async def work() -> None:
        await consume(client, durable=False)
        await close_both(client)
        await consume(client)
        await client.request(Command.UNSUBSCRIBE, consumer_id=1)
        await close_both(client)

    await freed(OF_A_READER, work)


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("topic", [TOPIC, OTHER])
async def test_an_unloaded_topic_is_gone(memory_broker: MemoryBroker, admin: Any, topic: str) -> None:
    async def work() -> None:
        client = await ProtocolClient.connected(memory_broker.port)
        await consume(client, topic)
        await client.close()
        path = topic.replace("://", "/")
        assert (await admin("PUT", f"/admin/v2/{path}/unload"))[0] == 204

    await freed(OF_A_TOPIC, work)


@pytest.mark.usefixtures("no_collector")
async def test_a_deleted_topic_is_gone(client: ProtocolClient, admin: Any) -> None:
    async def work() -> None:
        await consume(client)
        await close_both(client)
        assert (await admin("DELETE", "/admin/v2/persistent/public/default/t?force=true"))[0] == 204

    await freed(OF_A_TOPIC, work)


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("version", ["test", "Pulsar-CPP-v3.5.1"])
@pytest.mark.parametrize("hasty", [False, True])
async def test_who_fails_to_authenticate_leaves_nothing(guarded: MemoryBroker, version: str, *, hasty: bool) -> None:
    """The refusal was one object for all: its traceback kept every session that it had refused, for good."""

    async def work() -> None:
        client = await ProtocolClient.open(guarded.port)
        expired = token_of("somebody", exp=1).encode()
        client.send(Command.CONNECT, client_version=version, auth_method_name="token", auth_data=expired)
        if version != "test" and not hasty:
            await client.expect(Command.CONNECTED)
        if version != "test" or hasty:
            client.send(Command.LOOKUP, topic=TOPIC, request_id=1)
        await client.end()
        await client.close()

    await freed(OF_A_SESSION, work)


@pytest.mark.usefixtures("no_collector")
async def test_requests_over_http_that_fail_leave_nothing(memory_broker: MemoryBroker) -> None:
    port = int(memory_broker.admin_url.rpartition(":")[2])

    async def work() -> None:
        for request in (
            b"GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n",
            b"DELETE /metrics HTTP/1.1\r\nHost: a\r\n\r\n",
            b"NO HTTP\r\n\r\n" + bytes(10_000),
            b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: no\r\n\r\n",
            b"GET /admin/v2/namespaces/public/nothing HTTP/1.1\r\nHost: a\r\n\r\n",
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request)
            assert (await reader.readline()).startswith(b"HTTP/1.")
            writer.close()

    await freed(OF_A_REQUEST, work)


@pytest.mark.usefixtures("no_collector")
async def test_requests_over_http_that_are_not_let_in_leave_nothing(guarded: MemoryBroker) -> None:
    port = int(guarded.admin_url.rpartition(":")[2])

    async def work() -> None:
        for token in ("none", token_of("somebody", exp=1), token_of(ADMIN) + "x"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(
                b"GET /admin/v2/tenants HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %b\r\n\r\n" % token.encode()
            )
            assert b"401" in await reader.readline()
            writer.close()

    await freed(OF_A_REQUEST, work)
