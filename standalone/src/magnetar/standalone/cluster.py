"""A whole cluster on one event loop: metadata, bookie, broker and admin API, wired without a network in between."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Final

from magnetar.bookie.app import RunningBookie, start_bookie
from magnetar.bookie.gc.collectors import Collectors
from magnetar.bookie.gc.settings import GarbageCollectionSettings
from magnetar.bookie.local import LocalBookies
from magnetar.bookie.settings import BookieSettings, standalone_settings
from magnetar.broker.app import BrokerParts, RunningBroker, start_broker
from magnetar.broker.resources import Resources, cluster_data, initialize_cluster_metadata
from magnetar.broker.settings.admin import AdminSettings
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.transactions import TransactionSettings
from magnetar.broker.transactions.initialization import initialize_coordinators
from magnetar.core.clock import SystemClock
from magnetar.ledger.client import BookKeeperClient
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.metadata.factory import open_store
from magnetar.metadata.local import LocalStore
from magnetar.metadata.store import MetadataStore
from magnetar.process.serving import request_stop
from magnetar.standalone.folder_checks import check_metadata_is_newest, check_metadata_there
from magnetar.standalone.settings import StandaloneSettings

logger: Final = logging.getLogger(__name__)

CLUSTER_NAME = "standalone"

COORDINATORS: Final = 1
"""With `--transactions`, as Apache's standalone makes."""

COLLECTION = GarbageCollectionSettings(wait_seconds=60.0, disk_almost_full_share=0.95, disk_full_share=0.98)
"""A small store is looked through in milliseconds, so what was deleted need not stay for a quarter of an hour."""


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
        self._bookie = bookie
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
        await self._bookie.close()
        await self._store.close()


async def start_cluster(settings: StandaloneSettings) -> RunningCluster:
    """Start everything. On failure what was started is closed again and the error is raised."""
    check_metadata_there(settings)
    settings.data_directory.mkdir(parents=True, exist_ok=True)
    clock = SystemClock()
    opened: list[MetadataStore | RunningBookie | Collectors | BookKeeperClient] = []
    try:
        store = await open_store(settings.metadata_url)
        opened.append(store)
        bookie = await start_bookie(bookie_settings(settings), store, clock)
        opened.append(bookie)
        assert isinstance(store, LocalStore)
        check_metadata_is_newest(settings, store, bookie)
        collectors = Collectors(bookie, store, COLLECTION, clock)
        collectors.start()
        opened.append(collectors)
        ledgers = BookKeeperClient(store, LocalBookies({bookie.bookie_id: bookie.bookie}), clock)
        opened.append(ledgers)
        parts = BrokerParts(store, ledgers, clock, ManagedLedgerSettings(), request_stop=request_stop)
        configured = broker_settings(settings)
        await initialize(store, configured)
        broker = await start_broker(configured, parts)
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
    await initialize_cluster_metadata(resources, CLUSTER_NAME, data)
    if settings.transactions.enabled:
        await initialize_coordinators(resources, COORDINATORS)


def broker_settings(settings: StandaloneSettings) -> BrokerSettings:
    """The broker's part of the settings."""
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
    journal = replace(bookie.journal, sync_data=settings.journal_sync)
    return replace(
        bookie,
        journal=journal,
        accept_loss=settings.accept_loss,
        movable_folder=settings.bookie_directory,
        metadata_url=settings.metadata_url,
    )
