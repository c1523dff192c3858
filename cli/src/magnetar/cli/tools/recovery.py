"""Moves all that a bookie had to others: `recover`, and `decommission` for one that leaves for good."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Final

from magnetar.bookie.autorecovery.replication.replicator import LedgerReplicator
from magnetar.bookie.autorecovery.replication.settings import ReplicationSettings
from magnetar.bookie.autorecovery.replication.worker import unless_lost
from magnetar.bookie.autorecovery.replication_lock import ReplicationLock
from magnetar.bookie.autorecovery.underreplication import UnderreplicatedLedgers
from magnetar.bookie.drain.drain import Drain, DrainParts
from magnetar.bookie.operations import BookieDrainState
from magnetar.cli.tools.bookies import delete_cookie
from magnetar.cli.tools.cluster import ClusterAccess
from magnetar.cli.tools.ledgers import list_ledgers
from magnetar.core.clock import SystemClock
from magnetar.ledger.api import LedgerUnavailable, NotEnoughBookies

LEDGERS_AT_ONCE: Final = 4
"""Ledgers that are copied at a time."""
LOCK_SECONDS_MAX: Final = 30.0
"""How long a ledger is waited for that another replicates; a worker keeps one that it failed on for longer."""
LOOK_SECONDS: Final = 0.2
"""Between two looks at how far a decommission is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryRequest:
    """What a recovery is to do."""

    bookie_ids: frozenset[str]
    ledger_id: int | None = None
    """The only ledger that is recovered; None: all ledgers of these bookies."""
    dry_run: bool = False
    skip_open_ledgers: bool = False
    delete_cookies: bool = False
    """When no ledger names the bookies any more."""
    bytes_per_second: int = 0
    """Bytes that are copied in a second; 0 is no limit."""


@dataclass(slots=True, kw_only=True)
class RecoveryTotals:
    """How far a recovery is."""

    ledgers_total: int = 0
    ledgers_done: int = 0
    entries_copied: int = 0
    bytes_copied: int = 0
    failed: dict[int, str] = field(default_factory=dict)
    """Ledger → why it is not whole."""
    planned: list[int] = field(default_factory=list)
    """Ledgers that name the bookies."""


