"""A producer for messages that another cluster has stored: they go out as they are, under their own sequence ids.

Unlike `ClientProducer` it keeps nothing and does not come back by itself: the sender has a cursor to begin again from.
Facts: Pulsar `GeoReplicationProducerImpl`.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from magnetar.client.connection import BrokerConnection
from magnetar.client.errors import ConnectionFailed, TimedOut
from magnetar.client.topic_end import ClientParts
from magnetar.client.unanswered import RelayedEntry, Unanswered
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.core.topic_name import PERSISTENT, TopicName
from magnetar.wire.pulsar import requests
from magnetar.wire.pulsar.errors import PulsarError
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import (
    CommandGetOrCreateSchemaResponse,
    CommandProducerSuccess,
    Schema,
)
from magnetar.wire.pulsar.send_receipts import Receipt


class RelayReceiver(Protocol):
    """Who hears how it goes."""

    def relayed(self, positions: list[Position]) -> None:
        """These entries are stored at the other cluster, now or since earlier."""
        ...

    def relay_ended(self, error: MagnetarError) -> None:
        """No further receipt comes: what has none may be stored or not. Called once, unless `close` was."""
        ...


class RelayProducer:
    """One producer on one connection. What it waits for is bounded by whoever sends."""

    def __init__(self, parts: ClientParts, topic: TopicName, name: str, receiver: RelayReceiver) -> None:
        self.topic = topic
        self._parts = parts
        self._name = name
        self._receiver: RelayReceiver | None = receiver
        self._connection: BrokerConnection | None = None
        self._id = 0
        self._lost_meanwhile = False
        self._unanswered = Unanswered()

    @property
    def by_position(self) -> bool:
        """Whether receipts name the source position; else they name the sequence id only."""
        return self._unanswered.by_position

    @property
    def unanswered(self) -> int:
        """Entries without a receipt."""
        return self._unanswered.count

    @property
    def unanswered_bytes(self) -> int:
        """Of the entries without a receipt."""
        return self._unanswered.size_bytes

    @property
    def oldest(self) -> RelayedEntry | None:
        """The first of the entries without a receipt."""
        return self._unanswered.oldest

    @property
    def remote_address(self) -> str:
        """Where it is connected to; empty when it is not."""
        return "" if self._connection is None else self._connection.address.host_and_port

    async def open(self) -> None:
        """Connect. Raises `PulsarError` when the broker refuses, else an `Unavailable`."""
        connection = await self._parts.pool.get(await self._parts.lookup.broker_of(self.topic))
        self._id = connection.attach_producer(self)
        request = requests.ProducerRequest(topic=str(self.topic), name=self._name, name_is_given=True)
        try:
            success: CommandProducerSuccess = await connection.request(
                lambda request_id: requests.producer(request_id, self._id, request)
            )
        except BaseException as error:
            self._leave(connection)
            if isinstance(error, PulsarError):
                self._parts.lookup.forget_move(self.topic)
            raise
        if not success.producer_ready:
            self._leave(connection)
            raise TimedOut(f"{self.topic}: another producer has it to itself")
        if connection.closed or self._lost_meanwhile:
            raise ConnectionFailed(f"{connection.address.host_and_port} closed {self.topic} as soon as it was open")
        self._connection = connection
        self._unanswered.by_position = connection.answers_positions and self.topic.domain == PERSISTENT

    async def schema_version(self, schema: Schema) -> bytes:
        """The version that the other cluster has of a schema, after registering it. Raises as `open` does."""
        connection = self._connection
        if connection is None:
            raise ConnectionFailed(f"{self.topic}: not connected")
        answer: CommandGetOrCreateSchemaResponse = await connection.request(
            lambda request_id: requests.get_or_create_schema(request_id, str(self.topic), schema)
        )
        return answer.schema_version

    def send(self, entries: list[RelayedEntry]) -> None:
        """Send entries in one write. What is sent without a connection has no receipt."""
        connection = self._connection
        if connection is not None and not connection.closed:
            connection.write_parts(self._unanswered.frames(self._id, entries))

    async def close(self) -> None:
        """Leave; nothing is told any more."""
        self._receiver = None
        connection, self._connection = self._connection, None
        self._unanswered.clear()
        if connection is None or connection.closed:
            return
        connection.detach(self._id)
        try:
            await connection.request(lambda request_id: requests.close_producer(request_id, self._id))
        except (MagnetarError, asyncio.CancelledError):
            # The other side notices when the connection ends, which the client's owner ends.
            return

    # --- from the connection

    def receipts(self, receipts: list[Receipt]) -> None:
        """Entries are stored."""
        stored = self._unanswered.answered(receipts)
        if stored and self._receiver is not None:
            self._receiver.relayed(stored)

    def send_failed(self, sequence_id: int, error: PulsarError) -> None:
        """An entry is refused: what came after it must not count as stored before it is."""
        self._end(error)
        connection, self._connection = self._connection, None
        if connection is not None:
            self._leave(connection)

    def detached(self, assigned_url: str) -> None:
        """The broker lets go of the topic, or the connection is lost."""
        where = self.remote_address
        self._lost_meanwhile = True
        if self._connection is None:
            return
        self._connection = None
        self._end(ConnectionFailed(f"the connection to {where} for {self.topic} has ended"))

    def moved(self, url: str, *, tls: bool) -> None:
        """The topic goes on in another cluster, where the next one connects."""
        self._parts.lookup.moved(self.topic, url, tls=tls)

    def _leave(self, connection: BrokerConnection) -> None:
        connection.detach(self._id)
        if not connection.closed:
            connection.write(requests.close_producer(0, self._id))

    def _end(self, error: MagnetarError) -> None:
        self._unanswered.clear()
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.relay_ended(error)
