"""The power fails at any operation of the disk, during adds, checkpoints and replays: what was told is there.

The real bookie with two journals and three ledger directories, on a simulated disk that forgets what was not synced.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from magnetar.bookie.app import BookieEnvironment, RunningBookie, start_bookie
from magnetar.bookie.settings import BookieSettings, DiskSettings, JournalSettings, StorageSettings
from magnetar.core.limits import MIB
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.sim.disk import Platter, SimulatedFile
from magnetar.sim.loop import SimulatedLoop
from magnetar.sim.process import Process
from magnetar.sim.trace import Trace
from magnetar.wire.bookkeeper.codes import BookieCode, BookieError
from magnetar.wire.bookkeeper.entry import EntryCodec

from bookie.tests.simulated_storage import INDEX_FILE, DiskIndexes, ExecutorJournalWorker

LEDGERS = range(1, 8)
CODECS = {ledger_id: EntryCodec(ledger_id, "CRC32C") for ledger_id in LEDGERS}
SETTINGS = BookieSettings(
    journal_directories=(Path("/j0"), Path("/j1")),
    ledger_directories=(Path("/l0"), Path("/l1"), Path("/l2")),
    bookie_id="bookie:3181",
    serve_tcp=False,
    journal=JournalSettings(size_bytes_max=MIB, preallocate_bytes=MIB, backups_max=0),
    storage=StorageSettings(write_cache_bytes_max=33 * MIB, entry_log_bytes_max=MIB),
    disk=DiskSettings(free_bytes_min=0),
)


class Told:
    """What the bookie has said; it outlives the bookie."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, int] = dict.fromkeys(LEDGERS, -1)
        self.fenced: set[int] = set()


class LoopClock:
    """The loop's virtual time."""

    def now_ms(self) -> int:
        """A moment in 2027."""
        return 1_800_000_000_000 + int(asyncio.get_running_loop().time() * 1000)

    def monotonic_seconds(self) -> float:
        """Since the run began."""
        return asyncio.get_running_loop().time()


class Host:
    """A host with one disk, on which a bookie runs until the power fails."""

    def __init__(self, loop: SimulatedLoop, rng: random.Random) -> None:
        self.loop = loop
        self.platter = Platter("disk", rng, loop.trace)
        self.platter.on_crash = self.lose_power
        self.store = MemoryMetadataStore()
        self.process: Process | None = None

    def lose_power(self, _loses_power: bool = True) -> None:
        assert self.process is not None
        self.process.alive = False
        self.platter.lose_power()

    async def run(self, work: Callable[[RunningBookie], Awaitable[None]]) -> bool:
        """Start a bookie and do this with it; whether it survived."""
        process = self.process = Process("bookie", "host")
        self.loop.register(process)
        disk = self.platter.mount(process)
        environment = BookieEnvironment(
            disk=disk, open_index=DiskIndexes(disk).open, new_journal_worker=ExecutorJournalWorker
        )

        async def main() -> None:
            await work(await start_bookie(SETTINGS, self.store, LoopClock(), environment))

        task = process.start(main())
        while process.alive and not task.done():
            await asyncio.sleep(0.01)
        if process.alive:
            await task
        return process.alive


def entry(ledger_id: int, entry_id: int) -> bytes:
    payload = b"%d:%d " % (ledger_id, entry_id) * (1 + entry_id % 40)
    return CODECS[ledger_id].encode_many(entry_id, entry_id - 1, 0, [payload])[0]


