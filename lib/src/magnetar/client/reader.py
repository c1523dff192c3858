"""Readers: everything from a place on, without a subscription that stays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from magnetar.client.connection import BrokerConnection
from magnetar.client.consumer import Receiver
from magnetar.client.message import ANY_ENTRY, EARLIEST_ID, LATEST_ID, EntryBounds, Message, MessageId
from magnetar.client.topic_end import ClientParts
from magnetar.core.topic_name import TopicName
from magnetar.wire.pulsar import requests
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import Schema

WHOLE_ENTRY: Final = 0x7FFF_FFFF
"""A batch index after every message of an entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderOptions:
    """How a reader is opened."""

    start: MessageId = EARLIEST_ID
    inclusive: bool = False
    """Whether the message at `start` is wanted, too."""
    read_compacted: bool = False
    create_topic: bool = False
    """Whether a topic that is not there comes to be by being read."""
    subscription: str = ""
    """What statistics show; empty: a name of its own."""
    subscription_prefix: str = "reader"
    """What such a name begins with."""
    schema: Schema | None = None
    bounds: EntryBounds = ANY_ENTRY


class Reader(Receiver):
    """One reader of one topic (of one partition, if the topic has any). Made by `PulsarClient.reader`."""

    def __init__(self, parts: ClientParts, topic: TopicName, options: ReaderOptions) -> None:
        super().__init__(parts, topic, options.bounds)
        self._options = options
        self._subscription = options.subscription or f"{options.subscription_prefix}-{parts.rng.getrandbits(40):010x}"
        self._start = options.start
        self._inclusive = options.inclusive
        self._arrived_up_to = (-1, -1, -1)

    @property
    def position(self) -> MessageId:
        """The last message that was taken; before the first one, where it began."""
        return self._start

    async def has_next(self) -> bool:
        """Whether there is a message after the last one taken, as the topic is now.

        A reader that began at the end of the topic learns of the first message only when it has come."""
        if self._queue:
            return True
        if self._start == LATEST_ID:
            return False
        return self.is_behind(await self.last_message_id())

    def is_behind(self, last: MessageId) -> bool:
        """Whether messages up to this one were not all taken yet."""
        return bool(self._queue) or self._is_ahead(last)

    async def next_or_end(self) -> Message | None:
        """The next message, or None when the topic holds no more: the way to read all that there is."""
        while not self._queue:
            if not await self.has_next():
                return None
            if not self._queue:
                await self._wait_for_news()
        return self._take()

    def _is_ahead(self, last: MessageId) -> bool:
        if last.entry_id < 0:
            return False
        passed = max(self._arrived_up_to, self._start_order())
        return last.order > passed

    def _start_order(self) -> tuple[int, int, int]:
        """Everything up to this is not wanted."""
        start = self._start
        if self._inclusive:
            return start.ledger_id, start.entry_id, start.batch_index - 1 if start.batch_index >= 0 else -2
        return start.ledger_id, start.entry_id, start.batch_index if start.batch_index >= 0 else WHOLE_ENTRY

    def _subscribe_request(self) -> requests.SubscribeRequest:
        options = self._options
        self._arrived_up_to = (-1, -1, -1)
        return requests.SubscribeRequest(
            topic=str(self.topic),
            subscription=self._subscription,
            durable=False,
            start_message_id=self._start.to_wire(),
            read_compacted=options.read_compacted,
            from_earliest=self._start == EARLIEST_ID,
            create_topic=options.create_topic,
            schema=options.schema,
        )

    def _wanted(self, messages: list[Message]) -> list[Message]:
        if self._start in (EARLIEST_ID, LATEST_ID) or self.topic.domain == "non-persistent":
            # What is not stored has no place in its topic: all of it has the same id.
            return messages
        not_wanted = self._start_order()
        return [message for message in messages if message.id.order > not_wanted]

    def _passed(self, entry_id: MessageId) -> None:
        self._arrived_up_to = entry_id.ledger_id, entry_id.entry_id, WHOLE_ENTRY

    def _taken(self, message: Message) -> None:
        self._start = message.id
        self._inclusive = False

    def _permits_sent(self, connection: BrokerConnection) -> None:
        # So that the broker's statistics show how far the reader is, and that nothing counts as not acknowledged.
        if self._start.entry_id >= 0 and self._start != LATEST_ID:
            connection.write(requests.ack(self._id, [self._start.to_wire()], cumulative=True))
