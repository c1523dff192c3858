"""Which ledgers are offloaded, and which copies at the bookies go afterwards. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from magnetar.core.ids import Position
from magnetar.managed.ledger_list import LedgerRecord
from magnetar.managed.offload.context import copy_of
from magnetar.tiered.policy import OffloadPolicy


def due_by_policy(records: Sequence[LedgerRecord], policy: OffloadPolicy, now_ms: int) -> list[int]:
    """Oldest first: those beyond the bytes that the newest may have, and those that are old enough.

    The last ledger is in use, or the last that a terminated topic has: brokers open it at the bookies when they load
    the topic, so that it stays there. (Pulsar: ManagedLedgerImpl.maybeOffload)"""
    if not policy.by_itself:
        return []
    chosen: list[int] = []
    newer_bytes = records[-1].size_bytes if records and records[-1].closed_ms else 0
    for record in reversed(records[:-1]):
        newer_bytes += record.size_bytes
        over_size = 0 <= policy.threshold_bytes < newer_bytes
        over_age = 0 <= policy.threshold_ms <= now_ms - record.closed_ms
        if (over_size or over_age) and _can_be_offloaded(record):
            chosen.append(record.ledger_id)
    return chosen[::-1]


def before(records: Sequence[LedgerRecord], position: Position) -> tuple[list[int], Position]:
    """Oldest first: those that lie wholly before the ledger of a position; and where the first entry is that stays.

    (Pulsar: ManagedLedgerImpl.asyncOffloadPrefix)"""
    chosen: list[int] = []
    for record in records[:-1]:
        if record.ledger_id >= position[0]:
            return chosen, (record.ledger_id, 0)
        if _can_be_offloaded(record):
            chosen.append(record.ledger_id)
    return chosen, (records[-1].ledger_id, 0)


def bookkeeper_copies_due(records: Sequence[LedgerRecord], policy: OffloadPolicy, now_ms: int) -> list[int]:
    """Ledgers that were offloaded long enough ago. (Pulsar: ManagedLedgerImpl.isOffloadedNeedsDelete)"""
    lag_ms = policy.deletion_lag_ms
    if policy.store is None or lag_ms is None:
        return []
    chosen = []
    for record in records:
        copy = copy_of(record) if record.rest is not None else None
        if copy is not None and copy.complete and not copy.bookkeeper_deleted and now_ms - copy.offloaded_ms > lag_ms:
            chosen.append(record.ledger_id)
    return chosen


def begun_and_left(records: Sequence[LedgerRecord]) -> list[int]:
    """Ledgers whose offload was begun and not completed."""
    chosen = []
    for record in records:
        copy = copy_of(record) if record.rest is not None else None
        if copy is not None and not copy.complete:
            chosen.append(record.ledger_id)
    return chosen


def _can_be_offloaded(record: LedgerRecord) -> bool:
    """Closed, not empty, and not offloaded yet."""
    if not record.closed_ms or not record.entries:
        return False
    copy = copy_of(record)
    return copy is None or not copy.complete
