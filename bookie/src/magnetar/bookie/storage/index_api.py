"""What the storage of one ledger directory needs to know quickly: who owns a ledger, and where its entries are.

Production keeps it in RocksDB (`magnetar.bookie.storage.index`); the simulator in memory on its own disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

from magnetar.core.errors import Unavailable

DELETED_LEDGERS_MAX: Final = 20_000
"""Deleted ledgers that an index remembers, some 30 bytes each: those of a quarter of an hour and more."""


class IndexMissing(Unavailable):
    """There are entry logs, and nothing that says where their entries are. Serving would deny entries that are there,
    and garbage collection would delete the logs."""


class IndexDamaged(Unavailable):
    """The index does not say any more where all entries are that were acknowledged. The text names the directory."""


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

    # --- garbage collection; each call does a bounded amount of work, so that a thread may stop between two

    def stored_ledger_ids(self, first_ledger_id: int, count_max: int) -> list[int]:
        """Ledgers that have a state or any place, ascending, from `first_ledger_id` on; fewer than asked for only when
        there are no more."""
        ...

    def locations_of(self, entries: Sequence[tuple[int, int]]) -> list[int | None]:
        """(ledger id, entry id) → where each is, or None."""
        ...

    def places(
        self, after: tuple[int, int], count_max: int
    ) -> tuple[list[tuple[int, int, int]], tuple[int, int] | None]:
        """The next `count_max` entries of all behind `after` (ledger id, entry id; (0, -1): from the first one):
        (ledger id, entry id, location), ascending. And where to go on; None at the end."""
        ...

    def forget_places(self, entries: Sequence[tuple[int, int]]) -> None:
        """Forget where these entries are (ledger id, entry id); durable on return."""
        ...

    def locations_in_log(
        self, log_id: int, after: tuple[int, int], count_max: int
    ) -> tuple[list[tuple[int, int, int]], tuple[int, int] | None]:
        """Looks at `count_max` entries of all behind `after` (ledger id, entry id; (0, -1): from the first one) for
        those that are in a log: (ledger id, entry id, location). And where to go on; None at the end."""
        ...

    def move_locations(self, old_log_id: int, places: Sequence[tuple[int, int, int]]) -> int:
        """(ledger id, entry id, location) become the places of entries that still are in the old log; others stay as
        they are, whatever `put_locations` does at the same time. Durable after `sync`. How many were moved."""
        ...

    def delete_ledgers(self, ledger_ids: Sequence[int]) -> None:
        """Forget states and places of these ledgers; durable on return. After a crash meanwhile `stored_ledger_ids`
        still has those that are not wholly gone."""
        ...

    def was_deleted(self, ledger_id: int) -> bool:
        """Whether a ledger is one of the last `DELETED_LEDGERS_MAX` that `delete_ledgers` was given, also before a
        restart."""
        ...

    def greatest_ledger_id(self) -> int:
        """The greatest id of the ledgers that have a state or any place, or are remembered as deleted; -1: none.
        OSError."""
        ...

    def estimated_counts(self) -> tuple[int, int]:
        """(ledgers, entries), near enough for metrics; in memory, so that anybody may ask at any time."""
        ...

    def compact_locations(self) -> None:
        """Give back the space of deleted places now; takes as long as it takes."""
        ...

    def close(self) -> None:
        """Let go of everything. What was made durable stays."""
        ...


class OpenIndex(Protocol):
    """Opens or makes the index that stands in a directory."""

    def __call__(self, directory: Path, block_cache_bytes: int, *, create: bool) -> LedgerIndex:
        """Without `create` it must be there: `IndexMissing`. `IndexDamaged`; OSError when it cannot be opened, or
        another process holds it."""
        ...
