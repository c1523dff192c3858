"""The ports of the binary protocol: one without TLS, one with it where the settings name it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from magnetar.broker.settings.broker import BrokerSettings
from magnetar.net.connection import Connection, HandlerFactory
from magnetar.net.endpoints import LeftOf, Listener, listen
from magnetar.net.handlers import Handler
from magnetar.net.held_bytes import HeldBytes
from magnetar.net.outboxes import Outboxes
from magnetar.net.preamble import PendingPreambles, after_preamble
from magnetar.net.refused_connections import RefusedConnections
from magnetar.net.tls import ServerTls
from magnetar.wire.haproxy import ProxyHeaderDecoder


class ServicePorts:
    """Has the ports until closed, and listens once it is told to."""

    def __init__(
        self, listeners: Sequence[Listener], held: HeldBytes, outboxes: Outboxes, preambles: PendingPreambles
    ) -> None:
        self._listeners = listeners
        self._preambles = preambles
        self.held = held
        """What the connections of all ports hold in memory."""
        self.outboxes = outboxes
        """The connections that have something to send."""

    @property
    def connections(self) -> list[Connection]:
        """Those that are open now."""
        return [connection for listener in self._listeners for connection in listener.connections]

    @property
    def arriving(self) -> int:
        """Connections at their TLS handshake."""
        return sum(listener.arriving for listener in self._listeners)

    async def serve(self, refused: RefusedConnections) -> None:
        """Accept connections from now on; those that there are no files for are counted in `refused`."""
        self._preambles.refused_connections = refused
        for listener in self._listeners:
            listener.count_refused_in(refused)
            await listener.start_accepting()

    async def close(self) -> None:
        """Stop listening and close every connection, sending what is in the outboxes."""
        for listener in self._listeners:
            await listener.close()


async def open_service_ports(
    settings: BrokerSettings,
    make_handler: HandlerFactory,
    left_of: LeftOf | None = None,
    left: Callable[[], int] | None = None,
) -> tuple[ServicePorts, BrokerSettings]:
    """Take the ports; the settings returned tell what those that were 0 became. Connections are refused until `serve`,
    as who would serve them may not stand yet. OSError for ports that cannot be had, `SettingError` for certificates
    that cannot be read. `left_of` says how many more connections an address may have, `left` how many
    more there may be."""
    preambles = PendingPreambles(left)
    if settings.proxy_protocol:
        # The address that connections come from is a load balancer's, which names its clients later.
        make_handler, left_of = _behind_proxy_header(make_handler, preambles), None
    tls = ServerTls(settings.tls) if settings.broker_service_port_tls is not None else None
    held = HeldBytes(asyncio.get_running_loop())
    outboxes = Outboxes()

    async def take(
        port: int, *, tls: ServerTls | None = None, left_of: LeftOf | None = None, shared: bool = False
    ) -> Listener:
        return await listen(
            *(settings.bind_address, port, make_handler),
            tls=tls,
            accepting=False,
            held=held,
            left_of=left_of,
            shared=shared,
            outboxes=outboxes,
        )

    listeners = [await take(settings.broker_service_port)]
    settings = replace(settings, broker_service_port=listeners[0].port)
    try:
        if settings.broker_service_port_tls is not None:
            listener = await take(settings.broker_service_port_tls, tls=tls, left_of=left_of)
            listeners.append(listener)
            settings = replace(settings, broker_service_port_tls=listener.port)
        for port, with_tls in _shared(settings, tls):
            limited = None if with_tls is None else left_of
            listeners.append(await take(port, tls=with_tls, left_of=limited, shared=True))
    except BaseException:
        for listener in listeners:
            await asyncio.shield(listener.close())
        raise
    return ServicePorts(listeners, held, outboxes, preambles), settings


def _shared(settings: BrokerSettings, tls: ServerTls | None) -> list[tuple[int, ServerTls | None]]:
    """The ports that other brokers of this machine listen at too, each with its TLS."""
    shared = settings.shared_ports
    found: list[tuple[int, ServerTls | None]] = []
    if shared.service_port is not None:
        found.append((shared.service_port, None))
    if shared.service_port_tls is not None and tls is not None:
        found.append((shared.service_port_tls, tls))
    return found


def _behind_proxy_header(make_handler: HandlerFactory, preambles: PendingPreambles) -> HandlerFactory:
    """Whoever the header names is who the session sees; a connection may come without one."""

    def make(connection: Connection, header: ProxyHeaderDecoder) -> Handler:
        if header.proxied is not None:
            connection.peer_address = f"/{header.proxied.source_host}:{header.proxied.source_port}"
        return make_handler(connection)

    return after_preamble(ProxyHeaderDecoder, make, preambles)
