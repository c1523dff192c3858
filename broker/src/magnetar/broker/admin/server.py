"""The HTTP port of the admin API, lookups and metrics."""

from __future__ import annotations

import asyncio
import importlib
import logging
import socket
from typing import TYPE_CHECKING, Final

from magnetar.broker.context import BrokerContext

if TYPE_CHECKING:
    from aiohttp import web

logger = logging.getLogger(__name__)

LISTEN_BACKLOG: Final = 1024

APPLICATION: Final = "magnetar.broker.admin.application"
"""What is loaded when it is needed."""


class AdminServer:
    """Listens first (the port is part of the broker's name), answers once the broker stands.

    What answers is loaded when somebody first connects, in another thread, while the connection waits in the kernel's
    queue: aiohttp and the resources cost a quarter of the whole start-up time and 15 MB, and many a broker in a test
    is never asked anything by HTTP."""

    def __init__(self, address: str, port: int) -> None:
        self._address = address
        self._port = port
        self._socket: socket.socket | None = None
        self._starting: asyncio.Task[None] | None = None
        self._runner: web.AppRunner | None = None

    async def listen(self) -> int:
        """Take the port; returns which. Raises OSError when it is taken."""
        self._socket = socket.create_server((self._address, self._port), backlog=LISTEN_BACKLOG)
        self._socket.setblocking(False)
        port: int = self._socket.getsockname()[1]
        return port

    async def serve(self, context: BrokerContext) -> None:
        """Answer requests from now on."""
        assert self._socket is not None
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._load, context)

    async def close(self) -> None:
        """Finish the requests under way, then stop."""
        if self._starting is not None:
            await asyncio.wait([self._starting])
        elif self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
        if self._runner is not None:
            await self._runner.cleanup()
        if self._socket is not None:
            self._socket.close()

    def _load(self, context: BrokerContext) -> None:
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket.fileno())
        self._starting = loop.create_task(self._start(context), name="admin-start")
        self._starting.add_done_callback(_report)

    async def _start(self, context: BrokerContext) -> None:
        assert self._socket is not None
        await asyncio.get_running_loop().run_in_executor(None, importlib.import_module, APPLICATION)
        from aiohttp.web import SockSite
        from magnetar.broker.admin.application import make_runner

        self._runner = make_runner(context)
        await self._runner.setup()
        await SockSite(self._runner, self._socket).start()


def _report(starting: asyncio.Task[None]) -> None:
    if not starting.cancelled() and (error := starting.exception()) is not None:
        logger.critical("the admin API cannot start", exc_info=error)
