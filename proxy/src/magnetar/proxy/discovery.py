"""Which brokers there are: as they register themselves in the metadata store, or as the settings name them.

Both of Pulsar's load managers write `/loadbalance/brokers/<brokerId>`, in JSON with the same names for addresses.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import urlsplit

from magnetar.core.errors import SettingError, Unavailable
from magnetar.metadata.kept_current import KeptCurrent
from magnetar.metadata.store import MetadataStore, NodeChange, Notification
from magnetar.proxy.settings import FixedBrokers

logger: Final = logging.getLogger(__name__)

BROKERS_PATH: Final = "/loadbalance/brokers"

DRAINING_PATH: Final = "/loadbalance/draining"
"""Brokers of ours that hand their bundles over: they get no new ones, and serve what they still have."""

REREAD_SECONDS: Final = 1.0
"""Who names a broker that is not known has the list read again, but no more often than this: names cost nothing."""


class NoBroker(Unavailable):
    """No broker is known that offers what is wanted."""


@dataclass(frozen=True, slots=True)
class KnownBroker:
    """Addresses of one broker; empty where it does not listen."""

    service_url: str = ""
    service_url_tls: str = ""
    web_service_url: str = ""
    web_service_url_tls: str = ""
    listener_urls: tuple[str, ...] = ()
    """The URLs of its advertised listeners, with TLS and without."""


class Brokers(Protocol):
    """Where the list comes from."""

    def all(self) -> Sequence[KnownBroker]:
        """The brokers that are alive, as far as known."""
        ...

    def serving(self) -> Sequence[KnownBroker]:
        """The brokers that are alive, and those that are leaving and still serve."""
        ...

    async def reread(self) -> None:
        """Have the list as it is now, where it can change. `Unavailable`."""
        ...


class BrokerChoice:
    """One broker after the other, each time another one."""

    def __init__(self, service: Brokers, web: Brokers, *, tls: bool, registered: Brokers | None = None) -> None:
        """The brokers whose URLs of the binary protocol and whose URLs of HTTP are used; `tls`: those with TLS.

        Those that are `registered` may be asked for by clients, too."""
        self._service = service
        self._web = web
        self._active = [service] if registered is None or registered is service else [service, registered]
        self._active_web = [web] if registered is None or registered is web else [web, registered]
        self._tls = tls
        self._turn = 0
        self.discovered = registered is not None
        """Whether brokers register themselves where they can be seen."""

    def service_url(self) -> str:
        """Where the binary protocol is served. `NoBroker`."""
        return self._next(self.service_urls())

    def service_urls_in_turn(self) -> list[str]:
        """The service URLs of all brokers, `service_url` first. `NoBroker`."""
        offered = self.service_urls()
        first = offered.index(self._next(offered))
        return offered[first:] + offered[:first]

    def web_service_url(self) -> str:
        """Where the admin API is served, without a slash at its end. `NoBroker`."""
        brokers = self._web.all()
        urls = [broker.web_service_url_tls if self._tls else broker.web_service_url for broker in brokers]
        return self._next([url for url in urls if url]).rstrip("/")

    def is_active(self, host_and_port: str) -> bool:
        """Whether a broker serves the binary protocol there."""
        wanted = host_and_port.lower()
        return any(
            _authority(url) == wanted
            for brokers in self._active
            for broker in brokers.serving()
            for url in (broker.service_url_tls if self._tls else broker.service_url, *broker.listener_urls)
        )

    def is_active_web(self, url: str) -> bool:
        """Whether a broker serves the admin API at this URL's scheme, host and port."""
        wanted = _origin(url)
        return bool(wanted) and any(
            _origin(broker.web_service_url_tls if self._tls else broker.web_service_url) == wanted
            for brokers in self._active_web
            for broker in brokers.serving()
        )

    async def confirm(self, host_and_port: str) -> bool:
        """Whether this is a broker of the cluster. One that is not known is looked for in the list as it is now.
        `Unavailable`."""
        if not self.is_active(host_and_port):
            for brokers in self._active:
                await brokers.reread()
        return self.is_active(host_and_port)

    async def confirm_web(self, url: str) -> bool:
        """Whether this is the address of a broker's admin API. `Unavailable`."""
        if not self.is_active_web(url):
            for brokers in self._active_web:
                await brokers.reread()
        return self.is_active_web(url)

    def service_urls(self) -> list[str]:
        """The service URLs of all brokers."""
        brokers = self._service.all()
        urls = [broker.service_url_tls if self._tls else broker.service_url for broker in brokers]
        return [url for url in urls if url]

    def _next(self, offered: list[str]) -> str:
        if not offered:
            raise NoBroker("No active broker is available")
        self._turn += 1
        return offered[self._turn % len(offered)]


