"""The proxy's HTTP side."""

from __future__ import annotations

import asyncio
import gzip
import io
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from magnetar.core.slow_turns import SLOW_TURNS
from magnetar.net.testing import TestAuthority
from magnetar.net.tls import TlsSettings
from magnetar.proxy.app import RunningProxy
from magnetar.proxy.settings import FixedBrokers, HttpSettings
from yarl import URL

from proxy.tests.wires import ScriptedBroker, Wire

StartProxy = Callable[..., Awaitable[RunningProxy]]


DASHBOARD = Path(__file__).parent / "recorded" / "dashboard_metrics.txt"
"""Metrics that the queries of public Grafana dashboards for Pulsar name: lhotari/pulsar-grafana-dashboards (75a9067),
streamnative/apache-pulsar-grafana-dashboard (9a61a26), datastax/kaap (f0cf87f)."""

ELSEWHERE = r"jetty_requests_total|pulsar_proxy_rabbitmq_"
"""What a proxy has not: numbers of Jetty, and of a proxy for RabbitMQ's protocol."""


def missing_of_dashboards(lines: list[str]) -> set[str]:
    """What dashboards ask for and a scrape did not give."""
    return set(DASHBOARD.read_text().split()) - {re.split(r"[ {]", line)[0] for line in lines}


class WebBroker:
    """Answers every request with what it saw of it."""

    def __init__(self) -> None:
        self.handler: Callable[[web.Request], Awaitable[web.StreamResponse]] | None = None
        self.requests: list[web.Request] = []
        self.bodies: list[int] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        if self.handler is not None:
            return await self.handler(request)
        body = await request.read()
        self.bodies.append(len(body))
        return web.json_response({"path": request.raw_path, "method": request.method, "body": body[:100].decode()})


@pytest.fixture
async def brokers() -> AsyncIterator[list[WebBroker]]:
    made: list[WebBroker] = []
    runners: list[web.AppRunner] = []
    for _ in range(2):
        broker = WebBroker()
        application = web.Application(client_max_size=1 << 26)
        application.router.add_route("*", "/{rest:.*}", broker.answer)
        runner = web.AppRunner(application, auto_decompress=False)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        broker.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        made.append(broker)
        runners.append(runner)
    yield made
    for runner in runners:
        await runner.cleanup()


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        yield session


async def proxy_of(start: StartProxy, broker: WebBroker | None, **changes: Any) -> RunningProxy:
    fixed = FixedBrokers(service_url="pulsar://a:1", web_service_url=broker.url if broker is not None else "")
    return await start(fixed_brokers=fixed, web_service_port=0, **changes)


async def test_requests_and_answers_pass_with_their_escapes_and_headers(
    start: StartProxy, brokers: list[WebBroker], client: aiohttp.ClientSession
) -> None:
    proxy = await proxy_of(start, brokers[0])
    path = "/admin/v2/persistent/public/default/a%2Fb%20c/subscription/%E2%82%AC?x=1%262&y="
    headers = {"X-Original-Principal": "admin", "Authorization": "Bearer abc", "Host": "pulsar.example"}
    headers |= {"Connection": "keep-alive, X-Of-This-Hop", "X-Of-This-Hop": "1"}
    url = URL(proxy.web_service_url.replace("127.0.0.1", "localhost") + path, encoded=True)
    async with client.put(url, data="{}", headers=headers) as answer:
        assert answer.status == 200
        assert await answer.json() == {"path": path, "method": "PUT", "body": "{}"}
    seen = brokers[0].requests[0].headers
    assert seen["Authorization"] == "Bearer abc"
    assert seen["Host"] == "pulsar.example"
    assert seen["X-Forwarded-For"] == "127.0.0.1"
    assert not {"X-Original-Principal", "X-Of-This-Hop"}.intersection(seen)
    assert proxy.service.counters.http_requests == 1


async def test_bodies_pass_as_they_are_also_compressed_ones(start: StartProxy, brokers: list[WebBroker]) -> None:
    seen: list[tuple[str, bytes]] = []

    async def kept(request: web.Request) -> web.StreamResponse:
        reader = request.content
        seen.append((request.headers.get("Content-Length", ""), await reader.read()))
        return web.Response()

    brokers[0].handler = kept
    proxy = await proxy_of(start, brokers[0])
    port = URL(proxy.web_service_url).port
    body = gzip.compress(b"{}" * 1000)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /admin/v2/x HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    assert b" 200 " in await reader.readline()
    writer.close()
    assert seen == [(str(len(body)), body)]


