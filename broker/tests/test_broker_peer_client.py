"""Calls between brokers over their real client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from aiohttp import web
from magnetar.admin_client.client import AdminAnswer
from magnetar.admin_client.errors import AdminRefused, AdminUnreachable
from magnetar.broker.peers.access import PeerAccess
from magnetar.broker.peers.addresses import BrokerAddresses
from magnetar.broker.peers.known_peers import KnownPeers
from magnetar.broker.peers.peer_client import CONNECTIONS_MAX, PeerClient
from magnetar.broker.settings.access import PeerSettings


class Server:
    """Answers by the path."""

    def __init__(self) -> None:
        self.at_once = 0
        self.at_once_max = 0
        self.leads_to = ""
        self.asked: list[str] = []
        self.raw: list[str] = []
        self.slow_seconds = 0.3

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        self.at_once += 1
        self.at_once_max = max(self.at_once, self.at_once_max)
        self.asked.append(request.path)
        self.raw.append(request.raw_path)
        try:
            match request.path:
                case "/away":
                    return web.Response(status=307, headers={"Location": self.leads_to + "/here"})
                case "/slow":
                    await asyncio.sleep(self.slow_seconds)
                    return web.json_response({"slow": True})
                case "/nowhere":
                    return web.Response(status=307)
                case "/strange":
                    return web.Response(status=307, headers={"Location": "http://[::1"})
                case "/loop":
                    return web.Response(status=307, headers={"Location": "/loop"})
                case "/refused":
                    return web.json_response({"reason": "because"}, status=412)
                case _:
                    return web.Response(status=204)
        finally:
            self.at_once -= 1


def addresses(web_service_url: str) -> BrokerAddresses:
    return BrokerAddresses(
        broker_id="b",
        service_url=None,
        service_url_tls=None,
        web_service_url=web_service_url,
        web_service_url_tls=None,
    )


@pytest.fixture
async def server() -> AsyncIterator[tuple[Server, str]]:
    answering = Server()
    listening = web.ServerRunner(web.Server(answering))
    await listening.setup()
    site = web.TCPSite(listening, "127.0.0.1", 0)
    await site.start()
    yield answering, f"http://127.0.0.1:{listening.addresses[0][1]}"
    await listening.cleanup()


async def test_redirects_that_lead_nowhere(server: tuple[Server, str]) -> None:
    client = PeerClient(lambda: server[1])
    for path in ("/nowhere", "/strange", "/loop"):
        with pytest.raises(AdminUnreachable, match=path):
            await client.call("GET", path)
    with pytest.raises(AdminRefused, match="because"):
        await client.call("GET", "/refused")
    assert (await client.call("GET", "/")).json() is None
    await client.close()


async def test_redirects_are_followed_to_brokers_of_the_cluster_only(server: tuple[Server, str]) -> None:
    asked, url = server
    other = Server()
    listening = web.ServerRunner(web.Server(other))
    await listening.setup()
    await web.TCPSite(listening, "127.0.0.1", 0).start()
    asked.leads_to = f"http://127.0.0.1:{listening.addresses[0][1]}"
    client = PeerClient(lambda: url)
    listed: list[BrokerAddresses] = []
    new: list[BrokerAddresses] = []

    async def read_again() -> list[BrokerAddresses]:
        return new

    try:
        with pytest.raises(AdminUnreachable, match="no broker of this cluster"):
            await client.call("GET", "/away")
        client.admin.known = KnownPeers(lambda: listed, read_again)
        with pytest.raises(AdminUnreachable, match="no broker of this cluster"):
            await client.call("GET", "/away")
        assert not other.asked
        new.append(addresses(asked.leads_to))
        assert (await client.call("GET", "/away")).status == 204
        assert other.asked == ["/here"]
        asked.leads_to = asked.leads_to.replace("http://", "http://user@")
        with pytest.raises(AdminUnreachable, match="no broker of this cluster"):
            await client.call("GET", "/away")
    finally:
        await client.close()
        await listening.cleanup()


async def test_a_path_is_sent_as_it_is(server: tuple[Server, str]) -> None:
    client = PeerClient(lambda: server[1])
    path = "/admin/v2/persistent/t/n/topic-partition-0/subscription/%2E%2E/a%2Fb/../%25"
    await client.call("GET", path, query={"a": "b/../c"})
    await client.close()
    assert server[0].raw == [path + "?a=b/../c"]


def test_with_tls_brokers_are_called_over_tls_only() -> None:
    shown = PeerAccess(PeerSettings(plugin="token", parameters="token:own", tls_enabled=True))
    plain = addresses("http://b:8080")
    both = replace(plain, web_service_url_tls="https://b:8443")
    assert [PeerClient(lambda: "https://a:1", shown).url_of(broker) for broker in (plain, both)] == [
        None,
        "https://b:8443",
    ]
    assert PeerClient(lambda: "http://a:1").url_of(both) == "http://b:8080"


def test_without_tls_the_protocols_connections_are_plain() -> None:
    assert PeerAccess(PeerSettings()).connect_tls is None
    assert PeerAccess(PeerSettings(tls_enabled=True)).connect_tls is not None


async def test_a_client_that_is_closed_calls_nobody(server: tuple[Server, str]) -> None:
    client = PeerClient(lambda: server[1])
    under_way = asyncio.create_task(client.call("GET", "/slow"))
    await asyncio.sleep(0.1)
    await client.close()
    with pytest.raises(AdminUnreachable):
        await under_way
    with pytest.raises(AdminUnreachable, match="closed"):
        await client.call("GET", "/")
    never_used = PeerClient(lambda: server[1])
    await never_used.close()
    with pytest.raises(AdminUnreachable, match="closed"):
        await never_used.call("GET", "/")


@pytest.mark.slow
async def test_waiting_for_a_place_is_not_the_peers_time(
    server: tuple[Server, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many are asked for at once, each has all of its time: together they take longer than one may."""
    for call_seconds in (2.0, 10.0, 50.0):  # A busy machine needs more for a single one, too.
        monkeypatch.setattr("magnetar.broker.peers.peer_client.CALL_SECONDS_MAX", call_seconds)
        client = PeerClient(lambda: server[1])
        server[0].slow_seconds = 0.15 * call_seconds
        calls = (client.call("GET", "/slow") for _ in range(8 * CONNECTIONS_MAX))
        answers = await asyncio.gather(*calls, return_exceptions=True)
        await client.close()
        if not any(isinstance(answer, BaseException) for answer in answers):
            break
    assert [type(answer) for answer in answers] == 8 * CONNECTIONS_MAX * [AdminAnswer]
    assert server[0].at_once_max == CONNECTIONS_MAX
