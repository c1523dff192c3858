"""Bounds of a proxy that are given back, kept, and do not cut off who does nothing wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from magnetar.net.connection import Connection
from magnetar.net.testing import SilentClient, until
from magnetar.proxy import lookups
from magnetar.proxy.app import RunningProxy
from magnetar.proxy.session import TURN_COMMANDS_MAX, ProxySession
from magnetar.wire.pulsar import messages
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb

from proxy.tests.wires import ScriptedBroker, Wire, connect_command

StartProxy = Callable[..., Awaitable[RunningProxy]]


def port_of(proxy: RunningProxy) -> int:
    assert proxy.settings.service_port is not None
    return proxy.settings.service_port


def lookup(request_id: int) -> pb.BaseCommand:
    return pb.BaseCommand(
        type=pb.BaseCommand.LOOKUP, lookupTopic=pb.CommandLookupTopic(request_id=request_id, topic="t")
    )


def located(command: pb.BaseCommand) -> pb.BaseCommand:
    return pb.BaseCommand(
        type=pb.BaseCommand.LOOKUP_RESPONSE,
        lookupTopicResponse=pb.CommandLookupTopicResponse(
            request_id=command.lookupTopic.request_id,
            response=pb.CommandLookupTopicResponse.Connect,
            brokerServiceUrl="pulsar://owner:6650",
        ),
    )


async def session_of(proxy: RunningProxy) -> ProxySession:
    await until(lambda: proxy.service._sessions)
    (session,) = proxy.service._sessions
    assert isinstance(session, ProxySession)
    return session


async def test_what_answered_requests_brought_counts_no_more(
    start: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    size_bytes = len(messages.encode_command(lookup(1)))
    monkeypatch.setattr(lookups, "UNDER_WAY_BYTES_MAX", 3 * size_bytes)
    async with ScriptedBroker(located) as broker:
        proxy = await start(broker.service_url)
        wire = await Wire.connected(port_of(proxy))
        for request_id in range(10):
            answer = await wire.ask(lookup(request_id))
            assert answer.lookupTopicResponse.response == pb.CommandLookupTopicResponse.Connect
        wire.close()


async def test_links_that_are_waited_for_stay(start: StartProxy) -> None:
    async with ScriptedBroker() as broker:  # It answers nothing.
        proxy = await start(broker.service_url)
        links = proxy.service._links
        links._links_max = 2
        wires = [
            await Wire.connected(port_of(proxy), auth_method_name="token", auth_data=b"%d" % number)
            for number in range(2)
        ]
        first = next(iter(links._links))
        waiting = asyncio.ensure_future(links.ask(first, lookup(1)))
        await until(lambda: links._links[first].waited_for)
        # Once there is one too many, until the next look.
        for number, kept in ((2, {b"0", b"2"}), (3, {b"0", b"2", b"3"}), (4, {b"0", b"4"})):
            data = b"%d" % number
            wires.append(await Wire.connected(port_of(proxy), auth_method_name="token", auth_data=data))
            assert {key.client.auth_data for key in links._links} == kept
        assert not waiting.done()
        for wire in wires:
            wire.close()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def test_the_link_that_was_used_last_goes_last(start: StartProxy) -> None:
    async with ScriptedBroker(located) as broker:
        proxy = await start(broker.service_url)
        links = proxy.service._links
        links._links_max = 2
        wires = [
            await Wire.connected(port_of(proxy), auth_method_name="token", auth_data=b"%d" % number)
            for number in range(2)
        ]
        first, _ = links._links
        await links.ask(first, lookup(1))
        wires.append(await Wire.connected(port_of(proxy), auth_method_name="token", auth_data=b"2"))
        assert first in links._links
        for wire in wires:
            wire.close()


async def test_commands_are_served_in_the_order_in_which_they_came(
    start: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that are read while others wait for their turn."""
    served: list[int] = []

    def noted(session: ProxySession, command: pb.BaseCommand, size_bytes: int) -> None:
        served.append(command.lookupTopic.request_id)

    proxy = await start("pulsar://nowhere:1")
    wire = await Wire.connected(port_of(proxy))
    session = await session_of(proxy)
    monkeypatch.setattr(ProxySession, "_serve_lookup_connection", noted)
    count = 2 * TURN_COMMANDS_MAX + 10
    for first in (0, count):
        session.data_received(b"".join(messages.encode_command(lookup(first + number)) for number in range(count)))
    await until(lambda: len(served) == 2 * count)
    assert served == list(range(2 * count))
    wire.close()


async def test_who_says_more_than_connect_before_connected_is_cut(start: StartProxy) -> None:
    async with ScriptedBroker() as broker:
        broker.greet = lambda connect: pb.BaseCommand(type=pb.BaseCommand.PING, ping=pb.CommandPing())  # Never in.
        proxy = await start(broker.service_url)
        wire = await Wire.open(port_of(proxy))
        connect = connect_command(auth_method_name="token", auth_data=b"t")
        wire.writer.write(messages.encode_command(connect) + (100).to_bytes(4, "big") + bytes(50))
        assert await wire.receive() is None
        wire.close()


async def test_a_client_that_may_not_be_read_is_not_taken_for_dead(start: StartProxy) -> None:
    proxy = await start("pulsar://nowhere:1")
    client = await SilentClient.open(port_of(proxy))
    await client.send(messages.encode_command(connect_command()))
    session = await session_of(proxy)
    await until(lambda: session.state.name == "LOOKUP")
    session.connection.pause_reading("a test")
    for _ in range(5):
        session.tick()
        await asyncio.sleep(0)
    assert not session.connection.closed
    session.connection.resume_reading("a test")
    session.tick()
    session.tick()
    await until(lambda: session.connection.closed)
    client.close()


async def test_a_client_that_takes_nothing_of_what_it_is_sent_is_cut(
    start: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = await start("pulsar://nowhere:1")
    client = await SilentClient.open(port_of(proxy))
    await client.send(messages.encode_command(connect_command()))
    session = await session_of(proxy)
    await until(lambda: session.state.name == "LOOKUP")
    moved = [1, 2, 2]
    monkeypatch.setattr(Connection, "moved_bytes", property(lambda _: moved[0]))
    session.connection.writable = False
    for expected in (False, False, True):
        session._received = True
        session.tick()
        await asyncio.sleep(0.01)
        assert session.connection.closed is expected
        moved.pop(0)
    client.close()
