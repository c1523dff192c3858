"""Which ledgers a bookie has deleted last, kept among the states of its index so that restarts do not forget them.

A ledger's mark stands under its id less 2**63. BookKeeper reads negative ids as ledgers of no collection, and keeps
flags of its own at -0xeeee (`LedgerMetadataIndex`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from magnetar.bookie.storage.index_api import DELETED_LEDGERS_MAX
from magnetar.bookie.storage.index_database import Database, valid
from magnetar.wire.bookkeeper.generated.db_ledger_storage_pb2 import LedgerData
from rocksdict import WriteBatch

_KEY: Final = struct.Struct(">Q")
_MARK: Final = 1 << 63
_MARKS_END: Final = _MARK | 1 << 62
"""Counters give no greater ledger ids, and BookKeeper's flags are behind."""
_VALUE: Final = LedgerData(exists=False, fenced=True, masterKey=b"").SerializeToString()


class DeletedLedgers:
    """The marks in one database. `IndexFailed`."""

    def __init__(self, database: Database, count_max: int = DELETED_LEDGERS_MAX) -> None:
        self._database = database
        self._count_max = count_max
        self.count = self._counted()
        """The number of marks; one that is set twice counts twice until the next opening."""

    def __contains__(self, ledger_id: int) -> bool:
        return self._database.get(_KEY.pack(_MARK | ledger_id)) is not None

    def greatest(self) -> int:
        """The greatest ledger that is marked; -1: none."""
        marks = self._database.iter()
        marks.seek_for_prev(_KEY.pack(_MARKS_END - 1))
        key: int = _KEY.unpack(marks.key())[0] if valid(marks) else 0
        return key - _MARK if key >= _MARK else -1

    def mark(self, ledger_ids: Sequence[int], batch: WriteBatch) -> None:
        """Have the batch mark these ledgers, and unmark the smallest ids beyond the number that is kept: they are the
        oldest. One caller at a time."""
        keys = [_KEY.pack(_MARK | ledger_id) for ledger_id in ledger_ids if _MARK | ledger_id < _MARKS_END]
        self.count += len(keys)
        for key in keys:
            batch.put(key, _VALUE)
        if self.count > self._count_max:
            self._unmark(self.count - self._count_max, batch)

    def _unmark(self, count: int, batch: WriteBatch) -> None:
        marks = self._database.iter()
        marks.seek(_KEY.pack(_MARK))
        while count and valid(marks) and (key := marks.key()) < _KEY.pack(_MARKS_END):
            batch.delete(key)
            count -= 1
            marks.next()
        self.count = self._count_max + count

    def _counted(self) -> int:
        marks = self._database.iter()
        marks.seek(_KEY.pack(_MARK))
        count = 0
        while valid(marks) and marks.key() < _KEY.pack(_MARKS_END):
            count += 1
            marks.next()
        return count
