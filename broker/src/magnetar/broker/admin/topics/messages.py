"""Single messages of topics: read by position or by place, and found by time."""

from __future__ import annotations

import logging
from typing import Any, Final

from aiohttp import web
from magnetar.broker.admin.topics.access import HandlersOfTopics
from magnetar.broker.admin.topics.message_response import message_response
from magnetar.broker.admin.topics.subscription_positions import subscription_name
from magnetar.broker.admin.topics.topics import ONE
from magnetar.broker.admin.topics.upkeep import id_on
from magnetar.broker.admin.web.described import takes
from magnetar.broker.admin.web.responses import (
    BAD_REQUEST,
    NOT_FOUND,
    PRECONDITION_FAILED,
    AdminError,
    body_object,
    json,
    path_integer,
    topic_of,
)
from magnetar.broker.context import BrokerContext
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.seek import last_message_id
from magnetar.broker.topics.topic import PersistentTopic
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.ledger.api import LedgerError
from magnetar.managed.entry import Entry
from magnetar.wire.pulsar.errors import PulsarError
from magnetar.wire.pulsar.metadata import broker_entry_metadata

logger: Final = logging.getLogger(__name__)

OWN_SUBSCRIPTIONS: Final = ("pulsar.", "__")
"""How the names of the brokers' own subscriptions begin."""

EXAMINE_REFUSED: Final = (
    "Examine messages on a partitioned topic is not allowed, please try examine message on specific topic partition"
)
MESSAGE_OF_TIME_REFUSED: Final = (
    "Get message ID by timestamp on a partitioned topic is not allowed, please try do it on specific topic partition"
)
MESSAGE_OF_INDEX_REFUSED: Final = (
    "Get message id by index on a partitioned topic is not allowed, please try do it on specific topic partition"
)


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""
    handlers = MessageHandlers(context)
    return [
        web.get(ONE + "/ledger/{ledger}/entry/{entry}", handlers.entry),
        web.get(ONE + "/examinemessage", handlers.examine),
        web.get(ONE + "/subscription/{subscription}/position/{position}", handlers.peek),
        web.get(ONE + "/lastMessageId", handlers.last_message_id),
        web.get(ONE + "/messageid/{timestamp}", handlers.id_of_time),
        web.get(ONE + "/getMessageIdByIndex", handlers.id_of_index),
        web.put(ONE + "/backlogSize", handlers.backlog_size),
    ]


