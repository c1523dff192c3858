"""Calls to the API server. The `kubernetes` package logs in and connects. Objects stay JSON: its models of every kind
cost time and memory, and lose fields that they do not know."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import aiohttp
import msgspec
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.stream.ws_client import WsApiClient
from magnetar.core.errors import MagnetarError, SettingError
from magnetar.operator.kubernetes.connections import ApiServerConnections
from magnetar.operator.kubernetes.errors import Answer, NotFound, Refused, ServerUnavailable, failure
from magnetar.operator.kubernetes.kinds import KINDS, Manifest, path
from magnetar.operator.kubernetes.login import AUTHORIZATION, LOGIN_ERRORS, Login

CALL_SECONDS_MAX: Final = 15.0
"""The limit of one request, in seconds. The server's own limit is 60 s; a pass would rather try again."""
CONNECT_SECONDS_MAX: Final = 10.0
LIST_PAGE: Final = 500
"""Objects of one answer, as kubectl asks."""
LIST_PAGES_MAX: Final = 10_000
"""Five million objects of one kind: no API server holds so many, so it is asked in a circle."""

JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"

METHODS: Final[Mapping[str, str]] = {
    "apply": "PATCH",
    "apply_status": "PATCH",
    "create": "POST",
    "delete": "DELETE",
    "discover": "GET",
    "get": "GET",
    "list": "GET",
    "patch": "PATCH",
}
"""The HTTP method of each verb of the Kubernetes API."""

_UNAUTHORIZED: Final = 401
_ERRORS_BEGIN: Final = 300
WIRE_ERRORS: Final = (aiohttp.ClientError, *LOGIN_ERRORS)
"""No connection, or no credentials just now."""


def uncounted(verb: str, kind: str) -> None:
    """Nobody counts requests."""


