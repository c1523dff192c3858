"""`magnetar.control.v1.Proxy`: the gRPC service of one proxy. Importing this module loads gRPC."""

# The methods have the names of the service's definition.
# ruff: noqa: N802

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from magnetar.control.errors import ControlRefused, RefusalReason
from magnetar.control.generated import proxy_pb2 as messages
from magnetar.control.generated.proxy_pb2_grpc import ProxyServicer, add_ProxyServicer_to_server
from magnetar.control.server import ControlServer, ControlService
from magnetar.control.settings import ControlSettings
from magnetar.proxy.app import RunningProxy

SERVICE: Final = "magnetar.control.v1.Proxy"
DRAIN_INTERVAL_MS: Final = (200, 50)
"""(when 0 is asked for, the least.)"""
LIMIT_MS_MAX: Final = 86_400_000


class ProxyControlPort:
    """The control port of a proxy: serving while it takes connections."""

    def __init__(self, settings: ControlSettings, proxy: RunningProxy) -> None:
        self._server = ControlServer(settings)
        self._proxy = proxy
        self._telling: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Take the port. Errors as `ControlServer.start`."""
        service = ProxyControlService(self._proxy, self._server.stopping)
        await self._server.start([ControlService(SERVICE, lambda server: add_ProxyServicer_to_server(service, server))])
        self._proxy.on_drain.append(self._drain_begins)
        await self._server.set_serving(SERVICE, serving=self._proxy.accepting)

    @property
    def port(self) -> int:
        """The port of the control service."""
        return self._server.port

    async def close(self) -> None:
        """Let calls under way finish within the grace."""
        if self._telling is not None:
            await asyncio.wait([self._telling])
        await self._server.close()

    def _drain_begins(self) -> None:
        work = self._server.set_serving(SERVICE, serving=False)
        self._telling = asyncio.get_running_loop().create_task(work)


class ProxyControlService(ProxyServicer):
    """Answers from the running proxy."""

    def __init__(self, proxy: RunningProxy, stopping: asyncio.Event) -> None:
        self._proxy = proxy
        self._stopping = stopping

    async def GetProxyState(self, request: messages.GetProxyStateRequest, context: object) -> messages.ProxyState:
        """What the proxy does now."""
        del request, context
        return proxy_state(self._proxy)

    async def DrainProxy(
        self, request: messages.DrainProxyRequest, context: object
    ) -> AsyncIterator[messages.ProxyState]:
        """Begin, and tell how far it is."""
        del context
        default, least = DRAIN_INTERVAL_MS
        interval_ms = request.interval_ms or default
        if interval_ms < least:
            raise ControlRefused(
                RefusalReason.INVALID_ARGUMENT, f"interval_ms is {interval_ms}; it is at least {least}"
            )
        if not 0 <= request.limit_ms <= LIMIT_MS_MAX:
            raise ControlRefused(RefusalReason.INVALID_ARGUMENT, f"limit_ms is {request.limit_ms}; it is at most a day")
        draining = self._proxy.start_drain(request.limit_ms / 1000 if request.limit_ms else None)
        told: messages.ProxyState | None = None
        while True:
            state = proxy_state(self._proxy)
            if state != told:
                told = state
                yield state
            if self._stopping.is_set() or (draining.done() and not state.connections):
                return
            await asyncio.sleep(interval_ms / 1000)


def proxy_state(proxy: RunningProxy) -> messages.ProxyState:
    """The proxy's state as a message."""
    service = proxy.service
    return messages.ProxyState(
        accepting=proxy.accepting,
        connections=service.active_connections,
        joined_connections=len(service.joined),
        requests_under_way=service.lookups.under_way,
        brokers=len(service.brokers.service_urls()),
        bytes_passed=service.received_bytes,
        rejected_connections=service.refused.total,
        denied_targets=service.counters.denied_targets,
    )
