"""Calls brokers of the cluster by the admin API, as Apache's brokers call each other.

A request goes to this broker's own port unless an address is given, and follows redirects to whoever is responsible.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from magnetar.core.errors import PeerError, Unavailable

if TYPE_CHECKING:
    import aiohttp

CALL_SECONDS_MAX: Final = 60.0
"""Apache's time for one request between brokers (`metadataStoreOperationTimeoutSeconds` and unloads are below it)."""

REDIRECTS_MAX: Final = 10
"""More than there are brokers that could each believe another to be the owner for a moment."""

CONNECTIONS_MAX: Final = 64
"""At a time; namespace-wide operations ask for many bundles at once."""


class PeerRefused(PeerError):
    """A broker answered with an error status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class PeerUnreachable(Unavailable):
    """No broker answered."""


@dataclass(frozen=True, slots=True)
class PeerAnswer:
    """A successful answer."""

    status: int
    body: bytes

    def json(self) -> Any:
        """The decoded body; None when it is empty."""
        return json.loads(self.body) if self.body else None


class PeerClient:
    """HTTP to the brokers of this cluster. aiohttp is loaded with the first call, as its import costs start-up time."""

    def __init__(self, own_web_service_url: str) -> None:
        self._own_url = own_web_service_url
        self._session: aiohttp.ClientSession | None = None

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        base_url: str | None = None,
    ) -> PeerAnswer:
        """One request; `body` is sent as JSON unless None. `PeerRefused` from status 400 on, `PeerUnreachable`."""
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX),
                timeout=aiohttp.ClientTimeout(total=CALL_SECONDS_MAX),
            )
        url = (base_url or self._own_url) + path
        try:
            async with self._session.request(
                method,
                url,
                params=query,
                data=None if body is None else json.dumps(body),
                headers={"Content-Type": "application/json"},
                max_redirects=REDIRECTS_MAX,
            ) as answer:
                content = await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise PeerUnreachable(f"{method} {url}: {error or type(error).__name__}") from error
        if answer.status >= 400:
            raise PeerRefused(answer.status, _reason(content) or answer.reason or str(answer.status))
        return PeerAnswer(answer.status, content)

    async def close(self) -> None:
        """Drop all connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()


def _reason(content: bytes) -> str:
    try:
        document = json.loads(content)
    except ValueError:
        return content.decode(errors="replace")[:200]
    return str(document.get("reason", "")) if isinstance(document, dict) else ""
