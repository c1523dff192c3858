from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web
from magnetar.auth.testing import token_of
from magnetar.broker.testing.auth import ADMIN, broker_settings, grants, make_namespace
from magnetar.broker.testing.sessions import MemoryBroker
from magnetar.core.topic_name import TopicName
from magnetar.net.free_ports import free_port
from magnetar.spark.brokers import admin_api
from magnetar.spark.brokers.admin_api import AdminApi, urls_of
from magnetar.spark.brokers.catalog import ledgers_of
from magnetar.spark.errors import AccessRefused, BadOption, ClusterUnreachable, TopicMissing
from magnetar.spark.options.connection import ConnectionOptions

TOPIC = TopicName.parse("persistent://public/default/t")
MINE = TopicName.parse("persistent://acme/shop/orders")


def api_of(url: str, token: str = "") -> AdminApi:
    return AdminApi(
        ConnectionOptions(service_url="pulsar://h:1", admin_url=url, token=token, operation_timeout_seconds=5)
    )


@pytest.fixture
async def broker() -> AsyncIterator[MemoryBroker]:
    async with MemoryBroker() as made:
        yield made


async def call(broker: MemoryBroker, method: str, path: str, body: object = None) -> None:
    import aiohttp

    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"{broker.admin_url}/admin/v2/{path}", json=body) as answer,
    ):
        assert answer.status < 300, await answer.text()


async def test_what_a_broker_tells(broker: MemoryBroker) -> None:
    client = await broker.connect()
    await client.producer(str(TOPIC))
    await client.publish(3)
    api = api_of(broker.admin_url)
    try:
        assert "metadataStoreUrl" in await api.internal_configuration()
        [ledger] = ledgers_of(await api.internal_stats(TOPIC), {})
        assert (ledger.entries, ledger.closed_ms) == (3, 0)
        assert await api.deduplication(TOPIC) is False
        await call(broker, "POST", "namespaces/public/default/deduplication", body=True)
        assert await api.deduplication(TOPIC) is True
        not_yet = TopicName.parse("not-yet")
        assert await api.deduplication(not_yet) is True
        await call(broker, "POST", "namespaces/public/default/deduplication", body=False)
        assert await api.deduplication(not_yet) is False
        with pytest.raises(TopicMissing, match="nowhere"):
            await api.internal_stats(TopicName.parse("nowhere"))
    finally:
        await api.close()
        await api.close()


async def test_credentials_are_needed_and_the_texts_say_which() -> None:
    async with MemoryBroker(broker_settings()) as broker:
        await make_namespace(broker, auth_policies=grants({"reader": ["consume"]}))
        for token, named in (("", "option token"), (token_of("stranger"), "refuses")):
            api = api_of(broker.admin_url, token)
            with pytest.raises(AccessRefused, match=named):
                await api.get("/admin/v2/namespaces/acme/shop", "policies of acme/shop")
            assert await api.deduplication(MINE) is None
            await api.close()
        api = api_of(broker.admin_url, token_of(ADMIN))
        assert await api.get("/admin/v2/persistent/acme/shop", "topics of acme/shop") == []
        await api.close()


async def test_the_next_host_is_asked(broker: MemoryBroker) -> None:
    nobody, host = free_port(), broker.admin_url.removeprefix("http://")
    api = api_of(f"http://127.0.0.1:{nobody},{host}/")
    await api.internal_configuration()
    assert api._first == 1
    await api.close()
    api = api_of(f"http://127.0.0.1:{nobody}")
    with pytest.raises(ClusterUnreachable, match=rf"admin\.url.*{nobody}"):
        await api.internal_configuration()
    await api.close()


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Servers:
    """HTTP servers that answer as the test says."""

    def __init__(self) -> None:
        self._runners: list[web.AppRunner] = []

    async def __call__(self, handler: Handler) -> str:
        runner = web.AppRunner(_application(handler))
        await runner.setup()
        self._runners.append(runner)
        site = web.TCPSite(runner, "127.0.0.1", port := free_port())
        await site.start()
        return f"http://127.0.0.1:{port}"

    async def stop(self) -> None:
        for runner in self._runners:
            await runner.cleanup()


def _application(handler: Handler) -> web.Application:
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handler)
    return application


@pytest.fixture
async def servers() -> AsyncIterator[Servers]:
    made = Servers()
    yield made
    await made.stop()


