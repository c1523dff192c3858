"""Asks bookies whether they hold their fragments, judged by the first and the last entry, or by more of them.

(BookKeeper: client/LedgerChecker. There a wrong digest passes unseen and a bookie that does not answer counts as
lost at once.)
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Sequence
from typing import Final

from magnetar.bookie.autorecovery.fragments import FragmentState, Segment
from magnetar.core.ids import NO_ENTRY
from magnetar.ledger.bookie_client.bookie_connection import BookieConnections
from magnetar.ledger.entry_reader import DENIALS
from magnetar.wire.bookkeeper.codes import BookieCode, BookieError
from magnetar.wire.bookkeeper.entry import DigestMismatch, EntryCodec

CHUNK: Final = 64
"""Reads that the check of one fragment prepares at a time; a long check of many entries must not be many tasks."""


def entries_to_check(segment: Segment, index: int, percentage: int, rng: random.Random) -> list[int]:
    """Entries of a fragment that stand for all of it, ascending: the first and the last one, and at random so many
    of those between, one out of each of equal stretches. Empty if the place holds none."""
    first, last = segment.first_held(index), segment.last_held(index)
    if first == NO_ENTRY:
        return []
    length = last - first + 1
    wanted = length * percentage // 100
    if wanted >= length:
        return [entry_id for entry_id in range(first, last + 1) if segment.holds(index, entry_id)]
    chosen = {first, last}
    if wanted > 0:
        stretch = length // wanted
        for start in range(first, last + 1, stretch):
            entry_id = min(start + rng.randrange(stretch), last)
            if segment.holds(index, entry_id):
                chosen.add(entry_id)
    return sorted(chosen)


class FragmentChecker:
    """Checks fragments; all checks of one object share its bound of reads."""

    def __init__(self, connections: BookieConnections, rng: random.Random, reads_in_flight_max: int = 64) -> None:
        self._connections = connections
        self._rng = rng
        self._reads = asyncio.Semaphore(reads_in_flight_max)

    async def check(
        self,
        ledger_id: int,
        segment: Segment,
        codec: EntryCodec | None,
        *,
        lost: Collection[str] = (),
        percentage: int = 0,
    ) -> dict[int, FragmentState]:
        """Index → verdict of every place of a closed segment. Bookies in `lost` are not asked. Without a codec
        digests are not checked."""
        indexes = range(len(segment.bookies))
        verdicts = await asyncio.gather(
            *(self.check_place(ledger_id, segment, index, codec, lost=lost, percentage=percentage) for index in indexes)
        )
        return dict(zip(indexes, verdicts, strict=True))

    async def check_place(
        self,
        ledger_id: int,
        segment: Segment,
        index: int,
        codec: EntryCodec | None,
        *,
        lost: Collection[str] = (),
        percentage: int = 0,
    ) -> FragmentState:
        """What is known of one place of a segment. Arguments and errors are those of `check`."""
        bookie_id = segment.bookies[index]
        if bookie_id in lost:
            return FragmentState.LOST
        entry_ids = entries_to_check(segment, index, percentage, self._rng)
        for start in range(0, len(entry_ids), CHUNK):
            verdict = await self._ask_all(bookie_id, ledger_id, entry_ids[start : start + CHUNK], codec)
            if verdict is not FragmentState.PRESENT:
                return verdict
        return FragmentState.PRESENT

    async def _ask_all(
        self, bookie_id: str, ledger_id: int, entry_ids: Sequence[int], codec: EntryCodec | None
    ) -> FragmentState:
        verdicts = await asyncio.gather(*(self._ask(bookie_id, ledger_id, entry, codec) for entry in entry_ids))
        for verdict in (FragmentState.MISSING, FragmentState.DAMAGED, FragmentState.SILENT):
            if verdict in verdicts:
                return verdict
        return FragmentState.PRESENT

    async def _ask(self, bookie_id: str, ledger_id: int, entry_id: int, codec: EntryCodec | None) -> FragmentState:
        async with self._reads:
            try:
                entry = await self._connections.connection(bookie_id).read_entry(ledger_id, entry_id)
                if codec is not None:
                    codec.decode(entry, entry_id)
            except DigestMismatch:
                return FragmentState.DAMAGED
            except BookieError as error:
                if error.code in DENIALS:
                    return FragmentState.MISSING
                return FragmentState.DAMAGED if error.code is BookieCode.EIO else FragmentState.SILENT
        return FragmentState.PRESENT
