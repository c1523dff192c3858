"""What a bookie promises: durable acknowledgements, fencing, keys, last add confirmed, read-only mode."""

from __future__ import annotations

import asyncio
import dataclasses
import resource
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from magnetar.bookie.app import RunningBookie
from magnetar.bookie.bookie import Bookie
from magnetar.bookie.disk_watch import REASON_DISK_FULL, disk_full
from magnetar.bookie.journal import format as journal_format
from magnetar.bookie.journal.replay import JournalReplay
from magnetar.bookie.local import LocalBookies
from magnetar.bookie.settings import BookieSettings, DiskSettings, JournalSettings, StorageSettings
from magnetar.bookie.storage.index import Index
from magnetar.bookie.storage.index_database import IndexFailed
from magnetar.core.clock import SystemClock
from magnetar.core.disk import SystemDisk
from magnetar.core.limits import MIB
from magnetar.ledger.api import LedgerOptions
from magnetar.ledger.bookie_client.bookie_connection import ADD_FLAG_HIGH_PRIORITY, ADD_FLAG_RECOVERY, READ_FLAG_FENCE
from magnetar.ledger.client import BookKeeperClient
from magnetar.ledger.testing import RecordingListener
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.wire.bookkeeper.codes import BookieCode, BookieError
from magnetar.wire.bookkeeper.entry import EntryCodec
from magnetar.wire.bookkeeper.service_info import machine_of

StartBookie = Callable[..., Awaitable[RunningBookie]]

KEY = EntryCodec(1, "CRC32C").master_key


def make(ledger_id: int, first: int, count: int, size: int = 50, lac: int | None = None) -> list[bytes]:
    codec = EntryCodec(ledger_id, "CRC32C")
    return codec.encode_many(
        first, first - 1 if lac is None else lac, 0, [bytes([i % 251]) * size for i in range(count)]
    )


async def add(
    bookie: Bookie, ledger_id: int, first: int, entries: Sequence[bytes], flags: int = 0, key: bytes = KEY
) -> int:
    told: asyncio.Future[tuple[int, int, list[int]]] = asyncio.get_running_loop().create_future()
    entry_ids = list(range(first, first + len(entries)))
    inside = True

    def done(code: int, ledger_id: int, entry_ids: Sequence[int]) -> None:
        assert not inside
        told.set_result((code, ledger_id, list(entry_ids)))

    bookie.add_entries(ledger_id, key, entry_ids, entries, flags, done)
    inside = False
    code, *told_of = await told
    assert told_of == [ledger_id, entry_ids]
    return code


async def code_of(awaitable: Awaitable[object]) -> BookieCode:
    with pytest.raises(BookieError) as caught:
        await awaitable
    return caught.value.code


async def test_added_entries_are_there_now_and_after_a_restart(start: StartBookie) -> None:
    stored = make(1, 0, 10)
    running = await start()
    assert await add(running.bookie, 1, 0, stored) == BookieCode.EOK
    assert await running.bookie.read_run(1, 0, 100, MIB) == stored
    await running.close()
    await running.close()
    bookie = (await start()).bookie
    assert await bookie.read_run(1, 0, 100, MIB) == stored
    assert await bookie.read_entry(1, -1) == stored[9]
    assert await code_of(bookie.read_entry(1, 10)) is BookieCode.ENOENTRY
    assert await code_of(bookie.read_entry(2, 0)) is BookieCode.ENOLEDGER
    assert await code_of(bookie.read_run(2, 0, 1, 1)) is BookieCode.ENOLEDGER


async def test_another_key_is_refused_also_after_a_restart(start: StartBookie) -> None:
    running = await start()
    other = b"o" * 20
    assert await add(running.bookie, 1, 0, make(1, 0, 1)) == BookieCode.EOK
    assert await add(running.bookie, 1, 1, make(1, 1, 1), key=other) == BookieCode.EUA
    assert await code_of(running.bookie.fence(1, other)) is BookieCode.EUA
    await running.close()
    bookie = (await start()).bookie
    assert await add(bookie, 1, 1, make(1, 1, 1), key=other) == BookieCode.EUA
    assert await add(bookie, 1, 1, make(1, 1, 1)) == BookieCode.EOK