class NamedBrokers:
    """The brokers that the settings name."""

    def __init__(self, fixed: FixedBrokers) -> None:
        """`SettingError` for URLs that are none."""
        found = [
            *(KnownBroker(service_url=url) for url in _each(fixed.service_url, "pulsar")),
            *(KnownBroker(service_url_tls=url) for url in _each(fixed.service_url_tls, "pulsar+ssl")),
            *(KnownBroker(web_service_url=url) for url in _each(fixed.web_service_url, "http")),
            *(KnownBroker(web_service_url_tls=url) for url in _each(fixed.web_service_url_tls, "https")),
        ]
        self._found: Sequence[KnownBroker] = found

    def all(self) -> Sequence[KnownBroker]:
        """The brokers, as configured."""
        return self._found

    def serving(self) -> Sequence[KnownBroker]:
        """The named brokers: all of them are taken to serve."""
        return self._found

    async def reread(self) -> None:
        """Do nothing: named brokers stay as they are."""


def _each(url: str, scheme: str) -> list[str]:
    """`scheme://a:1,b:2` as one URL for each host."""
    if not url:
        return []
    found, separator, rest = url.partition("://")
    if found != scheme or not separator or not rest:
        raise SettingError(f"{url!r} is not a URL of the form {scheme}://host:port")
    urls = [f"{scheme}://{host.strip()}" for host in rest.rstrip("/").split(",")]
    for one in urls:
        try:
            complete = urlsplit(one).hostname and urlsplit(one).port
        except ValueError:
            complete = None
        if not complete:
            raise SettingError(f"{one!r} in the settings lacks a host or a port")
    return urls


class WatchedBrokers:
    """The brokers that are registered. `start` before the first use."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._found: Sequence[KnownBroker] = ()
        self._leaving: Sequence[KnownBroker] = ()
        self._rereading: asyncio.Task[None] | None = None
        self._reread_seconds = float("-inf")
        self._reading = asyncio.Lock()
        """One reading at a time: of two the older one could end last, and nothing would change it any more."""
        self._kept = KeptCurrent(store, "brokers", self._refresh, _concerns)

    def all(self) -> Sequence[KnownBroker]:
        """The brokers as they are registered; while the store cannot be reached, as they were before."""
        return self._found

    def serving(self) -> Sequence[KnownBroker]:
        """With those that drain."""
        return (*self._found, *self._leaving)

    async def reread(self) -> None:
        """Wait for a reading that begins after this call, which others wait for as well."""
        if self._rereading is None:
            self._rereading = asyncio.get_running_loop().create_task(self._reread(), name="broker list")
            self._rereading.add_done_callback(_looked_at)
        # Whoever came first may give up; the others still want it.
        await asyncio.shield(self._rereading)

    async def _reread(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._reread_seconds + REREAD_SECONDS - loop.time())
        self._reread_seconds = loop.time()
        # Who comes from now on may have been told of a broker that this reading does not see any more.
        self._rereading = None
        await self._refresh()

    async def start(self) -> None:
        """Read the list and go on watching. `StoreUnavailable`."""
        await self._kept.start()

    async def close(self) -> None:
        """Stop watching the list of brokers."""
        await self._kept.stop()
        if self._rereading is not None:
            self._rereading.cancel()
            await asyncio.gather(self._rereading, return_exceptions=True)

    async def _refresh(self) -> None:
        async with self._reading:
            # In this order, as brokers go from one list to the other.
            found = await self._read(BROKERS_PATH)
            self._leaving = await self._read(DRAINING_PATH)
            self._found = found

    async def _read(self, path: str) -> list[KnownBroker]:
        found: list[KnownBroker] = []
        for broker_id in await self._store.children(path):
            node = await self._store.get(f"{path}/{broker_id}", watch=False)
            broker = decode_broker(broker_id, node.value) if node is not None else None
            if broker is not None:
                found.append(broker)
        return found


def _concerns(notification: Notification) -> bool:
    # Brokers write their load into their nodes all the time; what is asked here does not change with it.
    return notification.change is not NodeChange.MODIFIED and notification.path.startswith(
        (BROKERS_PATH, DRAINING_PATH)
    )


def decode_broker(broker_id: str, value: bytes) -> KnownBroker | None:
    """The addresses in a registration; None, with a word in the log, for what is none."""
    try:
        document = json.loads(value)
        return KnownBroker(
            service_url=document.get("pulsarServiceUrl") or "",
            service_url_tls=document.get("pulsarServiceUrlTls") or "",
            web_service_url=document.get("webServiceUrl") or "",
            web_service_url_tls=document.get("webServiceUrlTls") or "",
            listener_urls=tuple(
                url
                for listener in (document.get("advertisedListeners") or {}).values()
                for url in (listener.get("brokerServiceUrl"), listener.get("brokerServiceUrlTls"))
                if url
            ),
        )
    except (ValueError, AttributeError) as error:
        logger.warning("the registration of broker %s cannot be read: %s", broker_id, error)
        return None


def _authority(url: str) -> str:
    return url.partition("://")[2].partition("/")[0].lower()


def _origin(url: str) -> tuple[str, str, int] | None:
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    except (ValueError, KeyError):
        return None
    return (parts.scheme, parts.hostname, port) if parts.hostname and not parts.username else None


def _looked_at(reading: asyncio.Task[None]) -> None:
    if not reading.cancelled():
        reading.exception()  # Those who wait are told, if anybody still does.
