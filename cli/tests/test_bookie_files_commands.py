"""The commands that read a bookie's files: those of a real Apache bookie, and ours."""

from __future__ import annotations

import asyncio
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest
from magnetar.bookie.app import start_bookie
from magnetar.bookie.local import LocalBookies
from magnetar.bookie.settings import BookieSettings, DiskSettings
from magnetar.bookie.storage.entry_log_format import encode_header
from magnetar.cli.command_line import application
from magnetar.core.clock import SystemClock
from magnetar.core.errors import MagnetarError
from magnetar.ledger.api import LedgerOptions
from magnetar.ledger.client import BookKeeperClient
from magnetar.metadata.memory import MemoryMetadataStore
from typer.testing import CliRunner, Result

RECORDED = Path(__file__).parent / "recorded" / "apache_bookie_4.17.2.tar.gz"
"""The directories of Apache's bookie after `bookkeeper shell simpletest -n 20` had run twice, on ledgers 0 and 1."""
APACHE_JOURNAL = "1a1fc8d73d6.txn"
SIMPLE_TEST_KEY = "850bf1071c5e3d8c24235676f8816ae0cbe2f14f"
"""SHA-1 of "ledger": the master key of a ledger without a password."""


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BOOKIE_CONF", "PULSAR_BOOKKEEPER_CONF", "MAGNETAR_LOG"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def apache(tmp_path: Path) -> Path:
    with tarfile.open(RECORDED) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


@pytest.fixture
async def ours(tmp_path: Path) -> Path:
    """A bookie's directories with ledger 0 of 30 entries, fenced ledger 1 of 1 entry, and what is in the journal."""
    settings = BookieSettings(
        journal_directories=(tmp_path / "journal",),
        ledger_directories=(tmp_path / "ledgers",),
        bookie_id="here",
        serve_tcp=False,
        disk=DiskSettings(usage_threshold=1.0, usage_low_water=0.99),
    )
    store = MemoryMetadataStore()
    bookie = await start_bookie(settings, store, SystemClock())
    client = BookKeeperClient(store, LocalBookies({"here": bookie.bookie}))
    await write(client, 30, close=True)
    await write(client, 1, close=False)
    await (await client.open(1, recover=True)).close()
    await client.close()
    await bookie.close()
    await store.close()
    return tmp_path


class Listener:
    def __init__(self) -> None:
        self.heard = asyncio.Event()

    def confirmed(self, ledger_id: int, last_add_confirmed: int) -> None:
        self.heard.set()

    def failed(self, ledger_id: int, error: MagnetarError) -> None:
        raise AssertionError(error)


async def write(client: BookKeeperClient, entries: int, *, close: bool) -> None:
    listener = Listener()
    writer = await client.create(LedgerOptions(), listener)
    writer.append([b"entry %d \xff" % number for number in range(entries)])
    await listener.heard.wait()
    if close:
        await writer.close()


