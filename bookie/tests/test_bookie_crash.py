"""kill -9 under load: what was acknowledged is there afterwards."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from magnetar.bookie.app import RunningBookie, start_bookie
from magnetar.bookie.checkpoint import Checkpointer
from magnetar.bookie.journal import files as journal_files
from magnetar.bookie.ledger_state import LedgerStates
from magnetar.bookie.replay import Replay
from magnetar.bookie.settings import BookieSettings, standalone_settings
from magnetar.bookie.storage.directories import open_directories
from magnetar.bookie.storage.index import open_rocksdb_index
from magnetar.bookie.storage.ledger_storage import open_storage
from magnetar.core.clock import SystemClock
from magnetar.core.disk import SystemDisk
from magnetar.core.limits import MIB
from magnetar.metadata.rocksdb import RocksdbMetadataStore
from magnetar.wire.bookkeeper.codes import BookieCode
from magnetar.wire.bookkeeper.entry import EntryCodec

CHILD = textwrap.dedent(
    """
    import asyncio, dataclasses, os, sys
    from pathlib import Path
    from magnetar.bookie.app import start_bookie
    from magnetar.bookie.settings import StorageSettings, standalone_settings
    from magnetar.core.clock import SystemClock
    from magnetar.metadata.rocksdb import RocksdbMetadataStore
    from magnetar.wire.bookkeeper.entry import EntryCodec

    async def main():
        directory = Path(sys.argv[1])
        small = StorageSettings(write_cache_bytes_max=12 << 20)
        settings = dataclasses.replace(standalone_settings(directory), storage=small)
        running = await start_bookie(settings, RocksdbMetadataStore(directory / "metadata"), SystemClock())
        await running.bookie.fence(99, EntryCodec(99, "CRC32C").master_key)
        os.write(1, b"fenced 99 0\\n")
        codecs = {ledger_id: EntryCodec(ledger_id, "CRC32C") for ledger_id in range(1, 6)}
        next_ids = dict.fromkeys(codecs, 0)
        def push(ledger_id):
            first = next_ids[ledger_id]
            next_ids[ledger_id] += 20
            payloads = [b"%d:%d" % (ledger_id, first + i) * 200 for i in range(20)]
            codec = codecs[ledger_id]
            entries = codec.encode_many(first, first - 1, 0, payloads)
            running.bookie.add_entries(ledger_id, codec.master_key, range(first, first + 20), entries, 0, done)
        def done(code, ledger_id, entry_ids):
            os.write(1, b"acked %d %d\\n" % (ledger_id, entry_ids[-1]) if code == 0 else b"error %d 0\\n" % code)
            push(ledger_id)
        for ledger_id in codecs:
            for _ in range(4):
                push(ledger_id)
        await asyncio.Event().wait()

    asyncio.run(main())
    """
)


@pytest.mark.slow
@pytest.mark.parametrize("lines", [30, 900])
async def test_what_was_acknowledged_survives_a_kill(tmp_path: Path, lines: int) -> None:
    acked = await asyncio.to_thread(run_and_kill, tmp_path, lines)
    assert acked.pop(99) == 0
    assert len(acked) == 5
    store = RocksdbMetadataStore(tmp_path / "metadata")
    running = await start_bookie(standalone_settings(tmp_path), store, SystemClock())
    for ledger_id, last in acked.items():
        codec = EntryCodec(ledger_id, "CRC32C")
        found: list[bytes] = []
        while len(found) <= last:
            found += await running.bookie.read_run(ledger_id, len(found), 1000, MIB)
        payloads = [codec.decode(entry, entry_id) for entry_id, entry in enumerate(found)]
        assert payloads == [b"%d:%d" % (ledger_id, entry_id) * 200 for entry_id in range(len(payloads))]
    codec = EntryCodec(99, "CRC32C")
    told: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    entries = codec.encode_many(0, -1, 0, [b"late"])
    running.bookie.add_entries(99, codec.master_key, [0], entries, 0, lambda code, *_: told.set_result(code))
    assert await told == BookieCode.EFENCED
    await running.close()
    await store.close()


def run_and_kill(directory: Path, lines: int) -> dict[int, int]:
    """Let a bookie acknowledge for this many lines, kill it; the last acknowledged entry of each ledger."""
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(directory)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    deadline = time.monotonic() + 60
    read = []
    for line in child.stdout:
        read.append(line)
        if len(read) == lines or time.monotonic() > deadline:
            child.kill()
    child.wait()
    child.stdout.close()
    acked: dict[int, int] = {}
    for line in read:
        if line.endswith(b"\n"):
            word, ledger_id, entry_id = line.split()
            assert word in (b"acked", b"fenced")
            acked[int(ledger_id)] = max(acked.get(int(ledger_id), 0), int(entry_id))
    return acked


@pytest.mark.slow
async def test_every_cut_of_the_last_journal_file_starts(tmp_path: Path) -> None:
    """As after a power failure: the journal of a running bookie is copied, cut anywhere, and replayed."""
    store = RocksdbMetadataStore(tmp_path / "metadata")
    settings = standalone_settings(tmp_path)
    running = await start_bookie(settings, store, SystemClock())
    codec = EntryCodec(1, "CRC32C")
    stored = codec.encode_many(0, -1, 0, [bytes([i]) * 700 for i in range(40)])
    for entry_id, entry in enumerate(stored):
        told: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        running.bookie.add_entries(
            1, codec.master_key, [entry_id], [entry], 0, lambda code, *_, at=told: at.set_result(code)
        )
        assert await told == BookieCode.EOK
    current = settings.journal_directories[0] / "current"
    (file_id,) = journal_files.list_files(SystemDisk(), current)
    name = f"{file_id:x}.txn"
    content = (current / name).read_bytes()
    end = running.parts.journals.marks()[0][1]
    await running.close()
    await store.close()
    # A disk writes sectors whole or not at all.
    for number, cut in enumerate(range(0, end, 17 * 512)):
        again = dataclasses.replace(
            settings,
            journal_directories=(tmp_path / f"j{number}",),
            ledger_directories=(tmp_path / f"l{number}",),
            bookie_id=f"cut:{number}",
        )
        (again.journal_directories[0] / "current").mkdir(parents=True)
        (again.journal_directories[0] / "current" / name).write_bytes(content[:cut].ljust(len(content), b"\0"))
        await check_cut(again, stored, whole=(cut - 512) // 4096)


async def check_cut(settings: BookieSettings, stored: list[bytes], whole: int) -> None:
    directories = open_directories(settings, SystemDisk())
    storage = open_storage(directories, settings.storage, open_rocksdb_index)
    states = LedgerStates(storage.load_state, storage.was_deleted)
    checkpointer = Checkpointer(storage, states, directories, 0, lambda _error: None)
    await Replay(directories, storage, states, checkpointer).run(synced=True)
    found = await storage.read_run(1, 0, 100, MIB)
    assert found == stored[: len(found)]
    assert abs(len(found) - max(0, whole)) <= 1
    checkpointer.close()
    storage.close()


@pytest.mark.parametrize("backups_max", [0, 2])
async def test_crashes_in_a_row_do_not_fill_the_disk(
    start: Callable[..., Awaitable[RunningBookie]],
    settings: BookieSettings,
    tmp_path_factory: pytest.TempPathFactory,
    backups_max: int,
) -> None:
    """Each start begins a journal file, which is as large as a whole step of it, also where nothing is written."""
    folder = settings.journal_directories[0].parent
    journal = dataclasses.replace(settings.journal, backups_max=backups_max)
    for _ in range(backups_max + 4):
        running = await start(journal=journal)
        killed = shutil.copytree(folder, tmp_path_factory.mktemp("killed") / "folder")
        await running.close()
        shutil.rmtree(folder)
        shutil.copytree(killed, folder)
    found = journal_files.list_files(SystemDisk(), settings.journal_directories[0] / "current")
    assert len(found) == backups_max + 1
