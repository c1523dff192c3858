"""Lookups of one connection that memory cannot answer: they wait for the store, for the leader or for a bundle."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from magnetar.broker.auth.rules import Right
from magnetar.broker.bundles.lookup_answers import Answer, Connect, Redirect, client_urls
from magnetar.core.errors import MagnetarError
from magnetar.core.topic_name import InvalidTopicName, TopicName
from magnetar.wire.pulsar import messages
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.topic_requests import TopicRequest

if TYPE_CHECKING:
    from magnetar.broker.session.api import Session

Failed: TypeAlias = Callable[[int, ServerError, str], bytes]
"""Builds the error answer of a command from request id, code and message."""

SENT_TO_LEADER_MAX: Final = 1_000
"""Topics of one connection of which it is remembered that their lookup was sent to the leader; the oldest make room."""

BACK_FROM_LEADER_SECONDS: Final = 10.0
"""A lookup that comes again so soon was sent back by a broker that does not lead either."""


class LookupQuestions:
    """Each method's coroutine answers one request, whatever comes of it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._context = session.context
        self._sent_to_leader: dict[str, float] = {}

    def find_owner(self, request: TopicRequest) -> Coroutine[Any, Any, None]:
        """Answer a LOOKUP."""
        return self._answering(
            request.request_id,
            lambda: self._owner(request),
            messages.lookup_failed,
            unavailable=ServerError.SERVICE_NOT_READY,
        )

    def find_partitions(self, request: TopicRequest) -> Coroutine[Any, Any, None]:
        """Answer a PARTITIONED_METADATA."""
        return self._answering(
            request.request_id,
            lambda: self._partitions(request),
            messages.partitioned_metadata_failed,
            unavailable=ServerError.METADATA_ERROR,
        )

    async def _owner(self, request: TopicRequest) -> bytes:
        name = parse_topic(request.topic)
        await self._session.require(Right.LOOKUP, name, "Client is not authorized to Lookup")
        answer = await self._context.lookup.find_for_client(
            name, authoritative=request.authoritative, decide=self._is_back(request.topic)
        )
        if isinstance(answer, Redirect) and not answer.authoritative:
            self._remember(request.topic)
        return _answer_of(answer, request)

    def _remember(self, topic: str) -> None:
        self._sent_to_leader[topic] = self._context.clock.monotonic_seconds()
        if len(self._sent_to_leader) > SENT_TO_LEADER_MAX:
            del self._sent_to_leader[next(iter(self._sent_to_leader))]

    def _is_back(self, topic: str) -> bool:
        """Whether we sent this client to the leader a moment ago, who sent it back."""
        sent_seconds = self._sent_to_leader.pop(topic, None)
        if sent_seconds is None:
            return False
        return self._context.clock.monotonic_seconds() - sent_seconds < BACK_FROM_LEADER_SECONDS

    async def _partitions(self, request: TopicRequest) -> bytes:
        name = parse_topic(request.topic)
        # Of a tenant that is missing Apache's broker tells here alone, where clients begin (`ServerCnx`).
        await self._session.require_tenant(name)
        await self._session.require(Right.LOOKUP, name, "Client is not authorized to Get Partition Metadata")
        count = await self._context.service.partitions(name, create=request.create)
        return messages.partitioned_metadata(request.request_id, count)

    async def _answering(
        self,
        request_id: int,
        work: Callable[[], Coroutine[Any, Any, bytes]],
        failed: Failed,
        *,
        unavailable: ServerError,
    ) -> None:
        """Apache's broker calls every trouble with a lookup SERVICE_NOT_READY: clients try again then."""
        try:
            with self._context.lookup.place():
                self._session.write(await work())
        except PulsarError as error:
            self._session.write(failed(request_id, error.code, error.message))
        except MagnetarError as error:
            self._session.write(failed(request_id, unavailable, str(error)))


def _answer_of(answer: Answer, request: TopicRequest) -> bytes:
    if isinstance(answer, Connect):
        return answer.encode(request.request_id, request.listener_name)
    url, url_tls = client_urls(answer.addresses, request.listener_name)
    return messages.lookup_redirect(request.request_id, url, url_tls, authoritative=answer.authoritative)


def parse_topic(text: str) -> TopicName:
    """A topic name from the wire, or the protocol's error."""
    try:
        return TopicName.parse(text)
    except InvalidTopicName as error:
        raise PulsarError(ServerError.INVALID_TOPIC_NAME, str(error)) from None
