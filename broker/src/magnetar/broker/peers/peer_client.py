"""Calls brokers of the cluster by the admin API, as Apache's brokers call each other.

A request goes to this broker's own port unless an address is given, and follows redirects to whoever is responsible:
to brokers of this cluster only, as its credentials go with it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from magnetar.broker.peers.known_peers import Peers, origin
from magnetar.core.errors import PeerError, Unavailable

if TYPE_CHECKING:
    import ssl

    import aiohttp
    from magnetar.broker.peers.access import PeerAccess
    from magnetar.broker.peers.addresses import BrokerAddresses

CALL_SECONDS_MAX: Final = 60.0
"""Apache's time for one request between brokers (`metadataStoreOperationTimeoutSeconds` and unloads are below it)."""

REDIRECTS: Final = (301, 302, 307, 308)

REDIRECTS_MAX: Final = 10
"""More than there are brokers that could each believe another to be the owner for a moment."""

CONNECTIONS_MAX: Final = 64
"""At a time; namespace-wide operations ask for many bundles at once. Waiting for one takes nothing of a call's time."""


class PeerRefused(PeerError):
    """A broker answered with an error status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class PeerUnreachable(Unavailable):
    """No broker answered."""


class PeerAnswer:
    """A successful answer."""

    __slots__ = ("body", "status")

    def __init__(self, status: int, body: bytes) -> None:
        self.status = status
        self.body = body

    def json(self) -> Any:
        """The decoded body; None when it is empty."""
        return json.loads(self.body) if self.body else None


class PeerClient:
    """HTTP to the brokers of this cluster. aiohttp is loaded with the first call, as its import costs start-up time."""

    def __init__(self, own_web_service_url: str, access: PeerAccess | None = None) -> None:
        """`access`: what is shown to brokers that want to know who asks; with its TLS they are reached by HTTPS."""
        self._own_url = own_web_service_url
        self._access = access
        self.known: Peers | None = None
        """Set as soon as brokers are known. Without it redirects are followed to whom was asked only."""
        self._session: aiohttp.ClientSession | None = None
        self._places = asyncio.Semaphore(CONNECTIONS_MAX)
        self._closed = False

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        base_url: str | None = None,
    ) -> PeerAnswer:
        """One request to a path that is encoded; `body` is sent as JSON unless None. `PeerRefused` from status 400 on,
        `PeerUnreachable`."""
        import aiohttp
        from yarl import URL

        # As it is: `%2E%2E` is a name, and would be a step up with other rights than those that were asked for.
        url = URL((base_url or self._own_url) + path, encoded=True)
        data = None if body is None else json.dumps(body)
        for _ in range(REDIRECTS_MAX + 1):
            async with self._places:
                try:
                    # Redirects are followed here: aiohttp keeps credentials to itself when another host is asked.
                    async with self._open_session().request(
                        method,
                        url,
                        params=query,
                        data=data,
                        headers=self._headers(),
                        allow_redirects=False,
                        ssl=self._ssl(),
                    ) as answer:
                        if answer.status not in REDIRECTS:
                            return _checked(answer.status, await answer.read(), answer.reason)
                        location = answer.headers.get("Location", "")
                        asked, url, query = url, answer.url.join(URL(location, encoded=True)), None
                except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                    raise PeerUnreachable(f"{method} {url}: {str(error) or type(error).__name__}") from error
            if not location:
                raise PeerUnreachable(f"{method} {asked}: a redirect to nowhere")
            await self._require_broker(str(asked), str(url))
        raise PeerUnreachable(f"{method} {url}: more than {REDIRECTS_MAX} redirects")

    async def _require_broker(self, asked: str, url: str) -> None:
        """Credentials go where a redirect leads."""
        if origin(asked) == origin(url):
            return
        if asked.startswith("https:") and not url.startswith("https:"):
            raise PeerUnreachable(f"{asked} redirects to {url}, where credentials would be seen by others")
        if self.known is None or not await self.known.serves(url):
            raise PeerUnreachable(f"{asked} redirects to {url}, which is no broker of this cluster")

    def _open_session(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._closed:
            raise PeerUnreachable("this broker's client of other brokers is closed")
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),  # `_places` is the limit.
                timeout=aiohttp.ClientTimeout(total=CALL_SECONDS_MAX),
            )
        return self._session

    def url_of(self, broker: BrokerAddresses) -> str | None:
        """Where a broker's admin API is, for `base_url`; None when it has none, or none with TLS where that is meant:
        others would see the credentials."""
        plain, tls = broker.web_service_url, broker.web_service_url_tls
        return tls if self._access is not None and self._access.tls is not None else (plain or tls)

    def _headers(self) -> dict[str, str]:
        shown = {} if self._access is None else self._access.credentials.http_headers()
        return {"Content-Type": "application/json", **shown}

    def _ssl(self) -> ssl.SSLContext | bool:
        return True if self._access is None or self._access.tls is None else self._access.tls.context

    async def close(self) -> None:
        """Drop all connections."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()


def _checked(status: int, content: bytes, reason: str | None) -> PeerAnswer:
    if status >= 400:
        raise PeerRefused(status, _reason(content) or reason or str(status))
    return PeerAnswer(status, content)


def _reason(content: bytes) -> str:
    try:
        document = json.loads(content)
    except ValueError:
        return content.decode(errors="replace")[:200]
    return str(document.get("reason", "")) if isinstance(document, dict) else ""
