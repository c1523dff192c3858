"""Collections that are cut off by a crash, or by one failing operation, at every operation on the disk."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from magnetar.bookie.gc.collector import GarbageCollector
from magnetar.bookie.gc.compaction import finish_compactions
from magnetar.bookie.gc.settings import GarbageCollectionSettings
from magnetar.bookie.loss import Losses, OnLoss
from magnetar.bookie.settings import StorageSettings
from magnetar.bookie.storage.directory_storage import DirectoryStorage
from magnetar.bookie.storage.entry_log import EntryLogs
from magnetar.bookie.storage.entry_log_note import NOTE_FILE, check_entry_logs
from magnetar.core.clock import SystemClock
from magnetar.wire.bookkeeper.codes import BookieError

from bookie.tests.failing_disk import Failed, FailingDisk, Inode
from bookie.tests.listed_ledgers import ListedLedgers, entry
from bookie.tests.simulated_storage import INDEX_FILE, DiskIndex

DIRECTORY = Path("/ledgers")
LOG_BYTES = 3_000
SETTINGS = GarbageCollectionSettings(entries_per_second=10**9, free_bytes_min=0)


def open_storage(disk: FailingDisk) -> DirectoryStorage:
    """As a start does it."""
    index = DiskIndex(disk, DIRECTORY)
    check_entry_logs(disk, DIRECTORY, index, Losses(OnLoss.REFUSE))
    finish_compactions(disk, DIRECTORY, index)
    storage = DirectoryStorage(DIRECTORY, index, disk, StorageSettings())
    storage.logs = EntryLogs(disk, DIRECTORY, LOG_BYTES)
    return storage


async def add(storage: DirectoryStorage, *entries: tuple[int, int]) -> None:
    for ledger_id, entry_id in entries:
        data = entry(ledger_id, entry_id)
        storage.cache.active.add(ledger_id, [entry_id], [data], len(data))
    await storage.flush([(ledger_id, b"state") for ledger_id in {ledger_id for ledger_id, _ in entries}])


def collector(storage: DirectoryStorage, live: ListedLedgers) -> GarbageCollector:
    return GarbageCollector(storage, live, SETTINGS, SystemClock(), lambda ledger_ids: None)


LIVE = (2, 4, 9)
WANTED = [(2, entry_id) for entry_id in range(12)] + [(4, 0), (4, 1), (9, 0), (9, 1), (9, 2)]


@pytest.fixture(scope="module")
def filled() -> FailingDisk:
    """Some logs with little left, some with nothing, one that a crash left without its map."""

    async def fill() -> FailingDisk:
        disk = FailingDisk()
        disk.names[DIRECTORY / "x"] = Inode()
        storage = open_storage(disk)
        for turn in range(6):
            dead = [(ledger_id, turn * 2 + i) for ledger_id in (1, 3, 5, 6) for i in range(2)]
            await add(storage, *dead, (2, turn * 2), (2, turn * 2 + 1))
        await add(storage, *[(7, entry_id) for entry_id in range(30)], (4, 0), (4, 1))
        await add(storage, (9, 0), (9, 1), (9, 2))
        await add(storage, (9, 1))  # Once more, as a recovery would.
        storage.close()
        return disk

    return asyncio.run(fill())


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


async def check(storage: DirectoryStorage) -> None:
    """Every wanted entry can be read."""
    found = await storage.read_many(WANTED)
    assert not [result for result in found if isinstance(result, BookieError)]
    assert found == [entry(*ids) for ids in WANTED]


async def check_clean(storage: DirectoryStorage, disk: FailingDisk) -> None:
    """One more collection leaves what is wanted, and little else."""
    report = await collector(storage, ListedLedgers(*LIVE)).collect(force_major=True)
    assert report.problems == []
    await check(storage)
    names = set(disk.list_names(DIRECTORY)) - {"x", "lastId", NOTE_FILE, INDEX_FILE}
    assert not [name for name in names if not name.endswith(".log")]
    places = storage.index.locations_of(WANTED)
    logs = {f"{place >> 32:x}.log" for place in places if place is not None}
    assert names == logs
    assert storage.index.stored_ledger_ids(0, 100) == list(LIVE)
    assert sum(len(disk.names[DIRECTORY / name].data) for name in names) < 4 * 1024 + 2 * len(WANTED) * 200


async def collect_until_failure(disk: FailingDisk, fail_at: int, *, once: bool = False) -> tuple[int, list[str]]:
    """Open, collect; the disk fails at that change. How many changes there were, and the problems."""
    storage = open_storage(disk)
    before = disk.changes
    disk.fail_at = before + fail_at
    disk.once = once
    report = await collector(storage, ListedLedgers(*LIVE)).collect(force_major=True)
    changes = disk.changes - before
    if once:
        await check(storage)
        disk.fail_at = 1 << 60
        await check_clean(storage, disk)
    disk.fail_at = 0 if not once else 1 << 60
    storage.close()
    return changes, report.problems


async def test_what_a_collection_leaves(filled: FailingDisk) -> None:
    disk = filled.copy()
    logs = [name for name in disk.list_names(DIRECTORY) if name.endswith(".log")]
    storage = open_storage(disk)
    await check(storage)
    report = await collector(storage, ListedLedgers(*LIVE)).collect(force_major=True)
    assert (report.problems, report.ledgers_deleted) == ([], 5)
    assert report.logs_deleted >= 1
    assert report.logs_compacted >= 3
    assert len(logs) > len([name for name in disk.list_names(DIRECTORY) if name.endswith(".log")])
    await check(storage)
    await check_clean(storage, disk)
    storage.close()


@pytest.mark.slow
@pytest.mark.parametrize("keep_names", [True, False])
@pytest.mark.parametrize("keep_data", [True, False])
async def test_a_crash_at_every_change(filled: FailingDisk, keep_names: bool, keep_data: bool) -> None:
    changes, problems = await collect_until_failure(filled.copy(), 1 << 40)
    assert problems == []
    for fail_at in range(1, changes + 1):
        disk = filled.copy()
        await collect_until_failure(disk, fail_at)
        after = disk.crash(keep_names=keep_names, keep_data=keep_data)
        storage = open_storage(after)
        await check(storage)
        await check_clean(storage, after)
        storage.close()


@pytest.mark.slow
async def test_a_crash_while_a_restart_finishes(filled: FailingDisk) -> None:
    changes, _ = await collect_until_failure(filled.copy(), 1 << 40)
    tried = 0
    for fail_at in range(1, changes + 1, 3):
        disk = filled.copy()
        await collect_until_failure(disk, fail_at)
        left = disk.crash(keep_names=False, keep_data=False)
        if not any(name.endswith(".compacted") for name in left.list_names(DIRECTORY)):
            continue
        for second in range(1, 100):
            again = left.copy()
            index = DiskIndex(again, DIRECTORY)
            again.fail_at = again.changes + second
            try:
                finish_compactions(again, DIRECTORY, index)
            except Failed:
                tried += 1
            else:
                break
            after = again.crash(keep_names=False, keep_data=False)
            storage = open_storage(after)
            await check(storage)
            await check_clean(storage, after)
            storage.close()
    assert tried > 5


@pytest.mark.slow
async def test_one_failing_change_is_survived(filled: FailingDisk) -> None:
    changes, _ = await collect_until_failure(filled.copy(), 1 << 40)
    for fail_at in range(1, changes + 1):
        _, problems = await collect_until_failure(filled.copy(), fail_at, once=True)
        assert problems or fail_at > 1


@pytest.mark.slow
@pytest.mark.parametrize("keep_data", [True, False])
async def test_a_crash_after_one_failing_change(filled: FailingDisk, keep_data: bool) -> None:
    """What the collection did afterwards stands on the disk as well."""
    changes, _ = await collect_until_failure(filled.copy(), 1 << 40)
    for fail_at in range(1, changes + 1):
        disk = filled.copy()
        storage = open_storage(disk)
        disk.fail_at, disk.once = disk.changes + fail_at, True
        await collector(storage, ListedLedgers(*LIVE)).collect(force_major=True)
        after = disk.crash(keep_names=keep_data, keep_data=keep_data)
        storage.close()
        storage = open_storage(after)
        await check(storage)
        await check_clean(storage, after)
        storage.close()


async def test_a_log_that_the_index_on_the_disk_still_names_stays(filled: FailingDisk) -> None:
    """All that was wanted of it has been written again; the index knows in memory, and could not make it durable."""
    disk = filled.copy()
    storage = open_storage(disk)
    index = storage.index
    collecting = collector(storage, ListedLedgers(*LIVE))
    await collecting.collect(force_major=False, force_minor=False)
    old_log_id = (index.location(9, 2) or 0) >> 32

    def fails() -> None:
        raise Failed(errno.EIO, "not now")

    sync, index.sync = index.sync, fails  # type: ignore[method-assign]
    for ledger_id, entry_id in WANTED:
        data = entry(ledger_id, entry_id)
        storage.cache.active.add(ledger_id, [entry_id], [data], len(data))
    with pytest.raises(Failed):
        await storage.flush([])
    assert (index.location(9, 2) or 0) >> 32 != old_log_id
    await collecting.collect(force_major=True)
    after = disk.crash(keep_names=False, keep_data=False)
    losses = Losses(OnLoss.HEAL)
    check_entry_logs(after, DIRECTORY, DiskIndex(after, DIRECTORY), losses)
    assert losses.told == []
    index.sync = sync  # type: ignore[method-assign]
    await check(storage)
    storage.close()


async def test_a_full_disk_gives_the_space_of_logs_back(filled: FailingDisk) -> None:
    """Nothing can be written, not even that ledgers are gone; logs without a live ledger are emptied all the same."""

    class FullDisk(FailingDisk):
        full = False

        def usage_bytes(self, directory: Path) -> tuple[int, int]:
            return (1 << 40, 0) if self.full else (1 << 40, 1 << 40)

    disk = FullDisk()
    disk.names = filled.copy().names
    disk.durable_names = dict(disk.names)
    storage = open_storage(disk)

    def no_room(ledger_ids: Sequence[int]) -> None:
        raise OSError(errno.ENOSPC, "no room")

    delete, storage.index.delete_ledgers = storage.index.delete_ledgers, no_room  # type: ignore[method-assign]
    disk.full = True
    names = disk.list_names(DIRECTORY)
    before_bytes = sum(len(inode.data) for inode in disk.names.values())
    settings = replace(SETTINGS, free_bytes_min=1)
    full_collector = GarbageCollector(storage, ListedLedgers(*LIVE), settings, SystemClock(), lambda ids: None)
    report = await full_collector.collect(forced=True)
    assert (report.compaction, report.ledgers_deleted, report.logs_deleted) == (None, 0, 0)
    left_bytes = sum(len(inode.data) for inode in disk.names.values())
    # Without its header and the map behind its entries, each.
    assert 0 < report.reclaimed_by_deletion_bytes <= before_bytes - left_bytes
    report = await full_collector.collect(force_major=True)
    assert (report.reclaimed_by_deletion_bytes, report.logs_compacted) == (0, 0)
    assert disk.list_names(DIRECTORY) == names

    after = open_storage(disk.crash(keep_names=False, keep_data=True))
    await check(after)
    after.close()

    storage.index.delete_ledgers = delete  # type: ignore[method-assign]
    report = await full_collector.collect(force_major=True)
    assert report.logs_deleted >= 1
    assert report.logs_compacted == 0
    assert any("would be copied" in problem for problem in report.problems)
    disk.full = False
    await check(storage)
    await check_clean(storage, disk)
    storage.close()
