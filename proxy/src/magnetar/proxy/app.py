"""Puts a proxy together and runs it. The only place that knows all of its parts."""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from magnetar.auth.credentials import METHOD_NONE
from magnetar.auth.plugin import ClientCredentials
from magnetar.core.clock import Clock
from magnetar.core.errors import SettingError
from magnetar.core.text import host_of_url
from magnetar.metadata.store import MetadataStore
from magnetar.net.connection import Connection, HandlerFactory
from magnetar.net.endpoints import Listener, listen
from magnetar.net.held_bytes import HeldBytes
from magnetar.net.preamble import PendingPreambles, after_preamble
from magnetar.net.tls import ClientTls, ServerTls
from magnetar.proxy.access import ProxyAccess
from magnetar.proxy.credentials import client_tls_settings, own_credentials
from magnetar.proxy.discovery import BrokerChoice, Brokers, NamedBrokers, WatchedBrokers
from magnetar.proxy.handshake import BrokerConnector
from magnetar.proxy.lookup_links import LookupLinks
from magnetar.proxy.service import ProxyService
from magnetar.proxy.session import ProxySession
from magnetar.proxy.settings import ProxySettings
from magnetar.proxy.targets import Targets
from magnetar.wire.haproxy import ProxyHeaderDecoder

if TYPE_CHECKING:
    from magnetar.proxy.web import WebServer

logger: Final = logging.getLogger(__name__)

WEB: Final = "magnetar.proxy.web"


class RunningProxy:
    """A proxy that serves."""

    def __init__(self, settings: ProxySettings, clock: Clock, store: MetadataStore | None) -> None:
        """`SettingError` for what cannot be."""
        client = settings.broker_client
        self.settings = settings
        if store is None:
            check_brokers(settings)
        named = NamedBrokers(settings.fixed_brokers)
        self._watched = None if store is None else WatchedBrokers(store)
        # What the settings name wins, each kind of URL for itself.
        by_url: list[Brokers] = [named if url or self._watched is None else self._watched for url in _urls(settings)]
        credentials = own_credentials(client)
        self._broker_tls = ClientTls(client_tls_settings(client, credentials)) if client.tls_enabled else None
        ports_with_tls = (settings.service_port_tls, settings.web_service_port_tls)
        self._server_tls = None if ports_with_tls == (None, None) else ServerTls(settings.tls)
        connector = BrokerConnector(credentials, self._broker_tls, client.connect_timeout_ms, client.read_timeout_ms)
        links = LookupLinks(connector, credentials, settings.message_size_bytes_max)
        choice = BrokerChoice(*by_url, tls=client.tls_enabled, registered=self._watched)
        access = _access(settings, clock)
        _tell_who_brokers_see(credentials, access)
        self.service = ProxyService(settings, clock, choice, connector, links, access)
        self._choice = choice
        self._listeners: list[Listener] = []
        self._web: WebServer | None = None
        self._draining: asyncio.Task[None] | None = None
        self.on_drain: list[Callable[[], None]] = []
        """Told when it stops taking connections."""

    @property
    def accepting(self) -> bool:
        """Whether new connections are taken."""
        return bool(self._listeners) and self._draining is None

    @property
    def arriving(self) -> int:
        """Connections at their TLS handshake, at the ports of the binary protocol."""
        return sum(listener.arriving for listener in self._listeners)

    async def start(self) -> None:
        """Find the brokers, open the ports. `StoreUnavailable`, OSError for ports that cannot be had."""
        settings = self.settings
        if self._watched is not None:
            await self._watched.start()
        self.service.start()
        await self._start_web()
        make_handler = self._handler_factory()
        host = settings.bind_address
        held = HeldBytes(asyncio.get_running_loop())
        if settings.service_port is not None:
            listener = await listen(host, settings.service_port, make_handler, held=held)
            listener.count_refused_in(self.service.refused)
            self._listeners.append(listener)
            settings = replace(settings, service_port=listener.port)
        if settings.service_port_tls is not None:
            # Behind a load balancer that names its clients, the address that connections come from is its own.
            left_of = None if settings.proxy_protocol else self.service.left_of
            listener = await listen(
                *(host, settings.service_port_tls, make_handler), tls=self._server_tls, held=held, left_of=left_of
            )
            listener.count_refused_in(self.service.refused)
            self._listeners.append(listener)
            settings = replace(settings, service_port_tls=listener.port)
        self.settings = replace(
            settings,
            web_service_port=self.settings.web_service_port,
            web_service_port_tls=self.settings.web_service_port_tls,
        )

    async def _start_web(self) -> None:
        settings = self.settings
        if settings.web_service_port is None and settings.web_service_port_tls is None:
            return
        # aiohttp takes 0.2 s to load.
        await asyncio.get_running_loop().run_in_executor(None, importlib.import_module, WEB)
        from magnetar.proxy.gate import HttpGate
        from magnetar.proxy.reverse import ReverseProxy
        from magnetar.proxy.web import WebServer

        gate = None if self.service.access is None else HttpGate(self.service.access, self.service.credentials)
        reverse = ReverseProxy(
            settings.http, settings.fixed_brokers, self._choice, self.service.counters, self._broker_tls, gate
        )
        self._web = WebServer(self.service, reverse, gate, lambda: self.accepting)
        await self._web.start()
        if settings.web_service_port is not None:
            port = await self._web.listen(settings.bind_address, settings.web_service_port)
            self.settings = replace(self.settings, web_service_port=port)
        if settings.web_service_port_tls is not None:
            port = await self._web.listen(settings.bind_address, settings.web_service_port_tls, self._server_tls)
            self.settings = replace(self.settings, web_service_port_tls=port)

    def _handler_factory(self) -> HandlerFactory:
        service = self.service
        if not self.settings.proxy_protocol:
            return lambda connection: ProxySession(connection, service)

        def behind_header(connection: Connection, header: ProxyHeaderDecoder) -> ProxySession:
            return ProxySession(connection, service, header.proxied)

        preambles = PendingPreambles(service.places_left)
        preambles.refused_connections = service.refused
        return after_preamble(ProxyHeaderDecoder, behind_header, preambles)

    def start_drain(self, limit_seconds: float | None = None) -> asyncio.Task[None]:
        """Take no connections any more, let those that stand go on for so long (None: as configured), then close them.
        A second call gives the drain that runs."""
        if self._draining is None:
            limit = self.settings.drain_seconds if limit_seconds is None else limit_seconds
            logger.info("draining for at most %g s", limit)
            self._draining = asyncio.get_running_loop().create_task(self.service.drain(limit), name="proxy drain")
            for listener in self._listeners:
                listener.stop_accepting()
            for tell in self.on_drain:
                tell()
        return self._draining

    async def close(self) -> None:
        """Drain, unless that was done, then stop."""
        if self._listeners:
            await asyncio.gather(self.start_drain(), return_exceptions=True)
        await self.service.close()
        for listener in self._listeners:
            await listener.close()
        if self._web is not None:
            await self._web.close()
        if self._watched is not None:
            await self._watched.close()

    @property
    def service_url(self) -> str:
        """Where clients connect."""
        address, settings = host_of_url(self.settings.shown_address), self.settings
        if settings.service_port is not None:
            return f"pulsar://{address}:{settings.service_port}"
        return f"pulsar+ssl://{address}:{settings.service_port_tls}"

    @property
    def web_service_url(self) -> str:
        """Where tools connect; empty without an HTTP port."""
        address, settings = host_of_url(self.settings.shown_address), self.settings
        if settings.web_service_port is not None:
            return f"http://{address}:{settings.web_service_port}"
        if settings.web_service_port_tls is not None:
            return f"https://{address}:{settings.web_service_port_tls}"
        return ""

    @property
    def served_urls(self) -> str:
        """All URLs at which clients and tools connect, a space between two; those with TLS last."""
        address, settings = host_of_url(self.settings.shown_address), self.settings
        ports = (
            ("pulsar", settings.service_port),
            ("http", settings.web_service_port),
            ("pulsar+ssl", settings.service_port_tls),
            ("https", settings.web_service_port_tls),
        )
        return " ".join(f"{scheme}://{address}:{port}" for scheme, port in ports if port is not None)


