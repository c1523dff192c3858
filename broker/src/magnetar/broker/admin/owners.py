"""Sends a request to the broker that owns what it is about (Pulsar `PulsarWebResource.validateTopicOwnership`)."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from aiohttp import web
from magnetar.broker.admin.responses import PRECONDITION_FAILED, AdminError, flag
from magnetar.broker.context import BrokerContext
from magnetar.core.topic_name import TopicName
from yarl import URL

AUTHORITATIVE: Final = "authoritative"
"""The query parameter by which the leader tells a broker to take what nobody owns."""


def redirect(request: web.Request, owner_url: str, *, authoritative: bool) -> web.HTTPTemporaryRedirect:
    """The same request at another broker: path and query as they came, `authoritative` replaced."""
    owner = urlsplit(owner_url)
    path, _, query = request.raw_path.partition("?")
    kept = [part for part in query.split("&") if part and part.partition("=")[0] != AUTHORITATIVE]
    kept.append(f"{AUTHORITATIVE}={str(authoritative).lower()}")
    location = f"{owner.scheme}://{owner.netloc}{path}?{'&'.join(kept)}"
    return web.HTTPTemporaryRedirect(URL(location, encoded=True))


def url_for(request: web.Request, plain: str | None, tls: str | None) -> str:
    """The address of a broker that answers over what the request came over. Raises 412 when it has none."""
    url = tls if request.secure else plain
    if not url:
        raise AdminError(PRECONDITION_FAILED, "Redirected broker's service url is not configured.")
    return url


def is_authoritative(request: web.Request) -> bool:
    """Whether the leader sent the request here."""
    return flag(request, AUTHORITATIVE)


async def require_topic_owner(context: BrokerContext, request: web.Request, topic: TopicName) -> None:
    """Returns when this broker serves the topic; takes its bundle when this broker is to.

    Raises the redirect to whoever serves it, 404 when the namespace does not exist, 412 when no broker may serve it,
    503 while the bundle moves."""
    del request
    await context.lookup.owner(topic)
