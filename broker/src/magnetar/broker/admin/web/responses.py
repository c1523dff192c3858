"""What all admin resources share: reading requests, writing answers, errors in Apache's form."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec
from aiohttp import web
from magnetar.broker.slices import TimeSlice
from magnetar.core.errors import Misuse, PeerError
from magnetar.core.topic_name import InvalidTopicName, NamespaceName, TopicName, is_valid_name_part, java_url_decode
from magnetar.metadata.paths import check_path
from magnetar.wire.pulsar.errors import ServerError
from magnetar.wire.pulsar.messages import TEXT_CHARACTERS_MAX

CONFLICT = 409
FORBIDDEN = 403
NOT_FOUND = 404
METHOD_NOT_ALLOWED = 405
NOT_ACCEPTABLE = 406
PRECONDITION_FAILED = 412
BAD_REQUEST = 400
TOO_LARGE = 413
UNPROCESSABLE = 422
UNAVAILABLE = 503
INTERNAL_ERROR = 500
NOT_IMPLEMENTED = 501

CONTAINERS_MAX = 30_000
"""Lists and objects of one body, braces and brackets within its texts with them. Each is a piece of memory that has to
be looked at when garbage is looked for; the largest schema has some twenty thousand."""

STATUS_OF_SERVER_ERROR: dict[int, int] = {
    ServerError.TOPIC_NOT_FOUND: NOT_FOUND,
    ServerError.SUBSCRIPTION_NOT_FOUND: NOT_FOUND,
    ServerError.CONSUMER_NOT_FOUND: NOT_FOUND,
    ServerError.INVALID_TOPIC_NAME: PRECONDITION_FAILED,
    ServerError.CONSUMER_BUSY: PRECONDITION_FAILED,
    ServerError.PRODUCER_BUSY: PRECONDITION_FAILED,
    ServerError.NOT_ALLOWED_ERROR: METHOD_NOT_ALLOWED,
    ServerError.INCOMPATIBLE_SCHEMA: CONFLICT,
    ServerError.SERVICE_NOT_READY: UNAVAILABLE,
}
"""How a protocol error of the layers below shows over HTTP (Apache: `PulsarWebResource`, `AdminResource`)."""


class AdminError(PeerError):
    """The request cannot be fulfilled; becomes an HTTP status with `{"reason": text}`."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def json(document: object, status: int = 200) -> web.Response:
    """A JSON answer."""
    return web.Response(body=msgspec.json.encode(document), status=status, content_type="application/json")


async def encoded_in_turns(documents: Mapping[str, object]) -> dict[str, msgspec.Raw]:
    """Each as JSON, to be a part of an answer: many at once would hold up what clients send. Lists of consumers in
    them are used up."""
    turn = TimeSlice()
    found: dict[str, msgspec.Raw] = {}
    for name, document in documents.items():
        # One subscription may have thousands. They are not needed any more as they were.
        consumers = document.get("consumers", []) if isinstance(document, dict) else []
        for index, consumer in enumerate(consumers):
            consumers[index] = msgspec.Raw(msgspec.json.encode(consumer))
            if turn.over:
                await turn.pause()
        found[name] = msgspec.Raw(msgspec.json.encode(document))
        if turn.over:
            await turn.pause()
    return found


def text(body: str) -> web.Response:
    """A plain text answer."""
    return web.Response(text=body, content_type="text/plain")


def no_content() -> web.Response:
    """What a successful write without a body answers."""
    return web.Response(status=204)


def error(status: int, reason: str) -> web.Response:
    """An error in the form that Apache's tools print."""
    if len(reason) > TEXT_CHARACTERS_MAX:
        reason = reason[:TEXT_CHARACTERS_MAX] + "…"
    return json({"reason": reason}, status)


async def body_json(request: web.Request) -> Any:
    """The request's JSON body; None when it is empty. Raises 400; 413 when it has too many lists and objects."""
    raw = await request.read()
    if not raw:
        return None
    # Those within texts count, too: finding out which is which takes as long as reading it all.
    containers = raw.count(b"[") + raw.count(b"{")
    if containers > CONTAINERS_MAX:
        raise AdminError(TOO_LARGE, f"The body has {containers} lists and objects; at most {CONTAINERS_MAX} are taken")
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise AdminError(BAD_REQUEST, f"The body is not JSON: {problem}") from None


async def body_object(request: web.Request) -> dict[str, Any]:
    """The request's JSON object; empty when there is none. Raises 400."""
    document = await body_json(request)
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise AdminError(BAD_REQUEST, "The body must be a JSON object")
    return document


async def body_integer(request: web.Request) -> int:
    """The request's body as a whole number. Raises 400."""
    document = await body_json(request)
    if not isinstance(document, int) or isinstance(document, bool):
        raise AdminError(BAD_REQUEST, "The body must be a whole number")
    return document


def flag(request: web.Request, name: str, *, default: bool = False) -> bool:
    """A query parameter that is true or false."""
    value = request.query.get(name)
    return default if value is None else value.lower() == "true"


def path_integer(request: web.Request, name: str) -> int:
    """A whole number in the path. Raises 400."""
    value = request.match_info[name]
    try:
        return int(value)
    except ValueError:
        raise AdminError(BAD_REQUEST, f"{value!r} is not a whole number") from None


def node_name(request: web.Request, parameter: str) -> str:
    """A name in the path that is one node's in the metadata: not one with a slash, which would be another's. Raises 412
    for what no node can be called."""
    name = request.match_info[parameter]
    try:
        check_path("/" + name)
    except Misuse:
        name = ""
    if not name or "/" in name:
        raise AdminError(PRECONDITION_FAILED, f"{parameter.capitalize()} name is not valid")
    return name


def tenant_asked(request: web.Request) -> str | None:
    """The tenant that a request for a group's namespaces names; tenants were properties in the API's first version."""
    tenant = request.query.get("tenant" if request.path.startswith("/admin/v2/") else "property")
    if tenant and not is_valid_name_part(tenant):
        raise AdminError(PRECONDITION_FAILED, "Tenant name is not valid")
    return tenant


def namespace_of(request: web.Request) -> NamespaceName:
    """The namespace that the path names. Raises 412."""
    try:
        return NamespaceName(request.match_info["tenant"], request.match_info["namespace"])
    except InvalidTopicName:
        raise AdminError(PRECONDITION_FAILED, "Namespace name is not valid") from None


def topic_of(request: web.Request) -> TopicName:
    """The topic that the path names, decoded as `java.net.URLDecoder` does: a space may come as `+`. Raises 412."""
    path = request.match_info
    domain = path.get("domain") or ("non-persistent" if "/non-persistent/" in request.path else "persistent")
    try:
        return TopicName.parse(
            f"{domain}://{path['tenant']}/{path['namespace']}/{java_url_decode(raw_segment(request, 'topic'))}"
        )
    except InvalidTopicName:
        raise AdminError(PRECONDITION_FAILED, "Topic name is not valid") from None


def raw_segment(request: web.Request, name: str) -> str:
    """A part of the path as it was sent, still encoded."""
    route = request.match_info.route.resource
    assert route is not None
    return request.rel_url.raw_path.split("/")[pattern_segment(route.canonical, name)]


@lru_cache(maxsize=1_000)
def pattern_segment(pattern: str, name: str) -> int:
    """Where a parameter stands in a route's pattern; there are fewer patterns than the cache holds."""
    return pattern.split("/").index("{" + name + "}")
