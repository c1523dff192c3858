"""What the journals hold beyond the last checkpoint goes back into the storage, before the bookie serves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

from magnetar.bookie import journal_files, journal_format
from magnetar.bookie.checkpoint import Checkpointer
from magnetar.bookie.directories import BookieDirectories
from magnetar.bookie.ledger_state import LedgerStates
from magnetar.bookie.storage import LedgerStorage

log = logging.getLogger(__name__)


class Replay:
    """One pass over the journals. Storing an entry twice changes nothing, so it may be broken off and repeated."""

    def __init__(
        self,
        directories: BookieDirectories,
        storage: LedgerStorage,
        states: LedgerStates,
        checkpointer: Checkpointer,
    ) -> None:
        self._directories = directories
        self._storage = storage
        self._states = states
        self._checkpointer = checkpointer
        self.entries = 0
        self.meta_records = 0

    async def run(self, *, synced: bool) -> None:
        """Read everything from the last marks on. `JournalDamaged`, OSError."""
        marks = self._directories.read_last_marks()
        loop = asyncio.get_running_loop()
        disk = self._directories.disk
        for directory, mark in zip(self._directories.journals, marks, strict=True):
            groups = journal_files.replay(disk, directory, mark, synced=synced)
            while await loop.run_in_executor(None, self._fill_caches, groups):
                # The marks stay: what came before them is not replayed, everything behind them may be once more.
                await self._checkpointer.flush(marks)
        if self.entries or self.meta_records:
            log.info("replayed %d entries and %d other records from the journal", self.entries, self.meta_records)

    def _fill_caches(self, groups: Iterator[list[bytes]]) -> bool:
        """Take groups until a cache should be written out (True) or there are no more (False)."""
        for records in groups:
            for record in records:
                if journal_format.is_entry(record):
                    ledger_id, entry_id = journal_format.record_ids(record)
                    state = self._states.get_or_create(ledger_id)
                    self._states.touch(state)
                    self._storage.of(ledger_id).cache.active.add(ledger_id, (entry_id,), (record,), len(record))
                    self.entries += 1
                else:
                    self._apply_meta(record)
            if self._storage.half_full:
                return True
        return False

    def _apply_meta(self, record: bytes) -> None:
        ledger_id, kind = journal_format.record_ids(record)
        if kind == journal_format.FORCE_LEDGER_RECORD:
            return
        state = self._states.get_or_create(ledger_id)
        try:
            if kind == journal_format.MASTER_KEY_RECORD:
                state.master_key = journal_format.record_value(record)
            elif kind == journal_format.FENCE_RECORD:
                state.fenced = state.fence_durable = True
            elif kind == journal_format.EXPLICIT_LAC_RECORD:
                state.explicit_lac = journal_format.record_value(record)
            else:
                log.warning("a journal record of unknown kind %d for ledger %d is left out", kind, ledger_id)
                return
        except ValueError as error:
            log.error("a journal record for ledger %d is left out: %s", ledger_id, error)  # noqa: TRY400
            return
        self._states.touch(state)
        self.meta_records += 1
