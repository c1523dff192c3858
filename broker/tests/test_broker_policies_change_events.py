"""Topic policies over system topics that a real broker serves."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import json
import subprocess
import sys
import zlib
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import fastavro
import google_crc32c
import pytest
from magnetar.broker.peers.internal_client import InternalClient
from magnetar.broker.policies import change_state
from magnetar.broker.policies.api import TopicPolicies
from magnetar.broker.policies.change_events import ChangeEvents
from magnetar.broker.policies.change_events_namespace import ENTRY_BOUNDS
from magnetar.broker.policies.change_events_parts import ChangeEventsParts
from magnetar.broker.policies.change_events_settings import ChangeEventsSettings
from magnetar.broker.policies.change_events_writer import LOCKS_PATH
from magnetar.broker.policies.change_state import CHANGE_BYTES, POLICIES_BYTES_MAX, ChangeState
from magnetar.broker.policies.event_codec import (
    NEWER_PROPERTY,
    READ_PRIORITY,
    Change,
    UnknownPolicy,
    encode_update,
    registered_schema,
)
from magnetar.broker.policies.events_topic import PoliciesTooLarge, PoliciesUnavailable
from magnetar.broker.resources import Resources
from magnetar.broker.schema.schema_info import StoredSchema
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.broker.topics.topic import PersistentTopic
from magnetar.client.client import PulsarClient
from magnetar.client.message import Message, MessageId, OutgoingMessage
from magnetar.client.producer import ProducerOptions
from magnetar.client.reader import Reader
from magnetar.core.clock import SystemClock
from magnetar.core.topic_name import NamespaceName, TopicName, java_url_encode
from magnetar.metadata.coordination import ResourceLock
from magnetar.metadata.store import MetadataStore, StoreUnavailable
from magnetar.wire.pulsar.batch import build_message
from magnetar.wire.pulsar.compression_type import Compression
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import BaseCommand, MessageMetadata, Schema
from magnetar.wire.pulsar.metadata import full_metadata, metadata_bounds

VECTORS: dict[str, str] = json.loads(Path(__file__).with_name("change_events_vectors.json").read_text())["messages"]

TOPIC = TopicName.parse("persistent://public/default/t")
OTHER = TopicName.parse("persistent://public/default/other")
EVENTS = TopicName.parse("persistent://public/default/__change_events")
QUICK = ChangeEventsSettings(read_timeout_seconds=30, update_timeout_seconds=30, retry_seconds=0.02)


class Stores:
    """As many brokers' stores as a test wants, each with a session and a client of its own."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.broker = broker
        self._opened: list[tuple[ChangeEvents, InternalClient, MetadataStore]] = []
        self.service_url = broker.running.settings.service_url

    def open(
        self, settings: ChangeEventsSettings = QUICK, in_use: Callable[[], Iterable[NamespaceName]] = tuple
    ) -> ChangeEvents:
        session = self.broker.store.another_session()
        client = InternalClient(lambda: self.service_url, SystemClock(), "test")
        store = ChangeEvents(
            ChangeEventsParts(
                client=client.get,
                store=session,
                resources=Resources(session),
                cluster="standalone",
                holder=f"broker-{len(self._opened)}",
                settings=settings,
                in_use=in_use,
            )
        )
        self._opened.append((store, client, session))
        return store

    async def close(self) -> None:
        for store, client, session in self._opened:
            await store.close()
            await client.close()
            await session.close()


@pytest.fixture
async def stores(memory_broker: MemoryBroker) -> AsyncIterator[Stores]:
    stores = Stores(memory_broker)
    yield stores
    await stores.close()


@pytest.fixture
async def client(memory_broker: MemoryBroker) -> AsyncIterator[PulsarClient]:
    client = PulsarClient(lambda: memory_broker.running.settings.service_url, SystemClock())
    yield client
    await client.close()


def put(**values: Any) -> Callable[[TopicPolicies], TopicPolicies]:
    return lambda policies: {**policies, **values}


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


async def write_as_apache(client: PulsarClient, *names: str) -> None:
    """What Apache's brokers wrote, with keys and all."""
    producer = await client.producer(EVENTS, ProducerOptions(schema=registered_schema()))
    for name in names:
        message = bytes.fromhex(VECTORS[name])
        metadata = full_metadata(message)
        payload = None if metadata.null_value else message[metadata_bounds(message)[1] :]
        await producer.send(OutgoingMessage(payload, key=metadata.partition_key))
    await producer.close()


async def test_nothing_is_set_at_first(stores: Stores, memory_broker: MemoryBroker) -> None:
    store = stores.open()
    assert await store.get(TOPIC) is None
    assert await store.get(TOPIC, is_global=True) is None
    assert store.peek(TOPIC) == {}
    await store.delete(TOPIC)
    await store.update(TOPIC, lambda policies: policies)
    assert not await memory_broker.service.exists(EVENTS)