async def test_redirects_of_brokers_are_followed_with_credentials(servers: Servers) -> None:
    seen: list[str] = []

    async def owner(request: web.Request) -> web.Response:
        seen.append(request.headers["Authorization"])
        return web.Response(text=json.dumps({"path": request.raw_path}))

    owner_url = await servers(owner)

    async def other(request: web.Request) -> web.Response:
        raise web.HTTPTemporaryRedirect(owner_url + request.raw_path + "?authoritative=true")

    api = api_of(await servers(other), "secret")
    found = await api.internal_stats(TopicName.parse("a b"))
    assert found == {"path": "/admin/v2/persistent/public/default/a+b/internalStats?authoritative=true"}
    assert seen == ["Bearer secret"]
    await api.close()


async def test_other_redirects_are_not_followed(servers: Servers) -> None:
    seen: list[str] = []

    async def stranger(request: web.Request) -> web.Response:
        seen.append(request.raw_path)
        return web.Response(text="log in here")

    login = await servers(stranger)

    async def wall(request: web.Request) -> web.Response:
        del request
        raise web.HTTPFound(login + "/login")

    api = api_of(await servers(wall), "secret")
    with pytest.raises(ClusterUnreachable, match="is no broker"):
        await api.internal_configuration()
    assert not seen
    await api.close()


async def test_what_only_points_elsewhere_is_no_answer(servers: Servers) -> None:
    """None would mean that a topic has no ledgers, or no policy."""

    async def wall(request: web.Request) -> web.Response:
        del request
        return web.Response(status=303, headers={"Location": "/login"})

    api = api_of(await servers(wall))
    with pytest.raises(ClusterUnreachable, match="is no broker"):
        await api.internal_stats(TOPIC)
    await api.close()


async def test_answers_that_are_none(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_api, "FIRST_PAUSE_SECONDS", 0.001)

    async def page(request: web.Request) -> web.Response:
        return web.Response(text="<html>", status=503 if "stats" in request.path.lower() else 200)

    api = api_of(url := await servers(page))
    with pytest.raises(ClusterUnreachable, match="is no broker"):
        await api.internal_configuration()
    address = f"{url}/admin/v2/persistent/public/default/t/internalStats"
    with pytest.raises(ClusterUnreachable, match=rf"asked 8 times in .* s: {re.escape(address)}: 503 <html>"):
        await api.internal_stats(TOPIC)
    await api.close()


@pytest.mark.parametrize("status", [500, 502, 503, 504, 429])
async def test_what_passes_is_waited_for(servers: Servers, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    monkeypatch.setattr(admin_api, "FIRST_PAUSE_SECONDS", 0.001)
    asked: list[str] = []

    async def handing_over(request: web.Request) -> web.Response:
        asked.append(request.raw_path)
        if len(asked) == 2:
            assert request.transport is not None
            request.transport.close()  # Without an answer.
        return web.Response(text="{}", status=200 if len(asked) > 4 else status)

    api = api_of(await servers(handing_over))
    assert await api.internal_stats(TOPIC) == {}
    assert len(asked) == 5
    await api.close()


async def test_a_topic_that_one_host_fails_at_is_asked_for_at_the_next(servers: Servers) -> None:
    async def failing(request: web.Request) -> web.Response:
        del request
        return web.Response(text="{}", status=500)

    async def well(request: web.Request) -> web.Response:
        del request
        return web.Response(text='{"ledgers": []}')

    hosts = [(await servers(one)).removeprefix("http://") for one in (failing, well)]
    api = api_of(f"http://{','.join(hosts)}")
    assert await api.internal_stats(TOPIC) == {"ledgers": []}
    assert api._first == 1
    await api.close()


async def test_what_stays_is_told_at_once(servers: Servers) -> None:
    asked = 0

    async def old(request: web.Request) -> web.Response:
        nonlocal asked
        del request
        asked += 1
        return web.Response(text="{}", status=501)

    api = api_of(await servers(old))
    with pytest.raises(ClusterUnreachable, match=r"asked once in .*: 501"):
        await api.internal_stats(TOPIC)
    assert asked == 1
    await api.close()


@pytest.mark.parametrize("url", ["", "127.0.0.1:8080", "ftp://h:1", "http://", "http://a,,b"])
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(BadOption, match=r"admin\.url"):
        urls_of(url)
