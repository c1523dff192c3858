"""Copies the entries of one move to the bookies that take places, and returns when those have them on their disks.

Reading runs ahead of the confirmations within a bound of bytes, so that neither side's disk waits for the other's.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from magnetar.bookie.autorecovery.fragments import EnsembleRepair
from magnetar.bookie.autorecovery.replication.segment_reader import SegmentReader
from magnetar.bookie.autorecovery.replication.settings import ReplicationSettings
from magnetar.bookie.autorecovery.replication.throttle import ReplicationThrottle
from magnetar.bookie.counters import RecoveryCounters
from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError
from magnetar.ledger.bookie_client.bookie_connection import ADD_FLAG_HIGH_PRIORITY, ADD_FLAG_RECOVERY, BookieConnections
from magnetar.wire.bookkeeper.codes import BookieCode, known_code
from magnetar.wire.bookkeeper.entry import EntryCodec, header

_EOK: Final = int(BookieCode.EOK)
FLAGS: Final = ADD_FLAG_RECOVERY | ADD_FLAG_HIGH_PRIORITY

OnProgress: TypeAlias = Callable[[int, int], None]
"""(entries, bytes) that were confirmed just now, each replica counted."""


class TargetFailed(MagnetarError):
    """A bookie that was to take a place did not store an entry."""

    def __init__(self, bookie_id: str, code: BookieCode) -> None:
        super().__init__(f"{bookie_id} did not take the copy: {code.name}")
        self.bookie_id = bookie_id
        self.code = code


class Outstanding:
    """What was sent and not confirmed."""

    def __init__(
        self, on_progress: OnProgress, patience_seconds: float, counters: RecoveryCounters, clock: Clock
    ) -> None:
        self.size_bytes = 0
        self._counters = counters
        self._clock = clock
        self._on_progress = on_progress
        self._patience_seconds = patience_seconds
        self._failure: TargetFailed | None = None
        self._sent: dict[Batch, None] = {}
        self._news = asyncio.Event()

    def sent(self, batch: Batch) -> None:
        """A batch is on its way."""
        batch.sent_seconds = self._clock.monotonic_seconds()
        self._sent[batch] = None
        self.size_bytes += batch.size_bytes

    def answered(self, batch: Batch, code: int, count: int) -> None:
        """A bookie's answer about so many entries of a batch."""
        if batch not in self._sent:
            return
        seconds = self._clock.monotonic_seconds() - batch.sent_seconds
        self._counters.write_latency.record(seconds, count, success=code == _EOK)
        if code != _EOK:
            self._failure = self._failure or TargetFailed(batch.bookie_id, known_code(code))
            self._news.set()
            return
        batch.unanswered -= count
        if batch.unanswered == 0:
            del self._sent[batch]
            self.size_bytes -= batch.size_bytes
            self._counters.entries_written += batch.count
            self._counters.bytes_written.record(batch.size_bytes)
            self._on_progress(batch.count, batch.size_bytes)
            self._news.set()

    async def wait_until_below(self, size_bytes: int) -> None:
        """Return when no more than so many bytes are outstanding. Raises `TargetFailed`."""
        while self._failure is None and self.size_bytes > size_bytes:
            self._news.clear()
            try:
                async with asyncio.timeout(self._patience_seconds):
                    await self._news.wait()
            except TimeoutError:
                oldest = next(iter(self._sent))
                raise TargetFailed(oldest.bookie_id, BookieCode.UNREACHABLE) from None
        if self._failure is not None:
            raise self._failure

    def forget(self) -> None:
        """Answers are of no interest any more."""
        self._sent.clear()


class Batch:
    """Entries that one bookie was sent together; hears its answers."""

    __slots__ = ("_outstanding", "bookie_id", "count", "sent_seconds", "size_bytes", "unanswered")

    def __init__(self, outstanding: Outstanding, bookie_id: str, count: int, size_bytes: int) -> None:
        self._outstanding = outstanding
        self.bookie_id = bookie_id
        self.count = count
        self.size_bytes = size_bytes
        self.unanswered = count
        self.sent_seconds = 0.0

    def __call__(self, code: int, ledger_id: int, entry_ids: Sequence[int]) -> None:
        self._outstanding.answered(self, code, len(entry_ids))


