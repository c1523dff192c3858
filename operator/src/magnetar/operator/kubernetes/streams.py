"""What comes of pods as it happens: lines of logs, and connections to ports."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from http.client import responses
from typing import Final

import aiohttp
from magnetar.core.errors import MagnetarError, Unavailable
from magnetar.operator.kubernetes.client import KubernetesClient, wire_errors
from magnetar.operator.kubernetes.errors import Answer, NotPermitted, PodPortRefused, ServerUnavailable
from magnetar.operator.kubernetes.kinds import path
from magnetar.operator.kubernetes.pods import LogOptions, PodStream

LOG_SILENT_SECONDS_MAX: Final = 30.0
"""How long a log that is not followed may be silent."""
_LINE_BYTES_MAX: Final = 1 << 20
"""A longer line of a log is cut there."""
_PING_SECONDS: Final = 30.0
"""Load balancers in front of API servers close connections that say nothing for a minute or more."""

FORWARD_PROTOCOL: Final = "v4.channel.k8s.io"
"""Kubernetes: kubelet's streaming server, port-forward over websockets: each port has two channels, named by a
message's first byte; 0: data, 1: what went wrong. Both begin with a message that has the port's number."""
_DATA: Final = 0
_ERROR: Final = 1
_DIALLED: Final = re.compile(r"forwarding port ([0-9]+)")
_PORT_BYTES: Final = 2


async def log_lines(client: KubernetesClient, options: LogOptions) -> AsyncIterator[bytes]:
    """Lines without their ends. Raises `API_ERRORS`."""
    call = f"read the log of {options.pod}"
    where = path("Pod", options.namespace, options.pod) + "/log"
    silent_seconds_max = None if options.follow else LOG_SILENT_SECONDS_MAX
    opened = client.opened(call, "GET", where, query=options.parameters(), silent_seconds_max=silent_seconds_max)
    with wire_errors(call):
        async with opened as response:
            rest = b""
            async for piece in response.content.iter_any():
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    yield line
                if len(rest) > _LINE_BYTES_MAX:
                    yield rest
                    rest = b""
            if rest:
                yield rest


@contextlib.asynccontextmanager
async def port_forward(client: KubernetesClient, namespace: str, pod: str, port: int) -> AsyncIterator[PodStream]:
    """A connection to a port of a pod, by the API server. Raises `API_ERRORS`."""
    call = f"connect to {pod}"
    async with contextlib.AsyncExitStack() as stack:
        # Around the opening alone: errors of the block are others'.
        with wire_errors(call):
            try:
                where = path("Pod", namespace, pod) + "/portforward"
                opened = client.websocket(where, {"ports": str(port)}, FORWARD_PROTOCOL)
                socket = await stack.enter_async_context(opened)
            except aiohttp.WSServerHandshakeError as error:
                raise _not_opened(client, call, namespace, error.status) from None
        await stack.enter_async_context(_pinged(socket))
        yield _ForwardStream(socket)


def _not_opened(client: KubernetesClient, call: str, namespace: str, status: int) -> MagnetarError:
    """The package leaves the server's own words unread."""
    error = client.failure_of(call, Answer(status, responses.get(status, "").encode()))
    if isinstance(error, NotPermitted):
        right = "pods/portforward (get; create too, for API servers from 1.35 on)"
        return NotPermitted(f"you may not reach ports of pods in namespace {namespace}: {right}")
    return error


@contextlib.asynccontextmanager
async def _pinged(socket: aiohttp.ClientWebSocketResponse) -> AsyncIterator[None]:
    """aiohttp's own heartbeat would cut who does not read for a while: the answer to a ping waits behind the data."""

    async def ping() -> None:
        while True:
            await asyncio.sleep(_PING_SECONDS)
            await socket.ping()

    task = asyncio.create_task(ping())
    try:
        yield
    finally:
        task.cancel()
        # A ping that fails tells nothing that the next read does not.
        await asyncio.gather(task, return_exceptions=True)


class _ForwardStream:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._begun = {_DATA: False, _ERROR: False}

    async def send(self, data: bytes) -> None:
        try:
            await self._socket.send_bytes(bytes((_DATA,)) + data)
        except (aiohttp.ClientError, OSError) as error:
            raise _broken(error) from None

    async def receive(self) -> bytes:
        while True:
            message = await self._socket.receive()
            if message.type is aiohttp.WSMsgType.ERROR:
                raise _broken(message.data)
            if message.type is not aiohttp.WSMsgType.BINARY:
                if self._socket.close_code == aiohttp.WSCloseCode.ABNORMAL_CLOSURE:
                    raise _broken("it ended without a word")
                return b""
            if not message.data:
                continue
            channel, data = message.data[0], message.data[1:]
            if not self._begun.get(channel, True):
                self._begun[channel] = True
                data = data[_PORT_BYTES:]
            if channel == _ERROR and data:
                raise _forward_error(data.decode("utf-8", "replace").strip())
            if channel == _DATA and data:
                return bytes(data)


def _broken(why: object) -> ServerUnavailable:
    return ServerUnavailable(f"the connection to the API server broke: {why}")


def _forward_error(text: str) -> Unavailable:
    # containerd and CRI-O both quote the dialler of Go's net package.
    if any(words in text for words in ("connection refused", "failed to connect", "dial tcp")):
        port = _DIALLED.search(text)
        return PodPortRefused(f"nothing listens at port {port[1]}" if port else text)
    return Unavailable(f"the pod's side of a connection broke: {text.rpartition(': ')[2]}")
