"""A real ledger directory for the tests of garbage collection: RocksDB, threads, files; and what stands around it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from magnetar.bookie.gc.collector import GarbageCollector
from magnetar.bookie.gc.settings import GarbageCollectionSettings
from magnetar.bookie.settings import StorageSettings
from magnetar.bookie.storage.directory_storage import DirectoryStorage
from magnetar.bookie.storage.entry_log import EntryLogs
from magnetar.bookie.storage.index import Index
from magnetar.core.clock import SystemClock
from magnetar.core.disk import SystemDisk
from magnetar.core.errors import Unavailable
from magnetar.core.limits import MIB
from magnetar.wire.bookkeeper.codes import BookieError
from magnetar.wire.bookkeeper.entry import EntryCodec

SETTINGS = GarbageCollectionSettings(
    entries_per_second=10**9, free_bytes_min=0, disk_full_share=1.0, disk_almost_full_share=1.0
)
LOG_BYTES = 4_000
Ids = tuple[int, int]


class FakeLiveLedgers:
    """The metadata store."""

    def __init__(self, *ledger_ids: int) -> None:
        self.ids = set(ledger_ids)
        self.others: set[int] = set()
        """Closed ledgers that only other bookies have."""
        self.hidden: set[int] = set()
        """Left out of the listing."""
        self.fail_after = 1 << 60
        self.listing: Callable[[], object] = lambda: None
        self.asked: list[str] = []
        """In which order."""

    async def catch_up(self) -> None:
        """Nothing lags."""
        self.asked.append("catch up")

    async def ledger_ids(self) -> AsyncIterator[int]:
        self.asked.append("list")
        for count, ledger_id in enumerate(sorted(self.ids - self.hidden)):
            self.listing()
            if count >= self.fail_after:
                raise Unavailable("the store is gone")
            yield ledger_id
        if len(self.ids) >= self.fail_after:
            raise Unavailable("the store is gone")

    async def exists(self, ledger_id: int) -> bool:
        self.asked.append("exists")
        return ledger_id in self.ids

    async def belongs_to(self, ledger_id: int, bookie_id: str) -> bool | None:
        return None if ledger_id not in self.ids else ledger_id not in self.others


class FakeLock:
    def __init__(self, *, lost: bool) -> None:
        self.lost = lost
        self.released = False

    async def release(self) -> None:
        self.released = True


class FakeLocks:
    def __init__(self) -> None:
        self.taken: set[int] = set()
        self.lost: set[int] = set()
        self.given: list[FakeLock] = []

    async def lock(self, ledger_id: int) -> FakeLock | None:
        if ledger_id in self.taken:
            return None
        self.given.append(FakeLock(lost=ledger_id in self.lost))
        return self.given[-1]


class ManualClock(SystemClock):
    def __init__(self) -> None:
        self.ahead_seconds = 0.0

    def monotonic_seconds(self) -> float:
        return super().monotonic_seconds() + self.ahead_seconds


class Directory:
    """One ledger directory and its collector."""

    def __init__(self, path: Path, settings: GarbageCollectionSettings = SETTINGS) -> None:
        self.path = path
        self.disk = SystemDisk()
        self.index = Index(path, 8 * MIB)
        self.storage = DirectoryStorage(path, self.index, self.disk, StorageSettings())
        self.storage.logs = EntryLogs(self.disk, path, LOG_BYTES)
        self.live = FakeLiveLedgers()
        self.locks = FakeLocks()
        self.clock = ManualClock()
        self.removed: list[int] = []
        self.collector = self.new_collector(settings)

    def new_collector(self, settings: GarbageCollectionSettings) -> GarbageCollector:
        return GarbageCollector(
            self.storage, self.live, settings, self.clock, self.removed.extend, bookie_id="me:3181", locks=self.locks
        )

    async def add(self, *entries: Ids, size: int = 200, digest: str = "CRC32C") -> None:
        for ledger_id, entry_id in entries:
            data = entry(ledger_id, entry_id, size, digest)
            self.storage.cache.active.add(ledger_id, [entry_id], [data], len(data))
        await self.storage.flush([(ledger_id, b"state") for ledger_id in {ledger_id for ledger_id, _ in entries}])

    async def roll(self) -> None:
        """Have everything so far in closed logs."""
        await self.storage.run_in_background(self.storage.logs.writer.close)
        await self.add((10**6, int(time.monotonic_ns())))
        self.live.ids.add(10**6)

    async def check(self, *wanted: Ids, size: int = 200, digest: str = "CRC32C") -> None:
        found = await self.storage.read_many(wanted)
        assert not [result for result in found if isinstance(result, BookieError)]
        assert found == [entry(*ids, size, digest) for ids in wanted]

    def logs(self) -> list[str]:
        return sorted(path.name for path in self.path.iterdir() if path.is_file() and ".log" in path.name)


def entry(ledger_id: int, entry_id: int, size: int = 200, digest: str = "CRC32C") -> bytes:
    return EntryCodec(ledger_id, digest).encode_many(entry_id, entry_id - 1, 0, [bytes([entry_id % 256]) * size])[0]


def entries(ledger_id: int, count: int, first: int = 0) -> list[Ids]:
    return [(ledger_id, first + i) for i in range(count)]
