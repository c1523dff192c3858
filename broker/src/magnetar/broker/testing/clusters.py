"""Several brokers over one metadata tree and the same bookies, in one process, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import TracebackType
from typing import Any, Final

from magnetar.broker.bundles.lookup_answers import Connect
from magnetar.broker.bundles.owned_bundles import OwnedBundle
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.testing.sessions import PATIENCE_SECONDS, MemoryBroker, ProtocolClient, SharedParts
from magnetar.core.bundle import BundleName
from magnetar.core.clock import Clock
from magnetar.core.topic_name import TopicName
from magnetar.ledger.testing import MemoryBookies
from magnetar.metadata.memory import MemoryMetadataStore, MemoryTree
from magnetar.metadata.store import MetadataStore
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

HOPS_MAX: Final = 10
"""Redirects that a lookup may take before a test takes them for a loop."""

OpenStore = Callable[[], Awaitable[MetadataStore]]


class MemoryCluster:
    """Brokers of one cluster. An asynchronous context manager."""

    def __init__(
        self, count: int, settings: BrokerSettings | None = None, *, open_store: OpenStore | None = None
    ) -> None:
        """`open_store` opens a session of a broker's own; without, it is one on a tree in memory."""
        tree = MemoryTree()

        async def open_on_tree() -> MetadataStore:
            return MemoryMetadataStore(tree)

        self._settings = settings if settings is not None else BrokerSettings(cluster_name="memory")
        self._open_store = open_store if open_store is not None else open_on_tree
        self._count = count
        self.bookies = MemoryBookies()
        self.brokers: list[MemoryBroker] = []

    def __getitem__(self, index: int) -> MemoryBroker:
        return self.brokers[index]

    async def add(self, settings: BrokerSettings | None = None, clock: Clock | None = None) -> MemoryBroker:
        """Start one more broker."""
        shared = SharedParts(await self._open_store(), self.bookies)
        settings = settings if settings is not None else replace(self._settings)
        broker = MemoryBroker(settings, clock=clock, shared=shared)
        try:
            await broker.start()
        except BaseException:
            await shared.store.close()
            raise
        self.brokers.append(broker)
        return broker

    async def settled(self) -> None:
        """Until all brokers know all brokers and the leader."""
        ids = {broker.running.context.ownership.own.broker_id for broker in self.brokers}

        def agree() -> bool:
            loads = [broker.running.context.load for broker in self.brokers]
            return all(set(load.brokers()) == ids and load.leader() is not None for load in loads)

        await until(agree)

    async def stop(self, broker: MemoryBroker) -> None:
        """Stop one in good order, with its session."""
        self.brokers.remove(broker)
        await broker.stop()
        await broker.store.close()

    def owners(self, bundle: BundleName) -> list[MemoryBroker]:
        """The brokers that count a bundle as theirs and would serve it."""
        return [broker for broker in self.brokers if (owned := self.owned(broker, bundle)) and owned.active]

    @staticmethod
    def owned(broker: MemoryBroker, bundle: BundleName) -> OwnedBundle | None:
        """A broker's bundle of this name."""
        return broker.running.context.ownership.owned().get(bundle)

    async def bundle_of(self, topic: str) -> BundleName:
        """The bundle that a topic is in."""
        bundle: BundleName = await self.brokers[0].running.context.bundles.bundle_of(TopicName.parse(topic))
        return bundle

    async def take(self, broker: MemoryBroker, topic: str) -> BundleName:
        """Make a broker own a topic's bundle, as if the leader had sent a client there."""
        answer = await broker.running.context.lookup.find(TopicName.parse(topic), authoritative=True)
        assert isinstance(answer, Connect)
        assert answer.ours, answer.addresses
        owned = broker.running.context.ownership.serving(TopicName.parse(topic))
        assert owned is not None
        return owned.name

    def by_url(self, service_url: str) -> MemoryBroker:
        """The broker with this address."""
        return next(broker for broker in self.brokers if broker.running.settings.service_url == service_url)

    async def lookup(self, start: MemoryBroker, topic: str) -> MemoryBroker:
        """Where lookups lead that begin at a broker, as a client follows them."""
        broker, authoritative = start, False
        for _ in range(HOPS_MAX):
            client = await broker.connect()
            answer: Any = await client.request(pb.BaseCommand.LOOKUP, topic=topic, authoritative=authoritative)
            body = answer.body
            assert body.response != pb.CommandLookupTopicResponse.Failed, answer
            broker, authoritative = self.by_url(body.brokerServiceUrl), body.authoritative
            if body.response == pb.CommandLookupTopicResponse.Connect:
                return broker
        raise AssertionError(f"{topic} is sent from broker to broker")

    async def client_of(self, topic: str) -> ProtocolClient:
        """A connection to the owner of a topic."""
        return await (await self.lookup(self.brokers[0], topic)).connect()

    async def stop_all(self) -> None:
        """Stop all that were started, one after the other."""
        for broker in list(self.brokers):
            await self.stop(broker)

    async def __aenter__(self) -> MemoryCluster:
        try:
            for _ in range(self._count):
                await self.add()
            await self.settled()
        except BaseException:
            await self.stop_all()  # Nobody else does: the caller has no cluster to leave.
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop_all()


async def until(condition: Callable[[], object]) -> None:
    """Wait for something that comes to be by itself."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110, as what is waited for has no event of its own
            await asyncio.sleep(0.005)