async def test_changes_are_in_force_when_update_returns(stores: Stores) -> None:
    store = stores.open()
    told: list[TopicName] = []
    stop = store.watch(told.append)
    await store.update(TOPIC, put(messageTTLInSeconds=5))
    assert store.peek(TOPIC) == {"messageTTLInSeconds": 5}
    assert store.peek(TOPIC.partition(2)) == {"messageTTLInSeconds": 5}
    await store.update(TOPIC.partition(1), put(maxMessageSize=9))
    await store.update(TOPIC, put(maxMessageSize=1, compactionThreshold=7), is_global=True)
    assert await store.get(TOPIC) == {"messageTTLInSeconds": 5, "maxMessageSize": 9}
    assert await store.get(TOPIC, is_global=True) == {"maxMessageSize": 1, "compactionThreshold": 7}
    assert store.peek(TOPIC) == {"messageTTLInSeconds": 5, "maxMessageSize": 9, "compactionThreshold": 7}
    assert told == [TOPIC] * 3
    stop()
    await store.update(TOPIC, lambda _: {})
    assert await store.get(TOPIC) == {}
    await store.delete(TOPIC)
    assert await store.get(TOPIC) is None
    assert await store.get(TOPIC, is_global=True) is None
    assert store.peek(TOPIC) == {}
    assert len(told) == 3


async def test_messages_are_as_apaches(stores: Stores, client: PulsarClient) -> None:
    store = stores.open()
    await store.update(TOPIC, put(messageTTLInSeconds=5))
    await store.update(TOPIC, put(messageTTLInSeconds=5))  # Nothing new: nothing is written.
    await store.update(TOPIC, put(messageTTLInSeconds=6), is_global=True)
    await store.delete(TOPIC)
    reader = await client.reader(EVENTS)
    messages = [message async for message in _all(reader)]
    assert [(message.key, list(message.metadata.replicate_to), message.has_no_value) for message in messages] == [
        (f"{TOPIC}", ["standalone"], False),
        (f"__G__{TOPIC}", [], False),
        (f"{TOPIC}", ["standalone"], True),
        (f"__G__{TOPIC}", [], True),
    ]
    assert {message.schema_version for message in messages} == {bytes(8)}
    assert (await client.schema(EVENTS)).schema_data == registered_schema().schema_data


async def _all(reader: Any) -> AsyncIterator[Any]:
    while (message := await reader.next_or_end()) is not None:
        yield message


async def test_what_apache_wrote_is_read_before_get_returns(stores: Stores, client: PulsarClient) -> None:
    await write_as_apache(client, "one field set", "everything, local", "everything, global", "removed, local")
    store = stores.open()
    full0, full1, t1 = (TopicName.parse(f"persistent://public/default/{name}") for name in ("full0", "full1", "t1"))
    everything = await store.get(full0)
    assert everything is not None
    assert len(everything) == 30
    assert await store.get(t1) == {"messageTTLInSeconds": 77}
    assert await store.get(full1) is None
    assert store.peek(full1)["messageTTLInSeconds"] == 77
    # And goes on being read.
    await write_as_apache(client, "removed, global")
    await until(lambda: store.peek(full1) == {})


async def test_other_brokers_changes_are_heard_of(stores: Stores) -> None:
    ours, theirs = stores.open(), stores.open()
    told: list[TopicName] = []
    theirs.watch(told.append)
    assert await theirs.get(OTHER) is None  # The namespace is in use there, and has no system topic yet.
    await ours.update(TOPIC, put(messageTTLInSeconds=5))
    await until(lambda: theirs.peek(TOPIC) == {"messageTTLInSeconds": 5})
    assert told == [TOPIC]
    await ours.delete(TOPIC)
    await until(lambda: theirs.peek(TOPIC) == {})
    assert await theirs.get(TOPIC) is None


async def test_no_change_of_several_writers_is_lost(stores: Stores) -> None:
    brokers = [stores.open() for _ in range(3)]

    def count_up(policies: TopicPolicies) -> TopicPolicies:
        return {**policies, "maxMessageSize": policies.get("maxMessageSize", 0) + 1}

    await asyncio.gather(*(broker.update(TOPIC, count_up) for broker in brokers for _ in range(5)))
    await until(lambda: all(broker.peek(TOPIC) == {"maxMessageSize": 15} for broker in brokers))


