"""Where subscriptions stand: skipping, expiring, resetting, and what is before them.

A partitioned topic means all its partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

from aiohttp import web
from magnetar.admin_client.client import AdminAnswer
from magnetar.broker.admin.topics.access import HandlersOfTopics, raise_first
from magnetar.broker.admin.topics.stats import position_text
from magnetar.broker.admin.topics.topics import ONE
from magnetar.broker.admin.web.described import takes
from magnetar.broker.admin.web.responses import (
    BAD_REQUEST,
    CONFLICT,
    METHOD_NOT_ALLOWED,
    NOT_FOUND,
    PRECONDITION_FAILED,
    AdminError,
    body_object,
    json,
    no_content,
    path_integer,
    topic_of,
)
from magnetar.broker.context import BrokerContext
from magnetar.broker.slices import TimeSlice
from magnetar.broker.subscriptions.filtering import unacknowledged
from magnetar.broker.subscriptions.reset import skip
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.topic import PersistentTopic
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.core.topic_name import java_url_decode
from magnetar.managed.compaction import COMPACTION_CURSOR
from magnetar.managed.entry import Entry
from magnetar.managed.entry_bitmap import words_of

ONE_SUBSCRIPTION: Final = ONE + "/subscription/{subscription}"
EXPIRE_ALL: Final = ONE + "/all_subscription/expireMessages/{seconds}"

Work: TypeAlias = Callable[[PersistentTopic, Subscription], Awaitable[None]]

ANALYSED_ENTRIES_MAX: Final = 10_000
"""Entries that one analysis of a backlog looks at, at most (Pulsar: `subscriptionBacklogScanMaxEntries`)."""
ANALYSIS_SECONDS_MAX: Final = 120.0
"""Seconds that one analysis of a backlog may take (Pulsar: `subscriptionBacklogScanMaxTimeMs`)."""
ENTRIES_PER_READ: Final = 100

ANALYSIS_REFUSED: Final = (
    "Analyze backlog on a partitioned topic is not allowed, please try do it on specific topic partition"
)
NOTHING_TO_EXPIRE: Final = (
    "Expire message by timestamp not issued on topic {topic} for subscription {subscription} due to ongoing message "
    "expiration not finished or subscription almost catch  up. If it's performed on a partitioned topic operation "
    "might succeeded on other partitions, please check stats of individual partition."
)
MOVED_BY_COMPACTION: Final = f"The subscription {COMPACTION_CURSOR} is moved by compaction alone"
"""Who reads compacted would lose what it had not gone through. Apache's brokers move it."""
NO_POSITION_TO_EXPIRE: Final = (
    "Expire message by position not issued on topic {topic} for subscription {subscription} due to ongoing message "
    "expiration not finished or invalid message position provided."
)


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""
    handlers = PositionHandlers(context)
    return [
        web.post(ONE_SUBSCRIPTION + "/skip_all", handlers.skip_all),
        web.post(ONE_SUBSCRIPTION + "/skip/{count}", handlers.skip),
        web.post(ONE_SUBSCRIPTION + "/expireMessages/{seconds}", handlers.expire),
        web.post(ONE_SUBSCRIPTION + "/expireMessages", handlers.expire_to_position),
        web.post(EXPIRE_ALL, handlers.expire_all),
        web.post(ONE_SUBSCRIPTION + "/resetcursor/{timestamp}", handlers.reset_to_time),
        web.post(ONE_SUBSCRIPTION + "/resetcursor", handlers.reset_to_position),
        web.post(ONE_SUBSCRIPTION + "/analyzeBacklog", handlers.analyze),
    ]


