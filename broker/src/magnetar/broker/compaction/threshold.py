"""When a topic is to be compacted by itself. Pure.

Facts: transactions-dedup-compaction section 3.1 (Pulsar: `PersistentTopic.checkCompaction`)."""

from __future__ import annotations

from magnetar.core.ids import Position
from magnetar.managed.compaction import COMPACTION_CURSOR
from magnetar.managed.managed_ledger import ManagedLedger


def wanted(threshold_bytes: int, *, always: bool) -> bool:
    """Whether a topic is compacted by itself at all; `always` for those of brokers."""
    return always or threshold_bytes > 0


def over_threshold(ledger: ManagedLedger, threshold_bytes: int, end: Position) -> bool:
    """Whether more bytes than the threshold came since the last compaction, as far as the ledgers' sizes tell. What is
    behind `end` does not count: it cannot be compacted before a transaction has ended."""
    cursor = ledger.cursors.get(COMPACTION_CURSOR)
    hidden_bytes = ledger.ledgers.size_bytes_after(end)
    if cursor is None:
        return ledger.ledgers.total_size_bytes() - hidden_bytes > max(0, threshold_bytes)
    if cursor.backlog_entries == 0 or end <= cursor.mark_delete:
        return False
    return ledger.ledgers.size_bytes_after(cursor.mark_delete) - hidden_bytes > max(0, threshold_bytes)
