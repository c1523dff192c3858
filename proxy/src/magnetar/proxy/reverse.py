"""HTTP requests passed on to brokers, bodies as streams both ways. Importing this loads aiohttp.

Brokers send a request on to the owner of a topic or bundle by a redirect to an address inside the cluster, which
clients may not reach: redirects are followed here (Pulsar: AdminProxyHandler). They lead credentials there, the
client's and the proxy's: where brokers register themselves, a redirect to any other host is left to the client.
"""

from __future__ import annotations

import io
import logging
from collections.abc import AsyncIterator
from typing import Final

import aiohttp
from aiohttp import hdrs, web
from magnetar.core.errors import Unavailable
from magnetar.net.tls import ClientTls
from magnetar.proxy.counters import ProxyCounters
from magnetar.proxy.discovery import BrokerChoice
from magnetar.proxy.gate import IDENTITY, ORIGINAL_HEADER, HttpGate
from magnetar.proxy.settings import FixedBrokers, HttpSettings
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

logger: Final = logging.getLogger(__name__)

REDIRECTS_MAX: Final = 10
"""Redirects that one request follows, as many as a lookup does; there are not more brokers that could each believe
another one to be the owner."""

CONNECTIONS_PER_BROKER_MAX: Final = 256
"""Connections to one broker; Pulsar's proxy has as many."""

_REDIRECTS: Final = (301, 302, 307, 308)

_OF_ONE_HOP: Final = frozenset(
    [
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "expect",
        # What only a proxy may say: brokers would believe it.
        ORIGINAL_HEADER.lower(),
    ]
)

_FUNCTION_ROUTES: Final = tuple(
    f"/admin/{version}{kind}" for version in ("v3/", "v2/", "") for kind in ("function", "source", "sink", "worker")
)


