"""The client: what hands out producers, readers and consumers, and closes them all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, Final, TypeVar

from magnetar.client.connection import Authentication
from magnetar.client.consumer import ClientConsumer, ConsumerOptions
from magnetar.client.errors import ClientClosed
from magnetar.client.lookup import LookupService
from magnetar.client.pauses import Pauses
from magnetar.client.pool import ConnectionPool, Connector
from magnetar.client.producer import ClientProducer, ProducerOptions
from magnetar.client.reader import Reader, ReaderOptions
from magnetar.client.relay import RelayProducer, RelayReceiver
from magnetar.client.settings import ClientSettings
from magnetar.client.topic_end import ClientParts, TopicEnd
from magnetar.core.clock import Clock
from magnetar.core.topic_name import TopicName
from magnetar.net.endpoints import connect as connect_tcp
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import Schema

End = TypeVar("End", bound=TopicEnd)

_DEFAULT_SETTINGS: Final = ClientSettings()


ENDS_MIN: Final = 64


class PulsarClient:
    """Talks to one cluster.

    `service_url` is asked again for each lookup, as brokers learn their own port only when they listen; it may name
    several brokers. `connect_tls` opens connections to `pulsar+ssl://` brokers: `functools.partial` of
    `magnetar.net.endpoints.connect` with its certificates. `authentication` gives the credentials each time a broker
    asks. All times come from `clock` and the event loop."""

    def __init__(
        self,
        service_url: Callable[[], str],
        clock: Clock,
        settings: ClientSettings = _DEFAULT_SETTINGS,
        *,
        authentication: Authentication | None = None,
        connect: Connector = connect_tcp,
        connect_tls: Connector | None = None,
        listener_name: str = "",
        rng: Random | None = None,
        make_lookup: Callable[[ConnectionPool], LookupService] | None = None,
    ) -> None:
        """`make_lookup`: else topics are looked up by the binary protocol, at the service URL."""
        pool = ConnectionPool(settings, connect, connect_tls, authentication)
        lookup = LookupService(service_url, pool, settings, listener_name) if make_lookup is None else make_lookup(pool)
        rng = rng if rng is not None else Random()  # noqa: S311 - Pauses and names of readers, no secrets.
        self.lookup = lookup
        """Brokers, partitions and schemas of topics."""
        self._parts = ClientParts(pool, lookup, settings, clock, rng, Pauses(settings, rng))
        self._ends: dict[TopicEnd, None] = {}
        """In the order in which they were opened, which is that in which they are closed."""
        self._ends_looked_through = ENDS_MIN
        """With so many, those that were closed are sorted out: seldom enough that each costs little."""
        self._closed = False

    async def producer(self, topic: TopicName, options: ProducerOptions | None = None) -> ClientProducer:
        """Open a producer of a topic that has no partitions, or of one partition.

        Raises `PulsarError` when the broker refuses for good, else `Unavailable` after a bounded time."""
        return await self._open(
            ClientProducer(self._parts, topic, options if options is not None else ProducerOptions())
        )

    async def reader(self, topic: TopicName, options: ReaderOptions | None = None) -> Reader:
        """Open a reader; otherwise as `producer`."""
        return await self._open(Reader(self._parts, topic, options if options is not None else ReaderOptions()))

    async def consumer(self, topic: TopicName, options: ConsumerOptions) -> ClientConsumer:
        """Open a consumer; otherwise as `producer`."""
        return await self._open(ClientConsumer(self._parts, topic, options))

    async def attach(self, make: Callable[[ClientParts], End]) -> End:
        """Open a producer or consumer of the caller's own kind; otherwise as `producer`."""
        return await self._open(make(self._parts))

    def relay(self, topic: TopicName, name: str, receiver: RelayReceiver) -> RelayProducer:
        """A producer for what another cluster has stored; whoever asks for it opens and closes it."""
        return RelayProducer(self._parts, topic, name, receiver)

    async def topics(self, topic: TopicName, *, create: bool = False) -> list[TopicName]:
        """The partitions of a topic, or the topic itself when it has none."""
        count = await self.partitions(topic, create=create)
        return [topic.partition(index) for index in range(count)] if count else [topic]

    async def partitions(self, topic: TopicName, *, create: bool = False) -> int:
        """How many partitions a topic has; 0 when it has none."""
        return await self.lookup.partitions_of(topic, create=create)

    async def schema(self, topic: TopicName, version: bytes | None = None) -> Schema:
        """A topic's schema: the newest, or that of one version. `PulsarError` when there is none."""
        return await self.lookup.schema_of(topic, version)

    async def ask(self, topic: TopicName, build: Callable[[int], bytes]) -> Any:
        """The body of the answer to a request of the caller's own at the broker that serves a topic; `build` makes its
        frame for a request id. Tries once: `PulsarError` as the lookup or the answer refuses, or an `Unavailable`."""
        connection = await self._parts.pool.get(await self.lookup.broker_of(topic))
        return await connection.request(build)

    async def close(self) -> None:
        """Close every producer, reader and consumer, then the connections."""
        self._closed = True
        ends, self._ends = self._ends, {}
        await asyncio.gather(*(end.close() for end in ends))
        await self._parts.pool.close()
        await self.lookup.close()

    async def _open(self, end: End) -> End:
        if self._closed:
            raise ClientClosed("the client is closed")
        if len(self._ends) >= self._ends_looked_through:
            # Those that were closed by their users need not be closed again.
            self._ends = {one: None for one in self._ends if one.failure is None}
            self._ends_looked_through = 2 * len(self._ends) + ENDS_MIN
        self._ends[end] = None
        try:
            await end.open()
        except BaseException:
            self._ends.pop(end, None)
            await asyncio.shield(end.close())
            raise
        return end