async def test_a_fence_holds_and_lets_recoveries_through(start: StartBookie) -> None:
    running = await start()
    assert await add(running.bookie, 1, 0, make(1, 0, 1)) == BookieCode.EOK
    await running.bookie.fence(1, KEY)
    await running.bookie.fence(7, KEY)
    assert await code_of(running.bookie.read_entry(7, -1)) is BookieCode.ENOENTRY
    for ledger_id in (1, 7):
        assert await add(running.bookie, ledger_id, 1, make(ledger_id, 1, 1)) == BookieCode.EFENCED
        assert await add(running.bookie, ledger_id, 1, make(ledger_id, 1, 1), ADD_FLAG_RECOVERY) == BookieCode.EOK
    await running.close()
    bookie = (await start()).bookie
    for ledger_id in (1, 7):
        assert await add(bookie, ledger_id, 2, make(ledger_id, 2, 1)) == BookieCode.EFENCED
        assert await add(bookie, ledger_id, 2, make(ledger_id, 2, 1), ADD_FLAG_RECOVERY) == BookieCode.EOK


async def test_the_last_add_confirmed_comes_with_entries_and_explicitly(start: StartBookie) -> None:
    running = await start()
    bookie = running.bookie
    assert await code_of(bookie.last_add_confirmed(1)) is BookieCode.ENOLEDGER
    await add(bookie, 1, 0, make(1, 0, 5, lac=3))
    assert await bookie.last_add_confirmed(1) == 3
    told: list[int] = []
    assert bookie.wait_for_lac(1, told.append)
    await add(bookie, 1, 5, make(1, 5, 1, lac=3))
    assert told == []
    packet = EntryCodec(1, "CRC32C").encode_explicit_lac(5)
    await bookie.write_lac(1, KEY, 5, packet)
    assert told == [5]
    assert await code_of(bookie.write_lac(1, b"x", 6, packet)) is BookieCode.EUA
    await running.close()
    again = (await start()).bookie
    assert await again.read_lac(1) == (packet, make(1, 5, 1, lac=3)[0])
    assert await again.last_add_confirmed(1) == 5


async def test_a_replay_keeps_the_greatest_explicit_lac(start: StartBookie, settings: BookieSettings) -> None:
    running = await start()
    packets = [EntryCodec(1, "CRC32C").encode_explicit_lac(lac) for lac in (5, 4)]
    for packet in packets:
        await running.bookie.write_lac(1, KEY, 5, packet)
    await running.close()
    (settings.ledger_directories[0] / "current" / "lastMark").unlink()
    assert await (await start()).bookie.read_lac(1) == (packets[0], b"")


async def test_version_5_of_the_journal_has_no_explicit_lac(start: StartBookie, settings: BookieSettings) -> None:
    running = await start(journal=dataclasses.replace(settings.journal, format_version=5))
    packet = EntryCodec(1, "CRC32C").encode_explicit_lac(5)
    await running.bookie.write_lac(1, KEY, 5, packet)
    await running.bookie.write_lac(1, KEY, 4, EntryCodec(1, "CRC32C").encode_explicit_lac(4))
    await add(running.bookie, 1, 0, make(1, 0, 1))
    current = settings.journal_directories[0] / "current"
    (file,) = current.glob("*.txn")
    assert file.read_bytes()[:8] == b"BKLG\0\0\0\5"
    groups = JournalReplay(SystemDisk(), current, (0, 0), synced=True).groups()
    kinds = [journal_format.record_ids(record)[1] for records in groups for record in records]
    assert kinds == [journal_format.MASTER_KEY_RECORD, 0]
    await running.close()
    assert await (await start()).bookie.read_lac(1) == (packet, make(1, 0, 1)[0])


async def test_a_bookie_registers_the_machine_that_it_was_told(start: StartBookie, store: MemoryMetadataStore) -> None:
    for told in ("", "here"):
        running = await start(machine=told)
        node = await store.get("/ledgers/available/127.0.0.1:3181")
        assert node is not None
        assert machine_of(node.value) == told
        await running.close()


