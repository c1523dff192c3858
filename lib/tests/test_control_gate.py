"""What those may do at a control port who have no token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]  # It has no types.
from magnetar.control import gate
from magnetar.control.gate import OPEN_CALLS_MAX
from magnetar.control.server import REQUEST_BYTES_MAX, STREAMS_PER_CONNECTION_MAX, ControlServer
from magnetar.control.settings import ControlSettings

TOKEN = "secret"
SHOWN = (("authorization", f"Bearer {TOKEN}"),)
CHECK = "/grpc.health.v1.Health/Check"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
PATIENCE_SECONDS = 30.0


@pytest.fixture
async def address() -> AsyncIterator[str]:
    server = ControlServer(ControlSettings(host="127.0.0.1", token=TOKEN, stop_grace_seconds=0))
    await server.start([])
    yield f"127.0.0.1:{server.port}"
    await server.close()


async def code_of(call: Any) -> grpc.StatusCode:
    async with asyncio.timeout(PATIENCE_SECONDS):
        code: grpc.StatusCode = await call.code()
    return code


async def healthy(channel: grpc.aio.Channel) -> bool:
    answer = await health_pb2_grpc.HealthStub(channel).Check(
        health_pb2.HealthCheckRequest(service="liveness"), timeout=PATIENCE_SECONDS, wait_for_ready=True
    )
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


async def test_health_is_for_everybody_and_watching_it_is_not(address: str) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        assert await healthy(channel)
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service="liveness")
        assert await code_of(stub.Watch(request)) is grpc.StatusCode.UNAUTHENTICATED
        watching = stub.Watch(request, metadata=SHOWN)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert (await watching.read()).status == health_pb2.HealthCheckResponse.SERVING
        watching.cancel()


async def test_who_has_no_token_is_refused_before_he_says_what_he_wants(address: str) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        # Nothing is ever written on it.
        assert await code_of(channel.stream_stream(REFLECTION)()) is grpc.StatusCode.UNAUTHENTICATED
        wrong: Any = channel.stream_stream(REFLECTION)(metadata=(("authorization", "Bearer x"),))
        assert await code_of(wrong) is grpc.StatusCode.UNAUTHENTICATED


async def test_calls_without_requests_take_no_places_from_others(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "OPEN_SECONDS_MAX", 0.5)
    channels = [grpc.aio.insecure_channel(address, options=(("grpc.use_local_subchannel_pool", 1),)) for _ in range(6)]
    try:
        calls: list[Any] = [
            channel.stream_unary(CHECK)() for channel in channels for _ in range(STREAMS_PER_CONNECTION_MAX)
        ]
        assert len(calls) > OPEN_CALLS_MAX + 256
        async with grpc.aio.insecure_channel(address) as channel:
            reflected: Any = channel.stream_stream(REFLECTION)(metadata=SHOWN)
            async with asyncio.timeout(PATIENCE_SECONDS):
                await reflected.done_writing()
                assert await reflected.code() is grpc.StatusCode.OK
        codes = {await code_of(call) for call in calls}
        assert codes == {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED}
        async with grpc.aio.insecure_channel(address) as channel:
            assert await healthy(channel)
    finally:
        for channel in channels:
            await channel.close()


async def test_requests_and_headers_have_a_limit(address: str) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        large = health_pb2.HealthCheckRequest(service="x" * REQUEST_BYTES_MAX)
        assert await code_of(health_pb2_grpc.HealthStub(channel).Check(large)) is not grpc.StatusCode.OK
        header = (("x-large", "x" * 100_000),)
        request = health_pb2.HealthCheckRequest()
        call = health_pb2_grpc.HealthStub(channel).Check(request, metadata=header)
        assert await code_of(call) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await healthy(channel)
