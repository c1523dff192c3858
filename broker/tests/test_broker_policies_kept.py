"""Policies from memory, as fresh as the stores tell."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from magnetar.broker.policies import policies as policies_module
from magnetar.broker.policies.effective import BrokerLevel
from magnetar.broker.policies.policies import Policies
from magnetar.broker.resources import Resources, new_policies
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.core.topic_name import NamespaceName, TopicName
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.metadata.store import StoreUnavailable

from broker.tests.memory_topic_policies import MemoryTopicPolicies

NAMESPACE = NamespaceName("t", "n")
TOPIC = TopicName.parse("persistent://t/n/a")
OTHER = TopicName.parse("persistent://t/n/b-partition-3")


class Harness:
    def __init__(self) -> None:
        self.store = MemoryMetadataStore()
        self.resources = Resources(self.store)
        self.own = MemoryTopicPolicies()
        self.tasks: set[asyncio.Task[None]] = set()
        self.told: list[tuple[NamespaceName, TopicName | None]] = []
        self.policies = Policies(
            BrokerLevel(BrokerSettings(), ManagedLedgerSettings()), self.resources, self.spawn, self.in_use
        )
        self.used: list[NamespaceName] = []
        self.policies.use_topic_policies(self.own)
        self.policies.watch(lambda namespace, topic: self.told.append((namespace, topic)))

    def in_use(self) -> list[NamespaceName]:
        return self.used

    def spawn(self, work: Any) -> None:
        self.tasks.add(asyncio.get_running_loop().create_task(work))

    async def write(self, namespace: NamespaceName = NAMESPACE, **fields: Any) -> None:
        document = {**new_policies("standalone", 4), **fields}
        await self.resources.documents.put(Resources.namespace_path(namespace), document)

    async def settle(self) -> None:
        while self.tasks:
            await self.tasks.pop()


@pytest.fixture
async def kept() -> AsyncIterator[Harness]:
    harness = Harness()
    yield harness
    await harness.settle()
    harness.policies.close()


async def test_no_namespace_no_policies(kept: Harness) -> None:
    assert await kept.policies.load(TOPIC) is None
    assert kept.policies.of(TOPIC) is kept.policies.defaults
    await kept.write(message_ttl_in_seconds=3)
    policies = await kept.policies.load(TOPIC)
    assert policies is not None
    assert policies.message_ttl_seconds == 3


async def test_topics_share_one_object_and_so_do_those_with_the_same_own_policies(kept: Harness) -> None:
    await kept.write()
    assert await kept.policies.load(TOPIC) is await kept.policies.load(OTHER)
    for topic in (TOPIC, OTHER):
        await kept.own.update(topic, lambda _: {"maxConsumerPerTopic": 7})
    assert kept.policies.of(TOPIC) is kept.policies.of(OTHER)
    assert kept.policies.of(TOPIC).consumers_max == 7
    assert kept.told == [(NAMESPACE, TOPIC), (NAMESPACE, OTHER.partitioned_name())]


async def test_a_change_is_told_after_it_holds(kept: Harness) -> None:
    await kept.write()
    await kept.policies.load(TOPIC)
    found: list[int] = []
    kept.policies.watch(lambda *_: found.append(kept.policies.of(TOPIC).message_ttl_seconds))
    await kept.write(message_ttl_in_seconds=3)
    await kept.settle()
    assert found == [3]
    await kept.write(message_ttl_in_seconds=3)
    await kept.settle()
    assert found == [3]
    await kept.write(message_ttl_in_seconds=4)
    await kept.policies.refresh(NAMESPACE)
    assert kept.policies.of(TOPIC).message_ttl_seconds == 4


async def test_a_change_while_reading_is_read_again(kept: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    await kept.write(message_ttl_in_seconds=1)
    read = kept.resources.policies
    reads = 0

    async def slow(namespace: NamespaceName) -> Any:
        nonlocal reads
        reads += 1
        document = await read(namespace)
        if reads == 1:
            await kept.write(message_ttl_in_seconds=2)
        return document

    monkeypatch.setattr(kept.resources, "policies", slow)
    policies = await kept.policies.load(TOPIC)
    assert policies is not None
    assert (policies.message_ttl_seconds, reads) == (2, 2)


async def test_a_deleted_namespace_is_forgotten(kept: Harness) -> None:
    await kept.write(message_ttl_in_seconds=1)
    await kept.policies.load(TOPIC)
    await kept.resources.documents.delete(Resources.namespace_path(NAMESPACE))
    await kept.settle()
    assert await kept.policies.load(TOPIC) is None


async def test_what_cannot_be_read_again_holds_on_and_is_tried_later(
    kept: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await kept.write(message_ttl_in_seconds=1)
    await kept.policies.load(TOPIC)

    async def away(_: NamespaceName) -> Any:
        raise StoreUnavailable("away")

    with monkeypatch.context() as broken:
        broken.setattr(kept.resources, "policies", away)
        await kept.write(message_ttl_in_seconds=2)
        await kept.settle()
        assert kept.policies.of(TOPIC).message_ttl_seconds == 1
        with pytest.raises(StoreUnavailable):
            await kept.policies.load(TopicName.parse("persistent://t/m/x"))
    kept.policies.retry()
    await kept.settle()
    assert kept.policies.of(TOPIC).message_ttl_seconds == 2


@pytest.mark.parametrize("session_lost", [True, False])
async def test_what_nobody_told_of_is_read_when_the_store_is_there_again(kept: Harness, session_lost: bool) -> None:
    await kept.write(message_ttl_in_seconds=1)
    await kept.policies.load(TOPIC)
    kept.store.changes.clear()
    other = kept.store.another_session()
    document = {**new_policies("standalone", 4), "message_ttl_in_seconds": 2}
    await Resources(other).documents.put(Resources.namespace_path(NAMESPACE), document)
    await kept.settle()
    assert kept.policies.of(TOPIC).message_ttl_seconds == 1
    if session_lost:
        kept.store.expire_session()
    else:
        kept.store.disconnect()
        kept.store.reconnect()
    await asyncio.sleep(0)
    await kept.settle()
    assert kept.policies.of(TOPIC).message_ttl_seconds == 2
    await other.close()


async def test_namespaces_without_topics_make_room(kept: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies_module, "NAMESPACES_KEPT", 2)
    kept.policies._namespaces_max = 2
    kept.used = [NAMESPACE]
    for name in ("n", "m", "o", "p"):
        await kept.write(NamespaceName("t", name), message_ttl_in_seconds=5)
        await kept.policies.namespace(NamespaceName("t", name))
    assert NAMESPACE in kept.policies._namespaces
    assert len(kept.policies._namespaces) <= 3


async def test_system_topics_have_no_policies_of_their_own(kept: Harness) -> None:
    events = TopicName.parse("persistent://t/n/__change_events")
    await kept.write()
    await kept.own.update(events, lambda _: {"maxConsumerPerTopic": 7})
    policies = await kept.policies.load(events)
    assert policies is not None
    assert policies.consumers_max == 0