async def test_read_only_refuses_all_but_recoveries(start: StartBookie, store: MemoryMetadataStore) -> None:
    running = await start()
    assert await add(running.bookie, 1, 0, make(1, 0, 1)) == BookieCode.EOK
    assert await store.children("/ledgers/available") == ["127.0.0.1:3181", "readonly"]
    running.mode.add_reason(REASON_DISK_FULL)
    assert await add(running.bookie, 1, 1, make(1, 1, 1)) == BookieCode.EREADONLY
    assert await add(running.bookie, 1, 1, make(1, 1, 1), ADD_FLAG_RECOVERY) == BookieCode.EREADONLY
    both = ADD_FLAG_RECOVERY | ADD_FLAG_HIGH_PRIORITY
    assert await add(running.bookie, 1, 1, make(1, 1, 1), both) == BookieCode.EOK
    await until(lambda: store.children("/ledgers/available"), ["readonly"])
    assert await store.children("/ledgers/available/readonly") == ["127.0.0.1:3181"]
    running.mode.check()
    assert await add(running.bookie, 1, 2, make(1, 2, 1)) == BookieCode.EOK
    await until(lambda: store.children("/ledgers/available/readonly"), [])
    await running.close()
    assert await store.children("/ledgers/available") == ["readonly"]


async def test_a_recovery_ends_on_bookies_that_take_nothing_else(
    start: StartBookie, store: MemoryMetadataStore
) -> None:
    running = await start()
    client = BookKeeperClient(store, LocalBookies({running.bookie_id: running.bookie}), SystemClock())
    listener = RecordingListener()
    writer = await client.create(LedgerOptions(ensemble_size=1, write_quorum=1, ack_quorum=1), listener)
    writer.append([b"entry"])
    await listener.until_confirmed(0)
    await writer.abandon()
    running.mode.add_reason(REASON_DISK_FULL)
    reader = await client.open(writer.ledger_id, recover=True)
    assert (reader.closed, reader.last_add_confirmed) == (True, 0)
    await client.close()


async def until(observe: Callable[[], Awaitable[object]], wanted: object) -> None:
    async with asyncio.timeout(30):
        while await observe() != wanted:
            await asyncio.sleep(0.005)


def test_when_a_disk_is_full() -> None:
    settings = DiskSettings(usage_threshold=0.9, usage_low_water=0.8, free_bytes_min=10)
    assert not disk_full(1000, 101, settings, was_full=False)
    assert disk_full(1000, 100, settings, was_full=False)
    assert disk_full(1000, 200, settings, was_full=True)
    assert not disk_full(1000, 201, settings, was_full=True)
    assert disk_full(10, 9, settings, was_full=False)


@pytest.mark.slow
async def test_more_than_the_caches_hold_is_held_back_and_nothing_is_lost(start: StartBookie) -> None:
    running = await start(storage=StorageSettings(write_cache_bytes_max=11 * MIB))
    told: list[bool] = []
    running.bookie.watch_holding(told.append)
    batches = [make(1, first, 10, 100_000) for first in range(0, 400, 10)]
    codes = await asyncio.gather(*(add(running.bookie, 1, at * 10, batch) for at, batch in enumerate(batches)))
    assert set(codes) == {BookieCode.EOK}
    assert told[0] is True
    assert told[-1] is False
    for at, batch in enumerate(batches):
        assert await running.bookie.read_run(1, at * 10, 10, 2 * MIB) == batch
    await running.close()
    bookie = (await start()).bookie
    for at, batch in enumerate(batches):
        assert await bookie.read_run(1, at * 10, 10, 2 * MIB) == batch


@pytest.mark.slow
async def test_too_much_that_waits_is_refused(start: StartBookie) -> None:
    running = await start(storage=StorageSettings(write_cache_bytes_max=11 * MIB))
    batches = [make(1, first, 20, 100_000) for first in range(0, 1200, 20)]
    codes = await asyncio.gather(*(add(running.bookie, 1, at * 20, batch) for at, batch in enumerate(batches)))
    assert set(codes) == {BookieCode.EOK, BookieCode.ETOOMANYREQUESTS}
    assert codes[0] == BookieCode.EOK


async def test_adds_that_went_on_leave_room_for_others_to_wait(start: StartBookie) -> None:
    """Of what is held back only that counts which still is."""
    running = await start()
    running.bookie.adds.read_only = True
    running.bookie.adds.recovery_writes = False
    journal = running.parts.journals.all[0]
    for _ in range(4):
        journal.queued_bytes += 2**40
        held = asyncio.ensure_future(add(running.bookie, 1, 0, make(1, 0, 1, MIB) * 25))
        await asyncio.sleep(0)
        assert running.bookie.adds.holding
        journal.queued_bytes -= 2**40
        running.bookie.adds.resume()
        assert await held == BookieCode.EREADONLY


