"""A ledger read from its objects: by ranges, from any entry on, with a look ahead."""

from __future__ import annotations

import asyncio
from bisect import bisect_right, insort
from collections import deque
from typing import Final, NamedTuple

from magnetar.core.errors import Misuse
from magnetar.ledger.api import EntryNotFound
from magnetar.tiered.api import OffloadDamaged
from magnetar.tiered.chunk_cache import ChunkCache, ChunkedObject
from magnetar.wire.offload.data_block import (
    ENTRY_HEADER_BYTES,
    HEADER_BYTES,
    decode_block_header,
    scan_entries,
    wanted_bytes,
)
from magnetar.wire.offload.errors import BadOffload
from magnetar.wire.offload.index import LedgerBlocks

READ_BYTES_MAX: Final = 8 << 20
"""Of payloads in one answer, but for one that is larger by itself: whoever wants more asks again."""
SCAN_BYTES_MAX: Final = 256 << 10
"""Looked through in one turn of the loop: some 10 000 small entries."""
PLACES_MAX: Final = 2048
"""Entries whose place is remembered, per ledger: 2 GiB in steps of a MiB."""

SEQUENCES_MAX: Final = 16
"""Readers in sequence that are known as such, per ledger: subscriptions that catch up at once."""


class EntryPlace(NamedTuple):
    """Where an entry begins."""

    block: int
    """Its number in the index."""
    entry_id: int
    offset: int


