"""A proxy tells its credentials to brokers only, whatever host a client names."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from magnetar.auth.settings import TOKEN_PROVIDER, AuthenticationSettings, TokenSettings
from magnetar.auth.testing import SECRET, token_of
from magnetar.core.clock import SystemClock
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.net.testing import TestAuthority
from magnetar.net.tls import TlsSettings
from magnetar.proxy import proven_targets
from magnetar.proxy.app import RunningProxy
from magnetar.proxy.discovery import BROKERS_PATH, DRAINING_PATH, BrokerChoice, NamedBrokers
from magnetar.proxy.proven_targets import ANSWER_SECONDS, ProvenTargets, TargetUnknown
from magnetar.proxy.settings import BrokerClientSettings, FixedBrokers, ProxyAccessSettings, TargetSettings
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from proxy.tests.wires import ScriptedBroker, Wire, connect_command

StartProxy = Callable[..., Awaitable[RunningProxy]]
OWN = BrokerClientSettings(authentication_plugin="token", authentication_parameters="token:own")
NOT_ACTIVE = (pb.ServiceNotReady, "Target broker isn't available.")
ANY_PORT = TargetSettings(ports=("*",))


@pytest.fixture
async def store() -> AsyncIterator[MemoryMetadataStore]:
    made = MemoryMetadataStore()
    yield made
    await made.close()


def registration(broker: ScriptedBroker, web_url: str = "", **more: object) -> bytes:
    return json.dumps({"pulsarServiceUrl": broker.service_url, "webServiceUrl": web_url, **more}).encode()


def authenticating() -> ProxyAccessSettings:
    token = TokenSettings(secret_key=SECRET)
    return ProxyAccessSettings(
        authentication=AuthenticationSettings(enabled=True, providers=(TOKEN_PROVIDER,), token=token)
    )


async def asked(proxy: RunningProxy, target: str, **fields: Any) -> tuple[pb.ServerError, str] | None:
    """What a client is told that names a broker; None: it is connected with it."""
    assert proxy.settings.service_port is not None
    wire = await Wire.open(proxy.settings.service_port)
    answer = await wire.ask(connect_command(proxy_to_broker_url=target, **fields))
    wire.close()
    return None if answer.type == pb.BaseCommand.CONNECTED else (answer.error.error, answer.error.message)


def port_of(broker: ScriptedBroker) -> str:
    return broker.host_and_port.rpartition(":")[2]


async def test_a_host_that_is_no_broker_never_sees_the_proxys_token(
    start: StartProxy, store: MemoryMetadataStore
) -> None:
    mallory = {"auth_method_name": "token", "auth_data": token_of("mallory").encode()}
    async with ScriptedBroker(raw=True) as broker, ScriptedBroker(raw=True) as thief:
        await store.put(f"{BROKERS_PATH}/b:1", registration(broker))
        for found, targets in (
            ({"store": store}, ANY_PORT),
            ({"broker": broker.service_url}, ANY_PORT),
            # Apache's proxy.conf says so, and means connections, not credentials.
            ({"store": store}, TargetSettings(ports=("*",), only_active=False)),
            # A list of ports vouches for no host.
            ({"broker": broker.service_url}, TargetSettings(ports=tuple(map(port_of, (broker, thief))))),
        ):
            proxy = await start(**found, targets=targets, broker_client=OWN, access=authenticating())
            assert await asked(proxy, thief.host_and_port, **mallory) == NOT_ACTIVE
            assert proxy.service.counters.denied_targets == 1
            assert await asked(proxy, broker.host_and_port, **mallory) is None
    assert not thief.connects
    assert [connect.auth_data for connect in broker.connects] == [b"own"] * 4


async def test_where_brokers_register_no_other_host_is_connected_with_at_all(
    start: StartProxy, store: MemoryMetadataStore
) -> None:
    async with ScriptedBroker(raw=True) as host:
        proxy = await start(store=store)
        assert await asked(proxy, host.host_and_port) == NOT_ACTIVE
        proxy = await start(store=store, targets=TargetSettings(ports=("*",), only_active=False))
        assert await asked(proxy, host.host_and_port) is None


async def test_hosts_that_the_settings_list_are_vouched_for(start: StartProxy) -> None:
    async with ScriptedBroker(raw=True) as broker:
        for targets in (
            TargetSettings(ports=("*",), host_names=("127.0.0.*",)),
            TargetSettings(ports=("*",), addresses=("127.0.0.0/8",)),
        ):
            proxy = await start("pulsar://nowhere:1", targets=targets, broker_client=OWN)
            assert await asked(proxy, broker.host_and_port) is None


async def test_a_broker_that_a_lookup_has_named_is_one(start: StartProxy) -> None:
    async with ScriptedBroker(raw=True) as owner:

        def located(command: pb.BaseCommand) -> pb.BaseCommand:
            response = pb.CommandLookupTopicResponse(
                request_id=command.lookupTopic.request_id,
                response=pb.CommandLookupTopicResponse.Connect,
                brokerServiceUrl=owner.service_url,
            )
            return pb.BaseCommand(type=pb.BaseCommand.LOOKUP_RESPONSE, lookupTopicResponse=response)

        async with ScriptedBroker(located) as asked_first:
            proxy = await start(asked_first.service_url, broker_client=OWN)
            assert await asked(proxy, owner.host_and_port) == NOT_ACTIVE
            assert proxy.settings.service_port is not None
            wire = await Wire.connected(proxy.settings.service_port)
            lookup = pb.CommandLookupTopic(topic="t", request_id=1)
            await wire.ask(pb.BaseCommand(type=pb.BaseCommand.LOOKUP, lookupTopic=lookup))
            wire.close()
            assert await asked(proxy, owner.host_and_port) is None


async def test_brokers_that_have_just_come_that_drain_and_their_listeners(
    start: StartProxy, store: MemoryMetadataStore
) -> None:
    proxy = await start(store=store, broker_client=OWN)
    async with ScriptedBroker(raw=True) as new, ScriptedBroker(raw=True) as draining, ScriptedBroker(raw=True) as other:
        assert await asked(proxy, new.host_and_port) == NOT_ACTIVE
        listeners = {"outside": {"brokerServiceUrl": other.service_url}}
        # The client may be quicker than the notification.
        await store.put(f"{BROKERS_PATH}/b:1", registration(new, advertisedListeners=listeners))
        assert await asked(proxy, new.host_and_port) is None
        assert await asked(proxy, other.host_and_port) is None
        await store.put(f"{DRAINING_PATH}/b:2", registration(draining))
        assert await asked(proxy, draining.host_and_port) is None
        assert draining.service_url not in proxy.service.brokers.service_urls()


async def test_names_of_no_broker_do_not_make_the_store_busy(
    start: StartProxy, store: MemoryMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = await start(store=store)
    readings = 0
    children = store.children

    async def counted(path: str, **more: Any) -> list[str]:
        nonlocal readings
        readings += path == BROKERS_PATH
        return list(await children(path, **more))

    monkeypatch.setattr(store, "children", counted)
    assert await asyncio.gather(*(asked(proxy, f"127.0.0.1:{port}") for port in range(1, 101))) == [NOT_ACTIVE] * 100
    # Of the last second before, of this one, and one for each second that the hundred may have taken to arrive.
    assert 1 <= readings < 50


class ShiftedClock(SystemClock):
    """Goes on by itself, and further when told."""

    ahead_seconds = 0.0

    def monotonic_seconds(self) -> float:
        return super().monotonic_seconds() + self.ahead_seconds


async def test_answers_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proven_targets, "ANSWERS_MAX", 3)
    named = NamedBrokers(FixedBrokers(service_url="pulsar://lb:6650"))
    clock = ShiftedClock()
    proven = ProvenTargets(ANY_PORT, BrokerChoice(named, named, tls=False), clock, shows_credentials=True)
    for name in ("a:1", "b:1", "c:1", "A:1", "d:1"):
        proven.answered(name)
    for name in ("lb:6650", "LB:6650", "a:1", "c:1", "d:1"):
        await proven.check(name)
    with pytest.raises(TargetUnknown):
        await proven.check("b:1")
    clock.ahead_seconds = ANSWER_SECONDS
    await proven.check("lb:6650")
    with pytest.raises(TargetUnknown):
        await proven.check("a:1")


async def test_redirects_of_requests_are_followed_to_brokers_only(
    start: StartProxy, store: MemoryMetadataStore
) -> None:
    seen: dict[str, list[str]] = {"first": [], "owner": [], "other": []}
    urls: dict[str, str] = {}
    runners: list[web.AppRunner] = []

    def answering(name: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def answer(request: web.Request) -> web.StreamResponse:
            seen[name].append(request.headers.get("Authorization", ""))
            where = request.query.get("to")
            if where is None or name != "first":
                return web.Response(text=name)
            return web.Response(status=307, headers={"Location": urls[where] + request.path})

        return answer

    for name in seen:
        application = web.Application()
        application.router.add_get("/{rest:.*}", answering(name))
        runners.append(web.AppRunner(application))
        await runners[-1].setup()
        await web.TCPSite(runners[-1], "127.0.0.1", 0).start()
        urls[name] = f"http://127.0.0.1:{runners[-1].addresses[0][1]}"
    await store.put(f"{BROKERS_PATH}/b:1", json.dumps({"webServiceUrl": urls["first"]}).encode())
    proxy = await start(store=store, web_service_port=0)
    await store.put(f"{DRAINING_PATH}/b:2", json.dumps({"webServiceUrl": urls["owner"]}).encode())
    headers = {"Authorization": "Bearer secret"}
    try:
        async with aiohttp.ClientSession(headers=headers) as session:
            page = proxy.web_service_url + "/admin/v2/clusters?to="
            async with session.get(page + "owner", allow_redirects=False) as answer:
                assert (answer.status, await answer.text()) == (200, "owner")
            async with session.get(page + "other", allow_redirects=False) as answer:
                assert answer.status == 307
                assert answer.headers["Location"] == urls["other"] + "/admin/v2/clusters"
    finally:
        for runner in runners:
            await runner.cleanup()
    assert seen == {"first": ["Bearer secret"] * 2, "owner": ["Bearer secret"], "other": []}


async def test_a_redirect_out_of_tls_is_left_to_the_client(start: StartProxy, tmp_path: Path) -> None:
    """It may lead to a broker: everybody on the way there would see the credentials all the same."""
    seen: list[str] = []
    plain_url = ""

    async def answer(request: web.Request) -> web.StreamResponse:
        seen.append(request.scheme)
        return web.Response(status=307, headers={"Location": plain_url + request.path})

    authority = TestAuthority(tmp_path)
    certificate = authority.issue("broker", "IP:127.0.0.1")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate.certificate_file, certificate.key_file)
    application = web.Application()
    application.router.add_get("/{rest:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    safe, plain = (
        f"{scheme}://127.0.0.1:{at[1]}" for scheme, at in zip(("https", "http"), runner.addresses, strict=True)
    )
    plain_url = plain
    trusting = TlsSettings(trust_certificates_file=authority.certificate_file)
    proxy = await start(
        fixed_brokers=FixedBrokers(service_url_tls="pulsar+ssl://a:1", web_service_url_tls=safe),
        web_service_port=0,
        broker_client=BrokerClientSettings(tls_enabled=True, tls=trusting),
    )
    headers = {"Authorization": "Bearer secret"}
    page = proxy.web_service_url + "/admin/v2/clusters"
    try:
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.get(page, allow_redirects=False) as told,
        ):
            assert (told.status, told.headers["Location"]) == (307, plain_url + "/admin/v2/clusters")
    finally:
        await runner.cleanup()
    assert seen == ["https"]
