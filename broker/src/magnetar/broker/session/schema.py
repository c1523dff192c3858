"""GET_SCHEMA and GET_OR_CREATE_SCHEMA (pulsar-protocol section 9)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from magnetar.broker.auth.rules import Right
from magnetar.broker.schema.wire import from_wire, to_wire, version_bytes, version_from_bytes
from magnetar.broker.server_errors import server_error_of
from magnetar.broker.session.lookup_questions import parse_topic
from magnetar.core.errors import MagnetarError
from magnetar.net.requests import Place
from magnetar.wire.pulsar import messages
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import BaseCommand, CommandGetOrCreateSchema, CommandGetSchema

if TYPE_CHECKING:
    from magnetar.broker.schema.schema_info import StoredSchema
    from magnetar.broker.session.api import ControlCommand, Session
    from magnetar.core.topic_name import TopicName


class SchemaCommands:
    """Serves schemas to one session."""

    COMMANDS: ClassVar[dict[int, ControlCommand[SchemaCommands]]] = {
        BaseCommand.GET_SCHEMA: lambda self, command: self._session.answering_large(
            command.getSchema.request_id, lambda place: self._get(command.getSchema, place)
        ),
        BaseCommand.GET_OR_CREATE_SCHEMA: lambda self, command: self._get_or_create(command.getOrCreateSchema),
    }
    """The protocol's commands about schemas, each with its handler."""

    def __init__(self, session: Session) -> None:
        self._session: Session = session
        self._service = session.context.service

    async def _get(self, request: CommandGetSchema, place: Place) -> None:
        try:
            self._session.write(await self._find(request, place))
        except PulsarError as error:
            self._session.write(messages.get_schema_error(request.request_id, error.code, error.message))
        except MagnetarError as error:
            self._session.write(messages.get_schema_error(request.request_id, server_error_of(error), str(error)))

    async def _find(self, request: CommandGetSchema, place: Place) -> bytes:
        name = parse_topic(request.topic)
        # Apache's broker shows and takes schemas whoever asks for them by the protocol, if not by HTTP.
        await self._session.require(Right.LOOKUP, name, "Client is not authorized to Get Schema")
        version = None
        if request.HasField("schema_version"):
            if not request.schema_version:
                raise PulsarError(ServerError.INCOMPATIBLE_SCHEMA, "Empty schema version")
            version = version_from_bytes(request.schema_version)
        registry, schema_name = self._service.topic_schemas.registry, self._service.shadows.schema_name(name)
        stored = registry.get_now(schema_name, version)
        if stored is not None:
            await place.take()
        else:
            stored = await place.read(registry.readings, schema_name, lambda: self._read(name, schema_name, version))
        if stored is None:
            raise PulsarError(ServerError.TOPIC_NOT_FOUND, f"Topic not found or no-schema {name}")
        return messages.get_schema_response(
            request.request_id, to_wire(stored.schema, name.schema_name), version_bytes(stored.version)
        )

    async def _read(self, name: TopicName, schema_name: str, version: int | None) -> StoredSchema | None:
        registry, shadows = self._service.topic_schemas.registry, self._service.shadows
        stored = await registry.get(schema_name, version)
        if stored is None and (elsewhere := await shadows.schema_name_elsewhere(name)) != schema_name:
            stored = await registry.get(elsewhere, version)
        return stored

    async def _get_or_create(self, request: CommandGetOrCreateSchema) -> None:
        try:
            version = await self._add(request)
            self._session.write(messages.get_or_create_schema_response(request.request_id, version))
        except PulsarError as error:
            self._session.write(messages.get_or_create_schema_error(request.request_id, error.code, error.message))
        except MagnetarError as error:
            self._session.write(
                messages.get_or_create_schema_error(request.request_id, server_error_of(error), str(error))
            )

    async def _add(self, request: CommandGetOrCreateSchema) -> bytes:
        name = parse_topic(request.topic)
        await self._session.require(Right.PRODUCE, name, "Client is not authorized to Create Schema")
        if not await self._service.exists(name):
            raise PulsarError(ServerError.TOPIC_NOT_FOUND, f"Topic not found {name}")
        topic = await self._service.topic(name, create=False)
        return await self._service.topic_schemas.add(topic, from_wire(request.schema))
