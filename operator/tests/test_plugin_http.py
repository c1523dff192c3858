"""The plugin's API server over HTTP and websockets, against a small one of our own; and how it is found."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from aiohttp import WSMsgType, web
from magnetar.core.errors import SettingError, Unavailable
from magnetar.operator.api import Conflict, NotFound, Refused, ServerUnavailable
from magnetar.operator.plugin.connection import Target, direct_config
from magnetar.operator.plugin.http import FORWARD_PROTOCOL, HttpKubernetes
from magnetar.operator.plugin.kubernetes import KindMissing, LogWish, NotAllowed, PodPortRefused, path

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def serving(*routes: tuple[str, str, Handler]) -> AsyncIterator[HttpKubernetes]:
    application = web.Application()
    for method, where, handler in routes:
        application.router.add_route(method, where, handler)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        port = runner.addresses[0][1]
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            yield HttpKubernetes(client, "messaging", given=True)
    finally:
        await runner.cleanup()


def answer(status: int, **body: Any) -> Handler:
    async def handle(_: web.Request) -> web.Response:
        return web.json_response(body, status=status)

    return handle


def test_paths() -> None:
    assert path("Pod", "messaging", "a") == "/api/v1/namespaces/messaging/pods/a"
    assert path("PulsarCluster", None) == "/apis/pulsar.magnetar.dev/v1alpha1/pulsarclusters"
    assert path("NetworkPolicy", "x") == "/apis/networking.k8s.io/v1/namespaces/x/networkpolicies"
    assert path("StorageClass", "x") == "/apis/storage.k8s.io/v1/storageclasses"


async def test_lists_come_page_by_page_and_say_their_kind() -> None:
    async def pods(request: web.Request) -> web.Response:
        assert request.query["labelSelector"] == "a=b"
        if request.query.get("continue") == "next":
            return web.json_response({"metadata": {}, "items": [{"metadata": {"name": "two"}}]})
        return web.json_response({"metadata": {"continue": "next"}, "items": [{"metadata": {"name": "one"}}]})

    async with serving(("GET", path("Pod", "messaging"), pods)) as kubernetes:
        found = await kubernetes.list("Pod", "messaging", "a=b")
    assert [(one["kind"], one["apiVersion"], one["metadata"]["name"]) for one in found] == [
        ("Pod", "v1", "one"),
        ("Pod", "v1", "two"),
    ]
    assert kubernetes.context == " -n messaging"


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, NotAllowed), (403, NotAllowed), (409, Conflict), (422, Refused), (429, ServerUnavailable)]
    + [(503, ServerUnavailable), (404, NotFound)],
)
async def test_refusals(status: int, kind: type[Exception]) -> None:
    async with serving(("PATCH", path("Pod", "messaging", "a"), answer(status, message="because"))) as kubernetes:
        with pytest.raises(kind, match="because"):
            await kubernetes.patch("Pod", "messaging", "a", {})


async def test_what_is_not_there() -> None:
    async with serving() as kubernetes:
        assert await kubernetes.get("Pod", "messaging", "a") is None
        with pytest.raises(KindMissing):
            await kubernetes.list("PulsarCluster", None)
        with pytest.raises(NotFound):
            [line async for line in kubernetes.log(LogWish(namespace="messaging", pod="a", container="b"))]
        with pytest.raises(NotFound):
            async with kubernetes.connect("messaging", "a", 80):
                raise AssertionError


async def test_no_server_at_all() -> None:
    async with httpx2.AsyncClient(base_url="http://127.0.0.1:1") as client:
        with pytest.raises(ServerUnavailable, match="cannot be reached"):
            await HttpKubernetes(client, "messaging").version()


async def test_lines_of_logs() -> None:
    async def log(request: web.Request) -> web.StreamResponse:
        assert dict(request.query) == {
            "container": "broker",
            "timestamps": "true",
            "tailLines": "3",
            "previous": "true",
        }
        response = web.StreamResponse()
        await response.prepare(request)
        for piece in (b"one\ntw", b"o\n", b"three"):
            await response.write(piece)
        return response

    wish = LogWish(namespace="messaging", pod="a", container="broker", tail_lines=3, previous=True)
    async with serving(("GET", path("Pod", "messaging", "a") + "/log", log)) as kubernetes:
        assert [line async for line in kubernetes.log(wish)] == [b"one", b"two", b"three"]


def forwarding(talk: Callable[[web.WebSocketResponse], Awaitable[None]]) -> tuple[str, str, Handler]:
    """As kubelets do it."""

    async def handle(request: web.Request) -> web.StreamResponse:
        assert request.query["ports"] == "6650"
        socket = web.WebSocketResponse(protocols=[FORWARD_PROTOCOL])
        await socket.prepare(request)
        for channel in (b"\0", b"\1"):
            await socket.send_bytes(channel + (6650).to_bytes(2, "little"))
        await talk(socket)
        await socket.close()
        return socket

    return "GET", path("Pod", "messaging", "a") + "/portforward", handle


async def test_a_port_of_a_pod() -> None:
    async def talk(socket: web.WebSocketResponse) -> None:
        async for message in socket:
            assert message.type is WSMsgType.BINARY
            await socket.send_bytes(message.data)
            if message.data == b"\0bye":
                return

    async with serving(forwarding(talk)) as kubernetes, kubernetes.connect("messaging", "a", 6650) as stream:
        await stream.send(b"x" * 70_000)
        received = b""
        while len(received) < 70_000:
            received += await stream.receive()
        assert received == b"x" * 70_000
        await stream.send(b"bye")
        assert await stream.receive() == b"bye"
        assert await stream.receive() == b""


@pytest.mark.parametrize(
    ("words", "kind", "said"),
    [
        ("error forwarding port 6650 to pod x: failed to connect to localhost:6650", PodPortRefused, "at port 6650"),
        ("error forwarding port 6650 to pod x: read: connection reset by peer", Unavailable, "reset by peer"),
    ],
)
async def test_what_a_kubelet_says_of_a_port(words: str, kind: type[Exception], said: str) -> None:
    async def talk(socket: web.WebSocketResponse) -> None:
        await socket.send_bytes(b"\1" + words.encode())

    async with serving(forwarding(talk)) as kubernetes:
        with pytest.raises(kind, match=said):
            async with kubernetes.connect("messaging", "a", 6650) as stream:
                await asyncio.wait_for(stream.receive(), 30)


# --- kubeconfigs


def kubeconfig(folder: Path, user: dict[str, Any], cluster: dict[str, Any] | None = None) -> str:
    found = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "messaging"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443"} | (cluster or {})}],
        "users": [{"name": "u", "user": user}],
    }
    file = folder / "config"
    file.write_text(yaml.safe_dump(found))
    return str(file)


def test_simple_kubeconfigs_are_read_by_ourselves(tmp_path: Path) -> None:
    file = kubeconfig(tmp_path, {"token": "abc"})
    for target, environment in ((Target(kubeconfig=file), {}), (Target(), {"KUBECONFIG": file})):
        found = direct_config(target, environment)
        assert found is not None
        assert (found.context_name, found.namespace, found.cluster.server) == (
            "here",
            "messaging",
            "https://10.0.0.1:6443",
        )


@pytest.mark.parametrize(
    ("user", "cluster"),
    [
        ({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "login"}}, {}),
        ({"auth-provider": {"name": "oidc"}}, {}),
        ({"token": "abc", "as": "somebody"}, {}),
        ({"token": "abc"}, {"proxy-url": "http://proxy:3128"}),
        ({"token": "abc"}, {"tls-server-name": "kubernetes"}),
    ],
)
def test_other_ways_to_log_in_are_left_to_kubectl(
    tmp_path: Path, user: dict[str, Any], cluster: dict[str, Any]
) -> None:
    assert direct_config(Target(kubeconfig=kubeconfig(tmp_path, user, cluster)), {}) is None


def test_several_files_are_left_to_kubectl(tmp_path: Path) -> None:
    file = kubeconfig(tmp_path, {"token": "abc"})
    assert direct_config(Target(), {"KUBECONFIG": f"{file}:{file}"}) is None


def test_what_is_no_kubeconfig_is_said(tmp_path: Path) -> None:
    file = kubeconfig(tmp_path, {"token": "abc"})
    with pytest.raises(SettingError, match="contexts: here"):
        direct_config(Target(kubeconfig=file, context="there"), {})
    with pytest.raises(SettingError, match="cannot be read"):
        direct_config(Target(kubeconfig=str(tmp_path / "none")), {})
    Path(file).write_text("- nothing")
    with pytest.raises(SettingError, match="is no kubeconfig"):
        direct_config(Target(kubeconfig=file), {})
