"""Subscriptions of topics: listing, making, moving, emptying, peeking, removing.

A partitioned topic means all its partitions."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from urllib.parse import unquote

import msgspec
from aiohttp import web
from magnetar.broker.admin.responses import (
    CONFLICT,
    METHOD_NOT_ALLOWED,
    NOT_FOUND,
    PRECONDITION_FAILED,
    AdminError,
    body_object,
    flag,
    json,
    no_content,
    path_integer,
    topic_of,
)
from magnetar.broker.admin.topic_stats import iso_time
from magnetar.broker.context import BrokerContext
from magnetar.broker.subscription import Subscription
from magnetar.broker.topic import PersistentTopic
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.core.topic_name import TopicName
from magnetar.ledger.api import EntryNotFound, LedgerNotFound
from magnetar.managed.entry import Entry
from magnetar.wire.pulsar.batch import decompressed_payload
from magnetar.wire.pulsar.metadata import full_metadata

TOPIC = "/admin/v2/{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic}"
ONE = TOPIC + "/subscription/{subscription}"
EXPIRE_ALL = TOPIC + "/all_subscription/expireMessages/{seconds}"

TopicWork = Callable[[PersistentTopic], Awaitable[None]]


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""
    handlers = SubscriptionHandlers(context)
    return [
        web.get(TOPIC + "/subscriptions", handlers.names),
        web.put(ONE, handlers.create),
        web.delete(ONE, handlers.delete),
        web.post(ONE + "/skip_all", handlers.skip_all),
        web.post(ONE + "/skip/{count}", handlers.skip),
        web.post(ONE + "/expireMessages/{seconds}", handlers.expire),
        web.post(EXPIRE_ALL, handlers.expire_all),
        web.post(ONE + "/resetcursor/{timestamp}", handlers.reset_to_time),
        web.post(ONE + "/resetcursor", handlers.reset_to_position),
        web.get(ONE + "/position/{position}", handlers.peek),
        web.get(TOPIC + "/ledger/{ledger}/entry/{entry}", handlers.entry),
    ]


class SubscriptionHandlers:
    """The handlers, over one broker."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._service = context.service

    async def names(self, request: web.Request) -> web.Response:
        """Names of the subscriptions; of a partitioned topic, those of any partition."""
        name = topic_of(request)
        found: set[str] = set()
        for partition in await self._partitions(name):
            topic = await self._service.topic(partition, create=True)
            found.update(topic.subscriptions)
        return json(sorted(found))

    async def create(self, request: web.Request) -> web.Response:
        """Make a subscription at a position (latest unless the body names one)."""
        subscription = subscription_name(request)
        start = position_in(await body_object(request), default=LATEST)
        name = topic_of(request)
        partitions = await self._partitions(name, create=True)
        topics = [await self._persistent(partition) for partition in partitions]
        if len(topics) == 1 and subscription in topics[0].subscriptions:
            raise AdminError(CONFLICT, "Subscription already exists for topic")
        for topic in topics:
            if subscription not in topic.subscriptions:
                await topic.create_subscription(subscription, start_within(topic, start))
        return no_content()

    async def delete(self, request: web.Request) -> web.Response:
        """Remove a subscription."""
        subscription = subscription_name(request)
        force = flag(request, "force")

        async def work(topic: PersistentTopic) -> None:
            # One that is not there is as good as removed: so Apache's broker answers.
            if subscription in topic.subscriptions:
                await topic.delete_subscription(subscription, force=force)

        return await self._on_each(request, work)

    async def skip_all(self, request: web.Request) -> web.Response:
        """Acknowledge everything."""
        return await self._on_cursor(request, lambda topic, subscription: subscription.cursor.clear_backlog())

    async def skip(self, request: web.Request) -> web.Response:
        """Acknowledge the first so many messages."""
        count = path_integer(request, "count")
        name = topic_of(request)
        if await self._service.resources.partitions(name):
            raise AdminError(METHOD_NOT_ALLOWED, "Skip messages on a partitioned topic is not allowed")
        return await self._on_cursor(request, lambda topic, subscription: subscription.cursor.skip_entries(count))

    async def expire(self, request: web.Request) -> web.Response:
        """Acknowledge what was published longer ago than so many seconds."""
        before_ms = self._context.clock.now_ms() - 1_000 * path_integer(request, "seconds")
        return await self._on_cursor(request, lambda topic, subscription: expire(topic, subscription, before_ms))

    async def expire_all(self, request: web.Request) -> web.Response:
        """The same, for every subscription."""
        before_ms = self._context.clock.now_ms() - 1_000 * path_integer(request, "seconds")

        async def work(topic: PersistentTopic) -> None:
            for subscription in list(topic.subscriptions.values()):
                await expire(topic, subscription, before_ms)

        return await self._on_each(request, work)

    async def reset_to_time(self, request: web.Request) -> web.Response:
        """Go back (or on) to the first message published at or after a time."""
        timestamp_ms = path_integer(request, "timestamp")

        async def work(topic: PersistentTopic, subscription: Subscription) -> None:
            await topic.reset_subscription(subscription, await topic.position_of_time(timestamp_ms))

        return await self._on_cursor(request, work)

    async def reset_to_position(self, request: web.Request) -> web.Response:
        """Go to a message; with `isExcluded` to the one after it."""
        body = await body_object(request)
        position = position_in(body, default=LATEST)

        async def work(topic: PersistentTopic, subscription: Subscription) -> None:
            target = start_within(topic, position)
            if body.get("isExcluded") and target not in (EARLIEST, LATEST):
                target = topic.ledger.next_position(target)
            await topic.reset_subscription(subscription, target)

        return await self._on_cursor(request, work)

    async def peek(self, request: web.Request) -> web.Response:
        """The n-th message that is not acknowledged, from 1."""
        number = max(path_integer(request, "position"), 1)
        topic, subscription = await self._subscription(request)
        position = subscription.cursor.mark_delete
        while number > 0:
            position = topic.ledger.next_position(position)
            if position > topic.ledger.last_confirmed:
                raise AdminError(NOT_FOUND, "Message not found")
            if not subscription.cursor.is_acknowledged(position):
                number -= 1
        return message_response(await topic.ledger.read_entry(position))

    async def entry(self, request: web.Request) -> web.Response:
        """One message by its id."""
        position = (path_integer(request, "ledger"), path_integer(request, "entry"))
        name = topic_of(request)
        if not await self._service.exists(name):
            raise AdminError(NOT_FOUND, f"Topic {name} not found")
        topic = await self._persistent(name)
        try:
            found = await topic.ledger.read_entry(position)
        except (EntryNotFound, LedgerNotFound):
            raise AdminError(NOT_FOUND, "Message id not found") from None
        return message_response(found)

    async def _partitions(self, name: TopicName, *, create: bool = False) -> list[TopicName]:
        count = await self._service.resources.partitions(name)
        if count:
            return [name.partition(index) for index in range(count)]
        if not await self._service.exists(name) and not (
            create and await self._service.may_create_topics(name.namespace_name)
        ):
            raise AdminError(NOT_FOUND, f"Topic {name} not found")
        return [name]

    async def _persistent(self, name: TopicName) -> PersistentTopic:
        topic = await self._service.topic(name, create=True)
        if not isinstance(topic, PersistentTopic):
            raise AdminError(METHOD_NOT_ALLOWED, "Not supported on a non-persistent topic")
        return topic

    async def _subscription(self, request: web.Request) -> tuple[PersistentTopic, Subscription]:
        name = topic_of(request)
        if await self._service.resources.partitions(name):
            raise AdminError(METHOD_NOT_ALLOWED, f"Topic {name} is partitioned: name one of its partitions")
        if not await self._service.exists(name):
            raise AdminError(NOT_FOUND, f"Topic {name} not found")
        topic = await self._persistent(name)
        subscription = topic.subscriptions.get(subscription_name(request))
        if subscription is None:
            raise not_found(subscription_name(request), topic)
        return topic, subscription

    async def _on_each(self, request: web.Request, work: TopicWork) -> web.Response:
        for partition in await self._partitions(topic_of(request)):
            await work(await self._persistent(partition))
        return no_content()

    async def _on_cursor(
        self, request: web.Request, work: Callable[[PersistentTopic, Subscription], Awaitable[None]]
    ) -> web.Response:
        name = subscription_name(request)

        async def on_topic(topic: PersistentTopic) -> None:
            subscription = topic.subscriptions.get(name)
            if subscription is None:
                raise not_found(name, topic)
            await work(topic, subscription)

        return await self._on_each(request, on_topic)


