"""Ledgers in directories when the disk is full, the file system is not mounted, or somebody else was there."""

from __future__ import annotations

import asyncio
import shutil
import threading
import zlib
from pathlib import Path
from uuid import UUID

import pytest
from magnetar.core.errors import SettingError
from magnetar.ledger.api import LedgerNotFound, LedgerUnavailable
from magnetar.tiered import file_offloader, file_threads, map_file
from magnetar.tiered.api import OffloadDamaged, OffloadedLedgerNotFound, OffloadRefused, OffloadUnavailable
from magnetar.tiered.file_offloader import FileOffloader
from magnetar.tiered.file_threads import THREADS_MAX
from magnetar.tiered.map_file import MapFileWriter
from magnetar.tiered.testing import ClosedMemoryLedger
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.wire.offload.sequence_file import LONG_CLASS, encode_sequence_header, encode_sync, encode_vint

from lib.tests.recorded_offloads import LEDGER_ID, UID, file_payloads
from lib.tests.test_tiered_files import STORED, TOPIC, offloaded, offloader_at, read_all, record_at

ID = UUID(UID)


class WriterOnFullDisk(MapFileWriter):
    """Writes where there is no space: what is small is refused when the file is closed."""

    def __init__(self, folder: Path, uid: UUID, described: LedgerMetadata) -> None:
        super().__init__(folder, uid, described)
        self._data.close()
        self._data = Path("/dev/full").open("wb", buffering=map_file.BUFFER_BYTES)  # noqa: SIM115  (as what it replaces)


class LedgerThatFails(ClosedMemoryLedger):
    """Has its first entry alone."""

    async def read(self, first_entry_id: int, last_entry_id: int) -> list[bytes]:
        if first_entry_id > 0:
            raise LedgerUnavailable("bookies do not answer")
        return await super().read(0, 0)


@pytest.mark.parametrize("entry_bytes", [10, 600 << 10])
async def test_a_full_disk_is_told_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry_bytes: int
) -> None:
    monkeypatch.setattr(file_offloader, "MapFileWriter", WriterOnFullDisk)
    with pytest.raises(OffloadUnavailable, match="No space left"):
        await offloaded(offloader_at(tmp_path), ClosedMemoryLedger(LEDGER_ID, [bytes(entry_bytes)] * 2))
    assert [path for path in tmp_path.rglob("*") if path.name.startswith(str(LEDGER_ID))] == []


async def test_a_bookie_that_fails_is_the_cause_that_is_told_though_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_offloader, "MapFileWriter", WriterOnFullDisk)
    with pytest.raises(LedgerUnavailable, match="bookies do not answer"):
        await offloaded(offloader_at(tmp_path), LedgerThatFails(LEDGER_ID, [b"a"] * 2))


@pytest.mark.parametrize("mounted", ["missing", "empty"])
async def test_a_file_system_that_is_not_mounted_is_no_lost_ledger(tmp_path: Path, mounted: str) -> None:
    base = tmp_path / "base"
    if mounted == "empty":
        base.mkdir()
    for stored in ({}, STORED):
        with pytest.raises(OffloadUnavailable, match="is the file system mounted") as told:
            await offloader_at(base).open(LEDGER_ID, ID, stored)
        assert not isinstance(told.value, LedgerNotFound)
        with pytest.raises(OffloadUnavailable, match="is the file system mounted"):
            await offloader_at(base).delete(LEDGER_ID, ID, stored)


async def test_nothing_is_written_where_no_file_system_is_mounted(tmp_path: Path) -> None:
    with pytest.raises(OffloadUnavailable, match="is the file system mounted"):
        await offloaded(offloader_at(tmp_path / "base"), ClosedMemoryLedger(LEDGER_ID, [b"a"]))
    assert list(tmp_path.iterdir()) == []


