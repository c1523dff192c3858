"""Who may connect to a proxy, and what brokers are told about it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from magnetar.auth.credentials import REFRESH
from magnetar.auth.plugin import ClientCredentials
from magnetar.auth.settings import TLS_PROVIDER, TOKEN_PROVIDER, AuthenticationSettings, TokenSettings
from magnetar.auth.testing import SECRET, token_of
from magnetar.core.clock import SystemClock
from magnetar.core.errors import PeerError, SettingError
from magnetar.net.testing import TestAuthority, until
from magnetar.net.tls import TlsSettings
from magnetar.proxy import client_access
from magnetar.proxy.app import RunningProxy
from magnetar.proxy.credentials import OriginalClient
from magnetar.proxy.handshake import BrokerConnector, BrokerEndpoint, Greeting
from magnetar.proxy.settings import BrokerClientSettings, ProxyAccessSettings
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from proxy.tests.wires import ScriptedBroker, Wire, connect_command

StartProxy = Callable[..., Awaitable[RunningProxy]]
REFUSED = (pb.AuthenticationError, "Failed to authenticate")
OWN = BrokerClientSettings(authentication_plugin="token", authentication_parameters="token:own")
FLAGS = pb.FeatureFlags(supports_auth_refresh=True)
SWEEP_SECONDS = 0.2
"""A client has this long to renew its credentials, however busy the machine is."""


class ShiftedClock(SystemClock):
    """Goes on by itself, and further when told."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


def access(providers: tuple[str, ...] = (TOKEN_PROVIDER,), anonymous: str = "", **changes: Any) -> ProxyAccessSettings:
    return ProxyAccessSettings(
        authentication=AuthenticationSettings(
            enabled=True,
            providers=providers,
            anonymous_role=anonymous,
            refresh_check_seconds=SWEEP_SECONDS,
            token=TokenSettings(secret_key=SECRET),
        ),
        **changes,
    )


def shown(token: str, **more: Any) -> dict[str, Any]:
    return {"auth_method_name": "token", "auth_data": token.encode(), "feature_flags": FLAGS, **more}


def port_of(proxy: RunningProxy) -> int:
    assert proxy.settings.service_port is not None
    return proxy.settings.service_port


def error(code: pb.ServerError, text: str) -> pb.BaseCommand:
    return pb.BaseCommand(type=pb.BaseCommand.ERROR, error=pb.CommandError(request_id=0, error=code, message=text))


def challenge(data: bytes) -> pb.BaseCommand:
    command = pb.BaseCommand(type=pb.BaseCommand.AUTH_CHALLENGE)
    command.authChallenge.challenge.auth_method_name = "token"
    command.authChallenge.challenge.auth_data = data
    return command


def response(data: bytes) -> pb.BaseCommand:
    command = pb.BaseCommand(type=pb.BaseCommand.AUTH_RESPONSE)
    command.authResponse.response.auth_method_name = "token"
    command.authResponse.response.auth_data = data
    return command


def partitions(request_id: int) -> pb.BaseCommand:
    return pb.BaseCommand(
        type=pb.BaseCommand.PARTITIONED_METADATA,
        partitionMetadata=pb.CommandPartitionedTopicMetadata(topic="t", request_id=request_id),
    )


def counted(command: pb.BaseCommand) -> pb.BaseCommand | None:
    if command.type != pb.BaseCommand.PARTITIONED_METADATA:
        return None
    return pb.BaseCommand(
        type=pb.BaseCommand.PARTITIONED_METADATA_RESPONSE,
        partitionMetadataResponse=pb.CommandPartitionedTopicMetadataResponse(
            request_id=command.partitionMetadata.request_id,
            partitions=3,
            response=pb.CommandPartitionedTopicMetadataResponse.Success,
        ),
    )


async def refusal(port: int, **connect: Any) -> tuple[pb.ServerError, str]:
    """Of a connection that is refused."""
    wire = await Wire.open(port)
    answer = await wire.ask(connect_command(**connect))
    assert answer.type == pb.BaseCommand.ERROR, answer
    assert await wire.receive() is None
    wire.close()
    return answer.error.error, answer.error.message


