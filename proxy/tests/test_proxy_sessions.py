"""Connections that are joined with brokers, and those that are not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest
from magnetar.core.clock import SystemClock
from magnetar.core.errors import SettingError
from magnetar.net.splice import Splice
from magnetar.proxy.app import RunningProxy, start_proxy
from magnetar.proxy.joined import CLOSING_SWEEPS_MAX, JoinedConnection
from magnetar.proxy.metrics import render
from magnetar.proxy.service import LOOKUPS_SECONDS_MAX
from magnetar.proxy.settings import BrokerClientSettings, FixedBrokers, ProxySettings, TargetSettings
from magnetar.wire.haproxy import ProxiedConnection, encode_v1, encode_v2
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from proxy.tests.wires import ScriptedBroker, Wire, connect_command

StartProxy = Callable[..., Awaitable[RunningProxy]]


def port_of(proxy: RunningProxy) -> int:
    assert proxy.settings.service_port is not None
    return proxy.settings.service_port


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0.005)


async def refusal(wire: Wire, command: pb.BaseCommand) -> tuple[pb.ServerError, str]:
    """The error that a command is answered with, after which the connection ends."""
    answer = await wire.ask(command)
    assert answer.type == pb.BaseCommand.ERROR, answer
    assert answer.error.request_id == 2**64 - 1
    assert await wire.receive() is None
    wire.close()
    return answer.error.error, answer.error.message


async def test_a_connection_becomes_one_with_the_brokers(start: StartProxy) -> None:
    async with ScriptedBroker(raw=True) as broker:
        proxy = await start("pulsar://nowhere:1")
        wire = await Wire.open(port_of(proxy))
        flags = pb.FeatureFlags(supports_auth_refresh=True, supports_partial_producer=True)
        answer = await wire.ask(
            connect_command(
                client_version="a client",
                protocol_version=19,
                proxy_to_broker_url=broker.host_and_port,
                feature_flags=flags,
                original_principal="admin",
                original_auth_data="x",
                original_auth_method="token",
            )
        )
        assert answer.connected == broker.connected.connected
        connect = broker.connects[0]
        assert (connect.client_version, connect.protocol_version, connect.feature_flags) == ("a client", 19, flags)
        assert connect.proxy_version
        assert connect.auth_method_name == "none"
        assert not connect.HasField("original_principal")
        assert not connect.HasField("original_auth_data")
        assert not connect.HasField("proxy_to_broker_url")
        far = await broker.wires.get()
        # Nothing is read any more: these are no frames.
        wire.writer.write(b"anything " * 100_000)
        assert await far.reader.readexactly(900_000) == b"anything " * 100_000
        far.writer.write(b"back")
        assert await wire.reader.readexactly(4) == b"back"
        assert (proxy.service.received_bytes, proxy.service.active_connections) == (900_004, 1)
        joined = proxy.service.joined[0]
        assert joined.broker_address == f"/{broker.host_and_port}"
        wire.close()
        assert await far.reader.read() == b""
        await until(lambda: not proxy.service.active_connections)
        assert proxy.service.received_bytes == 900_004


async def test_a_broker_that_dies_takes_its_clients_connections_with_it(start: StartProxy) -> None:
    async with ScriptedBroker(raw=True) as broker:
        proxy = await start("pulsar://nowhere:1")
        wires = [await Wire.connected(port_of(proxy), proxy_to_broker_url=broker.host_and_port) for _ in range(20)]
        broker.stop()
        assert [await wire.receive() for wire in wires] == [None] * 20
        for wire in wires:
            wire.close()
        again = await Wire.open(port_of(proxy))
        again.send(connect_command(proxy_to_broker_url=broker.host_and_port))
        assert await again.receive() is None
        again.close()
        assert proxy.service.counters.broker_connection_failures == 1


async def test_targets_that_are_not_allowed(start: StartProxy) -> None:
    async with ScriptedBroker() as broker:
        for targets in (
            TargetSettings(),
            TargetSettings(ports=("*",), host_names=("*.example",)),
            TargetSettings(ports=("*",), addresses=("10.0.0.0/8",)),
        ):
            proxy = await start("pulsar://nowhere:1", targets=targets)
            wire = await Wire.open(port_of(proxy))
            answer = await refusal(wire, connect_command(proxy_to_broker_url=broker.host_and_port))
            assert answer == (pb.ServiceNotReady, "Target broker cannot be validated.")
            assert proxy.service.counters.denied_targets == 1
        assert not broker.connects


@pytest.mark.parametrize("host", ["x" * 64, "a..b", "\x00", "a\nb", "ü" * 300, "-"])
async def test_hosts_that_no_resolver_knows(start: StartProxy, host: str, caplog: pytest.LogCaptureFixture) -> None:
    proxy = await start("pulsar://nowhere:1")
    wire = await Wire.open(port_of(proxy))
    wire.send(connect_command(proxy_to_broker_url=f"{host}:6650"))
    assert await wire.receive() is None
    wire.close()
    assert proxy.service.counters.broker_connection_failures == 1
    assert all(record.levelname == "WARNING" for record in caplog.records)


async def test_only_active_brokers(start: StartProxy) -> None:
    async with ScriptedBroker(raw=True) as broker, ScriptedBroker(raw=True) as other:
        targets = TargetSettings(ports=("*",), only_active=True)
        proxy = await start(broker.service_url, targets=targets)
        wire = await Wire.open(port_of(proxy))
        answer = await refusal(wire, connect_command(proxy_to_broker_url=other.host_and_port))
        assert answer == (pb.ServiceNotReady, "Target broker isn't available.")
        (await Wire.connected(port_of(proxy), proxy_to_broker_url=broker.host_and_port)).close()


async def test_a_brokers_refusal_reaches_the_client(start: StartProxy) -> None:
    async with ScriptedBroker() as broker:
        error = pb.CommandError(request_id=5, error=pb.AuthenticationError, message="Failed to authenticate")
        broker.connected = pb.BaseCommand(type=pb.BaseCommand.ERROR, error=error)
        proxy = await start("pulsar://nowhere:1")
        wire = await Wire.open(port_of(proxy))
        answer = await refusal(wire, connect_command(proxy_to_broker_url=broker.host_and_port))
        assert answer == (pb.AuthenticationError, "Failed to authenticate")


async def test_a_broker_that_asks_who_the_proxy_is(start: StartProxy) -> None:
    async with ScriptedBroker() as broker:
        challenge = pb.BaseCommand(type=pb.BaseCommand.AUTH_CHALLENGE)
        challenge.authChallenge.challenge.auth_method_name = "token"
        challenge.authChallenge.challenge.auth_data = b"PulsarAuthRefresh"
        connected, broker.connected = broker.connected, challenge
        broker._answer = lambda _: connected
        client = BrokerClientSettings(authentication_plugin="token", authentication_parameters="token:abc")
        proxy = await start(broker.service_url, broker_client=client)
        wire = await Wire.connected(port_of(proxy), proxy_to_broker_url=broker.host_and_port)
        assert broker.commands[0].authResponse.response.auth_data == b"abc"
        wire.close()


async def test_what_clients_may_not_say(start: StartProxy) -> None:
    async with ScriptedBroker() as broker:
        proxy = await start("pulsar://nowhere:1")
        ping = pb.BaseCommand(type=pb.BaseCommand.PING, ping=pb.CommandPing())
        early = await Wire.open(port_of(proxy))
        early.send(ping)
        eager = await Wire.open(port_of(proxy))
        eager.send(connect_command(proxy_to_broker_url=broker.host_and_port))
        eager.send(ping)
        twice = await Wire.connected(port_of(proxy))
        twice.send(connect_command())
        large = await Wire.open(port_of(proxy))
        large.writer.write((1 << 20).to_bytes(4, "big"))
        producing = await Wire.connected(port_of(proxy))
        producing.send(
            pb.BaseCommand(
                type=pb.BaseCommand.PRODUCER, producer=pb.CommandProducer(topic="t", producer_id=1, request_id=1)
            )
        )
        for wire in (early, eager, twice, large, producing):
            assert await wire.receive() is None
            wire.close()
        old = await Wire.open(port_of(proxy))
        code, _ = await refusal(old, connect_command(protocol_version=9))
        assert code == pb.NotAllowedError
        await until(lambda: not proxy.service.active_connections)


async def test_no_more_connections_than_allowed(start: StartProxy, caplog: pytest.LogCaptureFixture) -> None:
    proxy = await start("pulsar://nowhere:1", connections_max=3, connections_per_address_max=2)
    wires = [await Wire.connected(port_of(proxy)) for _ in range(2)]
    refused = await Wire.open(port_of(proxy))
    answer = await refused.receive()
    assert answer is not None
    assert answer.error.error == pb.NotAllowedError
    assert answer.error.message.startswith("Reached the maximum number of connections on address")
    assert await refused.receive() is None
    refused.close()
    assert 'pulsar_proxy_rejected_connections_total{reason="address"} 1.0' in render(proxy.service).decode()
    assert proxy.service.refused.total == 1
    await until(lambda: any("a higher maxConcurrentInboundConnectionsPerIp" in line for line in caplog.messages))
    wires.pop().close()
    await until(lambda: proxy.service.active_connections == 1)
    wires.append(await Wire.connected(port_of(proxy)))
    for wire in wires:
        wire.close()


@pytest.mark.parametrize("encode", [encode_v1, encode_v2])
async def test_proxy_headers_are_taken_and_passed_on(
    start: StartProxy, encode: Callable[[ProxiedConnection], bytes]
) -> None:
    proxied = ProxiedConnection("10.9.8.7", 4711, "10.0.0.1", 6650)
    async with ScriptedBroker(raw=True) as broker:
        proxy = await start("pulsar://nowhere:1", proxy_protocol=True)
        wire = await Wire.open(port_of(proxy), encode(proxied))
        answer = await wire.ask(connect_command(proxy_to_broker_url=broker.host_and_port))
        assert answer.type == pb.BaseCommand.CONNECTED
        assert broker.first_bytes[0].startswith(encode_v1(proxied))
        assert proxy.service.joined[0].client_address == "/10.9.8.7:4711"
        wire.close()


@pytest.mark.parametrize("encode", [encode_v1, encode_v2])
async def test_proxy_headers_may_be_passed_on_as_version_2(
    start: StartProxy, encode: Callable[[ProxiedConnection], bytes]
) -> None:
    proxied = ProxiedConnection("10.9.8.7", 4711, "10.0.0.1", 6650)
    async with ScriptedBroker(raw=True) as broker:
        proxy = await start("pulsar://nowhere:1", proxy_protocol=True, proxy_protocol_version=2)
        wire = await Wire.open(port_of(proxy), encode(proxied))
        answer = await wire.ask(connect_command(proxy_to_broker_url=broker.host_and_port))
        assert answer.type == pb.BaseCommand.CONNECTED
        assert broker.first_bytes[0].startswith(encode_v2(proxied))
        wire.close()


async def test_who_brings_no_header_is_passed_on_with_one(start: StartProxy) -> None:
    async with ScriptedBroker(raw=True) as broker:
        proxy = await start("pulsar://nowhere:1", proxy_protocol=True)
        wire = await Wire.connected(port_of(proxy), proxy_to_broker_url=broker.host_and_port)
        own_port = wire.writer.get_extra_info("sockname")[1]
        header = f"PROXY TCP4 127.0.0.1 127.0.0.1 {own_port} {port_of(proxy)}\r\n".encode()
        assert broker.first_bytes[0].startswith(header)
        wire.close()


@pytest.mark.slow
async def test_quiet_clients_are_closed(start: StartProxy) -> None:
    proxy = await start("pulsar://nowhere:1", keep_alive_seconds=0.1)
    silent = await Wire.open(port_of(proxy))
    deaf = await Wire.connected(port_of(proxy))
    alive = await Wire.connected(port_of(proxy))
    answering = asyncio.get_running_loop().create_task(alive.receive())
    assert await silent.receive() is None
    # It is sent PINGs and answers none.
    async with asyncio.timeout(30):
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await deaf.reader.readexactly(1000)
    await until(lambda: proxy.service.active_connections == 1)
    await asyncio.sleep(0.25)
    assert not answering.done()
    assert proxy.service.active_connections == 1
    alive.close()
    assert await answering is None
    silent.close()
    deaf.close()


async def test_quiet_pairs_are_cut_but_slow_ones_are_not(start: StartProxy) -> None:
    async with ScriptedBroker(raw=True) as broker:
        proxy = await start("pulsar://nowhere:1")
        wires = [await Wire.connected(port_of(proxy), proxy_to_broker_url=broker.host_and_port) for _ in range(2)]
        fars = [await broker.wires.get() for _ in range(2)]
        quiet, slow = proxy.service.joined
        fars[1].writer.write(b"x" * (32 << 20))
        near = slow.splice.far
        await until(lambda: near.transport is not None and not near.transport.is_reading())
        for second in range(8):
            wires[1].writer.write(b"!")
            await asyncio.sleep(0.01)
            for joined in (quiet, slow):
                joined.sweep(float(second), 5)
        assert await wires[0].receive() is None
        assert proxy.service.joined == [slow]
        for wire in (*wires, *fars):
            wire.close()
        await until(lambda: not proxy.service.joined)


class UnclosingSplice:
    """One end is gone, and the other takes nothing of the rest."""

    closing = True
    aborted = False

    def abort(self) -> None:
        self.aborted = True


def test_a_pair_that_does_not_manage_to_close_is_cut() -> None:
    splice = UnclosingSplice()
    joined = JoinedConnection(cast(Splice, splice), "client", "host")
    for second in range(CLOSING_SWEEPS_MAX):
        joined.sweep(float(second), 5)
    assert not splice.aborted
    joined.sweep(float(CLOSING_SWEEPS_MAX), 5)
    assert splice.aborted


async def test_rates_of_a_connection(start: StartProxy) -> None:
    async with ScriptedBroker(raw=True) as broker:
        proxy = await start("pulsar://nowhere:1")
        wire = await Wire.connected(port_of(proxy), proxy_to_broker_url=broker.host_and_port)
        joined = proxy.service.joined[0]
        joined.sweep(100.0, None)
        wire.writer.write(b"x" * 600)
        await until(lambda: joined.received_bytes == 600)
        joined.sweep(130.0, None)
        assert joined.byte_rate == 0
        joined.sweep(160.0, None)
        assert (joined.byte_rate, joined.request_rate) == (10.0, 1 / 60)
        wire.close()


@pytest.mark.slow
async def test_a_drain_waits_and_then_closes(start: StartProxy) -> None:
    async with ScriptedBroker(raw=True) as broker:
        proxy = await start("pulsar://nowhere:1")
        joined = await Wire.connected(port_of(proxy), proxy_to_broker_url=broker.host_and_port)
        looking = await Wire.connected(port_of(proxy))
        accepting = [proxy.accepting]
        drain = proxy.start_drain(1.0)
        assert proxy.start_drain(9) is drain
        accepting.append(proxy.accepting)
        assert accepting == [True, False]
        with pytest.raises(ConnectionRefusedError):
            await Wire.open(port_of(proxy))
        far = await broker.wires.get()
        joined.writer.write(b"still here")
        assert await far.reader.readexactly(10) == b"still here"
        assert not drain.done()
        assert await joined.receive() is None
        assert await looking.receive() is None
        await drain
        for wire in (joined, looking):
            wire.close()


async def test_a_drain_ends_with_the_last_client(start: StartProxy) -> None:
    proxy = await start("pulsar://nowhere:1")
    wire = await Wire.connected(port_of(proxy))
    drain = proxy.start_drain(60)
    wire.close()
    async with asyncio.timeout(30):
        await drain


@pytest.mark.slow
async def test_a_drain_is_over_soon_when_no_broker_is_left(start: StartProxy) -> None:
    async with ScriptedBroker(raw=True) as broker:
        proxy = await start("pulsar://nowhere:1")
        joined = await Wire.connected(port_of(proxy), proxy_to_broker_url=broker.host_and_port)
        looking = await Wire.connected(port_of(proxy))
        drain = proxy.start_drain(600)
        await asyncio.sleep(LOOKUPS_SECONDS_MAX + 0.5)
        assert not drain.done()
        (await broker.wires.get()).close()
        async with asyncio.timeout(30):
            assert await joined.receive() is None
            assert await looking.receive() is None
            await drain
        for wire in (joined, looking):
            wire.close()


async def test_settings_that_cannot_be() -> None:
    for settings in (
        ProxySettings(service_port=0),
        ProxySettings(service_port_tls=0, fixed_brokers=FixedBrokers(service_url="pulsar://a:1")),
        ProxySettings(
            fixed_brokers=FixedBrokers(service_url="pulsar://a:1"),
            broker_client=BrokerClientSettings(authentication_plugin="org.apache.pulsar.AuthenticationAthenz"),
        ),
    ):
        with pytest.raises(SettingError):
            await start_proxy(settings, SystemClock())
    with pytest.raises(SettingError):
        ProxySettings(service_port=None)