async def test_a_change_waits_for_the_broker_that_makes_another(stores: Stores) -> None:
    """A deletion is not read back: without the lock, it could take with it what it had never read."""
    patient = stores.open()
    await patient.update(TOPIC, put(maxMessageSize=1))
    path = f"{LOCKS_PATH}/{java_url_encode(str(TOPIC))}"
    session = stores.broker.store.another_session()
    lock = ResourceLock(session, path, b"another broker", lambda _: None)
    await lock.acquire()
    impatient = stores.open(dataclasses.replace(QUICK, update_timeout_seconds=0.2))
    assert await impatient.get(TOPIC) == {"maxMessageSize": 1}
    with pytest.raises(PoliciesUnavailable, match="in time"):
        await impatient.update(TOPIC, put(maxMessageSize=2))
    with pytest.raises(PoliciesUnavailable, match="in time"):
        await impatient.delete(TOPIC)
    assert await patient.get(TOPIC) == {"maxMessageSize": 1}
    await lock.release()
    await session.close()
    await patient.delete(TOPIC)
    assert await patient.get(TOPIC) is None


async def test_a_change_that_comes_between_is_built_upon(stores: Stores, client: PulsarClient) -> None:
    """Apache's brokers know nothing of our lock."""
    topic = TopicName.parse("persistent://public/default/t1")
    store = stores.open()
    await store.update(topic, put(maxMessageSize=1))
    writes: list[asyncio.Task[None]] = []

    def change(policies: TopicPolicies) -> TopicPolicies:
        return {**policies, "maxConsumerPerTopic": 3}

    producer = await client.producer(EVENTS, ProducerOptions(schema=registered_schema()))
    message = bytes.fromhex(VECTORS["one field set"])
    theirs = OutgoingMessage(message[metadata_bounds(message)[1] :], key=str(topic))
    opened = store._opened(topic.namespace_name)[1]
    send = opened._send

    async def send_after_them(*arguments: Any, **options: Any) -> Any:
        if not writes:
            writes.append(asyncio.create_task(_send(producer, theirs)))
            await writes[0]
        return await send(*arguments, **options)

    opened._send = send_after_them  # type: ignore[method-assign] # The moment between cannot be hit otherwise.
    await store.update(topic, change)
    assert store.peek(topic) == {"messageTTLInSeconds": 77, "maxConsumerPerTopic": 3}


async def _send(producer: Any, message: OutgoingMessage) -> None:
    await producer.send(message)


@pytest.mark.parametrize("held", ["not taken yet", "being applied"])
async def test_a_change_that_has_come_is_waited_for(stores: Stores, monkeypatch: pytest.MonkeyPatch, held: str) -> None:
    """Whoever deletes the policies now deletes these, too: before it is taken, and while its schema is asked for."""
    ours, theirs = stores.open(), stores.open()
    changes = ours._opened(TOPIC.namespace_name)[0]
    go_on = asyncio.Event()
    looks = 0

    async def heard_of(seconds: int) -> None:
        await theirs.update(OTHER, put(messageTTLInSeconds=seconds))
        await until(lambda: ours.peek(OTHER) == {"messageTTLInSeconds": seconds})

    async def decode_late(message: Message) -> Change | None:
        await go_on.wait()
        return await decode(message)

    async def wait_late() -> None:
        await go_on.wait()
        if not reader._queue:
            await wait()

    def look(reader: Reader, last: MessageId) -> bool:
        nonlocal looks
        looks += 1
        return has_applied(reader, last)

    await heard_of(1)
    await changes.until_followed()
    await heard_of(2)
    reader, has_applied = changes._readers[0], changes._has_applied
    decode, wait = changes._decoded, reader._wait_for_news
    if held == "being applied":
        monkeypatch.setattr(changes, "_decoded", decode_late)
    else:
        monkeypatch.setattr(reader, "_wait_for_news", wait_late)
        await heard_of(3)  # It ends the wait that has begun.
    monkeypatch.setattr(changes, "_has_applied", look)
    await theirs.update(TOPIC, put(messageTTLInSeconds=5))
    await until(lambda: changes._applying or reader._queue)
    deleting = asyncio.create_task(ours.delete(TOPIC))
    await until(lambda: looks > 1 or deleting.done())
    assert not deleting.done()
    go_on.set()
    await deleting
    assert await ours.get(TOPIC) is None
    assert await stores.open().get(TOPIC) is None


async def test_a_refused_change_changes_nothing(stores: Stores) -> None:
    store = stores.open()
    await store.update(TOPIC, put(maxMessageSize=1))

    def refuse(policies: TopicPolicies) -> TopicPolicies:
        raise PulsarError(ServerError.NOT_ALLOWED_ERROR, f"not over {policies}")

    with pytest.raises(PulsarError):
        await store.update(TOPIC, refuse)
    with pytest.raises(UnknownPolicy):
        await store.update(TOPIC, put(noSuchPolicy=1))
    await store.update(TOPIC, put(maxMessageSize=2))
    assert await store.get(TOPIC) == {"maxMessageSize": 2}


