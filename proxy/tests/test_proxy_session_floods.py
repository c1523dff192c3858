"""What one client may make a proxy hold: bounded, whatever it asks for and whether it reads; gone when it is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from magnetar.core.limits import CLIENT_VERSION_CHARACTERS_MAX, CONNECT_FRAME_BYTES_MAX, KIB, MIB
from magnetar.net.connection import Connection
from magnetar.net.refused_connections import LimitKind
from magnetar.net.requests import REQUESTS_BYTES_MAX, REQUESTS_MAX
from magnetar.net.splice import Splice, SpliceEnd
from magnetar.net.testing import LIVING_PAUSE_SECONDS, SilentClient, TestAuthority, living, until
from magnetar.net.tls import TlsSettings
from magnetar.proxy import lookups
from magnetar.proxy.app import RunningProxy
from magnetar.proxy.client_access import ClientAccess
from magnetar.proxy.session import TURN_COMMANDS_MAX, ProxySession
from magnetar.wire.framing import FrameSplitter
from magnetar.wire.pulsar import messages
from magnetar.wire.pulsar.frame import command_splitter
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from proxy.tests.wires import ScriptedBroker, Wire, connect_command

StartProxy = Callable[..., Awaitable[RunningProxy]]

UNSENT_BYTES_MAX = 2 * MIB
LISTED = [f"persistent://public/default/{'long' * 20}-{index}" for index in range(3_000)]
"""Some 300 KB."""


def port_of(proxy: RunningProxy) -> int:
    assert proxy.settings.service_port is not None
    return proxy.settings.service_port


@pytest.mark.parametrize(("proxy_protocol", "cut"), [(False, 4), (True, 0)])
async def test_the_limit_of_an_address_counts_tls_handshakes(
    start: StartProxy, tmp_path: Path, *, proxy_protocol: bool, cut: int
) -> None:
    """Unless the address is that of a load balancer, which names its clients later."""
    own = TestAuthority(tmp_path).issue("proxy")
    proxy = await start(
        "pulsar://nowhere:1",
        service_port_tls=0,
        tls=TlsSettings(certificate_file=own.certificate_file, key_file=own.key_file),
        connections_per_address_max=2,
        proxy_protocol=proxy_protocol,
    )
    halves = [await asyncio.open_connection("127.0.0.1", proxy.settings.service_port_tls) for _ in range(6)]
    await until(lambda: proxy.arriving + proxy.service.refused.counts[LimitKind.HANDSHAKES_OF_ADDRESS] == 6)
    assert proxy.arriving == 6 - cut
    for reader, _ in halves[:cut]:
        assert await reader.read() == b""
    for _, writer in halves:
        writer.close()
    await until(lambda: not proxy.arriving)


def list_request(number: int) -> bytes:
    request = pb.CommandGetTopicsOfNamespace(request_id=number, namespace="public/default")
    return messages.encode_command(
        pb.BaseCommand(type=pb.BaseCommand.GET_TOPICS_OF_NAMESPACE, getTopicsOfNamespace=request)
    )


def listed(command: pb.BaseCommand) -> pb.BaseCommand:
    """The broker's answer."""
    return pb.BaseCommand(
        type=pb.BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE,
        getTopicsOfNamespaceResponse=pb.CommandGetTopicsOfNamespaceResponse(
            request_id=command.getTopicsOfNamespace.request_id, topics=LISTED
        ),
    )


async def test_answers_that_nobody_reads_are_bounded(start: StartProxy) -> None:
    """And all come once the client reads."""
    async with ScriptedBroker(listed) as broker:
        proxy = await start(f"pulsar://{broker.host_and_port}")
        client = await SilentClient.open(port_of(proxy))
        count = REQUESTS_MAX + 20
        await client.send(messages.encode_command(connect_command()))
        await client.send(b"".join(map(list_request, range(count))))
        await until(lambda: proxy.service._sessions)
        (session,) = proxy.service._sessions
        await until(lambda: session.connection.unsent_bytes)
        for _ in range(300):
            assert session.connection.unsent_bytes <= UNSENT_BYTES_MAX
            await asyncio.sleep(0.001)
        assert proxy.service.lookups.under_way <= 1
        assert proxy.service.requests.count == REQUESTS_MAX
        splitter = command_splitter()
        frames = 0
        async with asyncio.timeout(30):
            while frames < 1 + count:
                frames += len(splitter.feed(await client.read(1))[1]) // 2
        client.close()
        await until(lambda: not proxy.service.requests.count)


