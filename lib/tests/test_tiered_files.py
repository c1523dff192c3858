"""Ledgers in directories, as Hadoop's MapFile: what Apache's driver wrote is read, nothing half is read as whole."""

from __future__ import annotations

import asyncio
import io
import os
import threading
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from magnetar.core.errors import Misuse, SettingError
from magnetar.ledger.api import EntryNotFound, LedgerReader, LedgerUnavailable
from magnetar.tiered.api import OffloadDamaged, OffloadedLedgerNotFound, OffloadRefused, OffloadUnavailable
from magnetar.tiered.factory import make_offloader
from magnetar.tiered.file_offloader import FileLedgerReader, FileOffloader
from magnetar.tiered.map_file import MapFileReader, MapFileWriter
from magnetar.tiered.testing import ClosedMemoryLedger
from magnetar.wire.offload.errors import BadOffload
from magnetar.wire.offload.sequence_file import (
    BYTES_CLASS,
    LONG_CLASS,
    decode_sequence_header,
    encode_record,
    encode_sequence_header,
    encode_vint,
    long_value,
    read_vint,
    records,
)

from lib.tests.recorded_offloads import FILE_SIZES, LEDGER_ID, UID, file_payloads, recorded

ID = UUID(UID)
TOPIC = "public/default/persistent/topic"
STORED = {"ManagedLedgerName": TOPIC}
KINDS = ("none", "record", "block")


def offloader_at(base: Path) -> FileOffloader:
    return FileOffloader(f"file://{base}")


def record_at(base: Path, kind: str) -> Path:
    folder = base / TOPIC / f"{LEDGER_ID}-{UID}"
    folder.mkdir(parents=True)
    for name in ("data", "index"):
        (folder / name).write_bytes(recorded(f"files-{kind}-{name}"))
    return folder


async def read_all(reader: LedgerReader, first: int = 0) -> list[bytes]:
    found: list[bytes] = []
    while first + len(found) <= reader.last_add_confirmed:
        found += await reader.read(first + len(found), reader.last_add_confirmed)
    return found


async def offloaded(offloader: FileOffloader, ledger: ClosedMemoryLedger, topic: str = TOPIC) -> None:
    await offloader.offload(ledger, ledger.described(), ID, topic)


@pytest.mark.parametrize("kind", KINDS)
async def test_what_apache_wrote_is_read_from_any_entry_on(tmp_path: Path, kind: str) -> None:
    record_at(tmp_path, kind)
    offloader = offloader_at(tmp_path)
    for stored in ({}, STORED):
        reader = await offloader.open(LEDGER_ID, ID, stored)
        assert (reader.last_add_confirmed, reader.length_bytes) == (len(FILE_SIZES) - 1, sum(FILE_SIZES))
        assert await read_all(reader) == file_payloads()
        for first in (143, 130, 128, 127, 126, 5, 2, 1, 0):
            assert await read_all(reader, first) == file_payloads()[first:]
        await reader.close()


@settings(deadline=None, max_examples=15)
@given(st.lists(st.integers(0, 2000), min_size=1, max_size=400), st.data())
def test_any_stretch_comes_back(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], draw: st.DataObject
) -> None:
    async def check() -> None:
        offloader = offloader_at(tmp_path_factory.mktemp("base"))
        ledger = ClosedMemoryLedger(LEDGER_ID, [bytes([number % 256]) * size for number, size in enumerate(sizes)])
        await offloaded(offloader, ledger)
        reader = await offloader.open(LEDGER_ID, ID, STORED)
        try:
            for _ in range(5):
                first = draw.draw(st.integers(0, len(sizes) - 1))
                last = draw.draw(st.integers(first, len(sizes) - 1))
                assert await reader.read(first, last) == ledger.payloads[first : last + 1]
        finally:
            await reader.close()

    asyncio.run(check())


async def test_a_directory_has_its_name_when_it_is_whole(tmp_path: Path) -> None:
    offloader = offloader_at(tmp_path)
    seen: list[list[str]] = []

    class Looking(ClosedMemoryLedger):
        async def read(self, first_entry_id: int, last_entry_id: int) -> list[bytes]:
            seen.append([one.name for one in (tmp_path / TOPIC).iterdir()])
            seen.append([one.key for one in (await offloader.page()).objects])
            return (await super().read(first_entry_id, last_entry_id))[:1]

    await offloaded(offloader, Looking(LEDGER_ID, [b"a", b"b"]))
    name = f"{LEDGER_ID}-{UID}"
    assert seen == [[name + ".unfinished"], [f"{TOPIC}/{name}.unfinished"]] * 2
    page = await offloader.page()
    assert [(one.key, one.ledger_id, one.uid) for one in page.objects] == [(f"{TOPIC}/{name}", LEDGER_ID, ID)]
    assert await offloader.metadata_of(page.objects[0].key) == {"managedledgername": TOPIC, "role": "data"}
    assert b"secret" not in (tmp_path / TOPIC / name / "data").read_bytes()


