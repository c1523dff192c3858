"""Consumers: messages come ahead of being asked for, up to a bound, and are taken one by one or many at once."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, cast

from magnetar.client.connection import BrokerConnection
from magnetar.client.errors import ConnectionFailed
from magnetar.client.message import ANY_ENTRY, LATEST_ID, EntryBounds, Message, MessageId, messages_of_entry
from magnetar.client.topic_end import ClientParts, TopicEnd
from magnetar.core.errors import MagnetarError
from magnetar.core.topic_name import TopicName
from magnetar.wire.pulsar import requests
from magnetar.wire.pulsar.enums import SubscriptionType
from magnetar.wire.pulsar.errors import BadMetadata, PulsarError
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import (
    CommandGetLastMessageIdResponse,
    CommandMessage,
    CommandSubscribe,
    MessageIdData,
    Schema,
)
from magnetar.wire.pulsar.metadata import checksum_ok, skim, strip_broker_entry_metadata

logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """How a consumer is opened."""

    subscription: str
    kind: SubscriptionType = SubscriptionType.EXCLUSIVE
    name: str = ""
    from_earliest: bool = False
    """Where a subscription that is new begins; else at the end of the topic."""
    read_compacted: bool = False
    create_topic: bool = True
    receives: bool = True
    """False: it gets no messages, as for who only acknowledges."""
    schema: Schema | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    """Of a subscription that is new."""
    durable: bool = True
    """False: the subscription goes with its consumer, and begins at the end of the topic."""
    on_end: Callable[[tuple[int, int] | None], None] | None = None
    """Told the topic's last (ledger id, entry id) once, and again whenever it moves where the broker gives end notices;
    None: the broker is lost, another one is looked for."""


class Receiver(TopicEnd):
    """What readers and consumers have in common: permits and the queue of messages.

    The broker is owed a permit for each message that is taken or dropped; they go out when half a queue is owed."""

    def __init__(self, parts: ClientParts, topic: TopicName, bounds: EntryBounds = ANY_ENTRY) -> None:
        super().__init__(parts, topic)
        self._bounds = bounds
        # At most `receiver_queue_size` messages, and the rest of a batch.
        self._queue: deque[Message] = deque()
        self._owed = 0
        self._news = asyncio.Event()

    @abstractmethod
    def _subscribe_request(self) -> requests.SubscribeRequest:
        """What to ask for, this time."""

    @abstractmethod
    def _wanted(self, messages: list[Message]) -> list[Message]:
        """Those that the user has not had yet."""

    def _taken(self, message: Message) -> None:
        """The user gets it now."""

    def _permits_sent(self, connection: BrokerConnection) -> None:
        """Half a queue was taken."""

    async def receive(self) -> Message:
        """The next message; waits for it. Raises why it is over."""
        while not self._queue:
            await self._wait_for_news()
        return self._take()

    async def last_message_id(self) -> MessageId:
        """The id of the topic's last message; entry id -1 when it holds none. Raises `PulsarError` or `Unavailable`."""
        answer = await self._last_ids()
        last: MessageId = MessageId.from_wire(answer.last_message_id)
        return last

    async def mark_delete(self) -> tuple[int, int]:
        """Up to which (ledger id, entry id) the broker has the subscription acknowledged; (-1, -1) when it does not
        say. Raises `PulsarError` or `Unavailable`."""
        answer = await self._last_ids()
        if not answer.HasField("consumer_mark_delete_position"):
            return (-1, -1)
        return MessageId.from_wire(answer.consumer_mark_delete_position).position

    async def _last_ids(self) -> CommandGetLastMessageIdResponse:
        while True:
            connection = await self._wait_until_attached()
            asked = self._id
            try:
                return cast(
                    CommandGetLastMessageIdResponse,
                    await connection.request(partial(requests.get_last_message_id, consumer_id=asked)),
                )
            except (PulsarError, ConnectionFailed):
                if self._connection is connection and self._id == asked:
                    raise
                continue  # The broker let go of the topic while it was asked.

    async def _wait_for_news(self) -> None:
        self._check()
        self._news.clear()
        await self._news.wait()

    def _take(self) -> Message:
        message = self._queue.popleft()
        self._taken(message)
        self._owe(1)
        return message

    def _owe(self, count: int) -> None:
        self._owed += count
        connection = self._connection
        if 2 * self._owed >= self._parts.settings.receiver_queue_size and connection is not None:
            connection.write(requests.flow(self._id, self._owed))
            self._owed = 0
            self._permits_sent(connection)

    # --- from the connection

    def arrived(self, command: CommandMessage, entry: bytes) -> None:
        """A stored entry."""
        entry_id = MessageId.from_wire(command.message_id)._replace(partition=self.topic.partition_index)
        count = 1
        messages: list[Message] = []
        try:
            content = strip_broker_entry_metadata(entry)
            count = skim(content).num_messages
            if checksum_ok(content, 0, len(content)):
                redeliveries, ack_set = command.redelivery_count, command.ack_set
                messages = messages_of_entry(content, entry_id, redeliveries, ack_set, self._bounds)
            else:
                logger.warning("%s: entry %s is passed over: its checksum is wrong", self.topic, entry_id)
        except BadMetadata as error:
            logger.warning("%s: entry %s is passed over: %s", self.topic, entry_id, error)
        wanted = self._wanted(messages)
        self._passed(entry_id)
        self._queue.extend(wanted)
        self._news.set()
        if len(wanted) != count:
            self._owe(count - len(wanted))

    def _passed(self, entry_id: MessageId) -> None:
        """Everything of this entry that is of use is in the queue now."""

    # --- life

    async def _attach(self, connection: BrokerConnection) -> None:
        self._queue.clear()  # What was not taken comes again.
        self._owed = 0
        self._id = connection.attach_consumer(self)
        request = self._subscribe_request()
        try:
            await connection.request(lambda request_id: requests.subscribe(request_id, self._id, request))
        except BaseException:
            connection.detach(self._id)
            if not connection.closed:
                connection.write(requests.close_consumer(0, self._id))
            raise

    def _has_attached(self, connection: BrokerConnection) -> None:
        connection.write(requests.flow(self._id, self._parts.settings.receiver_queue_size))

    def _has_ended(self, error: MagnetarError) -> None:
        self._news.set()

    async def _take_leave(self, connection: BrokerConnection) -> None:
        await connection.request(lambda request_id: requests.close_consumer(request_id, self._id))


