"""The proxy's HTTP ports: its own pages, and everything else passed on to brokers. Importing this loads aiohttp."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeAlias

from aiohttp import web
from magnetar.net.http.connections import SERVER_LOG, HttpConnections
from magnetar.net.http.pace import HttpLimits, head_bytes_max
from magnetar.net.tls import ServerTls
from magnetar.proxy import metrics
from magnetar.proxy.gate import IDENTITY, UNAUTHORIZED, HttpGate, NotAllowed
from magnetar.proxy.reverse import ReverseProxy
from magnetar.proxy.service import ProxyService

SHUTDOWN_SECONDS: Final = 2.0
"""Requests under way may end within this time when the server closes."""

PASSED_ON: Final = ("/admin", "/lookup")
"""What is the brokers' business; Pulsar's proxy passes on the same."""

METRICS: Final = "/metrics"
STATISTICS: Final = "/proxy-stats"

_PRECONDITION_FAILED: Final = 412

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


class WebServer:
    """One application on one port or two."""

    def __init__(
        self, service: ProxyService, reverse: ReverseProxy, gate: HttpGate | None, ready: Callable[[], bool]
    ) -> None:
        """`gate` is None where nobody is authenticated."""
        self._service = service
        self._reverse = reverse
        self._gate = gate
        self._ready = ready
        http = service.settings.http
        self._http = HttpConnections(
            HttpLimits(
                connections_max=http.connections_max,
                connections_setting="maxHttpServerConnections",
                body_bytes_max=http.replay_bytes_max,
                line_bytes_max=http.header_bytes_max,
                head_bytes_max=head_bytes_max(http.header_bytes_max),
                head_setting="httpMaxRequestHeaderSize",
            ),
            service.refused,
        )
        application = web.Application(middlewares=[self._paced, _returned, *([] if gate is None else [self._checked])])
        application.router.add_get("/status.html", self._status)
        application.router.add_get(METRICS, self._metrics)
        application.router.add_get(METRICS + "/", self._metrics)
        if http.statistics:
            application.router.add_get(STATISTICS + "/connections", self._connections)
            application.router.add_get(STATISTICS + "/topics", self._topics)
        for folder in PASSED_ON:
            application.router.add_route("*", folder, reverse.handle)
            application.router.add_route("*", folder + "/{rest:.*}", reverse.handle)
        self._runner = web.AppRunner(
            application,
            access_log=None,
            logger=SERVER_LOG,
            shutdown_timeout=SHUTDOWN_SECONDS,
            max_line_size=http.header_bytes_max,
            max_field_size=http.header_bytes_max,
            # Bodies pass as they are.
            auto_decompress=False,
        )

    async def start(self) -> None:
        """Begin; `listen` opens ports."""
        await self._runner.setup()

    async def listen(self, host: str, port: int, tls: ServerTls | None = None) -> int:
        """Open a port (0: any free one); returns which. OSError when it is taken."""
        assert self._runner.server is not None
        return await self._http.listen(self._runner.server, host, port, None if tls is None else tls.context)

    async def close(self) -> None:
        """Finish the requests under way, then stop."""
        self._http.stop_listening()
        await self._reverse.close()
        await self._runner.cleanup()
        await self._http.close()

    @web.middleware
    async def _paced(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        return await self._http.serve(request, handler)

    @web.middleware
    async def _checked(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        gate, path = self._gate, request.path
        assert gate is not None
        try:
            if path.startswith(STATISTICS):
                await gate.enter_statistics(request)
            elif path.startswith(PASSED_ON):
                request[IDENTITY] = await gate.enter(request)
            elif path.startswith(METRICS) and not gate.metrics_open:
                await gate.enter(request)
        except NotAllowed as refusal:
            self._service.counters.authentication_failures += 1
            return web.json_response({"reason": str(refusal)}, status=UNAUTHORIZED)
        return await handler(request)

    async def _status(self, _: web.Request) -> web.Response:
        file = self._service.settings.http.status_file
        if file and not Path(file).exists():  # noqa: ASYNC240  (one look at a local file)
            return web.Response(status=404)
        if not self._ready():
            return web.Response(status=503, text="draining")
        return web.Response(text="OK")

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=metrics.render(self._service), headers={"Content-Type": metrics.CONTENT_TYPE})

    async def _connections(self, _: web.Request) -> web.Response:
        return web.json_response(
            [
                {
                    "requestRate": joined.request_rate,
                    "byteRate": joined.byte_rate,
                    "clientAddress": joined.client_address,
                    "brokerAddress": joined.broker_address,
                }
                for joined in self._service.joined
            ]
        )

    async def _topics(self, _: web.Request) -> web.Response:
        # Pulsar's proxy reads all messages for these where proxyLogLevel says so; this one reads none, ever.
        reason = {"reason": "Proxy doesn't have logging level 2"}
        return web.json_response(reason, status=_PRECONDITION_FAILED)


@web.middleware
async def _returned(request: web.Request, handler: Handler) -> web.StreamResponse:
    """aiohttp's errors as responses (`HttpConnections.serve`)."""
    try:
        return await handler(request)
    except web.HTTPException as answer:
        return web.Response(body=answer.body, status=answer.status, reason=answer.reason, headers=answer.headers)
