"""Where one ledger's entries are, as far as a reader knows, and the cutting of a range into parts of one request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from magnetar.core.errors import PeerError, Unavailable
from magnetar.core.limits import MIB
from magnetar.spark.errors import ClusterUnreachable
from magnetar.spark.slices import LedgerRange
from magnetar.wire.bookkeeper.entry import EntryCodec
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata, decode_ledger_metadata

LedgerMetadataOfNow: TypeAlias = Callable[[int], Awaitable[bytes | None]]
"""LedgerMetadata as the metadata store has it now, None when there is none (any more). Raises `Unavailable`."""

REQUEST_BYTES: Final = 1 * MIB
"""What one request is meant to bring. Bookies answer much larger ones too, but read and send them in one piece, and
the writers whose entries they take meanwhile wait for that."""

REQUEST_COUNT_MAX: Final = 1000
"""Entries of one request: with small entries their number is what costs the bookie time."""

GUESSED_ENTRY_BYTES: Final = 1024
"""The size of an entry while nothing is known about the ledger's."""


class LedgerPlace:
    """One ledger while it is read. Shared by the requests that are under way."""

    __slots__ = ("_of_now", "codec", "entry_bytes", "gone", "ledger_id", "metadata", "topic")

    def __init__(self, topic: str, part: LedgerRange, of_now: LedgerMetadataOfNow | None) -> None:
        self.topic = topic
        self.ledger_id = part.ledger_id
        self.entry_bytes = max(1, part.size_bytes // max(1, part.entries)) if part.size_bytes else GUESSED_ENTRY_BYTES
        """An entry's size, going by the last request."""
        self.gone = ""
        """Why there is nothing to read; empty while there is."""
        self._of_now = of_now
        self.metadata: LedgerMetadata | None = None
        self.codec: EntryCodec | None = None
        if part.metadata:
            self._take(decode_ledger_metadata(part.metadata))

    def _take(self, metadata: LedgerMetadata) -> None:
        self.metadata = metadata
        self.codec = EntryCodec(self.ledger_id, metadata.digest_type or "CRC32", metadata.password)

    async def look_again(self) -> bool:
        """Read the metadata anew: AutoRecovery may have moved entries, the writer may have changed bookies, retention
        may have taken the ledger. Whether anything is different now. Raises `ClusterUnreachable`: then nobody can say
        whether the entries are missing."""
        if self._of_now is None or self.gone:
            return False
        try:
            stored = await self._of_now(self.ledger_id)
            now = decode_ledger_metadata(stored) if stored is not None else None
        except (Unavailable, PeerError) as error:
            raise ClusterUnreachable(
                f"{self.topic}: where ledger {self.ledger_id} is now cannot be read from the metadata store: {error} "
                "(see option metadata.url)"
            ) from error
        if now is None:
            self.gone = "the ledger was deleted: by retention, or with its topic"
            return True
        before, self.metadata = self.metadata, now
        if before is None:
            self._take(now)
        return before is None or before.ensembles != now.ensembles

    def note_sizes(self, entries: list[bytes]) -> None:
        """Go by these from now on."""
        if entries:
            self.entry_bytes = max(1, sum(map(len, entries)) // len(entries))

    def request_count(self) -> int:
        """Entries to ask for at a time."""
        return min(REQUEST_COUNT_MAX, max(1, REQUEST_BYTES // self.entry_bytes))


@dataclass(slots=True, eq=False)
class Piece:
    """Consecutive entries of one ledger that are fetched together; both ends included."""

    place: LedgerPlace
    first: int
    last: int
    turn: int
    """Which of equally good bookies is asked first: one for a range, so that its read-ahead helps, and another one
    for other ranges, so that tasks that run at the same time share the bookies."""


def pieces_of(place: LedgerPlace, part: LedgerRange) -> Iterator[Piece]:
    """A range cut up, by what is known about sizes whenever the next one is asked for."""
    turn = part.ledger_id + part.first_entry_id // REQUEST_COUNT_MAX
    first = part.first_entry_id
    while first <= part.last_entry_id:
        last = part.last_entry_id if place.gone else min(first + place.request_count() - 1, part.last_entry_id)
        yield Piece(place, first, last, turn)
        first = last + 1
