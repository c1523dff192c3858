"""A tool's way into a cluster: its metadata and its bookies."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from magnetar.core.clock import SystemClock
from magnetar.ledger.bookie_client.tcp_bookie import TcpBookieSettings
from magnetar.ledger.bookie_client.tcp_connections import TcpBookieConnections
from magnetar.ledger.bookie_client.v3_query import V3Queries
from magnetar.ledger.client import BookKeeperClient
from magnetar.ledger.metadata_ops import LedgerMetadataOps
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.metadata.store import MetadataStore
from magnetar.net.tls import ClientTls
from magnetar.process.metadata_settings import MetadataSettings

ANSWER_SECONDS_MAX: Final = 10.0
"""A person waits: a store or a bookie that is silent for this long counts as unreachable."""


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """Everything a tool asks; made by `open_cluster`."""

    store: MetadataStore
    connections: TcpBookieConnections
    client: BookKeeperClient
    queries: V3Queries

    @property
    def ledgers(self) -> LedgerMetadataOps:
        """The ledgers' metadata."""
        return self.client.metadata


@contextlib.asynccontextmanager
async def open_store_of(metadata: MetadataSettings) -> AsyncIterator[MetadataStore]:
    """The metadata store, closed afterwards. `SettingError`, `StoreUnavailable`; a tool makes none where none is."""
    store = await metadata.open(operation_timeout_ms=int(ANSWER_SECONDS_MAX * 1000), make_root=False)
    try:
        yield store
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def open_cluster(metadata: MetadataSettings, tls: ClientTls | None = None) -> AsyncIterator[ClusterAccess]:
    """The store and a client on it, closed afterwards; with `tls` bookies are asked for TLS first. `SettingError`,
    `StoreUnavailable`."""
    clock = SystemClock()
    times = TcpBookieSettings(
        connect_timeout_seconds=ANSWER_SECONDS_MAX,
        add_timeout_seconds=ANSWER_SECONDS_MAX,
        read_timeout_seconds=ANSWER_SECONDS_MAX,
    )
    async with open_store_of(metadata) as store:
        connections = TcpBookieConnections(store, clock, times, tls)
        client = BookKeeperClient(
            store,
            connections,
            clock,
            settings=LedgerClientSettings(add_timeout_seconds=ANSWER_SECONDS_MAX),
            places=connections.places,
        )
        try:
            await connections.start()
            yield ClusterAccess(store, connections, client, V3Queries(connections.address, ANSWER_SECONDS_MAX, tls))
        finally:
            await client.close()
            await connections.close()
