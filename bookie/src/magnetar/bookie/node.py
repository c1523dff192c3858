"""A bookie with all that it does in a cluster beside storing: it collects garbage, takes part in AutoRecovery, can be
drained, and answers HTTP and gRPC. Wires the parts together, as `app` does for the storage alone.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from magnetar.bookie.admin.server import BookieHttpServer
from magnetar.bookie.app import RunningBookie, start_bookie
from magnetar.bookie.autorecovery.app import RunningAutoRecovery, open_autorecovery
from magnetar.bookie.autorecovery.replication.replicator import LedgerReplicator
from magnetar.bookie.autorecovery.settings import AutoRecoverySettings
from magnetar.bookie.counters import RecoveryCounters
from magnetar.bookie.drain.drain import DrainParts, is_leaving
from magnetar.bookie.drain.service import REASON_DRAIN, DrainService, ModeSwitch
from magnetar.bookie.gc.collectors import Collectors
from magnetar.bookie.gc.settings import GarbageCollectionSettings
from magnetar.bookie.healing import Healer
from magnetar.bookie.integrity.limbo import LimboStage
from magnetar.bookie.operating.cluster import ClusterClient
from magnetar.bookie.operating.local import LocalOperations, LocalParts
from magnetar.bookie.operating.recovery import RecoveryAdmin
from magnetar.bookie.operating.sanity import write_and_read_back
from magnetar.bookie.operations import BookieOperations
from magnetar.bookie.settings import BookieSettings
from magnetar.control.settings import ControlSettings
from magnetar.core.clock import Clock
from magnetar.ledger.bookie_client.v3_query import V3Queries
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.metadata.store import MetadataStore
from magnetar.net.tls import client_tls

if TYPE_CHECKING:
    from magnetar.control.server import ControlServer

logger: Final = logging.getLogger(__name__)

DEFAULT_CONTROL_PORT: Final = 3182
"""The control service's port unless a setting names one: the next one after the bookie's."""

PARTS_CLOSE_SECONDS_MAX: Final = 3.0
"""For the parts that speak with others, together, so that time is left for the last checkpoint however many of them
hang. What they would still tell a metadata store that is away, locks for the most part, ends with the session."""

PART_CLOSE_SECONDS_MIN: Final = 0.1
"""For each of them when that is used up: most need no more."""

_DEFAULT_CONTROL: Final = ControlSettings(port=DEFAULT_CONTROL_PORT)


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieHttpSettings:
    """The HTTP port."""

    host: str = "0.0.0.0"  # noqa: S104  (a server's default)
    """The address that the HTTP port listens on (httpServerHost)."""
    port: int = 8000
    """httpServerPort, or prometheusStatsHttpPort for metrics alone; 0: any free one."""
    metrics_only: bool = True
    """Not httpServerEnabled: whoever reaches the HTTP API may delete ledgers, so Pulsar has it off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """A bookie and everything beside its storage."""

    bookie: BookieSettings
    collection: GarbageCollectionSettings = field(default_factory=GarbageCollectionSettings)
    recovery: AutoRecoverySettings = field(default_factory=AutoRecoverySettings)
    recovery_enabled: bool = True
    """autoRecoveryDaemonEnabled: take part in audits and copying. Drains work without."""
    drain_bytes_per_second: int = 0
    """drainRateByBytes: how fast drains copy; 0: as AutoRecovery of this process, together with it."""
    client: LedgerClientSettings = field(default_factory=LedgerClientSettings)
    """The client that AutoRecovery and drains copy with; the placement policy is in it."""
    http: BookieHttpSettings | None = BookieHttpSettings()
    control: ControlSettings | None = _DEFAULT_CONTROL
    shown: Mapping[str, str] = field(default_factory=dict)
    """Names and values that tools are told, without secrets."""


