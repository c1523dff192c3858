"""Collections of a real directory: RocksDB, threads, files."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from magnetar.bookie.gc import ledger_collection
from magnetar.bookie.gc.compaction import LogCopy, SwitchOver, compacted_ids, compacted_name
from magnetar.bookie.gc.plan import CompactionKind
from magnetar.bookie.gc.status import CollectionReport
from magnetar.bookie.storage import entry_log_format
from magnetar.bookie.storage.entry_log import EntryLogs
from magnetar.wire.bookkeeper.entry import EntryCodec

from bookie.tests.collected_directory import SETTINGS, Directory, entries, entry


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    opened = Directory(tmp_path)
    yield opened
    opened.storage.close()


# --- ledgers


async def test_deleted_ledgers_leave_everything(directory: Directory) -> None:
    await directory.add(*entries(1, 30), *entries(2, 30), *entries(3, 5))
    await directory.roll()
    directory.live.ids |= {2, 7}
    report = await directory.collector.collect()
    assert (report.ledgers_deleted, report.problems) == (2, [])
    assert report.logs_deleted >= 1
    assert report.reclaimed_by_deletion_bytes > 0
    assert directory.removed == [1, 3]
    assert directory.index.stored_ledger_ids(0, 10) == [2, 10**6]
    assert directory.index.ledger(1) is None
    await directory.check(*entries(2, 30))
    assert (await directory.collector.collect()).ledgers_deleted == 0


@pytest.mark.parametrize("fail_after", [0, 1, 2, 3])
async def test_a_broken_listing_deletes_nothing(directory: Directory, fail_after: int) -> None:
    await directory.add(*entries(1, 30), *entries(5, 30))
    await directory.roll()
    directory.live.ids |= {3, 5}
    directory.live.fail_after = fail_after
    before = directory.logs()
    report = await directory.collector.collect()
    assert (report.ledgers_deleted, report.logs_deleted, len(report.problems)) == (0, 0, 1)
    assert directory.logs() == before
    await directory.check(*entries(1, 30), *entries(5, 30))


async def test_a_ledger_that_the_listing_lacks_but_that_exists(directory: Directory) -> None:
    await directory.add(*entries(1, 3), *entries(2, 3))
    directory.live.ids |= {1}
    directory.live.hidden |= {1}
    assert (await directory.collector.collect()).ledgers_deleted == 1
    await directory.check(*entries(1, 3))


async def test_a_ledger_that_is_made_while_the_store_is_listed(directory: Directory) -> None:
    await directory.add(*entries(5, 3))
    directory.live.ids |= {5, 6}

    def make_one() -> None:
        data = entry(1, 0)
        directory.index.put_ledgers([(1, b"state")])
        directory.index.put_locations(1, [0], [12345])
        directory.storage.cache.active.add(1, [0], [data], len(data))

    directory.live.listing = make_one
    assert (await directory.collector.collect()).ledgers_deleted == 0
    assert directory.index.stored_ledger_ids(0, 10) == [1, 5]


async def test_more_ledgers_than_one_step_takes(directory: Directory) -> None:
    count = 2 * ledger_collection.LEDGERS_PER_STEP + 10
    directory.index.put_ledgers([(ledger_id, b"state") for ledger_id in range(count)])
    directory.live.ids |= set(range(0, count, 2))
    report = await directory.collector.collect()
    assert report.ledgers_deleted == count // 2
    assert directory.index.stored_ledger_ids(0, count) == list(range(0, count, 2))
    assert directory.collector.status().ledgers == count // 2


async def test_entries_that_only_memory_has_are_not_looked_at(directory: Directory) -> None:
    """A ledger whose first entries wait for their checkpoint is nothing to a collection."""
    data = entry(1, 0)
    directory.storage.cache.active.add(1, [0], [data], len(data))
    assert (await directory.collector.collect()).ledgers_deleted == 0
    await directory.storage.flush([(1, b"state")])
    await directory.check((1, 0))


async def test_over_replicated_ledgers(directory: Directory) -> None:
    await directory.add(*entries(1, 3), *entries(2, 3), *entries(3, 3), *entries(4, 3), *entries(5, 3))
    await directory.roll()
    directory.live.ids |= {1, 2, 3, 4, 5}
    directory.live.others |= {2, 3, 4, 5}
    directory.locks.taken |= {3}
    collect = directory.collector.collect
    assert (await collect()).ledgers_deleted == 0
    directory.clock.ahead_seconds += 86_401
    assert (await collect()).ledgers_deleted == 0  # Suspects only.
    directory.clock.ahead_seconds += 1
    assert (await collect()).ledgers_deleted == 0  # Too soon.
    await directory.add((4, 3))  # Somebody copies it to us.
    data = entry(5, 3)
    directory.storage.cache.active.add(5, [3], [data], len(data))
    directory.clock.ahead_seconds += 900
    report = await collect()
    assert (report.ledgers_deleted, report.over_replicated_deleted) == (1, 1)
    assert directory.removed == [2]
    assert [lock.released for lock in directory.locks.given] == [True]
    directory.locks.taken.clear()
    directory.locks.lost |= {3}
    directory.clock.ahead_seconds += 86_401
    await collect()
    directory.clock.ahead_seconds += 900
    directory.live.others.clear()
    assert (await collect()).ledgers_deleted == 0
    await directory.check(*entries(1, 3), *entries(3, 3), *entries(4, 4), *entries(5, 4))


async def test_a_store_is_asked_only_when_it_has_caught_up(directory: Directory) -> None:
    """One that lags behind has neither listing nor metadata of a ledger that was just made."""
    await directory.add(*entries(1, 3), *entries(2, 3))
    directory.live.ids |= {2}
    await directory.collector.collect()
    assert directory.live.asked == ["catch up", "list", "exists"]


async def test_over_replicated_ledgers_are_looked_at_in_a_store_that_has_caught_up(directory: Directory) -> None:
    await directory.add(*entries(1, 3))
    directory.live.ids |= {1}
    directory.live.others |= {1}
    directory.clock.ahead_seconds += 86_401
    await directory.collector.collect()
    directory.live.asked.clear()
    directory.clock.ahead_seconds += 901
    assert (await directory.collector.collect()).over_replicated_deleted == 1
    assert directory.live.asked == ["catch up", "list", "catch up"]


async def test_a_lock_that_is_lost_meanwhile_lets_nothing_be_deleted(directory: Directory) -> None:
    """Somebody may be copying the ledger here by now."""
    await directory.add(*entries(1, 3))
    directory.live.ids |= {1}
    directory.live.others |= {1}
    directory.locks.lost |= {1}
    directory.clock.ahead_seconds += 86_401
    await directory.collector.collect()
    directory.clock.ahead_seconds += 901
    assert (await directory.collector.collect()).over_replicated_deleted == 0
    await directory.check(*entries(1, 3))


async def test_the_whole_listing_counts_before_anything_is_missing(tmp_path: Path) -> None:
    """Also where nothing is asked for once more."""
    unverified = Directory(tmp_path, dataclasses.replace(SETTINGS, verify_metadata=False))
    await unverified.add(*entries(1, 3), *entries(2, 3), *entries(3, 3))
    unverified.live.ids |= {1, 3}
    assert (await unverified.collector.collect()).ledgers_deleted == 1
    assert unverified.removed == [2]
    unverified.storage.close()


# --- logs


async def test_a_log_that_is_closed_during_a_collection_is_left_to_the_next(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ledgers may be newer than the list of local ones."""
    local_ledgers = directory.collector._ledgers.local_ledgers

    async def then_write() -> object:
        found = await local_ledgers()
        await directory.add(*entries(5, 3))
        directory.live.ids.add(5)
        await directory.roll()
        return found

    with monkeypatch.context() as patched:
        patched.setattr(directory.collector._ledgers, "local_ledgers", then_write)
        report = await directory.collector.collect()
    assert (report.logs_deleted, report.problems) == (0, [])
    await directory.check(*entries(5, 3))
    await directory.collector.collect()
    await directory.check(*entries(5, 3))


