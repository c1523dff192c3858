"""Large answers that wait for a store which does not answer: they keep nobody else from topic lists and schemas."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from magnetar.broker.session.server_session import ServerSession
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.testing.auth import ADMIN, broker_settings, connected_as, grants, make_namespace
from magnetar.broker.testing.sessions import MemoryBroker, ProtocolClient, Received
from magnetar.net import places
from magnetar.net.connection import Connection
from magnetar.net.requests import READINGS_IN_ALL, READINGS_OF_ONE, ConnectionRequests, Place
from magnetar.net.testing import freed, until
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

Command = pb.BaseCommand
TOPIC = "persistent://public/default/topic"
SCHEMA = {"name": "s", "type": pb.Schema.String, "schema_data": b""}


class Stuck:
    """A metadata store that answers no question about what has `slow` in its path until it is let go."""

    def __init__(self, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: Counter[str] = Counter()
        """How often, by path."""
        self.go = asyncio.Event()
        for verb in ("get", "children", "exists"):
            monkeypatch.setattr(store, verb, self._slowed(getattr(store, verb)))

    def _slowed(self, ask: Any) -> Any:
        async def slowly(path: str, **options: Any) -> Any:
            if "slow" in path:
                self.asked[path] += 1
                await self.go.wait()
            return await ask(path, **options)

        return slowly


@pytest.fixture
def stuck(memory_broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stuck]:
    stuck = Stuck(memory_broker.store, monkeypatch)
    yield stuck
    stuck.go.set()


async def promptly(client: ProtocolClient, kind: pb.BaseCommand.Type, **fields: Any) -> Received:
    """The answer to a request, which waits for nobody."""
    async with asyncio.timeout(30):
        return await client.request(kind, **fields)


async def list_of(client: ProtocolClient, namespace: str = "public/default") -> list[str]:
    answer = await promptly(client, Command.GET_TOPICS_OF_NAMESPACE, namespace=namespace, mode=0)
    assert answer.name == "GET_TOPICS_OF_NAMESPACE_RESPONSE", answer
    return list(answer.body.topics)


async def schema_of(client: ProtocolClient) -> object:
    answer = await promptly(client, Command.GET_SCHEMA, topic=TOPIC)
    assert not answer.body.HasField("error_code"), answer
    schema: object = answer.body.schema.type
    return schema


def slow_request(kind: str, tenant: str = "public") -> tuple[pb.BaseCommand.Type, dict[str, Any]]:
    """One that the store is asked for."""
    namespace = f"{tenant}/slow"
    if kind == "schema":
        return Command.GET_SCHEMA, {"topic": f"persistent://{namespace}/topic"}
    if kind == "topic list":
        return Command.GET_TOPICS_OF_NAMESPACE, {"namespace": namespace, "mode": 0}
    return Command.WATCH_TOPIC_LIST, {"namespace": namespace, "topics_pattern": ".*", "watcher_id": 1}


ASKED_OF_A_SCHEMA = 4
"""For the schema, and where there is none, whose shadow the topic or its partitioned topic may be."""

KINDS = ("schema", "topic list", "watcher")


@pytest.mark.parametrize("count", [2, 10])
@pytest.mark.parametrize("kind", KINDS)
async def test_who_waits_for_the_store_keeps_nobody_from_an_answer(
    memory_broker: MemoryBroker, stuck: Stuck, kind: str, count: int
) -> None:
    other = await memory_broker.connect()
    await other.producer(TOPIC, schema=SCHEMA)
    clients = [await memory_broker.connect() for _ in range(count)]
    command, fields = slow_request(kind)
    waiting = [client.start(command, **fields) for client in clients]
    await until(lambda: stuck.asked.total() >= 2)
    assert await list_of(other) == [TOPIC]
    assert await schema_of(other) == pb.Schema.String
    watched = await promptly(
        other, Command.WATCH_TOPIC_LIST, namespace="public/default", topics_pattern=".*", watcher_id=1
    )
    assert list(watched.body.topic) == [TOPIC]
    assert set(stuck.asked.values()) <= {READINGS_OF_ONE}
    stuck.go.set()
    for client, request_id in zip(clients, waiting, strict=True):
        await client.answer(request_id)


async def test_what_the_store_is_asked_for_is_bounded(
    memory_broker: MemoryBroker, stuck: Stuck, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what is in memory needs no store; nor does one kind of answer wait for the other."""
    monkeypatch.setattr(places, "PATIENT_SECONDS", 3600)
    other = await memory_broker.connect()
    await other.producer(TOPIC, schema=SCHEMA)
    assert await schema_of(other) == pb.Schema.String
    count = 3 * READINGS_IN_ALL
    clients = [await memory_broker.connect() for _ in range(count)]
    waiting = [client.start(Command.GET_SCHEMA, topic=f"{TOPIC}-slow-{n}") for n, client in enumerate(clients)]
    await until(lambda: stuck.asked.total() == READINGS_IN_ALL)
    assert await schema_of(other) == pb.Schema.String
    assert await list_of(other) == [TOPIC]
    assert stuck.asked.total() == READINGS_IN_ALL
    stuck.go.set()
    for client, request_id in zip(clients, waiting, strict=True):
        assert (await client.answer(request_id)).body.error_code == pb.TopicNotFound
    assert stuck.asked.total() == ASKED_OF_A_SCHEMA * count