async def add_all(running: RunningBookie, told: Told) -> set[int]:
    """Three entries to every ledger that is not fenced, at the same time; the codes of the answers."""
    waiting: list[asyncio.Future[int]] = []
    for ledger_id in sorted(set(LEDGERS) - told.fenced):
        first = told.acknowledged[ledger_id] + 1
        entry_ids = range(first, first + 3)
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def done(code: int, ledger_id: int, entry_ids: Sequence[int], future: asyncio.Future[int] = future) -> None:
            if code == BookieCode.EOK:
                told.acknowledged[ledger_id] = entry_ids[-1]
            future.set_result(code)

        entries = [entry(ledger_id, entry_id) for entry_id in entry_ids]
        running.bookie.add_entries(ledger_id, CODECS[ledger_id].master_key, entry_ids, entries, 0, done)
        waiting.append(future)
    return set(await asyncio.gather(*waiting))


async def write(running: RunningBookie, told: Told, rounds: int) -> None:
    """Add to all ledgers, with checkpoints in between; fence one."""
    for number in range(rounds):
        adding = asyncio.ensure_future(add_all(running, told))
        await asyncio.sleep(0)
        if number % 2:
            running.parts.checkpointer.request()
        if number == 3:
            await running.bookie.fence(5, CODECS[5].master_key)
            told.fenced.add(5)
        assert await adding <= {BookieCode.EOK, BookieCode.EFENCED}


async def check(running: RunningBookie, told: Told) -> None:
    for ledger_id, last in told.acknowledged.items():
        found: list[bytes] = []
        while len(found) <= last:
            found += await running.bookie.read_run(ledger_id, len(found), 1000, MIB)
        assert found == [entry(ledger_id, entry_id) for entry_id in range(len(found))]
    for ledger_id in told.fenced:
        refused: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        running.bookie.add_entries(
            ledger_id,
            CODECS[ledger_id].master_key,
            [10_000],
            [entry(ledger_id, 10_000)],
            0,
            lambda code, *_, refused=refused: refused.set_result(code),
        )
        assert await refused == BookieCode.EFENCED


async def scenario(host: Host, operations: int) -> int:
    """Let the power fail after so many operations, at most three times; how many operations there were."""
    told = Told()
    rounds = 6

    async def work(running: RunningBookie) -> None:
        await check(running, told)
        await write(running, told, rounds)
        await running.close()

    if operations >= 0:
        for again in range(3):
            # The second failure meets the replay, the third what is in between.
            host.platter.crash_after_operations = operations if again != 1 else operations % 29
            if await host.run(work):
                break
    host.platter.crash_after_operations = -1
    begin = host.platter.operations
    assert await host.run(work)

    async def look(running: RunningBookie) -> None:
        await check(running, told)
        await running.close()

    assert await host.run(look)
    return host.platter.operations - begin


def simulate(seed: int, operations: int) -> tuple[int, str]:
    rng = random.Random(seed)
    loop = SimulatedLoop(rng, Trace())
    try:
        return loop.run(scenario(Host(loop, rng), operations)), loop.trace.digest
    finally:
        loop.bury()
        assert loop.problems == []


def test_without_a_failure() -> None:
    operations, digest = simulate(1, -1)
    assert operations > 100
    assert simulate(1, -1) == (operations, digest)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_the_power_fails_at_any_operation(seed: int) -> None:
    operations, _ = simulate(seed, -1)
    for after in range(seed, operations, 3):
        simulate(1000 * seed + after, after)


