"""Which broker serves a topic. One broker serves them all until bundles move between several."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from magnetar.broker.resources import Resources
from magnetar.broker.settings import BrokerSettings
from magnetar.core.topic_name import TopicName, bundle_of
from magnetar.wire.pulsar.errors import PulsarError, ServerError


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """How clients and tools reach a broker."""

    service_url: str
    web_service_url: str


class Lookup:
    """Answers lookups, a bounded number at a time."""

    def __init__(self, settings: BrokerSettings, resources: Resources) -> None:
        self._settings = settings
        self._resources = resources
        self._running = 0
        self.address = BrokerAddress(settings.service_url, settings.web_service_url)

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place among the lookups under way. Raises TooManyRequests when there is none."""
        if self._running >= self._settings.lookups_max:
            raise PulsarError(ServerError.TOO_MANY_REQUESTS, "Failed due to too many pending lookup requests")
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    async def owner(self, topic: TopicName) -> BrokerAddress:
        """The broker of a topic. Its namespace must exist."""
        if await self._resources.policies(topic.namespace_name) is None:
            raise PulsarError(ServerError.TOPIC_NOT_FOUND, f"Namespace {topic.namespace_name} not found")
        return self.address

    async def bundle(self, topic: TopicName) -> str:
        """The range of the hash space that a topic falls into, as its name `0x…_0x…`."""
        return bundle_of(topic.bundle_hash(), await self._resources.bundle_boundaries(topic.namespace_name))
