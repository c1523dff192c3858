"""The plugin's API server over HTTP and websockets, against a small one of our own; and how it is found."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import WSMsgType, web
from kubernetes.aio.client.configuration import Configuration
from magnetar.core.errors import SettingError, Unavailable
from magnetar.operator.kubernetes.errors import (
    Conflict,
    KindMissing,
    NotFound,
    NotPermitted,
    PodPortRefused,
    Refused,
    ServerUnavailable,
)
from magnetar.operator.kubernetes.kinds import path
from magnetar.operator.kubernetes.login import Login
from magnetar.operator.kubernetes.pods import LogOptions
from magnetar.operator.kubernetes.streams import FORWARD_PROTOCOL
from magnetar.operator.plugin.connection import direct_login
from magnetar.operator.plugin.http import HttpKubernetes
from magnetar.operator.plugin.target import Target
from operator_fakes import wire
from operator_fakes.wire import Handler


@contextlib.asynccontextmanager
async def serving(*routes: tuple[str, str, Handler]) -> AsyncIterator[HttpKubernetes]:
    async with wire.serving(routes or [("GET", "/none", answer(500))]) as server:
        kubernetes = HttpKubernetes(server.login(), "messaging")
        try:
            yield kubernetes
        finally:
            await kubernetes.close()


def answer(status: int, **body: Any) -> Handler:
    async def handle(_: web.Request) -> web.Response:
        return web.json_response(body, status=status)

    return handle


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
    [(401, NotPermitted), (403, NotPermitted), (409, Conflict), (422, Refused), (429, ServerUnavailable)]
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
            [line async for line in kubernetes.log(LogOptions(namespace="messaging", pod="a", container="b"))]
        with pytest.raises(NotFound):
            async with kubernetes.connect("messaging", "a", 80):
                raise AssertionError


async def test_no_server_at_all() -> None:
    kubernetes = HttpKubernetes(Login(configuration=Configuration(host="http://127.0.0.1:1")))
    with pytest.raises(ServerUnavailable, match=r"does not answer \(get the version\): Cannot connect to host"):
        await kubernetes.version()
    await kubernetes.close()


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

    options = LogOptions(namespace="messaging", pod="a", container="broker", tail_lines=3, previous=True)
    async with serving(("GET", path("Pod", "messaging", "a") + "/log", log)) as kubernetes:
        assert [line async for line in kubernetes.log(options)] == [b"one", b"two", b"three"]


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


async def test_simple_kubeconfigs_are_read_by_ourselves(tmp_path: Path) -> None:
    file = kubeconfig(tmp_path, {"token": "abc"})
    for target, environment in ((Target(kubeconfig=file), {}), (Target(), {"KUBECONFIG": file})):
        found = await direct_login(target, environment)
        assert found is not None
        assert (found.namespace, found.configuration.host) == ("messaging", "https://10.0.0.1:6443")
        assert found.configuration.api_key == {"BearerToken": "Bearer abc"}


@pytest.mark.parametrize(
    ("user", "cluster"),
    [
        ({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "login"}}, {}),
        ({"auth-provider": {"name": "oidc"}}, {}),
        ({"token": "abc", "as": "somebody"}, {}),
        ({"token": "abc"}, {"proxy-url": "http://proxy:3128"}),
        ({"token": "abc"}, {"tls-server-name": "kubernetes"}),
        ({}, {}),
    ],
)
async def test_other_ways_to_log_in_are_left_to_kubectl(
    tmp_path: Path, user: dict[str, Any], cluster: dict[str, Any]
) -> None:
    assert await direct_login(Target(kubeconfig=kubeconfig(tmp_path, user, cluster)), {}) is None


async def test_several_files_are_left_to_kubectl(tmp_path: Path) -> None:
    file = kubeconfig(tmp_path, {"token": "abc"})
    assert await direct_login(Target(), {"KUBECONFIG": f"{file}:{file}"}) is None


async def test_what_is_no_kubeconfig_is_said(tmp_path: Path) -> None:
    file = kubeconfig(tmp_path, {"token": "abc"})
    with pytest.raises(SettingError, match="contexts: here"):
        await direct_login(Target(kubeconfig=file, context="there"), {})
    with pytest.raises(SettingError, match="cannot be read"):
        await direct_login(Target(kubeconfig=str(tmp_path / "none")), {})
    Path(file).write_text("- nothing")
    with pytest.raises(SettingError, match="is no kubeconfig"):
        await direct_login(Target(kubeconfig=file), {})