class KubernetesClient:
    """One API server over one pool of connections. `close` it."""

    def __init__(
        self,
        login: Login,
        *,
        failure_of: Callable[[str, Answer], MagnetarError] = failure,
        asked: Callable[[str, str], None] = uncounted,
    ) -> None:
        """`failure_of` makes errors of answers that are some. `asked` is told the verb and the kind of each request."""
        self.login: Final = login
        self._asked = asked
        self.failure_of = failure_of
        try:
            self._connections = ApiServerConnections(login.configuration)
        except OSError as error:
            raise SettingError(f"the certificates for the Kubernetes API server cannot be used: {error}") from None
        self._sockets: WsApiClient | None = None
        """For websockets, with the same connections."""
        self._renewing = asyncio.Lock()
        self._renewals = 0

    async def close(self) -> None:
        """Let the connections go."""
        await self._connections.close()

    async def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """An object, as it is now; None if it is not there."""
        try:
            return await self.ask("get", kind, path(kind, namespace, name))
        except NotFound:
            return None

    async def list(self, kind: str, namespace: str | None, selector: str = "") -> Sequence[Manifest]:
        """All objects of a kind, page by page; None: of all namespaces. `NotFound` for a kind that there is not."""
        found: list_[Manifest] = []
        parameters = {"limit": str(LIST_PAGE)} | ({"labelSelector": selector} if selector else {})
        # Lists have these once, and nobody who takes an object out of one expects it to be without.
        named = {"apiVersion": KINDS[kind].api_version, "kind": kind}
        seen: set[str] = set()
        while len(seen) < LIST_PAGES_MAX:
            page = await self.ask("list", kind, path(kind, namespace), query=parameters)
            items, rest = _page(f"list {kind}", page)
            found += [trimmed(named | item) for item in items]
            if not rest:
                return found
            if rest in seen:
                raise ServerUnavailable(f"list {kind}: the API server gives the same page again and again")
            seen.add(rest)
            parameters["continue"] = rest
        raise ServerUnavailable(f"list {kind}: there is no end after {LIST_PAGES_MAX} pages")

    async def ask(
        self,
        verb: str,
        kind: str,
        where: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = JSON,
    ) -> Manifest:
        """One request. Raises `API_ERRORS`, which name verb and kind."""
        self._asked(verb, kind)
        call, method = f"{verb} {kind}", METHODS[verb]
        with wire_errors(call):
            async with (
                asyncio.timeout(CALL_SECONDS_MAX),
                self.opened(call, method, where, query=query, body=body, content_type=content_type) as response,
            ):
                content = await response.read()
        try:
            answer: Manifest = msgspec.json.decode(content, type=dict[str, Any])
        except msgspec.DecodeError as error:
            # Of something between it and us.
            raise ServerUnavailable(f"{call}: no answer of a Kubernetes API server: {error}") from None
        return trimmed(answer)

    @contextlib.asynccontextmanager
    async def opened(
        self,
        call: str,
        method: str,
        where: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = JSON,
        silent_seconds_max: float | None = CALL_SECONDS_MAX,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A request and its answer, which is no error and is still to be read. None: it may be silent for ever."""

        async def send(api: ApiClient) -> aiohttp.ClientResponse:
            headers = {"Content-Type": content_type, "Accept": JSON}
            _, url, headers, sent, _ = await api.param_serialize(
                method,
                where,
                query_params=list((query or {}).items()),
                header_params=headers,
                body=body,
                auth_settings=(AUTHORIZATION,),
            )
            timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS_MAX, sock_read=silent_seconds_max)
            answer = await api.call_api(method, url, headers, sent, _request_timeout=timeout)
            found: aiohttp.ClientResponse = answer.response
            return found

        async with contextlib.AsyncExitStack() as stack:
            renewals = self._renewals
            response = await send(await stack.enter_async_context(self._connections.used()))
            if response.status == _UNAUTHORIZED:
                # The token or the certificate may have been renewed meanwhile.
                response.release()
                await self._renew(renewals)
                response = await send(await stack.enter_async_context(self._connections.used()))
            await stack.enter_async_context(response)
            if response.method != method:
                # A redirect made a question of it, whose answer would pass for a change that is made.
                raise Refused(f"{call}: the API server's address only leads to {response.url.origin()}")
            if response.status >= _ERRORS_BEGIN:
                retry_after = response.headers.get("Retry-After", "")
                raise self.failure_of(call, Answer(response.status, await response.read(), retry_after))
            yield response

    async def _renew(self, renewals: int) -> None:
        """The credentials are not taken, after so many renewals. Of several calls that hear it one renews them."""
        async with self._renewing:
            if renewals == self._renewals:
                await self.login.renew()
                await self._connections.renew()
                self._renewals += 1

    @contextlib.asynccontextmanager
    async def websocket(
        self, where: str, query: Mapping[str, str], protocol: str
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """A connection by Kubernetes' streaming protocol."""
        if self._sockets is None:
            self._sockets = WsApiClient(self.login.configuration)
        async with self._connections.used() as api:
            _, url, headers, _, _ = await self._sockets.param_serialize(
                "GET",
                where,
                query_params=list(query.items()),
                header_params={"sec-websocket-protocol": protocol},
                auth_settings=(AUTHORIZATION,),
            )
            self._sockets.rest_client = api.rest_client
            opening = await self._sockets.request("GET", url, headers=headers, _preload_content=False)
            async with opening as socket:
                yield socket


@contextlib.contextmanager
def wire_errors(call: str) -> Iterator[None]:
    """Errors of connections as `ServerUnavailable`."""
    try:
        yield
    except TimeoutError:
        raise ServerUnavailable(f"the Kubernetes API server does not answer in time ({call})") from None
    except WIRE_ERRORS as error:
        text = str(error) or type(error).__name__
        raise ServerUnavailable(f"the Kubernetes API server does not answer ({call}): {text}") from None


list_ = list
"""The type, where a method has its name."""


def _page(call: str, page: Manifest) -> tuple[Sequence[Manifest], str]:
    """The objects of one page, and what leads to the next one, if there is one."""
    items, metadata = page.get("items") or [], page.get("metadata") or {}
    if isinstance(items, list) and all(isinstance(item, dict) for item in items) and isinstance(metadata, dict):
        return items, str(metadata.get("continue") or "")
    raise ServerUnavailable(f"{call}: no answer of a Kubernetes API server: a list of something else")


def trimmed(manifest: Manifest) -> Manifest:
    """Without who owns which field: as large as all the rest, and nobody here reads it."""
    if isinstance(metadata := manifest.get("metadata"), dict):
        metadata.pop("managedFields", None)
    return manifest