@pytest.mark.parametrize("kind", KINDS)
async def test_who_waits_for_rights_keeps_nobody_from_an_answer(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with MemoryBroker(broker_settings()) as broker:
        await make_namespace(broker, auth_policies=grants({"reader": ["consume"]}))
        other = await connected_as(broker, "reader")
        clients = [await connected_as(broker, "somebody") for _ in range(10)]
        admin = await connected_as(broker, ADMIN)
        stuck = Stuck(broker.store, monkeypatch)
        command, fields = slow_request(kind, tenant="slow")
        waiting = [client.start(command, **fields) for client in clients]
        # One reading of the rights for all of them, as these share it.
        await until(lambda: stuck.asked["/admin/policies/slow"] == 1 and not unserved(broker, len(clients)))
        assert await list_of(other, "acme/shop") == []
        assert await list_of(admin, "acme/shop") == []
        assert set(stuck.asked) == {"/admin/policies/slow"}
        stuck.go.set()
        for client, request_id in zip(clients, waiting, strict=True):
            answer = (await client.answer(request_id)).body
            assert pb.AuthorizationError in (getattr(answer, "error", None), getattr(answer, "error_code", None))


def unserved(broker: MemoryBroker, count: int) -> bool:
    """Whether fewer requests are under way than were sent."""
    return broker.running.context.service.limits.requests.count < count


async def test_what_was_read_for_one_is_shared_by_those_who_waited(memory_broker: MemoryBroker, stuck: Stuck) -> None:
    """A namespace is read for the first ones, and once or twice more for all the others."""
    clients = [await memory_broker.connect() for _ in range(20)]
    waiting = [client.start(Command.GET_TOPICS_OF_NAMESPACE, namespace="public/slow", mode=0) for client in clients]
    await until(lambda: stuck.asked.total() == READINGS_OF_ONE and not unserved(memory_broker, len(clients)))
    stuck.go.set()
    for client, request_id in zip(clients, waiting, strict=True):
        assert (await client.answer(request_id)).name == "GET_TOPICS_OF_NAMESPACE_RESPONSE"
    assert stuck.asked.total() <= 2 * READINGS_OF_ONE


async def test_lists_that_wait_for_the_store_are_no_lookups_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    async with MemoryBroker(BrokerSettings(lookups_max=1)) as broker:
        stuck = Stuck(broker.store, monkeypatch)
        clients = [await broker.connect() for _ in range(10)]
        for client in clients:
            client.start(Command.GET_TOPICS_OF_NAMESPACE, namespace="public/slow", mode=0)
        await until(lambda: stuck.asked.total() == READINGS_OF_ONE and not unserved(broker, len(clients)))
        other = await broker.connect()
        answer = await promptly(other, Command.LOOKUP, topic=TOPIC)
        assert answer.body.response == pb.CommandLookupTopicResponse.Connect
        assert await list_of(other) == []
        stuck.go.set()


@pytest.mark.usefixtures("no_collector")
async def test_who_went_while_it_waited_leaves_nothing(
    memory_broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        with monkeypatch.context() as patch:
            stuck = Stuck(memory_broker.store, patch)
            clients = [await memory_broker.connect() for _ in range(2 + READINGS_OF_ONE)]
            for client in clients:
                client.start(Command.GET_TOPICS_OF_NAMESPACE, namespace="public/slow", mode=0)
            await until(lambda: stuck.asked.total() == READINGS_OF_ONE and not unserved(memory_broker, len(clients)))
            for client in clients:
                await client.abort()
            await until(lambda: not memory_broker.running._ports.connections)
            stuck.go.set()
            await until(lambda: not memory_broker.service.limits.requests.count)

    await freed((ServerSession, Connection, ConnectionRequests, Place), work)