async def start_proxy(settings: ProxySettings, clock: Clock, store: MetadataStore | None = None) -> RunningProxy:
    """Start a proxy. Ports that are 0 become free ones, see `RunningProxy.settings`. Without a store the brokers are
    those of the settings. On failure what was started is closed again."""
    proxy = RunningProxy(settings, clock, store)
    try:
        await proxy.start()
    except BaseException:
        await asyncio.shield(proxy.close())
        raise
    return proxy


def check_settings(settings: ProxySettings, clock: Clock) -> None:
    """What can be said about settings without opening a port. `SettingError`."""
    Targets(settings.targets)
    NamedBrokers(settings.fixed_brokers)
    own_credentials(settings.broker_client)
    _access(settings, clock)


def _access(settings: ProxySettings, clock: Clock) -> ProxyAccess | None:
    if not settings.access.authentication.enabled:
        return None
    return ProxyAccess(settings.access, clock, forward_credentials=settings.broker_client.forward_credentials)


def _tell_who_brokers_see(own: ClientCredentials, access: ProxyAccess | None) -> None:
    """A word for operators about settings that are allowed and seldom meant."""
    if access is not None and own.method == METHOD_NONE:
        logger.warning(
            "authenticationEnabled without brokerClientAuthenticationPlugin: brokers that authenticate will not "
            "believe this proxy who its clients are"
        )
    elif access is None and own.method != METHOD_NONE:
        logger.warning(
            "brokerClientAuthenticationPlugin without authenticationEnabled: clients are not authenticated, and to "
            "brokers all of them are this proxy"
        )


def check_brokers(settings: ProxySettings) -> None:
    """Without a metadata store the settings must name brokers. `SettingError`."""
    if _urls(settings)[0]:
        return
    names = "brokerServiceURLTLS" if settings.broker_client.tls_enabled else "brokerServiceURL"
    raise SettingError(f"the proxy must know its brokers: set metadataStoreUrl, or {names} and the one for HTTP")


def _urls(settings: ProxySettings) -> tuple[str, str]:
    """The URLs of the settings that are in force: of the binary protocol and of HTTP."""
    fixed = settings.fixed_brokers
    if settings.broker_client.tls_enabled:
        return fixed.service_url_tls, fixed.web_service_url_tls
    return fixed.service_url, fixed.web_service_url
