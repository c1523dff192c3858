"""Fences and master keys through crashes and failing checkpoints, and the order of adds that are held back."""

from __future__ import annotations

import asyncio
import errno
import resource
from collections.abc import Awaitable, Callable, Sequence

import pytest
from magnetar.bookie import checkpoint as checkpoint_module
from magnetar.bookie.adds import HELD_BYTES_MAX
from magnetar.bookie.app import RunningBookie
from magnetar.bookie.bookie import Bookie
from magnetar.bookie.checkpoint import Checkpointer
from magnetar.bookie.settings import StorageSettings
from magnetar.bookie.storage.directories import Marks
from magnetar.core.limits import MIB
from magnetar.wire.bookkeeper.codes import BookieCode
from magnetar.wire.bookkeeper.entry import EntryCodec

StartBookie = Callable[..., Awaitable[RunningBookie]]

KEY = EntryCodec(1, "CRC32C").master_key
OTHER = b"o" * 20


def entry(ledger_id: int, entry_id: int) -> bytes:
    return EntryCodec(ledger_id, "CRC32C").encode_many(entry_id, entry_id - 1, 0, [b"payload"])[0]


async def add(bookie: Bookie, ledger_id: int, entry_id: int, key: bytes = KEY) -> int:
    told: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    bookie.add_entries(
        ledger_id, key, [entry_id], [entry(ledger_id, entry_id)], 0, lambda code, _ledger, _ids: told.set_result(code)
    )
    return await told


