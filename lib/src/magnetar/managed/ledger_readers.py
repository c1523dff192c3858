"""Reading entries that are not in the cache: from the ledger in use, or from older ones opened for reading."""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from magnetar.core.errors import MagnetarError
from magnetar.ledger.api import EntryNotFound, LedgerReader
from magnetar.managed.append_path import AppendPath
from magnetar.managed.entry import Entry
from magnetar.managed.shared import Shared

logger: Final = logging.getLogger(__name__)

OPEN_READERS_MAX: Final = 8
"""Per managed ledger: readers of a backlog move from one ledger to the next, more than a few are never in use."""

READS_SECONDS_MAX: Final = 60.0
"""How long a deletion waits for the reads under way: longer than all attempts of one at bookies or store take."""


class ClosedLedgers(Protocol):
    """Opens ledgers that are not in use, wherever they are."""

    def is_offloaded(self, ledger_id: int) -> bool:
        """Whether it is read from tiered storage, or may be."""
        ...

    async def open_closed(self, ledger_id: int) -> LedgerReader:
        """Open the copy of a ledger that is to be read. Raises what the ledger client or the store raises."""
        ...


class _OpenReader:
    __slots__ = ("opening", "tiered", "used_seconds")

    def __init__(self, opening: asyncio.Task[LedgerReader]) -> None:
        self.opening: asyncio.Task[LedgerReader] = opening
        self.used_seconds: float = 0.0
        self.tiered: bool = False

    @property
    def failed(self) -> bool:
        task = self.opening
        return task.done() and (task.cancelled() or task.exception() is not None)


