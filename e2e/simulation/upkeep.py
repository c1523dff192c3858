"""What runs in a bookie's process beside the bookie: AutoRecovery and garbage collection, the real ones."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Final

from magnetar.bookie.app import RunningBookie
from magnetar.bookie.autorecovery.daemon import AutoRecoveryDaemon
from magnetar.bookie.autorecovery.replication.settings import ReplicationSettings
from magnetar.bookie.autorecovery.settings import AuditorSettings, AutoRecoverySettings
from magnetar.bookie.drain.drain import DrainParts
from magnetar.bookie.drain.service import DrainService, ModeSwitch
from magnetar.bookie.gc.collector import GarbageCollector
from magnetar.bookie.gc.live_ledgers import LedgerLocks, StoredLiveLedgers
from magnetar.bookie.gc.settings import GarbageCollectionSettings
from magnetar.bookie.operations import OperationRefused
from magnetar.core.clock import Clock
from magnetar.core.errors import Unavailable
from magnetar.core.limits import KIB
from magnetar.ledger.bookie_client.tcp_bookie import TcpBookieSettings
from magnetar.ledger.bookie_client.tcp_connections import TcpBookieConnections
from magnetar.ledger.client import BookKeeperClient
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.metadata.store import MetadataStore

from e2e.simulation.watched import WatchedConnections
from e2e.simulation.witness import Witness

AUTORECOVERY_SETTINGS: Final = AutoRecoverySettings(
    auditor=AuditorSettings(
        bookie_check_interval_seconds=3.0, all_ledgers_check_interval_seconds=4.0, verification_percentage=100
    ),
    replication=ReplicationSettings(
        add_timeout_seconds=1.0,
        failure_backoff_seconds=0.5,
        failed_lock_seconds_max=8.0,
        open_ledger_grace_seconds=1.0,
        verification_percentage=100,
    ),
)

COLLECTION_SETTINGS: Final = GarbageCollectionSettings(
    wait_seconds=0.7,
    minor_threshold=0.5,
    minor_interval_seconds=0.8,
    major_threshold=0.9,
    major_interval_seconds=1.5,
    over_replicated_wait_seconds=1.0,
    free_bytes_min=64 * KIB,
)


RETRY_SECONDS: Final = 0.3
DRAIN_SETTLE_SECONDS: Final = 3.0
"""Clients hear of a read-only bookie much sooner than that, unless they do not reach the metadata service."""

logger: Final = logging.getLogger("magnetar.simulation")


class Recovery:
    """AutoRecovery of one process, with a client of its own, and the drain that stands on both."""

    def __init__(
        self, running: RunningBookie, store: MetadataStore, client: BookKeeperClient, connections: WatchedConnections
    ) -> None:
        self.daemon: AutoRecoveryDaemon
        self.drain: DrainService
        self._running = running
        self._store = store
        self._client = client
        self._connections = connections

    def start(self, clock: Clock, chance: random.Random) -> None:
        """Begin."""
        running = self._running
        self.daemon = AutoRecoveryDaemon(
            self._store,
            self._client,
            self._connections,
            running.bookie_id,
            AUTORECOVERY_SETTINGS,
            clock,
            chance,
            paused=lambda: running.mode.read_only,
        )
        parts = DrainParts(
            store=self._store,
            client=self._client,
            connections=self._connections,
            underreplicated=self.daemon.underreplicated,
            replicator=self.daemon.replicator,
            holder=f"{running.bookie_id} {chance.random()}",
            clock=clock,
            settle_seconds=DRAIN_SETTLE_SECONDS,
            retry_seconds=RETRY_SECONDS,
        )
        self.drain = DrainService(parts, running.bookie_id, ModeSwitch(running.mode))
        self.daemon.start()

    async def go_on_draining(self) -> None:
        """If an earlier run of this bookie has begun to."""
        while True:
            try:
                await self.drain.start()
                return
            except Unavailable:
                await asyncio.sleep(RETRY_SECONDS)

    async def begin_to_drain(self) -> None:
        """Unless the others could not take its place, or nobody can be asked."""
        try:
            await self.drain.start_drain()
        except (OperationRefused, Unavailable) as error:
            logger.info("no drain: %s", error)


class Upkeep:
    """Of one bookie's process."""

    def __init__(self, running: RunningBookie, store: MetadataStore, clock: Clock, chance: random.Random) -> None:
        self._running = running
        self._store = store
        self._clock = clock
        self._chance = chance

    async def recover(
        self, client_settings: LedgerClientSettings, connection_settings: TcpBookieSettings, witness: Witness
    ) -> Recovery:
        """Begin AutoRecovery, and go on with a drain."""
        connections = TcpBookieConnections(self._store, self._clock, connection_settings)
        while True:
            try:
                await connections.start()
                break
            except Unavailable:
                await asyncio.sleep(RETRY_SECONDS)
        watched = WatchedConnections(connections, witness)
        client = BookKeeperClient(self._store, watched, self._clock, self._chance, client_settings, connections.places)
        recovery = Recovery(self._running, self._store, client, watched)
        recovery.start(self._clock, self._chance)
        await recovery.go_on_draining()
        return recovery

    def collect(self, locks: LedgerLocks | None) -> None:
        """Begin to collect garbage, in each directory."""
        running = self._running
        live = StoredLiveLedgers(self._store, running.bookie_id)
        for storage in running.parts.storage.directories:
            collector = GarbageCollector(
                storage,
                live,
                COLLECTION_SETTINGS,
                self._clock,
                running.parts.forget_ledgers,
                bookie_id=running.bookie_id if locks is not None else "",
                locks=locks,
                rng=self._chance,
            )
            asyncio.get_running_loop().create_task(collector.run(), name=f"garbage of {storage.directory}")