async def test_brokers_are_told_who_the_client_is(start: StartProxy) -> None:
    async with ScriptedBroker(counted) as broker:
        proxy = await start(broker.service_url, access=access(), broker_client=OWN)
        claims = {"original_principal": "admin", "original_auth_data": "x", "original_auth_method": "token"}
        for subject in ("maker", "maker", "reader"):
            wire = await Wire.connected(port_of(proxy), **shown(token_of(subject), **claims))
            assert (await wire.ask(partitions(7))).partitionMetadataResponse.partitions == 3
            wire.close()
        data = await Wire.connected(
            port_of(proxy), **shown(token_of("maker"), proxy_to_broker_url=broker.host_and_port, **claims)
        )
        data.close()
        # Clients of one role share a connection for lookups.
        assert [connect.original_principal for connect in broker.connects] == ["maker", "reader", "maker"]
        for connect in broker.connects:
            assert (connect.auth_method_name, connect.auth_data, bool(connect.proxy_version)) == ("token", b"own", True)
            assert not connect.HasField("original_auth_data")


async def test_credentials_are_forwarded_where_wanted(start: StartProxy) -> None:
    async with ScriptedBroker(counted) as broker:
        forwarding = replace(OWN, forward_credentials=True)
        proxy = await start(broker.service_url, access=access(), broker_client=forwarding)
        token = token_of("maker")
        wire = await Wire.connected(port_of(proxy), **shown(token, proxy_to_broker_url=broker.host_and_port))
        wire.close()
        connect = broker.connects[0]
        assert (connect.auth_data, connect.original_principal) == (b"own", "maker")
        assert (connect.original_auth_data, connect.original_auth_method) == (token, "token")


async def test_who_is_not_let_in(start: StartProxy, caplog: pytest.LogCaptureFixture) -> None:
    async with ScriptedBroker() as broker:
        proxy = await start(broker.service_url, access=access(), broker_client=OWN)
        port = port_of(proxy)
        for credentials in (shown("nonsense"), shown(token_of("maker", exp=1)), shown(""), {}, {"auth_data": b"x"}):
            assert await refusal(port, **credentials) == REFUSED
            assert await refusal(port, **credentials, proxy_to_broker_url=broker.host_and_port) == REFUSED
        good = shown(token_of("maker"))
        answer = await refusal(port, **good, proxy_version="4.0.8")
        assert answer == (pb.NotAllowedError, "Must not provide proxyVersion")
        assert not broker.connects
        assert proxy.service.counters.authentication_failures == 10
        assert "failed to authenticate by token: the token expired" in caplog.text


async def test_the_anonymous_have_a_role_where_it_is_set(start: StartProxy) -> None:
    async with ScriptedBroker(counted) as broker:
        proxy = await start(broker.service_url, access=access(anonymous="anybody"), broker_client=OWN)
        wire = await Wire.connected(port_of(proxy))
        await wire.ask(partitions(1))
        wire.close()
        assert broker.connects[0].original_principal == "anybody"
        assert await refusal(port_of(proxy), **shown("nonsense")) == REFUSED


async def test_expired_credentials_are_renewed(start: StartProxy) -> None:
    clock = ShiftedClock()
    async with ScriptedBroker(counted) as broker:
        forwarding = replace(OWN, forward_credentials=True)
        proxy = await start(broker.service_url, clock=clock, access=access(), broker_client=forwarding)
        now = clock.now_ms() / 1000
        first, second = token_of("maker", exp=now + 100), token_of("maker", exp=now + 300)
        wire = await Wire.connected(port_of(proxy), **shown(first))
        await wire.ask(partitions(1))
        clock.ahead_ms = 200_000
        asked = await wire.receive()
        assert asked is not None
        assert asked.authChallenge.challenge.auth_data == REFRESH
        # What is asked meanwhile waits for the answer.
        wire.send(partitions(2))
        wire.send(response(second.encode()))
        answer = await wire.receive()
        assert answer is not None
        assert answer.partitionMetadataResponse.request_id == 2
        assert [connect.original_auth_data for connect in broker.connects] == [first, second]
        # Nobody asked for another one.
        wire.send(response(second.encode()))
        assert await wire.receive() is None
        wire.close()


