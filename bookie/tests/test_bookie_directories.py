"""Several journal and ledger directories, laid out as BookKeeper's DbLedgerStorage does it."""

from __future__ import annotations

import asyncio
import shutil
import struct
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from magnetar.bookie.app import RunningBookie
from magnetar.bookie.cookie import InvalidCookie, decode_cookie
from magnetar.bookie.journal import files as journal_files
from magnetar.bookie.journal import format as journal_format
from magnetar.bookie.journal.replay import JournalReplay
from magnetar.bookie.settings import BookieSettings, StorageSettings
from magnetar.bookie.storage import entry_log_format
from magnetar.bookie.storage.directories import decode_mark, open_directories
from magnetar.bookie.storage.index_api import IndexMissing
from magnetar.core.disk import SystemDisk
from magnetar.core.errors import SettingError
from magnetar.core.limits import MIB
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.wire.bookkeeper.codes import BookieCode
from magnetar.wire.bookkeeper.entry import EntryCodec

StartBookie = Callable[..., Awaitable[RunningBookie]]
DISK = SystemDisk()
LEDGERS = range(12)


def stored(ledger_id: int) -> list[bytes]:
    payloads = [b"%d:%d" % (ledger_id, entry_id) for entry_id in range(5)]
    return EntryCodec(ledger_id, "CRC32C").encode_many(0, -1, 0, payloads)


async def add_all(running: RunningBookie) -> None:
    codes: list[int] = []
    done = asyncio.Event()

    def told(code: int, ledger_id: int, entry_ids: Sequence[int]) -> None:
        del ledger_id, entry_ids
        codes.append(code)
        if len(codes) == len(LEDGERS):
            done.set()

    for ledger_id in LEDGERS:
        key = EntryCodec(ledger_id, "CRC32C").master_key
        running.bookie.add_entries(ledger_id, key, range(5), stored(ledger_id), 0, told)
    await done.wait()
    assert set(codes) == {BookieCode.EOK}


async def read_all(running: RunningBookie) -> None:
    for ledger_id in LEDGERS:
        assert await running.bookie.read_run(ledger_id, 0, 10, MIB) == stored(ledger_id)
    mixed = [(ledger_id, entry_id) for entry_id in range(5) for ledger_id in LEDGERS]
    found = await running.bookie.read_entries(mixed)
    assert found == [stored(ledger_id)[entry_id] for ledger_id, entry_id in mixed]


@pytest.fixture
def changes(tmp_path: Path) -> dict[str, tuple[Path, ...]]:
    return {
        "journal_directories": (tmp_path / "j0", tmp_path / "j1"),
        "ledger_directories": (tmp_path / "l0", tmp_path / "l1", tmp_path / "l2"),
    }


async def test_ledgers_are_spread_by_their_ids(
    start: StartBookie, changes: dict[str, tuple[Path, ...]], tmp_path: Path
) -> None:
    running = await start(**changes)
    await add_all(running)
    await read_all(running)
    for index in range(2):
        (file_id,) = journal_files.list_files(DISK, tmp_path / f"j{index}/current")
        groups = JournalReplay(DISK, tmp_path / f"j{index}/current", (file_id, 0), synced=True).groups()
        ledgers = {journal_format.record_ids(record)[0] for group in groups for record in group}
        assert ledgers == {ledger_id for ledger_id in LEDGERS if ledger_id % 2 == index}
    await running.close()
    for index in range(3):
        current = tmp_path / f"l{index}/current"
        log = (current / "0.log").read_bytes()
        offset, _ = entry_log_format.decode_header(log)
        ledgers = set(entry_log_format.decode_ledgers_map(log[offset:]))
        assert ledgers == {ledger_id for ledger_id in LEDGERS if ledger_id % 3 == index}
        marks = [decode_mark((current / f"lastMark.{journal}").read_bytes()) for journal in range(2)]
        assert min(marks) > (0, 0)
        assert not (current / "lastMark").exists()
    running = await start(**changes)
    await read_all(running)
    assert await running.bookie.entry_ids(7) == list(range(5))


async def test_the_cookie_names_them_all(
    start: StartBookie, changes: dict[str, tuple[Path, ...]], tmp_path: Path, store: MemoryMetadataStore
) -> None:
    await start(**changes, index_directories=(tmp_path / "i0", tmp_path / "i1", tmp_path / "i2"))
    node = await store.get("/ledgers/cookies/127.0.0.1:3181")
    assert node is not None
    cookie = decode_cookie(node.value)
    assert cookie.journalDir == f"{tmp_path}/j0,{tmp_path}/j1"
    assert cookie.ledgerDirs == f"3\t{tmp_path}/l0\t{tmp_path}/l1\t{tmp_path}/l2"
    assert cookie.indexDirs == f"3\t{tmp_path}/i0\t{tmp_path}/i1\t{tmp_path}/i2"
    for name in ("j0", "j1", "l0", "l1", "l2", "i0", "i1", "i2"):
        assert (tmp_path / name / "current/VERSION").read_bytes() == node.value
    assert (tmp_path / "i1/current/locations").is_dir()
    assert not (tmp_path / "l1/current/locations").exists()


