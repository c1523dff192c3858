"""Which ledgers go, and when one is full: what is decided by numbers alone."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from magnetar.managed.ledger_list import LedgerList, LedgerRecord
from magnetar.managed.rollover import JITTER_SHARE, is_due, is_full, is_inactive
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.managed.trimming.choice import ledgers_to_delete

HOUR_MS = 3_600_000


def records(*sizes: int) -> list[LedgerRecord]:
    """Ledgers of ten entries and so many bytes, closed one hour after another; the last one is in use."""
    made = [LedgerRecord(number, 10, size, number * HOUR_MS) for number, size in enumerate(sizes, 1)]
    made[-1].closed_ms = 0
    return made


def deleted(*sizes: int, now_hours: float = 100, mark: tuple[int, int] | None = None, **settings: Any) -> list[int]:
    return ledgers_to_delete(records(*sizes), mark, ManagedLedgerSettings(**settings), int(now_hours * HOUR_MS))


def test_retention_by_size_keeps_that_much() -> None:
    """What goes is taken off what is left; else the first ledger too many would take all others with it."""
    forever: dict[str, Any] = {"retention_time_ms": -1}
    assert deleted(100, 100, 100, 100, 100, retention_size_bytes=250, **forever) == [1, 2, 3]
    assert deleted(100, 100, 100, 100, 100, retention_size_bytes=450, **forever) == [1]
    assert deleted(100, 100, 100, 100, 100, retention_size_bytes=300, **forever) == [1, 2, 3], "from that size on"
    assert deleted(100, 100, 100, 100, 100, retention_size_bytes=501, **forever) == []
    assert deleted(100, 100, retention_size_bytes=-1, **forever) == []


def test_retention_by_time_counts_from_the_close() -> None:
    by_time: dict[str, Any] = {"retention_size_bytes": -1, "retention_time_ms": HOUR_MS}
    assert deleted(1, 1, 1, 1, now_hours=3.5, **by_time) == [1, 2]
    assert deleted(1, 1, 1, 1, now_hours=2, **by_time) == []


def test_retention_by_time_counts_from_when_delayed_messages_were_due() -> None:
    """Closed in hour 1, due in hour 4, kept for 7: it goes in hour 11. One acknowledged before it was due is not kept
    by its time."""
    settings = ManagedLedgerSettings(retention_size_bytes=-1, retention_time_ms=7 * HOUR_MS)

    def goes(now_ms: int, due_ms: int) -> bool:
        made = records(1, 1)
        made[0].due_ms = due_ms
        return ledgers_to_delete(made, None, settings, now_ms) == [1]

    assert not goes(11 * HOUR_MS, due_ms=4 * HOUR_MS)
    assert goes(11 * HOUR_MS + 1, due_ms=4 * HOUR_MS)
    assert goes(8 * HOUR_MS + 1, due_ms=HOUR_MS // 2), "due before it was closed"
    assert not goes(8 * HOUR_MS, due_ms=2**62)
    assert goes(8 * HOUR_MS + 1, due_ms=2**62)


def test_without_retention_no_due_time_keeps_anything() -> None:
    made = records(1, 1)
    made[0].due_ms = 4 * HOUR_MS
    assert ledgers_to_delete(made, None, ManagedLedgerSettings(), 4 * HOUR_MS) == [1]


@pytest.mark.parametrize(("mark", "gone"), [(None, [1, 2]), ((1, 8), []), ((1, 9), [1]), ((2, 9), [1, 2])])
def test_what_somebody_has_not_acknowledged_stays(mark: tuple[int, int] | None, gone: list[int]) -> None:
    assert deleted(1, 1, 1, mark=mark) == gone


def full(entries: int = 1, size_bytes: int = 1, age_ms: int = 1, **settings: Any) -> bool:
    return is_full(ManagedLedgerSettings(minimum_rollover_ms=0, **settings), 7, entries, size_bytes, age_ms)


def test_a_ledger_is_full_by_entries_by_size_and_by_age() -> None:
    assert full(entries=5, max_entries_per_ledger=5)
    assert not full(entries=4, max_entries_per_ledger=5)
    assert full(size_bytes=100, max_size_per_ledger_bytes=100)
    assert not full(size_bytes=99, max_size_per_ledger_bytes=100)
    assert full(age_ms=2 * HOUR_MS, maximum_rollover_ms=HOUR_MS)
    assert not full(age_ms=HOUR_MS - 1, maximum_rollover_ms=HOUR_MS)


def test_without_a_largest_age_none_is_too_old() -> None:
    assert not full(age_ms=10_000 * HOUR_MS, maximum_rollover_ms=0)


def test_only_a_ledger_with_entries_is_closed_for_want_of_appends() -> None:
    settings = ManagedLedgerSettings(inactive_rollover_ms=1_000)
    assert is_inactive(settings, 1, 1_000)
    assert not is_inactive(settings, 1, 999)
    assert not is_inactive(settings, 0, 1_000)
    assert not is_inactive(ManagedLedgerSettings(), 1, 1_000_000)


def due(entries: int = 1, size_bytes: int = 1, age_ms: int = 1, quiet_ms: int = 1, **settings: Any) -> bool:
    return is_due(ManagedLedgerSettings(**settings), 7, entries, size_bytes, age_ms, quiet_ms)


def test_without_an_append_a_ledger_is_left_by_its_age_or_by_the_silence() -> None:
    oldest_ms = int(4 * HOUR_MS * (1 + JITTER_SHARE))
    assert due(age_ms=oldest_ms)
    assert not due(age_ms=4 * HOUR_MS - 1)
    assert due(quiet_ms=1_000, inactive_rollover_ms=1_000), "the least age is for what is full"
    assert not due(quiet_ms=999, inactive_rollover_ms=1_000)


def test_without_an_append_only_a_ledger_with_entries_is_left() -> None:
    assert not due(entries=0, age_ms=10_000 * HOUR_MS, quiet_ms=10_000 * HOUR_MS, inactive_rollover_ms=1)


def test_without_an_append_the_least_age_holds() -> None:
    """A ledger that was full before it was old enough is left once it is, and not at its largest age."""
    assert not due(entries=5, max_entries_per_ledger=5, age_ms=599_999)
    assert due(entries=5, max_entries_per_ledger=5, age_ms=600_000)
    assert not due(age_ms=2_000, maximum_rollover_ms=1_000, minimum_rollover_ms=5_000)


def test_ledgers_of_one_age_are_not_left_at_once() -> None:
    settings = ManagedLedgerSettings()
    left = [
        sum(is_due(settings, ledger_id, 1, 1, 4 * HOUR_MS + minute * 60_000, 0) for ledger_id in range(1_000))
        for minute in range(13)
    ]
    assert left[0] <= 1
    assert left[12] == 1_000
    assert max(after - before for before, after in pairwise(left)) < 120


def test_what_is_noted_of_the_ledger_in_use_needs_no_write_of_its_own() -> None:
    """It is stored when the next ledger is made: else each delayed message would have the list written."""
    ledgers = LedgerList(records(1, 1))
    ledgers.note_due(2, 5 * HOUR_MS)
    assert (ledgers.last().due_ms, ledgers.due_unstored) == (5 * HOUR_MS, False)
    ledgers.note_due(1, 7 * HOUR_MS)
    assert ledgers.due_unstored
    ledgers.note_due(1, 6 * HOUR_MS)
    assert ledgers.records()[0].due_ms == 7 * HOUR_MS, "the last one counts"
