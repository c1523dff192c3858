"""Ports that lead to pods: many connections, pods that refuse or go, clients that say no more."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from magnetar.operator.plugin import port_forward
from magnetar.operator.plugin.commands.connect import url_host
from magnetar.operator.plugin.port_forward import Forwarding, forwarded
from magnetar.operator.plugin.ready_pods import ReadyPods
from operator_fakes.plugin_fakes import NAMESPACE, FakeKubernetes, pod_manifest

PORT = 6650


@contextlib.asynccontextmanager
async def echo(answer: bytes = b"") -> AsyncIterator[int]:
    """A server that says everything again, after who it is."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(answer)
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def leading(kubernetes: FakeKubernetes, *pods: str, **rest: object) -> AsyncIterator[Forwarding]:
    async def names() -> list[str]:
        return list(pods)

    forwarding = Forwarding(kubernetes=kubernetes, namespace=NAMESPACE, pods=names, pod_port=PORT, **rest)  # type: ignore[arg-type]  # Of few kinds.
    async with forwarded(forwarding, address="127.0.0.1", port=0) as found:
        yield found


async def exchange(port: int, data: bytes, *, end: bool = False) -> bytes:
    """What comes back for it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        if end:
            writer.write_eof()
            return await reader.read()
        return await reader.readexactly(len(data))
    finally:
        writer.close()
        await writer.wait_closed()


async def test_many_connections_at_once() -> None:
    kubernetes = FakeKubernetes()
    async with echo() as one, echo() as two, leading(kubernetes, "a", "b") as forwarding:
        kubernetes.ports = {("a", PORT): one, ("b", PORT): two}
        data = [bytes([number]) * 50_000 for number in range(60)]
        assert await asyncio.gather(*(exchange(forwarding.port, each) for each in data)) == data
    assert set(kubernetes.connected) == {"a", "b"}
    assert forwarding.open_connections == 0


async def test_a_pod_that_refuses_is_passed_over_and_nothing_is_lost() -> None:
    said: list[str] = []
    kubernetes = FakeKubernetes()
    async with echo() as good, leading(kubernetes, "bad", "good", said=said.append) as forwarding:
        kubernetes.ports = {("good", PORT): good}
        for _ in range(4):
            assert await exchange(forwarding.port, b"x" * 100_000) == b"x" * 100_000
    assert "bad" in kubernetes.connected
    assert said == []


async def test_connections_wait_for_a_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_forward, "WAIT_STEP_SECONDS", 0.01)
    said: list[str] = []
    pods: list[str] = []

    async def names() -> list[str]:
        return pods

    kubernetes = FakeKubernetes()
    forwarding = Forwarding(kubernetes=kubernetes, namespace=NAMESPACE, pods=names, pod_port=PORT, said=said.append)
    async with echo() as port, forwarded(forwarding, address="127.0.0.1", port=0):
        kubernetes.ports = {("late", PORT): port}
        waiting = asyncio.create_task(exchange(forwarding.port, b"hello"))
        while not said:
            await asyncio.sleep(0.005)
        pods.append("late")
        assert await waiting == b"hello"
    assert said[0] == "no pod is ready; waiting"


async def test_it_gives_up_and_says_why() -> None:
    said: list[str] = []
    async with leading(FakeKubernetes(), "bad", said=said.append, wait_seconds_max=0.0) as forwarding:
        assert await exchange(forwarding.port, b"hello", end=True) == b""
    assert said == [f"bad: nothing listens at port {PORT}"]


async def test_who_says_no_more_still_hears(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_forward, "HALF_CLOSED_SECONDS", 0.05)
    kubernetes = FakeKubernetes()
    async with echo(b"I am a. ") as port, leading(kubernetes, "a") as forwarding:
        kubernetes.ports = {("a", PORT): port}
        assert await exchange(forwarding.port, b"hello", end=True) == b"I am a. hello"


async def test_ready_pods_are_looked_up_once_a_second() -> None:
    now = [0.0]
    kubernetes = FakeKubernetes(
        pod_manifest("demo-proxy-a", "proxy"),
        pod_manifest("demo-proxy-b", "proxy", ready=False),
        pod_manifest("demo-broker-a", "broker"),
        pod_manifest("other-proxy-a", "proxy", cluster="other"),
    )
    pods = ReadyPods(kubernetes, NAMESPACE, "demo", "proxy", clock=lambda: now[0])
    assert await pods.names() == ["demo-proxy-a"]
    kubernetes.put(pod_manifest("demo-proxy-b", "proxy"))
    assert await pods.names() == ["demo-proxy-a"]
    now[0] = 1.0
    assert await pods.names() == ["demo-proxy-a", "demo-proxy-b"]
    assert [pod.name for pod in await pods.all()] == ["demo-proxy-a", "demo-proxy-b"]


@pytest.mark.parametrize(
    ("address", "host"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]"), ("0.0.0.0", "127.0.0.1"), ("me", "me")]
)
def test_urls_name_what_is_listened_on(address: str, host: str) -> None:
    assert url_host(address) == host
