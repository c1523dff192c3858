"""The HTTP port of the admin API, lookups and metrics."""

from __future__ import annotations

import asyncio
import importlib
import logging
import socket
from typing import TYPE_CHECKING, Final, Self

from magnetar.broker.context import BrokerContext
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.shared_ports import SharedPortSettings
from magnetar.net.accepting import known_host
from magnetar.net.http.connections import HttpConnections
from magnetar.net.tls import ServerTls

if TYPE_CHECKING:
    from aiohttp import web

logger: Final = logging.getLogger(__name__)

LISTEN_BACKLOG: Final = 1024

ALONE: Final = SharedPortSettings()
"""No port is shared with others."""

APPLICATION: Final = "magnetar.broker.admin.application"
"""The module of the admin API's application, loaded when it is needed."""


class AdminServer:
    """Listens first (the port is part of the broker's name), answers once the broker stands.

    What answers is loaded when somebody first connects, in another thread, while the connection waits in the kernel's
    queue: aiohttp and the resources cost a quarter of the whole start-up time and 15 MB, and many a broker in a test
    is never asked anything by HTTP."""

    def __init__(
        self,
        address: str,
        port: int,
        *,
        port_tls: int | None = None,
        tls: ServerTls | None = None,
        shared: SharedPortSettings = ALONE,
    ) -> None:
        """`port_tls` is a second port, served with `tls`; at the `shared` ones other processes answer too."""
        self._address = address
        self._port = port
        self._tls = tls
        self.port_tls = port_tls
        """Once it listens: the port in use."""
        self._shared = shared
        self._sockets: list[socket.socket] = []
        self._with_tls: set[socket.socket] = set()
        self._starting: asyncio.Task[None] | None = None
        self._runner: web.AppRunner | None = None
        self._connections: HttpConnections | None = None

    @classmethod
    def of(cls, settings: BrokerSettings) -> Self:
        """At the ports that a broker's settings name. `SettingError` for certificates that cannot be read."""
        tls = ServerTls(settings.tls) if settings.web_service_port_tls is not None else None
        return cls(
            settings.bind_address,
            settings.web_service_port,
            port_tls=settings.web_service_port_tls,
            tls=tls,
            shared=settings.shared_ports,
        )

    async def listen(self) -> int:
        """Take the ports; returns which the one without TLS is. Raises OSError when one is taken."""
        try:
            port = self._take(self._port)
            if self.port_tls is not None:
                self.port_tls = self._take(self.port_tls, tls=True)
            if self._shared.web_port is not None:
                self._take(self._shared.web_port, shared=True)
            if self._shared.web_port_tls is not None and self._tls is not None:
                self._take(self._shared.web_port_tls, tls=True, shared=True)
        except OSError:
            for taken in self._sockets:
                taken.close()
            self._sockets.clear()
            raise
        return port

    def _take(self, port: int, *, tls: bool = False, shared: bool = False) -> int:
        listening = socket.create_server(
            (self._address, port), family=_family(self._address), backlog=LISTEN_BACKLOG, reuse_port=shared
        )
        listening.setblocking(False)
        self._sockets.append(listening)
        if tls:
            self._with_tls.add(listening)
        found: int = listening.getsockname()[1]
        return found

    async def serve(self, context: BrokerContext) -> None:
        """Answer requests from now on."""
        for listening in self._sockets:
            asyncio.get_running_loop().add_reader(listening.fileno(), self._load, context)

    async def close(self) -> None:
        """Finish the requests under way, then stop."""
        if self._starting is not None:
            await asyncio.wait([self._starting])
        else:
            self._stop_waiting()
        await self._stop_answering()
        for listening in self._sockets:
            listening.close()

    async def _stop_answering(self) -> None:
        connections, self._connections = self._connections, None
        if connections is not None:
            connections.stop_listening()
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()
        if connections is not None:
            await connections.close()

    def _stop_waiting(self) -> None:
        for listening in self._sockets:
            asyncio.get_running_loop().remove_reader(listening.fileno())

    def _load(self, context: BrokerContext) -> None:
        self._stop_waiting()
        self._starting = asyncio.get_running_loop().create_task(self._start(context), name="admin-start")
        self._starting.add_done_callback(_report)

    async def _start(self, context: BrokerContext) -> None:
        try:
            await self._answer(context)
        except BaseException:
            # Whoever connects is to be refused rather than to wait for ever.
            await self._stop_answering()
            for listening in self._sockets:
                listening.close()
            raise

    async def _answer(self, context: BrokerContext) -> None:
        await asyncio.get_running_loop().run_in_executor(None, importlib.import_module, APPLICATION)
        from magnetar.broker.admin.application import http_limits, make_runner

        limits = http_limits(context)
        self._connections = connections = HttpConnections(limits, context.service.limits.connections.refused)
        self._runner = make_runner(context, connections)
        await self._runner.setup()
        assert self._runner.server is not None
        for listening in self._sockets:
            tls = self._tls.context if self._tls is not None and listening in self._with_tls else None
            await connections.listen_at(self._runner.server, listening, tls)


def _family(host: str) -> socket.AddressFamily:
    """IPv4 where the host has such an address, else IPv6. OSError for a host that is not known."""
    with known_host(host):
        found = socket.getaddrinfo(host or None, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    families = {family for family, *_ in found}
    return socket.AF_INET if socket.AF_INET in families else socket.AF_INET6


def _report(starting: asyncio.Task[None]) -> None:
    if not starting.cancelled() and (error := starting.exception()) is not None:
        logger.critical("the admin API cannot start", exc_info=error)