class PositionHandlers(HandlersOfTopics):
    """The handlers, over one broker."""

    @takes("authoritative")
    async def skip_all(self, request: web.Request) -> web.Response:
        """Acknowledge the whole backlog of a subscription."""
        return await self._on_subscription(request, lambda topic, subscription: skip(subscription))

    @takes("authoritative")
    async def skip(self, request: web.Request) -> web.Response:
        """Acknowledge the first so many messages."""
        count = max(path_integer(request, "count"), 0)
        await self._access.check_not_partitioned(
            topic_of(request), "Skip messages on a partitioned topic is not allowed"
        )
        return await self._on_subscription(request, lambda topic, subscription: skip(subscription, count))

    @takes("authoritative")
    async def expire(self, request: web.Request) -> web.Response:
        """Acknowledge what was published longer ago than so many seconds."""
        before_ms = self._expiry_time(request)

        async def work(topic: PersistentTopic, subscription: Subscription) -> None:
            expire(topic, subscription, await last_before(topic, before_ms))

        return await self._on_subscription(request, work)

    @takes("authoritative")
    async def expire_all(self, request: web.Request) -> web.Response:
        """Acknowledge what is older than so many seconds, on every subscription of the topic."""
        before_ms = self._expiry_time(request)

        async def work(topic: PersistentTopic) -> None:
            refused: AdminError | None = None
            turn = TimeSlice()
            last = await last_before(topic, before_ms)
            for subscription in list(topic.subscriptions.values()):
                if turn.over:
                    await turn.pause()
                if subscription.name == COMPACTION_CURSOR:
                    continue
                try:
                    expire(topic, subscription, last)
                except AdminError as refusal:
                    refused = refusal
            if refused is not None:
                raise refused

        return await self._access.on_each(request, work)

    @takes("authoritative", body="{ledgerId, entryId, isExcluded}")
    async def expire_to_position(self, request: web.Request) -> web.Response:
        """Acknowledge everything up to a message; with `isExcluded` not the message itself."""
        body = await body_object(request)
        await self._access.check_not_partitioned(
            topic_of(request), "Expire message at position is not supported for partitioned-topic"
        )
        position = named_position(body)

        async def work(topic: PersistentTopic, subscription: Subscription) -> None:
            if position > topic.ledger.last_confirmed or position < topic.ledger.ledgers.first_position():
                reason = NO_POSITION_TO_EXPIRE.format(topic=topic.name, subscription=subscription.name)
                raise AdminError(CONFLICT, reason)
            last = topic.ledger.ledgers.previous_position(position) if is_excluded(body) else position
            if last > subscription.cursor.mark_delete:
                subscription.expire_up_to(last)

        return await self._on_subscription(request, work)

    @takes("authoritative")
    async def reset_to_time(self, request: web.Request) -> web.Response:
        """Go back (or on) to the first message published at or after a time (ms since 1970)."""
        timestamp_ms = path_integer(request, "timestamp")

        async def work(topic: PersistentTopic, subscription: Subscription) -> None:
            await topic.reset_subscription(subscription, await topic.position_of_time(timestamp_ms))

        return await self._on_subscription(request, work)

    @takes("authoritative", body="{ledgerId, entryId, batchIndex, isExcluded}")
    async def reset_to_position(self, request: web.Request) -> web.Response:
        """Go to a message, also within a batch; with `isExcluded` to the one after it."""
        body = await body_object(request)
        await self._access.check_not_partitioned(
            topic_of(request), "Reset-cursor at position is not allowed for partitioned-topic"
        )
        position = named_position(body)

        async def work(topic: PersistentTopic, subscription: Subscription) -> None:
            target = start_within(topic, position)
            remaining = None
            if target == position:
                target, remaining = await within_batch(topic, target, body)
            await topic.reset_subscription(subscription, target, remaining)

        return await self._on_subscription(request, work)

    @takes("authoritative", body="{ledgerId, entryId}: where to begin, or nothing")
    async def analyze(self, request: web.Request) -> web.Response:
        """Count the entries and messages that a subscription has not acknowledged, by reading them."""
        name = topic_of(request)
        body = await body_object(request)
        await self._access.check_not_partitioned(name, ANALYSIS_REFUSED)
        topic = await self._access.persistent(request, name)
        subscription = subscription_of(topic, subscription_name(request))
        start = topic.ledger.ledgers.next_position(subscription.cursor.mark_delete)
        if body:
            start = max(topic.ledger.ledgers.valid_from(named_position(body)), start)
        return json(await analyzed_backlog(topic, subscription, start, self._context.clock.monotonic_seconds))

    def _expiry_time(self, request: web.Request) -> int:
        return self._context.clock.now_ms() - 1_000 * path_integer(request, "seconds")

    async def _on_subscription(self, request: web.Request, work: Work) -> web.Response:
        """Do the work on one topic's subscription, or have it done on each partition."""
        name = topic_of(request)
        subscription = subscription_name(request)
        if subscription == COMPACTION_CURSOR:
            raise AdminError(METHOD_NOT_ALLOWED, MOVED_BY_COMPACTION)
        if not (count := await self._access.partitions(name)):
            topic = await self._access.persistent(request, name)
            await work(topic, subscription_of(topic, subscription))
            return no_content()
        answers = await self._access.on_partitions(request, range(count))
        refusals = [one for one in answers if isinstance(one, AdminError)]
        if refusals and all(one.status == NOT_FOUND for one in refusals):
            if not any(isinstance(one, AdminAnswer) for one in answers):
                raise AdminError(NOT_FOUND, f"Subscription {subscription} not found for topic {name}")
            return no_content()
        raise_first([one for one in answers if not (isinstance(one, AdminError) and one.status == NOT_FOUND)])
        return no_content()


def subscription_of(topic: PersistentTopic, name: str) -> Subscription:
    """A topic's subscription. Raises 404."""
    subscription = topic.subscriptions.get(name)
    if subscription is None:
        raise AdminError(NOT_FOUND, f"Subscription {name} not found for topic {topic.name}")
    return subscription


async def last_before(topic: PersistentTopic, before_ms: int) -> Position:
    """The last entry that was published before a time."""
    target = await topic.position_of_time(before_ms)
    if target > topic.ledger.last_confirmed:
        return topic.ledger.last_confirmed
    return topic.ledger.ledgers.previous_position(target)


