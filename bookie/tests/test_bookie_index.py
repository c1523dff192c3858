"""What every index of ledgers and places promises: production's on RocksDB, and that of tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from magnetar.bookie.storage.index import Index
from magnetar.bookie.storage.index_api import LedgerIndex
from magnetar.core.disk import SystemDisk
from magnetar.core.limits import MIB

from bookie.tests.simulated_storage import DiskIndex

Ids = tuple[int, int]


@pytest.fixture(params=["RocksDB", "DiskIndex"])
def index(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LedgerIndex]:
    opened: LedgerIndex = Index(tmp_path, 8 * MIB) if request.param == "RocksDB" else DiskIndex(SystemDisk(), tmp_path)
    yield opened
    opened.close()


def test_an_index_knows_ledgers_by_state_and_by_place(index: LedgerIndex) -> None:
    index.put_ledgers([(ledger_id, b"state") for ledger_id in (0, 3, 7)])
    index.put_locations(3, range(100), range(100))
    index.put_locations(5, [0, 2**62], [1, 2])
    assert index.stored_ledger_ids(0, 10) == [0, 3, 5, 7]
    assert index.stored_ledger_ids(0, 2) == [0, 3]
    assert index.stored_ledger_ids(4, 2) == [5, 7]
    assert index.stored_ledger_ids(8, 2) == []


def test_an_index_forgets_ledgers(index: LedgerIndex) -> None:
    index.put_ledgers([(ledger_id, b"state") for ledger_id in range(4)])
    for ledger_id in range(4):
        index.put_locations(ledger_id, [0, 1, 2**63 - 1], [1, 2, 3])
    index.delete_ledgers([])
    index.delete_ledgers([0, 2])
    assert index.stored_ledger_ids(0, 10) == [1, 3]
    assert [index.entry_ids(ledger_id) for ledger_id in range(4)] == [[], [0, 1, 2**63 - 1]] * 2
    assert index.last_entry_id(2) == -1
    index.compact_locations()
    index.put_locations(2, [5], [6])
    assert index.entry_ids(2) == [5]


def test_an_index_tells_what_is_in_a_log(index: LedgerIndex) -> None:
    for ledger_id in range(3):
        index.put_locations(ledger_id, range(5), [(entry_id % 2) << 32 | entry_id for entry_id in range(5)])
    after: Ids | None = (0, -1)
    found: list[tuple[int, int, int]] = []
    while after is not None:
        some, after = index.locations_in_log(1, after, 4)
        found += some
    assert found == [(ledger_id, entry_id, 1 << 32 | entry_id) for ledger_id in range(3) for entry_id in (1, 3)]
    assert index.locations_in_log(7, (0, -1), 100) == ([], None)


def test_an_index_moves_only_what_is_still_there(index: LedgerIndex) -> None:
    old, new, other = 1 << 32, 2 << 32, 3 << 32
    index.put_locations(1, [0, 1], [old | 10, other | 20])
    assert index.move_locations(1, [(1, 0, new | 1), (1, 1, new | 2), (1, 2, new | 3)]) == 1
    assert index.locations_of([(1, 0), (1, 1), (1, 2)]) == [new | 1, other | 20, None]
    assert index.locations_of([]) == []
    assert index.move_locations(1, []) == 0
