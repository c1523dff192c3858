"""Write cache, entry logs, index, and the storage that they make up."""

from __future__ import annotations

import os
import resource
import shutil
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.bookie.availability import decode_availability, encode_availability
from magnetar.bookie.settings import StorageSettings
from magnetar.bookie.storage import entry_log_format
from magnetar.bookie.storage.directory_storage import DirectoryStorage
from magnetar.bookie.storage.entry_log import EntryLogs
from magnetar.bookie.storage.entry_log_format import EntryDamaged
from magnetar.bookie.storage.entry_log_note import list_logs
from magnetar.bookie.storage.index import Index
from magnetar.bookie.storage.index_database import IndexFailed, IndexInUse
from magnetar.bookie.storage.write_cache import WriteCache
from magnetar.core.disk import SystemDisk, SystemFile
from magnetar.core.limits import MIB
from magnetar.process.service import explain_os_error
from magnetar.wire.bookkeeper.codes import BookieCode, BookieError
from magnetar.wire.bookkeeper.entry import EntryCodec

DISK = SystemDisk()


def entries(ledger_id: int, first: int, count: int, size: int = 100, digest: str = "CRC32C") -> list[bytes]:
    return EntryCodec(ledger_id, digest).encode_many(
        first, first - 1, 0, [bytes([i % 256]) * size for i in range(count)]
    )


def test_the_cache_answers_from_both_halves() -> None:
    cache = WriteCache(2 * MIB)
    cache.active.add(1, [0, 1], [b"a", b"b"], 2)
    half = cache.swap()
    cache.active.add(1, [2], [b"c"], 1)
    assert [cache.get(1, entry_id) for entry_id in range(4)] == [b"a", b"b", b"c", None]
    assert (cache.last_entry_id(1), cache.last_entry_id(2)) == (2, -1)
    assert half.ledgers == {1: {0: b"a", 1: b"b"}}
    cache.release()
    half.clear()
    assert half.ledgers == {}
    assert cache.get(1, 0) is None
    assert cache.entry_ids(1) == {2}


def test_the_last_entry_is_the_greatest_in_whatever_order_they_came() -> None:
    """Recoveries add again what may be older; a writer is told by the last entry where its ledger ends."""
    cache = WriteCache(2 * MIB)
    cache.active.add(1, [7], [b"c"], 1)
    cache.active.add(1, [5, 6], [b"a", b"b"], 2)
    assert cache.last_entry_id(1) == 7
    cache.swap()
    cache.active.add(1, [3], [b"d"], 1)
    assert cache.last_entry_id(1) == 7


def test_the_cache_is_full_when_both_halves_are() -> None:
    cache = WriteCache(2 * MIB)
    cache.active.add(1, [0], [b"x" * MIB], MIB)
    assert (cache.half_full, cache.full) == (True, False)
    cache.swap()
    assert (cache.half_full, cache.full) == (False, False)
    cache.active.add(1, [1], [b"x" * MIB], MIB)
    assert cache.full


def test_the_log_is_bookkeepers(tmp_path: Path) -> None:
    writer = EntryLogs(DISK, tmp_path, 64 * MIB).writer
    first, second = entries(5, 0, 2)
    locations = writer.append(5, [first, second])
    other = writer.append(9, entries(9, 0, 1))
    writer.sync()
    writer.close()
    data = (tmp_path / "0.log").read_bytes()
    assert data[:8] == b"BKLO" + struct.pack(">I", 1)
    assert locations == [1024 + 4, 1024 + 4 + len(first) + 4]
    assert data[1028 : 1028 + len(first)] == first
    assert struct.unpack_from(">I", data, 1024) == (len(first),)
    offset, count = entry_log_format.decode_header(data)
    assert (offset, count) == (1024 + 3 * (4 + len(first)), 2)
    assert struct.unpack_from(">IqqI", data, offset) == (20 + 32, -1, -2, 2)
    assert entry_log_format.decode_ledgers_map(data[offset:]) == {5: 2 * (4 + len(first)), 9: 4 + len(first)}
    assert other == [offset - len(first)]
    assert (tmp_path / "lastId").read_text() == "0\n"


