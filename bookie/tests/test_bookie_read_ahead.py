"""Reading ahead for readers that walk a ledger, and reads while a compaction moves entries."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from magnetar.bookie.settings import StorageSettings
from magnetar.bookie.storage import entry_log_format
from magnetar.bookie.storage.directory_storage import DirectoryStorage
from magnetar.bookie.storage.read_ahead import ENTRY_OVERHEAD_BYTES, FIRST_BYTES, ReadAheadCache
from magnetar.core.disk import SystemDisk
from magnetar.core.limits import MIB
from magnetar.wire.bookkeeper.codes import BookieCode, BookieError
from magnetar.wire.bookkeeper.entry import EntryCodec

from bookie.tests.simulated_storage import DiskIndex

DISK = SystemDisk()


def run_of(first: int, count: int, size: int = 100) -> dict[int, bytes]:
    return {entry_id: bytes(size) for entry_id in range(first, first + count)}


def test_a_reader_that_goes_on_is_read_ahead_for_more_and_more() -> None:
    cache = ReadAheadCache(4 * MIB, MIB)
    assert [cache.plan(1, 10), cache.plan(1, 11)] == [0, FIRST_BYTES]
    cache.put(1, 11, run_of(12, 50))
    assert cache.get(1, 61) is not None
    assert cache.get(1, 62) is None
    assert [cache.plan(1, 62), cache.plan(1, 63), cache.plan(1, 64)] == [4 * FIRST_BYTES, MIB, MIB]
    assert (cache.hits, cache.misses) == (1, 5)


def test_gaps_of_striping_do_not_end_a_scan_and_jumps_do() -> None:
    cache = ReadAheadCache(4 * MIB, MIB)
    cache.plan(1, 0)
    assert cache.plan(1, 3) == FIRST_BYTES
    assert cache.plan(1, 1000) == 0
    assert cache.plan(2, 4) == 0
    # Another reader of the same ledger does not end the first one's.
    assert cache.plan(1, 4) == 4 * FIRST_BYTES


def test_it_is_bounded_and_the_run_that_was_read_last_stays() -> None:
    size = 10 * (100 + ENTRY_OVERHEAD_BYTES)
    cache = ReadAheadCache(2 * size, size)
    cache.put(1, 0, run_of(1, 10))
    cache.put(2, 0, run_of(1, 10))
    assert cache.get(1, 5) is not None
    cache.put(3, 0, run_of(1, 10))
    assert [cache.get(ledger_id, 5) is not None for ledger_id in (1, 2, 3)] == [True, False, True]
    assert (cache.size_bytes, cache.entries) == (2 * size, 20)
    cache.put(1, 4, run_of(5, 10))
    assert cache.get(1, 5) is not None
    assert cache.get(3, 5) is None or cache.get(1, 1) is None
    cache.forget(1)
    cache.forget(9)
    assert cache.get(1, 14) is None
    cache.forget(3)
    assert (cache.size_bytes, cache.entries) == (0, 0)


def test_forgetting_costs_as_much_as_there_is_of_the_ledgers() -> None:
    cache = ReadAheadCache(32 * MIB, MIB)
    for number in range(20_000):
        cache.put(number, 0, run_of(1, 1))
    begun = time.thread_time()
    for ledger_id in range(256):
        cache.forget(ledger_id)
    # Looking through all runs for each ledger would take 300 ms, on the event loop.
    assert time.thread_time() - begun < 0.05
    assert cache.entries == 20_000 - 256


def test_without_room_nothing_is_read_ahead() -> None:
    cache = ReadAheadCache(0, MIB)
    assert [cache.plan(1, entry_id) for entry_id in range(3)] == [0, 0, 0]


def test_next_entries_are_cut_out_only_whole_and_of_the_ledger() -> None:
    first, second = EntryCodec(7, "CRC32C").encode_many(4, 3, 0, [b"a", b"bc"])
    parts, starts = entry_log_format.encode_entries([first, second], 0)
    data = b"".join(parts)
    assert entry_log_format.next_entry(data, 0, 7) == (4, first)
    assert entry_log_format.next_entry(data, starts[1] - 4, 7) == (5, second)
    assert entry_log_format.next_entry(data, starts[1] - 4, 8) is None
    assert entry_log_format.next_entry(data[:-1], starts[1] - 4, 7) is None
    assert entry_log_format.next_entry(data, len(data), 7) is None


class MovedIndex(DiskIndex):
    """Answers once more with the place that an entry had before it was moved."""

    stale: int | None = None
    full = False
    full_for_states = False
    meanwhile: Callable[[], None] | None = None

    def put_ledgers(self, states: Sequence[tuple[int, bytes]]) -> None:
        """Fails while the disk is full."""
        if self.full_for_states:
            raise OSError("no space left")
        super().put_ledgers(states)

    def put_locations(self, ledger_id: int, entry_ids: Sequence[int], locations: Sequence[int]) -> None:
        """Fails while the disk is full."""
        if self.full:
            raise OSError("no space left")
        super().put_locations(ledger_id, entry_ids, locations)

    def location(self, ledger_id: int, entry_id: int) -> int | None:
        """The old place first."""
        if self.meanwhile is not None:
            self.meanwhile()
        stale, self.stale = self.stale, None
        return super().location(ledger_id, entry_id) if stale is None else stale


@pytest.fixture
def index(tmp_path: Path) -> MovedIndex:
    return MovedIndex(DISK, tmp_path)


async def store(storage: DirectoryStorage, ledger_id: int, entries: list[bytes], first: int = 0) -> None:
    entry_ids = range(first, first + len(entries))
    storage.cache.active.add(ledger_id, entry_ids, entries, sum(map(len, entries)))
    await storage.flush([])


def encode(ledger_id: int, count: int, size: int = 1000, first: int = 0) -> list[bytes]:
    payloads = [bytes([number % 251]) * size for number in range(first, first + count)]
    return EntryCodec(ledger_id, "CRC32C").encode_many(first, first - 1, 0, payloads)


async def test_a_walk_gets_every_entry_with_few_trips(tmp_path: Path, index: MovedIndex) -> None:
    storage = DirectoryStorage(tmp_path, index, DISK, StorageSettings())
    stored = encode(3, 500)
    await store(storage, 3, stored[:300])
    await store(storage, 4, encode(4, 10))
    await store(storage, 3, stored[300:], first=300)
    found = [(await storage.read_many([(3, entry_id)]))[0] for entry_id in range(500)]
    assert found == stored
    assert storage.read_ahead.misses < 12
    assert storage.cached_entry(3, 499) == stored[499]
    # Many at once read each stretch of the log once.
    assert await storage.read_many([(4, entry_id) for entry_id in range(10)]) == encode(4, 10)
    missing = (await storage.read_many([(3, 500)]))[0]
    assert isinstance(missing, BookieError)
    assert missing.code is BookieCode.ENOENTRY
    storage.close()


async def test_large_entries_are_read_whole(tmp_path: Path, index: MovedIndex) -> None:
    storage = DirectoryStorage(tmp_path, index, DISK, StorageSettings())
    stored = encode(3, 6, size=400_000)
    await store(storage, 3, stored)
    assert [(await storage.read_many([(3, entry_id)]))[0] for entry_id in range(6)] == stored
    storage.close()


async def test_a_read_that_meets_a_compaction_looks_once_more(tmp_path: Path, index: MovedIndex) -> None:
    storage = DirectoryStorage(tmp_path, index, DISK, StorageSettings())
    stored = encode(3, 3)
    await store(storage, 3, stored)
    old = [index.location(3, entry_id) for entry_id in range(3)]
    assert old[0] is not None
    storage.logs.close()
    await store(storage, 3, stored)
    log = tmp_path / f"{old[0] >> 32:x}.log"
    # The log is open in the reader, so it must let go first.
    assert storage.logs.reader.read(old[0], 3, 0) == stored[0]
    storage.logs.forget(old[0] >> 32)
    log.unlink()
    for entry_id in range(3):
        index.stale = old[entry_id]
        assert await storage.read_many([(3, entry_id)]) == [stored[entry_id]]
    index.put_locations(3, [0], [old[0]])
    lost = (await storage.read_many([(3, 0)]))[0]
    assert isinstance(lost, BookieError)
    assert lost.code is BookieCode.EIO
    with pytest.raises(BookieError, match="log"):
        await storage.read_run(3, 0, 3, MIB)
    assert await storage.read_run(3, 1, 3, MIB) == stored[1:]
    storage.close()


@pytest.mark.parametrize("digest", ["CRC32C", "DUMMY"])
async def test_a_torn_end_is_not_read_ahead(tmp_path: Path, index: MovedIndex, digest: str) -> None:
    storage = DirectoryStorage(tmp_path, index, DISK, StorageSettings())
    stored = EntryCodec(3, digest).encode_many(0, -1, 0, [b"payload" * 10] * 4)
    await store(storage, 3, stored[:2])
    storage.close()
    with (tmp_path / "0.log").open("r+b") as file:
        # A power failure during the next checkpoint left this; its replay has written the entry to another log.
        last = (index.location(3, 1) or 0) & 0xFFFF_FFFF
        file.seek(last + len(stored[1]))
        file.write(len(stored[2]).to_bytes(4, "big") + stored[2][:40] + bytes(len(stored[2]) - 40))
    again = DirectoryStorage(tmp_path, MovedIndex(DISK, tmp_path), DISK, StorageSettings())
    await store(again, 3, stored[2:], first=2)
    assert [(await again.read_many([(3, entry_id)]))[0] for entry_id in range(4)] == stored
    again.close()


async def test_deleted_ledgers_leave_memory(tmp_path: Path, index: MovedIndex) -> None:
    storage = DirectoryStorage(tmp_path, index, DISK, StorageSettings())
    await store(storage, 3, encode(3, 50))
    for entry_id in range(3):
        await storage.read_many([(3, entry_id)])
    storage.cache.active.add(3, [50], encode(3, 1, first=50), 1036)
    assert storage.cached_entry(3, 20) is not None
    storage.cache.forget(3)
    storage.read_ahead.forget(3)
    assert [storage.cached_entry(3, entry_id) for entry_id in (20, 50)] == [None, None]
    assert storage.cache.active.size_bytes == 0
    storage.close()


async def test_what_is_read_while_its_ledger_is_deleted_is_not_kept(tmp_path: Path, index: MovedIndex) -> None:
    storage = DirectoryStorage(tmp_path, index, DISK, StorageSettings())
    await store(storage, 3, encode(3, 50))
    await storage.read_many([(3, 0)])
    index.meanwhile = lambda: storage.read_ahead.forget(3)
    await storage.read_many([(3, 1)])
    assert storage.read_ahead.entries == 0
    storage.close()


async def test_a_half_is_written_to_the_log_once_however_often_the_index_fails(
    tmp_path: Path, index: MovedIndex
) -> None:
    storage = DirectoryStorage(tmp_path, index, DISK, StorageSettings())
    index.full = True
    for _ in range(3):
        with pytest.raises(OSError, match="space"):
            await store(storage, 3, encode(3, 10))
        storage.cache.active.ledgers.clear()
    assert (tmp_path / "0.log").stat().st_size < 2 * 10_360
    assert storage.logs.closed_logs() == []
    index.full = False
    await storage.flush([])
    assert await storage.read_run(3, 0, 10, MIB) == encode(3, 10)
    # Nor when only ledgers' states find no room.
    index.full_for_states = True
    storage.cache.active.add(3, range(10), encode(3, 10), 10_360)
    for _ in range(3):
        with pytest.raises(OSError, match="space"):
            await storage.flush([(3, b"state")])
    assert (tmp_path / "0.log").stat().st_size < 2 * 10_360
    index.full_for_states = False
    await storage.flush([(3, b"state")])
    assert index.ledger(3) == b"state"
    await store(storage, 4, encode(4, 10))
    assert await storage.read_run(4, 0, 10, MIB) == encode(4, 10)
    storage.close()


async def test_a_log_is_no_larger_than_it_should_be(tmp_path: Path, index: MovedIndex) -> None:
    storage = DirectoryStorage(tmp_path, index, DISK, StorageSettings(entry_log_bytes_max=10 * MIB))
    stored = encode(3, 30, size=MIB)
    await store(storage, 3, stored)
    storage.close()
    assert max(log.stat().st_size for log in tmp_path.glob("*.log") if log.name != "index.log") < 10 * MIB
    assert len(list(tmp_path.glob("*.log"))) == 5


async def test_closed_logs_are_those_that_nobody_writes(tmp_path: Path, index: MovedIndex) -> None:
    storage = DirectoryStorage(tmp_path, index, DISK, StorageSettings(entry_log_bytes_max=MIB))
    assert storage.logs.closed_logs() == []
    await store(storage, 3, encode(3, 9, size=100_000))
    await store(storage, 3, encode(3, 9, size=100_000, first=9))
    await store(storage, 3, encode(3, 9, size=100_000, first=18))
    assert storage.logs.log_id == 2
    assert storage.logs.closed_logs() == [0, 1]
    compacted = storage.logs.allocate_log_id()
    assert compacted == 3
    await store(storage, 3, encode(3, 9, size=100_000, first=27))
    assert storage.logs.closed_logs() == [0, 1, 2]
    assert await storage.run_in_background(storage.logs.allocate_log_id) == 5
    storage.close()
    again = DirectoryStorage(tmp_path, MovedIndex(DISK, tmp_path), DISK, StorageSettings())
    assert again.logs.closed_logs() == [0, 1, 2, 4]
    assert again.logs.allocate_log_id() == 6
    again.close()
