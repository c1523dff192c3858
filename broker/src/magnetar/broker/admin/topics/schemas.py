"""The admin API's schemas of topics: `/admin/v2/schemas`."""

from __future__ import annotations

from typing import Any

from aiohttp import web
from magnetar.broker.admin.topics.access import HandlersOfTopics
from magnetar.broker.admin.web.described import takes
from magnetar.broker.admin.web.documents import policies_of
from magnetar.broker.admin.web.owners import require_topic_owner
from magnetar.broker.admin.web.responses import (
    METHOD_NOT_ALLOWED,
    NOT_FOUND,
    UNPROCESSABLE,
    AdminError,
    body_object,
    flag,
    json,
    path_integer,
    topic_of,
)
from magnetar.broker.admin.web.shapes import map_of, text
from magnetar.broker.context import BrokerContext
from magnetar.broker.schema.locator import SchemaPosition
from magnetar.broker.schema.schema_info import SchemaInfo, StoredSchema, from_rest, rest_text
from magnetar.broker.schema.strategy import Strategy
from magnetar.broker.slices import TimeSlice
from magnetar.core.topic_name import TopicName

ACCEPTED = 202
"""What a test of a schema answers, whatever comes out."""

ONE = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""
    handlers = SchemaHandlers(context)
    return [
        web.get(ONE + "/schema", handlers.latest),
        web.get(ONE + "/schema/{version}", handlers.by_version),
        web.get(ONE + "/schemas", handlers.every),
        web.post(ONE + "/schema", handlers.publish),
        web.delete(ONE + "/schema", handlers.delete),
        web.post(ONE + "/compatibility", handlers.compatibility),
        web.post(ONE + "/version", handlers.version_of),
        web.get(ONE + "/metadata", handlers.metadata),
    ]


class SchemaHandlers(HandlersOfTopics):
    """The handlers, over one broker."""

    def __init__(self, context: BrokerContext) -> None:
        super().__init__(context)
        self._schemas = context.service.topic_schemas
        self._registry = self._schemas.registry

    @takes("authoritative")
    async def latest(self, request: web.Request) -> web.Response:
        """The schema in force."""
        return json(schema_document(await self._found(request, None)))

    @takes("authoritative")
    async def by_version(self, request: web.Request) -> web.Response:
        """The schema of one version."""
        return json(schema_document(await self._found(request, path_integer(request, "version"))))

    @takes("authoritative")
    async def every(self, request: web.Request) -> web.Response:
        """All versions, the oldest first."""
        name = await self._owned(request)
        stored = await self._registry.all_versions(name.schema_name)
        documents: list[dict[str, Any]] = []
        turn = TimeSlice()
        for one in stored:
            if turn.over:
                await turn.pause()
            documents.append(schema_document(one))
        return json({"getSchemaResponses": documents})

    @takes("authoritative", body="{type, schema, properties}")
    async def publish(self, request: web.Request) -> web.Response:
        """Add a version, if it is compatible; the same schema again has the version that it had."""
        name = await self._owned(request)
        await policies_of(self._context, name.namespace_name)
        await self._refuse_for_shadow(name)
        version = await self._registry.put_if_absent(
            name.schema_name, await schema_in(request), await self._strategy(name)
        )
        return json({"version": {"version": version}})

    @takes("force", "authoritative")
    async def delete(self, request: web.Request) -> web.Response:
        """Remove the schema: all versions with `force`, else by a mark after the last."""
        name = await self._owned(request)
        if flag(request, "force"):
            await self._registry.delete(name.schema_name, force=True)
            return json({"version": -1})
        stored = await self._registry.get(name.schema_name, None)
        if stored is None:
            return json({"version": 0})
        await self._registry.delete(name.schema_name, force=False)
        return json({"version": stored.version + 1})

    @takes("authoritative", body="{type, schema, properties}")
    async def compatibility(self, request: web.Request) -> web.Response:
        """Whether a schema could be added."""
        name = await self._owned(request)
        await policies_of(self._context, name.namespace_name)
        strategy = await self._strategy(name)
        compatible = await self._registry.is_compatible(name.schema_name, await schema_in(request), strategy)
        found = {
            "schemaCompatibilityStrategy": strategy.value,
            "compatibility": compatible,
        }
        return json(found, ACCEPTED)

    @takes("authoritative", body="{type, schema, properties}")
    async def version_of(self, request: web.Request) -> web.Response:
        """The version that a schema has, -1 when it is not there."""
        name = await self._owned(request)
        version = await self._registry.find_version(name.schema_name, await schema_in(request))
        return json({"version": -1 if version is None else version})

    @takes("authoritative")
    async def metadata(self, request: web.Request) -> web.Response:
        """Where the versions are stored."""
        name = await self._owned(request)
        located = await self._registry.locator(name.schema_name)
        if located is None:
            return web.Response()
        return json(
            {
                "info": position_document(located.newest),
                "index": [position_document(position) for position in located.positions],
            }
        )

    async def _refuse_for_shadow(self, name: TopicName) -> None:
        # Some brokers would show clients this schema, and others the source's, which its messages have.
        if await self._context.service.shadows.schema_name_elsewhere(name) != name.schema_name:
            raise AdminError(METHOD_NOT_ALLOWED, f"{name} is a shadow: register schemas with its source")

    async def _strategy(self, name: TopicName) -> Strategy:
        """What is in force for the topic, loaded or not."""
        policies = self._context.service.policies
        return (await policies.load(name) or policies.defaults).schema_compatibility

    async def _owned(self, request: web.Request) -> TopicName:
        """The topic, whose broker this is: it keeps the versions in order. Raises the redirect to the owner."""
        name = topic_of(request)
        if await self._context.service.resources.policies(name.namespace_name) is not None:
            await require_topic_owner(self._context, request, name)
        return name

    async def _found(self, request: web.Request, version: int | None) -> StoredSchema:
        name = await self._owned(request)
        stored = await self._registry.get(name.schema_name, version)
        if stored is None:
            raise AdminError(NOT_FOUND, "Schema not found")
        return stored


async def schema_in(request: web.Request) -> SchemaInfo:
    """The schema in a request's body: {type, schema, properties}. Raises 400, 422."""
    body = await body_object(request)
    properties = map_of(text)(body.get("properties") or {})
    try:
        return from_rest(str(body["type"]), str(body.get("schema") or ""), properties)
    except (KeyError, ValueError) as problem:
        raise AdminError(UNPROCESSABLE, f"Not a schema: {problem}") from None


def position_document(position: SchemaPosition) -> dict[str, int]:
    """Where one version is stored."""
    return {"ledgerId": position.ledger_id, "entryId": position.entry_id, "version": position.version}


def schema_document(stored: StoredSchema) -> dict[str, Any]:
    """A schema as the admin API shows it."""
    return {
        "version": stored.version,
        "type": stored.schema.type.name,
        "timestamp": stored.timestamp_ms,
        "data": rest_text(stored.schema),
        "properties": dict(stored.schema.properties),
    }
