"""Reads the entries of one segment from whichever of its bookies has them undamaged, to be written to others.

A segment that is not striped is read in batches; on a striped one no bookie has long runs of what is wanted, so each
entry is asked for on its own, many at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from magnetar.bookie.autorecovery.fragments import Segment
from magnetar.core.errors import MagnetarError
from magnetar.ledger.bookie_client.bookie_connection import BookieConnections
from magnetar.ledger.entry_reader import DENIALS
from magnetar.wire.bookkeeper.codes import BookieError
from magnetar.wire.bookkeeper.entry import DigestMismatch, EntryCodec

SINGLE_READS_MAX: Final = 64
"""Reads outstanding at a time on a striped segment of small entries."""

SINGLE_READS_AT_FIRST: Final = 8
"""Reads outstanding at a time while the size of the segment's entries is unknown; each may be up to a frame."""

UNREADABLE_NAMED_MAX: Final = 20
"""Entries that an error names; the first ones tell where to look."""


class EntriesUnreadable(MagnetarError):
    """No bookie gives these entries undamaged."""

    def __init__(self, ledger_id: int, entry_ids: Sequence[int], cause: str) -> None:
        named = ", ".join(str(entry_id) for entry_id in entry_ids)
        super().__init__(f"no bookie gives these entries of ledger {ledger_id}: {named} ({cause})")
        self.entry_ids = tuple(entry_ids)


@dataclass(slots=True)
class Reading:
    """What came of some entries: each of the first ones of those asked for is either found or unreadable."""

    entries: list[tuple[int, bytes]] = field(default_factory=list)
    """(id, whole entry), digests checked."""
    unreadable: list[int] = field(default_factory=list)
    denied: int = 0
    """How many of the unreadable entries are denied: each bookie that must hold them says it has not, or no other must
    hold them."""
    cause: str = ""
    """Why the first unreadable entry could not be read."""


@dataclass(frozen=True, slots=True)
class _NoEntry:
    """Nobody gives it."""

    cause: str
    denied: bool


class SegmentReader:
    """Reads of one segment."""

    def __init__(
        self,
        segment: Segment,
        order: Sequence[int],
        codec: EntryCodec,
        connections: BookieConnections,
        batch_bytes_max: int,
    ) -> None:
        """`order`: the places in the order in which they are asked."""
        self._segment = segment
        self._order = list(order)
        self._codec = codec
        self._connections = connections
        self._batch_bytes_max = batch_bytes_max
        self._single_reads = SINGLE_READS_AT_FIRST

    @property
    def striped(self) -> bool:
        """Whether entries are asked for one by one, so that they need not stand in a row."""
        return self._segment.striped

    async def read(self, entry_ids: Sequence[int]) -> list[tuple[int, bytes]]:
        """(id, whole entry) of the first ones of some ascending ids, at least one, digests checked.

        Raises `EntriesUnreadable`, which names every unreadable one of the ids up to a bound."""
        reading = await self.look(entry_ids)
        if reading.unreadable:
            named = reading.unreadable[:UNREADABLE_NAMED_MAX]
            raise EntriesUnreadable(self._codec.ledger_id, named, reading.cause)
        return reading.entries

    async def look(self, entry_ids: Sequence[int]) -> Reading:
        """Read what there is, from the first entry on. What cannot be read is told in the answer, and raises
        nothing."""
        if self._segment.striped:
            return await self._read_singly(entry_ids)
        first = entry_ids[0]
        found = await self._read_batch(first, len(entry_ids))
        if found:
            return Reading(entries=list(zip(range(first, first + len(found)), found, strict=True)))
        return await self._read_singly(entry_ids[:SINGLE_READS_MAX])

    async def _read_batch(self, first: int, count: int) -> list[bytes]:
        """Entries from the first one on, from the first bookie that gives any; none when a closer look is needed."""
        for index in list(self._order):
            connection = self._connections.connection(self._segment.bookies[index])
            try:
                entries = await connection.read_entries(self._codec.ledger_id, first, count, self._batch_bytes_max)
            except BookieError:
                # What is wanted next is most likely missing there as well.
                self._ask_last(index)
                continue
            good = self._undamaged(entries[:count], first)
            if good:
                return good
        return []

    def _undamaged(self, entries: Sequence[bytes], first: int) -> list[bytes]:
        good: list[bytes] = []
        for entry in entries:
            try:
                self._codec.decode(entry, first + len(good))
            except DigestMismatch:
                break
            good.append(entry)
        return good

    async def _read_singly(self, entry_ids: Sequence[int]) -> Reading:
        reading = Reading()
        found, unreadable = reading.entries, reading.unreadable
        size_bytes = start = 0
        while start < len(entry_ids) and len(unreadable) < UNREADABLE_NAMED_MAX and size_bytes <= self._batch_bytes_max:
            some = entry_ids[start : start + self._single_reads]
            start += len(some)
            for entry_id, result in zip(some, await asyncio.gather(*map(self._read_one, some)), strict=True):
                if isinstance(result, bytes):
                    found.append((entry_id, result))
                    size_bytes += len(result)
                else:
                    unreadable.append(entry_id)
                    reading.denied += result.denied
                    reading.cause = reading.cause or result.cause
            if found:
                mean_bytes = size_bytes // len(found)
                self._single_reads = min(max(1, self._batch_bytes_max // mean_bytes), SINGLE_READS_MAX)
        return reading

    async def _read_one(self, entry_id: int) -> bytes | _NoEntry:
        """The entry, or why nobody gives it."""
        causes: list[str] = []
        denied = True
        for index in list(self._order):
            if not self._segment.holds(index, entry_id):
                continue
            bookie_id = self._segment.bookies[index]
            try:
                entry = await self._connections.connection(bookie_id).read_entry(self._codec.ledger_id, entry_id)
                self._codec.decode(entry, entry_id)
            except (BookieError, DigestMismatch) as error:
                causes.append(f"{bookie_id}: {error}")
                denied = denied and isinstance(error, BookieError) and error.code in DENIALS
            else:
                return entry
        return _NoEntry("; ".join(causes) or "no other bookie ever had them", denied)

    def _ask_last(self, index: int) -> None:
        self._order.remove(index)
        self._order.append(index)
