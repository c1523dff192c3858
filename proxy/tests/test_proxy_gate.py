"""Who may send requests through a proxy, and what brokers are told about it."""

from __future__ import annotations

import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from magnetar.auth.settings import (
    BASIC_PROVIDER,
    TLS_PROVIDER,
    TOKEN_PROVIDER,
    AuthenticationSettings,
    TokenSettings,
)
from magnetar.auth.testing import PASSWORDS, SECRET, token_of
from magnetar.net.testing import TestAuthority
from magnetar.net.tls import TlsSettings
from magnetar.proxy.app import RunningProxy
from magnetar.proxy.settings import BrokerClientSettings, FixedBrokers, ProxyAccessSettings

StartProxy = Callable[..., Awaitable[RunningProxy]]
OWN = BrokerClientSettings(authentication_plugin="token", authentication_parameters="token:own")
PATH = "/admin/v2/clusters"


class WebBroker:
    """Keeps the headers that it was sent."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.status = 200
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request.headers)
        return web.json_response(["here"], status=self.status)


@pytest.fixture
async def broker() -> AsyncIterator[WebBroker]:
    made = WebBroker()
    application = web.Application()
    application.router.add_route("*", "/{rest:.*}", made.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def guarded(start: StartProxy, broker: WebBroker, *providers: str, **changes: Any) -> RunningProxy:
    own = changes.pop("broker_client", OWN)
    more = {name: changes.pop(name) for name in ("service_port_tls", "web_service_port_tls", "tls") if name in changes}
    anonymous = changes.pop("anonymous", "")
    users = f"data:,maker:{PASSWORDS['sha']}"
    access = ProxyAccessSettings(
        authentication=AuthenticationSettings(
            enabled=True,
            providers=providers or (TOKEN_PROVIDER,),
            anonymous_role=anonymous,
            token=TokenSettings(secret_key=SECRET),
            basic_users=users,
        ),
        **changes,
    )
    fixed = FixedBrokers(service_url="pulsar://a:1", web_service_url=broker.url)
    return await start(fixed_brokers=fixed, web_service_port=0, access=access, broker_client=own, **more)


def bearer(subject: str, **claims: object) -> dict[str, str]:
    return {"Authorization": "Bearer " + token_of(subject, **claims)}


async def status_of(client: aiohttp.ClientSession, url: str, headers: dict[str, str] | None = None) -> tuple[int, str]:
    async with client.get(url, headers=headers) as answer:
        body = await answer.json() if "json" in answer.content_type else None
        return answer.status, body.get("reason", "") if isinstance(body, dict) else ""


async def test_brokers_are_told_who_sends_a_request(
    start: StartProxy, broker: WebBroker, client: aiohttp.ClientSession
) -> None:
    proxy = await guarded(start, broker, TOKEN_PROVIDER, BASIC_PROVIDER)
    basic = {"Authorization": "Basic " + b64encode(b"maker:secret").decode()}
    for credentials, method in ((bearer("maker"), "token"), (basic, "basic")):
        claims = [("X-Original-Principal", "admin"), ("x-original-principal", "root"), ("Connection", "x-y")]
        async with client.get(proxy.web_service_url + PATH, headers=[*credentials.items(), *claims]) as answer:
            assert await answer.json() == ["here"]
        seen = broker.seen.pop()
        assert seen.getall("X-Original-Principal") == ["maker"]
        # As Apache's proxy: brokers look at the client's own credentials, too.
        assert seen.getall("Authorization") == [credentials["Authorization"]]
        assert seen.getall("X-Pulsar-Auth-Method-Name") == [method]


async def test_requests_of_nobody_are_refused(
    start: StartProxy, broker: WebBroker, client: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    proxy = await guarded(start, broker)
    url = proxy.web_service_url
    for headers in (
        {},
        {"X-Original-Principal": "admin"},
        {"Authorization": "Bearer nonsense"},
        bearer("maker", exp=1),
        bearer("maker\r\nX-Original-Principal: admin"),
        {**bearer("maker"), "X-Pulsar-Auth-Method-Name": "tls"},
    ):
        for path in (PATH, "/lookup/v2/topic/persistent/a/b/c", "/%61dmin/v2/clusters"):
            assert await status_of(client, url + path, headers) == (401, "Authentication required")
    assert not broker.seen
    assert proxy.service.counters.authentication_failures == 18
    assert "failed to authenticate for /admin/v2/clusters" in caplog.text


async def test_who_may_see_the_proxys_own_pages(
    start: StartProxy, broker: WebBroker, client: aiohttp.ClientSession
) -> None:
    proxy = await guarded(start, broker)
    for path in ("/metrics", "/metrics/", "/proxy-stats/connections"):
        assert await status_of(client, proxy.web_service_url + path) == (401, "Authentication required")
        assert await status_of(client, proxy.web_service_url + path, bearer("maker")) == (200, "")
    assert await status_of(client, proxy.web_service_url + "/status.html") == (200, "")
    strict = await guarded(
        start, broker, metrics_authenticated=False, authorization_enabled=True, super_user_roles=("admin",)
    )
    assert await status_of(client, strict.web_service_url + "/metrics/") == (200, "")
    statistics = strict.web_service_url + "/proxy-stats/connections"
    assert await status_of(client, statistics) == (401, "Authentication required")
    told = "Client is not authorized to perform operation"
    assert await status_of(client, statistics, bearer("maker")) == (401, told)
    assert await status_of(client, statistics, bearer("admin")) == (200, "")
    # What others may do is for the brokers to say.
    assert await status_of(client, strict.web_service_url + PATH, bearer("maker")) == (200, "")


async def test_the_proxy_shows_itself_for_those_whose_credentials_do_not_pass(
    start: StartProxy,
    broker: WebBroker,
    client: aiohttp.ClientSession,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    authority = TestAuthority(tmp_path)
    server, maker = authority.issue("proxy", "IP:127.0.0.1"), authority.issue("maker")
    tls = TlsSettings(
        certificate_file=server.certificate_file,
        key_file=server.key_file,
        trust_certificates_file=authority.certificate_file,
    )
    proxy = await guarded(
        start, broker, TLS_PROVIDER, TOKEN_PROVIDER, anonymous="anybody", web_service_port_tls=0, tls=tls
    )
    context = ssl.create_default_context(cafile=authority.certificate_file)
    context.load_cert_chain(maker.certificate_file, maker.key_file)
    url = f"https://127.0.0.1:{proxy.settings.web_service_port_tls}{PATH}"
    async with client.get(url, ssl=context, headers={"X-Pulsar-Auth-Method-Name": "tls"}) as answer:
        assert answer.status == 200
    assert await status_of(client, proxy.web_service_url + PATH, {"Authorization": "Bearer nonsense"}) == (200, "")
    for principal in ("maker", "anybody"):
        seen = broker.seen.pop(0)
        assert seen.getall("X-Original-Principal") == [principal]
        assert seen.getall("Authorization") == ["Bearer own"]
        assert seen.getall("X-Pulsar-Auth-Method-Name") == ["token"]
    by_certificate = await guarded(start, broker, anonymous="anybody", broker_client=BrokerClientSettings())
    nonsense = {"Authorization": "Bearer nonsense"}
    assert await status_of(client, by_certificate.web_service_url + PATH, nonsense) == (200, "")
    assert "Authorization" not in broker.seen.pop(), "what nobody has checked would speak for the proxy"
    broker.status = 401
    assert (await status_of(client, proxy.web_service_url + PATH))[0] == 401
    assert "brokerClientAuthenticationPlugin and brokerClientAuthenticationParameters must be good" in caplog.text

    own = tmp_path / "own.token"
    own.write_text("own")
    gone = BrokerClientSettings(authentication_plugin="token", authentication_parameters=f"file://{own}")
    lost = await guarded(start, broker, anonymous="anybody", broker_client=gone)
    own.unlink()
    assert await status_of(client, lost.web_service_url + PATH) == (503, "The proxy cannot show itself to brokers")


async def test_a_proxy_that_authenticates_nobody_passes_credentials_on_and_claims_not(
    start: StartProxy, broker: WebBroker, client: aiohttp.ClientSession
) -> None:
    fixed = FixedBrokers(service_url="pulsar://a:1", web_service_url=broker.url)
    proxy = await start(fixed_brokers=fixed, web_service_port=0, broker_client=OWN)
    headers = {**bearer("maker"), "X-Original-Principal": "admin"}
    assert await status_of(client, proxy.web_service_url + PATH, headers) == (200, "")
    seen = broker.seen.pop()
    assert seen["Authorization"] == headers["Authorization"]
    assert "X-Original-Principal" not in seen
    # Nobody becomes the proxy.
    assert await status_of(client, proxy.web_service_url + PATH) == (200, "")
    assert "Authorization" not in broker.seen.pop()