def not_found(subscription: str, topic: PersistentTopic) -> AdminError:
    """The error for a subscription that a topic does not have."""
    return AdminError(NOT_FOUND, f"Subscription {subscription} not found for topic {topic.name}")


async def expire(topic: PersistentTopic, subscription: Subscription, before_ms: int) -> None:
    """Acknowledge everything of a subscription that was published before a time."""
    target = await topic.position_of_time(before_ms)
    last = (
        topic.ledger.last_confirmed if target > topic.ledger.last_confirmed else topic.ledger.previous_position(target)
    )
    if last > subscription.cursor.mark_delete:
        subscription.cursor.acknowledge_cumulative(last)


def subscription_name(request: web.Request) -> str:
    """The subscription that the path names; clients encode it once more than the path needs."""
    name = unquote(request.match_info["subscription"])
    if not name:
        raise AdminError(PRECONDITION_FAILED, "The subscription has no name")
    return name


def position_in(body: dict[str, object], *, default: Position) -> Position:
    """The position that a body names (ledgerId, entryId)."""
    ledger_id, entry_id = body.get("ledgerId"), body.get("entryId")
    if ledger_id is None or entry_id is None:
        return default
    if not isinstance(ledger_id, int) or not isinstance(entry_id, int):
        raise AdminError(PRECONDITION_FAILED, "ledgerId and entryId must be whole numbers")
    return (ledger_id, entry_id)


