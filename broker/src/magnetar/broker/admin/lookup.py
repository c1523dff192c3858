"""`/lookup/v2/topic`."""

from __future__ import annotations

from aiohttp import web
from magnetar.broker.admin.responses import json, text, topic_of
from magnetar.broker.context import BrokerContext

BASE = "/lookup/v2/topic/{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic}"


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""
    handlers = LookupHandlers(context)
    return [web.get(BASE, handlers.owner), web.get(BASE + "/bundle", handlers.bundle)]


class LookupHandlers:
    """The handlers, over one broker."""

    def __init__(self, context: BrokerContext) -> None:
        self._lookup = context.lookup

    async def owner(self, request: web.Request) -> web.Response:
        """Which broker serves a topic."""
        with self._lookup.place():
            address = await self._lookup.owner(topic_of(request))
        return json(
            {
                "brokerUrl": address.service_url,
                "httpUrl": address.web_service_url,
                "nativeUrl": address.service_url,
                "brokerUrlSsl": "",
            }
        )

    async def bundle(self, request: web.Request) -> web.Response:
        """Which range of its namespace's hash space a topic is in."""
        return text(await self._lookup.bundle(topic_of(request)))