class MessageHandlers(HandlersOfTopics):
    """The handlers, over one broker."""

    @takes("authoritative")
    async def entry(self, request: web.Request) -> web.Response:
        """One message by its id."""
        position = (path_integer(request, "ledger"), path_integer(request, "entry"))
        topic = await self._one(request, "GetMessageById is not allowed on partitioned-topic")
        return message_response(await self._read(topic, position, "Message id not found"), topic)

    @takes("initialPosition", "messagePosition", "authoritative")
    async def examine(self, request: web.Request) -> web.Response:
        """The n-th message from the `earliest` or (else) from the latest, counted from 1, or the last of them."""
        topic = await self._one(request, EXAMINE_REFUSED)
        count = topic.ledger.ledgers.number_of_entries()
        if not count:
            raise AdminError(PRECONDITION_FAILED, "Could not examine messages due to the total message is zero")
        number = min(max(query_integer(request, "messagePosition", 1), 1), count)
        index = number - 1 if request.query.get("initialPosition") == "earliest" else count - number
        return message_response(await topic.ledger.read_entry(topic.ledger.ledgers.entry_at(index)), topic)

    @takes("authoritative")
    async def peek(self, request: web.Request) -> web.Response:
        """The n-th message that a subscription has not acknowledged, from 1."""
        number = path_integer(request, "position")
        if number < 1:
            raise AdminError(BAD_REQUEST, "Messages are counted from 1")
        topic = await self._one(request, "Peek messages on a partitioned topic is not allowed")
        subscription = await self._subscription(topic, subscription_name(request))
        if number > subscription.cursor.backlog_entries:
            raise AdminError(NOT_FOUND, "Message not found")
        position = subscription.cursor.unacknowledged_at(number)
        return message_response(await self._read(topic, position, "Message not found"), topic)

    @staticmethod
    async def _subscription(topic: PersistentTopic, name: str) -> Subscription:
        """Apache makes one that is not there, at the beginning (`PersistentTopicsBase.getSubscriptionReference`).
        404 where it cannot be made, and for the names of brokers' own ones."""
        found = topic.subscriptions.get(name)
        if found is not None:
            return found
        try:
            if not name.startswith(OWN_SUBSCRIPTIONS):
                return await topic.create_subscription(name, EARLIEST)
        except PulsarError:
            logger.info("%s: no subscription %s is made to peek into", topic.name, name)
        raise AdminError(NOT_FOUND, f"Subscription {name} not found for topic {topic.name}")

    @takes("authoritative")
    async def last_message_id(self, request: web.Request) -> web.Response:
        """The id of the last message; on an empty topic what its ledger begins after."""
        name = topic_of(request)
        if await self._access.partitions(name):
            raise AdminError(NOT_FOUND, f"Topic {name} not found")
        topic = await self._access.persistent(
            request, name, "GetLastMessageId on a non-persistent topic is not allowed"
        )
        position, batch_index = await last_message_id(topic)
        if position == EARLIEST:
            return json(id_on(name, topic.ledger.last_confirmed))
        document = id_on(name, position, batch_index)
        if batch_index >= 0:
            document.update(outstandingAcksInSameBatch=0, originalBatchSize=0)
        return json(document)

    @takes("authoritative")
    async def id_of_time(self, request: web.Request) -> web.Response:
        """The id of the first message published at or after a time (ms since 1970)."""
        timestamp_ms = path_integer(request, "timestamp")
        topic = await self._one(request, MESSAGE_OF_TIME_REFUSED)
        position = await topic.position_of_time(timestamp_ms)
        if position == LATEST:
            position = topic.ledger.ledgers.next_position(topic.ledger.last_confirmed)
        return json(id_on(topic.name, position))

    @takes("index", "authoritative")
    async def id_of_index(self, request: web.Request) -> web.Response:
        """The id of the entry with the message of an index, if brokers have noted indexes on the entries."""
        index = query_integer(request, "index", -1)
        if index < 0:
            raise AdminError(NOT_FOUND, f"Invalid message index: {index}")
        topic = await self._one(request, MESSAGE_OF_INDEX_REFUSED)
        found = await position_of_index(topic, index)
        if found is None:
            raise AdminError(NOT_FOUND, "Message not found")
        return json(id_on(topic.name, found))

    @takes("authoritative", body="a message id")
    async def backlog_size(self, request: web.Request) -> web.Response:
        """About how many bytes are stored after a message id."""
        body = await body_object(request)
        ledger_id, entry_id = body.get("ledgerId"), body.get("entryId")
        if not isinstance(ledger_id, int) or not isinstance(entry_id, int):
            raise AdminError(BAD_REQUEST, "The body must be a message id")
        topic = await self._one(request, "calculate backlog size is not allowed for partitioned-topic")
        position = (ledger_id, entry_id)
        if position > topic.ledger.last_confirmed:
            return json(0)
        if position < topic.ledger.ledgers.first_position():
            return json(topic.ledger.ledgers.total_size_bytes())
        return json(topic.ledger.ledgers.size_bytes_after(position))

    async def _read(self, topic: PersistentTopic, position: Position, refusal: str) -> Entry:
        """Raises 404 for an entry that is not the topic's, or not any more. One that is, and that no bookie has, is
        lost: `LedgerError`."""
        try:
            return await topic.ledger.read_entry(position)
        except LedgerError:
            if topic.ledger.ledgers.contains(position):
                raise
            raise AdminError(NOT_FOUND, refusal) from None

    async def _one(self, request: web.Request, refusal: str) -> PersistentTopic:
        name = topic_of(request)
        await self._access.check_not_partitioned(name, refusal)
        return await self._access.persistent(request, name)


async def position_of_index(topic: PersistentTopic, index: int) -> Position | None:
    """The first entry whose noted index, which is that of its last message, is not below one. Raises 412."""
    last = topic.ledger.last_confirmed
    if topic.ledger.ledgers.contains(last) and noted_index((await topic.ledger.read_entry(last)).data) is None:
        raise AdminError(PRECONDITION_FAILED, "Brokers do not note message indexes on this topic's entries")

    def reaches(entry: Any) -> bool:
        noted = noted_index(entry.data)
        return noted is not None and noted >= index

    return await topic.ledger.find_first(reaches)


def noted_index(data: bytes) -> int | None:
    """The index that a broker noted on an entry."""
    noted = broker_entry_metadata(data)
    return noted.index if noted is not None and noted.HasField("index") else None


def query_integer(request: web.Request, name: str, default: int) -> int:
    """A whole number in the query. Raises 400."""
    value = request.query.get(name)
    if value is None:
        return default
    try:
        return int(value)
    except ValueError:
        raise AdminError(BAD_REQUEST, f"{value!r} is not a whole number") from None
