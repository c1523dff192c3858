from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
import pytest
from magnetar.control.client import RECONNECT_SECONDS_MAX, ControlChannel
from magnetar.control.errors import ControlUnavailable
from magnetar.control.settings import ControlClientTls
from magnetar.metadata.etcd_access import read_access
from magnetar.metadata.etcd_client import EtcdClient
from magnetar.metadata.generated import etcd_pb2 as pb
from magnetar.metadata.store import StoreUnavailable
from magnetar.net.free_ports import free_port


@pytest.mark.parametrize("who", ["control", "etcd"])
async def test_calls_go_past_the_environments_proxy(monkeypatch: pytest.MonkeyPatch, who: str) -> None:
    """It would see the control port's token, and reach neither pods nor what is forwarded to this machine."""
    came: list[bytes] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(await reader.readline())
        writer.close()

    proxy = await asyncio.start_server(accept, "127.0.0.1", 0)
    for name in ("grpc_proxy", "https_proxy", "http_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}")
    for name in ("no_grpc_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    address = f"127.0.0.1:{free_port()}"
    if who == "control":
        channel = ControlChannel(address, token="secret")
        with pytest.raises(ControlUnavailable):
            await channel.healthy()
        await channel.close()
    else:
        client = EtcdClient(read_access(f"etcd:{address}"), operation_timeout_ms=500)
        with pytest.raises(StoreUnavailable):
            await client.range(pb.RangeRequest(key=b"/"))
        await client.close()
    proxy.close()
    await proxy.wait_closed()
    assert came == []


async def test_a_component_that_is_back_is_not_left_alone_for_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC itself tries less and less often, every two minutes in the end."""
    given: list[Any] = []
    secure, insecure = grpc.aio.secure_channel, grpc.aio.insecure_channel

    def noted(make: Any) -> Any:
        def channel(*arguments: Any, options: Any) -> Any:
            given.append(dict(options))
            return make(*arguments, options=options)

        return channel

    monkeypatch.setattr(grpc.aio, "secure_channel", noted(secure))
    monkeypatch.setattr(grpc.aio, "insecure_channel", noted(insecure))
    for tls in (None, ControlClientTls(server_name="bookie")):
        await ControlChannel("127.0.0.1:1", tls=tls).close()
    assert [options["grpc.max_reconnect_backoff_ms"] for options in given] == [RECONNECT_SECONDS_MAX * 1000] * 2
