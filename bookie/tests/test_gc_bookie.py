"""A whole bookie whose garbage is collected: adds, checkpoints and reads go on beside it."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest
from magnetar.bookie.app import RunningBookie
from magnetar.bookie.gc.collector import GarbageCollector
from magnetar.bookie.gc.live_ledgers import StoredLiveLedgers
from magnetar.bookie.gc.settings import GarbageCollectionSettings
from magnetar.bookie.settings import BookieSettings
from magnetar.core.clock import SystemClock
from magnetar.core.limits import MIB
from magnetar.ledger.bookie_client.bookie_connection import ADD_FLAG_RECOVERY
from magnetar.ledger.ledger_paths import ledger_path
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.wire.bookkeeper.codes import BookieCode, BookieError
from magnetar.wire.bookkeeper.entry import EntryCodec

KEY = b"k" * 20
SETTINGS = GarbageCollectionSettings(entries_per_second=10**9, free_bytes_min=0, disk_full_share=1.0)


@pytest.fixture
def settings(tmp_path: Path, settings: BookieSettings) -> BookieSettings:
    storage = dataclasses.replace(settings.storage, entry_log_bytes_max=MIB)
    two = (tmp_path / "ledgers1", tmp_path / "ledgers2")
    return dataclasses.replace(settings, storage=storage, ledger_directories=two)


def collectors(running: RunningBookie, store: MemoryMetadataStore) -> list[GarbageCollector]:
    live = StoredLiveLedgers(store, running.bookie_id)
    parts = running.parts
    return [
        GarbageCollector(storage, live, SETTINGS, SystemClock(), parts.forget_ledgers)
        for storage in parts.storage.directories
    ]


def sizes_bytes(running: RunningBookie) -> list[int]:
    """What the entry logs of each directory take."""
    directories = [storage.directory for storage in running.parts.storage.directories]
    return [sum(path.stat().st_size for path in directory.glob("*.log")) for directory in directories]


async def check_gone(running: RunningBookie, *ledger_ids: int) -> None:
    for ledger_id in ledger_ids:
        with pytest.raises(BookieError) as gone:
            await running.bookie.read_entry(ledger_id, 0)
        assert gone.value.code is BookieCode.ENOLEDGER


async def add(running: RunningBookie, ledger_id: int, first: int, count: int) -> list[bytes]:
    data = EntryCodec(ledger_id, "CRC32C").encode_many(first, first - 1, 0, [bytes([ledger_id]) * 10_000] * count)
    done = asyncio.get_running_loop().create_future()
    ids = range(first, first + count)
    running.bookie.add_entries(ledger_id, KEY, ids, data, 0, lambda code, _, __: done.set_result(code))
    assert await done == 0
    return data


async def test_a_deleted_ledger_takes_nothing_from_its_former_writer(start: Any, store: MemoryMetadataStore) -> None:
    """Who took the ledger over has fenced, closed and deleted it; the writer slept all the while. An entry that it adds
    now, and hears to be stored, would be read by nobody."""
    running = await start()
    await store.put(ledger_path(1), b"metadata")
    await add(running, 1, 0, 1)
    await running.bookie.fence(1, KEY)
    await store.put(ledger_path(2), b"metadata")
    await running.bookie.fence(2, KEY)
    assert await running.parts.checkpointer.checkpoint(running.parts.journals.marks)
    for ledger_id in (1, 2):
        await store.delete(ledger_path(ledger_id))
    for collector in collectors(running, store):
        await collector.collect()
    await check_gone(running, 1, 2)
    assert await late_adds(running, 0) == [BookieCode.EFENCED] * 2
    await running.close()
    running = await start()
    assert await late_adds(running, 0) == [BookieCode.EFENCED] * 2
    # Who copies a ledger that is here again is no former writer.
    assert await late_adds(running, ADD_FLAG_RECOVERY) == [BookieCode.EOK] * 2
    assert await late_adds(running, 0) == [BookieCode.EFENCED] * 2


async def late_adds(running: RunningBookie, flags: int) -> list[int]:
    """Answers to an add of entry 1 to ledger 1, and of entry 0 to ledger 2."""
    answers = []
    for ledger_id, entry_id in ((1, 1), (2, 0)):
        entry = EntryCodec(ledger_id, "CRC32C").encode_many(entry_id, entry_id - 1, 0, [b"late"])
        done = asyncio.get_running_loop().create_future()
        running.bookie.add_entries(
            ledger_id, KEY, [entry_id], entry, flags, lambda code, _, __, done=done: done.set_result(code)
        )
        answers.append(await done)
    return answers


@pytest.mark.slow
async def test_a_bookie_forgets_deleted_ledgers(start: Any, store: MemoryMetadataStore) -> None:
    running = await start()
    ledger_ids = range(1, 9)
    for ledger_id in ledger_ids:
        await store.put(ledger_path(ledger_id), b"metadata")
    kept: dict[int, list[bytes]] = {ledger_id: [] for ledger_id in ledger_ids}
    for turn in range(10):
        for ledger_id in ledger_ids:
            kept[ledger_id] += await add(running, ledger_id, turn * 10, 10)
        assert await running.parts.checkpointer.checkpoint(running.parts.journals.marks)
    used = sizes_bytes(running)
    for ledger_id in (1, 2, 3, 4, 5, 6):
        await store.delete(ledger_path(ledger_id))
    stop = False

    async def go_on() -> None:
        turn = 10
        while not stop:
            kept[8] += await add(running, 8, turn * 10, 10)
            await running.parts.checkpointer.checkpoint(running.parts.journals.marks)
            assert await running.bookie.read_run(7, 0, 100, 10**7) == kept[7]
            turn += 1

    busy = asyncio.create_task(go_on())
    for collector in collectors(running, store):
        report = await collector.collect(force_major=True)
        assert report.problems == []
        assert report.ledgers_deleted == 3
        assert report.logs_compacted > 0
    stop = True
    await busy
    for collector in collectors(running, store):
        await collector.collect(force_major=True)
    await check_gone(running, 1, 2, 3, 4, 5, 6)
    for before, after in zip(used, sizes_bytes(running), strict=True):
        assert after < before // 2 + sum(map(len, kept[8][100:]))
    for _ in range(2):
        for ledger_id in (7, 8):
            results = await running.bookie.read_entries([(ledger_id, at) for at in range(len(kept[ledger_id]))])
            assert results == kept[ledger_id]
        await running.close()
        running = await start()
    await running.close()


async def test_a_ledger_whose_first_entries_are_being_flushed(start: Any, store: MemoryMetadataStore) -> None:
    """Collections between all steps of checkpoints find nothing to take away."""
    running = await start()
    kept: list[bytes] = []
    stop = False

    async def collect() -> None:
        while not stop:
            for collector in collectors(running, store):
                report = await collector.collect(force_major=True)
                assert (report.ledgers_deleted, report.problems) == (0, [])

    busy = asyncio.create_task(collect())
    for ledger_id in range(1, 13):
        await store.put(ledger_path(ledger_id), b"metadata")
        kept += await add(running, ledger_id, 0, 20)
        await running.parts.checkpointer.checkpoint(running.parts.journals.marks)
    stop = True
    await busy
    wanted = [(ledger_id, at) for ledger_id in range(1, 13) for at in range(20)]
    assert await running.bookie.read_entries(wanted) == kept
    await running.close()
