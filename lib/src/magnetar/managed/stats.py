"""Statistics of a managed ledger for administrators (Pulsar: internalStats)."""

from __future__ import annotations

from dataclasses import dataclass, field

from magnetar.core.ids import Position
from magnetar.managed.ledger_list import LedgerRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerStats:
    """One ledger of the list; the one in use shows what is confirmed."""

    ledger_id: int
    entries: int
    size_bytes: int
    closed_ms: int
    """When the ledger was closed, in milliseconds since 1970; 0 while it is in use."""
    offloaded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorStats:
    """Where one cursor stands and how it is stored."""

    mark_delete: Position
    read_position: Position
    individually_acknowledged: str
    """Individually acknowledged ranges, as Pulsar prints them: `[(l:e..l:e], (l:e..l:e]]`. The first ones, where `...`
    stands at the end."""
    cursor_ledger: int
    """The id of the cursor's ledger; -1: none, the position is in the metadata."""
    cursor_ledger_last_entry: int
    backlog_entries: int
    individual_count: int
    last_ledger_switch_ms: int
    dirty: bool
    properties: dict[str, int]
    cursor_properties: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedLedgerStats:
    """One managed ledger."""

    state: str
    entries_added: int
    """Entries added since the managed ledger was opened."""
    number_of_entries: int
    total_size_bytes: int
    current_ledger_entries: int
    current_ledger_size_bytes: int
    last_ledger_created_ms: int
    last_ledger_creation_error: str | None
    pending_entries: int
    last_confirmed: Position
    ledgers: list[LedgerStats] = field(default_factory=list)
    cursors: dict[str, CursorStats] = field(default_factory=dict)
    properties: dict[str, str] = field(default_factory=dict)


def stats_of_ledger(record: LedgerRecord) -> LedgerStats:
    """Statistics of one ledger of the list."""
    return LedgerStats(
        ledger_id=record.ledger_id,
        entries=record.entries,
        size_bytes=record.size_bytes,
        closed_ms=record.closed_ms,
        offloaded=record.rest is not None and record.rest.offloadContext.complete,
    )
