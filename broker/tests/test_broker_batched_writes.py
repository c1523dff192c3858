"""Records that become one entry of a log: how many, how large, how long they wait, and in which order they go."""

from __future__ import annotations

from magnetar.broker.transactions.batched_writes import BatchedWrites, BatchLimits

from broker.tests.subscription_stage import Timers

LIMITS = BatchLimits(enabled=True, records_max=3, bytes_max=100, delay_ms=50)


class Written:
    """The entries, and the clock."""

    def __init__(self, limits: BatchLimits = LIMITS) -> None:
        self.timers = Timers()
        self.entries: list[tuple[str, bool]] = []
        self.batches: BatchedWrites[str] = BatchedWrites(limits, self.timers.call_later, self._push)

    def add(self, names: str, size_bytes: int = 10) -> None:
        """One record for each letter."""
        for name in names:
            self.batches.add(name, size_bytes)

    def _push(self, records: list[str], batched: bool) -> None:
        self.entries.append(("".join(records), batched))


def test_records_wait_until_there_are_so_many() -> None:
    written = Written()
    written.add("ab")
    assert written.entries == []
    written.add("cd")
    assert written.entries == [("abc", True)]


def test_records_wait_for_so_many_milliseconds_from_the_first_one() -> None:
    written = Written()
    written.add("a")
    written.timers.advance(30)
    written.add("b")
    written.timers.advance(19)
    assert written.entries == []
    written.timers.advance(1)
    assert written.entries == [("ab", True)]
    assert written.timers.pending == 0


def test_each_entry_waits_its_own_time() -> None:
    """What the entry before would have waited is over with it."""
    written = Written()
    written.add("abc")
    written.timers.advance(30)
    written.add("d")
    written.timers.advance(49)
    assert written.entries == [("abc", True)]
    written.timers.advance(1)
    assert written.entries == [("abc", True), ("d", True)]


def test_no_entry_has_more_bytes_than_allowed() -> None:
    written = Written()
    written.add("a", 60)
    written.add("b", 41)
    assert written.entries == [("a", True)]
    written.add("c", 59)
    assert written.entries == [("a", True), ("bc", True)], "as many bytes as allowed are an entry at once"
    written.add("d", 60)
    written.add("e", 40)
    assert written.entries[2:] == [("de", True)], "each entry is counted by itself"


def test_a_large_record_goes_alone_behind_what_waits() -> None:
    written = Written()
    written.add("a")
    written.add("b", 100)
    assert written.entries == [("a", True), ("b", False)]
    assert written.timers.pending == 0


def test_nothing_waits_where_batches_are_off() -> None:
    written = Written(BatchLimits(enabled=False, records_max=3, bytes_max=100, delay_ms=50))
    written.add("ab")
    assert written.entries == [("a", False), ("b", False)]
    written.batches.flush()
    assert len(written.entries) == 2


def test_batches_are_switched_on_and_off_while_records_come() -> None:
    """What waits then goes first, in its form."""
    limits = BatchLimits(enabled=False, records_max=3, bytes_max=100, delay_ms=50)
    written = Written(limits)
    written.add("a")
    limits.enabled = True
    written.add("bc")
    limits.enabled = False
    written.add("d")
    assert written.entries == [("a", False), ("bc", True), ("d", False)]
    assert written.timers.pending == 0
