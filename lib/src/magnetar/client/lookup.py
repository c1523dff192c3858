"""Which broker serves a topic, over the binary protocol (Pulsar: BinaryProtoLookupService)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from magnetar.client.addresses import BrokerAddress, parse_service_url
from magnetar.client.connection import BrokerConnection
from magnetar.client.errors import ConnectionFailed
from magnetar.client.pool import ConnectionPool
from magnetar.client.settings import ClientSettings
from magnetar.core.errors import SettingError, Unavailable
from magnetar.core.topic_name import NamespaceName, TopicName
from magnetar.wire.pulsar import requests
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import (
    CommandGetSchemaResponse,
    CommandGetTopicsOfNamespaceResponse,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadataResponse,
    Schema,
)

logger: Final = logging.getLogger(__name__)

MOVED_MAX: Final = 10_000
"""Topics whose other cluster is remembered; of one that is forgotten we are told again."""


class LookupService:
    """Asks the brokers of the service URL, one after the other when some cannot be reached."""

    def __init__(
        self,
        service_url: Callable[[], str],
        pool: ConnectionPool,
        settings: ClientSettings,
        listener_name: str = "",
    ) -> None:
        self._service_url = service_url
        self._pool = pool
        self._settings = settings
        self._listener_name = listener_name
        self._first = 0
        """Which of the service URL's brokers is asked first: the one that answered last."""
        self._moved: dict[TopicName, str] = {}
        """The service URLs of other clusters that brokers have sent us to, by topic."""

    def moved(self, topic: TopicName, url: str, *, tls: bool) -> None:
        """A topic goes on in the cluster at this service URL. One that is strange, or leads out of TLS, is passed
        over."""
        try:
            addresses = parse_service_url(url)
        except SettingError as error:
            logger.warning("%s: it is said to go on at a strange place: %s", topic, error)
            return
        if any(address.tls is not tls for address in addresses):
            logger.warning("%s: it is said to go on at %s, where our credentials are not shown", topic, url)
            return
        self._moved[topic] = url
        if len(self._moved) > MOVED_MAX:
            del self._moved[next(iter(self._moved))]

    def forget_move(self, topic: TopicName) -> None:
        """A topic is refused where it was said to go on: it is looked for at the service URL again."""
        self._moved.pop(topic, None)

    def has_moved(self, topic: TopicName) -> bool:
        """Whether brokers have sent us to another cluster for it."""
        return topic in self._moved

    async def close(self) -> None:
        """Nothing is looked up any more."""

    async def broker_of(self, topic: TopicName) -> BrokerAddress:
        """Where to connect for a topic. Raises `PulsarError`, `ConnectionFailed` or another `Unavailable`."""
        connection = await self._one_of(self._moved.get(topic) or self._service_url())
        authoritative = False
        for _ in range(self._settings.redirects_max):
            answer = await self._ask(connection, topic, authoritative)
            address = self._address(connection, answer)
            if answer.response == CommandLookupTopicResponse.Connect:
                if answer.proxy_through_service_url:
                    return address.through(connection.address.connect_to)
                return address
            authoritative = answer.authoritative
            if answer.proxy_through_service_url:
                address = address.through(connection.address.connect_to)
            connection = await self._pool.get(address)
        raise ConnectionFailed(f"the lookup of {topic} was redirected {self._settings.redirects_max} times")

    async def _ask(
        self, connection: BrokerConnection, topic: TopicName, authoritative: bool
    ) -> CommandLookupTopicResponse:
        answer: CommandLookupTopicResponse = await connection.request(
            lambda request_id: requests.lookup(
                request_id, str(topic), authoritative=authoritative, listener_name=self._listener_name
            )
        )
        return answer

    def _address(self, connection: BrokerConnection, answer: CommandLookupTopicResponse) -> BrokerAddress:
        tls = connection.address.tls
        url = answer.brokerServiceUrlTls if tls else answer.brokerServiceUrl
        if not url:
            raise ConnectionFailed(f"{connection.address.host_and_port} names a broker without an address for us")
        address = parse_service_url(url)[0]
        if tls and not address.tls:
            raise ConnectionFailed(f"{connection.address.host_and_port} leads from TLS to {url}, with our credentials")
        return address

    async def partitions_of(self, topic: TopicName, *, create: bool) -> int:
        """How many partitions; 0 for a topic that is not partitioned. `PulsarError` when it is not there."""
        connection = await self.any_broker()
        answer: CommandPartitionedTopicMetadataResponse = await connection.request(
            lambda request_id: requests.partitioned_metadata(request_id, str(topic), create=create)
        )
        return answer.partitions

    async def schema_of(self, topic: TopicName, version: bytes | None = None) -> Schema:
        """A topic's schema: the newest, or that of one version. `PulsarError` when there is none."""
        schema, _ = await self.versioned_schema_of(topic, version)
        return schema

    async def versioned_schema_of(self, topic: TopicName, version: bytes | None = None) -> tuple[Schema, bytes]:
        """A topic's schema and its version; otherwise as `schema_of`."""
        connection = await self._pool.get(await self.broker_of(topic))
        answer: CommandGetSchemaResponse = await connection.request(
            lambda request_id: requests.get_schema(request_id, str(topic), version)
        )
        return answer.schema, answer.schema_version

    async def topics_of(self, namespace: NamespaceName) -> list[TopicName]:
        """The persistent topics of a namespace, each partition by itself, perhaps with system topics among them; none
        when the namespace is not there. `PulsarError` when it is not to be looked at."""
        connection = await self.any_broker()
        answer: CommandGetTopicsOfNamespaceResponse = await connection.request(
            lambda request_id: requests.topics_of_namespace(request_id, str(namespace))
        )
        return [TopicName.parse(name) for name in answer.topics]

    async def any_broker(self) -> BrokerConnection:
        """A connection to one of the service URL's brokers."""
        return await self._one_of(self._service_url())

    async def _one_of(self, service_url: str) -> BrokerConnection:
        addresses = parse_service_url(service_url)
        failure: Unavailable | None = None
        for offset in range(len(addresses)):
            index = (self._first + offset) % len(addresses)
            try:
                connection = await self._pool.get(addresses[index])
            except Unavailable as error:
                failure = error
                continue
            self._first = index
            return connection
        assert failure is not None
        raise failure