def start_within(topic: PersistentTopic, position: Position) -> Position:
    """The position as a cursor takes it: before the first means the first, past the last means the end."""
    if position[0] < 0:
        return EARLIEST
    if position > topic.ledger.last_confirmed:
        return LATEST
    return max(position, topic.ledger.first_position)


def message_response(entry: Entry) -> web.Response:
    """A message as Apache answers it: payload as the body, metadata as headers."""
    metadata = full_metadata(entry.data)
    payload = decompressed_payload(entry.data)
    headers = {
        "X-Pulsar-Message-ID": f"{entry.ledger_id}:{entry.entry_id}",
        "X-Pulsar-publish-time": iso_time(metadata.publish_time),
        "X-Pulsar-producer-name": metadata.producer_name,
        "X-Pulsar-sequence-id": str(metadata.sequence_id),
        "X-Pulsar-Is-Encrypted": str(bool(metadata.encryption_keys)).lower(),
        "X-Pulsar-Is-Encrypted-Base64-Encoded": "false",
    }
    if metadata.properties:
        properties = {pair.key: pair.value for pair in metadata.properties}
        headers["X-Pulsar-PROPERTY"] = msgspec.json.encode(properties).decode()
    for field, header in (("event_time", "X-Pulsar-event-time"), ("deliver_at_time", "X-Pulsar-deliver-at-time")):
        if metadata.HasField(field):
            headers[header] = iso_time(getattr(metadata, field))
    optional = {
        "partition_key": "X-Pulsar-partition-key",
        "null_value": "X-Pulsar-null-value",
        "uncompressed_size": "X-Pulsar-uncompressed-size",
        "replicated_from": "X-Pulsar-replicated-from",
        "marker_type": "X-Pulsar-marker-type",
    }
    for field, header in optional.items():
        if metadata.HasField(field):
            value = getattr(metadata, field)
            headers[header] = str(value).lower() if isinstance(value, bool) else str(value)
    if metadata.HasField("ordering_key"):
        headers["X-Pulsar-Base64-ordering-key"] = base64.b64encode(metadata.ordering_key).decode()
    if metadata.HasField("schema_version"):
        headers["X-Pulsar-Base64-schema-version-b64encoded"] = base64.b64encode(metadata.schema_version).decode()
    if metadata.HasField("num_messages_in_batch"):
        headers["X-Pulsar-num-batch-message"] = str(metadata.num_messages_in_batch)
        headers["X-Pulsar-batch-size"] = str(len(payload))
    return web.Response(body=payload, headers=headers, content_type="application/octet-stream")