class ReverseProxy:
    """Passes requests on."""

    def __init__(
        self,
        settings: HttpSettings,
        fixed: FixedBrokers,
        brokers: BrokerChoice,
        counters: ProxyCounters,
        tls: ClientTls | None,
        gate: HttpGate | None = None,
    ) -> None:
        self._settings = settings
        self._brokers = brokers
        self._counters = counters
        self._tls = tls
        self._gate = gate
        self._function_worker = (fixed.function_worker_url if tls is None else fixed.function_worker_url_tls).rstrip(
            "/"
        )
        self._under_way = 0
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Drop all connections to brokers."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Serve one request of aiohttp."""
        if self._under_way >= self._settings.requests_max:
            return _problem(503, "Too many requests at a time")
        self._under_way += 1
        self._counters.http_requests += 1
        try:
            return await self._pass_on(request)
        except Unavailable as error:
            return self._failed(request, 503, str(error))
        except TimeoutError:
            return self._failed(request, 504, "The broker did not answer in time")
        except (aiohttp.ClientError, OSError) as error:
            return self._failed(request, 502, f"The broker cannot be reached: {error}")
        finally:
            self._under_way -= 1

    def _failed(self, request: web.Request, status: int, reason: str) -> web.StreamResponse:
        self._counters.http_failures += 1
        logger.warning("%s %s failed: %s", request.method, request.path, reason)
        return _problem(status, reason)

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        url = URL(self._base(request.path) + _target(request), encoded=True)
        body = await self._body(request)
        headers = _request_headers(request)
        if self._gate is not None:
            self._gate.introduce(headers, request[IDENTITY])
        for _ in range(REDIRECTS_MAX + 1):
            async with self._client().request(
                request.method,
                url,
                headers=headers,
                data=io.BytesIO(body) if isinstance(body, bytes) else body,
                allow_redirects=False,
                ssl=True if self._tls is None else self._tls.context,
            ) as answer:
                location = answer.headers.get(hdrs.LOCATION)
                replayable = not isinstance(body, AsyncIterator)
                if answer.status in _REDIRECTS and location and replayable:
                    following = await self._following(request, url, location)
                    if following is not None:
                        url = following
                        continue
                if self._gate is not None:
                    self._gate.answered(answer.status, url, request[IDENTITY])
                return await self._answer(request, answer)
        return self._failed(request, 502, f"More than {REDIRECTS_MAX} redirects")

    async def _following(self, request: web.Request, url: URL, location: str) -> URL | None:
        """Where a redirect leads; None when credentials are not to go there. `Unavailable`."""
        try:
            following = url.join(URL(location, encoded=True))
        except ValueError:
            return None
        seen_by_others = following.scheme != url.scheme and following.scheme != "https"
        # Function workers do not register themselves; the settings name one, which names the others.
        vouched = not self._brokers.discovered or self._for_function_worker(request.path)
        if not seen_by_others and (vouched or await self._brokers.confirm_web(str(following))):
            return following
        logger.warning("%s redirects to %s, which is no broker: left to the client", url.authority, following.authority)
        return None

    def _base(self, path: str) -> str:
        return self._function_worker if self._for_function_worker(path) else self._brokers.web_service_url()

    def _for_function_worker(self, path: str) -> bool:
        return bool(self._function_worker) and path.startswith(_FUNCTION_ROUTES)

    async def _body(self, request: web.Request) -> bytes | AsyncIterator[bytes] | None:
        """The whole body where it is short enough to be sent again, else a stream of it."""
        if not request.can_read_body:
            return None
        parts: list[bytes] = []
        size = 0
        async for part in request.content.iter_any():
            parts.append(part)
            size += len(part)
            if size > self._settings.replay_bytes_max:
                return _rest(parts, request.content)
        return b"".join(parts)

    async def _answer(self, request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        response = web.StreamResponse(
            status=answer.status, reason=answer.reason, headers=_without_hop_headers(answer.headers)
        )
        await response.prepare(request)
        try:
            async for part in answer.content.iter_any():
                await response.write(part)
            await response.write_eof()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            # Half an answer cannot become an error any more: the client must see that it broke off.
            logger.warning("%s %s broke off: %s", request.method, request.path, error)
            self._counters.http_failures += 1
            if request.transport is not None:
                request.transport.abort()
        return response

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, limit_per_host=CONNECTIONS_PER_BROKER_MAX),
                # Cookies of different clients must not mix, and bodies are passed on as they are.
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=self._settings.proxy_timeout_ms / 1000),
                skip_auto_headers=[hdrs.USER_AGENT, hdrs.ACCEPT, hdrs.ACCEPT_ENCODING, hdrs.CONTENT_TYPE],
                requote_redirect_url=False,
            )
        return self._session


async def _rest(parts: list[bytes], content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    for part in parts:
        yield part
    parts.clear()
    async for part in content.iter_any():
        yield part


def _target(request: web.Request) -> str:
    """Path and query exactly as they came: names of topics and subscriptions keep their escapes."""
    raw = request.raw_path
    return raw if raw.startswith("/") else request.rel_url.raw_path_qs


def _without_hop_headers(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    named = {name.strip().lower() for value in headers.getall(hdrs.CONNECTION, []) for name in value.split(",")}
    dropped = _OF_ONE_HOP | named
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in dropped)


def _request_headers(request: web.Request) -> CIMultiDict[str]:
    """What came, with the host that the client named, and who asked."""
    headers = _without_hop_headers(request.headers)
    forwarded = {
        "X-Forwarded-For": request.remote or "",
        "X-Forwarded-Proto": request.scheme,
        "X-Forwarded-Host": request.host,
    }
    for name, value in forwarded.items():
        earlier = headers.get(name)
        headers[name] = f"{earlier}, {value}" if earlier and name == "X-Forwarded-For" else earlier or value
    headers.add(hdrs.VIA, f"http/{request.version.major}.{request.version.minor} magnetar")
    return headers


def _problem(status: int, reason: str) -> web.Response:
    return web.json_response({"reason": reason}, status=status)