def test_an_abandoned_log_gives_back_what_was_not_synced(tmp_path: Path) -> None:
    writer = EntryLogs(DISK, tmp_path, MIB).writer
    location = writer.append(1, entries(1, 0, 1))[0]
    writer.sync()
    size_bytes = (tmp_path / "0.log").stat().st_size
    writer.append(1, entries(1, 1, 1))
    writer.abandon()
    assert (tmp_path / "0.log").stat().st_size == size_bytes
    writer.append(1, entries(1, 1, 1))
    writer.abandon()
    assert list_logs(DISK, tmp_path) == [0]
    reader = EntryLogs(DISK, tmp_path, MIB).reader
    assert reader.read(location, 1, 0) == entries(1, 0, 1)[0]
    reader.close()


def test_a_log_that_cannot_even_be_closed_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = EntryLogs(DISK, tmp_path, MIB).writer
    writer.append(1, entries(1, 0, 1))
    writer.sync()
    closed: list[SystemFile] = []
    close = SystemFile.close

    def fail(file: SystemFile) -> None:
        assert file not in closed
        closed.append(file)
        close(file)
        raise OSError("what was written is lost")

    with monkeypatch.context() as patches:
        patches.setattr(SystemFile, "close", fail)
        with pytest.raises(OSError, match="lost"):
            writer.abandon()
    # Its descriptor may be another file's by now.
    assert writer.append(1, entries(1, 1, 1))[0] >> 32 == 1
    writer.close()
    assert len(closed) == 1


def test_logs_roll_and_a_start_makes_a_new_one(tmp_path: Path) -> None:
    writer = EntryLogs(DISK, tmp_path, MIB).writer
    locations = [writer.append(1, entries(1, i, 1, MIB))[0] for i in range(3)]
    writer.sync()
    writer.abandon()
    assert [location >> 32 for location in locations] == [0, 1, 2]
    again = EntryLogs(DISK, tmp_path, MIB).writer
    assert again.append(1, entries(1, 3, 1))[0] >> 32 == 3
    again.close()
    assert list_logs(DISK, tmp_path) == [0, 1, 2, 3]
    reader = EntryLogs(DISK, tmp_path, MIB).reader
    assert [len(reader.read(location, 1, i)) for i, location in enumerate(locations)] == [36 + MIB] * 3
    reader.close()


def open_logs(directory: Path) -> list[str]:
    """Logs of which this process has a descriptor: what is deleted meanwhile takes room as long."""
    links = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [link for link in links if link.startswith(str(directory)) and ".log" in link]


def test_a_log_that_is_forgotten_while_it_is_read_is_closed_after_the_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = EntryLogs(DISK, tmp_path, MIB).writer
    (stored,) = entries(1, 0, 1)
    (location,) = writer.append(1, [stored])
    writer.close()
    reader = EntryLogs(DISK, tmp_path, MIB).reader
    assert reader.read(location, 1, 0) == stored
    assert len(open_logs(tmp_path)) == 1
    pread = SystemFile.pread

    def forgotten_meanwhile(file: SystemFile, size: int, position: int) -> bytes:
        reader.forget(location >> 32)
        assert len(open_logs(tmp_path)) == 1
        return pread(file, size, position)

    monkeypatch.setattr(SystemFile, "pread", forgotten_meanwhile)
    assert reader.read(location, 1, 0) == stored
    assert open_logs(tmp_path) == []


@given(st.dictionaries(st.integers(0, 2**40), st.integers(0, 2**40), max_size=30))
def test_the_ledgers_map_comes_back(sizes: dict[int, int]) -> None:
    packed = entry_log_format.encode_ledgers_map(sizes)
    assert entry_log_format.decode_ledgers_map(packed) == sizes
    if sizes:
        with pytest.raises(EntryDamaged):
            entry_log_format.decode_ledgers_map(packed[:-1])