@pytest.mark.parametrize("answer", [token_of("reader"), "nonsense"])
async def test_who_renews_them_as_somebody_else_is_not_let_in(start: StartProxy, answer: str) -> None:
    clock = ShiftedClock()
    proxy = await start("pulsar://nowhere:1", clock=clock, access=access(), broker_client=OWN)
    soon = clock.now_ms() / 1000 + 100
    wire = await Wire.connected(port_of(proxy), **shown(token_of("maker", exp=soon)))
    old = await Wire.connected(
        port_of(proxy), **{**shown(token_of("maker", exp=soon)), "feature_flags": pb.FeatureFlags()}
    )
    silent = await Wire.connected(port_of(proxy), **shown(token_of("maker", exp=soon)))
    clock.ahead_ms = 200_000
    await wire.receive()
    refused = await wire.ask(response(answer.encode()))
    assert (refused.error.error, refused.error.message) == REFUSED
    assert await wire.receive() is None
    # These cannot renew them, or do not.
    assert await old.receive() is None
    assert (await silent.receive()) is not None
    assert await silent.receive() is None
    for each in (wire, old, silent):
        each.close()


@pytest.mark.parametrize("forward", [False, True])
async def test_a_broker_that_refuses_the_proxy_itself(
    start: StartProxy, caplog: pytest.LogCaptureFixture, forward: bool
) -> None:
    async with ScriptedBroker() as broker:
        broker.connected = error(*REFUSED)
        own = replace(OWN, forward_credentials=forward)
        proxy = await start(broker.service_url, access=access(), broker_client=own)
        wire = await Wire.connected(port_of(proxy), **shown(token_of("maker")))
        answer = (await wire.ask(partitions(1))).partitionMetadataResponse
        # Nothing that the client could do about, so it may try again.
        assert (answer.error, answer.request_id) == (pb.ServiceNotReady, 1)
        assert "does not let the proxy in" in answer.message
        wire.close()
        data = await Wire.open(port_of(proxy))
        data.send(connect_command(**shown(token_of("maker"), proxy_to_broker_url=broker.host_and_port)))
        assert await data.receive() is None
        data.close()
        assert "brokerClientAuthenticationPlugin and brokerClientAuthenticationParameters are not good" in caplog.text


async def test_a_proxy_that_may_not_speak_for_others(start: StartProxy, caplog: pytest.LogCaptureFixture) -> None:
    async with ScriptedBroker() as broker:
        broker.connected = error(pb.AuthorizationError, "Invalid roles.")
        proxy = await start(broker.service_url, access=access(), broker_client=OWN)
        target = {"proxy_to_broker_url": broker.host_and_port}
        told = await refusal(port_of(proxy), **shown(token_of("maker")), **target)
        assert told == (pb.AuthorizationError, "Invalid roles.")
        assert "refuses 'maker' by way of this proxy" in caplog.text
        assert "must be among the broker's proxyRoles" in caplog.text


# --- where the proxy authenticates nobody


async def test_credentials_pass_through_a_proxy_that_has_none(start: StartProxy) -> None:
    async with ScriptedBroker(counted) as broker:
        proxy = await start(broker.service_url)
        target = {"proxy_to_broker_url": broker.host_and_port}
        wire = await Wire.connected(port_of(proxy), **shown("anything"), original_principal="admin")
        assert (await wire.ask(partitions(1))).partitionMetadataResponse.partitions == 3
        data = await Wire.connected(port_of(proxy), **shown("other"), **target, original_principal="admin")
        data.close()
        assert [connect.auth_data for connect in broker.connects] == [b"anything", b"other"]
        for connect in broker.connects:
            # As if the client had come itself: one that names a proxy would have to be one.
            assert (connect.auth_method_name, connect.HasField("proxy_version")) == ("token", False)
            assert not connect.HasField("original_principal")
        broker.greet = lambda _: error(*REFUSED)
        assert await refusal(port_of(proxy), **shown("bad")) == REFUSED
        assert await refusal(port_of(proxy), **shown("bad"), **target) == REFUSED
        wire.close()