def run(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(application, ["bookie", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


def rows(*arguments: object, code: int = 0) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run(*arguments, "--json", code=code).stdout)
    return found


def test_apaches_journal(apache: Path) -> None:
    file = apache / "journal" / "current" / APACHE_JOURNAL
    found = rows("read-journal", file)
    assert [row["kind"] for row in found] == (["master-key"] + 20 * ["entry"]) * 2
    first = found[1]
    assert (first["offset"], first["ledger_id"], first["entry_id"], first["last_add_confirmed"]) == (556, 0, 0, -1)
    assert (first["size_bytes"], first["digest"]) == (136, "CRC32C")
    assert [row["entry_id"] for row in found if row["ledger_id"] == 1] == [None, *range(20)]
    assert "version 5, without checksums; ends cleanly" in run("read-journal", file).stderr
    # Also by its id, and only a part of it.
    some = rows("read-journal", "1a1fc8d73d6", "--journal", apache / "journal", "--ledger", 1, "--entry", 7)
    assert len(some) == 1
    at = some[0]["offset"]
    assert rows("read-journal", file, "--from", at)[0]["entry_id"] == 7


def test_apaches_entry_log(apache: Path) -> None:
    found = rows("read-entry-log", "0", "--ledgers", apache / "ledgers")
    assert [(row["ledger_id"], row["entry_id"]) for row in found] == [(n, e) for n in (0, 1) for e in range(20)]
    assert {row["digest"] for row in found} == {"CRC32C"}
    assert found[1]["offset"] == 1168
    shown = run("read-entry-log", apache / "ledgers" / "current" / "0.log", "--entry", 0, "--ledger", 0, "-f", "hex")
    assert "    00000000  53 53 58 56 4e 4a 48 50 44 51 44 58 56 43 52 41  SSXVNJHPDQDXVCRA" in shown.stdout
    assert "it has no ledgers map" in run("read-entry-log", apache / "ledgers" / "current" / "0.log", "--map").stderr


def test_apaches_index_is_read_and_left_as_it_is(apache: Path) -> None:
    before = sorted((path, path.read_bytes()) for path in apache.rglob("*") if path.is_file())
    found = rows("read-index", "--ledgers", apache / "ledgers")
    assert [(row["ledger_id"], row["fenced"], row["master_key"]) for row in found] == [
        (0, False, SIMPLE_TEST_KEY),
        (1, False, SIMPLE_TEST_KEY),
    ]
    entries = rows("list-entries", 1, "--ledgers", apache / "ledgers", "--check")
    assert [(row["entry_id"], row["log_id"], row["problem"]) for row in entries] == [(e, 0, "") for e in range(20)]
    assert sorted((path, path.read_bytes()) for path in apache.rglob("*") if path.is_file()) == before


def test_apaches_marks_and_files(apache: Path) -> None:
    directories = ("--journal", apache / "journal", "--ledgers", apache / "ledgers")
    mark = rows("last-mark", "--ledgers", apache / "ledgers")[0]
    assert (mark["file"], mark["offset"], mark["journal"]) == (APACHE_JOURNAL, 163840, 0)
    kinds = {row["kind"] for row in rows("list-files", *directories)}
    assert kinds == {"journal", "entry-log", "index", "cookie", "mark", "other"}
    assert [Path(row["path"]).name for row in rows("list-files", *directories, "--kind", "journal")] == [APACHE_JOURNAL]
    usage = rows("disk-usage", *directories)
    assert [row["journal_bytes"] for row in usage] == [200_000, 0]
    assert [row["entry_log_bytes"] for row in usage] == [0, 6624]


def test_the_settings_file_tells_where_things_are(apache: Path) -> None:
    conf = apache / "bookkeeper.conf"
    conf.write_text(f"journalDirectory={apache}/journal\nledgerDirectories={apache}/ledgers\nzkServers=x:1\n")
    assert rows("last-mark", "--conf", conf)[0]["offset"] == 163840
    conf.write_text("ledgerDirectory=x\n")
    assert "did you mean 'ledgerDirectories'?" in run("last-mark", "--conf", conf, code=2).stderr


def test_our_files(ours: Path) -> None:
    directories = ("--journal", ours / "journal", "--ledgers", ours / "ledgers")
    journal = rows("list-files", *directories, "--kind", "journal")[0]["path"]
    found = rows("read-journal", journal)
    assert sorted({row["kind"] for row in found}) == ["entry", "fence", "master-key"]
    assert [row["entry_id"] for row in found if row["kind"] == "entry" and row["ledger_id"] == 0] == list(range(30))
    text = run("read-journal", journal, "--entry", 3, "--format", "text")
    assert "    entry 3 �" in text.stdout
    assert "with checksums; ends cleanly" in text.stderr
    offset = found[5]["offset"]
    assert Path(journal).read_bytes()[offset + 4 :][:16] == bytes(7) + b"\0" + bytes(7) + bytes([found[5]["entry_id"]])
    index = {row["ledger_id"]: row for row in rows("read-index", "--ledgers", ours / "ledgers")}
    assert index[1]["fenced"] is True
    assert rows("read-index", 0, "--ledgers", ours / "ledgers") == [index[0]]
    assert len(rows("list-entries", 0, "--ledgers", ours / "ledgers", "--check")) == 30


def test_a_damaged_journal_is_named(ours: Path) -> None:
    path = Path(
        rows("list-files", "--journal", ours / "journal", "--ledgers", ours / "ledgers", "--kind", "journal")[0]["path"]
    )
    data = bytearray(path.read_bytes())
    at = data.find(b"entry 3 ")
    data[at] ^= 1
    path.write_bytes(data)
    result = run("read-journal", path, code=1)
    assert "DAMAGED at 512: the group from 512" in result.stderr


def test_a_damaged_last_group_is_no_torn_end(ours: Path) -> None:
    """A start refuses it. Before, this said of the same file that nobody was told it is safe."""
    listed = rows("list-files", "--journal", ours / "journal", "--ledgers", ours / "ledgers", "--kind", "journal")
    path = Path(listed[0]["path"])
    last = rows("read-journal", path)[-1]
    data = bytearray(path.read_bytes())
    data[last["offset"] + 4] ^= 1
    path.write_bytes(data)
    result = run("read-journal", path, code=1)
    assert re.search(r"DAMAGED at \d+: the group from \d+ .*, yet all of it was written", result.stderr)
    assert "nobody was told" not in result.stderr


def test_damaged_entries_are_named_and_the_next_ones_read(ours: Path) -> None:
    path = ours / "ledgers" / "current" / "0.log"
    data = bytearray(path.read_bytes())
    payload = data.find(b"entry 5 ")
    data[payload] ^= 1
    size_word = data.find(b"entry 9 ") - 36 - 4
    data[size_word : size_word + 4] = b"\x7f\0\0\0"
    path.write_bytes(data)
    result = run("read-entry-log", path, "--ledger", 0, code=1)
    assert "DAMAGED at" in result.stderr
    assert f"0.log: DAMAGED at {payload - 36}" in result.stderr
    assert "the CRC32C digest is wrong" in result.stderr
    assert f"0.log: DAMAGED at {size_word}, 49 bytes: a size of 2130706432 bytes" in result.stderr
    found = [row for row in rows("read-entry-log", path, "--ledger", 0, code=1) if row["kind"] == "entry"]
    assert [row["entry_id"] for row in found] == [number for number in range(30) if number not in (5, 9)]
    damaged = rows("list-entries", 0, "--ledgers", ours / "ledgers", "--check", code=1)
    assert 9 in [row["entry_id"] for row in damaged if row["problem"]]


def test_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "1.log"
    other.write_bytes(b"nothing")
    assert "is no entry log" in run("read-entry-log", other, code=1).stderr
    wrong = run("read-journal", other, code=1).stderr
    assert "is no journal file" in wrong
    assert "`magnetar bookie list-files`" in wrong
    for command in ("read-journal", "read-entry-log"):
        # Neither a file, nor are there directories in which one of this name could be.
        assert "no file nosuch.txn; " in run(command, "nosuch.txn", code=2).stderr
    other.write_bytes(encode_header())
    assert rows("read-entry-log", other) == []
    assert "is no directory" in run("last-mark", "--ledgers", tmp_path / "none", code=2).stderr
    assert "no file 5" in run("read-entry-log", "5", "--ledgers", _empty_bookie(tmp_path), code=2).stderr
    assert "there is no index" in run("read-index", "--ledgers", _empty_bookie(tmp_path), code=1).stderr


def _empty_bookie(folder: Path) -> Path:
    (folder / "empty" / "current").mkdir(parents=True, exist_ok=True)
    return folder / "empty"


def test_columns_without_a_terminal_are_divided_by_tabs(apache: Path) -> None:
    lines = run("last-mark", "--ledgers", apache / "ledgers").stdout.splitlines()
    assert lines[0] == "journal\tfile\toffset\tledger directory"
    assert lines[1].startswith(f"0\t{APACHE_JOURNAL}\t163840\t")


def test_what_fails_before_its_first_row_has_no_table(tmp_path: Path) -> None:
    refused = run("list-files", "--ledgers", tmp_path / "missing", "--journal", tmp_path / "missing", code=2)
    assert refused.stdout == ""
    assert "is no directory" in refused.stderr
