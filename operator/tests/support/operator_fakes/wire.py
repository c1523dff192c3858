"""An API server that says what it is told to say, and remembers what it was asked."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
from aiohttp import web
from kubernetes.aio.client.configuration import Configuration
from magnetar.operator.kubernetes.login import Login

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One request."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    content: bytes


class ScriptedKubernetes:
    """Answers in turn. A 401 is answered twice: the client logs in anew and asks again."""

    def __init__(self) -> None:
        self.requests: list[RecordedRequest] = []
        self.answers: list[Handler] = []
        self.port = 0

    def login(self) -> Login:
        """The way here."""
        return Login(configuration=Configuration(host=f"http://127.0.0.1:{self.port}"), namespace="messaging")

    def replies(self, code: int, content: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Next, with these bytes."""

        async def answer(_: web.Request) -> web.Response:
            return web.Response(status=code, body=content, headers=headers)

        self.answers += [answer] * (2 if code == 401 else 1)

    def says(self, content: Mapping[str, Any], code: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """Next, with this JSON."""
        self.replies(code, msgspec.json.encode(content), headers)

    def fails(self, code: int, message: str = "m", reason: str = "", field: str = "") -> None:
        """Next, with Kubernetes' `Status`."""
        causes = {"causes": [{"field": field}]} if field else {}
        self.says({"kind": "Status", "message": message, "reason": reason, "details": causes}, code)

    def breaks(self) -> None:
        """Next: cut the connection."""

        async def answer(request: web.Request) -> web.Response:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()

        self.answers.append(answer)

    def waits(self) -> None:
        """Next: say nothing until the client has gone."""

        async def answer(_: web.Request) -> web.Response:
            await asyncio.Event().wait()
            raise AssertionError

        self.answers.append(answer)

    @property
    def last(self) -> RecordedRequest:
        """The latest request."""
        return self.requests[-1]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Whatever is asked."""
        asked = RecordedRequest(
            request.method, request.path, dict(request.query), request.headers, await request.read()
        )
        self.requests.append(asked)
        return await self.answers.pop(0)(request)


@contextlib.asynccontextmanager
async def serving(routes: Sequence[tuple[str, str, Handler]] = ()) -> AsyncIterator[ScriptedKubernetes]:
    """A server on this machine. What `routes` do not have (method, path and handler each) is answered in turn, and by
    404 if they have anything."""
    wire = ScriptedKubernetes()
    application = web.Application()
    for method, where, handler in routes or [("*", "/{rest:.*}", wire.answer)]:
        application.router.add_route(method, where, handler)
    runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    wire.port = runner.addresses[0][1]
    try:
        yield wire
    finally:
        await runner.cleanup()
