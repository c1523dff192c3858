"""A ledger that somebody else may be writing, read while it grows: nothing is fenced, nothing is written.

What bookies vouch for (the LAC in the headers of entries) lags behind the writer by what it has under way, and by its
last entry once it is idle. Whoever knows from elsewhere that more is confirmed says so, and reads that too. An observer
never says by itself that an entry beyond the LAC is confirmed: a recovery may drop it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from magnetar.ledger.api import EntriesSeen, LedgerUnavailable
from magnetar.ledger.entry_reader import BATCH_COUNT_MAX, DENIALS
from magnetar.ledger.ledger_paths import ledger_path
from magnetar.ledger.reader import OpenLedgerReader
from magnetar.ledger.recovery_driver import LastConfirmedQuery, check_password, codec_for
from magnetar.ledger.striping import write_set
from magnetar.ledger.writer import LedgerParts
from magnetar.metadata.listeners import PathWatches
from magnetar.wire.bookkeeper.codes import BookieCode, BookieError
from magnetar.wire.bookkeeper.entry import DigestMismatch, EntryCodec, header
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState

STRIPED_MAX: Final = 64
"""Entries of a striped ledger that one look asks for at once."""

FAR_TURNS: Final = 16
"""One of so many looks that find nothing asks farther bookies as well: what they send may cross regions."""

STRIDE_GROWTH: Final = 8
"""So many times as much is asked for after a look that brought all that it asked for."""


async def observe(
    ledger_id: int, password: bytes, parts: LedgerParts, watches: PathWatches, changed: Callable[[], None]
) -> OpenLedgerObserver:
    """An observer that has read the ledger's metadata. Raises `LedgerNotFound`, `LedgerUnauthorized`, `Unavailable`."""
    stop = watches.add(ledger_path(ledger_id), changed)
    try:
        metadata, _ = await parts.metadata.read(ledger_id, watch=True)
        check_password(ledger_id, metadata, password)
    except BaseException:
        stop()
        raise
    return OpenLedgerObserver(ledger_id, metadata, password, parts, stop)


