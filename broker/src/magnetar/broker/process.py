"""A broker as a process of its own, set up by a `broker.conf`."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias

from magnetar.balance.settings import BalanceSettings
from magnetar.broker.app import RunningBroker, start_broker
from magnetar.broker.broker_parts import BrokerParts
from magnetar.broker.resources import Resources
from magnetar.broker.setting_checks import check_broker, tell_load_manager
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.load import LoadSettings
from magnetar.broker.settings.names import ignored_names, known_names, missing_features
from magnetar.control.settings import ControlSettings
from magnetar.core.clock import SystemClock
from magnetar.core.errors import SettingError
from magnetar.core.settings_file import GivenSettings
from magnetar.ledger.bookie_client.tcp_bookie import TcpBookieSettings
from magnetar.ledger.bookie_client.tcp_connections import TcpBookieConnections
from magnetar.ledger.bookie_client.tls_settings import BrokerBookieTlsSettings
from magnetar.ledger.client import BookKeeperClient
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.metadata.factory import check_url
from magnetar.metadata.store import MetadataStore
from magnetar.metadata.urls import store_url, with_config
from magnetar.net.tls import TlsSettings, client_tls
from magnetar.process import own_address
from magnetar.process.control_settings import control_settings
from magnetar.process.metadata_settings import CONFIG_PATH, MetadataSettings, pulsar_metadata
from magnetar.process.service import Service
from magnetar.process.serving import STOP_SECONDS_MAX, STORE_SILENCE_SECONDS_MAX, request_stop

if TYPE_CHECKING:
    from magnetar.broker.admin.brokers.control import BrokerControlPort

logger: Final = logging.getLogger(__name__)

REPLICAS: Final = 2
"""Copies of each entry when nothing is set, as in Pulsar: managedLedgerDefaultEnsembleSize, …WriteQuorum and
…AckQuorum."""
NO_METADATA: Final = MetadataSettings(url="memory:")
"""While problems are gathered: no broker starts with it."""
DEFAULT_CONTROL_PORT: Final = 3183
"""The control service's port unless a setting names one: the next one after the bookie's."""

CONFIGURATION_STORE: Final = "configurationMetadataStoreUrl"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerProcessSettings:
    """What a broker's process needs to know."""

    metadata: MetadataSettings
    configuration: MetadataSettings | None
    """Where the clusters of an instance keep what they share; None: in `metadata`."""
    bookkeeper: MetadataSettings | None
    """Where the bookies' cluster has its metadata, when that is another one; None: in `metadata`."""
    broker: BrokerSettings
    managed: ManagedLedgerSettings
    ledgers: LedgerClientSettings
    connections: TcpBookieSettings
    bookie_tls: TlsSettings | None
    """How bookies are reached; None: without TLS."""
    balance: BalanceSettings
    control: ControlSettings | None
    """The control service's port and token; None: there is no control port."""

    @property
    def stop_seconds_max(self) -> float:
        """How long a clean stop may take: handing the bundles over, and what follows."""
        return self.broker.load.unload_after_stop_ms_max / 1000 + STOP_SECONDS_MAX


def broker_process_settings(given: GivenSettings) -> BrokerProcessSettings:
    """Everything from what was given. `SettingError`."""
    broker = BrokerSettings(
        cluster_name="",
        bind_address="0.0.0.0",  # noqa: S104
        advertised_address=own_address.host_name(),
        load=LoadSettings(history_enabled=True),
    )
    broker = given.build(broker)
    if not broker.cluster_name:
        given.problem("clusterName is not set: the cluster that `magnetar init-metadata --cluster` prepared")
    control = given.attempt(lambda: control_settings(given, DEFAULT_CONTROL_PORT), None)
    check_broker(given, broker, control)
    tell_load_manager(given)
    managed = ManagedLedgerSettings(ensemble_size=REPLICAS, write_quorum=REPLICAS, ack_quorum=REPLICAS)
    metadata = given.attempt(lambda: _metadata(given), NO_METADATA)
    return BrokerProcessSettings(
        metadata=metadata,
        configuration=given.attempt(lambda: _other_store(given, CONFIGURATION_STORE, metadata), None),
        bookkeeper=given.attempt(lambda: _other_store(given, "bookkeeperMetadataServiceUri", metadata), None),
        broker=broker,
        managed=given.build(managed),
        ledgers=given.build(LedgerClientSettings()),
        connections=given.build(TcpBookieSettings()),
        bookie_tls=given.attempt(lambda: _bookie_tls(given), None),
        balance=given.build(BalanceSettings()),
        control=control,
    )


def _metadata(given: GivenSettings) -> MetadataSettings:
    metadata = pulsar_metadata(given)
    if metadata is None:
        raise SettingError("metadataStoreUrl is not set: where the cluster's metadata is, such as zk:localhost:2181")
    return metadata