@pytest.mark.parametrize(
    ("own", "method"), [(OWN, "token"), (BrokerClientSettings(), "tls"), (BrokerClientSettings(), "none")]
)
async def test_what_does_not_pass_through(start: StartProxy, own: BrokerClientSettings, method: str) -> None:
    async with ScriptedBroker(counted) as broker:
        proxy = await start(broker.service_url, broker_client=own)
        wire = await Wire.connected(
            port_of(proxy), auth_method_name=method, auth_data=b"x", proxy_to_broker_url=broker.host_and_port
        )
        wire.close()
        connect = broker.connects[0]
        # A broker would take the proxy's certificate for the client's.
        assert (connect.auth_method_name, connect.auth_data) == (("token", b"own") if own is OWN else ("none", b""))
        assert connect.proxy_version


async def test_challenges_of_brokers_are_relayed(start: StartProxy) -> None:
    async with ScriptedBroker() as broker:

        def answer(command: pb.BaseCommand) -> pb.BaseCommand | None:
            if command.type == pb.BaseCommand.AUTH_RESPONSE:
                right = command.authResponse.response.auth_data == b"more"
                return broker.connected if right else error(*REFUSED)
            return counted(command)

        broker._answer = answer
        broker.greet = lambda _: challenge(b"what else?")
        proxy = await start(broker.service_url)
        for target in ({}, {"proxy_to_broker_url": broker.host_and_port}):
            for said, outcome in ((b"more", pb.BaseCommand.CONNECTED), (b"less", pb.BaseCommand.ERROR)):
                wire = await Wire.open(port_of(proxy))
                asked = await wire.ask(connect_command(**shown(f"some-{said.decode()}"), **target))
                assert asked.authChallenge.challenge.auth_data == b"what else?"
                assert (await wire.ask(response(said))).type == outcome
                wire.close()


async def test_credentials_that_pass_through_are_renewed(start: StartProxy) -> None:
    async with ScriptedBroker(counted) as broker:
        good = {b"first"}
        broker.greet = lambda connect: broker.connected if connect.auth_data in good else error(*REFUSED)
        proxy = await start(broker.service_url)
        wire = await Wire.connected(port_of(proxy), **shown("first"))
        await wire.ask(partitions(1))
        good = {b"second"}
        await retired(broker.open_wires[-1])
        asked = await wire.ask(partitions(2))
        assert asked.authChallenge.challenge.auth_data == REFRESH
        answer = await wire.ask(response(b"second"))
        assert answer.partitionMetadataResponse.request_id == 2
        good = set()
        await retired(broker.open_wires[-1])
        # A client that has no better ones is closed, and comes again.
        asked = await wire.ask(partitions(3))
        assert asked.type == pb.BaseCommand.AUTH_CHALLENGE
        told = await wire.ask(response(b"third"))
        assert told.partitionMetadataResponse.error == pb.AuthenticationError
        wire.close()


class HesitantBroker(ScriptedBroker):
    """Answers no CONNECT while it is told not to."""

    def __init__(self, answer: Callable[[pb.BaseCommand], pb.BaseCommand | None]) -> None:
        super().__init__(answer)
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    async def _greet(self, wire: Wire) -> None:
        await self.goes_on.wait()
        await super()._greet(wire)


