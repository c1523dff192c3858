"""Entry logs that were emptied, as the index may name them still: they stay until it does not, and are no damage."""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from magnetar.bookie.gc.compaction import LogCopy, SwitchOver, compacted_ids
from magnetar.bookie.loss import Losses, OnLoss
from magnetar.bookie.storage import entry_log_format
from magnetar.bookie.storage.entry_log import LAST_ID_FILE, EntryLogs
from magnetar.bookie.storage.entry_log_format import HEADER_BYTES
from magnetar.bookie.storage.entry_log_note import check_entry_logs, list_logs, write_note
from magnetar.core.disk import SystemFile

from bookie.tests.collected_directory import LOG_BYTES, SETTINGS, Directory, entries


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    opened = Directory(tmp_path)
    yield opened
    opened.storage.close()
    assert open_below(tmp_path) == [], "a bookie that empties logs for years runs out of files"


def open_below(directory: Path) -> list[str]:
    """Files there that this process has open."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # That of the listing itself.
            found.append(os.readlink(descriptor))
    return [name for name in found if name.startswith(f"{directory}/")]


@contextmanager
def no_room_in_the_index(directory: Directory, *, durably: bool = False) -> Iterator[None]:
    """It cannot strike off ledgers; with `durably` it cannot make durable what it was told before, either."""
    index = directory.index
    delete, sync = index.delete_ledgers, index.sync

    def no_room(ledger_ids: Sequence[int]) -> None:
        raise OSError(errno.ENOSPC, "no room")

    index.delete_ledgers = no_room  # type: ignore[method-assign]
    if durably:
        index.sync = lambda: no_room([])  # type: ignore[method-assign]
    yield
    index.delete_ledgers, index.sync = delete, sync  # type: ignore[method-assign]


async def write(directory: Directory, *ledger_ids: int) -> None:
    """A closed log for each of these ledgers."""
    for ledger_id in ledger_ids:
        await directory.storage.run_in_background(directory.storage.logs.writer.close)
        await directory.add(*entries(ledger_id, 9))
    await directory.roll()


async def empty(directory: Directory, *ledger_ids: int) -> None:
    """Have emptied logs in which these ledgers had entries."""
    await write(directory, *ledger_ids)
    with no_room_in_the_index(directory):
        assert (await directory.collector.collect()).reclaimed_by_deletion_bytes > 0


def logs_named(directory: Directory) -> set[int]:
    """Those in which the index looks for anything."""
    places, _ = directory.index.places((0, -1), 10_000)
    return {location >> 32 for _, _, location in places}


async def alive_only(directory: Directory) -> bool:
    """Whether the next collection has nothing to tell, and leaves only logs of live ledgers."""
    report = await directory.collector.collect(force_major=True)
    assert report.problems == []
    assert {f"{log_id:x}.log" for log_id in logs_named(directory)} >= {
        name for name in directory.logs() if name != f"{directory.storage.logs.log_id:x}.log"
    }
    return not [name for name in directory.logs() if "compact" in name]


# --- they stay


async def test_a_log_stays_until_the_deletions_before_are_durable(directory: Directory) -> None:
    """The index forgets in memory, and fails to say so on the disk: after a power cut it would name the log again."""
    await directory.add(*entries(1, 30))
    await directory.roll()
    index, logs = directory.index, directory.logs()
    delete, sync = index.delete_ledgers, index.sync

    def delete_in_memory(ledger_ids: Sequence[int]) -> None:
        delete(ledger_ids)
        raise OSError(errno.EIO, "not on the disk")

    def no_sync() -> None:
        raise OSError(errno.EIO, "not now")

    index.delete_ledgers, index.sync = delete_in_memory, no_sync  # type: ignore[method-assign]
    for _ in range(2):
        report = await directory.collector.collect(force_major=True)
        assert report.problems
        assert (directory.logs(), report.logs_deleted, report.logs_compacted) == (logs, 0, 0)
    index.delete_ledgers, index.sync = delete, sync  # type: ignore[method-assign]
    report = await directory.collector.collect(force_major=True)
    assert (report.problems, report.logs_deleted) == ([], 1)


async def test_an_emptied_log_stays_while_the_index_names_it(directory: Directory) -> None:
    """Nor does it go when the metadata store cannot say which ledgers are gone, nor after a restart."""
    await directory.add(*entries(1, 30))
    await directory.roll()
    index, logs = directory.index, directory.logs()
    delete = index.delete_ledgers

    def no_room(ledger_ids: Sequence[int]) -> None:
        raise OSError(errno.ENOSPC, "no room")

    index.delete_ledgers = no_room  # type: ignore[method-assign]
    assert (await directory.collector.collect()).reclaimed_by_deletion_bytes > 0
    index.delete_ledgers = delete  # type: ignore[method-assign]
    directory.live.fail_after = 0
    for collector in (directory.collector, directory.new_collector(SETTINGS)):
        assert (await collector.collect(force_major=True)).logs_deleted == 0
        assert directory.logs() == logs
    directory.live.fail_after = 1 << 60
    assert (await directory.collector.collect()).logs_deleted == 1


async def test_a_ledger_that_comes_back_as_the_index_is_opened_again_keeps_its_log(directory: Directory) -> None:
    """The index forgot a ledger in memory only, and knows it again once it was opened after the error."""
    await directory.add(*entries(1, 9))
    index = directory.index
    delete, sync = index.delete_ledgers, index.sync
    places = [(entry_id, index.location(*ids) or 0) for ids in entries(1, 9) for entry_id in ids[1:]]

    def delete_in_memory(ledger_ids: Sequence[int]) -> None:
        delete(ledger_ids)
        raise OSError(errno.EIO, "not on the disk")

    def open_again() -> None:
        index.put_locations(1, *(list(some) for some in zip(*places, strict=True)))
        sync()

    index.delete_ledgers = delete_in_memory  # type: ignore[method-assign]
    assert (await directory.collector.collect()).problems
    await directory.roll()
    index.sync = open_again  # type: ignore[method-assign]
    await directory.collector.collect()
    assert logs_named(directory) <= set(list_logs(directory.disk, directory.path))
    index.delete_ledgers, index.sync = delete, sync  # type: ignore[method-assign]
    await directory.collector.collect()
    assert await alive_only(directory)


@pytest.mark.parametrize("others", [0, 2])
async def test_a_ledger_that_could_not_be_struck_off_counts_again(
    directory: Directory, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    """Its log could not be emptied either, and the metadata store cannot be asked the next time."""
    await directory.add(*entries(1, 9), *entries(2, others))
    await directory.roll()
    directory.live.ids.add(2)

    def cannot(file: SystemFile, size_bytes: int) -> None:
        raise OSError(errno.EIO, "not now")

    with no_room_in_the_index(directory), monkeypatch.context() as patched:
        patched.setattr(SystemFile, "truncate", cannot)
        assert (await directory.collector.collect()).problems
    directory.live.fail_after = 0
    for _ in range(2):
        await directory.collector.collect(force_major=True)
        assert logs_named(directory) <= set(list_logs(directory.disk, directory.path))
    directory.live.fail_after = 1 << 60
    await directory.collector.collect(force_major=True)
    assert await alive_only(directory)
    await directory.check(*entries(2, others))


async def test_ledgers_that_go_later_give_their_room_as_well(directory: Directory) -> None:
    """While the index has no room to say what is gone, nothing else could make some."""
    await write(directory, 1, 2)
    directory.live.ids.add(2)
    with no_room_in_the_index(directory, durably=True):
        assert (await directory.collector.collect()).reclaimed_by_deletion_bytes > 0
        directory.live.ids.remove(2)
        assert (await directory.collector.collect()).reclaimed_by_deletion_bytes > 0
    await directory.collector.collect()
    assert await alive_only(directory)


async def test_the_index_is_looked_through_once_for_all_of_them(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have a hundred million entries, and a disk that was full a thousand such logs."""
    await empty(directory, 1, 2, 3, 4)
    looks = []
    places = directory.index.places

    def count(after: tuple[int, int], count_max: int) -> object:
        looks.append(after)
        return places(after, count_max)

    monkeypatch.setattr(directory.index, "places", count)
    assert (await directory.collector.collect()).logs_deleted == 4
    assert len(looks) == 1


