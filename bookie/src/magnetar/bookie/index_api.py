"""What the storage of one ledger directory needs to know quickly: who owns a ledger, and where its entries are.

Production keeps it in RocksDB (`magnetar.bookie.index`); the simulator in memory on its own disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol


class LedgerIndex(Protocol):
    """Two maps: ledger id → encoded state, and (ledger id, entry id) → location.

    Methods may be called from any thread and raise OSError when the disk cannot read or write."""

    def ledger(self, ledger_id: int) -> bytes | None:
        """The encoded state of a ledger, or None."""
        ...

    def put_ledgers(self, states: Sequence[tuple[int, bytes]]) -> None:
        """Store states; durable on return."""
        ...

    def ledger_ids(self) -> Iterator[int]:
        """All ledgers with a state, ascending."""
        ...

    def put_locations(self, ledger_id: int, entry_ids: Sequence[int], locations: Sequence[int]) -> None:
        """Store the places of entries of one ledger. Durable after `sync`."""
        ...

    def sync(self) -> None:
        """Make every `put_locations` so far durable."""
        ...

    def location(self, ledger_id: int, entry_id: int) -> int | None:
        """Where an entry is, or None."""
        ...

    def locations(self, ledger_id: int, first_entry_id: int, count_max: int) -> list[int]:
        """Where consecutive entries are, from the first one to the first missing one."""
        ...

    def last_entry_id(self, ledger_id: int) -> int:
        """The greatest entry id of a ledger, or -1."""
        ...

    def entry_ids(self, ledger_id: int) -> list[int]:
        """All entry ids of a ledger, ascending."""
        ...

    def close(self) -> None:
        """Let go of everything. What was made durable stays."""
        ...


class OpenIndex(Protocol):
    """Opens or makes the index that stands in a directory."""

    def __call__(self, directory: Path, block_cache_bytes: int) -> LedgerIndex:
        """OSError when it cannot be opened, or another process holds it."""
        ...
