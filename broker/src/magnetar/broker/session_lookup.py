"""LOOKUP and PARTITIONED_METADATA (pulsar-protocol section 4).

Nearly all are answered within the read that brought them, by what is in memory; the answers to all that came together
leave in one write. What has to be asked or decided first is a task.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from magnetar.broker.auth.rules import Right
from magnetar.broker.lookup_answers import Answer, Connect, Redirect, client_urls
from magnetar.core.errors import MagnetarError
from magnetar.core.topic_name import InvalidTopicName, TopicName
from magnetar.wire.pulsar import messages
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import BaseCommand
from magnetar.wire.pulsar.topic_requests import (
    TYPE_LOOKUP,
    TYPE_PARTITIONED_METADATA,
    TopicRequest,
    read_topic_request,
)

if TYPE_CHECKING:
    from magnetar.broker.session import ControlCommand, ServerSession

Failed: TypeAlias = Callable[[int, ServerError, str], bytes]
"""Builds the error answer of a command from request id, code and message."""

SENT_TO_LEADER_MAX: Final = 1_000
"""Topics of one connection of which it is remembered that their lookup was sent to the leader; the oldest make room."""

BACK_FROM_LEADER_SECONDS: Final = 10.0
"""A lookup that comes again so soon was sent back by a broker that does not lead either."""


class LookupCommands:
    """Answers where a topic is and how many partitions it has."""

    def __init__(self, session: ServerSession) -> None:
        self._session = session
        self._connection = session.connection
        self._context = session.context
        self._sent_to_leader: dict[str, float] = {}

    def commands(self) -> dict[int, ControlCommand]:
        """What this group serves, for commands that do not come in the usual form."""
        return {
            BaseCommand.LOOKUP: lambda command: self._look_up(_lookup_request(command)),
            BaseCommand.PARTITIONED_METADATA: lambda command: self._count_partitions(_partitions_request(command)),
        }

    # --- LOOKUP

    def look_up(self, buffer: bytes, start: int, end: int) -> None:
        """Answer a LOOKUP, at once if it can be. `PeerError` for one that cannot be read."""
        request = read_topic_request(buffer, start, end, TYPE_LOOKUP)
        if request is None:
            request = _lookup_request(messages.decode_command(buffer, start, end))
        work = self._look_up(request)
        if work is not None:
            self._session.spawn(work)

    def _look_up(self, request: TopicRequest) -> Coroutine[Any, Any, None] | None:
        try:
            name = parse_topic(request.topic)
            known = self._context.lookup.find_now(name) if self._may_now(name) else None
            if known is not None:
                self._connection.write(known.encode(request.request_id, request.listener_name))
                return None
        except PulsarError as error:
            self._connection.write(messages.lookup_failed(request.request_id, error.code, error.message))
            return None
        return self._answering(
            request.request_id,
            lambda: self._find_owner(request),
            messages.lookup_failed,
            unavailable=ServerError.SERVICE_NOT_READY,
        )

    async def _find_owner(self, request: TopicRequest) -> bytes:
        name = parse_topic(request.topic)
        await self._session.require(Right.LOOKUP, name, "Client is not authorized to Lookup")
        answer = await self._context.lookup.find(
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

    # --- PARTITIONED_METADATA

    def count_partitions(self, buffer: bytes, start: int, end: int) -> None:
        """Answer a PARTITIONED_METADATA, at once if it can be. `PeerError` for one that cannot be read."""
        request = read_topic_request(buffer, start, end, TYPE_PARTITIONED_METADATA)
        if request is None:
            request = _partitions_request(messages.decode_command(buffer, start, end))
        work = self._count_partitions(request)
        if work is not None:
            self._session.spawn(work)

    def _count_partitions(self, request: TopicRequest) -> Coroutine[Any, Any, None] | None:
        if not self._context.lookup.full:
            try:
                name = parse_topic(request.topic)
                count = self._context.service.partitions_now(name) if self._may_now(name) else None
                if count is not None:
                    self._connection.write(messages.partitioned_metadata(request.request_id, count))
                    return None
            except PulsarError as error:
                failed = messages.partitioned_metadata_failed(request.request_id, error.code, error.message)
                self._connection.write(failed)
                return None
        return self._answering(
            request.request_id,
            lambda: self._find_partitions(request),
            messages.partitioned_metadata_failed,
            unavailable=ServerError.METADATA_ERROR,
        )

    async def _find_partitions(self, request: TopicRequest) -> bytes:
        name = parse_topic(request.topic)
        await self._session.require(Right.LOOKUP, name, "Client is not authorized to Get Partition Metadata")
        count = await self._context.service.partitions(name, create=request.create)
        return messages.partitioned_metadata(request.request_id, count)

    # --- both

    def _may_now(self, name: TopicName) -> bool:
        """Whether the client is known to have the right; False: it has to be asked for."""
        access = self._session.access
        return access is None or access.may_look_up_now(name)

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
                self._connection.write(await work())
        except PulsarError as error:
            self._connection.write(failed(request_id, error.code, error.message))
        except MagnetarError as error:
            self._connection.write(failed(request_id, unavailable, str(error)))


def _lookup_request(command: BaseCommand) -> TopicRequest:
    body = command.lookupTopic
    request = TopicRequest(body.topic, body.request_id)
    request.authoritative = body.authoritative
    request.listener_name = body.advertised_listener_name
    return request


def _partitions_request(command: BaseCommand) -> TopicRequest:
    body = command.partitionMetadata
    request = TopicRequest(body.topic, body.request_id)
    request.create = body.metadata_auto_creation_enabled
    return request


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
