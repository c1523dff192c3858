"""What a bookie counts while it works, to be read when somebody scrapes its metrics.

Nothing here is done per entry: a batch of adds, a batch of reads and a journal group are recorded once, with the number
of entries in them. So counts and bytes are exact; a latency is that of its batch, counted once for each of its entries.
Latencies go into the buckets of `magnetar.core.histogram`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TypeVar

from magnetar.bookie.outcomes import JournalCounters, Outcomes
from magnetar.core.clock import Clock
from magnetar.core.histogram import Histogram
from magnetar.ledger.bookie_client.bookie_connection import AddCallback
from magnetar.net.refused_connections import LimitKind, RefusedConnections

Result = TypeVar("Result")


class BookieCounters:
    """One bookie. Everything is changed on the event loop only."""

    def __init__(self, clock: Clock, journals: int = 1) -> None:
        self.clock = clock
        self.add = Outcomes()
        """From the arrival of adds to their answer; a journal group's adds count with its oldest one's time."""
        self.recovery_add = Outcomes()
        """The outcomes of adds that recoveries and replication send."""
        self.read = Outcomes()
        """From a batch of reads to its answer."""
        self.fence = Outcomes()
        self.read_lac = Outcomes()
        self.write_lac = Outcomes()
        self.list_entries = Outcomes()
        self.added_bytes = 0
        """The bytes of all adds that succeeded."""
        self.read_bytes = 0
        self.flush = Outcomes()
        """Checkpoints of the write cache, each with its time."""
        self.flush_bytes = Histogram(unit=1e6)
        self.adds_in_progress = 0
        self.adds_held = 0
        """How many of the adds under way wait because the disk is behind."""
        self.adds_rejected = 0
        self.reads_in_progress = 0
        self.refused_connections = RefusedConnections(
            (LimitKind.FILES, LimitKind.HTTP, LimitKind.HANDSHAKES, LimitKind.MEMORY)
        )
        self.tls_handshakes = 0
        """TLS handshakes of clients that came to stand."""
        self.tls_handshakes_failed = 0
        self.unauthorized_clients = 0
        """Connections whose requests were refused (EUA), as they had no TLS or a certificate of another role."""
        self.journals = [JournalCounters() for _ in range(journals)]

    def timed_add(self, done: AddCallback, entries: int, size_bytes: int, *, recovery: bool) -> AddCallback:
        """A callback in the place of `done` that records how the batch went, then calls `done`."""
        self.adds_in_progress += entries
        return TimedAdd(self, done, self.clock.monotonic_seconds(), size_bytes, recovery)

    def adds_answered(self, seconds: float, answered: int, failed: int, size_bytes: int) -> None:
        """So many entries whose add was in progress were answered well, and so many not, after this time."""
        self.adds_in_progress -= answered + failed
        self.added_bytes += size_bytes
        if answered:
            self.add.record(seconds, answered, success=True)
        if failed:
            self.add.record(seconds, failed, success=False)

    async def timed(self, outcomes: Outcomes, work: Awaitable[Result]) -> Result:
        """Wait for one piece of work and record how it went."""
        started = self.clock.monotonic_seconds()
        success = False
        try:
            result = await work
            success = True
        finally:
            outcomes.record(self.clock.monotonic_seconds() - started, 1, success=success)
        return result

    def read_started(self, entries: int) -> float:
        """A batch of reads begins; the result belongs to `read_ended`."""
        self.reads_in_progress += entries
        return self.clock.monotonic_seconds()

    def read_ended(self, started: float, entries: int, found: int, size_bytes: int) -> None:
        """Count a read of this many entries: how many were found, their bytes together. More are found than asked for
        when the reader took what there was."""
        self.reads_in_progress -= entries
        seconds = self.clock.monotonic_seconds() - started
        if found:
            self.read.record(seconds, found, success=True)
            self.read_bytes += size_bytes
        if found < entries:
            self.read.record(seconds, entries - found, success=False)


class TimedAdd:
    """Told when a batch of adds is answered. For batches that are out of the ordinary: the others are recorded by
    journal group, with `adds_answered`."""

    __slots__ = ("_counters", "_done", "_recovery", "_size_bytes", "_started")

    def __init__(
        self, counters: BookieCounters, done: AddCallback, started: float, size_bytes: int, recovery: bool
    ) -> None:
        self._counters = counters
        self._done = done
        self._started = started
        self._size_bytes = size_bytes
        self._recovery = recovery

    def __call__(self, code: int, ledger_id: int, entry_ids: Sequence[int]) -> None:
        counters = self._counters
        count = len(entry_ids)
        counters.adds_in_progress -= count
        seconds = counters.clock.monotonic_seconds() - self._started
        success = code == 0
        (counters.recovery_add if self._recovery else counters.add).record(seconds, count, success=success)
        if success:
            counters.added_bytes += self._size_bytes
        self._done(code, ledger_id, entry_ids)


class RecoveryCounters:
    """AutoRecovery in this process: the auditor's and the replication worker's."""

    def __init__(self) -> None:
        self.replication = Outcomes()
        """One ledger, from its lock to its end."""
        self.ledgers_replicated = 0
        self.ledgers_misplaced_replicated = 0
        """For their place alone: nothing of them was missing."""
        self.ledgers_deferred = 0
        """Given up for a while: something of them could not be read or stored."""
        self.entries_read = 0
        self.entries_written = 0
        self.entries_unreadable = 0
        self.bytes_read = Histogram(unit=1e6)
        """By entry or batch of entries; the sum is exact."""
        self.bytes_written = Histogram(unit=1e6)
        self.read_latency = Outcomes()
        self.write_latency = Outcomes()
        self.audit = Outcomes()
        """The auditor's looks for lost bookies, each with its time."""
        self.check_all_ledgers = Outcomes()
        self.placement_check = Outcomes()
        self.replicas_check = Outcomes()
        self.underreplicated_marked = Histogram(unit=1e3)
        """Ledgers that one audit has marked."""
        self.ledgers_checked = 0
        self.fragments_per_ledger = Histogram(unit=1e3)
        self.bookies_per_ledger = Histogram(unit=1e3)
        self.audits_delayed = 0
        self.delayed_audits_cancelled = 0
        self.ledgers_not_adhering = 0
        """Ledgers that do not adhere to the placement policy, at the last placement check; a gauge, like those
        below."""
        self.ledgers_softly_adhering = 0
        self.ledgers_overdue = 0
        """Marked for longer than the grace period."""
        self.ledgers_with_entry_without_replica = 0
        self.ledgers_with_entry_below_ack_quorum = 0
        self.ledgers_with_entry_below_write_quorum = 0