async def test_close_answers_what_still_waits(start: StartBookie) -> None:
    running = await start(storage=StorageSettings(write_cache_bytes_max=11 * MIB))
    batches = [make(1, first, 20, 100_000) for first in range(0, 600, 20)]
    adds = [asyncio.ensure_future(add(running.bookie, 1, at * 20, batch)) for at, batch in enumerate(batches)]
    await asyncio.sleep(0)
    assert running.bookie.adds.holding
    await running.close()
    codes = await asyncio.gather(*adds)
    assert set(codes) == {BookieCode.EOK, BookieCode.EREADONLY}
    assert await add(running.bookie, 1, 0, batches[0]) == BookieCode.EREADONLY
    assert await code_of(running.bookie.fence(1, KEY)) is BookieCode.EREADONLY
    whole = codes.index(BookieCode.EREADONLY) * 20
    bookie = (await start()).bookie
    assert await bookie.read_entry(1, -1) == batches[whole // 20 - 1][19]


async def test_a_journal_that_cannot_write_makes_the_bookie_read_only(start: StartBookie) -> None:
    running = await start(journal=JournalSettings(preallocate_bytes=MIB, size_bytes_max=64 * MIB))
    assert await add(running.bookie, 1, 0, make(1, 0, 1)) == BookieCode.EOK
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, hard))
    try:
        assert await add(running.bookie, 1, 1, make(1, 1, 20, 100_000)) == BookieCode.EIO
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert await add(running.bookie, 1, 21, make(1, 21, 1)) == BookieCode.EREADONLY
    running.mode.check()
    assert await add(running.bookie, 1, 21, make(1, 21, 1)) == BookieCode.EOK


async def test_a_fence_that_cannot_be_journaled_is_refused_until_it_can(start: StartBookie) -> None:
    """A recovery that took it for durable would close a ledger whose writer goes on after this bookie's restart."""
    running = await start()
    assert await add(running.bookie, 1, 0, make(1, 0, 1)) == BookieCode.EOK
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
    try:
        assert await code_of(running.bookie.fence(1, KEY)) is BookieCode.EIO
        assert await code_of(running.bookie.write_lac(2, KEY, 0, b"")) is BookieCode.EIO
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    running.mode.check()
    await running.bookie.fence(1, KEY)
    assert await add(running.bookie, 1, 1, make(1, 1, 1)) == BookieCode.EFENCED


async def test_the_master_key_is_journaled_again_when_its_record_could_not_be(
    start: StartBookie, settings: BookieSettings
) -> None:
    running = await start(journal=JournalSettings(preallocate_bytes=MIB, size_bytes_max=64 * MIB))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, hard))
    try:
        assert await add(running.bookie, 1, 0, make(1, 0, 20, 100_000)) == BookieCode.EIO
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    running.mode.check()
    assert await add(running.bookie, 1, 20, make(1, 20, 1)) == BookieCode.EOK
    directory = settings.journal_directories[0] / "current"
    groups = JournalReplay(SystemDisk(), directory, (0, 0), synced=True).groups()
    ids = [journal_format.record_ids(record) for group in groups for record in group]
    assert ids[-2:] == [(1, journal_format.MASTER_KEY_RECORD), (1, 20)]


async def test_a_checkpoint_that_fails_is_repeated(start: StartBookie, settings: BookieSettings) -> None:
    running = await start()
    stored = make(1, 0, 5)
    await add(running.bookie, 1, 0, stored)
    checkpointer, journals = running.parts.checkpointer, running.parts.journals
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, hard))
    try:
        assert not await checkpointer.checkpoint(journals.marks)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert running.bookie.adds.read_only
    assert await running.bookie.read_run(1, 0, 5, MIB) == stored
    assert not (settings.ledger_directories[0] / "current" / "lastMark").exists()
    assert await checkpointer.checkpoint(journals.marks)
    assert (settings.ledger_directories[0] / "current" / "lastMark").exists()
    assert await running.bookie.read_run(1, 0, 5, MIB) == stored


async def test_two_processes_cannot_share_directories(start: StartBookie) -> None:
    await start()
    with pytest.raises(OSError, match="index"):
        await start()


async def test_checkpoints_trim_the_journal(start: StartBookie, settings: BookieSettings) -> None:
    journal_files = settings.journal_directories[0] / "current"
    for first in range(3):
        running = await start(journal=dataclasses.replace(settings.journal, backups_max=1))
        await add(running.bookie, 1, first, make(1, first, 1))
        await running.close()
    # The current one, and one kept.
    assert len(list(journal_files.glob("*.txn"))) == 2