async def test_a_ledger_is_found_where_it_was_written_after_the_base_was_changed(tmp_path: Path) -> None:
    then, today = tmp_path / "then", tmp_path / "today"
    record_at(then, "none")
    (today / "other").mkdir(parents=True)
    offloader = offloader_at(today)
    for stored in (offloader_at(then).stored_metadata(), {**STORED, **offloader_at(then).stored_metadata()}):
        reader = await offloader.open(LEDGER_ID, ID, stored)
        assert await read_all(reader) == file_payloads()
        await reader.close()
    await offloader.delete(LEDGER_ID, ID, offloader_at(then).stored_metadata())
    assert not (then / TOPIC / f"{LEDGER_ID}-{UID}").exists()


async def test_what_is_in_a_bucket_is_not_gone_because_no_folder_has_it(tmp_path: Path) -> None:
    record_at(tmp_path, "none")
    offloader = offloader_at(tmp_path)
    with pytest.raises(OffloadRefused, match="the bucket topics"):
        await offloader.delete(7, ID, {"bucket": "topics"})
    with pytest.raises(OffloadRefused, match="the bucket topics"):
        await offloader.open(7, ID, {"bucket": "topics"})


async def test_a_link_in_place_of_a_directory_goes_and_not_what_it_leads_to(tmp_path: Path) -> None:
    base, elsewhere = tmp_path / "base", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").write_bytes(b"kept")
    (base / TOPIC).mkdir(parents=True)
    for target in (elsewhere, tmp_path / "nowhere"):
        (base / TOPIC / f"{LEDGER_ID}-{UID}").symlink_to(target)
        await offloader_at(base).delete(LEDGER_ID, ID, {})
        assert list((base / TOPIC).iterdir()) == []
    assert (elsewhere / "kept").read_bytes() == b"kept"


async def test_two_owners_delete_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = record_at(tmp_path, "none")
    remove = shutil.rmtree

    def overtaken(path: Path) -> None:
        remove(path)  # The other owner's.
        remove(path)

    monkeypatch.setattr(shutil, "rmtree", overtaken)
    await offloader_at(tmp_path).delete(LEDGER_ID, ID, STORED)
    assert not folder.exists()


async def test_a_reader_that_was_closed_is_told(tmp_path: Path) -> None:
    record_at(tmp_path, "none")
    reader = await offloader_at(tmp_path).open(LEDGER_ID, ID, {})
    await reader.close()
    with pytest.raises(OffloadUnavailable, match="was closed"):
        await reader.read(0, 0)


async def test_a_mount_that_hangs_holds_no_thread_that_others_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_at(tmp_path, "none")
    offloader = offloader_at(tmp_path)
    answers, hanging = threading.Event(), threading.Semaphore(0)
    opened = map_file.MapFileReader

    def hangs(folder: Path) -> map_file.MapFileReader:
        hanging.release()
        answers.wait()
        return opened(folder)

    monkeypatch.setattr(file_offloader, "MapFileReader", hangs)
    opening = [asyncio.ensure_future(offloader.open(LEDGER_ID, ID, STORED)) for _ in range(3 * THREADS_MAX)]
    try:
        for _ in range(THREADS_MAX):
            while not hanging.acquire(blocking=False):
                await asyncio.sleep(0.001)
        assert await asyncio.to_thread(lambda: "a name of a host") == "a name of a host"
        assert not hanging.acquire(blocking=False)  # Those beyond the bound wait without a thread.
    finally:
        answers.set()
    for reader in await asyncio.gather(*opening):
        await reader.close()


async def test_who_is_cancelled_gives_a_mount_that_hangs_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_threads, "CANCELLED_SECONDS_MAX", 0.05)
    record_at(tmp_path, "none")
    offloader = offloader_at(tmp_path)
    reader = await offloader.open(LEDGER_ID, ID, STORED)
    answers, hangs = threading.Event(), threading.Event()

    def hang(*_: object) -> list[bytes]:
        hangs.set()
        answers.wait()
        return [b"late"]

    monkeypatch.setattr(map_file.MapFileReader, "read", hang)
    monkeypatch.setattr(MapFileWriter, "append", hang)
    try:
        for work in (reader.read(0, 0), offloaded(offloader, ClosedMemoryLedger(LEDGER_ID + 1, [b"a"]))):
            hangs.clear()
            task = asyncio.ensure_future(work)
            while not hangs.is_set():
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(task, 10)
    finally:
        answers.set()
    await reader.close()


