"""An index remembers for a while which ledgers it has deleted."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from magnetar.bookie.storage.deleted_ledgers import DeletedLedgers
from magnetar.bookie.storage.index import Index
from magnetar.bookie.storage.index_api import LedgerIndex
from magnetar.bookie.storage.index_database import Database, IndexFailed
from magnetar.core.disk import SystemDisk
from magnetar.core.limits import MIB
from magnetar.wire.bookkeeper.generated.db_ledger_storage_pb2 import LedgerData
from rocksdict import Options, Rdict, WriteBatch

from bookie.tests.simulated_storage import DiskIndex


def rocksdb_index(directory: Path) -> LedgerIndex:
    return Index(directory, 8 * MIB)


def disk_index(directory: Path) -> LedgerIndex:
    return DiskIndex(SystemDisk(), directory)


@pytest.mark.parametrize("open_index", [rocksdb_index, disk_index])
def test_a_deletion_is_remembered_over_a_restart(open_index: Callable[[Path], LedgerIndex], tmp_path: Path) -> None:
    index = open_index(tmp_path)
    index.put_ledgers([(ledger_id, b"state") for ledger_id in range(4)])
    assert index.greatest_ledger_id() == 3
    index.delete_ledgers([0, 2, 2**40])
    index.put_ledgers([(2, b"copied here again")])
    for _ in range(2):
        assert [ledger_id for ledger_id in (*range(5), 2**40) if index.was_deleted(ledger_id)] == [0, 2, 2**40]
        assert list(index.ledger_ids()) == index.stored_ledger_ids(0, 10) == [1, 2, 3]
        assert index.greatest_ledger_id() == 2**40
        index.close()
        index = open_index(tmp_path)
    assert index.estimated_counts()[0] <= 5
    index.close()


class FullDatabase:
    """Takes so many writes, and no more."""

    def __init__(self, database: Database, writes_left: int) -> None:
        self._database = database
        self._writes_left = writes_left

    def write(self, *arguments: Any, **options: Any) -> None:
        if not self._writes_left:
            raise IndexFailed("the disk is full")
        self._writes_left -= 1
        self._database.write(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)


@pytest.mark.parametrize("writes", [0, 1, 2])
def test_a_state_goes_with_its_mark_or_stays(writes: int, tmp_path: Path) -> None:
    """Without both, the ledger's former writer would find a new one here."""
    index = Index(tmp_path, 8 * MIB)
    index.put_ledgers([(1, b"state")])
    states = index._ledgers
    index._ledgers = cast(Database, FullDatabase(states, writes))
    with contextlib.suppress(IndexFailed):
        index.delete_ledgers([1])
    index._ledgers = states
    assert (index.ledger(1) is None) == index.was_deleted(1)
    index.close()


def test_the_oldest_deletions_are_forgotten(tmp_path: Path) -> None:
    with Rdict(str(tmp_path), Options(raw_mode=True)) as database:
        flags = struct.pack(">q", -0xEEEE)
        database[flags] = b"BookKeeper's"
        for first in (0, 100, 103):
            deleted = DeletedLedgers(cast(Database, database), count_max=5)
            batch = WriteBatch(raw_mode=True)
            deleted.mark(range(first, first + 3), batch)
            database.write(batch)
        assert [ledger_id for ledger_id in range(200) if ledger_id in deleted] == [101, 102, 103, 104, 105]
        assert DeletedLedgers(cast(Database, database)).count == 5
        # BookKeeper's bookie reads every value of this database as a LedgerData.
        assert not LedgerData.FromString(cast(bytes, database[struct.pack(">q", 101 - 2**63)])).exists
        assert database[flags] == b"BookKeeper's"


@pytest.mark.parametrize("open_index", [rocksdb_index, disk_index])
def test_the_greatest_ledger(open_index: Callable[[Path], LedgerIndex], tmp_path: Path) -> None:
    index = open_index(tmp_path)
    assert index.greatest_ledger_id() == -1
    index.delete_ledgers([0])
    assert index.greatest_ledger_id() == 0
    index.put_ledgers([(5, b"state")])
    assert index.greatest_ledger_id() == 5
    index.put_locations(7, [0, 1], [10, 20])
    assert index.greatest_ledger_id() == 7
    index.close()
