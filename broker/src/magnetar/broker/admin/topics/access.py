"""How the handlers of `/admin/v2/persistent` and `non-persistent` reach topics: here, or at the brokers that own them.

A partitioned topic is no topic of its own: what is asked of it is asked of its partitions, each at its owner, by the
same request with the partition's name (Apache: `PersistentTopicsBase`, by its admin client).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from aiohttp import web
from magnetar.admin_client.client import AdminAnswer
from magnetar.admin_client.errors import AdminRefused
from magnetar.broker.admin.web.handlers import Handlers
from magnetar.broker.admin.web.owners import require_topic_owner
from magnetar.broker.admin.web.responses import (
    METHOD_NOT_ALLOWED,
    NOT_FOUND,
    AdminError,
    body_json,
    no_content,
    pattern_segment,
    topic_of,
)
from magnetar.broker.context import BrokerContext
from magnetar.broker.resources import Document
from magnetar.broker.slices import in_slices
from magnetar.broker.topics.topic import PersistentTopic, Topic
from magnetar.core.topic_name import PERSISTENT, NamespaceName, TopicName
from magnetar.wire.pulsar.errors import PulsarError, ServerError

TopicWork: TypeAlias = Callable[[PersistentTopic], Awaitable[None]]
Answers: TypeAlias = list[AdminAnswer | AdminError]

NOT_SUPPORTED_ON_NON_PERSISTENT = "Not supported on a non-persistent topic"


class TopicAccess(Handlers):
    """Finds topics for handlers, and passes work on to partitions."""

    async def policies(self, namespace: NamespaceName) -> Document:
        """The namespace's policies. Raises 404."""
        policies = await self._resources.policies(namespace)
        if policies is None:
            raise AdminError(NOT_FOUND, "Namespace not found")
        return policies

    async def partitions(self, name: TopicName) -> int:
        """How many partitions a topic has, 0 when it is not partitioned. Raises 404 without such a namespace."""
        await self.policies(name.namespace_name)
        return await self._resources.partitions(name) or 0

    async def exists(self, name: TopicName) -> bool:
        """Whether there is such a topic (not: partitioned topic). Of non-persistent ones only the owner knows."""
        if await self._service.exists(name):
            return True
        if name.domain == PERSISTENT or name.partition_index < 0:
            return False
        # Partitions that store nothing are there once they are counted.
        return name.partition_index < (await self._resources.partitions(name.partitioned_name()) or 0)

    async def check_not_partitioned(self, name: TopicName, refusal: str) -> None:
        """Raises 405 for a partitioned topic."""
        if await self.partitions(name):
            raise AdminError(METHOD_NOT_ALLOWED, refusal)

    async def topic(self, request: web.Request, name: TopicName) -> Topic:
        """The topic, which this broker serves. Raises 404, and 307 to the owner."""
        await self.policies(name.namespace_name)
        await require_topic_owner(self._context, request, name)
        if not await self.exists(name):
            raise await self.not_found(name)
        try:
            return await self._service.topic(name, create=name.domain != PERSISTENT)
        except PulsarError as problem:
            if problem.code == ServerError.TOPIC_NOT_FOUND:
                raise await self.not_found(name) from None
            raise

    async def persistent(
        self, request: web.Request, name: TopicName, refusal: str = NOT_SUPPORTED_ON_NON_PERSISTENT
    ) -> PersistentTopic:
        """The persistent topic, which this broker serves. Raises 404, 405, and 307 to the owner."""
        topic = await self.topic(request, name)
        if not isinstance(topic, PersistentTopic):
            raise AdminError(METHOD_NOT_ALLOWED, refusal)
        return topic

    async def not_found(self, name: TopicName) -> AdminError:
        """The error for a topic that is not there, with Apache's reasons."""
        if name.partition_index < 0:
            return AdminError(NOT_FOUND, f"Topic {name} not found")
        if not await self._resources.partitions(name.partitioned_name()):
            return AdminError(NOT_FOUND, f"Partitioned Topic not found: {name} has zero partitions")
        return AdminError(NOT_FOUND, "Topic partitions were not yet created")

    async def check_topic_or_partitioned(self, request: web.Request, name: TopicName) -> int:
        """How many partitions (0: none) a topic has that exists. Raises 404, and 307 to the owner of a plain topic."""
        count = await self.partitions(name)
        if not count:
            await require_topic_owner(self._context, request, name)
            if not await self.exists(name):
                raise await self.not_found(name)
        return count

    async def on_each(self, request: web.Request, work: TopicWork) -> web.Response:
        """Do the work on the topic, or have it done on each partition; answers 204."""
        name = topic_of(request)
        if count := await self.partitions(name):
            raise_first(await self.on_partitions(request, range(count)))
        else:
            await work(await self.persistent(request, name))
        return no_content()

    async def on_partitions(self, request: web.Request, indexes: Sequence[int]) -> Answers:
        """Ask the same of partitions, each at its owner; the answers, and what was refused, in order."""
        body = await body_json(request)
        query = {key: value for key, value in request.query.items() if key != "authoritative"}
        paths = [partition_path(request, index) for index in indexes]
        return await in_slices(lambda path: self.call(request.method, path, query, body), paths)

    async def call(self, method: str, path: str, query: dict[str, str] | None = None, body: Any = None) -> Any:
        """One request to whoever is responsible: the answer, or what was refused as a value."""
        try:
            return await self._context.peers.call(method, path, query=query or None, body=body)
        except AdminRefused as refusal:
            return AdminError(refusal.status, str(refusal))


def partition_path(request: web.Request, index: int) -> str:
    """A request's path with one partition in the place of the partitioned topic."""
    route = request.match_info.route.resource
    assert route is not None
    segments = request.rel_url.raw_path.split("/")
    segments[pattern_segment(route.canonical, "topic")] += f"-partition-{index}"
    return "/".join(segments)


def raise_first(answers: Answers) -> list[AdminAnswer]:
    """The answers, or the first refusal among them as an error."""
    for answer in answers:
        if isinstance(answer, AdminError):
            raise answer
    return [answer for answer in answers if isinstance(answer, AdminAnswer)]


class HandlersOfTopics(Handlers):
    """Handlers of what is asked of topics."""

    def __init__(self, context: BrokerContext) -> None:
        super().__init__(context)
        self._access = TopicAccess(context)