async def test_mounts_that_hang_collect_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_threads, "CANCELLED_SECONDS_MAX", 0.0)
    threads, answers, hanging = file_threads.FileThreads(), threading.Event(), threading.Semaphore(0)

    def hang() -> None:
        hanging.release()
        answers.wait()

    hung = [asyncio.ensure_future(threads.run(Path("mount"), hang)) for _ in range(THREADS_MAX)]
    try:
        for task in hung:
            while not hanging.acquire(blocking=False):
                await asyncio.sleep(0.001)
            task.cancel()
        await asyncio.wait(hung)
        later = asyncio.ensure_future(threads.run(Path("mount"), lambda: "there"))
        assert not (await asyncio.wait((later,), timeout=0.05))[0]
    finally:
        answers.set()
    assert await asyncio.wait_for(later, 10) == "there"


async def test_a_reader_that_is_closed_does_not_wait_for_a_read_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_threads, "CANCELLED_SECONDS_MAX", 0.05)
    record_at(tmp_path, "none")
    reader = await offloader_at(tmp_path).open(LEDGER_ID, ID, STORED)
    answers, hangs = threading.Event(), threading.Event()
    read = map_file.MapFileReader.read

    def hang(of: map_file.MapFileReader, first_entry_id: int, last_entry_id: int, size_bytes_max: int) -> list[bytes]:
        hangs.set()
        answers.wait()
        return read(of, first_entry_id, last_entry_id, size_bytes_max)

    monkeypatch.setattr(map_file.MapFileReader, "read", hang)
    reading = asyncio.ensure_future(reader.read(0, 0))
    try:
        while not hangs.is_set():
            await asyncio.sleep(0.001)
        await asyncio.wait_for(reader.close(), 10)
    finally:
        answers.set()
    assert await reading == file_payloads()[:1]


async def test_an_index_that_unpacks_to_millions_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(map_file, "INDEXED_MAX", 1000)
    folder = record_at(tmp_path, "none")
    mark = bytes(16)
    header = encode_sequence_header(LONG_CLASS, mark)[: -4 - 16 - 2] + b"\1\1"
    codec = b"org.apache.hadoop.io.compress.DefaultCodec"
    header += encode_vint(len(codec)) + codec + bytes(4) + mark
    numbers = b"".join((number - 1).to_bytes(8, "big", signed=True) for number in range(2000))
    positions = b"".join(number.to_bytes(8, "big") for number in range(2000))
    lengths = b"\x08" * 2000
    parts = [zlib.compress(part) for part in (lengths, numbers, lengths, positions)]
    block = encode_sync(mark) + encode_vint(2000) + b"".join(encode_vint(len(part)) + part for part in parts)
    (folder / "index").write_bytes(header + block)
    with pytest.raises(OffloadDamaged, match="more than 1000 entries"):
        await offloader_at(tmp_path).open(LEDGER_ID, ID, {})


@pytest.mark.parametrize("uri", ["file://[", "file:///a%00b", "file:///a\0b"])
def test_a_folder_that_cannot_be_is_a_setting_that_is_wrong(uri: str) -> None:
    with pytest.raises(SettingError, match="only file systems that are mounted"):
        FileOffloader(uri)


async def test_what_is_missing_below_a_store_that_is_there_is_missing(tmp_path: Path) -> None:
    record_at(tmp_path, "none")
    for stored in ({}, STORED):
        with pytest.raises(OffloadedLedgerNotFound):
            await offloader_at(tmp_path).open(LEDGER_ID + 1, ID, stored)
        await offloader_at(tmp_path).delete(LEDGER_ID + 1, ID, stored)


async def test_a_topic_whose_name_no_folder_may_have_can_be_deleted(tmp_path: Path) -> None:
    record_at(tmp_path, "none")
    await offloader_at(tmp_path).delete(1, ID, {"ManagedLedgerName": "public/default/persistent/.."})
