"""LOOKUP and PARTITIONED_METADATA (pulsar-protocol section 4)."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

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

    def _lookup(self, request: CommandLookupTopic) -> Coroutine[Any, Any, None]:
        return self._answering(request, self._find_owner(request), messages.lookup_failed)

    async def _find_owner(self, request: CommandLookupTopic) -> bytes:
        name = parse_topic(request.topic)
        address = await self._context.lookup.owner(name)
        return messages.lookup_connect(request.request_id, address.service_url)

    def _partitions(self, request: CommandPartitionedTopicMetadata) -> Coroutine[Any, Any, None]:
        return self._answering(request, self._count_partitions(request), messages.partitioned_metadata_failed)

    async def _count_partitions(self, request: CommandPartitionedTopicMetadata) -> bytes:
        name = parse_topic(request.topic)
        count = await self._context.service.partitions(name, create=request.metadata_auto_creation_enabled)
        return messages.partitioned_metadata(request.request_id, count)

    async def _answering(
        self,
        request: CommandLookupTopic | CommandPartitionedTopicMetadata,
        work: Coroutine[Any, Any, bytes],
        failed: Any,
    ) -> None:
        lookup = self._context.lookup
        try:
            lookup.begin()
        except PulsarError as error:
            work.close()
            self._session.write(failed(request.request_id, error.code, error.message))
            return
        try:
            self._session.write(await work)
        except PulsarError as error:
            self._session.write(failed(request.request_id, error.code, error.message))
        except MagnetarError as error:
            self._session.write(failed(request.request_id, ServerError.METADATA_ERROR, str(error)))
        finally:
            lookup.end()


def parse_topic(text: str) -> TopicName:
    """A topic name from the wire, or the protocol's error."""
    try:
        return TopicName.parse(text)
    except InvalidTopicName as error:
        raise PulsarError(ServerError.INVALID_TOPIC_NAME, str(error)) from None