async def crash(running: RunningBookie, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is only in memory is lost; the journal stays."""

    async def not_now(_marks: object) -> bool:
        return True

    with monkeypatch.context() as patched:
        patched.setattr(running.parts.checkpointer, "checkpoint", not_now)
        await running.close()


async def test_a_fence_and_a_key_survive_a_crash_and_the_start_after_it(
    start: StartBookie, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first start reads them from the journal; it must store them, for the second begins behind that."""
    running = await start()
    assert await add(running.bookie, 1, 0) == BookieCode.EOK
    await running.bookie.fence(2, KEY)
    await crash(running, monkeypatch)
    for _ in range(2):
        running = await start()
        assert await add(running.bookie, 1, 1, OTHER) == BookieCode.EUA
        assert await add(running.bookie, 2, 0) == BookieCode.EFENCED
        assert await add(running.bookie, 2, 0, OTHER) in (BookieCode.EFENCED, BookieCode.EUA)
        await running.close()


async def test_a_failed_checkpoint_forgets_no_fence(start: StartBookie, monkeypatch: pytest.MonkeyPatch) -> None:
    running = await start()
    assert await add(running.bookie, 1, 0) == BookieCode.EOK
    await running.bookie.fence(1, KEY)
    checkpointer, journals = running.parts.checkpointer, running.parts.journals

    async def no_room(_states: object) -> None:
        raise OSError(errno.ENOSPC, "the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(running.parts.storage, "flush", no_room)
        assert not await checkpointer.checkpoint(journals.marks)
    assert await checkpointer.checkpoint(journals.marks)
    await crash(running, monkeypatch)
    assert await add((await start()).bookie, 1, 1) == BookieCode.EFENCED


async def test_a_checkpoint_after_a_failed_one_says_nothing_of_what_was_added_since(
    start: StartBookie, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes what failed again. What came after that is still in memory, and replayed from the journal."""
    running = await start(storage=StorageSettings(flush_interval_seconds=3_600.0))
    checkpointer, journals = running.parts.checkpointer, running.parts.journals
    assert await add(running.bookie, 1, 0) == BookieCode.EOK
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
    try:
        assert not await checkpointer.checkpoint(journals.marks)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    running.mode.check()
    assert await add(running.bookie, 1, 1) == BookieCode.EOK
    assert await checkpointer.checkpoint(journals.marks)
    await crash(running, monkeypatch)
    bookie = (await start()).bookie
    assert [await bookie.read_entry(1, entry_id) for entry_id in (0, 1)] == [entry(1, 0), entry(1, 1)]


async def test_a_failed_checkpoint_is_tried_again_without_being_asked(
    start: StartBookie, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_module, "RETRY_SECONDS", 0.01)
    running = await start(storage=StorageSettings(flush_interval_seconds=3_600.0))
    assert await add(running.bookie, 1, 0) == BookieCode.EOK
    flush, attempts = running.parts.storage.flush, 0

    async def no_room_once(states: Sequence[tuple[int, bytes]]) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise OSError(errno.ENOSPC, "the disk is full")
        await flush(states)

    monkeypatch.setattr(running.parts.storage, "flush", no_room_once)
    running.parts.checkpointer.request()
    async with asyncio.timeout(30):
        while not running.parts.checkpointer.completed:
            await asyncio.sleep(0.01)
    assert attempts == 2


async def test_a_start_stores_what_it_replays(start: StartBookie, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a ledger of which nothing but entries is in the journal: the next start begins behind them."""
    running = await start()
    assert await add(running.bookie, 1, 0) == BookieCode.EOK
    await running.close()
    running = await start()
    assert await add(running.bookie, 1, 1) == BookieCode.EOK
    await crash(running, monkeypatch)
    running = await start()
    assert running.parts.checkpointer.completed == 1
    assert not running.parts.storage.anything_cached()


async def test_a_start_fails_that_cannot_store_what_it_replays(
    start: StartBookie, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await start(storage=StorageSettings(write_cache_bytes_max=64 * MIB))
    codec = EntryCodec(1, "CRC32C")
    stored = codec.encode_many(0, -1, 0, [bytes(MIB)] * 20)
    for entry_id, each in enumerate(stored):
        told: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        running.bookie.add_entries(1, KEY, [entry_id], [each], 0, lambda code, *_, at=told: at.set_result(code))
        assert await told == BookieCode.EOK
    await crash(running, monkeypatch)
    # A half of it is full more than once: all but the last writing goes on beside the reading.
    small = StorageSettings(write_cache_bytes_max=12 * MIB)
    flush, attempts = Checkpointer.flush, 0

    async def no_room_once(checkpointer: Checkpointer, marks: Marks) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise OSError(errno.ENOSPC, "the disk is full")
        await flush(checkpointer, marks)

    with monkeypatch.context() as patched:
        patched.setattr(Checkpointer, "flush", no_room_once)
        with pytest.raises(OSError, match="the disk is full"):
            await start(storage=small)
    assert await (await start(storage=small)).bookie.read_run(1, 19, 1, 2 * MIB) == stored[19:]


async def test_adds_that_come_while_others_are_held_back_go_behind_them(
    start: StartBookie, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even when there is room just now: the answers to those before have made it."""
    running = await start()
    bookie = running.bookie
    monkeypatch.setattr(running.parts.journals.all[0], "_queue_bytes_max", 1)
    order: list[int] = []
    finished = asyncio.Event()

    def done(code: int, ledger_id: int, entry_ids: Sequence[int]) -> None:
        assert (code, ledger_id) == (BookieCode.EOK, 1)
        order.append(entry_ids[0])
        if entry_ids[0] == 0:
            bookie.add_entries(1, KEY, [2], [entry(1, 2)], 0, done)
        if len(order) == 3:
            finished.set()

    bookie.add_entries(1, KEY, [0], [entry(1, 0)], 0, done)
    bookie.add_entries(1, KEY, [1], [entry(1, 1)], 0, done)
    assert bookie.adds.holding
    async with asyncio.timeout(30):
        await finished.wait()
    assert order == [0, 1, 2]


async def test_an_add_that_is_too_much_is_refused_and_not_held_as_well(
    start: StartBookie, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await start()
    monkeypatch.setattr(running.parts.journals.all[0], "_queue_bytes_max", 1)
    large = EntryCodec(1, "CRC32C").encode_many(0, -1, 0, [bytes(MIB)])
    count = HELD_BYTES_MAX // MIB + 5
    told: list[tuple[int, int]] = []
    finished = asyncio.Event()

    def done(code: int, ledger_id: int, entry_ids: Sequence[int]) -> None:
        assert ledger_id == 1
        told.append((entry_ids[0], code))
        if len(told) == count:
            finished.set()

    for entry_id in range(count):
        running.bookie.add_entries(1, KEY, [entry_id], large, 0, done)
    async with asyncio.timeout(30):
        await finished.wait()
    await running.close()
    assert sorted(entry_id for entry_id, _ in told) == list(range(count))
    assert {code for _, code in told} == {BookieCode.EOK, BookieCode.ETOOMANYREQUESTS}


async def test_a_checkpoint_without_entries_stores_fences(start: StartBookie, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal that has them is not read again after it."""
    running = await start()
    await running.bookie.fence(1, KEY)
    assert await running.parts.checkpointer.checkpoint(running.parts.journals.marks)
    await crash(running, monkeypatch)
    assert await add((await start()).bookie, 1, 0) == BookieCode.EFENCED
