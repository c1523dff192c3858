"""A RocksDB database that a disk has damaged is refused; a torn end of its log is not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from magnetar.metadata.rocksdb import MetadataDamaged, RocksdbTree
from magnetar.metadata.rocksdb_files import (
    SYNCED_FILE,
    DatabaseDamaged,
    SyncedNumber,
    check_iterator,
    holds_database,
    noted_number,
    open_database,
    repair_database,
)
from rocksdict import Options

KEYS = 200


def options() -> Options:
    made = Options(raw_mode=True)
    made.create_if_missing(True)
    return made


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """200 synced puts, half of them in a table; copied as kill -9 leaves it."""
    database = open_database(tmp_path / "live", options())
    synced = SyncedNumber(tmp_path / "live")
    for number in range(KEYS):
        database[b"%03d" % number] = b"value" * 20
        if number == KEYS // 2:
            database.flush()
    database.flush_wal(True)
    synced.note(database.latest_sequence_number())
    shutil.copytree(tmp_path / "live", tmp_path / "crashed")
    database.close()
    synced.close()
    return tmp_path / "crashed"


def keys(directory: Path) -> int:
    database = open_database(directory, options())
    iterator = database.iter()
    iterator.seek_to_first()
    count = 0
    try:
        while iterator.valid():
            count += 1
            iterator.next()
        check_iterator(iterator)
    finally:
        del iterator
        database.close()
    return count


def one(directory: Path, pattern: str) -> Path:
    (path,) = directory.glob(pattern)
    return path


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_what_is_whole_opens(crashed: Path) -> None:
    assert noted_number(crashed) == KEYS
    assert keys(crashed) == KEYS


def test_a_torn_end_of_the_log_opens(crashed: Path) -> None:
    """Of what nobody was told is durable."""
    log = one(crashed, "*.log")
    log.write_bytes(log.read_bytes() + log.read_bytes()[:50])
    assert keys(crashed) == KEYS


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_flip_in_the_log_is_refused(crashed: Path, share: float) -> None:
    log = one(crashed, "*.log")
    flip(log, int(log.stat().st_size * share))
    with pytest.raises(DatabaseDamaged, match=f"{crashed} is damaged|{crashed} has lost"):
        keys(crashed)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_log_that_was_cut_is_refused(crashed: Path, share: float) -> None:
    log = one(crashed, "*.log")
    log.write_bytes(log.read_bytes()[: int(log.stat().st_size * share)])
    with pytest.raises(DatabaseDamaged, match=r"has lost its newest .* changes: 200 were durable"):
        keys(crashed)


@pytest.mark.parametrize("pattern", ["*.log", "*.sst", "MANIFEST-*", "CURRENT"])
def test_a_missing_file_is_refused(crashed: Path, pattern: str) -> None:
    one(crashed, pattern).unlink()
    with pytest.raises(DatabaseDamaged, match=str(crashed)):
        keys(crashed)


def test_without_current_nothing_is_made_anew(crashed: Path) -> None:
    """RocksDB would, where there is no log, and delete the tables."""
    (crashed / "CURRENT").unlink()
    one(crashed, "*.log").unlink()
    with pytest.raises(DatabaseDamaged, match="CURRENT is missing"):
        keys(crashed)
    assert one(crashed, "*.sst").stat().st_size > 0


def test_a_block_that_cannot_be_read_is_no_end(crashed: Path) -> None:
    flip(one(crashed, "*.sst"), 100)
    with pytest.raises(Exception, match="block checksum mismatch"):
        keys(crashed)


def test_a_repair_keeps_what_can_be_read(crashed: Path) -> None:
    log = one(crashed, "*.log")
    flip(log, log.stat().st_size // 2)
    repair_database(crashed, options())
    assert KEYS // 2 < keys(crashed) < KEYS


def test_a_damaged_note_is_left_out(crashed: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = crashed / SYNCED_FILE
    content = path.read_bytes()
    for at in range(len(content)):
        flip(path, at)
        assert noted_number(crashed) == 0
        path.write_bytes(content)
    assert f"{path} is damaged" in caplog.text
    path.unlink()
    assert keys(crashed) == KEYS


async def test_damaged_metadata_says_what_to_do(crashed: Path, tmp_path: Path) -> None:
    (tmp_path / "metadata").mkdir()
    crashed.rename(tmp_path / "metadata" / "rocksdb")
    log = one(tmp_path / "metadata" / "rocksdb", "*.log")
    flip(log, log.stat().st_size // 2)
    with pytest.raises(MetadataDamaged, match=r"metadata/rocksdb is damaged: .*Put a copy of the whole directory back"):
        RocksdbTree(tmp_path / "metadata")


def test_a_note_that_is_missing_beside_data_is_told(crashed: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert keys(crashed) == KEYS
    assert not caplog.text
    (crashed / SYNCED_FILE).unlink()
    assert keys(crashed) == KEYS
    assert f"{crashed / SYNCED_FILE} is missing" in caplog.text


def test_whether_a_directory_holds_a_database(crashed: Path) -> None:
    assert holds_database(crashed)
    (crashed / "CURRENT").unlink()
    assert holds_database(crashed), "damage is not for a new database to cover"
    empty = crashed / "empty"
    assert not holds_database(empty)
    empty.mkdir()
    (empty / "LOCK").touch()
    (empty / "LOG").touch()
    assert not holds_database(empty)