@pytest.mark.parametrize("digest", ["CRC32C", "CRC32"])
@pytest.mark.parametrize("offset", [0, 5, 10, 40, 90])
def test_a_flipped_bit_is_seen(tmp_path: Path, digest: str, offset: int) -> None:
    writer = EntryLogs(DISK, tmp_path, MIB).writer
    stored = entries(5, 0, 3, digest=digest)
    locations = writer.append(5, stored)
    writer.close()
    descriptor = os.open(tmp_path / "0.log", os.O_RDWR)
    byte = os.pread(descriptor, 1, locations[1] - 4 + offset)
    os.pwrite(descriptor, bytes([byte[0] ^ 4]), locations[1] - 4 + offset)
    os.close(descriptor)
    reader = EntryLogs(DISK, tmp_path, MIB).reader
    assert reader.read(locations[0], 5, 0) == stored[0]
    with pytest.raises(EntryDamaged):
        reader.read(locations[1], 5, 1)
    assert reader.read(locations[2], 5, 2) == stored[2]
    with pytest.raises(EntryDamaged):
        reader.read_run(5, 1, locations[1:])
    reader.close()


def test_entries_without_a_known_digest_are_given_as_they_are(tmp_path: Path) -> None:
    writer = EntryLogs(DISK, tmp_path, MIB).writer
    stored = entries(5, 0, 1, digest="HMAC") + entries(6, 0, 1, digest="DUMMY")
    locations = writer.append(5, stored)
    writer.close()
    reader = EntryLogs(DISK, tmp_path, MIB).reader
    assert [reader.read(locations[0], 5, 0), reader.read(locations[1], 6, 0)] == stored
    reader.close()


def test_the_index_has_dbledgerstorages_keys(tmp_path: Path) -> None:
    index = Index(tmp_path, MIB)
    index.put_locations(7, [0, 1, 5], [1028, 2000, 3 << 32 | 1028])
    index.put_locations(9, [3], [77])
    index.sync()
    assert index.location(7, 5) == 3 << 32 | 1028
    assert index.location(7, 2) is None
    assert index.locations(7, 0, 10) == [1028, 2000]
    assert [index.last_entry_id(ledger_id) for ledger_id in (6, 7, 8, 9)] == [-1, 5, -1, 3]
    assert index.entry_ids(7) == [0, 1, 5]
    index.put_ledgers([(7, b"state")])
    assert (index.ledger(7), index.ledger(9), list(index.ledger_ids())) == (b"state", None, [7])
    index.close()


async def test_reads_find_entries_in_cache_log_and_both(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path, Index(tmp_path, MIB), DISK, StorageSettings())
    stored = entries(3, 0, 60, 1000)
    storage.cache.active.add(3, list(range(40)), stored[:40], 40_000)
    await storage.flush([])
    storage.cache.active.add(3, list(range(40, 60)), stored[40:], 20_000)
    found = await storage.read_many([(3, 0), (3, 59), (3, 39), (3, -1), (4, 0), (3, 60)])
    assert found[:4] == [stored[0], stored[59], stored[39], stored[59]]
    assert [error.code for error in found[4:] if isinstance(error, BookieError)] == [BookieCode.ENOENTRY] * 2
    assert await storage.read_run(3, 10, 100, MIB) == stored[10:]
    assert await storage.read_run(3, 10, 7, MIB) == stored[10:17]
    assert await storage.read_run(3, 10, 100, 3500) == stored[10:13]
    assert await storage.read_run(3, 10, 100, 1) == stored[10:11]
    assert await storage.read_run(3, 60, 100, MIB) == []
    assert await storage.entry_ids(3) == list(range(60))
    # A recovery writes an old entry again: the last one is still the one in the index.
    await storage.flush([])
    storage.cache.active.add(3, [5], [stored[5]], 1000)
    assert await storage.read_many([(3, -1)]) == [stored[59]]
    storage.close()


@given(st.sets(st.integers(0, 300), max_size=100))
def test_availability_comes_back(entry_ids: set[int]) -> None:
    assert decode_availability(encode_availability(sorted(entry_ids))) == sorted(entry_ids)


