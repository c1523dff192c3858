"""How AutoRecovery fares, for people to look at."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.bookie.autorecovery.replication.worker import WorkerProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryProgress:
    """The cluster's part as last read from the metadata store, and what this process has done since it started."""

    ledgers_left: int
    """Marked in the cluster."""
    auditor_bookie_id: str | None
    """Who audits; None if nobody does."""
    enabled: bool
    """In the whole cluster."""
    is_auditor: bool
    running: bool
    """False once a part of it has died, or it was closed."""
    worker: WorkerProgress
