"""`/admin/v2/schemas`."""

from __future__ import annotations

from typing import Any

from aiohttp import web
from magnetar.broker.admin.responses import (
    NOT_FOUND,
    UNPROCESSABLE,
    AdminError,
    body_object,
    flag,
    json,
    path_integer,
    topic_of,
)
from magnetar.broker.context import BrokerContext
from magnetar.broker.schema.schema_info import SchemaInfo, StoredSchema, from_rest, rest_text

ONE = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""
    schemas = context.service.topic_schemas
    registry = schemas.registry

    async def latest(request: web.Request) -> web.Response:
        return json(schema_document(await found(request, None)))

    async def by_version(request: web.Request) -> web.Response:
        return json(schema_document(await found(request, path_integer(request, "version"))))

    async def found(request: web.Request, version: int | None) -> StoredSchema:
        stored = await registry.get(topic_of(request).schema_name, version)
        if stored is None:
            raise AdminError(NOT_FOUND, "Schema not found")
        return stored

    async def every(request: web.Request) -> web.Response:
        stored = await registry.all_versions(topic_of(request).schema_name)
        return json({"getSchemaResponses": [schema_document(one) for one in stored]})

    async def publish(request: web.Request) -> web.Response:
        name = topic_of(request)
        version = await registry.put_if_absent(
            name.schema_name, await schema_in(request), await schemas.strategy(name.namespace_name)
        )
        return json({"version": {"version": version}})

    async def delete(request: web.Request) -> web.Response:
        name = topic_of(request)
        stored = await registry.get(name.schema_name, None)
        if stored is None:
            raise AdminError(NOT_FOUND, "Schema not found")
        await registry.delete(name.schema_name, force=flag(request, "force"))
        return json({"version": {"version": stored.version + 1}})

    async def compatibility(request: web.Request) -> web.Response:
        name = topic_of(request)
        strategy = await schemas.strategy(name.namespace_name)
        compatible = await registry.is_compatible(name.schema_name, await schema_in(request), strategy)
        return json({"isCompatibility": compatible, "schemaCompatibilityStrategy": strategy.value})

    async def version_of(request: web.Request) -> web.Response:
        version = await registry.find_version(topic_of(request).schema_name, await schema_in(request))
        return json({"version": -1 if version is None else version})

    return [
        web.get(ONE + "/schema", latest),
        web.get(ONE + "/schema/{version}", by_version),
        web.get(ONE + "/schemas", every),
        web.post(ONE + "/schema", publish),
        web.delete(ONE + "/schema", delete),
        web.post(ONE + "/compatibility", compatibility),
        web.post(ONE + "/version", version_of),
    ]


async def schema_in(request: web.Request) -> SchemaInfo:
    """The schema in a request's body: {type, schema, properties}. Raises 422."""
    body = await body_object(request)
    try:
        return from_rest(str(body["type"]), str(body.get("schema") or ""), body.get("properties") or {})
    except (KeyError, ValueError) as problem:
        raise AdminError(UNPROCESSABLE, f"Not a schema: {problem}") from None


def schema_document(stored: StoredSchema) -> dict[str, Any]:
    """A schema as the admin API shows it."""
    return {
        "version": stored.version,
        "type": stored.schema.type.name,
        "timestamp": stored.timestamp_ms,
        "data": rest_text(stored.schema),
        "properties": dict(stored.schema.properties),
    }