class RunningNode:
    """Everything, running. Made by `start_node`."""

    def __init__(self, bookie: RunningBookie) -> None:
        self.bookie = bookie
        self.operations: BookieOperations | None = None
        self.http: BookieHttpServer | None = None
        self.control: ControlServer | None = None
        self.recovery: RunningAutoRecovery | None = None
        self.drain_parts: DrainParts | None = None
        self._collectors: Collectors | None = None
        self._local: LocalOperations | None = None
        self._admin: RecoveryAdmin | None = None
        self._drains: DrainService | None = None
        self._death_watch: asyncio.Task[None] | None = None
        self._healing: asyncio.Task[None] | None = None

    async def start(self, settings: NodeSettings, store: MetadataStore, clock: Clock) -> None:
        """Start what stands beside the storage. Raises `StoreUnavailable`, OSError (a port is taken),
        `SettingError`."""
        bookie, counters = self.bookie, RecoveryCounters()
        recovery = self.recovery = await open_autorecovery(
            settings.recovery,
            store,
            clock,
            bookie_id=bookie.bookie_id,
            client_settings=settings.client,
            counters=counters,
            paused=lambda: bookie.mode.read_only,
            tls=client_tls(settings.bookie.tls.client_tls()),
        )
        daemon = recovery.daemon
        collectors = self._collectors = Collectors(
            bookie, store, settings.collection, clock, locks=daemon.underreplicated
        )
        departures = self.drain_parts = DrainParts(
            store=store,
            client=recovery.client,
            connections=recovery.connections,
            underreplicated=daemon.underreplicated,
            replicator=_drain_replicator(settings, recovery, clock),
            holder=f"{bookie.bookie_id}-{uuid.uuid4().hex}",
            clock=clock,
        )
        drains = self._drains = DrainService(departures, bookie.bookie_id, ModeSwitch(bookie.mode))
        local = self._local = self._local_operations(settings, recovery, collectors, store)
        admin = self._admin = RecoveryAdmin(
            store,
            daemon.underreplicated,
            settings.recovery.auditor.election,
            daemon=daemon if settings.recovery_enabled else None,
            departures=departures,
        )
        queries = V3Queries(recovery.connections.address, tls=recovery.connections.tls)
        cluster = ClusterClient(store, recovery.client, recovery.connections, queries)
        self.operations = BookieOperations(
            bookie=local,
            storage=local,
            collection=local,
            measures=local,
            cluster=cluster,
            recovery=admin,
            drains=drains,
        )
        await drains.start()
        collectors.start()
        if bookie.parts.limbo.stage is not LimboStage.NONE:
            healer = Healer(bookie, recovery.client, recovery.connections)
            self._healing = asyncio.get_running_loop().create_task(healer.run(), name="bookie-healing")
        if settings.recovery_enabled:
            daemon.start()
            self._death_watch = asyncio.get_running_loop().create_task(_tell_of_death(recovery), name="death-watch")
        await self._serve(settings, self.operations)

    def _local_operations(
        self, settings: NodeSettings, recovery: RunningAutoRecovery, collectors: Collectors, store: MetadataStore
    ) -> LocalOperations:
        bookie, parts = self.bookie, self.bookie.parts
        return LocalOperations(
            LocalParts(
                bookie_id=bookie.bookie_id,
                address=f"{settings.bookie.advertised_host}:{bookie.port}",
                settings=settings.bookie,
                mode=bookie.mode,
                switch=bookie,
                directories=parts.directories,
                storage=parts.storage,
                states=parts.states,
                journals=parts.journals,
                limbo=parts.limbo,
                counters=bookie.bookie.counters,
                collectors=collectors.all,
                recovery_counters=recovery.daemon.counters if settings.recovery_enabled else None,
                shown_settings=settings.shown,
                sanity_test=lambda: write_and_read_back(store, recovery.connections, bookie.bookie_id),
            )
        )

    async def _serve(self, settings: NodeSettings, operations: BookieOperations) -> None:
        if settings.http is not None:
            http = self.http = BookieHttpServer(operations, metrics_only=settings.http.metrics_only)
            try:
                await http.start(settings.http.host, settings.http.port)
            except OSError as error:
                name = "prometheusStatsHttpPort" if settings.http.metrics_only else "httpServerPort"
                raise OSError(error.errno, f"{name} {settings.http.port} cannot be had: {error.strerror}") from None
        if settings.control is not None:
            # Loads gRPC, 30 MB.
            from magnetar.bookie.admin.control import serve_bookie
            from magnetar.control.server import ControlServer

            self.control = ControlServer(settings.control)
            await serve_bookie(self.control, operations)

    async def close(self) -> None:
        """Stop from the outside to the inside, the storage last. Closing twice is no error."""
        if self._local is not None:
            self._local.stopping = True
        for task in (self._death_watch, self._healing):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PARTS_CLOSE_SECONDS_MAX
        for part in (self.control, self.http, self._drains, self._admin, self.recovery):
            if part is not None:
                try:
                    async with asyncio.timeout_at(max(deadline, loop.time() + PART_CLOSE_SECONDS_MIN)):
                        await part.close()
                except TimeoutError:
                    logger.warning("%s does not end; going on without", type(part).__name__)
        # However long these take: RocksDB cannot be closed while it compacts for them.
        for worker in (self._collectors, self._local):
            if worker is not None:
                await worker.close()
        await self.bookie.close()


async def start_node(settings: NodeSettings, store: MetadataStore, clock: Clock) -> RunningNode:
    """Start the storage, then the rest. On failure what was started is closed again.

    Raises what `start_bookie` and `RunningNode.start` raise."""
    # A bookie whose drain goes on must not register as writable even for a moment: it would get new ledgers.
    leaving = await is_leaving(store, settings.bookie.registered_id)
    reasons = (REASON_DRAIN,) if leaving else ()
    node = RunningNode(await start_bookie(settings.bookie, store, clock, read_only_reasons=reasons))
    try:
        await node.start(settings, store, clock)
    except BaseException:
        await asyncio.shield(node.close())
        raise
    return node


def _drain_replicator(settings: NodeSettings, recovery: RunningAutoRecovery, clock: Clock) -> LedgerReplicator:
    """AutoRecovery's own, unless drains have a rate of their own."""
    daemon = recovery.daemon
    if settings.drain_bytes_per_second <= 0:
        return daemon.replicator
    limited = replace(settings.recovery.replication, bytes_per_second=settings.drain_bytes_per_second)
    return LedgerReplicator(recovery.client, recovery.connections, clock, settings=limited, counters=daemon.counters)


async def _tell_of_death(recovery: RunningAutoRecovery) -> None:
    """Storage goes on without AutoRecovery; other bookies' workers take its share."""
    death = await recovery.wait_until_died()
    logger.critical("AutoRecovery of this bookie has died, its storage goes on: %s", death, exc_info=death)
