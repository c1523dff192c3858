"""A whole cluster on one event loop: metadata, bookie, broker and admin API, wired without a network in between."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Final

from magnetar.bookie.app import RunningBookie, start_bookie
from magnetar.bookie.gc.collectors import Collectors
from magnetar.bookie.local import LocalBookies
from magnetar.bookie.settings import BookieSettings, standalone_settings
from magnetar.broker.app import RunningBroker, start_broker
from magnetar.broker.broker_parts import BrokerParts
from magnetar.broker.resources import Resources, cluster_data, initialize_cluster_metadata
from magnetar.broker.settings.admin import AdminSettings
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.transactions import TransactionSettings
from magnetar.broker.transactions.initialization import initialize_coordinators
from magnetar.core.clock import Clock, SystemClock
from magnetar.core.errors import SettingError
from magnetar.ledger.client import BookKeeperClient
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.metadata.factory import open_store
from magnetar.metadata.local import LocalStore
from magnetar.metadata.store import MetadataStore
from magnetar.process.serving import request_stop
from magnetar.standalone.folder_checks import check_metadata_is_newest, check_metadata_there
from magnetar.standalone.settings import CLUSTER_NAME, COLLECTION, StandaloneSettings

logger: Final = logging.getLogger(__name__)

COORDINATORS: Final = 1
"""Transaction coordinators of a cluster with transactions, as Apache's standalone makes."""


class RunningCluster:
    """A cluster that serves."""

    def __init__(
        self,
        store: MetadataStore,
        bookie: RunningBookie,
        collectors: Collectors,
        ledgers: BookKeeperClient,
        broker: RunningBroker,
    ) -> None:
        self._store = store
        self.bookie = bookie
        self._collectors = collectors
        self._ledgers = ledgers
        self.broker = broker

    @property
    def service_url(self) -> str:
        """Where Pulsar clients connect."""
        return self.broker.settings.service_url

    @property
    def admin_url(self) -> str:
        """Where admin tools connect."""
        return self.broker.settings.web_service_url

    async def close(self) -> None:
        """Stop from the top: what a part still has to write, the parts below it must take."""
        await self.broker.close()
        await self._ledgers.close()
        await self._collectors.close()
        await self.bookie.close()
        await self._store.close()


async def start_cluster(settings: StandaloneSettings) -> RunningCluster:
    """Start everything. On failure what was started is closed again and the error is raised."""
    check_metadata_there(settings)
    settings.data_directory.mkdir(parents=True, exist_ok=True)
    clock = SystemClock()
    opened: list[MetadataStore | RunningBookie | Collectors | BookKeeperClient | RunningBroker] = []
    try:
        store = await open_store(settings.metadata_url)
        opened.append(store)
        bookie = await start_bookie(bookie_settings(settings), store, clock)
        opened.append(bookie)
        assert isinstance(store, LocalStore)
        check_metadata_is_newest(settings, store, bookie)
        parts = settings.configured
        collectors = Collectors(bookie, store, parts.collection if parts is not None else COLLECTION, clock)
        collectors.start()
        opened.append(collectors)
        ledgers = BookKeeperClient(
            store,
            LocalBookies({bookie.bookie_id: bookie.bookie}),
            clock,
            settings=parts.ledgers if parts is not None else LedgerClientSettings(),
        )
        opened.append(ledgers)
        configured = broker_settings(settings)
        await check_cluster_name(store, configured.cluster_name)
        await initialize(store, configured)
        broker = await start_broker(configured, broker_parts(settings, store, ledgers, clock))
        opened.append(broker)
        bookie.parts.journals.when_told(broker.outboxes.send)
        if broker.settings != configured:
            await initialize(store, broker.settings)
    except BaseException:
        for part in reversed(opened):
            await asyncio.shield(part.close())
        raise
    return RunningCluster(store, bookie, collectors, ledgers, broker)


async def initialize(store: MetadataStore, settings: BrokerSettings) -> None:
    """Make what a broker expects to find; with free ports the URLs are known only once it listens."""
    data = cluster_data(settings.service_url, settings.web_service_url)
    resources = Resources(store)
    await initialize_cluster_metadata(resources, settings.cluster_name, data)
    if settings.transactions.enabled:
        await initialize_coordinators(resources, COORDINATORS)


async def check_cluster_name(store: MetadataStore, name: str) -> None:
    """`SettingError` when the folder's cluster has another name: its topics would be a foreign cluster's."""
    known = await store.children(Resources.cluster_path("").rstrip("/"))
    if known and name not in known:
        raise SettingError(f"clusterName is {name}, and the data folder's cluster is called {', '.join(known)}")


def broker_parts(
    settings: StandaloneSettings, store: MetadataStore, ledgers: BookKeeperClient, clock: Clock
) -> BrokerParts:
    """What the broker stands on."""
    parts = settings.configured
    return BrokerParts(
        store,
        ledgers,
        clock,
        parts.managed if parts is not None else ManagedLedgerSettings(),
        balance_settings=parts.balance if parts is not None else None,
        request_stop=request_stop,
    )


def broker_settings(settings: StandaloneSettings) -> BrokerSettings:
    """The broker's part of the settings."""
    if settings.configured is not None:
        configured = settings.configured.broker
        return replace(configured, admin=replace(configured.admin, metadata_store_url=settings.metadata_url))
    return BrokerSettings(
        cluster_name=CLUSTER_NAME,
        bind_address=settings.address,
        advertised_address=settings.address,
        broker_service_port=settings.broker_service_port,
        web_service_port=settings.web_service_port,
        admin=AdminSettings(metadata_store_url=settings.metadata_url),
        transactions=TransactionSettings(enabled=settings.transactions),
    )


def bookie_settings(settings: StandaloneSettings) -> BookieSettings:
    """The bookie's part of the settings; it has no port, the broker reaches it by calls."""
    bookie = standalone_settings(settings.bookie_directory)
    if settings.configured is not None:
        parts = settings.configured
        bookie = replace(bookie, journal=parts.journal, storage=parts.storage, disk=parts.disk)
    journal = replace(bookie.journal, sync_data=settings.journal_sync)
    return replace(
        bookie,
        journal=journal,
        accept_loss=settings.accept_loss,
        movable_folder=settings.bookie_directory,
        metadata_url=settings.metadata_url,
    )
