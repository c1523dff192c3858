"""The brokers' admin API over the simulated network: the real application of a broker, and a small client of HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final, cast
from urllib.parse import urlencode, urljoin, urlsplit

from aiohttp import web_app
from magnetar.admin_client.client import REDIRECTS, AdminAnswer, AdminClient
from magnetar.admin_client.errors import AdminUnreachable
from magnetar.broker.admin.application import http_limits, make_runner
from magnetar.broker.context import BrokerContext
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.net.http.connections import HttpConnections

ADMIN_PORT: Final = 8080
CALL_SECONDS: Final = 5.0
DATE: Final = "Fri, 15 Jan 2027 08:00:00 GMT"


def forget_applications() -> None:
    """Let go of the admin applications that have run. aiohttp keeps a thousand handlers of all applications of a
    process: each holds its broker, and so its whole world."""
    getattr(web_app, "_cached_build_middleware").cache_clear()  # noqa: B009  (aiohttp has no other way)


class SimulatedAdminPort:
    """An `AdminPort`. As in production, what answers is made when somebody first connects."""

    port_tls: int | None = None

    def __init__(self, settings: BrokerSettings) -> None:
        del settings
        self._context: BrokerContext | None = None
        self._server: Any = None
        self._runner: Any = None
        self._starting: asyncio.Task[Any] | None = None

    async def listen(self) -> int:
        """See `AdminPort.listen`."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Arrived(self), port=ADMIN_PORT, start_serving=False)
        return ADMIN_PORT

    async def serve(self, context: BrokerContext) -> None:
        """See `AdminPort.serve`."""
        self._context = context
        await self._server.start_serving()

    async def close(self) -> None:
        """See `AdminPort.close`."""
        if self._server is not None:
            self._server.close()
        if self._starting is not None:
            runner = await self._starting
            await runner.cleanup()

    def started(self) -> asyncio.Task[Any]:
        """What answers, once it is there."""
        if self._starting is None:
            self._starting = asyncio.get_running_loop().create_task(self._start(), name="admin-start")
        return self._starting

    async def _start(self) -> Any:
        assert self._context is not None
        runner = make_runner(self._context, HttpConnections(http_limits(self._context)))
        runner.app.on_response_prepare.append(_date)
        await runner.setup()
        return runner


async def _date(_: Any, response: Any) -> None:
    """aiohttp tells the time of this machine."""
    response.headers["Date"] = DATE


class _Arrived(asyncio.Protocol):
    """A connection that waits for what answers."""

    def __init__(self, port: SimulatedAdminPort) -> None:
        self._port = port
        self._transport: asyncio.Transport | None = None
        self._held: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast(asyncio.Transport, transport)
        self._port.started().add_done_callback(self._hand_over)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._held.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._transport = None

    def _hand_over(self, started: asyncio.Task[Any]) -> None:
        transport = self._transport
        if transport is None or started.cancelled():
            return
        inner = started.result().server()
        transport.set_protocol(_Served(inner))
        inner.connection_made(transport)
        for data in self._held:
            inner.data_received(data)


class _Served(asyncio.Protocol):
    """A connection that aiohttp serves. A real loop tells of the end in a later turn than of the beginning, and aiohttp
    counts on it: its task must have begun."""

    def __init__(self, inner: asyncio.Protocol) -> None:
        self._inner = inner

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        """See `asyncio.Protocol`."""
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        asyncio.get_running_loop().call_soon(self._inner.connection_lost, exc)


class SimulatedAdminClient(AdminClient):
    """An `AdminClient` whose requests travel through the simulated network."""

    async def send(
        self, method: str, address: str, query: Mapping[str, str] | None = None, data: str | None = None
    ) -> AdminAnswer | str:
        """See `AdminClient.send`."""
        parts = urlsplit(address)
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        if query:
            target += ("&" if parts.query else "?") + urlencode(query)
        body = (data or "").encode()
        head = (
            f"{method} {target} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\nAccept: application/json\r\n"
        )
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        assert parts.hostname is not None
        try:
            async with asyncio.timeout(CALL_SECONDS):
                answer = await _exchange(parts.hostname, parts.port or 80, head.encode() + body)
        except (OSError, TimeoutError, ValueError) as error:
            raise AdminUnreachable(f"{method} {address}: {str(error) or type(error).__name__}") from error
        status, headers, content = answer
        if status in REDIRECTS:
            return urljoin(address, headers["location"]) if "location" in headers else ""
        return AdminAnswer(status, content)

    async def close(self) -> None:
        """See `AdminClient.close`."""


class _Reading(asyncio.Protocol):
    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.parts.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.done():
            self.over.set_result(None)


async def _exchange(host: str, port: int, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body. OSError, ValueError."""
    loop = asyncio.get_running_loop()
    transport, reading = await loop.create_connection(_Reading, host, port)
    try:
        transport.write(request)
        await reading.over
    finally:
        transport.close()
    head, _, body = b"".join(reading.parts).partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    if not first.startswith("HTTP/1.1 "):
        raise ValueError("the answer is no HTTP")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if len(body) < int(headers.get("content-length", "0")):
        raise ValueError("the answer is cut off")
    return int(first.split()[1]), headers, body
