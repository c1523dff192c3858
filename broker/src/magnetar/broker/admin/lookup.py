"""`/lookup/v2/topic`."""

from __future__ import annotations

from aiohttp import web
from magnetar.broker.admin.responses import json, text, topic_of
from magnetar.broker.context import BrokerContext

BASE = "/lookup/v2/topic/{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic}"


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""

    async def lookup(request: web.Request) -> web.Response:
        context.lookup.begin()
        try:
            address = await context.lookup.owner(topic_of(request))
        finally:
            context.lookup.end()
        return json(
            {
                "brokerUrl": address.service_url,
                "httpUrl": address.web_service_url,
                "nativeUrl": address.service_url,
                "brokerUrlSsl": "",
            }
        )

    async def bundle(request: web.Request) -> web.Response:
        return text(await context.lookup.bundle(topic_of(request)))

    return [web.get(BASE, lookup), web.get(BASE + "/bundle", bundle)]
