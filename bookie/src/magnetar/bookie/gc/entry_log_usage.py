"""How much of each closed entry log is still wanted: bytes of its ledgers that exist, of all bytes of its ledgers.

Known from the log's own ledgers map, else by reading all of it. Pairs of ledger and size are kept in arrays, 16 bytes
each, up to a bound; beyond it they are read again from the logs' maps when they are needed.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from magnetar.bookie.gc.log_scan import LogScan
from magnetar.bookie.storage import entry_log_format
from magnetar.bookie.storage.entry_log_format import SIZE_BYTES, EntryDamaged
from magnetar.core.disk import Disk

logger: Final = logging.getLogger(__name__)

USAGE_BUCKETS: Final = 10
"""The shares of usage that BookKeeper counts logs by: below 10 %, 20 % …"""


class LogUsage:
    """One closed log."""

    __slots__ = (
        *("damage", "emptied", "ledger_ids", "log_id", "remaining_bytes", "scanned", "sizes_bytes"),
        "total_bytes",
    )

    def __init__(self, log_id: int) -> None:
        self.log_id = log_id
        self.total_bytes = 0
        """Bytes of all entries that were written to the log, size words included."""
        self.remaining_bytes = 0
        """Bytes of the entries whose ledgers exist."""
        self.ledger_ids: array[int] | None = None
        """The ledgers that remain; None when they are to be read again."""
        self.sizes_bytes: array[int] = array("q")
        """Bytes in the log of each ledger of `ledger_ids`."""
        self.scanned = False
        """It has no ledgers map, so reading it again would cost the whole log: its pairs stay in memory."""
        self.emptied = False
        """Its entries were taken out while the index might name them: before it goes, the index is asked."""
        self.damage = ""
        """Why nobody can tell what stands in it; it is neither deleted nor compacted then."""

    def share(self, full_bytes: int = 0) -> float:
        """What remains, of `total_bytes` or of `full_bytes` if that is more; 0 for a log without entries."""
        return self.remaining_bytes / max(1, self.total_bytes, full_bytes)

    @property
    def empty(self) -> bool:
        """Whether it is known that nothing in it is wanted."""
        return not self.damage and self.remaining_bytes == 0

    def set_ledgers(self, sizes_bytes: dict[int, int]) -> None:
        """All ledgers of the log, as written."""
        self.ledger_ids = array("q", sizes_bytes)
        self.sizes_bytes = array("q", sizes_bytes.values())
        self.total_bytes = self.remaining_bytes = sum(self.sizes_bytes)

    def drop_dead(self, alive: frozenset[int]) -> None:
        """Keep the ledgers that are among `alive` only."""
        assert self.ledger_ids is not None
        if alive.issuperset(self.ledger_ids):
            return
        kept = {
            ledger_id: size
            for ledger_id, size in zip(self.ledger_ids, self.sizes_bytes, strict=True)
            if ledger_id in alive
        }
        self.ledger_ids = array("q", kept)
        self.sizes_bytes = array("q", kept.values())
        self.remaining_bytes = sum(self.sizes_bytes)


class EntryLogUsages:
    """All closed logs of a directory. Used by one thread at a time; forgets nothing but what the caller removes."""

    def __init__(self, disk: Disk, directory: Path, ledgers_in_memory_max: int) -> None:
        self._disk = disk
        self._directory = directory
        self._ledgers_max = ledgers_in_memory_max
        self._ledgers = 0
        self._usages: dict[int, LogUsage] = {}

    def __contains__(self, log_id: int) -> bool:
        return log_id in self._usages

    def __iter__(self) -> Iterator[LogUsage]:
        return iter(self._usages.values())

    def __len__(self) -> int:
        return len(self._usages)

    def get(self, log_id: int) -> LogUsage | None:
        """What is known of a log."""
        return self._usages.get(log_id)

    def path(self, log_id: int) -> Path:
        """Where a log is."""
        return self._directory / entry_log_format.file_name(log_id)

    def read_map(self, log_id: int) -> bool:
        """Learn a log's ledgers from its map. False when it has none that can be used: then `LogReading`. OSError."""
        scan = LogScan(self._disk, self.path(log_id))
        try:
            sizes_bytes = scan.read_map()
        except EntryDamaged as error:
            logger.info("%s is read as a whole: %s", self.path(log_id), error)
            return False
        finally:
            scan.close()
        usage = LogUsage(log_id)
        usage.set_ledgers(sizes_bytes)
        self.keep(usage)
        return True

    def keep(self, usage: LogUsage) -> None:
        """Take what was learnt of a log."""
        self._forget_ledgers(self._usages.get(usage.log_id))
        self._usages[usage.log_id] = usage
        if usage.ledger_ids is not None:
            self._ledgers += len(usage.ledger_ids)

    def evaluate(self, log_id: int, alive: frozenset[int], *, keep: bool = False) -> LogUsage:
        """What remains of a known log, given the ledgers that exist; with `keep` they are in memory on return,
        whatever the bound. OSError, `EntryDamaged`."""
        if self._usages[log_id].ledger_ids is None and not self.read_map(log_id):
            raise EntryDamaged(f"the ledgers map of {self.path(log_id)} can no longer be read")
        usage = self._usages[log_id]
        before = len(usage.ledger_ids or ())
        usage.drop_dead(alive)
        assert usage.ledger_ids is not None
        self._ledgers -= before - len(usage.ledger_ids)
        if self._ledgers > self._ledgers_max and not usage.scanned and not keep:
            self._forget_ledgers(usage)
        return usage

    def remove(self, log_id: int) -> None:
        """The log was deleted."""
        self._forget_ledgers(self._usages.pop(log_id, None))

    def buckets(self, full_bytes: int = 0) -> tuple[int, ...]:
        """How many logs have a usage below 10 %, from there below 20 %, …"""
        counts = [0] * USAGE_BUCKETS
        for usage in self._usages.values():
            counts[min(USAGE_BUCKETS - 1, int(usage.share(full_bytes) * USAGE_BUCKETS))] += 1
        return tuple(counts)

    def _forget_ledgers(self, usage: LogUsage | None) -> None:
        if usage is not None and usage.ledger_ids is not None:
            self._ledgers -= len(usage.ledger_ids)
            usage.ledger_ids = None
            usage.sizes_bytes = array("q")