async def test_redirects_are_followed_with_the_body(
    start: StartProxy, brokers: list[WebBroker], client: aiohttp.ClientSession
) -> None:
    first, second = brokers

    async def redirect(request: web.Request) -> web.StreamResponse:
        await request.read()
        return web.Response(status=307, headers={"Location": second.url + request.raw_path + "?authoritative=true"})

    first.handler = redirect
    proxy = await proxy_of(start, first)
    async with client.post(proxy.web_service_url + "/admin/v2/a%2Fb", data=b"body") as answer:
        assert answer.status == 200
        assert await answer.json() == {"path": "/admin/v2/a%2Fb?authoritative=true", "method": "POST", "body": "body"}
        assert not answer.history

    async def in_circles(request: web.Request) -> web.StreamResponse:
        return web.Response(status=307, headers={"Location": request.raw_path})

    first.handler = in_circles
    async with client.get(proxy.web_service_url + "/lookup/v2/topic/x") as answer:
        assert answer.status == 502
        assert "redirects" in (await answer.json())["reason"]


async def test_bodies_are_streams(start: StartProxy, brokers: list[WebBroker], client: aiohttp.ClientSession) -> None:
    proxy = await proxy_of(start, brokers[0], http=HttpSettings(replay_bytes_max=1000))
    async with client.post(proxy.web_service_url + "/admin/long", data=io.BytesIO(b"z" * 3_000_000)) as answer:
        assert (await answer.json())["body"] == "z" * 100
    assert brokers[0].bodies == [3_000_000]
    half_read = asyncio.Event()

    async def slowly(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Encoding": "gzip"})
        await response.prepare(request)
        await response.write(b"first")
        await half_read.wait()
        await response.write(b"second")
        return response

    brokers[0].handler = slowly
    async with client.get(proxy.web_service_url + "/admin/slow") as answer:
        assert answer.headers["Content-Encoding"] == "gzip"
        assert await answer.content.readexactly(5) == b"first"
        half_read.set()
        assert await answer.content.read() == b"second"


async def test_answers_without_a_body(
    start: StartProxy, brokers: list[WebBroker], client: aiohttp.ClientSession
) -> None:
    async def empty(request: web.Request) -> web.StreamResponse:
        return web.Response(status=204 if request.method == "DELETE" else 200, headers={"X-Kept": "yes"})

    brokers[0].handler = empty
    proxy = await proxy_of(start, brokers[0])
    for method, status in (("DELETE", 204), ("HEAD", 200), ("OPTIONS", 200)):
        async with client.request(method, proxy.web_service_url + "/admin/x") as answer:
            assert (answer.status, answer.headers["X-Kept"], await answer.read()) == (status, "yes", b"")


async def test_an_answer_that_breaks_off_breaks_off_for_the_client(
    start: StartProxy, brokers: list[WebBroker], client: aiohttp.ClientSession
) -> None:
    async def half(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"first")
        assert request.transport is not None
        request.transport.abort()
        return response

    brokers[0].handler = half
    proxy = await proxy_of(start, brokers[0])
    with pytest.raises(aiohttp.ClientError):
        async with client.get(proxy.web_service_url + "/admin/half") as answer:
            await answer.read()
    assert proxy.service.counters.http_failures == 1


@pytest.mark.slow
async def test_brokers_that_do_not_answer(
    start: StartProxy, brokers: list[WebBroker], client: aiohttp.ClientSession
) -> None:
    asked, over = asyncio.Event(), asyncio.Event()

    async def never(request: web.Request) -> web.StreamResponse:
        asked.set()
        await over.wait()
        return web.Response()

    nobody = await proxy_of(start, None)
    async with client.get(nobody.web_service_url + "/admin/x") as answer:
        assert (answer.status, await answer.json()) == (503, {"reason": "No active broker is available"})
    brokers[0].url = "http://127.0.0.1:1"
    unreachable = await proxy_of(start, brokers[0])
    async with client.get(unreachable.web_service_url + "/admin/x") as answer:
        assert answer.status == 502
    brokers[1].handler = never
    slow = await proxy_of(start, brokers[1], http=HttpSettings(proxy_timeout_ms=1_000, requests_max=1))
    one = asyncio.get_running_loop().create_task(client.get(slow.web_service_url + "/admin/x"))
    await asked.wait()
    async with client.get(slow.web_service_url + "/admin/x") as answer:
        assert answer.status == 503
    async with await one as answer:
        assert answer.status == 504
    over.set()


async def test_pages_of_its_own(start: StartProxy, client: aiohttp.ClientSession, tmp_path: Path) -> None:
    status_file = tmp_path / "status"
    async with ScriptedBroker(raw=True) as broker:
        http = HttpSettings(status_file=str(status_file))
        proxy = await proxy_of(start, None, http=http, cluster_name="here")
        url = proxy.web_service_url
        assert proxy.settings.service_port is not None
        wire = await Wire.connected(proxy.settings.service_port, proxy_to_broker_url=broker.host_and_port)
        async with client.get(url + "/status.html") as answer:
            assert answer.status == 404
        status_file.touch()
        async with client.get(url + "/status.html") as answer:
            assert (answer.status, await answer.text()) == (200, "OK")
        async with client.get(url + "/metrics") as answer:
            lines = (await answer.text()).splitlines()
            assert 'pulsar_proxy_active_connections{cluster="here"} 1.0' in lines
            assert 'pulsar_proxy_new_connections_total{cluster="here"} 1.0' in lines
            assert "# TYPE pulsar_proxy_binary_bytes_total counter" in lines
            assert 'pulsar_proxy_new_connections{cluster="here"} 1.0' in lines
            assert f'magnetar_event_loop_slow_turns_total{{cluster="here"}} {float(SLOW_TURNS.count)}' in lines
            assert not [line for line in missing_of_dashboards(lines) if not re.match(ELSEWHERE, line)]
        async with client.get(url + "/proxy-stats/connections") as answer:
            (seen,) = await answer.json()
            assert seen["brokerAddress"] == f"/{broker.host_and_port}"
            assert set(seen) == {"requestRate", "byteRate", "clientAddress", "brokerAddress"}
        async with client.get(url + "/proxy-stats/topics") as answer:
            assert (answer.status, await answer.json()) == (
                412,
                {"reason": "Proxy doesn't have logging level 2"},
            )
        async with client.get(url + "/elsewhere") as answer:
            assert answer.status == 404
        drain = proxy.start_drain(30)
        async with client.get(url + "/status.html") as answer:
            assert answer.status == 503
        wire.close()
        await drain


async def test_https(
    start: StartProxy, brokers: list[WebBroker], client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    authority = TestAuthority(tmp_path)
    certificate = authority.issue("here", "DNS:localhost", "IP:127.0.0.1")
    proxy = await start(
        fixed_brokers=FixedBrokers(service_url="pulsar://a:1", web_service_url=brokers[0].url),
        web_service_port_tls=0,
        tls=TlsSettings(certificate_file=certificate.certificate_file, key_file=certificate.key_file),
    )
    assert proxy.web_service_url.startswith("https://")
    trusting = ssl.create_default_context(cafile=authority.certificate_file)
    async with client.get(proxy.web_service_url + "/admin/v2/x", ssl=trusting) as answer:
        assert answer.status == 200
    assert brokers[0].requests[0].headers["X-Forwarded-Proto"] == "https"


@pytest.mark.parametrize(("header_bytes_max", "status"), [(8_192, 431), (16_000, 200)])
async def test_a_long_header_is_told_the_setting(
    start: StartProxy, client: aiohttp.ClientSession, header_bytes_max: int, status: int
) -> None:
    proxy = await proxy_of(start, None, http=HttpSettings(header_bytes_max=header_bytes_max))
    async with client.get(proxy.web_service_url + "/status.html", headers={"X-Long": "x" * 9_000}) as answer:
        assert answer.status == status
        assert ("httpMaxRequestHeaderSize" in await answer.text()) is (status == 431)