async def test_callers_cannot_change_what_is_kept(stores: Stores) -> None:
    store = stores.open()
    await store.update(TOPIC, put(replicationClusters=["a"]))
    got = await store.get(TOPIC)
    assert got is not None
    got["replicationClusters"].append("b")

    def clear_and_fail(policies: TopicPolicies) -> TopicPolicies:
        policies["replicationClusters"].clear()
        raise KeyError("refused")

    with pytest.raises(KeyError, match="refused"):
        await store.update(TOPIC, clear_and_fail)
    assert await store.get(TOPIC) == {"replicationClusters": ["a"]}


async def test_system_topics_have_none(stores: Stores) -> None:
    store = stores.open()
    assert await store.get(EVENTS) is None
    await store.delete(EVENTS)
    with pytest.raises(PulsarError):
        await store.update(EVENTS, put(maxMessageSize=1))


async def test_a_partitioned_system_topic(stores: Stores, client: PulsarClient, memory_broker: MemoryBroker) -> None:
    """As Apache's brokers make it where new topics are partitioned."""
    await memory_broker.service.partitioned.create(EVENTS, 3)
    for topic in await client.topics(EVENTS):
        await (await client.producer(topic)).close()
    store, other = stores.open(), stores.open()
    topics = [TopicName.parse(f"persistent://public/default/t{number}") for number in range(8)]
    for number, topic in enumerate(topics):
        await store.update(topic, put(maxMessageSize=number))
    await store.delete(topics[0])
    assert await other.get(topics[0]) is None
    assert [other.peek(topic) for topic in topics[1:]] == [{"maxMessageSize": number} for number in range(1, 8)]
    written = [await _count(client, topic) for topic in EVENTS_PARTITIONS]
    assert sum(written) == 9
    assert min(written) > 0


EVENTS_PARTITIONS = [EVENTS.partition(index) for index in range(3)]


async def _count(client: PulsarClient, topic: TopicName) -> int:
    return len([message async for message in _all(await client.reader(topic))])


async def test_the_system_topics_end_is_the_policies_end(stores: Stores, memory_broker: MemoryBroker) -> None:
    store = stores.open()
    told: list[TopicName] = []
    await store.update(TOPIC, put(maxMessageSize=1))
    store.watch(told.append)
    await memory_broker.service.delete(EVENTS, force=True)
    await until(lambda: store.peek(TOPIC) == {})
    assert told == [TOPIC]
    await store.update(TOPIC, put(maxMessageSize=2))
    assert await store.get(TOPIC) == {"maxMessageSize": 2}


