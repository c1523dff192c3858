"""What dispatch needs of a cursor, and of what goes by it: the `Cursor` of managed ledgers has it, and so has the
tests' cursor in memory.

A Protocol and not that class, because compiled code takes a class at its word. It is called per batch, so that calls
that the compiler cannot bind cost nothing that could be measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.managed.entry import Entry


class SnapshotReceiver(Protocol):
    """What keeps the snapshots of a replicated subscription."""

    def read(self, markers: list[Entry]) -> None:
        """The subscription has come to these markers."""
        ...


class SubscriptionCursor(Protocol):
    """Position and acknowledgements of one subscription; see `Cursor` for what each call promises."""

    cursor_properties: dict[str, str]

    @property
    def read_position(self) -> Position:
        """The next entry to read."""
        ...

    @property
    def durable(self) -> bool:
        """Whether the cursor is kept in the store."""
        ...

    @property
    def mark_delete(self) -> Position:
        """Everything up to here is acknowledged."""
        ...

    @property
    def backlog_entries(self) -> int:
        """Confirmed entries that are not acknowledged."""
        ...

    def read_cached(self, count_max: int, size_bytes_max: int) -> list[Entry] | None:
        """Entries from the cache; None when the next one has to be read."""
        ...

    async def read(self, count_max: int, size_bytes_max: int) -> list[Entry]:
        """Entries from wherever they are."""
        ...

    async def read_positions(self, positions: Sequence[Position]) -> list[Entry]:
        """Those of the entries that are not acknowledged."""
        ...

    def acknowledge(self, positions: Sequence[Position]) -> None:
        """Acknowledge single entries."""
        ...

    def acknowledge_batch_indexes(self, position: Position, remaining: list[int], batch_size: int) -> bool:
        """Acknowledge messages of a batch: `remaining` is the ack set that is left. Whether the entry became wholly
        acknowledged."""
        ...

    def acknowledge_cumulative(self, position: Position, remaining: list[int] | None = None) -> None:
        """Acknowledge everything up to the position; with `remaining`, an ack set, the last entry only in part."""
        ...

    def is_acknowledged(self, position: Position) -> bool:
        """Whether the whole entry is acknowledged."""
        ...

    def remaining_ack_set(self, position: Position) -> list[int] | None:
        """The ack set of a batch: the words of its bits that are not acknowledged. None: the batch is whole."""
        ...

    def redelivered(self, positions: Sequence[Position]) -> None:
        """Clients asked for these entries again: it is counted until they are acknowledged."""
        ...

    def redelivery_counts(self, entries: list[Entry]) -> list[int] | None:
        """How often each of the entries was asked for again; None when none was."""
        ...

    def unacknowledged_at(self, number: int) -> Position:
        """The `number`-th entry of the backlog, from 1."""
        ...

    @property
    def individual_ranges(self) -> int:
        """Stretches beyond the mark that are acknowledged."""
        ...

    @property
    def state_fits(self) -> bool:
        """Whether all that is acknowledged beyond the mark is stored: else the next owner delivers some of it again."""
        ...

    def rewind(self) -> None:
        """Read again from the first entry that is not acknowledged."""
        ...

    def skip_to(self, position: Position) -> None:
        """Read on from here."""
        ...

    async def reset(self, position: Position) -> None:
        """Seek: reading goes on at the position, and everything before it counts as acknowledged."""
        ...

    async def skip_entries(self, count: int) -> None:
        """Acknowledge the next unacknowledged entries."""
        ...

    async def clear_backlog(self) -> None:
        """Acknowledge the whole backlog."""
        ...

    def persist(self, done: Callable[[MagnetarError | None], None]) -> None:
        """Tell when what is acknowledged now is durable."""
        ...

    async def close(self) -> None:
        """Store what is acknowledged, and read no more."""
        ...