class LedgerReaders:
    """The open readers of one managed ledger; opened on first use, the longest unused one is closed first."""

    __slots__ = ("_appends", "_asked_too", "_closed", "_open", "_reads", "_shared")

    def __init__(self, shared: Shared, appends: AppendPath, closed: ClosedLedgers) -> None:
        self._shared: Shared = shared
        self._appends: AppendPath = appends
        self._closed: ClosedLedgers = closed
        self._open: dict[int, _OpenReader] | None = None
        self._reads: dict[int, list[asyncio.Future[None]]] | None = None
        """Reads under way of ledgers that are not in use."""
        self._asked_too: dict[tuple[int, int, int], list[asyncio.Future[list[Entry] | None]]] | None = None
        """Reads under way, by (ledger, first entry, last entry), and who else waits for their entries."""

    async def read(
        self, ledger_id: int, first_entry_id: int, last_entry_id: int, *, replayed: bool = False
    ) -> list[Entry]:
        """Confirmed entries first..last, fewer (at least one) when a later one cannot be had; they are put into the
        cache. `replayed`: a cursor reads them again. `EntryNotFound` and what the client raises.

        Cursors that ask for the same entries at a time share one read: those that begin at one place, or whose delayed
        messages fall due."""
        asked_too = self._asked_too
        if asked_too is None:
            asked_too = self._asked_too = {}
        asked = (ledger_id, first_entry_id, last_entry_id)
        while (others := asked_too.get(asked)) is not None:
            waiter: asyncio.Future[list[Entry] | None] = self._shared.loop.create_future()
            others.append(waiter)
            found = await waiter
            if found is not None:
                self._shared.cache.served(found)
                return list(found)
        waiters = asked_too[asked] = []
        entries = None
        try:
            entries = await self._read(ledger_id, first_entry_id, last_entry_id, replayed=replayed)
        except MagnetarError as error:
            _tell(waiters, error)
            raise
        finally:
            # Without entries who reads was cancelled: another one reads.
            del asked_too[asked]
            _tell(waiters, entries)
        return entries

    async def _read(self, ledger_id: int, first_entry_id: int, last_entry_id: int, *, replayed: bool) -> list[Entry]:
        writer = self._appends.writer
        if writer is not None and writer.ledger_id == ledger_id:
            payloads = await writer.read(first_entry_id, last_entry_id)
        else:
            payloads = await self._read_closed(ledger_id, first_entry_id, last_entry_id)
        if not payloads:
            raise EntryNotFound(f"ledger {ledger_id} gave no entry from {first_entry_id} on")
        entries = [Entry(ledger_id, entry_id, data) for entry_id, data in enumerate(payloads, first_entry_id)]
        size_bytes = sum(map(len, payloads))
        self._appends.measured().reading().add(len(payloads), size_bytes)
        self._shared.cache.missed(len(payloads), size_bytes)
        if self._appends.ledgers.get(ledger_id) is not None:
            now_seconds = self._shared.clock.monotonic_seconds()
            self._shared.cache.add(ledger_id, list(entries), size_bytes, now_seconds, replayed=replayed)
        return entries

    async def forget(self, ledger_id: int) -> None:
        """The ledger was deleted, or is to be read from another copy: let go of its reader, once the reads under way
        are over."""
        reader = self._open.pop(ledger_id, None) if self._open else None
        reads = (self._reads or {}).get(ledger_id)
        if reads:
            _, left = await asyncio.wait(list(reads), timeout=READS_SECONDS_MAX)
            if left:
                logger.warning("ledger %d: %d reads are not over after %d s", ledger_id, len(left), READS_SECONDS_MAX)
        if reader is not None:
            await _close(reader)

    async def close(self) -> None:
        """Close all readers."""
        opened, self._open = self._open, None
        self._shared.tiered_readers.pop(self, None)
        for reader in (opened or {}).values():
            await _close(reader)

    async def close_unused(self, since_seconds: float) -> None:
        """Close readers of offloaded ledgers that were not used since then: each holds a buffer, and its index."""
        opened = self._open or {}
        for ledger_id, reader in list(opened.items()):
            if reader.tiered and reader.used_seconds < since_seconds and not (self._reads or {}).get(ledger_id):
                del opened[ledger_id]
                await _close(reader)
        if not any(reader.tiered for reader in opened.values()):
            self._shared.tiered_readers.pop(self, None)

    async def _read_closed(self, ledger_id: int, first_entry_id: int, last_entry_id: int) -> list[bytes]:
        under_way = self._reads
        if under_way is None:
            under_way = self._reads = {}
        over = self._shared.loop.create_future()
        under_way.setdefault(ledger_id, []).append(over)
        try:
            opened = self._reader(ledger_id)
            reader = await asyncio.shield(opened.opening)
            try:
                return await reader.read(first_entry_id, last_entry_id)
            except MagnetarError:
                if opened.tiered and self._open is not None and self._open.get(ledger_id) is opened:
                    del self._open[ledger_id]  # All copies have failed: another reader may fare better.
                    await _close(opened)
                raise
        finally:
            over.set_result(None)
            under_way[ledger_id].remove(over)
            if not under_way[ledger_id]:
                del under_way[ledger_id]

    def _reader(self, ledger_id: int) -> _OpenReader:
        opened = self._open
        if opened is None:
            opened = self._open = {}
        reader = opened.pop(ledger_id, None)
        if reader is None or reader.failed:
            reader = _OpenReader(self._shared.loop.create_task(self._closed.open_closed(ledger_id)))
            if self._closed.is_offloaded(ledger_id):
                reader.tiered = True
                self._shared.tiered_readers[self] = None
        reader.used_seconds = self._shared.clock.monotonic_seconds()
        opened[ledger_id] = reader  # Last in the dictionary = used last.
        if len(opened) > OPEN_READERS_MAX:
            self._close_oldest(opened)
        return reader

    def _close_oldest(self, opened: dict[int, _OpenReader]) -> None:
        for ledger_id in opened:
            if not (self._reads or {}).get(ledger_id):  # At most as many are read as there are cursors.
                self._shared.start(_close(opened.pop(ledger_id)))
                return


def _tell(waiters: list[asyncio.Future[list[Entry] | None]], outcome: list[Entry] | MagnetarError | None) -> None:
    for waiter in waiters:
        if waiter.done():
            continue
        if isinstance(outcome, MagnetarError):
            waiter.set_exception(outcome)
        else:
            waiter.set_result(outcome)


async def _close(reader: _OpenReader) -> None:
    try:
        opened = await reader.opening
    except MagnetarError:
        return  # It was never open; whoever asked for it has heard.
    await opened.close()