async def test_a_kill_in_the_middle_leaves_what_the_list_finds(tmp_path: Path) -> None:
    offloader = offloader_at(tmp_path)
    folder = record_at(tmp_path, "none")
    folder.rename(folder.with_name(folder.name + ".unfinished"))
    with pytest.raises(OffloadedLedgerNotFound):
        await offloader.open(LEDGER_ID, ID, STORED)
    assert [(one.ledger_id, one.uid) for one in (await offloader.page()).objects] == [(LEDGER_ID, ID)]
    await offloader.delete(LEDGER_ID, ID, {})
    assert (await offloader.page()).objects == []
    await offloader.delete(LEDGER_ID, ID, STORED)


@pytest.mark.parametrize("how", ["fails", "cancelled"])
async def test_an_offload_that_does_not_end_leaves_nothing(tmp_path: Path, how: str) -> None:
    begun = asyncio.Event()

    class Stopping(ClosedMemoryLedger):
        async def read(self, first_entry_id: int, last_entry_id: int) -> list[bytes]:
            if first_entry_id > 3:
                begun.set()
                if how == "fails":
                    raise LedgerUnavailable("0 of 3 bookies answered")
                await asyncio.Event().wait()
            return (await super().read(first_entry_id, last_entry_id))[:2]

    offloader = offloader_at(tmp_path)
    offload = asyncio.ensure_future(offloaded(offloader, Stopping(LEDGER_ID, [b"x"] * 10)))
    await begun.wait()
    if how == "cancelled":
        offload.cancel()
    with pytest.raises(LedgerUnavailable if how == "fails" else asyncio.CancelledError):
        await offload
    assert list((tmp_path / TOPIC).iterdir()) == []


async def test_an_offload_goes_over_what_a_killed_one_left(tmp_path: Path) -> None:
    offloader = offloader_at(tmp_path)
    left = tmp_path / TOPIC / f"{LEDGER_ID}-{UID}.unfinished"
    left.mkdir(parents=True)
    (left / "data").write_bytes(b"half")
    await offloaded(offloader, ClosedMemoryLedger(LEDGER_ID, [b"a"]))
    assert [one.name for one in (tmp_path / TOPIC).iterdir()] == [f"{LEDGER_ID}-{UID}"]


@pytest.mark.parametrize("kind", KINDS)
async def test_cut_or_damaged_files_give_the_right_entries_or_an_error(tmp_path: Path, kind: str) -> None:
    folder = record_at(tmp_path, kind)
    offloader = offloader_at(tmp_path)
    for name in ("data", "index"):
        whole = (folder / name).read_bytes()
        for size_bytes in range(0, len(whole), 7):
            (folder / name).write_bytes(whole[:size_bytes])
            told = 0
            try:
                reader = await offloader.open(LEDGER_ID, ID, STORED)
                for first in (0, 100, len(FILE_SIZES) - 1):
                    try:
                        found = await reader.read(first, len(FILE_SIZES) - 1)
                        assert found == file_payloads()[first:]
                    except OffloadDamaged:
                        told += 1
                await reader.close()
            except OffloadDamaged:
                told += 1
            assert told or name == "index", f"{name} of {size_bytes} bytes"
        (folder / name).write_bytes(whole)
    (folder / "index").unlink()
    with pytest.raises(OffloadedLedgerNotFound, match="index"):
        await offloader.open(LEDGER_ID, ID, STORED)


@settings(deadline=None)
@given(st.sampled_from(KINDS), st.sampled_from([("data", BYTES_CLASS), ("index", LONG_CLASS)]), st.data())
def test_any_bytes_are_records_or_told(kind: str, file: tuple[str, str], draw: st.DataObject) -> None:
    damaged = bytearray(recorded(f"files-{kind}-{file[0]}"))
    for _ in range(draw.draw(st.integers(1, 3))):
        damaged[draw.draw(st.integers(0, len(damaged) - 1))] = draw.draw(st.integers(0, 255))
    source = io.BytesIO(bytes(damaged))
    try:
        header = decode_sequence_header(source, file[1])
        assert len(list(records(source, header))) <= len(damaged)
    except BadOffload:
        pass


