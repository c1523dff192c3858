"""`Kubernetes` over HTTP and websockets."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

import httpx2
from magnetar.core.errors import Unavailable
from magnetar.operator.api import Conflict, NotFound, Refused, ServerUnavailable
from magnetar.operator.children.naming import Manifest
from magnetar.operator.plugin.kubernetes import (
    API_VERSIONS,
    FIELD_MANAGER,
    KindMissing,
    LogWish,
    NotAllowed,
    PodPortRefused,
    PodStream,
    path,
)

if TYPE_CHECKING:
    from httpx2.websockets import AsyncWebSocketSession

PAGE_SIZE: Final = 500
"""Objects of one answer, as kubectl asks for them."""

_LINE_BYTES_MAX: Final = 1 << 20
"""A longer line of a log is cut there."""
_MESSAGE_BYTES_MAX: Final = 1 << 24
"""Of a websocket; kubelets send 32 KiB."""
_PING_SECONDS: Final = 30.0
"""Load balancers in front of API servers close connections that say nothing for a minute or more."""

FORWARD_PROTOCOL: Final = "v4.channel.k8s.io"
"""Kubernetes: kubelet's streaming server, port-forward over websockets: each port has two channels, named by a
message's first byte; 0: data, 1: what went wrong. Both begin with a message that has the port's number."""
_DATA: Final = 0
_ERROR: Final = 1
_DIALLED: Final = re.compile(r"forwarding port ([0-9]+)")
_PORT_BYTES: Final = 2


class HttpKubernetes:
    """The API server behind a client that knows its address and shows who the user is."""

    def __init__(self, client: httpx2.AsyncClient, namespace: str, *, given: bool = False) -> None:
        """`given`: the namespace is not the context's."""
        self._client = client
        self.namespace = namespace
        self.context = f" -n {namespace}" if given else ""

    async def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """As `Kubernetes`."""
        response = await self._request("GET", path(kind, namespace, name))
        if response.status_code == httpx2.codes.NOT_FOUND:
            return None
        return _manifest(response)

    async def list(self, kind: str, namespace: str | None, selector: str = "") -> Sequence[Manifest]:
        """As `Kubernetes`."""
        found: list[Manifest] = []
        parameters = {"limit": str(PAGE_SIZE)} | ({"labelSelector": selector} if selector else {})
        while True:
            response = await self._request("GET", path(kind, namespace), params=parameters)
            if response.status_code == httpx2.codes.NOT_FOUND:
                raise KindMissing(f"the Kubernetes cluster does not know {kind}")
            page = _manifest(response)
            found += page["items"]
            if not (following := page["metadata"].get("continue")):
                break
            parameters["continue"] = following
        # Lists have these once, and nobody who takes an object out of one expects it to be without.
        return [{"apiVersion": API_VERSIONS[kind], "kind": kind, **item} for item in found]

    async def patch(self, kind: str, namespace: str, name: str, patch: Mapping[str, Any]) -> Manifest:
        """As `Kubernetes`."""
        response = await self._request(
            "PATCH",
            path(kind, namespace, name),
            params={"fieldManager": FIELD_MANAGER},
            headers={"Content-Type": "application/merge-patch+json"},
            json=patch,
        )
        return _manifest(response)

    async def version(self) -> str:
        """As `Kubernetes`."""
        found: str = _manifest(await self._request("GET", "/version"))["gitVersion"]
        return found

    async def log(self, wish: LogWish) -> AsyncIterator[bytes]:
        """As `Kubernetes`."""
        url = path("Pod", wish.namespace, wish.pod) + "/log"
        with _explained():
            async with self._client.stream(
                "GET", url, params=wish.parameters(), timeout=httpx2.Timeout(10, read=None if wish.follow else 30)
            ) as response:
                if not response.is_success:
                    await response.aread()
                    _fail(response)
                rest = b""
                async for piece in response.aiter_bytes():
                    *lines, rest = (rest + piece).split(b"\n")
                    for line in lines:
                        yield line
                    if len(rest) > _LINE_BYTES_MAX:
                        yield rest
                        rest = b""
                if rest:
                    yield rest

    @contextlib.asynccontextmanager
    async def connect(self, namespace: str, pod: str, port: int) -> AsyncIterator[PodStream]:
        """As `Kubernetes`."""
        url, opened = path("Pod", namespace, pod) + "/portforward", False
        try:
            with _explained():
                async with self._client.websocket(
                    url,
                    params={"ports": str(port)},
                    subprotocols=[FORWARD_PROTOCOL],
                    max_message_size_bytes=_MESSAGE_BYTES_MAX,
                    keepalive_ping_interval_seconds=_PING_SECONDS,
                    # Whoever does not read for a while is slow, not gone; and the ping's answer waits behind the data.
                    keepalive_ping_timeout_seconds=None,
                ) as session:
                    opened = True
                    yield _ForwardStream(session)
        except NotAllowed:
            if opened:
                raise
            right = "pods/portforward (get; create too, for API servers from 1.35 on)"
            raise NotAllowed(f"you may not reach ports of pods in namespace {namespace}: {right}") from None
        except BaseExceptionGroup as group:
            raise _first(group) from None

    async def _request(self, method: str, url: str, **rest: Any) -> httpx2.Response:
        with _explained():
            return await self._client.request(method, url, **rest)