@pytest.mark.parametrize(
    ("ledgers", "journals"), [("l0 l1", "j0 j1"), ("l0 l1 l2 l3", "j0 j1"), ("l1 l0 l2", "j0 j1"), ("l0 l1 l2", "j0")]
)
async def test_other_directories_are_refused(
    start: StartBookie, changes: dict[str, tuple[Path, ...]], tmp_path: Path, ledgers: str, journals: str
) -> None:
    await (await start(**changes)).close()
    others = {
        "ledger_directories": tuple(tmp_path / name for name in ledgers.split()),
        "journal_directories": tuple(tmp_path / name for name in journals.split()),
    }
    with pytest.raises(InvalidCookie, match=r"Directories.*put the old setting back, or drain"):
        await start(**others)
    await start(**changes)


async def test_one_lost_directory_is_refused(
    start: StartBookie, changes: dict[str, tuple[Path, ...]], tmp_path: Path
) -> None:
    await (await start(**changes)).close()
    shutil.rmtree(tmp_path / "l1")
    with pytest.raises(InvalidCookie, match=r"l1/current holds no cookie.*right disk"):
        await start(**changes)
    shutil.rmtree(tmp_path / "l2")
    with pytest.raises(InvalidCookie, match=r"l1/current and .*l2/current hold no cookie"):
        await start(**changes)


async def test_the_greatest_copy_of_a_mark_counts(settings: BookieSettings, tmp_path: Path) -> None:
    two = BookieSettings(
        journal_directories=settings.journal_directories, ledger_directories=(tmp_path / "a", tmp_path / "b")
    )
    directories = open_directories(two, DISK)
    assert directories.read_last_marks() == ((0, 0),)
    directories.write_last_marks(((5, 7),))
    (tmp_path / "a/current/lastMark").write_bytes(struct.pack(">qq", 5, 9))
    assert directories.read_last_marks() == ((5, 9),)
    # BookKeeper writes in place: a crash may have left an empty one.
    (tmp_path / "a/current/lastMark").write_bytes(b"")
    assert directories.read_last_marks() == ((5, 7),)


async def test_one_directory_that_takes_marks_is_enough(settings: BookieSettings, tmp_path: Path) -> None:
    two = BookieSettings(
        journal_directories=settings.journal_directories, ledger_directories=(tmp_path / "a", tmp_path / "b")
    )
    directories = open_directories(two, DISK)
    shutil.rmtree(tmp_path / "a/current")
    directories.write_last_marks(((5, 7),))
    assert (tmp_path / "b/current/lastMark").read_bytes()[:16] == struct.pack(">qq", 5, 7)
    shutil.rmtree(tmp_path / "b/current")
    with pytest.raises(FileNotFoundError):
        directories.write_last_marks(((5, 8),))


def test_settings_that_cannot_be(tmp_path: Path) -> None:
    one = (tmp_path / "one",)
    with pytest.raises(SettingError, match="ledgerDirectories"):
        BookieSettings(journal_directories=one, ledger_directories=())
    with pytest.raises(SettingError, match="ledgerDirectories"):
        BookieSettings(journal_directories=one, ledger_directories=(*one, *one))
    with pytest.raises(SettingError, match="indexDirectories"):
        BookieSettings(journal_directories=one, ledger_directories=(*one, tmp_path / "two"), index_directories=one)


def test_every_directory_gets_room_for_the_largest_entry() -> None:
    storage = StorageSettings(write_cache_bytes_max=64 * MIB)
    assert [storage.write_cache_share_bytes(count) for count in (1, 2, 20)] == [64 * MIB, 32 * MIB, 10_506_240]


@pytest.mark.parametrize("lost", ["locations", "ledgers"])
async def test_entry_logs_without_their_index_are_left_alone(
    start: StartBookie, tmp_path: Path, changes: dict[str, tuple[Path, ...]], lost: str
) -> None:
    first = await start(**changes)
    await add_all(first)
    await first.close()
    index = changes["ledger_directories"][0] / "current" / lost
    before = sorted(index.parent.iterdir())
    shutil.move(index, tmp_path / "elsewhere")
    with pytest.raises(IndexMissing, match=lost):
        await start(**changes)
    assert not index.exists(), "nothing may be made in its place: the next start would find that"
    shutil.move(tmp_path / "elsewhere", index)
    assert sorted(index.parent.iterdir()) == before
    await read_all(await start(**changes))


async def test_the_names_of_new_directories_are_durable(
    start: StartBookie, settings: BookieSettings, synced_names: set[Path]
) -> None:
    """A power cut would take all that is below a directory whose name is lost."""
    running = await start()
    await running.close()
    for directory in (*settings.journal_directories, *settings.ledger_directories):
        assert {directory.parent, directory, directory / "current"} <= synced_names
    for directory in settings.ledger_directories:
        assert {directory / "current" / "ledgers", directory / "current" / "locations"} <= synced_names


def test_a_directory_that_a_killed_start_has_made_is_made_durable(
    settings: BookieSettings, synced_names: set[Path]
) -> None:
    for directory in (*settings.journal_directories, *settings.ledger_directories):
        (directory / "current").mkdir(parents=True)
    open_directories(settings, DISK)
    for directory in (*settings.journal_directories, *settings.ledger_directories):
        assert directory / "current" in synced_names
