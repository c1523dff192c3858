"""The ledger that a compaction writes, with a bound on what is on its way to the bookies."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final

from magnetar.broker.compaction.record import CompactionRecord
from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError
from magnetar.core.limits import MIB
from magnetar.ledger.api import LedgerWriter

ENTRIES_IN_FLIGHT_MAX: Final = 500
"""As in Pulsar (`AbstractTwoPhaseCompactor.MAX_OUTSTANDING`)."""

BYTES_IN_FLIGHT_MAX: Final = 16 * MIB
"""Of which there is a copy for each bookie of the write quorum: three messages of the largest size."""


class CompactedOutput:
    """The listener of the compacted ledger, and the way to it."""

    def __init__(self, record: CompactionRecord, clock: Clock) -> None:
        self._record = record
        self._clock = clock
        self._writer: LedgerWriter | None = None
        self._in_flight: deque[tuple[int, int, int, float]] = deque()
        """Of each group that was sent: its last entry, its entries, its bytes, when."""
        self._entries = 0
        self._bytes = 0
        self._error: MagnetarError | None = None
        self._moved = asyncio.Event()

    def use(self, writer: LedgerWriter) -> None:
        """The ledger to be written."""
        self._writer = writer

    def confirmed(self, ledger_id: int, last_add_confirmed: int) -> None:
        """From the writer: stored up to this entry."""
        del ledger_id
        now_seconds = self._clock.monotonic_seconds()
        while self._in_flight and self._in_flight[0][0] <= last_add_confirmed:
            _, entries, size_bytes, since_seconds = self._in_flight.popleft()
            self._entries -= entries
            self._bytes -= size_bytes
            self._record.stored(entries, now_seconds - since_seconds)
        self._moved.set()

    def failed(self, ledger_id: int, error: MagnetarError) -> None:
        """From the writer: nothing more will be stored."""
        del ledger_id
        self._error = error
        self._moved.set()

    async def add(self, payloads: Sequence[bytes]) -> None:
        """Send a group of entries on its way, when there is room for it. Raises what the ledger failed with."""
        writer = self._writer
        assert writer is not None
        size_bytes = sum(map(len, payloads))
        await self._wait_for(ENTRIES_IN_FLIGHT_MAX - len(payloads), BYTES_IN_FLIGHT_MAX - size_bytes)
        first = writer.append(payloads)
        self._entries += len(payloads)
        self._bytes += size_bytes
        self._record.bytes_written += size_bytes
        last = first + len(payloads) - 1
        self._in_flight.append((last, len(payloads), size_bytes, self._clock.monotonic_seconds()))

    async def finish(self) -> None:
        """Wait until everything is stored, and close the ledger. Raises what it failed with."""
        assert self._writer is not None
        await self._wait_for(0, 0)
        await self._writer.close()

    async def _wait_for(self, entries_max: int, size_bytes_max: int) -> None:
        """Until no more than this is on its way; a group that is larger than any bound goes alone."""
        while self._error is None and self._entries and (self._entries > entries_max or self._bytes > size_bytes_max):
            self._moved.clear()
            await self._moved.wait()
        if self._error is not None:
            raise self._error