def test_what_is_no_file_of_ours_is_told() -> None:
    good = encode_sequence_header(BYTES_CLASS, bytes(16))
    for data, told in (
        (b"SEQ\x05" + good[4:], "version 6"),
        (encode_sequence_header(LONG_CLASS, bytes(16)), "BytesWritable is read"),
        (recorded("files-record-data").replace(b"DefaultCodec", b"BZip2Codec__"), "compressed by"),
        (good[:-1], "cut short"),
    ):
        with pytest.raises(BadOffload, match=told):
            decode_sequence_header(io.BytesIO(data), BYTES_CLASS)
    header = decode_sequence_header(io.BytesIO(good), BYTES_CLASS)
    for data, told in (
        (b"\x7f\xff\xff\xff\0\0\0\x08", "a record of 2147483647 bytes"),
        (b"\0\0\0\x08\0\0\0\x09", "with a key of 9"),
        (b"\xff\xff\xff\xff" + b"x" * 16, "marks differ"),
        (encode_record(1, b"abc")[:-1], "cut short"),
        (b"\0\0", "cut short"),
    ):
        with pytest.raises(BadOffload, match=told):
            list(records(io.BytesIO(data), header))


@given(st.integers(0, 2**63 - 1))
def test_numbers_of_variable_length(number: int) -> None:
    assert read_vint(io.BytesIO(encode_vint(number))) == number


async def test_the_list_goes_on_after_a_key(tmp_path: Path) -> None:
    offloader = offloader_at(tmp_path)
    topics = ["a/b/persistent/t", "a/b-c/persistent/t", "a/b/persistent/t-2", "z/b/persistent/t"]
    for topic in topics:
        await offloaded(offloader, ClosedMemoryLedger(LEDGER_ID, [b"a"]), topic)
    (tmp_path / "a/b/persistent/t/somebody-elses").mkdir()
    found: list[str] = []
    after: str | None = ""
    while after is not None:
        page = await offloader.page(after, count_max=1)
        found += [one.key for one in page.objects]
        after = page.next_after
    assert sorted(found) == sorted(f"{topic}/{LEDGER_ID}-{UID}" for topic in topics)


async def test_refusals(tmp_path: Path) -> None:
    offloader = offloader_at(tmp_path)
    with pytest.raises(Misuse, match="open or empty"):
        await offloaded(offloader, ClosedMemoryLedger(1, []))
    for name in ("../../etc", "a//b", "a/./b", "/a"):
        with pytest.raises(Misuse, match="names no managed ledger"):
            await offloaded(offloader, ClosedMemoryLedger(1, [b"a"]), name)
    await offloaded(offloader, ClosedMemoryLedger(LEDGER_ID, [b"a"]))
    reader = await offloader.open(LEDGER_ID, ID, STORED)
    with pytest.raises(EntryNotFound):
        await reader.read(0, 1)
    with pytest.raises(Misuse):
        await reader.read(1, 0)
    await reader.close()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises((OffloadUnavailable, OffloadRefused)):
        await offloaded(offloader, ClosedMemoryLedger(1, [b"a"]), "file/b")


def test_only_mounted_file_systems() -> None:
    made = make_offloader({"managedLedgerOffloadDriver": "filesystem", "fileSystemURI": "file:///var/lib/x%20y"})
    assert made.driver == "filesystem"
    assert made.stored_metadata() == {"storageBasePath": "file:///var/lib/x%20y"}
    with pytest.raises(SettingError, match="fileSystemURI must be set for the driver filesystem"):
        make_offloader({"managedLedgerOffloadDriver": "filesystem"})
    for uri in ("hdfs://127.0.0.1:9000", "relative", "file:relative"):
        with pytest.raises(SettingError, match="only file systems that are mounted"):
            make_offloader({"managedLedgerOffloadDriver": "filesystem", "fileSystemURI": uri})