class _ForwardStream:
    def __init__(self, session: AsyncWebSocketSession) -> None:
        self._session = session
        self._begun = {_DATA: False, _ERROR: False}

    async def send(self, data: bytes) -> None:
        with _explained():
            await self._session.send_bytes(b"\0" + data)

    async def receive(self) -> bytes:
        from httpx2.websockets import WebSocketDisconnect

        while True:
            try:
                with _explained():
                    message = await self._session.receive_bytes()
            except WebSocketDisconnect:
                return b""
            channel, data = message[0], message[1:]
            if not self._begun.get(channel, True):
                self._begun[channel] = True
                data = data[_PORT_BYTES:]
            if channel == _ERROR and data:
                raise _forward_error(data.decode("utf-8", "replace").strip())
            if channel == _DATA and data:
                return data


def _forward_error(text: str) -> Unavailable:
    # containerd and CRI-O both quote the dialler of Go's net package.
    if any(words in text for words in ("connection refused", "failed to connect", "dial tcp")):
        port = _DIALLED.search(text)
        return PodPortRefused(f"nothing listens at port {port[1]}" if port else text)
    return Unavailable(f"the pod's side of a connection broke: {text.rpartition(': ')[2]}")


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Errors of the connection as ours."""
    from httpx2.websockets import WebSocketDisconnect, WebSocketNetworkError, WebSocketUpgradeError

    try:
        yield
    except WebSocketDisconnect:
        raise
    except WebSocketUpgradeError as error:
        _fail(error.response)
    except WebSocketNetworkError as error:
        raise ServerUnavailable(f"the connection to the API server broke: {error!r}") from None
    except httpx2.TimeoutException:
        raise ServerUnavailable("the API server did not answer in time") from None
    except httpx2.HTTPError as error:
        raise ServerUnavailable(f"the API server cannot be reached: {error}") from None


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one that says most: tasks of the websocket's library fail together with ours."""
    leaves: list[BaseException] = []

    def walk(inner: BaseExceptionGroup[BaseException]) -> None:
        for error in inner.exceptions:
            if isinstance(error, BaseExceptionGroup):
                walk(error)
            else:
                leaves.append(error)

    walk(group)
    ours = [error for error in leaves if isinstance(error, Unavailable | Refused)]
    return (ours or leaves)[0]


def _manifest(response: httpx2.Response) -> Manifest:
    if not response.is_success:
        _fail(response)
    found: Manifest = response.json()
    return found


def _fail(response: httpx2.Response) -> NoReturn:
    text = _message(response)
    status, codes = response.status_code, httpx2.codes
    if status in (codes.UNAUTHORIZED, codes.FORBIDDEN):
        raise NotAllowed(text)
    if status == codes.NOT_FOUND:
        raise NotFound(text)
    if status == codes.CONFLICT:
        raise Conflict(text)
    if status == codes.TOO_MANY_REQUESTS or status >= codes.INTERNAL_SERVER_ERROR:
        raise ServerUnavailable(text)
    raise Refused(text)


def _message(response: httpx2.Response) -> str:
    """The server's own words, if it has any."""
    try:
        found = response.json()
    except (ValueError, httpx2.ResponseNotRead):
        return f"{response.status_code} {response.reason_phrase} of {response.request.url.path}"
    return str(found.get("message") or found) if isinstance(found, dict) else str(found)