class ClientConsumer(Receiver):
    """One consumer of a durable subscription. Made by `PulsarClient.consumer`."""

    def __init__(self, parts: ClientParts, topic: TopicName, options: ConsumerOptions) -> None:
        super().__init__(parts, topic)
        self._options = options
        # Which messages of a batch are not acknowledged: brokers know entries. Bounded by what a broker gives out
        # without an acknowledgement.
        self._open_batches: dict[tuple[int, int], set[int]] = {}
        self._ends_told = 0
        """By the broker that it is attached to."""

    @property
    def has_notices(self) -> bool:
        """Whether the broker tells of the topic's end without being asked: it has answered one question twice."""
        return self._ends_told > 1

    async def acknowledge(self, message_ids: Sequence[MessageId]) -> None:
        """These are done; returns when the broker knows. A batch is told once all of its messages are done.

        Raises `PulsarError` when the broker refuses, `Unavailable` when it cannot be told: they come again then."""
        done = [message_id for message_id in message_ids if self._is_last_open(message_id)]
        if done:
            await self._send_acknowledgement(done)

    async def acknowledge_up_to(self, position: tuple[int, int]) -> None:
        """Everything up to and with this (ledger id, entry id) is done; returns when the broker knows. An entry id of
        -1 stands before the ledger's first entry. What is behind the subscription's own position changes nothing.

        Not for shared subscriptions: brokers ignore it there. Raises as `acknowledge`."""
        connection = await self._wait_until_attached()
        ids = [MessageId(*position).to_wire()]
        await connection.request(lambda request_id: requests.ack(self._id, ids, cumulative=True, request_id=request_id))
        for done in [opened for opened in self._open_batches if opened <= position]:
            del self._open_batches[done]

    async def unsubscribe(self) -> None:
        """Delete the subscription and close."""
        connection = await self._wait_until_attached()
        await connection.request(lambda request_id: requests.unsubscribe(request_id, self._id))
        await self.close()

    def _is_last_open(self, message_id: MessageId) -> bool:
        if message_id.batch_index < 0:
            return True
        still_open = self._open_batches.get(message_id.position)
        if still_open is None:
            return False  # From before a reconnection, or done: what is not done comes again.
        still_open.discard(message_id.batch_index)
        if still_open:
            return False
        del self._open_batches[message_id.position]
        return True

    async def _send_acknowledgement(self, message_ids: Sequence[MessageId]) -> None:
        connection = await self._wait_until_attached()
        ids = [message_id.to_wire() for message_id in message_ids]
        await connection.request(
            lambda request_id: requests.ack(self._id, ids, cumulative=False, request_id=request_id)
        )

    def _has_attached(self, connection: BrokerConnection) -> None:
        if self._options.receives:
            super()._has_attached(connection)
        if self._options.on_end is not None:
            connection.ask_for_ends(self._id, self._end_told)

    def _end_told(self, last: MessageIdData) -> None:
        assert self._options.on_end is not None
        self._ends_told += 1
        self._options.on_end(MessageId.from_wire(last).position)

    def detached(self, assigned_url: str) -> None:
        """From the connection: as `TopicEnd` has it, and whoever is told of the end hears that nobody tells it now."""
        super().detached(assigned_url)
        if self._ends_told and self._options.on_end is not None:
            self._ends_told = 0
            self._options.on_end(None)

    def _subscribe_request(self) -> requests.SubscribeRequest:
        options = self._options
        self._open_batches.clear()
        return requests.SubscribeRequest(
            topic=str(self.topic),
            subscription=options.subscription,
            kind=cast(CommandSubscribe.SubType, int(options.kind)),
            consumer_name=options.name,
            read_compacted=options.read_compacted,
            from_earliest=options.from_earliest,
            create_topic=options.create_topic,
            schema=options.schema,
            metadata=options.metadata,
            properties=options.properties,
            durable=options.durable,
            start_message_id=None if options.durable else LATEST_ID.to_wire(),
        )

    def _wanted(self, messages: list[Message]) -> list[Message]:
        if messages and messages[0].id.batch_index >= 0:
            self._open_batches[messages[0].id.position] = {message.id.batch_index for message in messages}
        return messages
