"""GET_TOPICS_OF_NAMESPACE and WATCH_TOPIC_LIST (pulsar-protocol section 8)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Final

from magnetar.broker.client_memory import MemoryReservation, watcher_bytes
from magnetar.broker.topics.lists import Watcher
from magnetar.broker.topics.patterns import brokers_match
from magnetar.core.hashing import topics_hash
from magnetar.core.topic_name import InvalidTopicName, NamespaceName
from magnetar.net.requests import Place
from magnetar.wire.pulsar import messages
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import (
    BaseCommand,
    CommandGetTopicsOfNamespace,
    CommandWatchTopicList,
    CommandWatchTopicListClose,
)
from magnetar.wire.pulsar.topic_lists import TopicListRequest, read_topic_list_request, topic_list_response

if TYPE_CHECKING:
    from magnetar.broker.session.api import ControlCommand, Session

MODES: Final[dict[int, str]] = {
    CommandGetTopicsOfNamespace.PERSISTENT: "persistent",
    CommandGetTopicsOfNamespace.NON_PERSISTENT: "non-persistent",
    CommandGetTopicsOfNamespace.ALL: "all",
}

WATCHERS_MAX: Final = 1000
"""Of one session. A client has one for each of its pattern consumers, and asks again and again where it gets none; here
each keeps a list of names, and every topic that comes or goes is matched for each."""


class TopicListCommands:
    """The topic lists that one session asked for or watches."""

    COMMANDS: ClassVar[dict[int, ControlCommand[TopicListCommands]]] = {
        BaseCommand.GET_TOPICS_OF_NAMESPACE: lambda self, command: self._get(
            TopicListRequest.of_command(command.getTopicsOfNamespace)
        ),
        BaseCommand.WATCH_TOPIC_LIST: lambda self, command: self._watch(command.watchTopicList),
        BaseCommand.WATCH_TOPIC_LIST_CLOSE: lambda self, command: self._unwatch(command.watchTopicListClose),
    }
    """The protocol's commands about lists of topics, each with its handler."""

    def __init__(self, session: Session) -> None:
        self._session: Session = session
        self._lists = session.context.topic_lists
        self._watchers: dict[int, Watcher] = {}
        self._reservations: dict[int, MemoryReservation] = {}
        """By watcher id: what they have reserved."""
        self._beginning: set[int] = set()
        """Ids of watchers that are being made."""
        self._wanted: dict[int, set[int]] = {}
        """By watcher: the requests for it that are not answered yet, and that its client has not taken back."""

    def list_topics(self, buffer: bytes, start: int, end: int) -> bool:
        """Answer a GET_TOPICS_OF_NAMESPACE in the usual form; False for one in another."""
        request = read_topic_list_request(buffer, start, end)
        if request is None:
            return False
        self._get(request)
        return True

    def _get(self, request: TopicListRequest) -> None:
        ticket = self._lists.ticket()
        self._session.answering_large(request.request_id, lambda place: self._answer_list(request, ticket, place))

    async def _answer_list(self, request: TopicListRequest, ticket: int, place: Place) -> None:
        namespace = parse_namespace(request.namespace)
        await self._session.require_topic_list(namespace, "Client is not authorized to GetTopicsOfNamespace")
        await place.take()
        # It does not count itself: the lists that wait for a store would keep lookups from what they have in memory.
        self._session.context.lookup.check_room()
        filtered = request.pattern is not None and await self._pattern_allowed(request.pattern)
        wanted = request.pattern if filtered else None
        found = await self._lists.topics(namespace, MODES[request.mode], wanted, ticket, place)
        changed = request.topics_hash != found.names_hash
        topics = await found.encode() if changed else b""
        for part in topic_list_response(
            request.request_id, topics, found.names_hash, filtered=filtered, changed=changed
        ):
            self._session.write(part)

    async def _pattern_allowed(self, pattern: str) -> bool:
        longest = self._session.context.settings.subscription_pattern_length_max
        # In a thread: what RE2 does not know Python compiles, and a few large sets take it fifty milliseconds.
        return len(pattern) <= longest and await asyncio.to_thread(brokers_match, pattern)

    def _watch(self, request: CommandWatchTopicList) -> None:
        self._wanted.setdefault(request.watcher_id, set()).add(request.request_id)
        self._session.answering_large(request.request_id, lambda place: self._watch_if_wanted(request, place))

    async def _watch_if_wanted(self, request: CommandWatchTopicList, place: Place) -> None:
        try:
            if self._is_wanted(request):
                await self._begin_watch(request, place)
            if not self._is_wanted(request):
                raise PulsarError(ServerError.METADATA_ERROR, "Closed watcher before creation was complete")
        finally:
            wanted = self._wanted.get(request.watcher_id, set())
            wanted.discard(request.request_id)
            if not wanted:
                self._wanted.pop(request.watcher_id, None)

    def _is_wanted(self, request: CommandWatchTopicList) -> bool:
        return request.request_id in self._wanted.get(request.watcher_id, ())

    async def _begin_watch(self, request: CommandWatchTopicList, place: Place) -> None:
        settings = self._session.context.settings
        if not settings.topic_list_watchers:
            raise PulsarError(
                ServerError.NOT_ALLOWED_ERROR,
                "Unable to create topic list watcher: topic list watching is disabled on this broker",
            )
        namespace = parse_namespace(request.namespace)
        await self._session.require_topic_list(namespace, "Proxy Client is not authorized to watchTopicList")
        await place.take()
        if not await self._pattern_allowed(request.topics_pattern):
            raise PulsarError(
                ServerError.NOT_ALLOWED_ERROR,
                "Unable to create topic list watcher: Pattern longer than maximum: "
                f"{settings.subscription_pattern_length_max}, or one that only clients can match",
            )
        watcher_id = request.watcher_id
        if len(self._watchers.keys() | self._beginning | {watcher_id}) > WATCHERS_MAX:
            raise PulsarError(
                ServerError.NOT_ALLOWED_ERROR,
                f"Unable to create topic list watcher: this connection has {WATCHERS_MAX} topic list watchers already",
            )
        self._beginning.add(watcher_id)
        try:
            await self._make_watcher(request, namespace, place)
        finally:
            self._beginning.discard(watcher_id)

    async def _make_watcher(self, request: CommandWatchTopicList, namespace: NamespaceName, place: Place) -> None:
        watcher_id = request.watcher_id

        def changed(added: list[str], deleted: list[str], names_hash: str) -> None:
            self._session.write(messages.watch_topic_update(watcher_id, added, deleted, names_hash))

        self._session.context.lookup.check_room()
        reservation = self._session.memory.reserve(watcher_bytes(request))
        try:
            watcher = await self._lists.watch(namespace, request.topics_pattern, changed, place)
        except BaseException:
            reservation.release()
            raise
        if self._session.ended or not self._is_wanted(request):
            self._lists.unwatch(watcher)
            reservation.release()
            return
        self._end(watcher_id)
        self._watchers[watcher_id] = watcher
        self._reservations[watcher_id] = reservation
        names_hash = topics_hash(watcher.known)
        known = request.HasField("topics_hash") and request.topics_hash == names_hash
        self._session.write(
            messages.watch_topic_list_success(
                request.request_id, watcher_id, [] if known else watcher.known, names_hash
            )
        )

    def _unwatch(self, request: CommandWatchTopicListClose) -> None:
        self._wanted.pop(request.watcher_id, None)
        self._end(request.watcher_id)
        self._session.write(messages.success(request.request_id))

    def _end(self, watcher_id: int) -> None:
        watcher = self._watchers.pop(watcher_id, None)
        if watcher is not None:
            self._lists.unwatch(watcher)
            self._reservations.pop(watcher_id).release()

    def close_all(self) -> Iterator[None]:
        """The connection is gone: a step for each watcher."""
        self._wanted.clear()
        for watcher_id in list(self._watchers):
            self._end(watcher_id)
            yield


def parse_namespace(text: str) -> NamespaceName:
    """A namespace from the wire, or the protocol's error."""
    try:
        return NamespaceName.parse(text)
    except InvalidTopicName as error:
        raise PulsarError(ServerError.INVALID_TOPIC_NAME, str(error)) from None