async def test_a_local_connection_is_a_bookie_connection(start: StartBookie) -> None:
    running = await start()
    bookies = LocalBookies({running.bookie_id: running.bookie})
    assert bookies.writable_bookies() == bookies.readable_bookies() == ["127.0.0.1:3181"]
    connection = bookies.connection("127.0.0.1:3181")
    assert bookies.connection("127.0.0.1:3181") is connection
    told: list[tuple[int, int, list[int]]] = []
    stored = make(1, 0, 3)
    connection.add_entries(
        1, KEY, [0, 1, 2], stored, 0, lambda *answer: told.append((answer[0], answer[1], [*answer[2]]))
    )
    assert told == []
    assert await connection.read_entry(1, -1, READ_FLAG_FENCE, KEY) == stored[2]
    assert told == [(BookieCode.EOK, 1, [0, 1, 2])]
    assert await connection.read_entries(1, 1, 10, MIB) == stored[1:]
    assert await connection.read_entry(1, 1) == stored[1]
    connection.add_entries(
        1, KEY, [3], make(1, 3, 1), ADD_FLAG_RECOVERY, lambda *answer: told.append((answer[0], 1, [3]))
    )
    await connection.close()
    assert told[1:] == [(BookieCode.UNREACHABLE, 1, [3])]
    assert await code_of(connection.read_entry(1, 1)) is BookieCode.UNREACHABLE
    await bookies.close()
    assert await code_of(_connect(bookies, "nobody:1")) is BookieCode.UNREACHABLE
    running.mode.add_reason(REASON_DISK_FULL)
    assert (bookies.writable_bookies(), bookies.readable_bookies()) == ([], ["127.0.0.1:3181"])


async def _connect(bookies: LocalBookies, bookie_id: str) -> None:
    bookies.connection(bookie_id)


async def test_a_flipped_bit_on_disk_answers_eio(start: StartBookie, tmp_path: Path) -> None:
    running = await start()
    stored = make(1, 0, 3)
    await add(running.bookie, 1, 0, stored)
    await running.close()
    log = next((tmp_path / "ledgers" / "current").glob("0.log"))
    data = bytearray(log.read_bytes())
    at = data.index(stored[1]) + 60
    data[at] ^= 16
    log.write_bytes(bytes(data))
    bookie = (await start()).bookie
    assert await bookie.read_entry(1, 0) == stored[0]
    assert await code_of(bookie.read_entry(1, 1)) is BookieCode.EIO
    assert await bookie.read_run(1, 0, 3, MIB) == stored[:1]


@pytest.mark.slow
async def test_an_index_that_cannot_be_read_answers_eio(start: StartBookie, monkeypatch: pytest.MonkeyPatch) -> None:
    running = await start()
    bookie = running.bookie
    assert await add(bookie, 1, 0, make(1, 0, 1)) == BookieCode.EOK

    def fail(_index: Index, _ledger_id: int) -> bytes | None:
        raise IndexFailed("the disk is going")

    monkeypatch.setattr(Index, "ledger", fail)
    assert await add(bookie, 2, 0, make(2, 0, 1)) == BookieCode.EIO
    assert await code_of(bookie.fence(2, KEY)) is BookieCode.EIO
    assert await code_of(bookie.write_lac(2, KEY, 0, b"")) is BookieCode.EIO
    assert await code_of(bookie.read_lac(2)) is BookieCode.EIO
    assert await code_of(bookie.read_entry(2, 0)) is BookieCode.EIO
    assert await bookie.read_entry(1, 0) == make(1, 0, 1)[0]
    # What was held back goes on behind one that cannot be taken.
    held = [asyncio.ensure_future(add(bookie, ledger_id, 1, make(ledger_id, 1, 1))) for ledger_id in (2, 1)]
    journal = running.parts.journals.all[0]
    journal.queued_bytes += 2**40
    await asyncio.sleep(0)
    assert bookie.adds.holding
    journal.queued_bytes -= 2**40
    bookie.adds.resume()
    assert await asyncio.gather(*held) == [BookieCode.EIO, BookieCode.EOK]


async def test_a_start_is_quick(start: StartBookie) -> None:
    # The best of three, in this process's own time: the machine may do other things as well.
    seconds = []
    for _ in range(3):
        begin = time.process_time()
        running = await start()
        seconds.append(time.process_time() - begin)
        await running.close()
    assert min(seconds) < 0.5
