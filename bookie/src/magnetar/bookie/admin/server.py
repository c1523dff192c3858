"""The bookie's HTTP port. Importing this module loads neither aiohttp nor prometheus_client; `start` does."""

from __future__ import annotations

import asyncio
import importlib
import ssl
from typing import TYPE_CHECKING, Final

from magnetar.bookie.operations import BookieOperations
from magnetar.net.http.connections import SERVER_LOG, HttpConnections
from magnetar.net.http.pace import LINE_BYTES_MAX, HttpLimits

if TYPE_CHECKING:
    from aiohttp import web

APPLICATION: Final = "magnetar.bookie.admin.application"
METRICS: Final = "magnetar.bookie.admin.metrics"
CONNECTIONS_MAX: Final = 256
"""At a time: operators' tools and what scrapes metrics. Beyond it the one goes that has asked for nothing for the
longest."""
SHUTDOWN_SECONDS: Final = 2.0
"""Requests under way may end within this time when the server closes."""


class BookieHttpServer:
    """Serves BookKeeper's HTTP routes and `/metrics` of one bookie, or `/metrics` alone.

    BookKeeper's settings: with `httpServerEnabled` all of it at `httpServerPort`; without, `/metrics` alone at
    `prometheusStatsHttpPort`, unless `prometheusStatsHttpEnable` is false."""

    def __init__(
        self, operations: BookieOperations, *, tls: ssl.SSLContext | None = None, metrics_only: bool = False
    ) -> None:
        self._operations = operations
        self._tls = tls
        self._metrics_only = metrics_only
        self._runner: web.AppRunner | None = None
        self._connections: HttpConnections | None = None
        self.port = 0
        """The port that the server listens on, known after `start`."""

    async def start(self, host: str, port: int) -> None:
        """Take the port (0: any free one) and answer. OSError when it is taken. Loading takes about 0.2 s of another
        thread, once a process."""
        loop = asyncio.get_running_loop()
        for module in (APPLICATION, METRICS):
            await loop.run_in_executor(None, importlib.import_module, module)
        from aiohttp import web
        from magnetar.bookie.admin.application import BODY_BYTES_MAX, make_application
        from magnetar.bookie.admin.metrics import BookieMetrics

        render = BookieMetrics(self._operations).render
        connections = HttpConnections(
            HttpLimits(connections_max=CONNECTIONS_MAX, body_bytes_max=BODY_BYTES_MAX),
            self._operations.measures.counters.refused_connections,
        )
        application = make_application(self._operations, render, connections, metrics_only=self._metrics_only)
        runner = web.AppRunner(
            application,
            access_log=None,
            logger=SERVER_LOG,
            shutdown_timeout=SHUTDOWN_SECONDS,
            auto_decompress=False,
            max_line_size=LINE_BYTES_MAX,
            max_field_size=LINE_BYTES_MAX,
        )
        await runner.setup()
        assert runner.server is not None
        try:
            self.port = await connections.listen(runner.server, host, port, self._tls)
        except BaseException:
            await runner.cleanup()
            raise
        self._runner, self._connections = runner, connections

    async def close(self) -> None:
        """Finish the requests under way, then stop. Closing twice is no error."""
        runner, self._runner = self._runner, None
        connections, self._connections = self._connections, None
        if connections is not None:
            connections.stop_listening()
        if runner is not None:
            await runner.cleanup()
        if connections is not None:
            await connections.close()
