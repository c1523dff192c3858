"""Moves all that a bookie had to others: `recover`, and `decommission` for one that leaves for good."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from magnetar.bookie.autorecovery.replication_settings import ReplicationSettings
from magnetar.bookie.autorecovery.replicator import LedgerReplicator, ReplicationResult
from magnetar.core.clock import SystemClock
from magnetar.core.errors import MagnetarError
from magnetar.standalone.tools.cluster import Cluster
from magnetar.standalone.tools.ledgers import list_ledgers

LEDGERS_AT_ONCE: Final = 4
"""Ledgers that are copied at a time."""


class BookieIsUp(MagnetarError):
    """What is to be done needs the bookie to be stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryWish:
    """What to do."""

    bookie_ids: frozenset[str]
    ledger_id: int | None = None
    """Only this ledger."""
    dry_run: bool = False
    skip_open_ledgers: bool = False
    bytes_per_second: int = 0
    """0: no limit."""


@dataclass(slots=True, kw_only=True)
class RecoveryTotals:
    """How far it is."""

    ledgers_total: int = 0
    ledgers_done: int = 0
    entries_copied: int = 0
    bytes_copied: int = 0
    failed: dict[int, str] = field(default_factory=dict)
    """Ledger → why it is not whole."""
    planned: list[int] = field(default_factory=list)
    """Ledgers that name the bookies."""


async def recover(
    cluster: Cluster, wish: RecoveryWish, on_progress: Callable[[RecoveryTotals], None]
) -> RecoveryTotals:
    """Give every ledger that names one of the bookies other replicas in their place. Safe to run again, and beside
    AutoRecovery: each ledger's metadata changes by compare-and-set. `Unavailable`."""
    totals = RecoveryTotals()
    async for row in list_ledgers(cluster.ledgers, None, metadata=True):
        if wish.ledger_id not in (None, row.ledger_id) or not wish.bookie_ids.intersection(row.bookies or ()):
            continue
        if wish.skip_open_ledgers and row.state != "CLOSED":
            continue
        totals.planned.append(row.ledger_id)
    totals.ledgers_total = len(totals.planned)
    if wish.dry_run:
        return totals
    settings = ReplicationSettings(bytes_per_second=wish.bytes_per_second)
    replicator = LedgerReplicator(cluster.client, cluster.connections, SystemClock(), settings=settings)
    on_progress(totals)
    waiting = iter(totals.planned)

    def copied(entries: int, size_bytes: int) -> None:
        totals.entries_copied += entries
        totals.bytes_copied += size_bytes
        on_progress(totals)

    async def work() -> None:
        for ledger_id in waiting:
            result = await _recover_ledger(replicator, ledger_id, wish, copied)
            if not result.complete:
                totals.failed[ledger_id] = result.reason
            totals.ledgers_done += 1
            on_progress(totals)

    async with asyncio.TaskGroup() as group:
        for _ in range(LEDGERS_AT_ONCE):
            group.create_task(work())
    return totals


async def _recover_ledger(
    replicator: LedgerReplicator, ledger_id: int, wish: RecoveryWish, copied: Callable[[int, int], None]
) -> ReplicationResult:
    if not wish.skip_open_ledgers:
        await replicator.close_open_ledger(ledger_id, avoid=wish.bookie_ids)
    return await replicator.replicate(ledger_id, avoid=wish.bookie_ids, on_progress=copied)
