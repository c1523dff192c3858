"""`magnetar` with everything small, so that seconds of traffic bring checkpoints, new files and collections of garbage.

`python -m e2e.power.small standalone --data …`, or any other of its commands; with a planted mistake, if POWER_MISTAKE
names one of `mistakes.CODE`.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Final

from magnetar.bookie import settings as bookie_settings
from magnetar.bookie.gc.settings import GarbageCollectionSettings
from magnetar.bookie.storage import index_database
from magnetar.cli import __main__ as program
from magnetar.core.limits import MIB
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.metadata import rocksdb
from magnetar.standalone import cluster

from e2e.power.mistakes import CODE

WRITE_BUFFER_BYTES: Final = 64 << 10
"""Of RocksDB: it writes a new table, and begins a new log, that often."""
ENTRIES_PER_LEDGER: Final = 40
CHECKPOINT_SECONDS: Final = 0.3
COLLECTION: Final = GarbageCollectionSettings(
    wait_seconds=0.5,
    minor_interval_seconds=0.5,
    major_interval_seconds=1.0,
    minor_threshold=0.3,
    major_threshold=0.8,
    entries_per_second=100_000,
    disk_almost_full_share=0.99,
    disk_full_share=0.995,
)


def make_small() -> None:
    """Change the settings that the command line does not offer."""
    storage, journal = bookie_settings.STANDALONE_STORAGE, bookie_settings.STANDALONE_JOURNAL
    storage = replace(
        storage,
        write_cache_bytes_max=bookie_settings.WRITE_CACHE_BYTES_MIN,
        flush_interval_seconds=CHECKPOINT_SECONDS,
        entry_log_bytes_max=MIB,
        read_ahead_bytes_max=0,
    )
    managed = partial(
        ManagedLedgerSettings,
        max_entries_per_ledger=ENTRIES_PER_LEDGER,
        minimum_rollover_ms=0,
        cursor_ledger_entries_max=20,
        mark_delete_rate=20.0,
    )
    small: list[tuple[ModuleType, str, object]] = [
        (index_database, "WRITE_BUFFER_BYTES", WRITE_BUFFER_BYTES),
        (rocksdb, "_WRITE_BUFFER_BYTES", WRITE_BUFFER_BYTES),
        (bookie_settings, "STANDALONE_STORAGE", storage),
        (bookie_settings, "STANDALONE_JOURNAL", replace(journal, size_bytes_max=MIB, preallocate_bytes=MIB)),
        (cluster, "COLLECTION", COLLECTION),
        (cluster, "ManagedLedgerSettings", managed),
    ]
    for module, name, value in small:
        assert hasattr(module, name), f"{module.__name__} has no {name}"
        setattr(module, name, value)


if __name__ == "__main__":
    make_small()
    mistake = os.environ.get("POWER_MISTAKE")
    if mistake:
        CODE[mistake]()
    program.main()
