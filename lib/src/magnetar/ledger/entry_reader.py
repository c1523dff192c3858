"""Reads entries from whichever of their bookies has them, digests checked.

A ledger that is not striped has all entries on every bookie: one batch read brings many, and one bookie per ledger is
asked first, so that its read-ahead works. On striped ledgers each entry is asked for on its own, several at a time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Final, TypeVar

from magnetar.core.errors import MagnetarError
from magnetar.ledger.api import EntryNotFound, EntryUnreadable, LedgerUnavailable
from magnetar.ledger.bookie_chooser import BookieChooser
from magnetar.ledger.bookie_client.bookie_connection import BookieConnections
from magnetar.ledger.metadata_ops import LedgerMetadataOps
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.ledger.striping import write_set
from magnetar.wire.bookkeeper.codes import BookieCode, BookieError
from magnetar.wire.bookkeeper.entry import DigestMismatch, EntryCodec
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata

T = TypeVar("T")

BATCH_COUNT_MAX: Final = 1000
"""Entries that one batch read asks for; with small entries the count bounds the bookie's work."""

DENIALS: Final = (BookieCode.ENOENTRY, BookieCode.ENOLEDGER)


class LedgerEntryReader:
    """Reads of one ledger."""

    __slots__ = (
        "_chooser",
        "_codec",
        "_connections",
        "_ledger_id",
        "_metadata",
        "_settings",
    )

    def __init__(
        self,
        codec: EntryCodec,
        connections: BookieConnections,
        chooser: BookieChooser,
        metadata: LedgerMetadataOps,
        settings: LedgerClientSettings,
    ) -> None:
        self._codec = codec
        self._ledger_id = codec.ledger_id
        self._connections = connections
        self._chooser = chooser
        self._metadata = metadata
        self._settings = settings

    async def read(self, metadata: LedgerMetadata, first_entry_id: int, last_entry_id: int) -> list[bytes]:
        """Payloads of first..last; fewer when one after the first cannot be had, for whoever reads on from there will
        hear why. Raises `EntryNotFound`, `EntryUnreadable`, `LedgerUnavailable` about the first one."""
        payloads: list[bytes] = []
        try:
            for first, last, ensemble in _segments_between(metadata, first_entry_id, last_entry_id):
                if metadata.ensemble_size == metadata.write_quorum:
                    await self._read_whole(payloads, first, last, ensemble)
                else:
                    await self._read_striped(payloads, first, last, ensemble, metadata.write_quorum)
        except MagnetarError:
            if not payloads:
                raise
        return payloads

    async def moved(self, metadata: LedgerMetadata) -> LedgerMetadata | None:
        """The ledger's metadata of now if it names other bookies: AutoRecovery or a drain has moved entries, and
        bookies that had them may be gone. None if it names the same ones, or cannot be read."""
        try:
            now, _ = await self._metadata.read(self._ledger_id)
        except MagnetarError:
            # Whoever asks has an error of the bookies to tell, which says more.
            return None
        return now if now.ensembles != metadata.ensembles else None

    async def read_whole_entry(self, metadata: LedgerMetadata, entry_id: int) -> bytes:
        """One entry with its header, from the first of its bookies that has it undamaged."""
        ensemble = metadata.ensemble_of(entry_id)
        return await self._first_good(entry_id, ensemble, write_set(entry_id, len(ensemble), metadata.write_quorum))

    async def _read_whole(self, payloads: list[bytes], first: int, last: int, ensemble: Sequence[str]) -> None:
        start = self._ledger_id % len(ensemble)
        order = [*ensemble[start:], *ensemble[:start]]
        while first <= last:
            # At least one entry, all from one bookie.
            count = min(last - first + 1, BATCH_COUNT_MAX)
            some = await self._ask_in_turn(first, order, partial(self._batch_from, first, count))
            payloads += some
            first += len(some)

    async def _batch_from(self, first: int, count: int, bookie_id: str) -> list[bytes]:
        connection = self._connections.connection(bookie_id)
        entries = await connection.read_entries(self._ledger_id, first, count, self._settings.read_batch_bytes_max)
        payloads: list[bytes] = []
        try:
            for entry in entries[:count]:
                payloads.append(self._codec.decode(entry, first + len(payloads)))
        except DigestMismatch:
            if not payloads:
                raise
        return payloads

    async def _read_striped(
        self, payloads: list[bytes], first: int, last: int, ensemble: Sequence[str], write_quorum: int
    ) -> None:
        step = self._settings.striped_reads_max
        for start in range(first, last + 1, step):
            entry_ids = range(start, min(start + step, last + 1))
            results = await asyncio.gather(
                *(
                    self._first_good(entry, ensemble, write_set(entry, len(ensemble), write_quorum))
                    for entry in entry_ids
                ),
                return_exceptions=True,
            )
            for result in results:
                if isinstance(result, BaseException):
                    raise result
                payloads.append(result[self._codec.overhead_bytes :])

    async def _first_good(self, entry_id: int, ensemble: Sequence[str], indexes: Sequence[int]) -> bytes:
        bookies = [ensemble[index] for index in indexes]
        return await self._ask_in_turn(entry_id, bookies, partial(self._entry_from, entry_id))

    async def _entry_from(self, entry_id: int, bookie_id: str) -> bytes:
        entry = await self._connections.connection(bookie_id).read_entry(self._ledger_id, entry_id)
        self._codec.decode(entry, entry_id)
        return entry

    async def _ask_in_turn(
        self, entry_id: int, bookies: Sequence[str], ask: Callable[[str], Coroutine[None, None, T]]
    ) -> T:
        """The first good answer. The next bookie is asked when one fails, and also when one takes long; those that
        lately failed or took long come last, so that a bookie that hangs costs its wait once and not for every read."""
        waiting = deque(self._chooser.in_reading_order(bookies))
        errors: list[BookieError | DigestMismatch] = []
        asked: dict[asyncio.Task[T], str] = {}
        try:
            while waiting or asked:
                if waiting:
                    bookie_id = waiting.popleft()
                    asked[asyncio.create_task(ask(bookie_id))] = bookie_id
                patience = self._settings.speculative_read_seconds if waiting else None
                done, slow = await asyncio.wait(asked, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    self._chooser.report_failure(*(asked[task] for task in slow))
                for task in done:
                    bookie_id = asked.pop(task)
                    try:
                        return task.result()
                    except (BookieError, DigestMismatch) as error:
                        errors.append(error)
                        if isinstance(error, BookieError) and error.code is BookieCode.UNREACHABLE:
                            self._chooser.report_failure(bookie_id)
        finally:
            for task in asked:
                task.cancel()
        raise self._none_has_it(entry_id, errors)

    def _none_has_it(
        self, entry_id: int, errors: Sequence[BookieError | DigestMismatch]
    ) -> EntryNotFound | LedgerUnavailable:
        what = f"entry {self._ledger_id}:{entry_id}"
        if errors and all(isinstance(error, BookieError) and error.code in DENIALS for error in errors):
            return EntryNotFound(f"no bookie has {what}")
        if errors and all(isinstance(error, DigestMismatch) or error.code is BookieCode.EIO for error in errors):
            causes = "; ".join(str(error) for error in errors)
            return EntryUnreadable((self._ledger_id, entry_id), f"{what} is damaged on every bookie: {causes}")
        return LedgerUnavailable(f"no bookie gave {what}: " + "; ".join(str(error) for error in errors))


def _segments_between(
    metadata: LedgerMetadata, first_entry_id: int, last_entry_id: int
) -> list[tuple[int, int, list[str]]]:
    """(first, last, bookies) of the parts of first..last that lie in one segment each, ascending."""
    parts: list[tuple[int, int, list[str]]] = []
    ensembles = metadata.ensembles
    for position, (start, bookies) in enumerate(ensembles):
        end = ensembles[position + 1][0] - 1 if position + 1 < len(ensembles) else last_entry_id
        first, last = max(start, first_entry_id), min(end, last_entry_id)
        if first <= last:
            parts.append((first, last, bookies))
    return parts
