"""The offload policy of a managed ledger: which ledgers go, where to, and how long two copies are kept. Pure."""

from __future__ import annotations

import enum
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

DELETION_LAG_MS: Final = 4 * 3_600_000
"""Pulsar's default of `managedLedgerOffloadDeletionLagMs`."""

RUNS_MAX: Final = 2
"""Pulsar's default of `managedLedgerOffloadMaxThreads`."""


class ReadFirst(enum.StrEnum):
    """Where a ledger is read that is in both places (Pulsar: `OffloadedReadPriority`)."""

    TIERED_STORAGE = "tiered-storage-first"
    BOOKKEEPER = "bookkeeper-first"


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadPolicy:
    """The offload policy of one managed ledger."""

    store: Hashable | None = None
    """The settings of the store, as `Offloaders` makes an offloader of them; None: nothing is offloaded."""
    problem: str = ""
    """Why there is no store, where one is asked for."""
    threshold_bytes: int = -1
    """Bytes of the newest ledgers that stay; older ones are offloaded. Below 0: none is, for its size."""
    threshold_ms: int = -1
    """Milliseconds after its end at which a ledger is offloaded; below 0: none is, for its age."""
    deletion_lag_ms: int | None = DELETION_LAG_MS
    """Milliseconds after its offload at which BookKeeper's copy goes; None: never."""
    read_first: ReadFirst = ReadFirst.TIERED_STORAGE
    runs_max: int = RUNS_MAX
    """Ledgers that are offloaded to this store at a time, by the whole process."""
    on_load: bool = False
    """Whether what is due is offloaded when the managed ledger is opened, and not only after its next rollover."""

    @property
    def by_itself(self) -> bool:
        """Whether anything is offloaded without being asked for."""
        return self.store is not None and (self.threshold_bytes >= 0 or self.threshold_ms >= 0)


NO_OFFLOAD: Final = OffloadPolicy()
