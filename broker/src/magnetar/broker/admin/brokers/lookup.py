"""`/lookup/v2/topic` (Pulsar `TopicLookup`)."""

from __future__ import annotations

import logging
from typing import Final

from aiohttp import web
from magnetar.broker.admin.web.owners import AUTHORITATIVE, is_authoritative, redirect, url_for
from magnetar.broker.admin.web.responses import NOT_FOUND, AdminError, flag, json, text, topic_of
from magnetar.broker.bundles.lookup_answers import Redirect, client_urls
from magnetar.broker.context import BrokerContext
from magnetar.core.errors import MagnetarError
from magnetar.core.topic_name import PERSISTENT, TopicName

logger: Final = logging.getLogger(__name__)

BASE = "/lookup/v2/topic/{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic}"

LISTENER_NAME = "listenerName"
LISTENER_HEADER = "X-Pulsar-ListenerName"


def routes(context: BrokerContext) -> list[web.RouteDef]:
    """What this file serves."""
    handlers = LookupHandlers(context)
    return [web.get(BASE, handlers.owner), web.get(BASE + "/bundle", handlers.bundle)]


class LookupHandlers:
    """The handlers, over one broker."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._lookup = context.lookup

    async def owner(self, request: web.Request) -> web.Response:
        """Which broker serves a topic: 200, or 307 to the one that knows it.

        `load=true` (a broker of ours that hands the bundle over): load the topic before its clients come."""
        topic = topic_of(request)
        listener = request.query.get(LISTENER_NAME) or request.headers.get(LISTENER_HEADER) or ""
        with self._lookup.place():
            await self._require_existence(topic)
            answer = await self._lookup.find_for_client(
                topic, authoritative=is_authoritative(request), decide=AUTHORITATIVE in request.query
            )
        there = answer.addresses
        if isinstance(answer, Redirect):
            url = url_for(request, there.web_service_url, there.web_service_url_tls)
            raise redirect(request, url, authoritative=answer.authoritative)
        if answer.ours and flag(request, "load"):
            self._context.service.spawn(self._load(topic))
        url, url_tls = client_urls(there, listener)
        found = {
            "brokerUrl": url,
            "brokerUrlTls": url_tls,
            "httpUrl": there.web_service_url,
            "httpUrlTls": there.web_service_url_tls,
            "nativeUrl": url,
            "brokerUrlSsl": url_tls,
        }
        # The names of Pulsar 1 are always there, the others where there is something to say.
        return json({key: value for key, value in found.items() if value or key == "brokerUrlSsl"})

    async def bundle(self, request: web.Request) -> web.Response:
        """Which range of its namespace's hash space a topic is in."""
        return text(await self._lookup.bundle(topic_of(request)))

    async def _require_existence(self, topic: TopicName) -> None:
        """404 for a topic that is not there and that its first client may not make."""
        service = self._context.service
        if topic.domain != PERSISTENT or await self._lookup.check_namespace(topic.namespace_name) is not None:
            return
        if await service.may_create(topic) or await service.exists(topic):
            return
        if await service.resources.partitions(topic) is None:
            raise AdminError(NOT_FOUND, "Topic not found.")

    async def _load(self, topic: TopicName) -> None:
        try:
            await self._context.service.topic(topic, create=False)
        except MagnetarError as error:
            logger.info("%s is not loaded before its clients come: %s", topic, error)
