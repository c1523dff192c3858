"""A producer for messages that another cluster has stored: they go out as they are, under their own sequence ids.

Unlike `ClientProducer` it keeps nothing and does not come back by itself: the sender has a cursor to begin again from.
Facts: Pulsar `GeoReplicationProducerImpl`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from magnetar.client.connection import BrokerConnection
from magnetar.client.errors import ConnectionFailed, TimedOut
from magnetar.client.topic_end import ClientParts
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position, signed64
from magnetar.core.topic_name import PERSISTENT, TopicName
from magnetar.wire.pulsar import requests
from magnetar.wire.pulsar.errors import PulsarError
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import (
    CommandGetOrCreateSchemaResponse,
    CommandProducerSuccess,
    CommandSendReceipt,
    Schema,
)

MARKER_RECEIPT: Final = -(2**63)
"""`highest_sequence_id` of the receipt of a marker, where others name the source position."""


class RelayedEntry(Protocol):
    """What is sent: an entry at a position of its own cluster, and what its SEND says."""

    position: Position
    message: bytes
    sequence_id: int
    num_messages: int
    publish_time_ms: int
    chunked: bool
    marker: bool
    shadowed: bool
    """Whether it goes to a shadow topic, which reads it where it stands: its SEND names the position."""


class RelayReceiver(Protocol):
    """Who hears how it goes."""

    def relayed(self, position: Position) -> None:
        """The entry is stored at the other cluster, now or since earlier."""
        ...

    def relay_ended(self, error: MagnetarError) -> None:
        """No further receipt comes: what has none may be stored or not. Called once, unless `close` was."""
        ...


class RelayProducer:
    """One producer on one connection. What it waits for is bounded by whoever sends."""

    def __init__(self, parts: ClientParts, topic: TopicName, name: str, receiver: RelayReceiver) -> None:
        self.topic = topic
        self.by_position = False
        """Whether receipts name the source position; else they name the sequence id only, as those of topics that store
        nothing always do."""
        self._parts = parts
        self._name = name
        self._receiver: RelayReceiver | None = receiver
        self._connection: BrokerConnection | None = None
        self._id = 0
        self._lost_meanwhile = False
        self._unanswered: dict[Position, RelayedEntry] = {}
        """Without a receipt, in the order that they were sent in."""
        self._bytes = 0
        self._by_id: dict[int, list[RelayedEntry]] = {}
        """Entries that a receipt does not name by position, by sequence id: all of them, or only markers."""
        self._answered: dict[int, int] = {}
        """How many of a sequence id have a receipt, while others of it have none."""

    @property
    def unanswered(self) -> int:
        """Entries without a receipt."""
        return len(self._unanswered)

    @property
    def unanswered_bytes(self) -> int:
        """Of the entries without a receipt."""
        return self._bytes

    @property
    def oldest(self) -> RelayedEntry | None:
        """The first of the entries without a receipt."""
        return next(iter(self._unanswered.values()), None)

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
        except BaseException:
            self._leave(connection)
            raise
        if not success.producer_ready:
            self._leave(connection)
            raise TimedOut(f"{self.topic}: another producer has it to itself")
        if connection.closed or self._lost_meanwhile:
            raise ConnectionFailed(f"{connection.address.host_and_port} closed {self.topic} as soon as it was open")
        self._connection = connection
        self.by_position = connection.answers_positions and self.topic.domain == PERSISTENT

    async def schema_version(self, schema: Schema) -> bytes:
        """The version that the other cluster has of a schema, after registering it. Raises as `open` does."""
        connection = self._connection
        if connection is None:
            raise ConnectionFailed(f"{self.topic}: not connected")
        answer: CommandGetOrCreateSchemaResponse = await connection.request(
            lambda request_id: requests.get_or_create_schema(request_id, str(self.topic), schema)
        )
        return answer.schema_version

    def send(self, entries: Sequence[RelayedEntry]) -> None:
        """Send entries in one write. What is sent without a connection has no receipt."""
        connection = self._connection
        if connection is None or connection.closed:
            return
        frames: list[bytes] = []
        for entry in entries:
            self._unanswered[entry.position] = entry
            self._bytes += len(entry.message)
            if entry.marker or not self.by_position:
                self._by_id.setdefault(entry.sequence_id, []).append(entry)
            frames.append(
                requests.relay_send(
                    self._id,
                    entry.sequence_id,
                    entry.message,
                    entry.num_messages,
                    chunked=entry.chunked,
                    marker=entry.marker,
                    message_id=entry.position if entry.shadowed else None,
                )
            )
        connection.write_parts(frames)

    async def close(self) -> None:
        """Leave; nothing is told any more."""
        self._receiver = None
        connection, self._connection = self._connection, None
        self._forget()
        if connection is None or connection.closed:
            return
        connection.detach(self._id)
        try:
            await connection.request(lambda request_id: requests.close_producer(request_id, self._id))
        except (MagnetarError, asyncio.CancelledError):
            # The other side notices when the connection ends, which the client's owner ends.
            return

    # --- from the connection

    def receipt(self, receipt: CommandSendReceipt) -> None:
        """An entry is stored."""
        first, second = signed64(receipt.sequence_id), signed64(receipt.highest_sequence_id)
        if self.by_position and second != MARKER_RECEIPT:
            entry = self._unanswered.get((first, second))
            stored = [] if entry is None else [entry, *self._without(entry)]
        else:
            stored = self._all_of(first)
        for each in stored:
            if self._unanswered.pop(each.position, None) is None:
                return  # Whoever was told of another one has closed it.
            self._bytes -= len(each.message)
            if self._receiver is not None:
                self._receiver.relayed(each.position)

    def _all_of(self, sequence_id: int) -> list[RelayedEntry]:
        """What is stored for sure. Producers count alike, and one that is answered as a duplicate overtakes another: of
        several entries with one sequence id nobody knows whose receipt this is, until all have theirs."""
        entries = self._by_id.get(sequence_id, [])
        answered = self._answered.get(sequence_id, 0) + 1
        if answered < len(entries):
            self._answered[sequence_id] = answered
            return []
        self._by_id.pop(sequence_id, None)
        self._answered.pop(sequence_id, None)
        return entries

    def _without(self, entry: RelayedEntry) -> list[RelayedEntry]:
        """An entry is named by its position: it must not wait among those of its sequence id, nor they for it. Who is
        stored for sure without it. Which types of markers have receipts of their own is the other side's to say."""
        entries = self._by_id.get(entry.sequence_id, [])
        if entry not in entries:
            return []
        entries.remove(entry)
        answered = self._answered.get(entry.sequence_id, 0)
        if answered < len(entries):
            return []
        self._by_id.pop(entry.sequence_id, None)
        self._answered.pop(entry.sequence_id, None)
        return entries

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
        self._forget()
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.relay_ended(error)

    def _forget(self) -> None:
        self._unanswered.clear()
        self._bytes = 0
        self._by_id.clear()
        self._answered.clear()