async def test_what_was_deleted_is_in_force_for_nobody_who_asks_then(
    stores: Stores, memory_broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A namespace may be made again at once, with topics of the same names: they wait until it is known."""
    store = stores.open()
    await store.update(TOPIC, put(messageTTLInSeconds=5))
    changes, _ = store._open[TOPIC.namespace_name]
    existing, held, go_on = changes._existing_topics, asyncio.Event(), asyncio.Event()

    async def slowly() -> list[TopicName]:
        held.set()
        await go_on.wait()
        return await existing()

    monkeypatch.setattr(changes, "_existing_topics", slowly)
    await memory_broker.service.delete(EVENTS, force=True)
    await until(lambda: changes._times_gone)
    asked = asyncio.create_task(store.get(TOPIC))
    await held.wait()
    # Of a look that began before it was deleted once more.
    changes._gone = True
    await changes._become(ChangeState())
    await asyncio.sleep(0.05)
    waits = not asked.done()
    go_on.set()
    assert waits
    changes.look_again()
    assert await asked is None


async def test_who_waits_for_a_change_hears_that_the_system_topic_is_gone(stores: Stores) -> None:
    store = stores.open()
    await store.update(TOPIC, put(messageTTLInSeconds=5))
    changes, _ = store._open[TOPIC.namespace_name]
    waiting = asyncio.create_task(changes.found_by((0, 1 << 40, 0)))
    await asyncio.sleep(0)
    changes.look_again(gone=True)
    done, _ = await asyncio.wait([waiting], timeout=30)
    waiting.cancel()
    assert done
    with pytest.raises(PoliciesUnavailable, match="was deleted meanwhile"):
        waiting.result()


async def test_policies_outlive_an_unloaded_system_topic(stores: Stores, memory_broker: MemoryBroker) -> None:
    store = stores.open()
    await store.update(TOPIC, put(maxMessageSize=1))
    await memory_broker.service.unload(EVENTS)
    await store.update(TOPIC, put(maxProducerPerTopic=1))
    assert store.peek(TOPIC) == {"maxMessageSize": 1, "maxProducerPerTopic": 1}


async def test_a_change_that_cannot_be_read_is_passed_over(stores: Stores, client: PulsarClient) -> None:
    producer = await client.producer(EVENTS, ProducerOptions(schema=registered_schema()))
    await producer.send(OutgoingMessage(b"\x02\x04nonsense", key=str(TOPIC)))
    await producer.send(OutgoingMessage(None, key="no/topic/at/all"))
    await producer.close()
    await write_as_apache(client, "one field set")
    store = stores.open()
    assert await store.get(TopicName.parse("persistent://public/default/t1")) == {"messageTTLInSeconds": 77}
    assert await store.get(TOPIC) is None


async def test_policies_of_one_topic_have_a_limit(stores: Stores, client: PulsarClient) -> None:
    store = stores.open()
    rates = {f"s{number}": {"dispatchRate": {"dispatchThrottlingRateInMsg": 1}} for number in range(10_000)}
    with pytest.raises(PoliciesTooLarge, match="at most 32768 are kept"):
        await store.update(TOPIC, put(subscriptionPolicies=rates))
    assert await store.get(TOPIC) is None
    few = {name: rates[name] for name in list(rates)[:500]}
    await store.update(TOPIC, put(subscriptionPolicies=few))
    assert len(store.peek(TOPIC)["subscriptionPolicies"]) == 500
    # Whoever writes there without asking is heard no better.
    producer = await client.producer(EVENTS, ProducerOptions(schema=registered_schema()))
    payload = encode_update(TOPIC, {"subscriptionPolicies": rates}, is_global=False, cluster="standalone")
    assert len(payload) > POLICIES_BYTES_MAX
    await producer.send(OutgoingMessage(payload, key=str(TOPIC)))
    await producer.close()
    assert len((await stores.open().get(TOPIC) or {})["subscriptionPolicies"]) == 500


async def test_policies_of_one_namespace_have_a_limit(
    stores: Stores, client: PulsarClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_state, "NAMESPACE_POLICIES_BYTES_MAX", 50 * CHANGE_BYTES)
    producer = await client.producer(EVENTS, ProducerOptions(schema=registered_schema()))
    for number in range(200):
        topic = TopicName.parse(f"persistent://public/default/made-up-{number}")
        payload = encode_update(topic, {"maxMessageSize": number}, is_global=False, cluster="standalone")
        await producer.send(OutgoingMessage(payload, key=str(topic)))
    await producer.close()
    store = stores.open()
    first = TopicName.parse("persistent://public/default/made-up-0")
    assert await store.get(first) == {"maxMessageSize": 0}
    assert await store.get(TopicName.parse("persistent://public/default/made-up-199")) is None
    with pytest.raises(PoliciesTooLarge, match="bytes already"):
        await store.update(TOPIC, put(maxMessageSize=1))
    await store.update(first, put(maxMessageSize=7))
    await store.delete(first)
    await store.update(TOPIC, put(maxMessageSize=1))
    assert store.peek(TOPIC) == {"maxMessageSize": 1}


async def test_a_load_waits_no_longer_than_told(stores: Stores, client: PulsarClient) -> None:
    await write_as_apache(client, "one field set")
    patience = ChangeEventsSettings(read_timeout_seconds=0.05, retry_seconds=0.01)
    store = stores.open(patience)
    right_url, stores.service_url = stores.service_url, "pulsar://127.0.0.1:1"
    topic = TopicName.parse("persistent://public/default/t1")
    with pytest.raises(PoliciesUnavailable):
        await store.get(topic)
    stores.service_url = right_url
    async with asyncio.timeout(30):
        while True:
            try:
                assert await store.get(topic) == {"messageTTLInSeconds": 77}
                break
            except PoliciesUnavailable:
                continue


async def test_a_load_does_not_wait_for_a_broker_that_stops(stores: Stores, client: PulsarClient) -> None:
    """It would hold up the stop until its time is over."""
    await write_as_apache(client, "one field set")
    store = stores.open(ChangeEventsSettings(read_timeout_seconds=3_600, retry_seconds=0.01))
    stores.service_url = "pulsar://127.0.0.1:1"
    loading = asyncio.create_task(store.get(TopicName.parse("persistent://public/default/t1")))
    await until(lambda: store._open)
    await store.close()
    async with asyncio.timeout(30):
        with pytest.raises(PoliciesUnavailable):
            await loading


async def test_changes_missed_while_the_store_was_away(stores: Stores) -> None:
    ours, theirs = stores.open(), stores.open()
    assert await theirs.get(TOPIC) is None
    theirs._stops[0]()  # Hears of no node any more.
    await ours.update(TOPIC, put(maxMessageSize=1))
    assert theirs.peek(TOPIC) == {}
    stores._opened[1][2].expire_session()  # type: ignore[attr-defined] # The memory store's own.
    await until(lambda: theirs.peek(TOPIC) == {"maxMessageSize": 1})


async def test_namespaces_that_nobody_uses_are_let_go_of(stores: Stores, memory_broker: MemoryBroker) -> None:
    used = TOPIC.namespace_name
    store = stores.open(ChangeEventsSettings(idle_namespaces_max=4), in_use=lambda: [used])
    await store.update(TOPIC, put(maxMessageSize=1))
    for number in range(50):
        assert await store.get(TopicName.parse(f"persistent://public/n{number}/t")) is None
    assert len(store._absent) < 20
    assert set(store._open) == {used}
    assert store.peek(TOPIC) == {"maxMessageSize": 1}


async def policies_in(stores: Stores, client: PulsarClient, namespace: str, count: int) -> TopicName:
    """A namespace with policies of so many topics; one of these."""
    resources = Resources(stores.broker.store)
    bundles = {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1}
    document = {"replication_clusters": ["standalone"], "bundles": bundles}
    await resources.documents.put(f"/admin/policies/public/{namespace}", document)
    producer = await client.producer(
        TopicName.parse(f"persistent://public/{namespace}/__change_events"),
        ProducerOptions(schema=registered_schema()),
    )
    topic = TopicName.parse(f"persistent://public/{namespace}/t")
    for number in range(count):
        topic = TopicName.parse(f"persistent://public/{namespace}/t{number}")
        payload = encode_update(topic, {"maxMessageSize": 5}, is_global=False, cluster="standalone")
        await producer.send(OutgoingMessage(payload, key=str(topic)))
    await producer.close()
    return topic


async def test_policies_of_all_namespaces_have_a_limit(stores: Stores, client: PulsarClient) -> None:
    """No further namespace is read beyond it; those that are read stay as they are."""
    topics = [await policies_in(stores, client, name, 30) for name in ("n1", "n2", "n3")]
    settings = dataclasses.replace(QUICK, held_bytes_max=100 * CHANGE_BYTES, crowded_retry_seconds=0.05)
    used = {topic.namespace_name for topic in topics}
    store = stores.open(settings, in_use=lambda: used)
    assert await store.get(topics[0]) == {"maxMessageSize": 5}
    assert await store.get(topics[1]) == {"maxMessageSize": 5}
    assert store.held_bytes > 60 * CHANGE_BYTES
    with pytest.raises(PoliciesUnavailable, match="public/n3 are not read: those of all namespaces take"):
        await store.get(topics[2])
    await store.update(topics[0], put(maxMessageSize=7))
    assert (store.peek(topics[0]), store.peek(topics[1])) == ({"maxMessageSize": 7}, {"maxMessageSize": 5})
    for number in range(30):
        await store.delete(TopicName.parse(f"persistent://public/n1/t{number}"))
    # There is room again.
    async with asyncio.timeout(30):
        while True:
            try:
                assert await store.get(topics[2]) == {"maxMessageSize": 5}
                break
            except PoliciesUnavailable:
                await asyncio.sleep(0.01)


async def test_large_namespaces_that_nobody_uses_make_room(stores: Stores, client: PulsarClient) -> None:
    topics = [await policies_in(stores, client, name, 30) for name in ("n1", "n2", "n3")]
    settings = dataclasses.replace(
        QUICK, held_bytes_max=100 * CHANGE_BYTES, crowded_retry_seconds=0.05, idle_seconds_min=0.5
    )
    store = stores.open(settings, in_use=lambda: {topics[1].namespace_name})
    for topic in topics[:2]:
        assert await store.get(topic) == {"maxMessageSize": 5}
    # Whoever loads a topic asks again; the first one is not asked for any more.
    async with asyncio.timeout(60):
        while True:
            try:
                assert await store.get(topics[2]) == {"maxMessageSize": 5}
                break
            except PoliciesUnavailable:
                await asyncio.sleep(0.01)
    assert topics[0].namespace_name not in store._open
    assert store.peek(topics[1]) == {"maxMessageSize": 5}


async def test_a_broker_knows_them_again_after_a_restart(memory_broker: MemoryBroker) -> None:
    await memory_broker.running.context.topic_policies.update(TOPIC, put(maxMessageSize=1))
    await memory_broker.stop()
    await memory_broker.start()
    await memory_broker.service.topic(TOPIC, create=True)
    policies = memory_broker.running.context.topic_policies
    assert policies.peek(TOPIC) == {"maxMessageSize": 1}, "known before anybody can publish"
    await policies.update(TOPIC, put(maxProducerPerTopic=2))
    assert await policies.get(TOPIC) == {"maxMessageSize": 1, "maxProducerPerTopic": 2}


async def test_a_stopping_broker_says_so(stores: Stores) -> None:
    store = stores.open()
    await store.update(TOPIC, put(maxMessageSize=1))
    await store.close()
    assert store.peek(TOPIC) == {"maxMessageSize": 1}
    with pytest.raises(PoliciesUnavailable):
        await store.get(TOPIC)
    with pytest.raises(PoliciesUnavailable):
        await store.update(TOPIC, put(maxMessageSize=2))
    with pytest.raises(PoliciesUnavailable):
        await store.delete(TOPIC)


@pytest.mark.slow
def test_without_topic_policies_nothing_is_imported() -> None:
    code = (
        "import sys, magnetar.broker.app, magnetar.broker.policies.change_events\n"
        "import magnetar.broker.peers.internal_client\n"
        "print([name for name in sys.modules if name.startswith(('fastavro', 'magnetar.client'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- what anybody may write there

RECURSIVE = b'{"type":"record","name":"A","fields":[{"name":"n","type":["null","A"]}]}'
NULLS = b'{"type":"record","name":"A","fields":[{"name":"x","type":{"type":"array","items":"null"}}]}'
KNOWN = TopicName.parse("persistent://public/default/t1")
"""Whose policies the vector `one field set` sets."""


def avro(schema: bytes) -> Schema:
    return Schema(name="", schema_data=schema, type=Schema.Avro)


def event_of(policies: dict[str, tuple[Any, Any]], namespace: str = "default") -> tuple[bytes, bytes]:
    """A schema, and a change by it: policies by name, each with its own type and value."""
    fields = [{"name": name, "type": kind} for name, (kind, _) in policies.items()]
    about: list[dict[str, Any]] = [
        {"name": name, "type": "string"} for name in ("domain", "tenant", "namespace", "topic")
    ]
    about.append({"name": "policies", "type": {"type": "record", "name": "P", "fields": fields}})
    schema = {
        "type": "record",
        "name": "E",
        "fields": [
            {"name": "eventType", "type": "string"},
            {"name": "topicPoliciesEvent", "type": {"type": "record", "name": "T", "fields": about}},
        ],
    }
    topic = {"domain": "persistent", "tenant": "public", "namespace": namespace, "topic": "t"}
    values = {name: value for name, (_, value) in policies.items()}
    output = io.BytesIO()
    event = {"eventType": "TOPIC_POLICY", "topicPoliciesEvent": {**topic, "policies": values}}
    fastavro.schemaless_writer(output, schema, event)
    return json.dumps(schema).encode(), output.getvalue()


BAD_EVENTS: dict[str, tuple[bytes | None, bytes, bytes | None]] = {
    "a schema that contains itself": (RECURSIVE, b"\x02" * 200_000 + b"\0", None),
    "elements that take no bytes": (NULLS, b"\x80\x80\x80\x80\x80\x40\0", None),
    "a version of three bytes": (None, b"x", b"\xff\xff\xff"),
    "a version of no number": (None, b"x", b"\xff" * 8),
    "a version of many bytes": (None, b"x", bytes(64)),
    "a version that is not there": (None, b"x", (99).to_bytes(8, "big")),
    "a text for an object": (*event_of({"offloadPolicies": ("string", "zzz")}), None),
    "a text for a record": (*event_of({"retentionPolicies": ("string", "zzz")}), None),
    "a number for a list": (*event_of({"subscriptionTypesEnabled": ("int", 5)}), None),
    "a number for a text": (
        *event_of({"offloadPolicies": ({"type": "map", "values": "int"}, {READ_PRIORITY: 5})}),
        None,
    ),
    "bytes for what nobody knows": (*event_of({"aNewOne": ("bytes", b"\xff")}), None),
    "another namespace": (*event_of({"maxMessageSize": ("int", 1)}, "other"), None),
}


@pytest.mark.parametrize("name", BAD_EVENTS)
async def test_one_bad_event_stops_nobody(stores: Stores, client: PulsarClient, name: str) -> None:
    """Read as it comes, and again from the beginning, each of them is passed over, and what comes after counts."""
    follower = stores.open()
    await follower.update(TOPIC, put(messageTTLInSeconds=5))
    schema, payload, version = BAD_EVENTS[name]
    options = ProducerOptions() if schema is None else ProducerOptions(schema=avro(schema))
    producer = await client.producer(EVENTS, options)
    message = OutgoingMessage(payload, key="whatever")
    if version is not None:
        message.schema_version = version
    await producer.send(message)
    await producer.close()
    await write_as_apache(client, "one field set")
    await until(lambda: follower.peek(KNOWN))
    for store in (follower, stores.open()):
        assert await store.get(KNOWN) == {"messageTTLInSeconds": 77}
        assert await store.get(TOPIC) == {"messageTTLInSeconds": 5}
    await follower.update(TOPIC, put(messageTTLInSeconds=6))
    assert follower.peek(TOPIC) == {"messageTTLInSeconds": 6}


@pytest.mark.parametrize("newer", ["[" * 100_000, "5", '{"subscriptionExpirationTimeInMinutes": "long"}', "9" * 10_000])
async def test_bad_policies_beside_an_event_stop_nobody(stores: Stores, client: PulsarClient, newer: str) -> None:
    producer = await client.producer(EVENTS, ProducerOptions(schema=registered_schema()))
    payload = encode_update(TOPIC, {"maxMessageSize": 1}, is_global=False, cluster="standalone")
    await producer.send(OutgoingMessage(payload, key=str(TOPIC), properties={NEWER_PROPERTY: newer}))
    await producer.close()
    await write_as_apache(client, "one field set")
    store = stores.open()
    assert await store.get(KNOWN) == {"messageTTLInSeconds": 77}
    assert await store.get(TOPIC) is None


@pytest.mark.parametrize(("count", "size"), [(ENTRY_BOUNDS.messages_max + 1, 0), (0, ENTRY_BOUNDS.size_bytes_max + 1)])
async def test_entries_that_grow_when_they_are_unpacked_stop_nobody(
    stores: Stores,
    memory_broker: MemoryBroker,
    client: PulsarClient,
    caplog: pytest.LogCaptureFixture,
    count: int,
    size: int,
) -> None:
    sender = await memory_broker.connect()
    await sender.producer(str(EVENTS))
    body = b"\0\0\0\2\x18\0" * count or bytes(size)
    fields: dict[str, Any] = {"compression": int(Compression.ZLIB), "uncompressed_size": len(body)}
    if count:
        fields["num_messages_in_batch"] = count
    metadata = MessageMetadata(producer_name="x", sequence_id=1, publish_time=1, **fields)
    content = build_message(metadata, zlib.compress(body))
    sender.send(BaseCommand.SEND, content, producer_id=1, sequence_id=1, num_messages=max(count, 1))
    await sender.expect(BaseCommand.SEND_RECEIPT)
    await write_as_apache(client, "one field set")
    assert await stores.open().get(KNOWN) == {"messageTTLInSeconds": 77}
    assert f"more than {ENTRY_BOUNDS[0] if count else ENTRY_BOUNDS[1]}" in caplog.text


BASE = b"\x0a\x01x\x10\x01\x18\x01"
"""Metadata with all that has to be there."""
BAD_METADATA = {
    "a key of no letters": BASE + b"\x32\x02\xff\xfe",
    "no protobuf": b"\xff" * 20,
    "nothing": b"",
    "a group": BASE + b"\x0b\x0c",
    "a property of no letters": BASE + b"\x22\x06\x0a\x01\xff\x12\x01\xff",
}


@pytest.mark.parametrize("name", BAD_METADATA)
async def test_metadata_that_nobody_can_read_stops_nobody(
    stores: Stores, memory_broker: MemoryBroker, client: PulsarClient, name: str
) -> None:
    """As the last message above all: whoever reads to the end asks for the last one that there is."""
    await write_as_apache(client, "one field set")
    follower = stores.open()
    assert await follower.get(KNOWN)
    metadata = BAD_METADATA[name]
    body = len(metadata).to_bytes(4, "big") + metadata + b"abc"
    checksum = google_crc32c.value(body).to_bytes(4, "big")
    sender = await memory_broker.connect()
    await sender.producer(str(EVENTS))
    sender.send(BaseCommand.SEND, b"\x0e\x01" + checksum + body, producer_id=1, sequence_id=1)
    await sender.expect(BaseCommand.SEND_RECEIPT)
    assert await stores.open().get(KNOWN) == {"messageTTLInSeconds": 77}
    await follower.update(TOPIC, put(messageTTLInSeconds=6))
    topic = await memory_broker.service.topic(EVENTS, create=False)
    assert isinstance(topic, PersistentTopic)
    assert await topic.position_of_time(0) == topic.ledger.ledgers.first_position()
    assert await stores.open().get(TOPIC) == {"messageTTLInSeconds": 6}


async def test_a_schema_that_cannot_be_read_now_is_waited_for(
    stores: Stores, client: PulsarClient, memory_broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unlike one that is not there: the change by it must not be lost."""
    schema, payload = event_of({"messageTTLInSeconds": ("int", 9)})
    producer = await client.producer(EVENTS, ProducerOptions(schema=avro(schema)))
    await producer.send(OutgoingMessage(payload, key=str(TOPIC)))
    await producer.close()
    storage = memory_broker.service.topic_schemas.registry._storage
    reads = 0

    async def fails(position: object) -> StoredSchema:
        nonlocal reads
        reads += 1
        raise StoreUnavailable("the bookies are away")

    with monkeypatch.context() as patched:
        patched.setattr(storage, "read", fails)
        store = stores.open(ChangeEventsSettings(read_timeout_seconds=0.2, retry_seconds=0.01))
        with pytest.raises(PoliciesUnavailable, match="bookies are away"):
            await store.get(TOPIC)
        await until(lambda: reads > 2)
    await until(lambda: store.peek(TOPIC))
    assert await store.get(TOPIC) == {"messageTTLInSeconds": 9}
