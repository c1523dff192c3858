"""Calls the admin API of one cluster's brokers, as Apache's brokers and tools do.

A request follows redirects to whoever is responsible, and its credentials go with it: so a redirect is followed only
where they may be seen.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias
from urllib.parse import urlsplit

from magnetar.admin_client.errors import AdminElsewhere, AdminRefused, AdminUnreachable, AdminUntrusted
from magnetar.core.limits import MIB

if TYPE_CHECKING:
    import ssl

    import aiohttp
    from yarl import URL

REDIRECTS: Final = (301, 302, 307, 308)

REDIRECTS_MAX: Final = 10
"""More than there are brokers that could each believe another to be the owner for a moment."""

ANSWER_BYTES_MAX: Final = 256 * MIB
"""A namespace of a million topics answers with some 100 MB; more is a mistake."""

REASON_CHARACTERS_MAX: Final = 200
"""Characters kept of an answer that is not a broker's: the page of a proxy may be long."""

_PORTS: Final = {"http": 80, "https": 443}

MayFollow: TypeAlias = Callable[[str, str], Awaitable[None]]
"""Is told who was asked and where the redirect leads. Raises `AdminUnreachable` if credentials must not go there."""


class AdminCredentials(Protocol):
    """What is shown to brokers: `magnetar.auth.plugin.ClientCredentials`."""

    def http_headers(self) -> Mapping[str, str]: ...


class Tls(Protocol):
    """How brokers are reached by HTTPS: `magnetar.net.tls.ClientTls`, whose files may change."""

    @property
    def context(self) -> ssl.SSLContext: ...


class TrustedHosts(Protocol):
    """Who may be told credentials."""

    async def serves(self, url: str) -> bool:
        """Whether a broker of the cluster serves there. `Unavailable` when that cannot be found out."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminLimits:
    """What one client takes of brokers. None: no limit of its own."""

    connections_max: int
    """At a time. Waiting for one takes nothing of a call's time."""
    call_seconds: float | None = None
    connect_seconds: float | None = None
    read_seconds: float | None = None
    """Without a byte of the answer."""
    answer_bytes_max: int = ANSWER_BYTES_MAX


class AdminAnswer:
    """An answer that is no redirect."""

    __slots__ = ("body", "phrase", "status")

    def __init__(self, status: int, body: bytes, phrase: str = "") -> None:
        self.status = status
        self.body = body
        self.phrase = phrase
        """What HTTP says of the status."""

    def json(self) -> Any:
        """The decoded body; None when it is empty. ValueError."""
        try:
            return json.loads(self.body) if self.body else None
        except RecursionError:
            raise ValueError("an answer whose JSON is too deep") from None

    @property
    def reason(self) -> str:
        """Why a broker refuses, in its words; of another's answer how it begins."""
        try:
            document = self.json()
        except ValueError:
            return self.body.decode(errors="replace")[:REASON_CHARACTERS_MAX]
        return str(document.get("reason", "")) if isinstance(document, dict) else ""


