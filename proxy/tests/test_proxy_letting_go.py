"""What a proxy refuses is freed at once, not when the collector of cycles comes by (docs/adr/0025)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiohttp.web_protocol import RequestHandler
from magnetar.auth.settings import TOKEN_PROVIDER, AuthenticationSettings, TokenSettings
from magnetar.auth.testing import SECRET, token_of
from magnetar.net.connection import Connection
from magnetar.net.http.watched import Watched
from magnetar.net.testing import freed
from magnetar.proxy.app import RunningProxy
from magnetar.proxy.client_access import ClientAccess
from magnetar.proxy.session import ProxySession
from magnetar.proxy.settings import ProxyAccessSettings

from proxy.tests.wires import Wire, connect_command

StartProxy = Callable[..., Awaitable[RunningProxy]]

CHECKED = ProxyAccessSettings(
    authentication=AuthenticationSettings(
        enabled=True, providers=(TOKEN_PROVIDER,), token=TokenSettings(secret_key=SECRET)
    )
)
pytestmark = pytest.mark.usefixtures("no_collector")

KINDS = (ProxySession, ClientAccess, Connection, RequestHandler, Watched)


async def test_who_asks_for_a_broker_that_is_not_there_leaves_nothing(start: StartProxy) -> None:
    proxy = await start("pulsar://nowhere:1")

    async def work() -> None:
        wire = await Wire.open(proxy.settings.service_port or 0)
        wire.send(connect_command(proxy_to_broker_url="127.0.0.1:1"))
        assert await wire.receive() is None
        wire.close()

    await freed(KINDS, work)


async def test_who_fails_to_authenticate_leaves_nothing(start: StartProxy) -> None:
    """The refusal was one object for all: its traceback kept every session that it had refused, for good."""
    proxy = await start("pulsar://nowhere:1", access=CHECKED)

    async def work() -> None:
        wire = await Wire.open(proxy.settings.service_port or 0)
        expired = token_of("somebody", exp=1).encode()
        await wire.ask(connect_command(auth_method_name="token", auth_data=expired))
        assert await wire.receive() is None
        wire.close()

    await freed(KINDS, work)


async def test_requests_over_http_that_fail_leave_nothing(start: StartProxy) -> None:
    proxy = await start("pulsar://nowhere:1", web_service_port=0)

    async def work() -> None:
        for request in (
            b"GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n",
            b"DELETE /metrics HTTP/1.1\r\nHost: a\r\n\r\n",
            b"NO HTTP\r\n\r\n" + bytes(10_000),
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.settings.web_service_port)
            writer.write(request)
            assert (await reader.readline()).startswith(b"HTTP/1.")
            writer.close()
        # A body that breaks off.
        _, writer = await asyncio.open_connection("127.0.0.1", proxy.settings.web_service_port)
        writer.write(b"POST /admin/v2/tenants HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nab")
        await writer.drain()
        writer.close()

    await freed(KINDS, work)
