"""Random lives of one ledger directory: entries, collections, a disk and an index that fail, a metadata store that is
away, crashes. After each step every entry of a live ledger is there; no start misses anything; in the end no garbage is
left over. What a seed does is always the same."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from magnetar.bookie.gc.collector import GarbageCollector
from magnetar.bookie.gc.log_scan import LogScan
from magnetar.bookie.gc.settings import GarbageCollectionSettings
from magnetar.bookie.loss import Losses, OnLoss
from magnetar.bookie.settings import StorageSettings
from magnetar.bookie.storage.directory_storage import DirectoryStorage
from magnetar.bookie.storage.entry_log import EntryLogs
from magnetar.bookie.storage.entry_log_format import log_id_of
from magnetar.bookie.storage.entry_log_note import check_entry_logs
from magnetar.core.clock import SystemClock

from bookie.tests.failing_disk import Failed, FailingDisk, Inode
from bookie.tests.listed_ledgers import ListedLedgers, entry
from bookie.tests.simulated_storage import INDEX_FILE, DiskIndex

DIRECTORY = Path("/ledgers")
LOG_BYTES = 3_000
SETTINGS = GarbageCollectionSettings(entries_per_second=10**9, free_bytes_min=0)
SEEDS = 60
SEEDS_EACH = 15
TRIES = 40
"""Checkpoints in the end: each that fails has the index opened again, and tells the next one."""
COLLECTIONS = 6
"""In the end: one finishes compactions, one settles the index, one learns logs again, one looks at damage again."""
Ids = tuple[int, int]


class ShakyDisk(FailingDisk):
    """Fails now and then, or from some change on. Of a file a crash leaves all, or what was durable."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.rng = rng
        self.failing_share = 0.0

    def change(self) -> None:
        super().change()
        if self.failing_share and self.rng.random() < self.failing_share:
            raise Failed("not now")

    def lose_power(self) -> ShakyDisk:
        """What a restart finds."""
        after = ShakyDisk(self.rng)
        inodes: dict[int, Inode] = {}
        for path in sorted(self.names.keys() | self.durable_names.keys()):
            inode = self.rng.choice((self.names, self.durable_names)).get(path)
            if inode is not None:
                content = self.rng.choice((bytes(inode.data), inode.durable))
                after.names[path] = inodes.setdefault(id(inode), Inode(content))
        after.durable_names = dict(after.names)
        return after


class ReopenedIndex(DiskIndex):
    """Opened again after an error, as the one of RocksDB: what was not durable may be lost then. Whoever wrote it is
    told when it wants that to be durable."""

    def __init__(self, disk: ShakyDisk) -> None:
        self._disk = disk
        self._lock = threading.RLock()
        self._failed = False
        self._unsynced: set[int] = set()
        self._doubtful: set[int] = set()
        super().__init__(disk, DIRECTORY)

    def put_ledgers(self, states: Sequence[tuple[int, bytes]]) -> None:
        with self._writing():
            super().put_ledgers(states)

    def put_locations(self, ledger_id: int, entry_ids: Sequence[int], locations: Sequence[int]) -> None:
        with self._writing() as writer:
            super().put_locations(ledger_id, entry_ids, locations)
            self._unsynced.add(writer)

    def move_locations(self, old_log_id: int, places: Sequence[tuple[int, int, int]]) -> int:
        found = self.locations_of([(ledger_id, entry_id) for ledger_id, entry_id, _ in places])
        if not any(place is not None and place >> 32 == old_log_id for place in found):
            return 0  # Nothing is written, so it is not opened again for this.
        with self._writing() as writer:
            moved = super().move_locations(old_log_id, places)
            self._unsynced.add(writer)
        return moved

    def delete_ledgers(self, ledger_ids: Sequence[int]) -> None:
        with self._writing():
            super().delete_ledgers(ledger_ids)

    def forget_places(self, entries: Sequence[Ids]) -> None:
        with self._writing():
            super().forget_places(entries)

    def sync(self) -> None:
        with self._writing() as writer:
            if writer in self._doubtful:
                raise Failed("it was opened again since")
            super().sync()
            self._unsynced.clear()

    @contextmanager
    def _writing(self) -> Iterator[int]:
        writer = threading.get_ident()
        with self._lock:
            if self._failed:
                self._open_again()
            try:
                yield writer
            except OSError:
                self._failed = True
                self._unsynced.discard(writer)
                self._doubtful.discard(writer)
                raise

    def _open_again(self) -> None:
        inode = self._disk.names[DIRECTORY / INDEX_FILE]
        if self._disk.rng.random() < 0.5:
            inode.data[:] = inode.durable
        super().__init__(self._disk, DIRECTORY)
        self._failed = False
        self._doubtful |= self._unsynced
        self._unsynced.clear()


