"""What administrators have done to topics: unload, terminate, trim, truncate, compaction and offload."""

from __future__ import annotations

from typing import Any, Final

from aiohttp import web
from magnetar.broker.admin.topics.access import HandlersOfTopics, raise_first
from magnetar.broker.admin.topics.partitions import PERSISTENT_WANTED
from magnetar.broker.admin.topics.topics import ONE
from magnetar.broker.admin.web.described import takes
from magnetar.broker.admin.web.owners import require_topic_owner
from magnetar.broker.admin.web.responses import (
    BAD_REQUEST,
    CONFLICT,
    METHOD_NOT_ALLOWED,
    NOT_ACCEPTABLE,
    NOT_FOUND,
    PRECONDITION_FAILED,
    AdminError,
    body_json,
    json,
    no_content,
    topic_of,
)
from magnetar.broker.compaction.topic_compaction import AlreadyCompacting
from magnetar.broker.context import BrokerContext
from magnetar.broker.slices import in_slices
from magnetar.broker.topics.partitioned_topics import admin_path
from magnetar.broker.topics.topic import PersistentTopic
from magnetar.core.ids import Position
from magnetar.core.topic_name import PERSISTENT, TopicName
from magnetar.ledger.api import LedgerUnavailable
from magnetar.managed.compaction import COMPACTION_CURSOR
from magnetar.managed.cursors.cursor import Cursor
from magnetar.managed.offload.offloads import InvalidOffloadPosition, OffloadUnderWay

NOT_RUN: Final = {"status": "NOT_RUN", "lastError": ""}
"""LongRunningProcessStatus of what never ran."""

PLAIN_TERMINATE_WANTED: Final = (
    "Termination of a non-partitioned topic is not allowed using partitioned-terminate, please use terminate commands"
)


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""
    handlers = UpkeepHandlers(context)
    return [
        web.put(ONE + "/unload", handlers.unload),
        web.post(ONE + "/terminate", handlers.terminate),
        web.post(ONE + "/terminate/partitions", handlers.terminate_partitions),
        web.post(ONE + "/trim", handlers.trim),
        web.delete(ONE + "/truncate", handlers.truncate),
        web.get(ONE + "/compaction", handlers.compaction_status),
        web.put(ONE + "/compaction", handlers.compact),
        web.get(ONE + "/offload", handlers.offload_status),
        web.put(ONE + "/offload", handlers.offload),
    ]


