"""Wires AutoRecovery together: for a bookie, and for a process of its own."""

from __future__ import annotations

import random
from collections.abc import Callable

from magnetar.bookie.autorecovery.daemon import AutoRecoveryDaemon, AutoRecoveryDied
from magnetar.bookie.autorecovery.settings import AutoRecoverySettings
from magnetar.bookie.counters import RecoveryCounters
from magnetar.core.clock import Clock
from magnetar.ledger.bookie_client.tcp_connections import TcpBookieConnections
from magnetar.ledger.bookie_client.v3_query import V3Queries
from magnetar.ledger.client import BookKeeperClient
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.metadata.store import MetadataStore
from magnetar.net.tls import ClientTls


class RunningAutoRecovery:
    """AutoRecovery with a client and connections of its own. Made by `open_autorecovery`."""

    def __init__(self, daemon: AutoRecoveryDaemon, client: BookKeeperClient, connections: TcpBookieConnections) -> None:
        self.daemon = daemon
        self.client = client
        self.connections = connections

    async def wait_until_died(self) -> AutoRecoveryDied:
        """Return when a part of it has died: a bookie reports that and goes on, a process of its own closes and exits
        with an error. Never returns otherwise; cancelled by `close`."""
        return await self.daemon.died

    async def close(self) -> None:
        """Stop all of it; the metadata store stays open."""
        await self.daemon.close()
        await self.client.close()
        await self.connections.close()


async def open_autorecovery(
    settings: AutoRecoverySettings,
    metadata_store: MetadataStore,
    clock: Clock,
    *,
    bookie_id: str,
    client_settings: LedgerClientSettings | None = None,
    counters: RecoveryCounters | None = None,
    paused: Callable[[], bool] = lambda: False,
    rng: random.Random | None = None,
    tls: ClientTls | None = None,
) -> RunningAutoRecovery:
    """All of it, and nothing at work until `daemon.start`. Raises `StoreUnavailable`.

    `bookie_id` is what it signs votes and locks with: in a bookie that bookie's, which then must have no other
    AutoRecovery; in a process of its own any id that no other process uses. The client's settings carry the placement
    policy. `paused` as in `AutoRecoveryDaemon`. With `tls` bookies are asked for TLS first."""
    rng = rng or random.SystemRandom()
    connections = TcpBookieConnections(metadata_store, clock, tls=tls)
    client = BookKeeperClient(
        metadata_store, connections, clock, rng, client_settings or LedgerClientSettings(), connections.places
    )
    lists = V3Queries(connections.address, tls=tls)
    try:
        await connections.start()
        daemon = AutoRecoveryDaemon(
            metadata_store,
            client,
            connections,
            bookie_id,
            settings,
            clock,
            rng,
            lists=lists,
            counters=counters,
            paused=paused,
        )
    except BaseException:
        await client.close()
        await connections.close()
        raise
    return RunningAutoRecovery(daemon, client, connections)


async def start_autorecovery(
    settings: AutoRecoverySettings,
    metadata_store: MetadataStore,
    clock: Clock,
    *,
    bookie_id: str,
    client_settings: LedgerClientSettings | None = None,
    tls: ClientTls | None = None,
) -> RunningAutoRecovery:
    """Begin to audit, if elected, and to replicate: a process of its own. As `open_autorecovery`."""
    running = await open_autorecovery(
        settings, metadata_store, clock, bookie_id=bookie_id, client_settings=client_settings, tls=tls
    )
    running.daemon.start()
    return running
