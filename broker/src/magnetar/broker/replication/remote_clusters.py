"""Clients of other clusters: one for each, made by what the configuration store says of it.

Facts: Pulsar `BrokerService.getReplicationClient`, `ClusterData`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

from magnetar.broker.peers.access import PeerAccess
from magnetar.broker.replication.http_lookup import HttpLookup
from magnetar.broker.replication.remote_admin import RemoteAdmin
from magnetar.broker.replication.states import NoRemote
from magnetar.broker.settings.access import PeerSettings
from magnetar.client.client import PulsarClient
from magnetar.client.settings import ClientSettings
from magnetar.core.errors import MagnetarError
from magnetar.metadata.store import NodeChange, SessionEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from magnetar.broker.resources import Resources
    from magnetar.broker.settings.broker import BrokerSettings
    from magnetar.core.clock import Clock
    from magnetar.metadata.store import Notification

logger: Final = logging.getLogger(__name__)

CLIENT_SETTINGS: Final = ClientSettings(client_version="Magnetar-replicator", relays=True)


def service_url_of(cluster: str, record: Mapping[str, Any]) -> str:
    """Where the brokers of a cluster are, or who is asked for them over HTTP, as Apache's broker has it. Raises
    `NoRemote`."""
    names = (
        ("brokerServiceUrlTls", "brokerServiceUrl") if record.get("brokerClientTlsEnabled") else ("brokerServiceUrl",)
    )
    for name in (*names, "serviceUrl"):
        url = record.get(name)
        if isinstance(url, str) and url.startswith(("pulsar://", "pulsar+ssl://")):
            return url
    try:
        return admin_url_of(cluster, record)
    except NoRemote as error:
        raise NoRemote(f"{error}; or set {names[0]}") from None


def admin_url_of(cluster: str, record: Mapping[str, Any]) -> str:
    """Where the admin API of a cluster is. Raises `NoRemote`."""
    name = "serviceUrlTls" if record.get("brokerClientTlsEnabled") else "serviceUrl"
    url = record.get(name)
    if isinstance(url, str) and url.startswith(("http://", "https://")):
        return url.rstrip("/")
    raise NoRemote(f"the record of cluster {cluster} has no {name}: set it with `pulsar-admin clusters update`")


def shown_to(record: Mapping[str, Any], own: PeerSettings) -> PeerSettings:
    """The credentials and the TLS that a cluster's record asks for; what it leaves open is the broker's own."""
    plugin, parameters = record.get("authenticationPlugin"), record.get("authenticationParameters")
    if plugin and parameters:
        own = replace(own, plugin=str(plugin), parameters=str(parameters))
    if not record.get("brokerClientTlsEnabled"):
        return own
    tls = replace(
        own.tls,
        trust_certificates_file=_file(record, "brokerClientTrustCertsFilePath") or own.tls.trust_certificates_file,
        certificate_file=_file(record, "brokerClientCertificateFilePath") or own.tls.certificate_file,
        key_file=_file(record, "brokerClientKeyFilePath") or own.tls.key_file,
    )
    return replace(own, tls_enabled=True, tls=tls)


def _file(record: Mapping[str, Any], name: str) -> Path | None:
    path = record.get(name)
    return Path(path) if isinstance(path, str) and path else None


def _access(cluster: str, record: Mapping[str, Any], own: PeerSettings) -> PeerAccess | None:
    """What a cluster is shown; None: nothing, in clear. `NoRemote`, `SettingError`."""
    shown = shown_to(record, own)
    if not shown.plugin and not shown.tls_enabled:
        return None
    try:
        return PeerAccess(shown)
    except ValueError as error:
        # Zero bytes, and halves of characters.
        raise NoRemote(f"the record of cluster {cluster} names a file or a token that cannot be one: {error}") from None


class RemoteClusters:
    """At most one client for each remote cluster, made anew when the cluster's record is another one."""

    def __init__(self, resources: Resources, settings: Callable[[], BrokerSettings], clock: Clock, rng: Random) -> None:
        self._resources = resources
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._clients: dict[str, tuple[Mapping[str, Any], PulsarClient]] = {}
        self._lock = asyncio.Lock()
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()
        """Looks whether clusters are removed, and closing their clients."""
        store = resources.configuration_store
        self._stop_listening = store.watch(self._take_notification), store.watch_session(self._take_session_event)

    async def client(self, cluster: str) -> PulsarClient:
        """The client of a cluster. Raises `NoRemote`, or what the configuration store raises."""
        outdated: PulsarClient | None = None
        try:
            async with self._lock:
                record = await self._resources.documents.get(self._resources.cluster_path(cluster))
                known = self._clients.get(cluster)
                if known is not None and known[0] == record:
                    return known[1]
                if known is not None:
                    logger.info("the record of cluster %s has changed: connections to it are made anew", cluster)
                    outdated = self._clients.pop(cluster)[1]
                if record is None or self._closed:
                    raise NoRemote(f"cluster {cluster} has no record in the configuration store")
                client = self._make(cluster, record)
                self._clients[cluster] = dict(record), client
                return client
        finally:
            if outdated is not None:
                await outdated.close()  # A cluster that is silent takes its time, and no other one waits for that.

    async def admin(self, cluster: str) -> RemoteAdmin:
        """The admin API of a cluster. Raises as `client`."""
        record = await self._resources.documents.get(self._resources.cluster_path(cluster)) or {}
        access = _access(cluster, record, self._settings().access.peers)
        url = admin_url_of(cluster, record)
        return RemoteAdmin(cluster, url, *((None, None) if access is None else (access.credentials, access.tls)))

    def _make(self, cluster: str, record: Mapping[str, Any]) -> PulsarClient:
        url = service_url_of(cluster, record)
        over_http = url.startswith("http")
        access = _access(cluster, record, self._settings().access.peers)
        if url.startswith("pulsar+ssl://") and (access is None or access.tls is None):
            raise NoRemote(f"cluster {cluster} is reached by {url}, and brokerClientTlsEnabled is off")
        shown = (None, None) if access is None else (access.credentials, access.tls)
        remote = RemoteAdmin(cluster, url, *shown)
        settings = replace(CLIENT_SETTINGS, keep_alive_seconds=self._settings().keep_alive_seconds)
        by_tls = bool(record.get("brokerClientTlsEnabled"))
        return PulsarClient(
            lambda: url,
            self._clock,
            settings,
            authentication=None if access is None else access.credentials.shown,
            connect_tls=None if access is None else access.connect_tls,
            rng=self._rng,
            make_lookup=(lambda pool: HttpLookup(remote, pool, settings, tls=by_tls)) if over_http else None,
        )

    def _take_notification(self, told: Notification) -> None:
        """A cluster may be removed: nobody may ever ask for its client again. Where a store may have missed that, it
        tells of a change."""
        if told.change in (NodeChange.DELETED, NodeChange.MODIFIED):
            self._look_for_removed([one for one in self._clients if self._resources.cluster_path(one) == told.path])

    def _take_session_event(self, event: SessionEvent) -> None:
        """The look at a removed cluster may have failed meanwhile."""
        if event in (SessionEvent.RECONNECTED, SessionEvent.SESSION_RESTARTED):
            self._look_for_removed(self._clients)

    def _look_for_removed(self, clusters: Iterable[str]) -> None:
        for cluster in clusters:
            task = asyncio.get_running_loop().create_task(self._let_go_of_removed(cluster))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _let_go_of_removed(self, cluster: str) -> None:
        try:
            if await self._resources.documents.get(self._resources.cluster_path(cluster)) is None:
                await self.client(cluster)
        except NoRemote as error:
            logger.info("connections to cluster %s are closed: %s", cluster, error)
        except MagnetarError as error:
            logger.warning("whether cluster %s is removed is not known now: %s", cluster, error)

    async def close(self) -> None:
        """Close every client."""
        self._closed = True
        for stop_listening in self._stop_listening:
            stop_listening()
        clients, self._clients = self._clients, {}
        for cluster, (_, client) in clients.items():
            try:
                await client.close()
            except MagnetarError as error:
                logger.warning("the client of cluster %s does not close: %s", cluster, error)
        if self._tasks:
            await asyncio.wait(self._tasks)