async def half_dead(directory: Directory) -> None:
    """Logs in which ledger 2 has a seventh and ledger 1 is gone."""
    for turn in range(6):
        await directory.add(*entries(1, 6, turn * 6), (2, turn))
    await directory.roll()
    directory.live.ids |= {2}


async def test_a_major_compaction(directory: Directory) -> None:
    await half_dead(directory)
    before = directory.logs()
    report = await directory.collector.collect(force_major=True)
    assert report.problems == []
    assert report.compaction is CompactionKind.MAJOR
    assert report.logs_compacted >= 2
    assert report.entries_copied == 6
    assert report.reclaimed_by_compaction_bytes > 0
    await directory.check(*entries(2, 6))
    assert len(directory.logs()) < len(before) + report.logs_compacted
    status = directory.collector.status()
    assert status.counters.major_compactions == 1
    assert status.last_major_compaction_ms == status.last_minor_compaction_ms > 0
    assert status.live_bytes == status.logs_bytes == 6 * (200 + 36 + 4)
    assert status.usage_buckets[-1] == status.logs == report.logs_compacted


async def test_a_minor_compaction_and_its_threshold(directory: Directory) -> None:
    await half_dead(directory)
    await directory.add(*entries(1, 7, 100), *entries(2, 3, 100))
    await directory.roll()
    report = await directory.collector.collect(force_major=False, force_minor=True)
    assert report.compaction is CompactionKind.MINOR
    assert 0 < report.logs_compacted < len(directory.logs())
    await directory.check(*entries(2, 6), *entries(2, 3, 100))


