from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from magnetar.auth.testing import token_of
from magnetar.broker.testing.auth import broker_settings, grants, make_namespace
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.client.consumer import ConsumerOptions
from magnetar.client.message import OutgoingMessage
from magnetar.client.producer import ProducerOptions
from magnetar.core.topic_name import TopicName
from magnetar.net.free_ports import free_port
from magnetar.spark.brokers import catalog as broker_catalog
from magnetar.spark.brokers.admin_api import AdminApi
from magnetar.spark.brokers.catalog import (
    BrokerCatalog,
    definition_of_version,
    schema_definitions,
    trimmed_entries,
)
from magnetar.spark.brokers.client_factory import make_client
from magnetar.spark.errors import AccessRefused, BadOption, ClusterUnreachable
from magnetar.spark.options.connection import ConnectionOptions
from magnetar.spark.positions import BEGINNING, MessagePosition
from magnetar.spark.topics import TopicSelection
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import Schema

NAMESPACE = "persistent://public/default"


class World:
    """A broker, a client and a catalog with and one without the admin API."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.broker = broker
        self.options = ConnectionOptions(service_url=broker.running.settings.service_url, operation_timeout_seconds=10)
        self.client = make_client(self.options)
        self.catalog = BrokerCatalog(self.options, self.client)
        self.admin = AdminApi(replace(self.options, admin_url=broker.admin_url))
        self.rich = BrokerCatalog(self.options, self.client, self.admin)

    async def close(self) -> None:
        await self.catalog.close()
        await self.rich.close()
        await self.admin.close()
        await self.client.close()

    async def send(self, topic: str, count: int, *, batch: bool = False) -> None:
        producer = await self.client.producer(TopicName.parse(topic))
        messages = [OutgoingMessage(b"m%d" % number) for number in range(count)]
        await (producer.send_batch(messages) if batch else producer.send_all(messages))
        await producer.close()

    async def keep(self, topic: str) -> None:
        """A subscription that holds all messages."""
        options = ConsumerOptions(subscription="keep", from_earliest=True)
        await (await self.client.consumer(TopicName.parse(topic), options)).close()

    async def call(self, method: str, path: str, body: object = None) -> Any:
        import aiohttp

        async with (
            aiohttp.ClientSession() as session,
            session.request(method, f"{self.broker.admin_url}/admin/v2/{path}", json=body) as answer,
        ):
            assert answer.status < 300, await answer.text()
            return await answer.json() if method == "GET" else None


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with MemoryBroker() as broker:
        made = World(broker)
        yield made
        await made.close()


def names(*given: str) -> TopicSelection:
    return TopicSelection(names=tuple(f"{NAMESPACE}/{name}" for name in given))


def test_what_is_certain_of_trimmed_ledgers() -> None:
    """Places as `internalStats` shows them."""
    cursors = {"a%2Fb": {"markDeletePosition": "12:9"}, "reader-1": {"markDeletePosition": "12:3"}}
    stats = {"ledgers": [{"ledgerId": 15}], "lastConfirmedEntry": "12:9", "cursors": cursors}
    assert trimmed_entries(stats, "") == {12: 10}
    # Something has come since: where the ledger ended only a subscription of its own knows, which keeps what is behind.
    stats["lastConfirmedEntry"] = "15:0"
    assert trimmed_entries(stats, "") == {}
    assert trimmed_entries(stats, "c") == {}
    assert trimmed_entries(stats, "a/b") == {12: 10}
    cursors["a%2Fb"]["markDeletePosition"] = "12:-1"
    assert trimmed_entries(stats, "a/b") == {12: 0}
    cursors["a%2Fb"]["markDeletePosition"] = "15:-1"
    assert trimmed_entries(stats, "a/b") == {}
    assert trimmed_entries({"ledgers": [], "lastConfirmedEntry": "-1:-1"}, "a/b") == {}


async def test_topics_by_name(world: World) -> None:
    await world.call("PUT", "persistent/public/default/p/partitions", 3)
    await world.send(f"{NAMESPACE}/single", 1)
    assert await world.catalog.topics(names("single", "p", "p-partition-1", "nowhere")) == [
        f"{NAMESPACE}/p-partition-0",
        f"{NAMESPACE}/p-partition-1",
        f"{NAMESPACE}/p-partition-2",
        f"{NAMESPACE}/single",
    ]
    assert not await world.catalog.topics(names("nowhere"))
    assert not await world.catalog.states([f"{NAMESPACE}/nowhere"])
    listed = await world.call("GET", "persistent/public/default")
    assert f"{NAMESPACE}/nowhere" not in listed, "asking made a topic"
    with pytest.raises(BadOption):
        await world.catalog.topics(TopicSelection(names=("a/b",)))


async def test_topics_by_pattern(world: World) -> None:
    await world.call("PUT", "persistent/public/default/orders-eu/partitions", 2)
    for name in ("orders-us", "invoices", "__change_events"):
        await world.call("PUT", f"persistent/public/default/{name}")
    expected = [f"{NAMESPACE}/orders-eu-partition-0", f"{NAMESPACE}/orders-eu-partition-1", f"{NAMESPACE}/orders-us"]
    for pattern in (f"{NAMESPACE}/orders-.*", "public/default/orders-..", f"{NAMESPACE}/orders-eu|orders-us"):
        assert await world.catalog.topics(TopicSelection(pattern=pattern)) == expected
    everything = await world.catalog.topics(TopicSelection(pattern=f"{NAMESPACE}/.*"))
    assert everything == [f"{NAMESPACE}/invoices", *expected]
    assert not await world.catalog.topics(TopicSelection(pattern=f"{NAMESPACE}/nothing"))


async def test_ends_are_behind_the_last_entry(world: World) -> None:
    topic, empty = f"{NAMESPACE}/t", f"{NAMESPACE}/empty"
    await world.send(topic, 3)
    await world.send(topic, 5, batch=True)
    await world.call("PUT", "persistent/public/default/empty")
    ends = await world.catalog.ends([topic, empty, f"{NAMESPACE}/nowhere"])
    assert ends == {topic: MessagePosition(ends[topic].ledger_id, 4), empty: BEGINNING}
    await world.send(topic, 1)
    assert (await world.catalog.ends([topic]))[topic].entry_id == 5
    stats = await world.call("GET", "persistent/public/default/t/internalStats")
    assert not [name for name in stats["cursors"] if not name.startswith("reader-")]
    await world.catalog.close()
    stats = await world.call("GET", "persistent/public/default/t/internalStats")
    assert not stats["cursors"], "a subscription was left behind"


async def test_only_so_many_readers_stay(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_catalog, "READERS_KEPT_MAX", 2)
    topics = [f"{NAMESPACE}/t{number}" for number in range(5)]
    for topic in topics:
        await world.send(topic, 1)
    for _ in range(2):
        assert len(await world.catalog.ends(topics)) == 5
        assert len(world.catalog._readers) == len(world.catalog._ends) == 2


async def test_states_without_the_admin_api(world: World) -> None:
    topic, empty = f"{NAMESPACE}/t", f"{NAMESPACE}/empty"
    await world.send(topic, 3)
    await world.call("PUT", "persistent/public/default/empty")
    states = await world.catalog.states([topic, empty])
    assert not states[topic].ledgers_known
    assert [ledger.entries for ledger in states[topic].ledgers] == [3]
    assert states[topic].end == (states[topic].ledgers[0].ledger_id, 3, 0)
    assert states[empty].ledgers == ()
    assert states[empty].end == BEGINNING
    assert await world.catalog.ledger_ids(topic) is None


async def test_states_with_the_admin_api(world: World) -> None:
    topic, empty = f"{NAMESPACE}/t", f"{NAMESPACE}/empty"
    await world.send(topic, 3)
    await world.keep(topic)
    await world.call("PUT", "persistent/public/default/t/unload")
    await world.send(topic, 2)
    await world.call("PUT", "persistent/public/default/empty")
    states = await world.rich.states([topic, empty, f"{NAMESPACE}/nowhere"])
    assert set(states) == {topic, empty}
    state = states[topic]
    assert [ledger.entries for ledger in state.ledgers] == [3, 2]
    assert state.ledgers[0].closed_ms > 1_600_000_000_000
    assert state.ledgers[1].closed_ms == 0
    assert all(ledger.size_bytes > 0 for ledger in state.ledgers)
    assert state.end == (state.ledgers[1].ledger_id, 2, 0)
    assert [ledger.entries for ledger in states[empty].ledgers] == [0]
    assert states[empty].end == (states[empty].ledgers[0].ledger_id, 0, 0)
    assert await world.rich.ledger_ids(topic) == frozenset(ledger.ledger_id for ledger in state.ledgers)


async def test_an_end_does_not_go_back_when_everything_is_trimmed(world: World) -> None:
    topic = f"{NAMESPACE}/t"
    await world.send(topic, 3)
    before = await world.catalog.ends([topic])
    await world.call("DELETE", "persistent/public/default/t/truncate")
    after = await world.catalog.ends([topic])
    assert after == before
    state = (await world.rich.states([topic]))[topic]
    assert sum(ledger.entries for ledger in state.ledgers) == 0
    assert state.end > before[topic]


async def test_topics_come_and_go(world: World) -> None:
    topic = f"{NAMESPACE}/t"
    await world.send(topic, 3)
    assert len(await world.catalog.states([topic])) == 1
    await world.call("DELETE", "persistent/public/default/t?force=true")
    assert not await world.catalog.states([topic])
    await world.send(topic, 1)
    assert (await world.catalog.ends([topic]))[topic].entry_id == 1


async def test_unloading_is_not_seen(world: World) -> None:
    topic = f"{NAMESPACE}/t"
    await world.send(topic, 3)
    await world.keep(topic)
    before = await world.catalog.ends([topic])
    await world.call("PUT", "persistent/public/default/t/unload")
    assert await world.catalog.ends([topic]) == before


def told(asked: list[str], ask: Callable[[str], Awaitable[Any]]) -> Callable[[str], Awaitable[Any]]:
    """Asks, and notes of which topic."""

    async def noted(topic: str) -> Any:
        asked.append(topic)
        return await ask(topic)

    return noted


async def test_nobody_there(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    options = ConnectionOptions(service_url=f"pulsar://127.0.0.1:{port}", operation_timeout_seconds=1.5)
    client = make_client(options)
    catalog = BrokerCatalog(options, client)
    with pytest.raises(ClusterUnreachable, match=str(port)):
        await catalog.topics(names("t"))
    # However many topics there are, it takes as long as one of them.
    monkeypatch.setattr(catalog, "_places", asyncio.Semaphore(2))
    asked: list[str] = []
    for name in ("_state", "_end"):
        monkeypatch.setattr(catalog, name, told(asked, getattr(catalog, name)))
    topics = [f"{NAMESPACE}/t{number}" for number in range(20)]
    with pytest.raises(ClusterUnreachable, match=str(port)):
        await catalog.states(topics)
    assert 1 <= len(set(asked)) <= 4
    # Where bookies tell instead, nothing is raised, and what has not answered is not asked all the time.
    asked.clear()
    assert await catalog.ends(topics) == {}
    assert 2 <= len(set(asked)) <= 4
    silent = asked.copy()
    asked.clear()
    assert await catalog.ends(silent) == {}
    assert asked == []
    await catalog.close()
    await client.close()


async def test_tokens() -> None:
    async with MemoryBroker(broker_settings()) as broker:
        await make_namespace(broker, auth_policies=grants({"reader": ["consume", "produce"]}))
        url = broker.running.settings.service_url
        topic = "persistent://acme/shop/orders"

        async def ends_for(token: str) -> dict[str, MessagePosition]:
            options = ConnectionOptions(
                service_url=url, admin_url=broker.admin_url, token=token, operation_timeout_seconds=5
            )
            client = make_client(options)
            admin = AdminApi(options)
            catalog = BrokerCatalog(options, client, admin)
            try:
                if token == token_of("reader"):
                    producer = await client.producer(TopicName.parse(topic))
                    await producer.send(OutgoingMessage(b"x"))
                await catalog.states([topic])
                return await catalog.ends([topic])
            finally:
                await catalog.close()
                await admin.close()
                await client.close()

        assert (await ends_for(token_of("reader")))[topic].entry_id == 1
        with pytest.raises(AccessRefused, match="lacks a right"):
            await ends_for(token_of("stranger"))
        for token in ("", "nonsense"):
            with pytest.raises(AccessRefused, match="option token"):
                await ends_for(token)


async def test_schemas(world: World) -> None:
    topic = f"{NAMESPACE}/t"
    assert await schema_definitions(world.client, TopicName.parse(topic)) == []
    await world.call("PUT", "persistent/public/default/t/partitions", 2)
    await world.call("PUT", "namespaces/public/default/schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE")
    for kind in (Schema.String, Schema.Int32, Schema.Bool):
        schema = Schema(name="t", type=kind, schema_data=b"")
        producer = await world.client.producer(TopicName.parse(f"{topic}-partition-0"), ProducerOptions(schema=schema))
        await producer.close()
    for name in (topic, f"{topic}-partition-1"):
        found = await schema_definitions(world.client, TopicName.parse(name), world.options)
        assert [each.type for each in found] == [Schema.String, Schema.Int32, Schema.Bool]
        assert [int.from_bytes(each.version, "big") for each in found] == [0, 1, 2]
    newest = await schema_definitions(world.client, TopicName.parse(topic), versions_max=2)
    assert [each.type for each in newest] == [Schema.Int32, Schema.Bool]
    one = await definition_of_version(world.client, TopicName.parse(topic), (1).to_bytes(8, "big"))
    assert one is not None
    assert one.type == Schema.Int32
    assert await definition_of_version(world.client, TopicName.parse(topic), (9).to_bytes(8, "big")) is None