def test_availability_packs_stripes() -> None:
    packed = encode_availability([entry_id for entry_id in range(3000) if entry_id % 3 != 2])
    assert len(packed) == 64 + 24
    assert struct.unpack_from(">qqII", packed, 64) == (0, 2997, 2, 3)


def test_an_index_that_is_in_use_is_not_opened_twice(tmp_path: Path) -> None:
    index = Index(tmp_path, MIB)
    with pytest.raises(IndexInUse, match=r"in use by another process.*/LOCK") as refused:
        Index(tmp_path, MIB)
    index.close()
    said, remedy = explain_os_error(refused.value)
    assert said.startswith("the index is in use by another process")
    assert remedy == "Stop that one, or choose other directories."


def test_an_index_whose_lock_cannot_be_had_is_not_said_to_be_in_use(tmp_path: Path) -> None:
    """Such as one that was made by another user."""
    Index(tmp_path, MIB).close()
    (lock,) = tmp_path.glob("locations/LOCK")
    lock.unlink()
    lock.mkdir()
    with pytest.raises(IndexFailed, match="LOCK: Is a directory") as refused:
        Index(tmp_path, MIB)
    assert not isinstance(refused.value, IndexInUse)


def test_the_index_outlives_a_write_that_failed(tmp_path: Path) -> None:
    index = Index(tmp_path, MIB)
    index.put_locations(1, range(100), range(100))
    index.put_ledgers([(1, b"state")])
    index.sync()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16 * 1024, hard))
    try:
        with pytest.raises(IndexFailed):
            index.put_locations(2, range(5000), range(5000))
        with pytest.raises(IndexFailed):
            index.put_ledgers([(ledger_id, bytes(100)) for ledger_id in range(2, 1000)])
        assert index.location(1, 5) == 5
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    index.put_locations(2, range(5000), range(5000))
    index.sync()
    index.put_ledgers([(2, b"another")])
    assert [index.location(1, 99), index.location(2, 4999)] == [99, 4999]
    assert list(index.ledger_ids()) == [1, 2]
    index.close()
    again = Index(tmp_path, MIB)
    assert [again.last_entry_id(1), again.last_entry_id(2), again.ledger(2)] == [99, 4999, b"another"]
    again.close()


def test_whoever_wrote_to_an_index_that_was_opened_again_is_told(tmp_path: Path) -> None:
    index = Index(tmp_path, MIB)
    with ThreadPoolExecutor(1) as compaction:
        compaction.submit(index.put_locations, 1, range(10), range(10)).result()
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (16 * 1024, hard))
        try:
            with pytest.raises(IndexFailed):
                index.put_locations(2, range(5000), range(5000))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        # Whose write failed knows it, and has written all of it once more.
        index.put_locations(2, range(5000), range(5000))
        index.sync()
        with pytest.raises(IndexFailed, match="opened again"):
            compaction.submit(index.sync).result()
        compaction.submit(index.put_locations, 1, range(10), range(10)).result()
        compaction.submit(index.sync).result()
    index.close()


@pytest.mark.parametrize("torn", ["zeros at the end", "a sector lost"])
def test_what_a_power_cut_does_to_places_that_nobody_synced_stops_no_start(tmp_path: Path, torn: str) -> None:
    """The journal has them still; places that were synced are there."""
    running = Index(tmp_path / "running", MIB)
    running.put_locations(1, range(100), range(1, 101))
    running.sync()
    log = max((tmp_path / "running" / "locations").glob("*.log"))
    synced_bytes = log.stat().st_size
    running.put_locations(1, range(100, 300), range(101, 301))
    shutil.copytree(tmp_path / "running", tmp_path / "cut")
    running.close()
    path = tmp_path / "cut" / "locations" / log.name
    content = bytearray(path.read_bytes())
    sector = -(-synced_bytes // 512) * 512 + 512
    end = len(content) if torn == "zeros at the end" else sector + 512
    content[sector:end] = bytes(end - sector)
    path.write_bytes(content)
    again = Index(tmp_path / "cut", MIB)
    found = again.locations(1, 0, 100)
    again.close()
    assert found == list(range(1, 101))
