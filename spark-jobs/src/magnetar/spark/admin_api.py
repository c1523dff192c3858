"""The admin API over HTTP: what brokers tell of topics and policies, for those who give option `admin.url`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from magnetar.core.topic_name import TopicName, java_url_encode
from magnetar.spark.broker_errors import HOW_TO_SHOW
from magnetar.spark.client_factory import credentials_of, tls_of
from magnetar.spark.connecting import ConnectionOptions
from magnetar.spark.errors import AccessRefused, BadOption, ClusterUnreachable, TopicMissing

if TYPE_CHECKING:
    import aiohttp
    from yarl import URL

REDIRECTS: Final = (301, 302, 307, 308)
REDIRECTS_MAX: Final = 10
"""More than there are brokers that could each believe another to be the owner for a moment."""

CONNECT_SECONDS_MAX: Final = 5.0
"""So that a host that is gone leaves time for the others of `admin.url`."""

CONNECTIONS_MAX: Final = 16
"""At a time; the driver asks about all topics of a table at once, and brokers serve others as well."""

ANSWER_BYTES_MAX: Final = 256 << 20
"""A namespace of a million topics answers with some 100 MB; more is a mistake."""


class AdminApi:
    """Asks one cluster. Each host of `admin.url` (`http://a:8080,b:8080`) is tried, the one that answered last first.

    Redirects to the owner of a topic are followed with the credentials: whoever is asked has them already. They are
    followed only where brokers send one: to the same path, and never from https to http.

    Every call raises `ClusterUnreachable` (nobody answers, or the broker fails), `AccessRefused` (credentials or
    rights), and `TopicMissing` where a topic is asked about."""

    def __init__(self, options: ConnectionOptions) -> None:
        """Raises `BadOption`."""
        self._options = options
        self._urls = urls_of(options.admin_url)
        self._first = 0
        self._credentials = credentials_of(options)
        self._tls = tls_of(options, self._credentials) if self._urls[0].startswith("https:") else None
        self._session: aiohttp.ClientSession | None = None

    async def internal_configuration(self) -> dict[str, Any]:
        """Where the cluster's metadata is: `metadataStoreUrl`, `ledgersRootPath` and the like."""
        found: dict[str, Any] = await self.get("/admin/v2/brokers/internal-configuration", "the cluster's metadata")
        return found

    async def internal_stats(self, topic: TopicName) -> dict[str, Any]:
        """Ledgers and cursors of a topic (or of one partition), from its owner's memory."""
        found: dict[str, Any] = await self.get(f"{_path(topic)}/internalStats", f"the ledgers of {topic}")
        return found

    async def internal_info(self, topic: TopicName) -> dict[str, Any]:
        """Ledgers and cursors as the metadata store has them; the times when ledgers were closed stand only here."""
        found: dict[str, Any] = await self.get(f"{_path(topic)}/internal-info", f"the ledgers of {topic}")
        return found

    async def deduplication(self, topic: TopicName) -> bool | None:
        """Whether brokers drop what producers of this topic send twice, as it is in force; None: that cannot be known.

        Asked of the topic; where topic policies are off (405) or the role may not see them, of its namespace, then of
        the brokers' settings."""
        for path, name in (
            (f"{_path(topic)}/deduplicationEnabled?applied=true", ""),
            (f"/admin/v2/namespaces/{topic.namespace_name}/deduplication", ""),
            ("/admin/v2/brokers/configuration/runtime", "brokerDeduplicationEnabled"),
        ):
            try:
                found = await self.get(path, f"deduplication of {topic}")
            except AccessRefused:
                continue
            if name:
                found = {"true": True, "false": False}.get(str((found or {}).get(name, "")).lower())
            if found is not None:
                return bool(found)
        return None

    # --- how

    async def get(self, path: str, what: str) -> Any:
        """The decoded answer, None for an empty one. `what` is wanted, for texts."""
        import aiohttp

        failures: list[str] = []
        for offset in range(len(self._urls)):
            index = (self._first + offset) % len(self._urls)
            try:
                status, body = await self._follow(self._urls[index] + path)
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                failures.append(f"{self._urls[index]}: {str(error) or type(error).__name__}")
                continue
            if status >= 500:
                failures.append(f"{self._urls[index]}: {status} {_reason(body)}")
                continue
            self._first = index
            return _checked(status, body, what)
        raise ClusterUnreachable(f"{what}: the admin API does not answer (option admin.url): {'; '.join(failures)}")

    async def _follow(self, address: str) -> tuple[int, bytes]:
        from yarl import URL

        url = URL(address, encoded=True)
        for _ in range(REDIRECTS_MAX + 1):
            async with self._opened().get(
                url,
                headers=self._headers(),
                allow_redirects=False,
                ssl=True if self._tls is None else self._tls.context,
            ) as answer:
                if answer.status not in REDIRECTS:
                    return answer.status, await _body(answer)
                url = _target(url, answer.headers)
        raise OSError(f"more than {REDIRECTS_MAX} redirects")

    def _headers(self) -> Mapping[str, str]:
        return {"Accept": "application/json", **self._credentials.http_headers()}

    def _opened(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX),
                # For the whole of a call, the waiting for a free connection included: bounded by who asks.
                timeout=aiohttp.ClientTimeout(
                    total=None,
                    sock_connect=CONNECT_SECONDS_MAX,
                    sock_read=self._options.operation_timeout_seconds,
                ),
            )
        return self._session

    async def close(self) -> None:
        """Drop the connections. Twice is no error."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()


async def _body(answer: aiohttp.ClientResponse) -> bytes:
    parts: list[bytes] = []
    size_bytes = 0
    while part := await answer.content.read(1 << 20):
        size_bytes += len(part)
        if size_bytes > ANSWER_BYTES_MAX:
            raise OSError(f"an answer of more than {ANSWER_BYTES_MAX} bytes")
        parts.append(part)
    return b"".join(parts)


def _target(asked: URL, headers: Mapping[str, str]) -> URL:
    from yarl import URL

    location = headers.get("Location", "")
    if not location:
        raise OSError(f"{asked} redirects to nowhere")
    url = asked.join(URL(location, encoded=True))
    if url.scheme not in ("http", "https") or (asked.scheme == "https" and url.scheme != "https"):
        raise OSError(f"{asked} redirects to {url}, where credentials would be seen by others")
    if url.raw_path != asked.raw_path:
        raise OSError(f"{asked} redirects to {url}, which is no broker: does admin.url name the brokers or a proxy?")
    return url


def urls_of(admin_url: str) -> list[str]:
    """One for each host of `http://a:8080,b:8080/`. Raises `BadOption`."""
    scheme, mark, rest = admin_url.strip().partition("://")
    hosts = [host.strip().rstrip("/") for host in rest.split(",")]
    if not mark or scheme not in ("http", "https") or not all(hosts):
        raise BadOption(f"option admin.url: {admin_url!r} is no http://host:port or https://host:port,host:port")
    return [f"{scheme}://{host}" for host in hosts]


def _path(topic: TopicName) -> str:
    return f"/admin/v2/{topic.domain}/{topic.namespace_name}/{java_url_encode(topic.local_name)}"


def _checked(status: int, body: bytes, what: str) -> Any:
    if status == 404:
        raise TopicMissing(f"{what}: not there: {_reason(body)}")
    if status == 401:
        raise AccessRefused(f"{what}: the admin API does not take the credentials ({HOW_TO_SHOW}): {_reason(body)}")
    if status >= 400:
        raise AccessRefused(f"{what}: the admin API refuses ({status}): {_reason(body)}")
    try:
        return json.loads(body) if body else None
    except ValueError:
        raise ClusterUnreachable(f"{what}: admin.url is answered by something that is no broker") from None


def _reason(body: bytes) -> str:
    try:
        document = json.loads(body)
    except ValueError:
        return body.decode(errors="replace")[:200]
    return str(document.get("reason", "")) if isinstance(document, dict) else ""