class OpenLedgerObserver(OpenLedgerReader):
    """A `LedgerObserver`."""

    def __init__(
        self, ledger_id: int, metadata: LedgerMetadata, password: bytes, parts: LedgerParts, stop: Callable[[], None]
    ) -> None:
        codec = codec_for(ledger_id, metadata)
        super().__init__(ledger_id, metadata, parts.entry_reader(codec), -1, 0)
        self._codec: EntryCodec = codec
        self._password: bytes = password
        self._parts: LedgerParts = parts
        self._stop: Callable[[], None] = stop
        self._turn: int = 0
        """Looks that found nothing: each further one asks another bookie first."""
        self._stride: int = 1
        """Entries that the next look asks for: few at the end, as bookies without batch reads are asked for each."""
        self._sought: int = -1
        """Up to here all bookies are asked for an entry that the first one has not."""
        self._denied: int = -1
        self._deniers: set[str] = set()
        """The bookies that have no entry `_denied`."""
        self._take(metadata)

    @property
    def nothing_beyond(self) -> bool:
        """Whether so many bookies have said that they have nothing behind what was seen, since the last time that
        anything was, that no confirmed entry can have been there when they did."""
        return len(self._deniers) > self.metadata.write_quorum - self.metadata.ack_quorum

    def vouch(self, last_entry_id: int) -> None:
        """Somebody knows that all up to this entry are confirmed: they may be read."""
        if not self.closed:
            self.last_add_confirmed = max(self.last_add_confirmed, last_entry_id)

    async def refresh(self) -> None:
        """Read the ledger's metadata again: other bookies, or its end. `LedgerNotFound`, `Unavailable`."""
        metadata, _ = await self._parts.metadata.read(self.ledger_id, watch=True)
        check_password(self.ledger_id, metadata, self._password)
        self._take(metadata)

    async def ask(self) -> None:
        """Ask the last bookies how far the ledger is confirmed. `LedgerUnavailable`: too few have answered."""
        if self.closed:
            return
        query = LastConfirmedQuery(self.metadata, self._codec, self._parts)
        await query.run(fence=False)
        if not query.round.covered:
            raise LedgerUnavailable(
                f"only {query.round.answers} of the last bookies of ledger {self.ledger_id} say how far it goes; "
                "the others may know of more"
            )
        if query.last_add_confirmed > self.last_add_confirmed:
            self.vouch(query.last_add_confirmed)
            self.length_bytes = query.round.length_bytes

    async def look(self, first_entry_id: int, size_bytes_max: int, *, told: bool = False) -> EntriesSeen:
        """The entries from this one on that a bookie has, confirmed or not: at least one when it has the first, and no
        more than about so many bytes. One bookie is asked, the next time another one; all of them when the first entry
        is known to be confirmed, or `told` to be there. `LedgerUnavailable`: none answers."""
        self._sought = max(self.last_add_confirmed, first_entry_id if told else -1)
        entries = await self._entries_from(first_entry_id, size_bytes_max)
        payloads = [entry[self._codec.overhead_bytes :] for entry in entries]
        length_bytes = 0
        if entries:
            _, _, last_add_confirmed, length_bytes = header(entries[-1])
            length_bytes -= sum(map(len, payloads))
            self.vouch(last_add_confirmed)
        return EntriesSeen(payloads, length_bytes)

    async def close(self) -> None:
        """Look at it no more. Nothing is written."""
        self._stop()

    def _take(self, metadata: LedgerMetadata) -> None:
        self.metadata = metadata
        self.closed = metadata.state is LedgerState.CLOSED
        if self.closed:
            self.last_add_confirmed, self.length_bytes = metadata.last_entry_id, metadata.length_bytes
        else:
            self.vouch(metadata.ensembles[-1][0] - 1)  # The last segment's beginning proves all before it.

    async def _entries_from(self, first: int, size_bytes_max: int) -> list[bytes]:
        """Whole entries, digests checked."""
        metadata = self.metadata
        ensemble = metadata.ensemble_of(first)
        later = [start for start, _ in metadata.ensembles if start > first]
        count_max = min(later[0] - first, BATCH_COUNT_MAX) if later else BATCH_COUNT_MAX
        if self.closed:
            count_max = min(count_max, self.last_add_confirmed + 1 - first)
        if count_max <= 0:
            return []
        whole = metadata.ensemble_size == metadata.write_quorum
        count = min(count_max, self._stride, BATCH_COUNT_MAX if whole else STRIPED_MAX)
        if whole:
            found = await self._ask_in_turn(first, count, size_bytes_max, self._in_turn(first, ensemble))
        else:
            found = await self._striped(first, count, ensemble)
        if len(found) == count:
            self._stride = min(BATCH_COUNT_MAX, STRIDE_GROWTH * count)
        elif sum(map(len, found)) < size_bytes_max // 2:
            self._stride = 1
        return found

    async def _striped(self, first: int, count: int, ensemble: Sequence[str]) -> list[bytes]:
        results = await asyncio.gather(
            *(self._ask_in_turn(each, 1, 1, self._in_turn(each, ensemble)) for each in range(first, first + count)),
            return_exceptions=True,
        )
        found: list[bytes] = []
        for result in results:
            if isinstance(result, BaseException):
                if not found:
                    raise result
                break
            if not result:
                break
            found += result
        return found

    def _in_turn(self, entry_id: int, ensemble: Sequence[str]) -> list[str]:
        """The entry's bookies; those that lately failed come last."""
        indexes = write_set(entry_id, len(ensemble), self.metadata.write_quorum)
        if len(indexes) == len(ensemble):
            indexes = write_set(self.ledger_id, len(ensemble), len(ensemble))  # The one whose read-ahead is warm.
        chooser, bookies = self._parts.chooser, [ensemble[index] for index in indexes]
        near = chooser.nearest(bookies)
        # Far ones now and then: a near one may have missed what was written.
        rotated = bookies if self._turn % FAR_TURNS == FAR_TURNS - 1 else near
        start = self._turn % len(rotated)
        first = [*rotated[start:], *rotated[:start]]
        bookies = [*first, *(each for each in bookies if each not in first)]
        avoided = chooser.avoided()
        return sorted(bookies, key=avoided.__contains__) if avoided else bookies

    async def _ask_in_turn(self, first: int, count: int, size_bytes_max: int, bookies: Sequence[str]) -> list[bytes]:
        """Of the first bookie that answers. One that says that it has no such entry ends it, unless the entry is known
        to be confirmed: a look must not cost more than a read while nothing is written."""
        problems: list[str] = []
        denied = False
        for bookie_id in bookies:
            try:
                async with asyncio.timeout(self._parts.settings.speculative_read_seconds):
                    connection = self._parts.connections.connection(bookie_id)
                    entries = await connection.read_entries(self.ledger_id, first, count, size_bytes_max)
                good = self._good(entries[:count], first)
                if good:
                    return good
                problems.append(f"{bookie_id}: damaged")
            except TimeoutError:
                self._parts.chooser.report_failure(bookie_id)
                problems.append(f"{bookie_id}: no answer")
            except BookieError as error:
                if error.code in DENIALS:
                    denied = True
                    self._note_denial(first, bookie_id)
                    if first > self._sought:
                        break
                elif error.code is BookieCode.UNREACHABLE:
                    self._parts.chooser.report_failure(bookie_id)
                problems.append(str(error))
        if not denied:
            raise LedgerUnavailable(f"no bookie tells of entry {self.ledger_id}:{first}: {'; '.join(problems)}")
        self._turn += 1
        return []

    def _note_denial(self, entry_id: int, bookie_id: str) -> None:
        if entry_id > self._denied:
            self._denied = entry_id
            self._deniers = set()
        if entry_id == self._denied:
            self._deniers.add(bookie_id)

    def _good(self, entries: Sequence[bytes], first: int) -> list[bytes]:
        good: list[bytes] = []
        for entry in entries:
            try:
                self._codec.decode(entry, first + len(good))
            except DigestMismatch:
                break
            good.append(entry)
        return good
