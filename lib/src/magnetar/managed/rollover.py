"""When a ledger is full. Pure.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from typing import Final

from magnetar.managed.settings import ManagedLedgerSettings

JITTER_SHARE: Final = 0.05
"""Ledgers opened together do not all roll together: each gets up to this much more age."""


def rollover_age_ms(settings: ManagedLedgerSettings, ledger_id: int) -> int:
    """The age at which this ledger is full; the same for each question about the same ledger."""
    jitter = (ledger_id * 2_654_435_761 & 0xFFFF) / 0xFFFF * JITTER_SHARE
    return int(settings.maximum_rollover_ms * (1 + jitter))


def is_full(settings: ManagedLedgerSettings, ledger_id: int, entries: int, size_bytes: int, age_ms: int) -> bool:
    """Whether the ledger in use takes no further append (Pulsar: ManagedLedgerImpl.currentLedgerIsFull)."""
    if entries == 0 or age_ms < settings.minimum_rollover_ms:
        return False
    return (
        entries >= settings.max_entries_per_ledger
        or size_bytes >= settings.max_size_per_ledger_bytes
        or (settings.maximum_rollover_ms > 0 and age_ms >= rollover_age_ms(settings, ledger_id))
    )


def is_due(
    settings: ManagedLedgerSettings, ledger_id: int, entries: int, size_bytes: int, age_ms: int, quiet_ms: int
) -> bool:
    """Whether the ledger in use is to be left though nothing is appended: what it holds could else never be trimmed.

    One without entries holds nothing. (Pulsar: ManagedLedgerImpl.rollCurrentLedgerIfFull, which a timer calls at the
    largest age, and checkInactiveLedgerAndRollOver)"""
    return is_full(settings, ledger_id, entries, size_bytes, age_ms) or is_inactive(settings, entries, quiet_ms)


def is_inactive(settings: ManagedLedgerSettings, entries: int, quiet_ms: int) -> bool:
    """Whether the ledger in use should be closed for want of appends."""
    return settings.inactive_rollover_ms > 0 and entries > 0 and quiet_ms >= settings.inactive_rollover_ms