async def test_nobody_waits_for_the_credentials_of_a_client_that_is_gone(
    start: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests under way are limited: those of a client that cannot answer any more leave room for others."""
    monkeypatch.setattr(client_access, "RENEWAL_SECONDS_MAX", 3_600.0)
    async with HesitantBroker(counted) as broker:
        proxy = await start(broker.service_url)
        wire = await Wire.connected(port_of(proxy), **shown("first"))
        await wire.ask(partitions(1))
        broker.greet = lambda _: error(*REFUSED)
        broker.goes_on.clear()
        await retired(broker.open_wires[-1])
        wire.send(partitions(2))
        await until(lambda: proxy.service.lookups.under_way)
        wire.close()
        await until(lambda: not proxy.service._sessions)
        assert proxy.service.lookups.under_way == 1
        broker.goes_on.set()
        await until(lambda: not proxy.service.lookups.under_way)


async def retired(wire: Wire) -> None:
    """The broker asks for other credentials on a connection for lookups, which is not used for further requests."""
    wire.send(challenge(REFRESH))
    async with asyncio.timeout(30):
        while not wire.reader.at_eof():
            await asyncio.sleep(0.005)


# --- certificates


async def test_client_certificates_at_the_proxys_port(start: StartProxy, tmp_path: Path) -> None:
    authority = TestAuthority(tmp_path)
    server = authority.issue("proxy", "IP:127.0.0.1")
    client = authority.issue("maker")
    tls = TlsSettings(
        certificate_file=server.certificate_file,
        key_file=server.key_file,
        trust_certificates_file=authority.certificate_file,
    )
    connect = connect_command(auth_method_name="tls")
    async with ScriptedBroker(counted) as broker:
        for required in (False, True):
            proxy = await start(
                broker.service_url,
                access=access((TLS_PROVIDER,)),
                broker_client=replace(OWN, forward_credentials=True),
                service_port_tls=0,
                tls=replace(tls, require_client_certificate=required),
            )
            context = ssl.create_default_context(cafile=authority.certificate_file)
            context.load_cert_chain(client.certificate_file, client.key_file)
            port = proxy.settings.service_port_tls
            wire = Wire(*await asyncio.open_connection("127.0.0.1", port, ssl=context))
            assert (await wire.ask(connect)).type == pb.BaseCommand.CONNECTED
            await wire.ask(partitions(1))
            wire.close()
            seen = broker.connects.pop()
            assert (seen.original_principal, seen.auth_data) == ("maker", b"own")
            assert not seen.HasField("original_auth_data")
            # Without TLS, or without a certificate, the method alone is nothing.
            assert await refusal(port_of(proxy), auth_method_name="tls") == REFUSED
            plain = ssl.create_default_context(cafile=authority.certificate_file)
            bare = Wire(*await asyncio.open_connection("127.0.0.1", port, ssl=plain))
            if required:
                with contextlib.suppress(ssl.SSLError, ConnectionError):
                    assert await bare.reader.read() == b""
            else:
                assert (await bare.ask(connect)).error.error == pb.AuthenticationError
            bare.close()


async def test_settings_that_cannot_be(start: StartProxy) -> None:
    with pytest.raises(SettingError, match="authorizationEnabled needs authenticationEnabled"):
        ProxyAccessSettings(authorization_enabled=True)
    with pytest.raises(SettingError, match="authorizationProvider is mine"):
        ProxyAccessSettings(authorization_provider="mine")
    with pytest.raises(SettingError, match="tlsEnabledWithBroker is off"):
        await start(
            "pulsar://nowhere:1",
            broker_client=BrokerClientSettings(
                authentication_plugin="tls", authentication_parameters="tlsCertFile:/c,tlsKeyFile:/k"
            ),
        )


async def test_a_challenge_for_the_client_is_never_answered_with_the_proxys_credentials() -> None:
    """The broker was shown the client's: told the proxy's next, it would take the client for the proxy."""

    def challenge(_: pb.CommandConnect) -> pb.BaseCommand:
        asked = pb.CommandAuthChallenge(challenge=pb.AuthData(auth_method_name="token", auth_data=b"more"))
        return pb.BaseCommand(type=pb.BaseCommand.AUTH_CHALLENGE, authChallenge=asked)

    async with ScriptedBroker(raw=True) as broker:
        broker.greet = challenge
        host, _, port = broker.host_and_port.rpartition(":")
        connector = BrokerConnector(ClientCredentials("token", "token:own"), None, 5_000, 5_000)
        client = OriginalClient("", b"theirs", "token", passed_on=True)
        greeting = Greeting(connect=connector.command(None, client, 21), client=client)
        with pytest.raises(PeerError, match="asks for more"):
            await connector.open(BrokerEndpoint(host, int(port), host), lambda _: greeting)
