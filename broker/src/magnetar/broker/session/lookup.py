"""LOOKUP and PARTITIONED_METADATA (pulsar-protocol section 4).

Nearly all are answered within the read that brought them, by what is in memory; the answers to all that came together
leave in one write. What has to be asked or decided first is a task (`lookup_questions.py`).

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from magnetar.broker.session.lookup_questions import LookupQuestions, parse_topic
from magnetar.core.topic_name import TopicName
from magnetar.wire.pulsar import messages
from magnetar.wire.pulsar.errors import PulsarError
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import BaseCommand
from magnetar.wire.pulsar.topic_requests import (
    TYPE_LOOKUP,
    TYPE_PARTITIONED_METADATA,
    TopicRequest,
    read_topic_request,
)

if TYPE_CHECKING:
    from magnetar.broker.session.api import Session


class LookupCommands:
    """Answers where a topic is and how many partitions it has."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._connection = session.connection
        self._context = session.context
        self._questions = LookupQuestions(session)

    def serve_lookup(self, command: BaseCommand) -> Coroutine[Any, Any, None] | None:
        """A LOOKUP that does not come in the usual form."""
        return self._look_up(_lookup_request(command))

    def serve_partitions(self, command: BaseCommand) -> Coroutine[Any, Any, None] | None:
        """A PARTITIONED_METADATA that does not come in the usual form."""
        return self._count_partitions(_partitions_request(command))

    # --- LOOKUP

    def look_up(self, buffer: bytes, start: int, end: int) -> bool:
        """Answer a LOOKUP in the usual form, at once if it can be; False for one in another."""
        request = read_topic_request(buffer, start, end, TYPE_LOOKUP)
        if request is None:
            return False
        work = self._look_up(request)
        if work is not None:
            self._session.spawn(work)
        return True

    def answer_at_once(self, buffer: bytes, start: int, end: int) -> bool:
        """Answer a LOOKUP in the usual form from memory; False when that is not enough, its form is another one, or it
        is refused."""
        request = read_topic_request(buffer, start, end, TYPE_LOOKUP)
        if request is None:
            return False
        try:
            name = parse_topic(request.topic)
            known = self._context.lookup.find_now(name) if self._may_now(name) else None
            if known is None:
                return False
            self._connection.write(known.encode(request.request_id, request.listener_name))
        except PulsarError:
            return False  # `look_up` tells the client.
        return True

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
        return self._questions.find_owner(request)

    # --- PARTITIONED_METADATA

    def count_partitions(self, buffer: bytes, start: int, end: int) -> bool:
        """Answer a PARTITIONED_METADATA in the usual form, at once if it can be; False for one in another."""
        request = read_topic_request(buffer, start, end, TYPE_PARTITIONED_METADATA)
        if request is None:
            return False
        work = self._count_partitions(request)
        if work is not None:
            self._session.spawn(work)
        return True

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
        return self._questions.find_partitions(request)

    # --- both

    def _may_now(self, name: TopicName) -> bool:
        """Whether the client is known to have the right; False: it has to be asked for."""
        access = self._session.access
        return access is None or access.may_look_up_now(name)


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
