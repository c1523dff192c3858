"""Entries straight from the bookies: no broker is asked, and no bookie is told anything but what is wanted.

Several requests are under way while the blocks before them are decoded. What cannot be had from one bookie is asked of
the others that should have it; what all of them deny or have damaged is a hole, reported by its exact range, and
reading goes on behind it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from typing import Final

from magnetar.core.backoff import Backoff
from magnetar.core.limits import MIB
from magnetar.ledger.bookie_client.bookie_connection import ReadOnlyBookies
from magnetar.spark.bookies.ledger_place import LedgerMetadataOfNow, LedgerPlace, Piece, pieces_of
from magnetar.spark.bookies.requests import (
    ANSWER_BYTES_MAX,
    EACH_COUNT_MAX,
    BookieFailure,
    BookieRequests,
    in_words,
    nobody_has_it,
    nobody_has_the_ledger,
)
from magnetar.spark.entries import EntryBlock, Hole, OnHole
from magnetar.spark.errors import ClusterUnreachable
from magnetar.spark.slices import LedgerRange

PIECES_AHEAD: Final = 4
"""Requests that are under way or fetched and not taken yet: some 4 MB of entries as they are expected, and four times
`ANSWER_BYTES_MAX` and a largest message at worst, which a task's memory has room for. Two keep a bookie and the decoder
busy; the others cover a slow disk read."""

BLOCK_BYTES: Final = 1 * MIB
"""Fetched neighbours are handed on together up to this size."""

PATIENCE_SECONDS: Final = 3.0
"""How long a bookie may take before the next one is asked; doubled with each round over all of them."""

GIVE_UP_SECONDS: Final = 30.0
"""How long bookies that cannot be reached are waited for, unless somebody else can be asked."""

PAUSE_SECONDS: Final = 0.2
"""Before the second round; doubled for each further one, up to `PAUSE_SECONDS_MAX`."""

PAUSE_SECONDS_MAX: Final = 3.0


class Fetched:
    """What came of a piece: payloads and holes, in order, up to `next_entry_id` (exclusive)."""

    __slots__ = ("next_entry_id", "parts", "piece", "size_bytes")

    def __init__(self, piece: Piece) -> None:
        self.piece = piece
        self.next_entry_id = piece.first
        self.size_bytes = 0
        self.parts: list[tuple[int, list[bytes]] | Hole] = []

    def add(self, payloads: list[bytes]) -> None:
        """The next entries."""
        self.parts.append((self.next_entry_id, payloads))
        self.next_entry_id += len(payloads)
        self.size_bytes += sum(map(len, payloads))

    def add_hole(self, last_entry_id: int, reason: str) -> None:
        """The next entries up to this one are missing."""
        place = self.piece.place
        self.parts.append(
            Hole(
                topic=place.topic,
                ledger_id=place.ledger_id,
                first_entry_id=self.next_entry_id,
                last_entry_id=last_entry_id,
                reason=reason,
            )
        )
        self.next_entry_id = last_entry_id + 1


class BookieEntries:
    """An `EntrySource` of one topic. The connections are the caller's."""

    def __init__(
        self,
        topic: str,
        bookies: ReadOnlyBookies,
        metadata_of_now: LedgerMetadataOfNow | None = None,
        *,
        give_up_seconds: float = GIVE_UP_SECONDS,
    ) -> None:
        """`metadata_of_now` is asked only about entries that cannot be had where the range's metadata says. Without it
        entries that were moved meanwhile count as missing. `give_up_seconds`: how long bookies that cannot be reached
        are waited for."""
        self._topic = topic
        self._metadata_of_now = metadata_of_now
        self._asker = BookieRequests(bookies)
        self._give_up_seconds = give_up_seconds
        self._under_way: deque[asyncio.Task[Fetched]] = deque()

    async def blocks(self, ranges: Sequence[LedgerRange], on_hole: OnHole) -> AsyncIterator[EntryBlock]:
        """All entries of the ranges, in order, while the next ones are fetched. Those up to a range's end are read even
        where bookies have not heard yet that they are confirmed: whoever made the range knows. Raises
        `ClusterUnreachable`, and what `on_hole` raises."""
        pieces = self._pieces(ranges)
        hole: Hole | None = None
        try:
            while fetched := await self._next(pieces):
                for part in _joined(fetched):
                    if isinstance(part, EntryBlock):
                        if hole is not None:
                            on_hole(hole)
                            hole = None
                        yield part
                    elif hole is not None and _continues(hole, part):
                        hole = replace(hole, last_entry_id=part.last_entry_id)
                    else:
                        if hole is not None:
                            on_hole(hole)
                        hole = part
        except ClusterUnreachable:
            if hole is not None:
                on_hole(hole)
            raise
        else:
            if hole is not None:
                on_hole(hole)
        finally:
            await self.close()

    async def close(self) -> None:
        """Cancel the requests that are under way. Twice is no error; the bookies stay connected."""
        under_way, self._under_way = self._under_way, deque()
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    async def _next(self, pieces: Iterator[Piece]) -> list[Fetched]:
        """The next piece, and those behind it that have come meanwhile, as far as they fit into a block. Empty at the
        end."""
        under_way = self._under_way
        result: list[Fetched] = []
        size_bytes = 0
        while True:
            while len(under_way) < PIECES_AHEAD and (piece := next(pieces, None)) is not None:
                under_way.append(asyncio.create_task(self._fetch(piece)))
            if not under_way or (result and (size_bytes >= BLOCK_BYTES or not under_way[0].done())):
                return result
            fetched = await under_way[0]
            under_way.popleft()
            if fetched.next_entry_id <= fetched.piece.last:
                # Entries are larger than was thought. The rest goes first, as it is what is needed next.
                piece = fetched.piece
                rest = Piece(piece.place, fetched.next_entry_id, piece.last, piece.turn)
                under_way.appendleft(asyncio.create_task(self._fetch(rest)))
            result.append(fetched)
            size_bytes += fetched.size_bytes

    def _pieces(self, ranges: Sequence[LedgerRange]) -> Iterator[Piece]:
        for part in ranges:
            yield from pieces_of(LedgerPlace(self._topic, part, self._metadata_of_now), part)

    async def _fetch(self, piece: Piece) -> Fetched:
        fetched = Fetched(piece)
        place = piece.place
        if place.metadata is None:
            await place.look_again()
        while fetched.next_entry_id <= piece.last and fetched.size_bytes < ANSWER_BYTES_MAX:
            if place.gone or place.metadata is None:
                fetched.add_hole(piece.last, place.gone or "nobody says which bookies have the ledger")
                break
            payloads, reasons = await self._some(piece, fetched.next_entry_id)
            if payloads:
                place.note_sizes(payloads)
                fetched.add(payloads)
            elif not place.gone:
                await self._measure_hole(fetched, reasons)
        return fetched

    async def _some(self, piece: Piece, first: int) -> tuple[list[bytes], list[BookieFailure]]:
        """Entries from `first` on, at least one; none when all of its bookies deny it, or the ledger is gone. Raises
        `ClusterUnreachable` when a bookie that may have it is not to be reached."""
        place = piece.place
        give_up_at = asyncio.get_running_loop().time() + self._give_up_seconds
        patience_seconds, pauses = PATIENCE_SECONDS, Backoff(PAUSE_SECONDS, PAUSE_SECONDS_MAX)
        while True:
            payloads, reasons = await self._asker.some(piece, first, patience_seconds)
            if payloads:
                return payloads, []
            unsure: ClusterUnreachable | None = None
            moved = False
            try:
                moved = await place.look_again()
            except ClusterUnreachable as error:
                unsure = error
            if place.gone:
                return [], []
            if not moved and unsure is None and nobody_has_it(reasons):
                return [], reasons
            if asyncio.get_running_loop().time() >= give_up_at:
                raise unsure or ClusterUnreachable(
                    f"{self._topic}: entry {place.ledger_id}:{first} cannot be read: {in_words(reasons)}. "
                    "Executors must reach the bookies; readMode=brokers reads through brokers instead"
                )
            if not moved:
                await asyncio.sleep(pauses.next_seconds())
                patience_seconds *= 2

    async def _measure_hole(self, fetched: Fetched, reasons: list[BookieFailure]) -> None:
        """The next entry is missing: find out how many more are."""
        piece, place = fetched.piece, fetched.piece.place
        first = fetched.next_entry_id
        metadata = place.metadata
        assert metadata is not None
        segment_last = min([piece.last, *(start - 1 for start, _ in metadata.ensembles if start > first)])
        whole = metadata.ensemble_size == metadata.write_quorum and nobody_has_the_ledger(reasons)
        last = segment_last if whole else first
        count = min(EACH_COUNT_MAX, max(1, ANSWER_BYTES_MAX // place.entry_bytes))
        while last < segment_last:
            some = range(last + 1, min(last + count, segment_last) + 1)
            found, why = await self._asker.each(place, some, PATIENCE_SECONDS)
            missing = 0
            while missing < len(some) and some[missing] not in found and nobody_has_it(why[some[missing]]):
                missing += 1
            last += missing
            if missing < len(some):
                break
        fetched.add_hole(last, f"no bookie gives them: {in_words(reasons)}")


def _joined(results: list[Fetched]) -> Iterator[EntryBlock | Hole]:
    """Neighbours made one block."""
    ledger_id = first = -1
    entries: list[bytes] = []
    for fetched in results:
        for part in fetched.parts:
            found_in = fetched.piece.place.ledger_id
            if not isinstance(part, Hole) and (found_in, part[0]) == (ledger_id, first + len(entries)):
                entries += part[1]
                continue
            if entries:
                yield EntryBlock(ledger_id, range(first, first + len(entries)), entries)
                entries = []
            if isinstance(part, Hole):
                yield part
            else:
                ledger_id, (first, entries) = found_in, part
    if entries:
        yield EntryBlock(ledger_id, range(first, first + len(entries)), entries)


def _continues(hole: Hole, more: Hole) -> bool:
    return more == replace(hole, first_entry_id=hole.last_entry_id + 1, last_entry_id=more.last_entry_id)