@pytest.mark.parametrize("broken", ["places", "sync"])
async def test_logs_are_emptied_while_the_index_says_nothing_for_certain(
    directory: Directory, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    await empty(directory, 1)
    await write(directory, 2)

    def cannot(*_: object) -> None:
        raise OSError(errno.EIO, "not now")

    with monkeypatch.context() as patched:
        patched.setattr(directory.index, broken, cannot)
        report = await directory.collector.collect()
    assert (report.logs_deleted, len(report.problems) > 0) == (0, True)
    assert report.reclaimed_by_deletion_bytes > 0
    assert (await directory.collector.collect()).logs_deleted == 2


# --- they are no damage, and damage is not taken for them


@pytest.mark.parametrize("on_loss", OnLoss)
async def test_a_start_misses_nothing_in_them(directory: Directory, on_loss: OnLoss) -> None:
    """Neither one that looks at all logs, nor one that looks as another log is not there: it was deleted, and there was
    no room to note that."""
    await empty(directory, 1)
    write_note(directory.disk, directory.path, [*list_logs(directory.disk, directory.path), 0x77])
    losses = Losses(on_loss)
    check_entry_logs(directory.disk, directory.path, directory.index, losses)
    assert losses.told == []
    directory.live.fail_after = 0
    assert (await directory.new_collector(SETTINGS).collect()).problems
    directory.live.fail_after = 1 << 60
    await directory.collector.collect()
    assert await alive_only(directory)


async def test_a_start_misses_nothing_when_the_power_fails_meanwhile(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What says that a log was emptied is durable before it is cut."""
    order: list[object] = []
    sync, truncate = SystemFile.sync, SystemFile.truncate

    def note_sync(file: SystemFile) -> None:
        order.append(file.pread(HEADER_BYTES, 0) == entry_log_format.EMPTIED_LOG)
        sync(file)

    def note_truncate(file: SystemFile, size_bytes: int) -> None:
        order.append(size_bytes)
        truncate(file, size_bytes)

    await directory.add(*entries(1, 9))
    await directory.roll()
    monkeypatch.setattr(SystemFile, "sync", note_sync)
    monkeypatch.setattr(SystemFile, "truncate", note_truncate)
    with no_room_in_the_index(directory):
        await directory.collector.collect()
    assert order == [True, HEADER_BYTES]


async def test_room_is_made_also_where_a_header_cannot_be_written(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that copies on each write may have no room for that."""
    await directory.add(*entries(1, 9))
    await directory.roll()

    def no_room(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, "no room")

    with no_room_in_the_index(directory), monkeypatch.context() as patched:
        patched.setattr(SystemFile, "pwritev", no_room)
        assert (await directory.collector.collect()).reclaimed_by_deletion_bytes > 0
    await directory.new_collector(SETTINGS).collect()
    assert await alive_only(directory)


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("cut_to", [0, 100, HEADER_BYTES])
async def test_a_log_that_was_cut_is_told(directory: Directory, cut_to: int, closed: bool) -> None:
    await directory.add(*entries(2, 9))
    if not closed:
        await directory.storage.run_in_background(directory.storage.logs.abandon)
    await directory.roll()
    directory.live.ids.add(2)
    os.truncate(directory.path / "0.log", cut_to)
    for _ in range(2):
        await directory.collector.collect(force_major=True)
        assert directory.collector.status().damaged_logs == 1
        assert "0.log" in directory.logs()
    directory.live.ids.remove(2)
    await directory.collector.collect(force_major=True)
    assert await alive_only(directory)


async def test_a_log_that_was_cut_between_two_entries_is_told(directory: Directory) -> None:
    """What is left of it is whole, and of a ledger that is gone."""
    await directory.add(*entries(1, 6), *entries(2, 6))
    await directory.roll()
    directory.live.ids.add(2)
    place = directory.index.location(2, 0) or 0
    os.truncate(directory.path / f"{place >> 32:x}.log", (place & 0xFFFF_FFFF) - entry_log_format.SIZE_BYTES)
    await directory.collector.collect()
    assert directory.collector.status().damaged_logs == 1
    assert f"{place >> 32:x}.log" in directory.logs()


# --- compactions beside


async def begin_compaction(directory: Directory) -> Path:
    """As if the index had failed between the copy and its new places. The copy's own name until it has those."""
    await directory.add(*entries(1, 3), *entries(2, 6))
    await directory.roll()
    storage = directory.storage
    new_log_id = storage.logs.allocate_log_id()
    copy = LogCopy(storage.disk, directory.path, directory.index, 0, {2: 6 * 240}, new_log_id)
    while copy.step():
        pass
    assert copy.finish()
    SwitchOver(storage.disk, directory.path, directory.index, (new_log_id, 0)).close()
    return next(path for path in directory.path.iterdir() if compacted_ids(path.name))


async def test_new_places_that_are_lost_as_the_index_is_opened_again_are_given_again(directory: Directory) -> None:
    """The index has them in memory, fails to make them durable, and no longer has them after it was opened again."""
    await begin_compaction(directory)
    directory.live.ids.add(2)
    index = directory.index
    sync = index.sync
    old_places = [index.location(*ids) or 0 for ids in entries(2, 6)]

    def fail() -> None:
        index.sync = open_again  # type: ignore[method-assign]
        raise OSError(errno.EIO, "not on the disk")

    def open_again() -> None:
        index.put_locations(2, range(6), old_places)
        index.sync = sync  # type: ignore[method-assign]
        sync()

    switch = SwitchOver.finish

    def finish_and_fail(its: SwitchOver) -> None:
        index.sync = fail  # type: ignore[method-assign]
        switch(its)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SwitchOver, "finish", finish_and_fail)
        assert (await directory.collector.collect(force_major=False)).problems
    assert index.location(2, 0) not in old_places
    for _ in range(2):
        await directory.collector.collect(force_major=False)
        await directory.check(*entries(2, 6))


async def test_the_number_of_a_copy_is_not_given_again(directory: Directory) -> None:
    """A crash came before the copy had its second name, and the file of the last number is lost."""
    marker = await begin_compaction(directory)
    new_log_id, _ = compacted_ids(marker.name) or (0, 0)
    (directory.path / f"{new_log_id:x}.log").unlink()
    (directory.path / LAST_ID_FILE).unlink()
    directory.storage.logs.close()
    directory.storage.logs = EntryLogs(directory.disk, directory.path, LOG_BYTES)
    directory.live.ids.add(2)
    await directory.add(*entries(3, 3))
    await directory.roll()
    directory.live.ids.add(3)
    await directory.collector.collect()
    await directory.check(*entries(2, 6), *entries(3, 3))


@pytest.mark.parametrize("another_keeps_the_old_log", [False, True])
async def test_a_copy_that_was_emptied_ends_its_compaction(
    directory: Directory, another_keeps_the_old_log: bool
) -> None:
    """Its two names are of one file."""
    marker = await begin_compaction(directory)
    if another_keeps_the_old_log:
        # All of it stands elsewhere by now.
        directory.live.ids.add(1)
        await directory.add(*entries(1, 3))
        await directory.roll()
    move = directory.index.move_locations

    def cannot(old_log_id: int, places: Sequence[tuple[int, int, int]]) -> int:
        raise OSError(errno.ENOSPC, "no room")

    directory.index.move_locations = cannot  # type: ignore[method-assign]
    with no_room_in_the_index(directory):
        report = await directory.collector.collect()
    assert any("is not finished" in problem for problem in report.problems)
    assert marker.stat().st_size == HEADER_BYTES
    directory.index.move_locations = move  # type: ignore[method-assign]
    for _ in range(2):
        await directory.collector.collect(force_major=True)
    assert await alive_only(directory)
    if another_keeps_the_old_log:
        await directory.check(*entries(1, 3))


async def test_a_damaged_copy_goes_when_nothing_of_the_old_log_is_wanted(directory: Directory) -> None:
    marker = await begin_compaction(directory)
    directory.live.ids.add(2)
    with marker.open("r+b") as file:
        file.seek(HEADER_BYTES)
        file.write(b"\x7f\xff\xff\xff")
    await directory.collector.collect(force_major=True)
    await directory.check(*entries(2, 6))
    directory.live.ids.remove(2)
    for _ in range(4):
        await directory.collector.collect(force_major=True)
    assert await alive_only(directory)


async def test_an_unfinished_copy_that_cannot_be_deleted_stops_nothing(directory: Directory) -> None:
    await directory.add(*entries(1, 9))
    await directory.roll()
    (directory.path / "77.log.compacting").mkdir()
    report = await directory.collector.collect()
    assert (report.ledgers_deleted, report.logs_deleted) == (1, 1)


# --- headers and maps that are damaged


@pytest.mark.parametrize("map_offset", [-1, 1, HEADER_BYTES - 1, LOG_BYTES * 2, 1 << 62])
async def test_a_log_whose_header_points_anywhere_goes_with_its_ledgers(directory: Directory, map_offset: int) -> None:
    await directory.add(*entries(1, 9))
    await directory.roll()
    path = directory.path / "0.log"
    content = path.read_bytes()
    path.write_bytes(entry_log_format.encode_header(map_offset, 1) + content[HEADER_BYTES:])
    report = await directory.collector.collect()
    assert (report.problems, report.logs_deleted) == ([], 1)


async def test_no_more_is_read_for_a_map_than_it_can_have(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log may be larger than the memory."""
    await directory.add(*entries(2, 2), size=LOG_BYTES // 3)
    await directory.roll()
    directory.live.ids.add(2)
    path = directory.path / "0.log"
    content = path.read_bytes()
    path.write_bytes(entry_log_format.encode_header(HEADER_BYTES, 1) + content[HEADER_BYTES:])
    read = []
    pread = SystemFile.pread

    def note(file: SystemFile, size_bytes: int, position: int) -> bytes:
        read.append((position, size_bytes))
        return pread(file, size_bytes, position)

    monkeypatch.setattr(SystemFile, "pread", note)
    assert not directory.collector._logs.usages.read_map(0)
    assert max(size_bytes for _, size_bytes in read) <= HEADER_BYTES


async def test_a_map_that_is_damaged_later_is_no_reason_to_keep_a_log(tmp_path: Path) -> None:
    """It was read once, and forgotten to save memory."""
    directory = Directory(tmp_path, dataclasses.replace(SETTINGS, ledgers_in_memory_max=0))
    await directory.add(*entries(1, 4), *entries(2, 4))
    await directory.roll()
    directory.live.ids |= {1, 2}
    await directory.collector.collect()
    path = directory.path / "0.log"
    content = path.read_bytes()
    path.write_bytes(content[:-8])
    directory.live.ids -= {1}
    assert not (await directory.collector.collect()).logs_deleted
    directory.live.ids -= {2}
    await directory.collector.collect()
    await directory.collector.collect()
    assert "0.log" not in directory.logs()
    directory.storage.close()


async def test_a_flipped_bit_in_the_map_costs_no_live_ledger(directory: Directory) -> None:
    """It may name another ledger, that is gone, in the place of one that is alive."""
    await directory.add(*entries(2, 2))
    await directory.roll()
    directory.live.ids.add(2)
    path = directory.path / "0.log"
    whole = path.read_bytes()
    map_offset, _ = entry_log_format.decode_header(whole)
    for at in range(map_offset, len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << bit
            path.write_bytes(damaged)
            assert await usage_of(directory) == 2 * 240
    for at in range(8, 24):
        damaged = bytearray(whole)
        damaged[at] ^= 0xFF
        path.write_bytes(damaged)
        assert await usage_of(directory) == 2 * 240


async def usage_of(directory: Directory) -> int:
    """What a new collector finds of live ledgers in the closed logs."""
    collector = directory.new_collector(SETTINGS)
    assert (await collector.collect()).logs_deleted == 0
    return collector.status().live_bytes