class UpkeepHandlers(HandlersOfTopics):
    """The handlers, over one broker."""

    @takes("authoritative")
    async def unload(self, request: web.Request) -> web.Response:
        """Let go of a topic (all partitions of a partitioned one); clients reconnect."""
        name = topic_of(request)
        if count := await self._access.partitions(name):
            # Partitions that nobody has made yet are as good as unloaded.
            answers = await self._access.on_partitions(request, range(count))
            raise_first([answer for answer in answers if getattr(answer, "status", 0) != NOT_FOUND])
            return no_content()
        await require_topic_owner(self._context, request, name)
        if not await self._access.exists(name):
            raise await self._access.not_found(name)
        await self._service.unload(name)
        return no_content()

    @takes("authoritative")
    async def terminate(self, request: web.Request) -> web.Response:
        """Take no more messages; answers the last one's id."""
        name = topic_of(request)
        if name.domain != PERSISTENT:
            raise AdminError(NOT_ACCEPTABLE, PERSISTENT_WANTED)
        await self._access.check_not_partitioned(name, "Termination of a partitioned topic is not allowed")
        topic = await self._access.persistent(request, name)
        return json(message_id_document(await topic.terminate(), partition_index=-1))

    @takes("authoritative")
    async def terminate_partitions(self, request: web.Request) -> web.Response:
        """Take no more messages on any partition; answers the last ones' ids by partition."""
        name = topic_of(request)
        if name.domain != PERSISTENT:
            raise AdminError(NOT_ACCEPTABLE, PERSISTENT_WANTED)
        count = await self._access.partitions(name)
        if not count:
            raise AdminError(METHOD_NOT_ALLOWED, PLAIN_TERMINATE_WANTED)
        paths = [admin_path(name.partition(index)) + "/terminate" for index in range(count)]
        answers = raise_first(await in_slices(lambda path: self._access.call("POST", path), paths))
        return json({str(index): answer.json() for index, answer in enumerate(answers)})

    @takes("authoritative")
    async def trim(self, request: web.Request) -> web.Response:
        """Delete what nobody needs any more, at once."""
        name = topic_of(request)
        if name.domain != PERSISTENT:
            raise AdminError(METHOD_NOT_ALLOWED, "Trim on a non-persistent topic is not allowed")
        if count := await self._access.partitions(name):
            raise_first(await self._access.on_partitions(request, range(count)))
        else:
            await changeable(await self._access.persistent(request, name)).ledger.trim()
        return web.Response()

    @takes("authoritative")
    async def truncate(self, request: web.Request) -> web.Response:
        """Delete all messages, whether they are acknowledged or not."""
        if topic_of(request).domain != PERSISTENT:
            raise AdminError(PRECONDITION_FAILED, "unsupport truncate")

        async def work(topic: PersistentTopic) -> None:
            def clearing(cursor: Cursor) -> None:
                if topic.deduplication is not None:
                    topic.deduplication.clearing(cursor)

            await changeable(topic).ledger.truncate(clearing)
            if COMPACTION_CURSOR in topic.ledger.cursors:
                await self._service.compaction(topic).discard()

        return await self._access.on_each(request, work)

    @takes("authoritative")
    async def compaction_status(self, request: web.Request) -> web.Response:
        """How the last compaction went since the topic was loaded."""
        topic = await self._of_one(request)
        return json(NOT_RUN if topic.compaction is None else topic.compaction.status)

    @takes("authoritative")
    async def compact(self, request: web.Request) -> web.Response:
        """Start to compact a topic, or all partitions of a partitioned one."""
        name = topic_of(request)
        if name.domain != PERSISTENT:
            raise AdminError(METHOD_NOT_ALLOWED, "Compaction of a non-persistent topic is not allowed")
        if count := await self._access.partitions(name):
            raise_first(await self._access.on_partitions(request, range(count)))
            return no_content()
        topic = changeable(await self._access.persistent(request, name))
        try:
            self._service.compaction(topic).start()
        except AlreadyCompacting as error:
            raise AdminError(CONFLICT, str(error)) from None
        return no_content()

    @takes("authoritative")
    async def offload_status(self, request: web.Request) -> web.Response:
        """How the last offload went that somebody asked for since the topic was loaded."""
        status = (await self._of_one(request)).ledger.offloads.status
        first = status.first_unoffloaded or (-1, -1)
        return json(
            {
                "status": status.status,
                "lastError": status.last_error,
                "firstUnoffloadedMessage": message_id_document(first, partition_index=-1),
            }
        )

    @takes("authoritative", body="the message id before which to offload")
    async def offload(self, request: web.Request) -> web.Response:
        """Start to copy the ledgers before that of a message to tiered storage."""
        body = await body_json(request)
        if body is None:
            raise AdminError(BAD_REQUEST, "messageId is null")
        position = _position_of(body)
        offloads = changeable(await self._of_one(request)).ledger.offloads
        try:
            await offloads.offload_before(position)
        except OffloadUnderWay as error:
            raise AdminError(CONFLICT, str(error)) from None
        except InvalidOffloadPosition as error:
            raise AdminError(PRECONDITION_FAILED, str(error)) from None
        except LedgerUnavailable as error:
            raise AdminError(METHOD_NOT_ALLOWED, str(error)) from None
        return no_content()

    async def _of_one(self, request: web.Request) -> PersistentTopic:
        name = topic_of(request)
        if await self._access.partitions(name):
            raise AdminError(NOT_FOUND, f"Topic {name} not found")
        return await self._access.persistent(request, name)


def changeable(topic: PersistentTopic) -> PersistentTopic:
    """A topic whose entries are its own. Raises 405 for a shadow."""
    if topic.source is not None:
        raise AdminError(METHOD_NOT_ALLOWED, f"{topic.name} shows what {topic.source} has: ask this of that topic")
    return topic


def _position_of(body: Any) -> Position:
    """Of a message id, as JSON. Raises 400."""
    members = (body.get("ledgerId"), body.get("entryId")) if isinstance(body, dict) else (None, None)
    ledger_id, entry_id = members
    if type(ledger_id) is not int or type(entry_id) is not int:
        raise AdminError(BAD_REQUEST, "the message id has no ledgerId or no entryId")
    return ledger_id, entry_id


def message_id_document(
    position: Position, *, partition_index: int, batch_index: int = -1, batch_size: int = 0
) -> dict[str, int]:
    """A message id as Apache's JSON has it; without a batch the index is -1."""
    return {
        "ledgerId": position[0],
        "entryId": position[1],
        "partitionIndex": partition_index,
        "batchIndex": batch_index,
        "batchSize": batch_size,
    }


def id_on(topic: TopicName, position: Position, batch_index: int = -1) -> dict[str, int]:
    """The id of a message on a topic or partition."""
    return message_id_document(position, partition_index=topic.partition_index, batch_index=batch_index)