def expire(topic: PersistentTopic, subscription: Subscription, last: Position) -> None:
    """Acknowledge everything of a subscription up to an entry. Raises 409 when it has nothing before it, as Apache's
    broker."""
    if subscription.backlog == 0:
        raise AdminError(CONFLICT, NOTHING_TO_EXPIRE.format(topic=topic.name, subscription=subscription.name))
    if last > subscription.cursor.mark_delete:
        subscription.expire_up_to(last)


async def within_batch(
    topic: PersistentTopic, position: Position, body: dict[str, Any]
) -> tuple[Position, list[int] | None]:
    """The entry to go on with, and what of its batch is to be delivered as an ack set (None: all of it)."""
    excluded = is_excluded(body)
    batch_index = body.get("batchIndex")
    if not isinstance(batch_index, int) or batch_index < 0 or not topic.ledger.ledgers.contains(position):
        return (topic.ledger.ledgers.next_position(position) if excluded else position), None
    batch_size = (await topic.ledger.read_entry(position)).metadata().num_messages
    first = batch_index + 1 if excluded else batch_index
    if first >= batch_size:
        return topic.ledger.ledgers.next_position(position), None
    if first == 0:
        return position, None
    return position, ack_set(first, batch_size)


def ack_set(first: int, batch_size: int) -> list[int]:
    """Words in which the messages from `first` on are still to be delivered (1)."""
    return words_of(((1 << batch_size) - 1) >> first << first)


async def analyzed_backlog(
    topic: PersistentTopic, subscription: Subscription, start: Position, seconds: Callable[[], float]
) -> dict[str, Any]:
    """What a subscription has before it from a position on (AnalyzeBacklogResult); `aborted` when it is too much."""
    entries = messages = 0
    first: Position | None = None
    last: Position | None = None
    position, began = start, seconds()
    aborted = False
    while topic.ledger.ledgers.contains(position) and not aborted:
        end = min(topic.ledger.ledgers.entries_in(position[0]) - 1, position[1] + ENTRIES_PER_READ - 1)
        for entry in await topic.ledger.readers.read(position[0], position[1], end):
            here = (entry.ledger_id, entry.entry_id)
            position = topic.ledger.ledgers.next_position(here)
            if subscription.cursor.is_acknowledged(here):
                continue
            first, last = first or here, here
            entries += 1
            messages += unacknowledged_messages(entry, subscription)
        aborted = entries >= ANALYSED_ENTRIES_MAX or seconds() - began > ANALYSIS_SECONDS_MAX
        await asyncio.sleep(0)
    return {
        "entries": entries,
        "messages": messages,
        "filterRejectedEntries": 0,
        "filterAcceptedEntries": entries,
        "filterRescheduledEntries": 0,
        "filterRejectedMessages": 0,
        "filterAcceptedMessages": messages,
        "filterRescheduledMessages": 0,
        "aborted": aborted,
        **({"firstMessageId": position_text(first), "lastMessageId": position_text(last)} if first and last else {}),
    }


def unacknowledged_messages(entry: Entry, subscription: Subscription) -> int:
    """How many of an entry's messages are not acknowledged."""
    remaining = subscription.cursor.remaining_ack_set((entry.ledger_id, entry.entry_id))
    if remaining is None:
        return entry.metadata().num_messages
    return unacknowledged(remaining)


def subscription_name(request: web.Request) -> str:
    """The subscription that the path names; clients encode it once more than the path needs."""
    name = java_url_decode(request.match_info["subscription"])
    if not name:
        raise AdminError(PRECONDITION_FAILED, "The subscription has no name")
    return name


def is_excluded(body: dict[str, Any]) -> bool:
    """Whether the position itself is left out: Apache's tools write `excluded`, its documentation `isExcluded`."""
    return bool(body.get("excluded") or body.get("isExcluded"))


def position_in(body: dict[str, Any], *, default: Position) -> Position:
    """The position that a body names (ledgerId, entryId). Raises 412."""
    ledger_id, entry_id = body.get("ledgerId"), body.get("entryId")
    if ledger_id is None or entry_id is None:
        return default
    if not isinstance(ledger_id, int) or not isinstance(entry_id, int):
        raise AdminError(PRECONDITION_FAILED, "ledgerId and entryId must be whole numbers")
    return (ledger_id, entry_id)


def named_position(body: dict[str, Any]) -> Position:
    """The position that a body must name. Raises 400, 412."""
    if body.get("ledgerId") is None or body.get("entryId") is None:
        raise AdminError(BAD_REQUEST, "The body must name a position: ledgerId and entryId")
    return position_in(body, default=LATEST)


def start_within(topic: PersistentTopic, position: Position) -> Position:
    """The position as a cursor takes it: before the first means the first, past the last means the end."""
    if position[0] < 0:
        return EARLIEST
    if position > topic.ledger.last_confirmed:
        return LATEST
    return max(position, topic.ledger.ledgers.first_position())