class LogReading:
    """Learns a log's ledgers by reading all of it, step by step."""

    def __init__(self, disk: Disk, path: Path, log_id: int) -> None:
        """Opens the log. FileNotFoundError, OSError."""
        self._scan = LogScan(disk, path)
        self._log_id = log_id
        self._sizes_bytes: dict[int, int] = {}
        self.doubtful = False
        """At the end: the log's last part could not be read as entries; who knows whether the index needs it?"""
        self.position = 0
        """At the end: where that part begins."""

    def step(self) -> bool:
        """Read on; False at the end. OSError."""
        sizes_bytes = self._sizes_bytes
        for ledger_id, _, _, entry in self._scan.next_records():
            sizes_bytes[ledger_id] = sizes_bytes.get(ledger_id, 0) + len(entry) + SIZE_BYTES
        # One without any entry may have been cut off.
        self.doubtful = not self._scan.whole or not (sizes_bytes or self._scan.emptied)
        self.position = self._scan.position
        return not self._scan.ended

    def usage(self) -> LogUsage:
        """What was found; `damage` is told when it was doubtful."""
        usage = LogUsage(self._log_id)
        usage.set_ledgers(self._sizes_bytes)
        usage.scanned = True
        usage.emptied = self._scan.emptied
        if self.doubtful:
            usage.damage = self._scan.damage or "its end is unfinished"
        return usage

    def close(self) -> None:
        """Close the log."""
        self._scan.close()
