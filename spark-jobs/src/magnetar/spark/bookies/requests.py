"""Asking bookies for entries: who is asked, in which order, and what an answer means. Nothing here writes or fences."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from magnetar.core.limits import MIB
from magnetar.ledger.bookie_client.bookie_connection import ReadOnlyBookies
from magnetar.ledger.entry_reader import DENIALS
from magnetar.ledger.striping import write_set
from magnetar.spark.bookies.ledger_place import LedgerPlace, Piece
from magnetar.wire.bookkeeper.codes import BookieCode, BookieError
from magnetar.wire.bookkeeper.entry import DigestMismatch, EntryCodec

ANSWER_BYTES_MAX: Final = 4 * MIB
"""What one answer may bring when entries are larger than expected; below BookKeeper's frame size."""

EACH_COUNT_MAX: Final = 512
"""Entries that are asked for one by one at a time."""

AVOIDED_SECONDS: Final = 10.0
"""How long a bookie that could not be reached, or was slow, is asked last."""


class ReadFailure(enum.Enum):
    """Why a bookie did not give an entry."""

    DENIED = enum.auto()
    """It has no such entry."""
    NO_LEDGER = enum.auto()
    """It has nothing of this ledger."""
    DAMAGED = enum.auto()
    UNKNOWN = enum.auto()
    """It cannot be reached, is slow, overloaded, …: it may have the entry."""


@dataclass(frozen=True, slots=True)
class BookieFailure:
    """A bookie's failure and its words."""

    failure: ReadFailure
    text: str


Got: TypeAlias = "tuple[list[bytes], list[BookieFailure]]"
"""Payloads from the wanted entry on, at least one; or none, and why: one reason for each bookie of its write set."""