async def test_frames_are_small_before_a_client_is_let_in(start: StartProxy) -> None:
    proxy = await start("pulsar://nowhere:1")
    wire = await Wire.open(port_of(proxy))
    wire.writer.write((CONNECT_FRAME_BYTES_MAX + 1).to_bytes(4, "big"))
    assert await wire.receive() is None
    wire.close()


async def test_what_a_client_says_on_a_lookup_connection_is_small(start: StartProxy) -> None:
    async with ScriptedBroker(listed) as broker:
        proxy = await start(f"pulsar://{broker.host_and_port}")
        wire = await Wire.open(port_of(proxy))
        connect = connect_command()
        connect.connect.client_version = "v" * 100_000
        wire.writer.write(messages.encode_command(connect))
        assert await wire.receive() is not None
        (session,) = proxy.service._sessions
        assert isinstance(session, ProxySession)
        assert session._client_version == "v" * CLIENT_VERSION_CHARACTERS_MAX
        wire.writer.write((CONNECT_FRAME_BYTES_MAX + 1).to_bytes(4, "big"))
        assert await wire.receive() is None
        wire.close()


async def test_one_client_takes_a_turn_of_the_loop_like_all_others(
    start: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many commands one read brings."""
    served: list[int] = []
    serve_some = ProxySession._serve_some

    def counted(session: ProxySession, data: bytes = b"") -> None:
        served.append(0)
        serve_some(session, data)

    def serve(session: ProxySession, command: pb.BaseCommand, size_bytes: int) -> None:
        served[-1] += 1
        original(session, command, size_bytes)

    original = ProxySession._serve
    monkeypatch.setattr(ProxySession, "_serve_some", counted)
    monkeypatch.setattr(ProxySession, "_serve", serve)
    proxy = await start("pulsar://nowhere:1")
    ping = messages.encode_command(pb.BaseCommand(type=pb.BaseCommand.PING, ping=pb.CommandPing()))
    count = 10 * TURN_COMMANDS_MAX
    client = await SilentClient.open(port_of(proxy))
    await client.send(messages.encode_command(connect_command()) + ping * count)
    splitter = command_splitter()
    frames = 0
    async with asyncio.timeout(30):
        while frames < 1 + count:
            frames += len(splitter.feed(await client.read(1))[1]) // 2
    assert max(served) <= TURN_COMMANDS_MAX
    (session,) = proxy.service._sessions
    assert not session.connection.reading_paused
    client.close()


async def test_a_mistake_of_ours_ends_one_connection_and_holds_up_no_other(
    start: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a later turn, where nobody but the session would see it."""
    original = ProxySession._serve_lookup_connection
    pings = 0

    def serve(session: ProxySession, command: pb.BaseCommand, size_bytes: int) -> None:
        nonlocal pings
        pings += 1
        if pings == 2 * TURN_COMMANDS_MAX:
            raise ValueError("a mistake of ours")
        original(session, command, size_bytes)

    monkeypatch.setattr(ProxySession, "_serve_lookup_connection", serve)
    proxy = await start("pulsar://nowhere:1")
    ping = messages.encode_command(pb.BaseCommand(type=pb.BaseCommand.PING, ping=pb.CommandPing()))
    client = await SilentClient.open(port_of(proxy))
    await client.send(messages.encode_command(connect_command()) + ping * 10 * TURN_COMMANDS_MAX)
    await until(lambda: pings >= 2 * TURN_COMMANDS_MAX)
    await until(lambda: not proxy.service._sessions)
    client.close()
    other = await SilentClient.open(port_of(proxy))
    count = 3 * TURN_COMMANDS_MAX
    await other.send(messages.encode_command(connect_command()) + ping * count)
    splitter = command_splitter()
    frames = 0
    async with asyncio.timeout(30):
        while frames < 1 + count:
            frames += len(splitter.feed(await other.read(1))[1]) // 2
    other.close()


async def test_a_half_frame_counts_as_held(start: StartProxy) -> None:
    proxy = await start("pulsar://nowhere:1")
    client = await SilentClient.open(port_of(proxy))
    await client.send(messages.encode_command(connect_command()) + CONNECT_FRAME_BYTES_MAX.to_bytes(4, "big"))
    await client.send(bytes(CONNECT_FRAME_BYTES_MAX - 1))
    await until(lambda: proxy.service._sessions)
    (session,) = proxy.service._sessions
    await until(lambda: session.connection.held_bytes >= CONNECT_FRAME_BYTES_MAX)
    client.close()


async def test_large_requests_under_way_are_bounded_by_their_bytes(
    start: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one connection, and of all."""
    name_bytes = 100 * KIB
    lookup = pb.CommandLookupTopic(request_id=1, topic="persistent://public/default/" + "a" * name_bytes)
    request = messages.encode_command(pb.BaseCommand(type=pb.BaseCommand.LOOKUP, lookupTopic=lookup))
    monkeypatch.setattr(lookups, "UNDER_WAY_BYTES_MAX", 12 * len(request))
    async with ScriptedBroker() as broker:  # It answers nothing.
        proxy = await start(f"pulsar://{broker.host_and_port}")
        clients = [await SilentClient.open(port_of(proxy)) for _ in range(2)]
        await clients[0].send(messages.encode_command(connect_command()) + request * 30)
        await until(lambda: len(broker.commands) == REQUESTS_BYTES_MAX // name_bytes + 1)
        await clients[1].send(messages.encode_command(connect_command()) + request * 3)
        splitter = command_splitter()
        frames = 0
        async with asyncio.timeout(30):
            while frames < 3:  # CONNECTED, and two refusals.
                frames += len(splitter.feed(await clients[1].read(1))[1]) // 2
        await until(lambda: len(broker.commands) == proxy.service.lookups.under_way == 12)
        for client in clients:
            client.close()
        broker.stop()
        await until(lambda: not proxy.service.lookups.under_way)


async def test_links_in_the_name_of_clients_that_have_gone_are_bounded(start: StartProxy) -> None:
    async with ScriptedBroker() as broker:
        proxy = await start(f"pulsar://{broker.host_and_port}")
        links = proxy.service._links
        links._links_max = 3
        for number in range(10):
            wire = await Wire.connected(port_of(proxy), auth_method_name="token", auth_data=b"%d" % number)
            wire.close()
            assert len(links._links) <= 3
        assert len(broker.connects) == 10
        await until(lambda: sum(not wire.reader.at_eof() for wire in broker.open_wires) == 3)
        links._links_max = 0
        for number in range(10, 13):
            wire = await Wire.open(port_of(proxy))
            wire.send(connect_command(auth_method_name="token", auth_data=b"%d" % number))
            assert await wire.receive() is None
            wire.close()
        assert len(broker.connects) == 10


OF_A_CONNECTION = (ProxySession, Connection, FrameSplitter, ClientAccess, Splice, SpliceEnd)


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("how", ["nothing said", "half a frame", "lookups", "joined"])
async def test_what_a_connection_had_is_freed_with_it(start: StartProxy, how: str) -> None:
    async with ScriptedBroker(raw=how == "joined") as broker:
        proxy = await start(f"pulsar://{broker.host_and_port}")
        before = living(*OF_A_CONNECTION)
        wire = await Wire.open(port_of(proxy))
        if how == "half a frame":
            wire.writer.write((64 * KIB).to_bytes(4, "big") + bytes(50 * KIB))
        elif how == "lookups":
            await wire.ask(connect_command())
        elif how == "joined":
            await wire.ask(connect_command(proxy_to_broker_url=broker.host_and_port))
            far = await broker.wires.get()
            wire.writer.write(b"anything")
            assert await far.reader.readexactly(8) == b"anything"
            before["FrameSplitter"] += 1  # Of the broker's side.
        # Not by what lives: something of an earlier test may have ended since it was counted.
        await until(lambda: proxy.service.active_connections)
        wire.close()
        del wire  # It has a splitter, too.
        await until(
            lambda: not proxy.service.active_connections and not living(*OF_A_CONNECTION) - before,
            pause_seconds=LIVING_PAUSE_SECONDS,
        )
