"""Subscriptions of topics: listing, making, describing, removing. A partitioned topic means all its partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web
from magnetar.broker.admin.topics.access import HandlersOfTopics, raise_first
from magnetar.broker.admin.topics.subscription_positions import (
    ONE_SUBSCRIPTION,
    position_in,
    start_within,
    subscription_name,
)
from magnetar.broker.admin.topics.topics import ONE
from magnetar.broker.admin.web.described import takes
from magnetar.broker.admin.web.owners import require_topic_owner
from magnetar.broker.admin.web.responses import (
    BAD_REQUEST,
    CONFLICT,
    METHOD_NOT_ALLOWED,
    NOT_FOUND,
    TOO_LARGE,
    AdminError,
    body_json,
    body_object,
    flag,
    json,
    no_content,
    topic_of,
)
from magnetar.broker.admin.web.shapes import map_of, text
from magnetar.broker.context import BrokerContext
from magnetar.broker.replicated_subscriptions.marked import is_marked, mark
from magnetar.broker.session.command_limits import PROPERTIES_CHARACTERS_MAX
from magnetar.broker.topics.limits import refusal_of_name
from magnetar.broker.topics.topic import PersistentTopic, Topic
from magnetar.core.ids import LATEST
from magnetar.core.topic_name import PERSISTENT, TopicName
from magnetar.managed.cursors.cursor import Cursor
from magnetar.managed.cursors.internal_properties import internal_of, without_internal

EXISTS_ALREADY: Final = "Subscription already exists for topic"


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""
    handlers = SubscriptionHandlers(context)
    return [
        web.get(ONE + "/subscriptions", handlers.names),
        web.put(ONE_SUBSCRIPTION, handlers.create),
        web.delete(ONE_SUBSCRIPTION, handlers.delete),
        web.get(ONE_SUBSCRIPTION + "/properties", handlers.properties),
        web.put(ONE_SUBSCRIPTION + "/properties", handlers.set_properties),
        web.get(ONE_SUBSCRIPTION + "/replicatedSubscriptionStatus", handlers.replicated),
        web.post(ONE_SUBSCRIPTION + "/replicatedSubscriptionStatus", handlers.set_replicated),
    ]


class SubscriptionHandlers(HandlersOfTopics):
    """The handlers, over one broker."""

    @takes("authoritative")
    async def names(self, request: web.Request) -> web.Response:
        """Names of the subscriptions; of a partitioned topic, those of any partition."""
        name = topic_of(request)
        if count := await self._access.partitions(name):
            answers = await self._access.on_partitions(request, range(count))
            missing = [one for one in answers if isinstance(one, AdminError) and one.status == NOT_FOUND]
            found = raise_first([one for one in answers if one not in missing])
            names: set[str] = set()
            for one in found:
                names.update(one.json())
                await asyncio.sleep(0)  # Ten thousand names take milliseconds, and there may be a hundred partitions.
            return json(sorted(names))
        topic = await self._access.topic(request, name)
        return json(sorted(topic.subscriptions))

    @takes("replicated", "authoritative", body="{ledgerId, entryId, batchIndex, isExcluded, properties}, or nothing")
    async def create(self, request: web.Request) -> web.Response:
        """Make a subscription at a position (the end unless the body names one), with properties if it says so."""
        name = topic_of(request)
        subscription = subscription_name(request)
        if refusal := refusal_of_name(self._context.service.settings.policies, subscription):
            raise AdminError(BAD_REQUEST, refusal)
        if name.domain != PERSISTENT:
            raise AdminError(BAD_REQUEST, "Create subscription on non-persistent topic can only be done through client")
        if count := await self._access.partitions(name):
            return await self._create_on_partitions(request, count)
        await require_topic_owner(self._context, request, name)
        topic = await self._topic_to_subscribe(name)
        if subscription in topic.subscriptions:
            raise AdminError(CONFLICT, EXISTS_ALREADY)
        body = start_document(await body_json(request))
        properties = _noted(map_of(text)(body.get("properties") or {}))
        start = start_within(topic, position_in(body, default=LATEST))
        await topic.create_subscription(subscription, start, properties)
        if flag(request, "replicated"):
            await mark(topic, durable_cursor(topic, subscription), replicated=True)
        return no_content()

    @takes("force", "authoritative")
    async def delete(self, request: web.Request) -> web.Response:
        """Remove a subscription; without `force` one that nobody is connected to."""
        name = topic_of(request)
        subscription = subscription_name(request)
        if count := await self._access.partitions(name):
            answers = await self._access.on_partitions(request, range(count))
            if all(isinstance(one, AdminError) and one.status == NOT_FOUND for one in answers):
                raise AdminError(NOT_FOUND, "Subscription not found")
            raise_first([one for one in answers if not (isinstance(one, AdminError) and one.status == NOT_FOUND)])
            return no_content()
        topic = await self._access.topic(request, name)
        check_subscribed(topic, subscription)
        await topic.delete_subscription(subscription, force=flag(request, "force"))
        return no_content()

    @takes("authoritative")
    async def properties(self, request: web.Request) -> web.Response:
        """What is noted on a subscription; of a partitioned topic, over all partitions."""
        name = topic_of(request)
        if count := await self._access.partitions(name):
            merged: dict[str, str] = {}
            for answer in raise_first(await self._access.on_partitions(request, range(count))):
                merged.update(answer.json())
            return json(merged)
        return json(without_internal((await self._cursor(request)).cursor_properties))

    @takes("authoritative", body="the properties; they replace those that there were")
    async def set_properties(self, request: web.Request) -> web.Response:
        """Note something on a subscription in the place of what was noted."""
        properties = _noted({key: str(value) for key, value in (await body_object(request)).items()})
        return await self._on_cursors(
            request, lambda cursor: cursor.set_cursor_properties(internal_of(cursor.cursor_properties) | properties)
        )

    @takes("authoritative")
    async def replicated(self, request: web.Request) -> web.Response:
        """By topic or partition, whether the position is to be known in other clusters."""
        name = topic_of(request)
        if count := await self._access.partitions(name):
            merged: dict[str, bool] = {}
            for answer in raise_first(await self._access.on_partitions(request, range(count))):
                merged.update(answer.json())
            return json(merged)
        topic = await self._access.persistent(request, name)
        check_subscribed(topic, subscription_name(request))
        return json({str(name): is_marked(topic.ledger.cursors.get(subscription_name(request)))})

    @takes("authoritative", body="true or false")
    async def set_replicated(self, request: web.Request) -> web.Response:
        """Have the position known in other clusters, or not."""
        wanted = await body_json(request)
        if not isinstance(wanted, bool):
            raise AdminError(BAD_REQUEST, "The body must be true or false")
        subscription = subscription_name(request)

        async def mark_here(topic: PersistentTopic) -> None:
            await mark(topic, durable_cursor(topic, subscription), replicated=wanted)

        return await self._access.on_each(request, mark_here)

    async def _topic_to_subscribe(self, name: TopicName) -> PersistentTopic:
        if not await self._access.exists(name) and not await self._service.may_create(name):
            raise await self._access.not_found(name)
        topic = await self._service.topic(name, create=True)
        assert isinstance(topic, PersistentTopic)
        return topic

    async def _create_on_partitions(self, request: web.Request, count: int) -> web.Response:
        answers = await self._access.on_partitions(request, range(count))
        taken = [one for one in answers if isinstance(one, AdminError) and one.status == CONFLICT]
        if len(taken) == count:
            raise AdminError(CONFLICT, EXISTS_ALREADY)
        raise_first([one for one in answers if one not in taken])
        return no_content()

    async def _cursor(self, request: web.Request) -> Cursor:
        topic = await self._access.persistent(request, topic_of(request))
        return durable_cursor(topic, subscription_name(request))

    async def _on_cursors(self, request: web.Request, work: Callable[[Cursor], Awaitable[None]]) -> web.Response:
        subscription = subscription_name(request)
        return await self._access.on_each(request, lambda topic: work(durable_cursor(topic, subscription)))


def _noted(properties: dict[str, str]) -> dict[str, str]:
    """Without those that are brokers' own. Raises 413 for more than a client may note on a subscription: cursors carry
    it wherever they are written."""
    characters = sum(len(key) + len(value) for key, value in properties.items())
    if characters > PROPERTIES_CHARACTERS_MAX:
        raise AdminError(
            TOO_LARGE, f"properties of {characters} characters; at most {PROPERTIES_CHARACTERS_MAX} are taken"
        )
    return without_internal(properties)


def check_subscribed(topic: Topic, subscription: str) -> None:
    """Raises 404 when a topic has no such subscription."""
    if subscription not in topic.subscriptions:
        raise AdminError(NOT_FOUND, f"Subscription {subscription} not found for topic {topic.name}")


def durable_cursor(topic: PersistentTopic, subscription: str) -> Cursor:
    """The cursor of a durable subscription. Raises 404, 405."""
    check_subscribed(topic, subscription)
    cursor = topic.ledger.cursors.get(subscription)
    if cursor is None:
        raise AdminError(METHOD_NOT_ALLOWED, f"Subscription {subscription} is not durable")
    return cursor


def start_document(body: Any) -> dict[str, Any]:
    """Where to begin, as an object; two words say the same. Raises 400."""
    if body is None or body == "latest":
        return {}
    if body == "earliest":
        return {"ledgerId": -1, "entryId": -1}
    if not isinstance(body, dict):
        raise AdminError(BAD_REQUEST, "The body must be a JSON object")
    return body