class Life:
    """One directory."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.disk = ShakyDisk(self.rng)
        self.disk.names[DIRECTORY / "x"] = self.disk.durable_names[DIRECTORY / "x"] = Inode()
        self.live = ListedLedgers()
        self.made = 0
        self.stored: set[Ids] = set()
        """Acknowledged, of live ledgers."""
        self.in_journal: set[Ids] = set()
        """Acknowledged since the last checkpoint that worked: a crash replays them."""
        self.start(OnLoss.REFUSE)

    def start(self, on_loss: OnLoss) -> None:
        index = ReopenedIndex(self.disk)
        losses = Losses(on_loss)
        check_entry_logs(self.disk, DIRECTORY, index, losses)
        assert losses.told == []
        self.storage = DirectoryStorage(DIRECTORY, index, self.disk, StorageSettings())
        self.storage.logs = EntryLogs(self.disk, DIRECTORY, LOG_BYTES)
        self.collector = GarbageCollector(self.storage, self.live, SETTINGS, SystemClock(), lambda ids: None)

    def add(self, ids: Sequence[Ids]) -> None:
        for ledger_id, entry_id in ids:
            data = entry(ledger_id, entry_id)
            self.storage.cache.active.add(ledger_id, [entry_id], [data], len(data))
        self.in_journal.update(ids)
        self.stored.update(ids)

    async def checkpoint(self) -> None:
        try:
            await self.storage.flush(
                [(ledger_id, b"state") for ledger_id in sorted({ids[0] for ids in self.in_journal})]
            )
        except OSError:
            return
        if self.storage.cache.flushing is None and not self.storage.cache.active.ledgers:
            self.in_journal.clear()

    async def write(self) -> None:
        """To some ledgers; now and then the last entry once more, as a recovery does."""
        for ledger_id in self.rng.sample(sorted(self.live.ids), min(3, len(self.live.ids))):
            last = max((ids[1] for ids in self.stored if ids[0] == ledger_id), default=-1)
            first = last if last >= 0 and self.rng.random() < 0.15 else last + 1
            self.add([(ledger_id, first + number) for number in range(self.rng.randrange(1, 8))])
        await self.checkpoint()

    async def make(self) -> None:
        self.made += 1
        self.live.ids.add(self.made)
        await self.write()

    async def delete(self) -> None:
        if self.live.ids:
            ledger_id = self.rng.choice(sorted(self.live.ids))
            self.live.ids.remove(ledger_id)
            self.stored = {ids for ids in self.stored if ids[0] != ledger_id}

    async def collect(self) -> None:
        await self.collector.collect(force_major=self.rng.random() < 0.6 or None)

    async def fail(self) -> None:
        self.disk.failing_share = self.rng.choice((0.05, 0.2, 0.5))

    async def work(self) -> None:
        self.disk.failing_share = 0.0

    async def lose_store(self) -> None:
        self.live.away = not self.live.away

    async def crash(self) -> None:
        before, self.disk = self.disk, self.disk.lose_power()
        before.fail_at = before.changes
        self.storage.close()
        self.start(self.rng.choice((OnLoss.REFUSE, OnLoss.HEAL)))
        self.add(sorted(self.in_journal & self.stored))
        await self.checkpoint()

    async def crash_in_a_collection(self) -> None:
        self.disk.fail_at = self.disk.changes + self.rng.randrange(40)
        await self.collect()
        await self.crash()

    async def check(self) -> None:
        wanted = sorted(self.stored)
        found = await self.storage.read_many(wanted)
        assert [ids for ids, result in zip(wanted, found, strict=True) if result != entry(*ids)] == []

    async def end(self) -> None:
        """Nothing fails any more: in a few collections all garbage goes."""
        self.disk.failing_share, self.live.away = 0.0, False
        for _ in range(TRIES):
            await self.checkpoint()
        for _ in range(COLLECTIONS):
            report = await self.collector.collect(force_major=True)
        assert report.problems == []
        await self.check()
        assert list(self.left_over()) == []
        self.storage.close()

    def left_over(self) -> Iterator[str]:
        """Files that have nothing of a live ledger."""
        for name in self.disk.list_names(DIRECTORY):
            log_id = log_id_of(name)
            if log_id is None and ".log." in name:
                yield name
            if log_id is None or log_id == self.storage.logs.log_id:
                continue
            if not self.ledgers_in(name) & self.live.ids:
                yield name

    def ledgers_in(self, name: str) -> set[int]:
        scan = LogScan(self.disk, DIRECTORY / name)
        found: set[int] = set()
        while not scan.ended:
            found.update(record[0] for record in scan.next_records())
        return found


WEIGHTS = (
    *((Life.write, 8), (Life.make, 4), (Life.delete, 4), (Life.collect, 8), (Life.fail, 3), (Life.work, 4)),
    *((Life.lose_store, 2), (Life.crash, 1), (Life.crash_in_a_collection, 2)),
)


async def live(seed: int) -> None:
    """One life."""
    life = Life(seed)
    steps, weights = zip(*WEIGHTS, strict=True)
    for step in life.rng.choices(steps, weights, k=life.rng.randrange(20, 90)):
        await step(life)
        await life.check()
    await life.end()


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_EACH))
async def test_no_life_loses_anything_or_leaves_garbage(first: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")
    for seed in range(first, first + SEEDS_EACH):
        try:
            await live(seed)
        except BaseException as error:
            error.add_note(f"in the life of seed {seed}")
            raise
