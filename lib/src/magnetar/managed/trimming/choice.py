"""Which ledgers may be deleted. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from magnetar.core.ids import Position
from magnetar.managed.ledger_list import LedgerRecord
from magnetar.managed.settings import ManagedLedgerSettings


def ledgers_to_delete(
    records: Sequence[LedgerRecord], slowest_mark: Position | None, settings: ManagedLedgerSettings, now_ms: int
) -> list[int]:
    """From the oldest on: consumed by every durable cursor (None: there is none) and beyond a retention limit.

    The first ledger that is not ends the run. The last one, which may be in use, is never chosen.
    (Pulsar: ManagedLedgerImpl.internalTrimConsumedLedgers)

    Retention by time counts from when a ledger was closed, or from when the last of its delayed messages was due if
    that was later. One that was acknowledged before it was due has kept nothing: its time does not count until then."""
    left_bytes = sum(record.size_bytes for record in records)
    chosen: list[int] = []
    for record in records[:-1]:
        if slowest_mark is not None and slowest_mark < (record.ledger_id, record.entries - 1):
            break
        since_ms = record.due_ms if record.closed_ms < record.due_ms <= now_ms else record.closed_ms
        over_time = (
            settings.retention_time_ms >= 0 and now_ms - since_ms > settings.retention_time_ms
        ) or settings.retention_time_ms == 0
        over_size = settings.retention_size_bytes >= 0 and left_bytes >= settings.retention_size_bytes
        if not over_time and not over_size:
            break
        chosen.append(record.ledger_id)
        left_bytes -= record.size_bytes
    return chosen