async def recover(
    cluster: ClusterAccess, wish: RecoveryRequest, on_progress: Callable[[RecoveryTotals], None]
) -> RecoveryTotals:
    """Give every ledger that names one of the bookies other replicas in their place. Safe to run again, and beside
    AutoRecovery: each ledger is worked on under its lock. `Unavailable`."""
    totals = RecoveryTotals()
    async for ledger_id, state in _ledgers_naming(cluster, wish.bookie_ids):
        if wish.ledger_id in (None, ledger_id) and (state == "CLOSED" or not wish.skip_open_ledgers):
            totals.planned.append(ledger_id)
    totals.ledgers_total = len(totals.planned)
    if wish.dry_run:
        return totals
    settings = ReplicationSettings(bytes_per_second=wish.bytes_per_second)
    replicator = LedgerReplicator(cluster.client, cluster.connections, SystemClock(), settings=settings)
    marks = UnderreplicatedLedgers(cluster.store, _holder())
    on_progress(totals)
    waiting = iter(totals.planned)

    def copied(entries: int, size_bytes: int) -> None:
        totals.entries_copied += entries
        totals.bytes_copied += size_bytes
        on_progress(totals)

    async def work() -> None:
        for ledger_id in waiting:
            reason = await _recover_ledger(replicator, marks, ledger_id, wish, copied)
            if reason:
                totals.failed[ledger_id] = reason
            totals.ledgers_done += 1
            on_progress(totals)

    workers = [asyncio.get_running_loop().create_task(work()) for _ in range(LEDGERS_AT_ONCE)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        await marks.close()
    if wish.delete_cookies and not totals.failed:
        await _delete_cookies(cluster, wish.bookie_ids, totals)
    return totals


async def _ledgers_naming(cluster: ClusterAccess, bookie_ids: frozenset[str]) -> AsyncIterator[tuple[int, str | None]]:
    """(ledger, state) of those that name one of the bookies."""
    async for row in list_ledgers(cluster.ledgers, None, metadata=True):
        if bookie_ids.intersection(row.bookies or ()):
            yield row.ledger_id, row.state


async def _delete_cookies(cluster: ClusterAccess, bookie_ids: frozenset[str], totals: RecoveryTotals) -> None:
    """Not while a ledger names a bookie: one that was left out, or one that was made meanwhile."""
    async for ledger_id, _ in _ledgers_naming(cluster, bookie_ids):
        totals.failed[ledger_id] = "it still names a bookie, so the cookies stay"
    if not totals.failed:
        for bookie_id in sorted(bookie_ids):
            await delete_cookie(cluster.store, bookie_id)


async def _recover_ledger(
    replicator: LedgerReplicator,
    marks: UnderreplicatedLedgers,
    ledger_id: int,
    wish: RecoveryRequest,
    copied: Callable[[int, int], None],
) -> str:
    """Why the ledger is not whole; empty when it is. Under its lock, for else the new bookies' garbage collection might
    take the copies for leftovers before the metadata names them."""
    lock = await _lock(marks, ledger_id)
    if lock is None:
        return f"{await marks.lock_holder(ledger_id) or 'another'} replicates it: try again later"
    try:
        reason = await unless_lost(lock, _recover_locked(replicator, ledger_id, wish, copied))
    finally:
        await lock.release()
    return "its lock was lost: try again later" if reason is None else reason


async def _lock(marks: UnderreplicatedLedgers, ledger_id: int) -> ReplicationLock | None:
    with marks.watch_changes() as changes:
        try:
            async with asyncio.timeout(LOCK_SECONDS_MAX):
                while (lock := await marks.lock(ledger_id)) is None:
                    await changes.wait()
                return lock
        except TimeoutError:
            return None


async def _recover_locked(
    replicator: LedgerReplicator, ledger_id: int, wish: RecoveryRequest, copied: Callable[[int, int], None]
) -> str:
    if not wish.skip_open_ledgers:
        try:
            await replicator.close_open_ledger(ledger_id, avoid=wish.bookie_ids)
        except (LedgerUnavailable, NotEnoughBookies) as error:
            return f"it is open and cannot be closed: {error}"
    result = await replicator.replicate(ledger_id, avoid=wish.bookie_ids, on_progress=copied)
    return result.reason


def _holder() -> str:
    """What this process signs locks with; no other one, nor any before, has the same."""
    return f"{socket.gethostname()}:{os.getpid()}-{time.time_ns()}"


@contextlib.asynccontextmanager
async def open_drain(cluster: ClusterAccess, bookie_id: str, bytes_per_second: int = 0) -> AsyncIterator[Drain]:
    """The drain of a bookie that is stopped, whoever has begun it."""
    clock = SystemClock()
    holder = _holder()
    underreplicated = UnderreplicatedLedgers(cluster.store, holder, clock)
    settings = ReplicationSettings(bytes_per_second=bytes_per_second)
    parts = DrainParts(
        store=cluster.store,
        client=cluster.client,
        connections=cluster.connections,
        underreplicated=underreplicated,
        replicator=LedgerReplicator(cluster.client, cluster.connections, clock, settings=settings),
        holder=holder,
        clock=clock,
    )
    try:
        yield Drain(parts, bookie_id)
    finally:
        await underreplicated.close()


async def decommission(
    drain: Drain, on_progress: Callable[[BookieDrainState], None], seconds_max: float
) -> BookieDrainState:
    """Run a drain that was started, to its end or for so long (0: as long as it takes). When time is up it can be
    gone on with later. `OperationRefused`, `Unavailable`."""
    running = asyncio.get_running_loop().create_task(drain.run(), name="decommission")
    deadline = time.monotonic() + seconds_max if seconds_max else float("inf")
    try:
        while not running.done() and time.monotonic() < deadline:
            await asyncio.wait((running,), timeout=LOOK_SECONDS)
            on_progress(drain.progress())
        return await running if running.done() else drain.progress()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
