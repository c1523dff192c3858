"""What the journals hold beyond the last checkpoint goes back into the storage, before the bookie serves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from magnetar.bookie.checkpoint import Checkpointer
from magnetar.bookie.journal import format as journal_format
from magnetar.bookie.journal.journal import Mark
from magnetar.bookie.journal.replay import JournalReplay
from magnetar.bookie.ledger_state import LedgerStates
from magnetar.bookie.loss import Losses
from magnetar.bookie.storage.directories import BookieDirectories, Marks
from magnetar.bookie.storage.ledger_storage import LedgerStorage
from magnetar.wire.bookkeeper.entry import HEADER_BYTES

logger: Final = logging.getLogger(__name__)


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
        self.storage = storage
        self._states = states
        self._checkpointer = checkpointer
        self.entries = 0
        self.meta_records = 0
        self.ends: list[Mark] = []
        """The end of each journal, once `run` is done."""
        self.damaged_files: list[Path] = []
        self.marks: Marks = ()
        """The marks from which the journals have been read, one for each."""

    async def run(self, *, synced: bool, losses: Losses | None = None) -> None:
        """Read everything from the last marks on. `JournalDamaged` unless losses are accepted, OSError."""
        marks = self.marks = self._directories.read_last_marks()
        loop = asyncio.get_running_loop()
        disk = self._directories.disk
        flush: asyncio.Task[None] | None = None
        try:
            for directory, mark in zip(self._directories.journals, marks, strict=True):
                journal = JournalReplay(disk, directory, mark, synced=synced, losses=losses)
                groups = journal.groups()
                while await loop.run_in_executor(None, self._fill_caches, groups):
                    if flush is not None:
                        await flush
                    # One half is written while the other is filled; a turn of the loop lets the flush begin, which
                    # settles what it writes. The marks stay: everything behind them may be replayed once more.
                    flush = loop.create_task(self._checkpointer.flush(marks), name="bookie-replay-flush")
                    await asyncio.sleep(0)
                self.ends.append(journal.end)
                self.damaged_files += journal.damaged_files
        finally:
            if flush is not None:
                await flush
        if self.entries or self.meta_records:
            logger.info("replayed %d entries and %d other records from the journal", self.entries, self.meta_records)

    def _fill_caches(self, groups: Iterator[list[bytes]]) -> bool:
        """Take groups until a cache should be written out (True) or there are no more (False)."""
        for records in groups:
            # Writers hand over many entries of a ledger at a time, so runs of them are taken together.
            run_ledger_id = -1
            run_ids: list[int] = []
            run: list[bytes] = []
            for record in records:
                ledger_id, entry_id = journal_format.record_ids(record)
                if entry_id < 0 or len(record) < HEADER_BYTES:
                    self._apply_meta(record)
                    continue
                if ledger_id != run_ledger_id:
                    self._add(run_ledger_id, run_ids, run)
                    run_ledger_id, run_ids, run = ledger_id, [], []
                run_ids.append(entry_id)
                run.append(record)
            self._add(run_ledger_id, run_ids, run)
            if self.storage.half_full:
                return True
        return False

    def _add(self, ledger_id: int, entry_ids: list[int], entries: list[bytes]) -> None:
        if entries:
            self._states.touch(self._states.get_or_create(ledger_id))
            self.storage.of(ledger_id).cache.active.add(ledger_id, entry_ids, entries, sum(map(len, entries)))
            self.entries += len(entries)

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
                state.take_explicit_lac(journal_format.record_value(record))
            else:
                logger.warning("a journal record of unknown kind %d for ledger %d is left out", kind, ledger_id)
                return
        except ValueError as error:
            logger.error("a journal record for ledger %d is left out: %s", ledger_id, error)  # noqa: TRY400
            return
        self._states.touch(state)
        self.meta_records += 1