class BookieRequests:
    """Asks the bookies of ledgers, remembers which of them are slow or away."""

    def __init__(self, bookies: ReadOnlyBookies) -> None:
        self._bookies = bookies
        self._avoided_until: dict[str, float] = {}

    async def some(self, piece: Piece, first: int, patience_seconds: float) -> Got:
        """Entries from `first` on, up to the piece's last; each bookie is asked at most once."""
        metadata, codec = piece.place.metadata, piece.place.codec
        assert metadata is not None
        assert codec is not None
        ensemble = metadata.ensemble_of(first)
        last = min([piece.last, *(start - 1 for start, _ in metadata.ensembles if start > first)])
        if metadata.ensemble_size == metadata.write_quorum:
            turn = piece.turn % len(ensemble)
            order = self._sorted([*ensemble[turn:], *ensemble[:turn]])
            return await self._batch(codec, first, last, order, patience_seconds)
        found, reasons = await self.each(piece.place, range(first, last + 1)[:EACH_COUNT_MAX], patience_seconds)
        payloads: list[bytes] = []
        while (payload := found.get(first + len(payloads))) is not None:
            payloads.append(payload)
        return payloads, [] if payloads else reasons[first]

    async def _batch(
        self, codec: EntryCodec, first: int, last: int, order: Sequence[str], patience_seconds: float
    ) -> Got:
        reasons: list[BookieFailure] = []
        for bookie_id in order:
            connection = self._bookies.connection(bookie_id)
            count = last - first + 1
            try:
                async with asyncio.timeout(patience_seconds):
                    run = await connection.read_run(codec.ledger_id, first, count, ANSWER_BYTES_MAX)
            except (BookieError, TimeoutError) as error:
                reasons.append(self._reason(bookie_id, error))
                continue
            payloads, wrong = codec.decode_run(run, first, count)
            if payloads:
                return payloads, []
            # An empty answer denies nothing: nobody has said that the entry is not there.
            empty = BookieFailure(ReadFailure.UNKNOWN, f"{bookie_id} answers with nothing")
            reasons.append(empty if wrong is None else self._reason(bookie_id, wrong))
        return [], reasons

    async def each(
        self, place: LedgerPlace, entry_ids: Sequence[int], patience_seconds: float
    ) -> tuple[dict[int, bytes], dict[int, list[BookieFailure]]]:
        """Entries of one segment, one by one: the payloads of those that were found, and for the others the reasons of
        their bookies."""
        metadata, codec = place.metadata, place.codec
        assert metadata is not None
        assert codec is not None
        ensemble = metadata.ensemble_of(entry_ids[0])
        size = len(ensemble)
        orders = [
            self._sorted([ensemble[index] for index in write_set(residue, size, metadata.write_quorum)])
            for residue in range(size)
        ]
        found: dict[int, bytes] = {}
        reasons: dict[int, list[BookieFailure]] = {entry_id: [] for entry_id in entry_ids}
        for turn in range(metadata.write_quorum):
            missing: dict[str, list[int]] = {}
            for entry_id in entry_ids:
                if entry_id not in found:
                    missing.setdefault(orders[entry_id % size][turn], []).append(entry_id)
            await asyncio.gather(
                *(
                    self._each_of(bookie_id, codec, wanted, patience_seconds, found, reasons)
                    for bookie_id, wanted in missing.items()
                )
            )
            if len(found) == len(entry_ids):
                break
        return found, reasons

    async def _each_of(
        self,
        bookie_id: str,
        codec: EntryCodec,
        wanted: Sequence[int],
        patience_seconds: float,
        found: dict[int, bytes],
        reasons: dict[int, list[BookieFailure]],
    ) -> None:
        try:
            async with asyncio.timeout(patience_seconds):
                results = await self._bookies.connection(bookie_id).read_each(codec.ledger_id, wanted)
        except TimeoutError as error:
            reason = self._reason(bookie_id, error)
            for entry_id in wanted:
                reasons[entry_id].append(reason)
            return
        for entry_id, result in zip(wanted, results, strict=True):
            try:
                if isinstance(result, BookieError):
                    raise result
                found[entry_id] = codec.decode(result, entry_id)
            except (BookieError, DigestMismatch) as error:
                reasons[entry_id].append(self._reason(bookie_id, error))

    def _sorted(self, bookies: list[str]) -> list[str]:
        """Those that are away or slow last."""
        if not self._avoided_until:
            return bookies
        now = asyncio.get_running_loop().time()
        self._avoided_until = {each: until for each, until in self._avoided_until.items() if until > now}
        return sorted(bookies, key=self._avoided_until.__contains__)

    def _reason(self, bookie_id: str, error: BookieError | DigestMismatch | TimeoutError) -> BookieFailure:
        if isinstance(error, DigestMismatch):
            return BookieFailure(ReadFailure.DAMAGED, f"{bookie_id}: {error}")
        if isinstance(error, TimeoutError):
            self._avoided_until[bookie_id] = asyncio.get_running_loop().time() + AVOIDED_SECONDS
            return BookieFailure(ReadFailure.UNKNOWN, f"{bookie_id} does not answer")
        if error.code is BookieCode.ENOLEDGER:
            return BookieFailure(ReadFailure.NO_LEDGER, f"{bookie_id} has nothing of the ledger")
        if error.code in DENIALS:
            return BookieFailure(ReadFailure.DENIED, f"{bookie_id} has no such entry")
        if error.code is BookieCode.EIO:
            return BookieFailure(ReadFailure.DAMAGED, f"{bookie_id} cannot read it")
        self._avoided_until[bookie_id] = asyncio.get_running_loop().time() + AVOIDED_SECONDS
        what = "cannot be reached" if error.code is BookieCode.UNREACHABLE else f"refuses ({error.code.name})"
        return BookieFailure(ReadFailure.UNKNOWN, f"{bookie_id} {what}")


def nobody_has_it(reasons: Sequence[BookieFailure]) -> bool:
    """Whether every bookie has said that it cannot give the entry, now or later."""
    return all(reason.failure is not ReadFailure.UNKNOWN for reason in reasons)


def nobody_has_the_ledger(reasons: Sequence[BookieFailure]) -> bool:
    """Whether every bookie knows nothing of the whole ledger."""
    return all(reason.failure is ReadFailure.NO_LEDGER for reason in reasons)


def in_words(reasons: Sequence[BookieFailure]) -> str:
    """What all of the bookies said."""
    return "; ".join(reason.text for reason in reasons)
