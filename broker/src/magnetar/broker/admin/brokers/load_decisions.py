"""`/admin/v2/brokers/load-decisions`: what load management decided lately, why, and how it went. Ours alone."""

from __future__ import annotations

from aiohttp import web
from magnetar.broker.admin.web.owners import redirect, url_for
from magnetar.broker.admin.web.responses import flag, json
from magnetar.broker.context import BrokerContext

PATH = "/admin/v2/brokers/load-decisions"


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""

    async def decisions(request: web.Request) -> web.Response:
        """Those of the leader, who is asked unless `local=true` wants this broker's own."""
        operations = context.operations
        leader = operations.load.leader()
        if not operations.load.leading and leader is not None and not flag(request, "local"):
            url = url_for(request, leader.web_service_url, leader.web_service_url_tls)
            raise redirect(request, url, authoritative=False)
        return json(operations.decisions())

    return [web.get(PATH, decisions)]