class AdminClient:
    """HTTP to the brokers of one cluster. aiohttp is loaded with the first call, as its import costs start-up time."""

    def __init__(
        self,
        limits: AdminLimits,
        credentials: AdminCredentials | None = None,
        tls: Tls | None = None,
        may_follow: MayFollow | None = None,
    ) -> None:
        """`may_follow`: else redirects lead to whom was asked, and to those that are `known`."""
        self.known: TrustedHosts | None = None
        """Set as soon as brokers are known."""
        self._limits = limits
        self._credentials = credentials
        self._tls = tls
        self._may_follow = may_follow if may_follow is not None else self._require_known
        self._session: aiohttp.ClientSession | None = None
        self._places = asyncio.Semaphore(limits.connections_max)
        self._closed = False

    async def call(
        self, method: str, url: str, *, query: Mapping[str, str] | None = None, body: object = None
    ) -> AdminAnswer:
        """Ask, and raise `AdminRefused` unless it was done (2xx)."""
        answer = await self.ask(method, url, query=query, body=body)
        if not 200 <= answer.status < 300:
            raise AdminRefused(answer.status, answer.reason or answer.phrase)
        return answer

    async def ask(
        self, method: str, url: str, *, query: Mapping[str, str] | None = None, body: object = None
    ) -> AdminAnswer:
        """One request to a URL that is encoded; `body` is sent as JSON unless None. `AdminUnreachable`."""
        data = None if body is None else json.dumps(body)
        for _ in range(REDIRECTS_MAX + 1):
            found = await self.send(method, url, query, data)
            if isinstance(found, AdminAnswer):
                return found
            asked, url, query = url, found, None
            if not url:
                raise AdminUnreachable(f"{method} {asked}: it redirects to nowhere", may_pass=False)
            if urlsplit(url).scheme not in ("https", urlsplit(asked).scheme):
                raise AdminUnreachable(
                    f"{asked} redirects to {url}, where credentials would be seen by others", may_pass=False
                )
            await self._may_follow(asked, url)
        raise AdminUnreachable(f"{method} {url}: more than {REDIRECTS_MAX} redirects")

    async def send(
        self, method: str, address: str, query: Mapping[str, str] | None = None, data: str | None = None
    ) -> AdminAnswer | str:
        """The answer, or where it redirects to; empty for nowhere. `AdminUnreachable`."""
        import ssl

        import aiohttp
        from yarl import URL

        async with self._places:
            try:
                # As it is: `%2E%2E` is a name, and would be a step up with other rights than those that were asked for.
                url = URL(address, encoded=True)
                # Redirects are followed above: aiohttp keeps credentials to itself when another host is asked.
                async with self._opened().request(
                    method,
                    url,
                    params=query,
                    data=data,
                    headers=self._headers(),
                    allow_redirects=False,
                    ssl=True if self._tls is None else self._tls.context,
                ) as answer:
                    if answer.status not in REDIRECTS:
                        return AdminAnswer(
                            answer.status, await _body(answer, self._limits.answer_bytes_max), answer.reason or ""
                        )
                    return _target(answer.url, answer.headers.get("Location", ""))
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                said = f"{method} {address}: {_in_words(error)}"
                if isinstance(getattr(error, "os_error", error), ssl.SSLCertVerificationError):
                    raise AdminUntrusted(said) from error
                raise AdminUnreachable(
                    said,
                    may_pass=not isinstance(error, (ValueError, aiohttp.ClientSSLError)),
                ) from error

    async def _require_known(self, asked: str, url: str) -> None:
        if origin(asked) == origin(url) is not None:
            return
        if self.known is None or not await self.known.serves(url):
            raise AdminElsewhere(f"{asked} redirects to {url}, which is no broker of this cluster")

    def _opened(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._closed:
            raise AdminUnreachable("this client of the admin API is closed")
        if self._session is None:
            limits = self._limits
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),  # `_places` is the limit.
                timeout=aiohttp.ClientTimeout(
                    total=limits.call_seconds, sock_connect=limits.connect_seconds, sock_read=limits.read_seconds
                ),
            )
        return self._session

    def _headers(self) -> dict[str, str]:
        shown = {} if self._credentials is None else self._credentials.http_headers()
        return {"Accept": "application/json", "Content-Type": "application/json", **shown}

    async def close(self) -> None:
        """Drop all connections. Twice is no error."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()


def _in_words(error: Exception) -> str:
    """What went wrong. Of a connection that was not made the system's own words: aiohttp's speak of TLS in any case."""
    reason = getattr(error, "os_error", None)
    if isinstance(reason, OSError):
        return f"no connection: {reason.strerror or reason}"
    return str(error) or type(error).__name__


def origin(url: str) -> tuple[str, str, int] | None:
    """Scheme, host and port of a URL; None for one without, and for one that names a user."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS[parts.scheme]
    except (ValueError, KeyError):
        return None
    return None if parts.hostname is None or "@" in parts.netloc else (parts.scheme, parts.hostname, port)


def _target(asked: URL, location: str) -> str:
    from yarl import URL

    return str(asked.join(URL(location, encoded=True))) if location else ""


async def _body(answer: aiohttp.ClientResponse, size_bytes_max: int) -> bytes:
    parts: list[bytes] = []
    size_bytes = 0
    while part := await answer.content.read(MIB):
        size_bytes += len(part)
        if size_bytes > size_bytes_max:
            raise ValueError(f"an answer of more than {size_bytes_max} bytes")
        parts.append(part)
    return b"".join(parts)