def _bookie_tls(given: GivenSettings) -> TlsSettings | None:
    settings = given.build(BrokerBookieTlsSettings()).client_tls()
    client_tls(settings)  # Files that cannot be used are told before the start.
    return settings


def _other_store(given: GivenSettings, name: str, metadata: MetadataSettings) -> MetadataSettings | None:
    """The store that a setting names; None when it names none, or the cluster's own."""
    url, file = given.text(name), given.text(CONFIG_PATH)
    if url is None:
        return None
    if name == CONFIGURATION_STORE:
        file = given.text("configurationStoreConfigPath") or file
    found = with_config(store_url(url), file)
    if found == metadata.url:
        return None
    check_url(found)
    return replace(metadata, url=found)


Part: TypeAlias = MetadataStore | TcpBookieConnections | BookKeeperClient


class BrokerProcess:
    """A running broker and what it stands on."""

    def __init__(
        self,
        running: RunningBroker,
        stores: list[MetadataStore],
        parts_below: list[Part],
        control: BrokerControlPort | None = None,
    ) -> None:
        self.running = running
        self.control = control
        self._stores = stores
        self._parts_below = parts_below
        """In the order they were opened."""

    async def close(self) -> None:
        """Stop from the top: what a part still has to write, the parts below it must take."""
        for store in self._stores:
            store.limit_waiting(STORE_SILENCE_SECONDS_MAX)
        if self.control is not None:
            await self.control.close()
        await self.running.close()
        for part in reversed(self._parts_below):
            await part.close()

    def describe(self) -> str:
        """Where clients and tools connect."""
        control = f", control port {self.control.port}" if self.control is not None else ""
        return f"{self.running.settings.served_urls}{control}"


async def start_broker_process(settings: BrokerProcessSettings) -> BrokerProcess:
    """Start. What was opened is closed again on failure. `SettingError` when the cluster is not prepared."""
    clock = SystemClock()
    opened: list[Part] = []
    stores: list[MetadataStore] = []

    async def open_store(metadata: MetadataSettings) -> MetadataStore:
        store = await metadata.open()
        opened.append(store)
        stores.append(store)
        return store

    try:
        store = await open_store(settings.metadata)
        configuration = await open_store(settings.configuration) if settings.configuration else store
        bookkeeper = await open_store(settings.bookkeeper) if settings.bookkeeper else store
        await _check_cluster(configuration, settings.broker.cluster_name, only_reads=settings.broker.read_only.enabled)
        connections = TcpBookieConnections(bookkeeper, clock, settings.connections, client_tls(settings.bookie_tls))
        opened.append(connections)
        await connections.start()
        ledgers = BookKeeperClient(bookkeeper, connections, clock, settings=settings.ledgers, places=connections.places)
        opened.append(ledgers)
        parts = BrokerParts(
            store,
            ledgers,
            clock,
            settings.managed,
            configuration_store=configuration,
            balance_settings=settings.balance,
            request_stop=request_stop,
        )
        running = await start_broker(settings.broker, parts)
        try:
            control = None if settings.control is None else await _serve_control(settings.control, running)
        except BaseException:
            await asyncio.shield(running.close())
            raise
    except BaseException:
        for part in reversed(opened):
            await asyncio.shield(part.close())
        raise
    return BrokerProcess(running, stores, opened, control)


async def _serve_control(settings: ControlSettings, running: RunningBroker) -> BrokerControlPort:
    """The control port; gRPC, 30 MB, is loaded only for it. OSError when it is taken."""
    from magnetar.broker.admin.brokers.control import BrokerControlPort
    from magnetar.control.server import ControlServer

    control = BrokerControlPort(ControlServer(settings), running.context.operations)
    await control.start()
    return control


async def _check_cluster(store: MetadataStore, cluster: str, *, only_reads: bool) -> None:
    if await store.exists(Resources.cluster_path(cluster)):
        return
    if not only_reads:
        raise SettingError(
            f"the metadata store knows no cluster {cluster!r}; prepare it with `magnetar init-metadata --cluster "
            f"{cluster}`, or correct clusterName"
        )
    # It comes to a cluster that others run: nobody is to prepare a second one in its store.
    known = [name for name in await store.children("/admin/clusters", watch=False) if name != "global"]
    raise SettingError(
        f"the metadata store knows no cluster {cluster!r}, but {', '.join(known) or 'none at all'}: a read-only broker "
        f"takes clusterName and metadataStoreUrl from the broker.conf of the brokers that write"
    )


BROKER_SERVICE: Final = Service(
    name="broker",
    known=known_names,
    ignored=ignored_names,
    missing=missing_features,
    settings=broker_process_settings,
    start=start_broker_process,
    describe=BrokerProcess.describe,
    stop_seconds_max=lambda settings: settings.stop_seconds_max,
)
