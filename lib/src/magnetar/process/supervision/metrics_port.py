"""The metrics of several processes at one port. Importing this module loads aiohttp."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from aiohttp import ClientError, ClientSession, ClientTimeout, hdrs, web
from magnetar.core.limits import MIB
from magnetar.net.http.connections import SERVER_LOG, HttpConnections
from magnetar.net.http.pace import LINE_BYTES_MAX, HttpLimits
from magnetar.process.supervision.child import Child, ChildState
from magnetar.process.supervision.joined_metrics import LABEL, joined

logger: Final = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 64
"""What scrapes metrics; beyond it the one goes that has asked for nothing for the longest."""
REQUESTS_MAX: Final = 4
"""At a time: each holds the metrics of all processes in memory. Others wait."""
METRICS_BYTES_MAX: Final = 64 * MIB
"""Of one process: some hundred thousand lines, more than a scrape takes."""
SCRAPE_SECONDS: Final = 10.0
"""Prometheus waits so long for an answer, by default."""
ANSWER_SECONDS_MAX: Final = SCRAPE_SECONDS / 2
"""For a process to tell its metrics: one that hangs is left out before the scrape of all is given up."""
SHUTDOWN_SECONDS: Final = 2.0
TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"


WebHandler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


class MetricsPort:
    """Answers `/metrics` with those of all processes, each sample with its process as a label.

    A process that does not answer is left out; `magnetar_process_up` tells of it."""

    def __init__(self, children: Sequence[Child]) -> None:
        self._children = children
        self._session: ClientSession | None = None
        self._runner: web.AppRunner | None = None
        self._connections: HttpConnections | None = None
        self._places = asyncio.Semaphore(REQUESTS_MAX)
        self.port = 0
        """Known after `start`."""

    async def start(self, host: str, port: int) -> None:
        """Take the port (0: any free one) and answer. OSError when it is taken."""
        connections = self._connections = HttpConnections(HttpLimits(connections_max=CONNECTIONS_MAX))

        @web.middleware
        async def paced(request: web.Request, handler: WebHandler) -> web.StreamResponse:
            return await connections.serve(request, handler)

        application = web.Application(middlewares=[paced])
        for path in ("/metrics", "/metrics/"):
            application.router.add_get(path, self._answer)
        self._session = ClientSession(timeout=ClientTimeout(total=ANSWER_SECONDS_MAX))
        self._runner = runner = web.AppRunner(
            application,
            access_log=None,
            logger=SERVER_LOG,
            shutdown_timeout=SHUTDOWN_SECONDS,
            max_line_size=LINE_BYTES_MAX,
            max_field_size=LINE_BYTES_MAX,
        )
        await runner.setup()
        assert runner.server is not None
        self.port = await connections.listen(runner.server, host, port)

    async def close(self) -> None:
        """Finish the requests under way, then stop. Twice is no error."""
        connections, self._connections = self._connections, None
        if connections is not None:
            connections.stop_listening()
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()
        if connections is not None:
            await connections.close()
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _answer(self, request: web.Request) -> web.Response:
        # Who the process wants to know is whoever asks here.
        shown = request.headers.get(hdrs.AUTHORIZATION)
        headers: dict[str, str] = {} if shown is None else {hdrs.AUTHORIZATION: shown}
        async with self._places:
            told = await asyncio.gather(*(self._metrics_of(child, headers) for child in self._children))
            texts = {
                str(child.plan.number): text
                for child, text in zip(self._children, told, strict=True)
                if text is not None
            }
            text = await asyncio.get_running_loop().run_in_executor(None, joined, texts)
        return web.Response(body=(self._own() + text).encode(), headers={hdrs.CONTENT_TYPE: TEXT})

    def _own(self) -> str:
        lines = ["# TYPE magnetar_process_up gauge"]
        for child in self._children:
            up = int(child.state is ChildState.SERVING)
            lines.append(f'magnetar_process_up{{{LABEL}="{child.plan.number}"}} {up}')
        lines.append("# TYPE magnetar_process_restarts_total counter")
        lines.extend(
            f'magnetar_process_restarts_total{{{LABEL}="{child.plan.number}"}} {child.restarts.count}'
            for child in self._children
        )
        return "".join(f"{line}\n" for line in lines)

    async def _metrics_of(self, child: Child, headers: dict[str, str]) -> str | None:
        if child.state is not ChildState.SERVING or self._session is None:
            return None
        try:
            async with self._session.get(child.plan.metrics_url, headers=headers) as answer:
                content = bytearray()
                async for part in answer.content.iter_any():
                    content += part
                    if len(content) > METRICS_BYTES_MAX:
                        logger.warning("process %d tells more than %d bytes", child.plan.number, METRICS_BYTES_MAX)
                        return None
                if answer.status != 200:
                    logger.warning("process %d tells no metrics: HTTP %d", child.plan.number, answer.status)
                    return None
        except (ClientError, TimeoutError) as error:
            logger.warning("process %d tells no metrics: %s", child.plan.number, repr(error))
            return None
        return content.decode(errors="replace")
