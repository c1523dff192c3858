"""LOOKUP and PARTITIONED_METADATA (pulsar-protocol section 4)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeAlias

from magnetar.core.errors import MagnetarError
from magnetar.core.topic_name import InvalidTopicName, TopicName
from magnetar.wire.pulsar import messages
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import (
    BaseCommand,
    CommandLookupTopic,
    CommandPartitionedTopicMetadata,
)

if TYPE_CHECKING:
    from magnetar.broker.session import ControlCommand, ServerSession

Failed: TypeAlias = Callable[[int, ServerError, str], bytes]
"""Builds the error answer of a command from request id, code and message."""


class LookupCommands:
    """Answers where a topic is and how many partitions it has."""

    def __init__(self, session: ServerSession) -> None:
        self._session = session
        self._context = session.context

    def commands(self) -> dict[int, ControlCommand]:
        """What this group serves."""
        return {
            BaseCommand.LOOKUP: lambda command: self._lookup(command.lookupTopic),
            BaseCommand.PARTITIONED_METADATA: lambda command: self._partitions(command.partitionMetadata),
        }

    async def _lookup(self, request: CommandLookupTopic) -> None:
        await self._answering(request.request_id, lambda: self._find_owner(request), messages.lookup_failed)

    async def _find_owner(self, request: CommandLookupTopic) -> bytes:
        name = parse_topic(request.topic)
        address = await self._context.lookup.owner(name)
        return messages.lookup_connect(request.request_id, address.service_url)

    async def _partitions(self, request: CommandPartitionedTopicMetadata) -> None:
        await self._answering(
            request.request_id, lambda: self._count_partitions(request), messages.partitioned_metadata_failed
        )

    async def _count_partitions(self, request: CommandPartitionedTopicMetadata) -> bytes:
        name = parse_topic(request.topic)
        count = await self._context.service.partitions(name, create=request.metadata_auto_creation_enabled)
        return messages.partitioned_metadata(request.request_id, count)

    async def _answering(self, request_id: int, work: Callable[[], Coroutine[Any, Any, bytes]], failed: Failed) -> None:
        try:
            with self._context.lookup.place():
                self._session.write(await work())
        except PulsarError as error:
            self._session.write(failed(request_id, error.code, error.message))
        except MagnetarError as error:
            self._session.write(failed(request_id, ServerError.METADATA_ERROR, str(error)))


def parse_topic(text: str) -> TopicName:
    """A topic name from the wire, or the protocol's error."""
    try:
        return TopicName.parse(text)
    except InvalidTopicName as error:
        raise PulsarError(ServerError.INVALID_TOPIC_NAME, str(error)) from None