async def failing_disk(host: Host, rng: random.Random) -> None:
    """Some lives on a disk that fails now and then; most end with the power."""
    told, platter = Told(), host.platter

    async def work(running: RunningBookie) -> None:
        await check(running, told)
        platter.crash_after_operations = rng.randrange(20, 600)
        for number in range(14):
            platter.error_share = rng.choice((0.0, 0.0, 0.02, 0.1, 0.3))
            if rng.random() < 0.5:
                running.parts.checkpointer.request()
            if number > 3 and rng.random() < 0.2:
                ledger_id = rng.choice(LEDGERS)
                with contextlib.suppress(BookieError):
                    await running.bookie.fence(ledger_id, CODECS[ledger_id].master_key)
                    told.fenced.add(ledger_id)
            await add_all(running, told)
            if rng.random() < 0.5:
                await asyncio.sleep(2 * rng.random())
            running.mode.check()
        platter.error_share = 0.0
        if rng.random() < 0.3:
            await running.close()
        else:
            host.lose_power()

    async def look(running: RunningBookie) -> None:
        await check(running, told)
        await running.close()

    for life in (work, work, work, look):
        platter.error_share, platter.crash_after_operations = 0.0, -1
        assert await host.run(life) or life is work


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_failing_disk_and_a_failing_power_lose_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sync = SimulatedFile.sync

    def sync_once(file: SimulatedFile) -> None:
        """As Linux does: after a sync that failed, what it was for is no longer dirty, and the next one succeeds."""
        try:
            sync(file)
        except OSError:
            # The simulated index is no RocksDB, which stops when it cannot sync.
            if file._path.name != INDEX_FILE:
                file._inode._unsynced.clear()
            raise

    monkeypatch.setattr(SimulatedFile, "sync", sync_once)
    rng = random.Random(seed)
    loop = SimulatedLoop(rng, Trace())
    try:
        loop.run(failing_disk(Host(loop, rng), rng))
    finally:
        loop.bury()
        assert loop.problems == []


async def full_disk(host: Host) -> None:
    told = Told()
    platter = host.platter

    async def work(running: RunningBookie) -> None:
        await write(running, told, 4)
        running.parts.checkpointer.request()
        await asyncio.sleep(1)
        running.mode.check()
        assert [running.bookie.adds.read_only] == [False]
        platter.capacity_bytes = platter.used_bytes + 10 * MIB
        running.mode.check()
        assert running.bookie.adds.read_only
        code = await one_add(running, 1, told)
        assert code == BookieCode.EREADONLY
        # The reserve: what is cached can be written, marks and index deletes too.
        assert await running.parts.checkpointer.checkpoint(running.parts.journals.marks)
        for directory in running.parts.storage.directories:
            directory.index.delete_ledgers([999])
        platter.capacity_bytes = 1 << 40
        running.mode.check()
        assert await one_add(running, 1, told) == BookieCode.EOK
        await check(running, told)
        # And a disk that is full to the last byte: nothing is told that is not there, and it goes on afterwards.
        platter.capacity_bytes = platter.used_bytes
        codes = [await one_add(running, 2, told, payload_bytes=2 * MIB) for _ in range(2)]
        assert codes[-1] in (BookieCode.EIO, BookieCode.EREADONLY)
        assert running.bookie.adds.read_only
        platter.capacity_bytes = 1 << 40
        running.mode.check()
        assert await one_add(running, 3, told) == BookieCode.EOK
        await asyncio.sleep(2)
        await running.close()

    assert await host.run(work)

    async def look(running: RunningBookie) -> None:
        await check(running, told)
        with pytest.raises(BookieError):
            await running.bookie.read_entry(3, told.acknowledged[3] + 1)
        await running.close()

    assert await host.run(look)


async def one_add(running: RunningBookie, ledger_id: int, told: Told, payload_bytes: int = 0) -> int:
    entry_id = told.acknowledged[ledger_id] + 1
    stored = entry(ledger_id, entry_id)
    if payload_bytes:
        entry_id = 100_000
        stored = CODECS[ledger_id].encode_many(entry_id, -1, 0, [bytes(payload_bytes)])[0]
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    running.bookie.add_entries(
        ledger_id, CODECS[ledger_id].master_key, [entry_id], [stored], 0, lambda code, *_: answer.set_result(code)
    )
    code = await answer
    if code == BookieCode.EOK and not payload_bytes:
        told.acknowledged[ledger_id] = entry_id
    return code


def test_a_full_disk_can_be_cleaned_and_loses_nothing() -> None:
    rng = random.Random(7)
    loop = SimulatedLoop(rng, Trace())
    try:
        loop.run(full_disk(Host(loop, rng)))
    finally:
        loop.bury()
    assert loop.problems == []
