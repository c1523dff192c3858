"""Properties of a namespace: pairs of texts that mean something to whoever wrote them."""

from __future__ import annotations

from aiohttp import web
from magnetar.broker.admin.namespaces.policies import ONE
from magnetar.broker.admin.web.documents import change_policies, policies_of
from magnetar.broker.admin.web.handlers import Handlers
from magnetar.broker.admin.web.responses import json, namespace_of, no_content
from magnetar.broker.admin.web.shapes import map_of, required_body, text
from magnetar.broker.context import BrokerContext
from magnetar.broker.resources import Document


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""
    handlers = PropertyHandlers(context)
    return [
        web.get(ONE + "/properties", handlers.all),
        web.put(ONE + "/properties", handlers.set_all),
        web.delete(ONE + "/properties", handlers.remove_all),
        web.get(ONE + "/property/{key}", handlers.get),
        web.delete(ONE + "/property/{key}", handlers.remove),
        web.put(ONE + "/property/{key}/{value}", handlers.set),
    ]


class PropertyHandlers(Handlers):
    """The handlers, over one broker."""

    async def all(self, request: web.Request) -> web.Response:
        """All of them."""
        return json((await policies_of(self._context, namespace_of(request))).get("properties") or {})

    async def set_all(self, request: web.Request) -> web.Response:
        """Add these, or give them new values; others stay."""
        return await self._add(request, await required_body(request, map_of(text)))

    async def remove_all(self, request: web.Request) -> web.Response:
        """Remove every one."""
        await change_policies(self._context, namespace_of(request), lambda document: {**document, "properties": {}})
        return no_content()

    async def get(self, request: web.Request) -> web.Response:
        """One value, as it is; an empty body when there is none."""
        properties = (await policies_of(self._context, namespace_of(request))).get("properties") or {}
        return plain_value(properties.get(request.match_info["key"]))

    async def set(self, request: web.Request) -> web.Response:
        """Add one, or give it a new value."""
        return await self._add(request, {request.match_info["key"]: request.match_info["value"]})

    async def remove(self, request: web.Request) -> web.Response:
        """Remove one; answers the value that it had."""
        key = request.match_info["key"]
        former: list[str | None] = []

        def change(document: Document) -> Document:
            properties = dict(document.get("properties") or {})
            former[:] = [properties.pop(key, None)]
            return {**document, "properties": properties}

        await change_policies(self._context, namespace_of(request), change)
        return plain_value(former[0])

    async def _add(self, request: web.Request, added: dict[str, str]) -> web.Response:
        def change(document: Document) -> Document:
            return {**document, "properties": {**(document.get("properties") or {}), **added}}

        await change_policies(self._context, namespace_of(request), change)
        return no_content()


def plain_value(value: str | None) -> web.Response:
    """A text as Apache answers one: not as a JSON string, though it says so."""
    return web.Response() if value is None else web.Response(text=value, content_type="application/json")
