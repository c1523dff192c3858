"""A proxy as a process of its own, set up by a `proxy.conf`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from magnetar.control.settings import ControlSettings
from magnetar.core.clock import SystemClock
from magnetar.core.settings_file import GivenSettings
from magnetar.metadata.store import MetadataStore
from magnetar.process import own_address
from magnetar.process.control_settings import control_settings
from magnetar.process.metadata_settings import MetadataSettings, pulsar_metadata
from magnetar.process.port_conflicts import NamedPort, refuse_equal_ports
from magnetar.process.protection import refuse_protection
from magnetar.process.service import Service
from magnetar.process.serving import STOP_SECONDS_MAX, STORE_SILENCE_SECONDS_MAX
from magnetar.proxy.app import RunningProxy, check_brokers, check_settings, start_proxy
from magnetar.proxy.setting_names import ignored_names, known_names, missing_features
from magnetar.proxy.settings import ProxySettings

if TYPE_CHECKING:
    from magnetar.proxy.control import ProxyControlPort

DEFAULT_CONTROL_PORT: Final = 3184
"""Bookies have 3182 and brokers 3183, so that all of them may run on one machine."""

PROTECTIONS: Final = (
    "tlsEnabledWithKeyStore",
    "brokerClientTlsEnabledWithKeyStore",
    "httpRequestsLimitEnabled",
    "tokenSettingPrefix",
)
"""What this proxy cannot do yet; see `refuse_protection`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyProcessSettings:
    """What a proxy's process needs to know."""

    metadata: MetadataSettings | None
    """Where brokers register; None: the settings name them."""
    proxy: ProxySettings
    control: ControlSettings | None
    """The control service's port and token; None: there is no control port."""

    @property
    def stop_seconds_max(self) -> float:
        """How long a clean stop may take: the drain, and what follows."""
        return self.proxy.drain_seconds + STOP_SECONDS_MAX


def proxy_process_settings(given: GivenSettings) -> ProxyProcessSettings:
    """Everything from what was given. `SettingError`."""
    refuse_protection(given, PROTECTIONS)
    proxy = given.build(ProxySettings(advertised_address=own_address.host_name()))
    given.attempt(lambda: check_settings(proxy, SystemClock()), None)
    control = given.attempt(lambda: control_settings(given, DEFAULT_CONTROL_PORT), None)
    refuse_equal_ports(given, _ports(proxy, control))
    return ProxyProcessSettings(
        metadata=given.attempt(lambda: _metadata(given, proxy), None),
        proxy=proxy,
        control=control,
    )


def _ports(proxy: ProxySettings, control: ControlSettings | None) -> list[NamedPort]:
    host = proxy.bind_address
    ports = [
        NamedPort("servicePort", host, proxy.service_port),
        NamedPort("servicePortTls", host, proxy.service_port_tls),
        NamedPort("webServicePort", host, proxy.web_service_port),
        NamedPort("webServicePortTls", host, proxy.web_service_port_tls),
    ]
    return ports if control is None else [*ports, NamedPort("controlPort", control.host, control.port)]


def _metadata(given: GivenSettings, proxy: ProxySettings) -> MetadataSettings | None:
    found = pulsar_metadata(given)
    if found is None:
        check_brokers(proxy)
    return found


class ProxyProcess:
    """A running proxy and what it stands on."""

    def __init__(self, running: RunningProxy, store: MetadataStore | None) -> None:
        self.running = running
        self._store = store
        self._control: ProxyControlPort | None = None

    async def start_control(self, settings: ControlSettings) -> None:
        """Errors as `ControlServer.start`. Loads gRPC, 30 MB."""
        from magnetar.proxy.control import ProxyControlPort

        self._control = ProxyControlPort(settings, self.running)
        await self._control.start()

    async def close(self) -> None:
        """Drain, then stop; the control port tells how far the drain is until the end."""
        if self._store is not None:
            self._store.limit_waiting(STORE_SILENCE_SECONDS_MAX)
        await self.running.close()
        if self._control is not None:
            await self._control.close()
        if self._store is not None:
            await self._store.close()

    def describe(self) -> str:
        """Where clients and tools connect."""
        control = f", control port {self._control.port}" if self._control is not None else ""
        return f"{self.running.served_urls}{control}"


async def start_proxy_process(settings: ProxyProcessSettings) -> ProxyProcess:
    """Start. What was opened is closed again on failure."""
    store = await settings.metadata.open() if settings.metadata is not None else None
    try:
        running = await start_proxy(settings.proxy, SystemClock(), store)
    except BaseException:
        if store is not None:
            await asyncio.shield(store.close())
        raise
    process = ProxyProcess(running, store)
    try:
        if settings.control is not None:
            await process.start_control(settings.control)
    except BaseException:
        await asyncio.shield(process.close())
        raise
    return process


PROXY_SERVICE: Final = Service(
    name="proxy",
    known=known_names,
    ignored=ignored_names,
    missing=missing_features,
    settings=proxy_process_settings,
    start=start_proxy_process,
    describe=ProxyProcess.describe,
    stop_seconds_max=lambda settings: settings.stop_seconds_max,
)
