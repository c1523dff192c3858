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
from magnetar.metadata.store import Change, MetadataStore, Notification, SessionEvent
from magnetar.proxy.settings import FixedBrokers

logger: Final = logging.getLogger(__name__)

BROKERS_PATH: Final = "/loadbalance/brokers"

RETRY_SECONDS: Final = 1.0
"""Pause before the list is asked for again after the store failed."""


class NoBroker(Unavailable):
    """No broker is known that offers what is wanted."""


@dataclass(frozen=True, slots=True)
class KnownBroker:
    """Addresses of one broker; empty where it does not listen."""

    service_url: str = ""
    service_url_tls: str = ""
    web_service_url: str = ""
    web_service_url_tls: str = ""


class Brokers(Protocol):
    """Where the list comes from."""

    def all(self) -> Sequence[KnownBroker]:
        """Those that are alive, as far as known."""
        ...


class BrokerChoice:
    """One broker after the other, each time another one."""

    def __init__(self, service: Brokers, web: Brokers, *, tls: bool) -> None:
        """The brokers whose URLs of the binary protocol and whose URLs of HTTP are used; `tls`: those with TLS."""
        self._service = service
        self._web = web
        self._tls = tls
        self._turn = 0

    def service_url(self) -> str:
        """Where the binary protocol is served. `NoBroker`."""
        return self._next(self.service_urls())

    def web_service_url(self) -> str:
        """Where the admin API is served, without a slash at its end. `NoBroker`."""
        brokers = self._web.all()
        urls = [broker.web_service_url_tls if self._tls else broker.web_service_url for broker in brokers]
        return self._next([url for url in urls if url]).rstrip("/")

    def is_active(self, host_and_port: str) -> bool:
        """Whether a broker serves the binary protocol there."""
        return any(urlsplit(url).netloc == host_and_port for url in self.service_urls())

    def service_urls(self) -> list[str]:
        """All of them."""
        brokers = self._service.all()
        urls = [broker.service_url_tls if self._tls else broker.service_url for broker in brokers]
        return [url for url in urls if url]

    def _next(self, offered: list[str]) -> str:
        if not offered:
            raise NoBroker("No active broker is available")
        self._turn += 1
        return offered[self._turn % len(offered)]


class NamedBrokers:
    """Those of the settings."""

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
        """As configured."""
        return self._found


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
    """Those that are registered. `start` before the first use."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._found: Sequence[KnownBroker] = ()
        self._changed = asyncio.Event()
        self._refresher: asyncio.Task[None] | None = None
        self._stop_watching = [store.watch(self._notified), store.watch_session(self._session_changed)]

    def all(self) -> Sequence[KnownBroker]:
        """As registered. While the store cannot be reached, as it was before."""
        return self._found

    async def start(self) -> None:
        """Read the list and go on watching. `StoreUnavailable`."""
        await self._refresh()
        self._refresher = asyncio.get_running_loop().create_task(self._keep_current(), name="broker discovery")

    async def close(self) -> None:
        """Stop watching."""
        for stop in self._stop_watching:
            stop()
        self._stop_watching = []
        if self._refresher is not None:
            self._refresher.cancel()
            await asyncio.gather(self._refresher, return_exceptions=True)

    def _notified(self, notification: Notification) -> None:
        # Brokers write their load into their nodes all the time; what is asked here does not change with it.
        if notification.change is not Change.MODIFIED and notification.path.startswith(BROKERS_PATH):
            self._changed.set()

    def _session_changed(self, event: SessionEvent) -> None:
        # Changes may have been missed while the store was away.
        if event in (SessionEvent.RECONNECTED, SessionEvent.SESSION_RESTARTED):
            self._changed.set()

    async def _keep_current(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._refresh()
            except Unavailable as error:
                logger.warning("the list of brokers cannot be read: %s", error)
                self._changed.set()
                await asyncio.sleep(RETRY_SECONDS)

    async def _refresh(self) -> None:
        found: list[KnownBroker] = []
        for broker_id in await self._store.children(BROKERS_PATH):
            node = await self._store.get(f"{BROKERS_PATH}/{broker_id}", watch=False)
            broker = decode_broker(broker_id, node.value) if node is not None else None
            if broker is not None:
                found.append(broker)
        self._found = found


def decode_broker(broker_id: str, value: bytes) -> KnownBroker | None:
    """The addresses in a registration; None, with a word in the log, for what is none."""
    try:
        document = json.loads(value)
        return KnownBroker(
            service_url=document.get("pulsarServiceUrl") or "",
            service_url_tls=document.get("pulsarServiceUrlTls") or "",
            web_service_url=document.get("webServiceUrl") or "",
            web_service_url_tls=document.get("webServiceUrlTls") or "",
        )
    except (ValueError, AttributeError) as error:
        logger.warning("the registration of broker %s cannot be read: %s", broker_id, error)
        return None