class OffloadedLedgerReader:
    """A `LedgerReader` over one data object.

    The index tells where blocks begin. Within one, entries are found only by walking from one to the next; the places
    that a walk came by are remembered, so that no stretch is walked twice to get to an entry behind it."""

    __slots__ = (
        "_block_ends",
        "_cache",
        "_ends",
        "_indexed",
        "_known_ids",
        "_known_places",
        "_prefetch_rounds",
        "_source",
        "closed",
        "last_add_confirmed",
        "ledger_id",
        "length_bytes",
    )

    def __init__(
        self, ledger_id: int, indexed: LedgerBlocks, source: ChunkedObject, cache: ChunkCache, prefetch_rounds: int
    ) -> None:
        self.ledger_id = ledger_id
        self.last_add_confirmed = indexed.last_entry_id
        self.length_bytes = indexed.length_bytes
        self.closed = True
        self._indexed = indexed
        self._source = source
        self._cache = cache
        self._prefetch_rounds = prefetch_rounds
        self._block_ends: dict[int, int] = {}
        self._known_ids: list[int] = []
        self._known_places: dict[int, EntryPlace] = {}
        self._ends: deque[int] = deque(maxlen=SEQUENCES_MAX)

    async def read(self, first_entry_id: int, last_entry_id: int) -> list[bytes]:
        """Payloads of entries first..last; fewer, at least one, beyond 8 MiB.

        `EntryNotFound` beyond the last entry, `OffloadDamaged`, `OffloadedLedgerNotFound`, `OffloadRefused`,
        `OffloadUnavailable`."""
        if not 0 <= first_entry_id <= last_entry_id:
            raise Misuse(f"entries {first_entry_id} to {last_entry_id} are no range")
        if last_entry_id > self.last_add_confirmed:
            raise EntryNotFound(
                f"offloaded ledger {self.ledger_id} ends with entry {self.last_add_confirmed}, before {last_entry_id}"
            )
        if first_entry_id < self._indexed.first_entry_id:
            raise OffloadDamaged(
                (self.ledger_id, first_entry_id),
                f"ledger {self.ledger_id} begins with entry {self._indexed.first_entry_id} in {self._source.key}",
            )
        in_sequence = first_entry_id in self._ends
        known = self._known_place(first_entry_id)
        try:
            if known is not None:
                try:
                    return await self._read_from(known, first_entry_id, last_entry_id, in_sequence=in_sequence)
                except BadOffload:
                    # The index is the truth: what was learnt by walking is learnt again.
                    self._forget()
            begin = await self._block_place(self._indexed.block_of(first_entry_id))
            return await self._read_from(begin, first_entry_id, last_entry_id, in_sequence=in_sequence)
        except BadOffload as error:
            self._forget()
            raise OffloadDamaged(
                (self.ledger_id, first_entry_id),
                f"entry {first_entry_id} of ledger {self.ledger_id} cannot be read from {self._source.key} in"
                f" {self._source.store.place}: {error}",
            ) from None

    async def close(self) -> None:
        """Let go of it. Nothing is written."""
        self._cache.forget(self._source)

    async def _read_from(self, place: EntryPlace, first: int, last: int, *, in_sequence: bool) -> list[bytes]:
        payloads: list[bytes] = []
        size_bytes = 0
        while place.entry_id <= last and size_bytes < READ_BYTES_MAX:
            block_end = await self._block_end(place.block)
            number = place.offset // self._cache.chunk_bytes
            data = await self._stretch(place.offset, block_end)
            if in_sequence or payloads:
                for ahead in range(1, self._prefetch_rounds + 1):
                    self._cache.read_ahead(self._source, number + ahead)
            scan = scan_entries(data, place.entry_id, first, last)
            payloads += scan.payloads
            size_bytes += sum(map(len, scan.payloads))
            if scan.used_bytes:
                place = place._replace(entry_id=scan.next_entry_id, offset=place.offset + scan.used_bytes)
                self._remember(place, block_end)
            if place.entry_id <= last and (scan.ended or place.offset == block_end):
                place = await self._next_block(place)
            elif not scan.used_bytes:
                raise BadOffload(f"entry {place.entry_id} is cut off by the end of its block at {block_end}")
            await asyncio.sleep(0)
        if first in self._ends:
            self._ends.remove(first)
        self._ends.append(first + len(payloads))
        return payloads

    async def _stretch(self, offset: int, block_end: int) -> memoryview:
        """The bytes from `offset` to the end of the cached chunk or of the block, but one entry at least. Nothing at
        the block's end, which may be the object's."""
        if offset >= block_end:
            return memoryview(b"")
        chunk_bytes = self._cache.chunk_bytes
        number, skipped_bytes = divmod(offset, chunk_bytes)
        data = await self._cache.read(self._source, number)
        until = min(skipped_bytes + SCAN_BYTES_MAX, len(data), block_end - number * chunk_bytes)
        stretch = memoryview(data)[skipped_bytes:until]
        while len(stretch) < (needed := wanted_bytes(stretch)):
            if offset + needed > block_end:
                if len(stretch) >= ENTRY_HEADER_BYTES:
                    raise BadOffload(f"an entry at {offset} goes beyond the end of its block at {block_end}")
                # Padding may be shorter than the beginning of an entry.
                needed = block_end - offset
            if len(stretch) == needed:
                break
            stretch = memoryview(await self._gather(offset, needed))
        return stretch

    async def _gather(self, offset: int, size_bytes: int) -> bytes:
        """A stretch over as many chunks as it takes."""
        if offset + size_bytes > self._source.size_bytes:
            raise BadOffload(f"{size_bytes} bytes from {offset} on of an object of {self._source.size_bytes}")
        chunk_bytes = self._cache.chunk_bytes
        numbers = range(offset // chunk_bytes, (offset + size_bytes - 1) // chunk_bytes + 1)
        for number in numbers:
            self._cache.read_ahead(self._source, number)
        gathered = bytearray()
        for number in numbers:
            data = await self._cache.read(self._source, number)
            begin = max(0, offset - number * chunk_bytes)
            gathered += memoryview(data)[begin : min(len(data), offset + size_bytes - number * chunk_bytes)]
        return bytes(gathered)

    # --- places ---

    async def _block_end(self, block: int) -> int:
        known = self._block_ends.get(block)
        if known is None:
            await self._block_place(block)
            known = self._block_ends[block]
        return known

    async def _block_place(self, block: int) -> EntryPlace:
        """The first entry of a block, by the index and by the block's own header, which must agree."""
        indexed = self._indexed.blocks[block]
        header = decode_block_header(await self._gather(indexed.offset, HEADER_BYTES))
        if header.first_entry_id != indexed.first_entry_id:
            raise BadOffload(f"the block of entry {indexed.first_entry_id} begins with entry {header.first_entry_id}")
        if header.ledger_id is not None and header.ledger_id != self.ledger_id:
            raise BadOffload(f"the block of entry {indexed.first_entry_id} is of ledger {header.ledger_id}")
        end = indexed.offset + header.block_bytes
        blocks = self._indexed.blocks
        limit = blocks[block + 1].offset if block + 1 < len(blocks) else self._source.size_bytes
        if end > limit:
            raise BadOffload(f"the block of entry {indexed.first_entry_id} ends at {end}, beyond {limit}")
        self._block_ends[block] = end
        return EntryPlace(block, indexed.first_entry_id, indexed.offset + header.header_bytes)

    async def _next_block(self, place: EntryPlace) -> EntryPlace:
        blocks = self._indexed.blocks
        following = place.block + 1
        if following == len(blocks) or blocks[following].first_entry_id != place.entry_id:
            raise BadOffload(f"a block ends before entry {place.entry_id}, and no other begins with it")
        return await self._block_place(following)

    def _remember(self, place: EntryPlace, block_end: int) -> None:
        if place.offset >= block_end or place.entry_id in self._known_places:
            return
        if len(self._known_ids) >= PLACES_MAX:
            kept = self._known_ids[::2]
            self._known_places = {entry_id: self._known_places[entry_id] for entry_id in kept}
            self._known_ids = kept
        insort(self._known_ids, place.entry_id)
        self._known_places[place.entry_id] = place

    def _forget(self) -> None:
        """Forgets the places of entries that were learnt from reads: the bytes may have been damaged on their way."""
        self._known_ids.clear()
        self._known_places.clear()
        self._block_ends.clear()
        self._cache.forget(self._source)

    def _known_place(self, entry_id: int) -> EntryPlace | None:
        """The last place at or before this entry that is no further back than the beginning of its block."""
        at = bisect_right(self._known_ids, entry_id) - 1
        if at < 0:
            return None
        place = self._known_places[self._known_ids[at]]
        return place if place.block == self._indexed.block_of(entry_id) else None
