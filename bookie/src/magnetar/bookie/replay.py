"""What the journal holds beyond the last checkpoint goes back into the storage, before the bookie serves."""

from __future__ import annotations

import logging

from magnetar.bookie import journal_files, journal_format
from magnetar.bookie.checkpoint import Checkpointer
from magnetar.bookie.directories import BookieDirectories
from magnetar.bookie.ledger_state import LedgerStates
from magnetar.bookie.storage import LedgerStorage

log = logging.getLogger(__name__)


class Replay:
    """One pass over the journal. Storing an entry twice changes nothing, so a replay may be broken off and repeated."""

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

    def run(self, *, synced: bool) -> None:
        """Read everything from the last mark on. `JournalDamaged`, OSError."""
        mark = self._directories.read_last_mark()
        cache = self._storage.cache
        for records in journal_files.replay(self._directories.journal, mark, synced=synced):
            for record in records:
                if journal_format.is_entry(record):
                    ledger_id, entry_id = journal_format.record_ids(record)
                    state = self._states.get_or_create(ledger_id)
                    self._states.touch(state)
                    cache.active.add(ledger_id, (entry_id,), (record,), len(record))
                    self.entries += 1
                else:
                    self._apply_meta(record)
            if cache.half_full:
                self._checkpointer.write_now(self._states.take_dirty(), mark)
                self._states.flushed(stored=True)
        if self.entries or self.meta_records:
            log.info("replayed %d entries and %d other records from the journal", self.entries, self.meta_records)

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
