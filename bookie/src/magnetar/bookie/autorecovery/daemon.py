"""AutoRecovery of one process: takes part in the auditor's election and replicates ledgers."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from magnetar.bookie.autorecovery.auditor.auditor import Auditor
from magnetar.bookie.autorecovery.auditor.checks import AuditorParts
from magnetar.bookie.autorecovery.auditor.replicas_check import EntryLists
from magnetar.bookie.autorecovery.election import current_auditor, election
from magnetar.bookie.autorecovery.elector import AuditorElector
from magnetar.bookie.autorecovery.replication.replicator import LedgerReplicator
from magnetar.bookie.autorecovery.replication.worker import ReplicationWorker, WorkerProgress
from magnetar.bookie.autorecovery.settings import AutoRecoverySettings
from magnetar.bookie.autorecovery.underreplication import UnderreplicatedLedgers
from magnetar.bookie.counters import RecoveryCounters
from magnetar.bookie.operations import AutoRecoveryState
from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError, Unavailable
from magnetar.ledger.bookie_client.bookie_connection import BookieConnections
from magnetar.ledger.client import BookKeeperClient
from magnetar.metadata.store import MetadataStore

logger: Final = logging.getLogger(__name__)


class AutoRecoveryDied(MagnetarError):
    """A part of AutoRecovery ended by itself; the others were stopped. The cause says why."""


class Worker(Protocol):
    """What replicates: `ReplicationWorker`."""

    async def run(self) -> None:
        """Work until cancelled."""
        ...

    def progress(self) -> WorkerProgress:
        """What this worker does now."""
        ...


class AutoRecoveryDaemon:
    """Both parts, and the watch over them: when one dies the other is stopped, and `died` says so. Whoever runs it
    decides what follows from that: a bookie goes on to store, a process of its own ends with an error
    (BookKeeper: replication/AutoRecoveryMain and its death watcher)."""

    def __init__(
        self,
        store: MetadataStore,
        client: BookKeeperClient,
        connections: BookieConnections,
        bookie_id: str,
        settings: AutoRecoverySettings,
        clock: Clock,
        rng: random.Random,
        *,
        lists: EntryLists | None = None,
        counters: RecoveryCounters | None = None,
        paused: Callable[[], bool] = lambda: False,
    ) -> None:
        """`connections` are the client's. Without `lists` there is no replicas check. `paused` tells whether the
        worker shall take no new ledger: while the bookie of this process is read-only."""
        self.underreplicated = UnderreplicatedLedgers(store, bookie_id, clock, rng)
        """The marks; also for a drain in this process, as a session has one such object."""
        self.counters = counters or RecoveryCounters()
        self.replicator = LedgerReplicator(client, connections, clock, rng, settings.of_worker(), self.counters)
        self.died: asyncio.Future[AutoRecoveryDied] = asyncio.get_running_loop().create_future()
        """Done when a part has died, with the reason as its result. Cancelled by `close`."""
        self._store = store
        self._kind = settings.auditor.election
        self._clock = clock
        parts = AuditorParts(
            store=store,
            underreplicated=self.underreplicated,
            client=client,
            connections=connections,
            clock=clock,
            rng=rng,
            settings=settings.auditor,
            counters=self.counters,
        )
        self.elector = AuditorElector(
            lambda on_change: election(self._kind, store, bookie_id, on_change), lambda: Auditor(parts, lists)
        )
        self.worker: Worker = ReplicationWorker(self.underreplicated, self.replicator, clock, paused)
        self._tasks: list[asyncio.Task[None]] = []
        self._ledgers_left = 0
        self._auditor_bookie_id = ""
        self._enabled = True
        self._closed = False

    def start(self) -> None:
        """Begin. Never waits for the metadata store."""
        self._spawn(self.elector.run(), "auditor elector")
        self._spawn(self.worker.run(), "replication worker")

    async def close(self) -> None:
        """Withdraw from the election, stop copying, give locks back. Closing twice is no error."""
        if self._closed:
            return
        self._closed = True
        await self._stop()
        self.died.cancel()
        try:
            await self.underreplicated.close()
        except Unavailable as error:
            logger.info("locks were not released, the end of the session does it: %s", error)

    @property
    def running(self) -> bool:
        """Whether both parts are at work."""
        return bool(self._tasks) and not self._closed and not self.died.done()

    async def trigger_audit(self) -> None:
        """Have the elected auditor, here or elsewhere, ours or Apache's, look for lost bookies now."""
        if self.elector.auditor is not None:
            self.elector.auditor.trigger_audit()
        else:
            await self.underreplicated.request_audit()

    async def refresh(self) -> AutoRecoveryState:
        """Ask the store for the cluster's part, which walks all marks; then as `progress`."""
        self._ledgers_left = await self.underreplicated.count()
        self._auditor_bookie_id = await current_auditor(self._store, self._kind) or ""
        self._enabled = await self.underreplicated.enabled()
        return self.progress()

    def progress(self) -> AutoRecoveryState:
        """This process's part as it is, the cluster's part as of the last `refresh`."""
        worker = self.worker.progress()
        return AutoRecoveryState(
            enabled=self._enabled,
            auditor_bookie_id=self._auditor_bookie_id,
            ledgers_left=self._ledgers_left,
            running_here=self.running,
            is_auditor=self.elector.auditor is not None,
            ledgers_done=worker.ledgers_done,
            entries_copied=worker.entries_copied,
            bytes_copied=worker.bytes_copied,
            bytes_per_second=worker.bytes_per_second,
            current_ledger_ids=worker.current,
        )

    def _spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        task.add_done_callback(self._part_ended)
        self._tasks.append(task)

    async def _stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _part_ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or self._closed:
            return
        cause = task.exception()
        logger.critical("the %s has died; AutoRecovery of this process ends", task.get_name(), exc_info=cause)
        if not self.died.done():
            death = AutoRecoveryDied(f"the {task.get_name()} has died: {cause or 'it ended'}")
            death.__cause__ = cause
            self.died.set_result(death)
        for other in self._tasks:
            other.cancel()
