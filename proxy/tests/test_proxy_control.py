"""The control port of a proxy."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from magnetar.control.client import ControlChannel
from magnetar.control.errors import ControlRefused
from magnetar.control.generated import proxy_pb2 as messages
from magnetar.control.generated.proxy_pb2_grpc import ProxyStub
from magnetar.control.settings import ControlSettings
from magnetar.proxy.app import RunningProxy
from magnetar.proxy.control import SERVICE, ProxyControlPort

from proxy.tests.wires import ScriptedBroker, Wire

StartProxy = Callable[..., Awaitable[RunningProxy]]


async def test_state_and_drain_by_the_control_port(start: StartProxy) -> None:
    async with ScriptedBroker(raw=True) as broker:
        proxy = await start(broker.service_url)
        port = ProxyControlPort(ControlSettings(host="127.0.0.1"), proxy)
        await port.start()
        channel = ControlChannel(f"127.0.0.1:{port.port}")
        stub = ProxyStub(channel.channel)
        assert proxy.settings.service_port is not None
        wire = await Wire.connected(proxy.settings.service_port, proxy_to_broker_url=broker.host_and_port)
        looking = await Wire.connected(proxy.settings.service_port)
        state = await channel.ask(stub.GetProxyState, messages.GetProxyStateRequest())
        assert (state.accepting, state.connections, state.joined_connections, state.brokers) == (True, 2, 1, 1)
        assert await channel.healthy(SERVICE)
        with pytest.raises(ControlRefused, match="at least 50"):
            await anext(channel.each(stub.DrainProxy, messages.DrainProxyRequest(interval_ms=10)))
        told = []
        async for state in channel.each(stub.DrainProxy, messages.DrainProxyRequest(limit_ms=60_000, interval_ms=50)):
            told.append((state.accepting, state.connections))
            if len(told) == 1:
                assert not await channel.healthy(SERVICE)
                looking.close()
            elif len(told) == 2:
                wire.close()
        assert told == [(False, 2), (False, 1), (False, 0)]
        await channel.close()
        async with asyncio.timeout(30):
            await port.close()