def rebuilt(codec: EntryCodec, last_add_confirmed: int, entries: Sequence[tuple[int, bytes]]) -> list[bytes]:
    """Entries with another LAC in their headers: the one known now, as BookKeeper sends copies, so that whoever asks
    the new bookie learns at least as much as the old one could tell. Length and payload stay."""
    result: list[bytes] = []
    overhead = codec.overhead_bytes
    run: list[bytes] = []
    run_first = expected_id = 0
    length_before = length = 0
    for entry_id, entry in entries:
        payload = entry[overhead:]
        entry_length = header(entry)[3]
        if not run or entry_id != expected_id or entry_length != length + len(payload):
            if run:
                result += codec.encode_many(run_first, last_add_confirmed, length_before, run)
            run, run_first, length_before = [], entry_id, entry_length - len(payload)
        run.append(payload)
        expected_id, length = entry_id + 1, entry_length
    if run:
        result += codec.encode_many(run_first, last_add_confirmed, length_before, run)
    return result


class EntryCopier:
    """Copies moves, all of them within one rate."""

    def __init__(
        self,
        connections: BookieConnections,
        throttle: ReplicationThrottle,
        settings: ReplicationSettings,
        counters: RecoveryCounters,
        clock: Clock,
    ) -> None:
        self._connections = connections
        self._throttle = throttle
        self._settings = settings
        self._counters = counters
        self._clock = clock

    async def copy(
        self,
        move: EnsembleRepair,
        source: SegmentReader,
        codec: EntryCodec,
        last_add_confirmed: int,
        on_progress: OnProgress,
    ) -> None:
        """Every entry of the move is on the disks of its targets when this returns.

        Raises `EntriesUnreadable`, `TargetFailed`; what was copied until then does no harm and may be copied again."""
        outstanding = Outstanding(on_progress, self._settings.add_timeout_seconds, self._counters, self._clock)
        try:
            for entry_ids in move.entry_ids(self._settings.entry_batch_size):
                waiting = deque(entry_ids)
                while waiting:
                    started = self._clock.monotonic_seconds()
                    entries = await source.read(list(waiting))
                    self._count_read(started, entries)
                    for _ in entries:
                        waiting.popleft()
                    await self._send(move, entries, codec, last_add_confirmed, outstanding)
            await outstanding.wait_until_below(0)
        finally:
            outstanding.forget()

    def _count_read(self, started: float, entries: Sequence[tuple[int, bytes]]) -> None:
        counters = self._counters
        counters.entries_read += len(entries)
        counters.bytes_read.record(sum(len(entry) for _, entry in entries))
        counters.read_latency.record(self._clock.monotonic_seconds() - started, len(entries), success=True)

    async def _send(
        self,
        move: EnsembleRepair,
        entries: Sequence[tuple[int, bytes]],
        codec: EntryCodec,
        last_add_confirmed: int,
        outstanding: Outstanding,
    ) -> None:
        copies = rebuilt(codec, last_add_confirmed, entries)
        wanted: dict[str, tuple[list[int], list[bytes]]] = {}
        for (entry_id, _), entry in zip(entries, copies, strict=True):
            for bookie_id in move.targets(entry_id):
                entry_ids, kept = wanted.setdefault(bookie_id, ([], []))
                entry_ids.append(entry_id)
                kept.append(entry)
        sizes = {bookie_id: sum(map(len, kept)) for bookie_id, (_, kept) in wanted.items()}
        await self._throttle.take(sum(sizes.values()))
        await outstanding.wait_until_below(self._settings.outstanding_bytes_max)
        for bookie_id, (entry_ids, kept) in wanted.items():
            batch = Batch(outstanding, bookie_id, len(kept), sizes[bookie_id])
            outstanding.sent(batch)
            connection = self._connections.connection(bookie_id)
            connection.add_entries(codec.ledger_id, codec.master_key, entry_ids, kept, FLAGS, batch)