async def test_everything_is_on_the_disk_in_the_order_in_which_it_is_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data, then the index, then their directory; its name, then the directory of that."""
    synced: list[str] = []
    sync = os.fsync

    def watched(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}").removeprefix(f"{tmp_path / TOPIC}"))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    await offloaded(offloader_at(tmp_path), ClosedMemoryLedger(LEDGER_ID, [b"a"]))
    unfinished = f"/{LEDGER_ID}-{UID}.unfinished"
    assert synced == [f"{unfinished}/data", f"{unfinished}/index", unfinished, ""]


async def test_reads_of_one_directory_take_turns(tmp_path: Path) -> None:
    """They share one place in the file."""
    offloader = offloader_at(tmp_path)
    await offloaded(offloader, ClosedMemoryLedger(LEDGER_ID, [b"a", b"b"]))
    reader = await offloader.open(LEDGER_ID, ID, STORED)
    assert isinstance(reader, FileLedgerReader)
    begun: list[int] = []
    go_on = threading.Event()
    read = reader._reader.read

    def watched(first_entry_id: int, last_entry_id: int, size_bytes_max: int) -> list[bytes]:
        begun.append(first_entry_id)
        go_on.wait(10)
        return read(first_entry_id, last_entry_id, size_bytes_max)

    reader._reader.read = watched  # type: ignore[method-assign] # Only to look.
    reads = [asyncio.create_task(reader.read(number, number)) for number in (0, 1)]
    while not begun:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.05)
    assert begun == [0]
    go_on.set()
    assert await asyncio.gather(*reads) == [[b"a"], [b"b"]]
    await reader.close()


async def test_an_entry_that_the_data_lack_is_told(tmp_path: Path) -> None:
    """The next one does not take its place."""
    ledger = ClosedMemoryLedger(LEDGER_ID, [b"a", b"b", b"c"])
    writer = MapFileWriter(tmp_path / "map", ID, ledger.described())
    writer.append(0, [b"a"])
    writer.append(2, [b"c"])
    writer.finish()
    reader = MapFileReader(tmp_path / "map")
    assert reader.read(0, 0, 100) == [b"a"]
    with pytest.raises(BadOffload, match="entry 1 is missing"):
        reader.read(0, 2, 100)
    reader.close()


async def test_every_128th_record_is_in_the_index_as_hadoop_has_it(tmp_path: Path) -> None:
    """The ledger's metadata are the first."""
    await offloaded(offloader_at(tmp_path), ClosedMemoryLedger(LEDGER_ID, [b"a"] * 300))
    with (tmp_path / TOPIC / f"{LEDGER_ID}-{UID}" / "index").open("rb") as file:
        header = decode_sequence_header(file, LONG_CLASS)
        assert [key for key, _ in records(file, header)] == [-1, 127, 255]


@pytest.mark.parametrize("stored", [{}, STORED])
async def test_what_is_not_there_can_be_deleted(tmp_path: Path, stored: dict[str, str]) -> None:
    """By its name, and when it is looked for: whoever repeats a deletion finds nothing left."""
    offloader = offloader_at(tmp_path)
    (tmp_path / "another").mkdir()  # An empty folder counts as not mounted.
    await offloader.delete(LEDGER_ID, ID, stored)
    await offloaded(offloader, ClosedMemoryLedger(LEDGER_ID, [b"a"]))
    for _ in range(2):
        await offloader.delete(LEDGER_ID, ID, stored)
    assert (await offloader.page()).objects == []


async def test_a_read_ends_with_the_entry_that_has_reached_its_bytes(tmp_path: Path) -> None:
    ledger = ClosedMemoryLedger(LEDGER_ID, [b"123456"] * 3)
    await offloaded(offloader_at(tmp_path), ledger)
    reader = MapFileReader(tmp_path / TOPIC / f"{LEDGER_ID}-{UID}")
    assert [len(reader.read(0, 2, size_bytes_max)) for size_bytes_max in (1, 10, 11, 20, 21, 1_000)] == [
        1,
        1,
        2,
        2,
        3,
        3,
    ]
    reader.close()


@pytest.mark.parametrize("entries", [[(-1, 5), (-1, 9)], [(-1, 5), (3, 5)], [(-1, 9), (3, 5)], [(0, 5)], [(-1, -1)]])
def test_an_index_whose_numbers_do_not_rise_is_damaged(tmp_path: Path, entries: list[tuple[int, int]]) -> None:
    folder = tmp_path / "map"
    writer = MapFileWriter(folder, ID, ClosedMemoryLedger(LEDGER_ID, [b"a"]).described())
    writer.append(0, [b"a"])
    writer.finish()
    index = encode_sequence_header(LONG_CLASS, ID.bytes)
    index += b"".join(encode_record(key, long_value(position)) for key, position in entries)
    (folder / "index").write_bytes(index)
    with pytest.raises(BadOffload, match="an index"):
        MapFileReader(folder)