async def test_a_compaction_that_is_suspended_stops_behind_the_log_that_it_is_at(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    await half_dead(directory)
    compact = directory.collector._logs._compact_reporting

    async def suspend_meanwhile(*arguments: object) -> None:
        directory.collector.suspend_compaction(major=True)
        await compact(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(directory.collector._logs, "_compact_reporting", suspend_meanwhile)
    directory.clock.ahead_seconds += 10**6
    report = await directory.collector.collect()
    assert (report.compaction, report.logs_compacted) == (CompactionKind.MAJOR, 1)


async def test_the_clock_decides(directory: Directory) -> None:
    await half_dead(directory)
    assert (await directory.collector.collect()).compaction is None
    directory.clock.ahead_seconds += 3_601
    directory.collector.suspend_compaction(minor=True)
    assert (await directory.collector.collect()).compaction is None
    directory.collector.resume_compaction(minor=True)
    assert (await directory.collector.collect()).compaction is CompactionKind.MINOR
    directory.clock.ahead_seconds += 86_401
    directory.collector.suspend_compaction(major=True)
    assert (await directory.collector.collect()).compaction is CompactionKind.MINOR
    assert directory.collector.status().major_suspended
    directory.collector.resume_compaction(major=True, minor=True)
    assert (await directory.collector.collect()).compaction is CompactionKind.MAJOR
    assert (await directory.collector.collect(forced=True)).compaction is CompactionKind.MAJOR
    assert (await directory.collector.collect(force_major=False, force_minor=False)).compaction is None


@pytest.mark.slow
async def test_the_rate_is_kept(tmp_path: Path) -> None:
    directory = Directory(tmp_path, dataclasses.replace(SETTINGS, throttle_by_bytes=True, bytes_per_second=4_000))
    for turn in range(20):
        await directory.add(*entries(1, 8, turn * 8), *entries(2, 2, turn * 2))
    await directory.roll()
    directory.live.ids |= {2}
    begun = time.monotonic()
    report = await directory.collector.collect(force_major=True)
    assert report.entries_copied == 40
    # A second's worth is free; nothing waits behind the last step.
    assert (time.monotonic() - begun) * 4_000 >= 40 * 236 - 4_000 - 4 * 236
    await directory.check(*entries(2, 40))
    directory.storage.close()


@pytest.mark.parametrize("digest", ["CRC32C", "CRC32"])
async def test_a_damaged_entry_keeps_its_log(directory: Directory, digest: str) -> None:
    await directory.add(*entries(2, 3), digest=digest)
    await directory.add(*entries(1, 9))
    await directory.roll()
    directory.live.ids |= {2}
    place = directory.index.location(2, 1) or 0
    path = directory.path / f"{place >> 32:x}.log"
    with path.open("r+b") as file:
        file.seek((place & 0xFFFF_FFFF) + 100)
        file.write(b"damage")
    for _ in range(2):
        report = await directory.collector.collect(force_major=True)
        assert report.logs_compacted == 0
        assert "digest of entry 2:1" in report.problems[0]
    assert directory.collector.status().damaged_logs == 1
    assert path.exists()
    assert not [name for name in directory.logs() if name.endswith("ing")]
    await directory.check((2, 0), (2, 2), digest=digest)
    directory.live.ids -= {2}
    report = await directory.collector.collect()
    assert not path.exists()


async def test_a_log_that_is_known_to_be_damaged_waits_for_the_next_major_compaction(tmp_path: Path) -> None:
    """Minor ones come often: they do not read it again and again."""
    directory = Directory(tmp_path, dataclasses.replace(SETTINGS, minor_threshold=0.4))
    await directory.add(*entries(2, 3), *entries(1, 9))
    await directory.roll()
    directory.live.ids |= {2}
    place = directory.index.location(2, 1) or 0
    with (directory.path / f"{place >> 32:x}.log").open("r+b") as file:
        file.seek((place & 0xFFFF_FFFF) + 100)
        file.write(b"damage")
    problems = []
    for major in (False, False, True):
        report = await directory.collector.collect(force_major=major, force_minor=not major)
        assert report.compaction is (CompactionKind.MAJOR if major else CompactionKind.MINOR)
        problems.append(len(report.problems))
    assert problems == [1, 0, 1]
    directory.storage.close()


async def test_a_log_that_cannot_be_walked_keeps_what_the_index_wants(directory: Directory) -> None:
    await directory.add(*entries(1, 3), *entries(2, 3))
    await directory.storage.run_in_background(directory.storage.logs.abandon)
    await directory.roll()
    directory.live.ids |= {2}
    place = directory.index.location(1, 1) or 0
    path = directory.path / f"{place >> 32:x}.log"
    with path.open("r+b") as file:
        file.seek((place & 0xFFFF_FFFF) - 4)
        file.write(b"\x7f")
    report = await directory.collector.collect(force_major=True)
    assert report.ledgers_deleted == 1
    assert path.exists()
    await directory.check(*entries(2, 3))
    assert directory.collector.status().damaged_logs == 1
    directory.live.ids -= {2}
    await directory.collector.collect(force_major=True)
    await directory.collector.collect()
    assert not path.exists()


async def test_damage_that_looks_like_a_torn_end_keeps_what_stands_behind(directory: Directory) -> None:
    await directory.add(*entries(1, 9), *entries(2, 3))
    # A log without a ledgers map, as a crash leaves it.
    await directory.storage.run_in_background(directory.storage.logs.abandon)
    await directory.roll()
    directory.live.ids |= {2}
    await directory.collector.collect(force_major=False)
    place = directory.index.location(2, 1) or 0
    path = directory.path / f"{place >> 32:x}.log"
    with path.open("r+b") as file:
        file.seek((place & 0xFFFF_FFFF) - 3)
        file.write(b"\x01")
    report = await directory.collector.collect(force_major=True)
    assert (len(report.problems), report.logs_compacted) == (1, 0)
    assert "of ledger 2 only" in report.problems[0]
    assert path.exists()
    await directory.check((2, 0), (2, 2))


async def test_a_torn_end_that_nobody_wants(directory: Directory) -> None:
    await directory.add(*entries(1, 3), *entries(2, 3))
    await directory.storage.run_in_background(directory.storage.logs.abandon)
    await directory.roll()
    directory.live.ids |= {2}
    path = directory.path / "0.log"
    with path.open("ab") as file:
        file.write(entry(1, 4)[:50])
    report = await directory.collector.collect(force_major=True)
    assert (report.problems, report.logs_compacted) == ([], 0)
    assert directory.collector.status().damaged_logs == 0
    directory.live.ids -= {2}
    await directory.collector.collect()
    assert not path.exists()


async def test_hmac_entries_are_copied_as_they_are(directory: Directory) -> None:
    def hmac(entry_id: int) -> bytes:
        return EntryCodec(2, "HMAC", b"secret").encode_many(entry_id, entry_id - 1, 0, [b"p" * 200])[0]

    data = [hmac(entry_id) for entry_id in range(3)]
    directory.storage.cache.active.add(2, range(3), data, 700)
    await directory.add(*entries(1, 5))
    await directory.roll()
    directory.live.ids |= {2}
    directory.index.put_ledgers([(2, b"state")])
    report = await directory.collector.collect(force_major=True)
    assert report.entries_copied == 3
    assert await directory.storage.read_many(entries(2, 3)) == data


async def test_readers_find_entries_while_their_log_is_replaced(directory: Directory) -> None:
    await half_dead(directory)
    stop = False
    reads = 0

    async def read() -> None:
        nonlocal reads
        while not stop:
            await directory.check(*entries(2, 6))
            assert await directory.storage.read_run(2, 0, 10, 10**6) == [entry(2, i) for i in range(6)]
            reads += 1

    readers = [asyncio.create_task(read()) for _ in range(3)]
    collections = 0
    while collections < 5 or reads < 10:
        await asyncio.sleep(0.01)
        await directory.add(*entries(1, 30))
        await directory.collector.collect(force_major=True)
        collections += 1
    stop = True
    await asyncio.gather(*readers)


async def test_a_compaction_leaves_what_was_written_or_deleted_meanwhile(directory: Directory) -> None:
    await directory.add(*entries(1, 3), *entries(2, 3), *entries(3, 3))
    storage = directory.storage
    await storage.run_in_background(storage.logs.writer.close)
    sizes_bytes = {2: 3 * 240, 3: 3 * 240}
    copy = LogCopy(storage.disk, directory.path, directory.index, 0, sizes_bytes, storage.logs.allocate_log_id())
    while copy.step():
        pass
    assert copy.finish()
    directory.index.delete_ledgers([3])
    await directory.add((2, 1))
    newer = directory.index.location(2, 1)
    switch = SwitchOver(storage.disk, directory.path, directory.index, (1, 0), storage.logs.forget)
    while switch.step():
        pass
    switch.finish()
    assert switch.moved_entries == 2
    assert directory.index.location(2, 1) == newer
    assert directory.index.entry_ids(3) == []
    assert directory.logs() == ["1.log", "2.log"]
    await directory.check(*entries(2, 3))


async def test_logs_of_a_compaction_that_cannot_be_finished_are_compacted_no_further(directory: Directory) -> None:
    """What a crash has left between copy and new places: until it is finished, neither log is copied once more."""
    await directory.add(*entries(1, 6), *entries(2, 3))
    await directory.roll()
    directory.live.ids |= {2}
    storage = directory.storage
    copy = LogCopy(storage.disk, directory.path, directory.index, 0, {2: 3 * 240}, storage.logs.allocate_log_id())
    while copy.step():
        pass
    assert copy.finish()
    marker = next(path for path in directory.path.iterdir() if compacted_ids(path.name))
    whole = marker.read_bytes()
    with marker.open("r+b") as file:
        file.seek(entry_log_format.HEADER_BYTES)
        file.write(b"\x7f\xff\xff\xff")
    last_log = storage.logs.allocate_log_id()
    for _ in range(3):
        report = await directory.collector.collect(force_major=True)
        assert (report.logs_compacted, report.entries_copied) == (0, 0)
        assert [problem for problem in report.problems if "is not finished" in problem]
        await directory.check(*entries(2, 3))
    assert storage.logs.allocate_log_id() == last_log + 1
    with marker.open("r+b") as file:
        file.write(whole)
    report = await directory.collector.collect(force_major=False, force_minor=False)
    assert report.problems == []
    new_log = compacted_ids(marker.name)
    assert new_log is not None
    assert {(directory.index.location(*ids) or 0) >> 32 for ids in entries(2, 3)} == {new_log[0]}
    assert not [name for name in directory.logs() if "compact" in name or name == "0.log"]
    await directory.check(*entries(2, 3))


async def test_being_cancelled_in_the_middle(directory: Directory) -> None:
    await half_dead(directory)
    for rounds in range(0, 200, 7):
        task = asyncio.create_task(directory.collector.collect(force_major=True))
        for _ in range(rounds):
            await asyncio.sleep(0)
            if task.done():
                break
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await directory.check(*entries(2, 6))
        await directory.add(*entries(1, 20))
    report = await directory.collector.collect(force_major=True)
    assert report.problems == []
    assert not [name for name in directory.logs() if "compact" in name]
    await directory.check(*entries(2, 6))


async def test_run_collects_when_it_is_asked_to(directory: Directory) -> None:
    await half_dead(directory)
    task = asyncio.create_task(directory.collector.run())
    await asyncio.sleep(0)
    directory.collector.trigger(force_major=True)
    assert directory.collector.status().force_compacting
    while directory.collector.status().force_compacting:
        await asyncio.sleep(0.01)
    assert directory.collector.counters.major_compactions == 1
    directory.live.fail_after = 0
    directory.collector.trigger()
    while directory.collector.status().force_compacting:
        await asyncio.sleep(0.01)
    assert directory.collector.counters.failures == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_locations_are_compacted(directory: Directory) -> None:
    settings = dataclasses.replace(SETTINGS, location_compaction_interval_seconds=1_000.0)
    collector = directory.new_collector(settings)
    await directory.add(*entries(1, 3))
    await collector.collect()
    assert collector.status().last_location_compaction_ms == 0
    directory.clock.ahead_seconds += 2_001
    await collector.collect()
    assert collector.counters.location_compactions == 1
    task = asyncio.create_task(collector.compact_locations())
    await asyncio.sleep(0)
    assert collector.status().locations_compacting
    await collector.compact_locations()
    task.cancel()
    await collector.close()
    await asyncio.sleep(0)
    assert not collector.status().locations_compacting
    assert collector.counters.location_compactions == 2


def test_names_of_compactions() -> None:
    assert compacted_ids(compacted_name(0x1F, 0xA)) == (0x1F, 0xA)
    for name in ("1.log", "1.log.compacting", "1.log.x.compacted", ".log.1.compacted", "1.log.1.compacted.tmp"):
        assert compacted_ids(name) is None


async def test_a_report_of_nothing(directory: Directory) -> None:
    assert await directory.collector.collect() == CollectionReport()


@pytest.mark.slow
async def test_the_event_loop_goes_on(tmp_path: Path) -> None:
    """A compaction of 100 000 small entries, without any throttle, beside a loop that counts its delays."""
    directory = Directory(tmp_path)
    directory.storage.logs = EntryLogs(directory.disk, tmp_path, 1 << 30)
    for turn in range(20):
        await directory.add(*entries(1, 3_000, turn * 3_000), *entries(2, 2_000, turn * 2_000), size=50)
    await directory.roll()
    directory.live.ids |= {2}
    with delays() as while_collecting:
        report = await directory.collector.collect(force_major=True)
    assert report.entries_copied == 40_000
    # What the machine takes away, because it does other things as well, it takes from a thread that counts, too.
    with delays() as while_counting:
        await asyncio.to_thread(count_for_seconds, 0.5)
    # In quiet 1 ms is the worst.
    assert slowest_tenth(while_collecting) < max(0.005, 1.5 * slowest_tenth(while_counting))
    directory.storage.close()


@contextmanager
def delays() -> Iterator[list[float]]:
    """How late the loop was each time."""
    found: list[float] = []
    loop = asyncio.get_running_loop()

    async def tick() -> None:
        while True:
            expected = loop.time() + 0.001
            await asyncio.sleep(0.001)
            found.append(loop.time() - expected)

    ticking = asyncio.ensure_future(tick())
    try:
        yield found
    finally:
        ticking.cancel()


def count_for_seconds(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(100))


def slowest_tenth(found: list[float]) -> float:
    return sorted(found)[len(found) * 9 // 10]
