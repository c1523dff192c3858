"""Reading entries that are not in the cache: from the ledger in use, or from older ones opened for reading."""

from __future__ import annotations

import asyncio
from typing import Final

from magnetar.core.errors import MagnetarError
from magnetar.ledger.api import EntryNotFound, LedgerReader
from magnetar.managed.append_path import AppendPath
from magnetar.managed.entry import Entry
from magnetar.managed.shared import Shared

OPEN_READERS_MAX: Final = 8
"""Per managed ledger: readers of a backlog move from one ledger to the next, more than a few are never in use."""


class LedgerReaders:
    """The open readers of one managed ledger; opened on first use, the longest unused one is closed first."""

    __slots__ = ("_appends", "_opening", "_shared")

    def __init__(self, shared: Shared, appends: AppendPath) -> None:
        self._shared: Shared = shared
        self._appends: AppendPath = appends
        self._opening: dict[int, asyncio.Task[LedgerReader]] | None = None

    async def read(self, ledger_id: int, first_entry_id: int, last_entry_id: int) -> list[Entry]:
        """Confirmed entries first..last, fewer (at least one) when a later one cannot be had; they are put into the
        cache. `EntryNotFound` and what the client raises."""
        writer = self._appends.writer
        if writer is not None and writer.ledger_id == ledger_id:
            payloads = await writer.read(first_entry_id, last_entry_id)
        else:
            reader = await self._reader(ledger_id)
            payloads = await reader.read(first_entry_id, last_entry_id)
        if not payloads:
            raise EntryNotFound(f"ledger {ledger_id} gave no entry from {first_entry_id} on")
        entries = [Entry(ledger_id, entry_id, data) for entry_id, data in enumerate(payloads, first_entry_id)]
        if self._appends.ledgers.get(ledger_id) is not None:
            size_bytes = sum(map(len, payloads))
            self._shared.cache.add(ledger_id, list(entries), size_bytes, self._shared.clock.monotonic_seconds())
        return entries

    async def forget(self, ledger_id: int) -> None:
        """The ledger was deleted."""
        if self._opening and (task := self._opening.pop(ledger_id, None)) is not None:
            await _close(task)

    async def close(self) -> None:
        """Close all readers."""
        opening, self._opening = self._opening, None
        for task in (opening or {}).values():
            await _close(task)

    async def _reader(self, ledger_id: int) -> LedgerReader:
        opening = self._opening
        if opening is None:
            opening = self._opening = {}
        task = opening.pop(ledger_id, None)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            # A ledger whose closing failed is still open in its metadata: recovery settles its end.
            # For a closed ledger it changes nothing.
            task = self._shared.loop.create_task(
                self._shared.ledgers.open(ledger_id, password=self._appends.settings.password, recover=True)
            )
        opening[ledger_id] = task  # Last in the dictionary = used last.
        if len(opening) > OPEN_READERS_MAX:
            oldest = next(iter(opening))
            await _close(opening.pop(oldest))
        return await asyncio.shield(task)


async def _close(task: asyncio.Task[LedgerReader]) -> None:
    try:
        reader = await task
    except MagnetarError:
        return  # It was never open; whoever asked for it has heard.
    await reader.close()
