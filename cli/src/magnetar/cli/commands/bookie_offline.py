"""`magnetar bookie read-journal|read-entry-log|read-index|list-entries|list-files|disk-usage|last-mark`.

They read a bookie's files: no bookie, no cluster is asked, and nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from magnetar.cli.commands.options import (
    BookieConfOption,
    JsonOption,
    bookie_folders,
)
from magnetar.cli.commands.output import (
    BodyFormat,
    Column,
    body_lines,
    complain,
    human_time,
    note,
    show_rows,
    warn,
)
from magnetar.core.exit_codes import EXIT_FAILED
from magnetar.core.text import human_bytes

if TYPE_CHECKING:
    from magnetar.cli.tools.entry_log_reading import EntryLogReading, LogRecord
    from magnetar.cli.tools.journal_reading import JournalReading, JournalRecord

T = TypeVar("T")

JournalsOption = Annotated[
    list[Path] | None, typer.Option("--journal", help="Journal directory. May be repeated.", rich_help_panel="Settings")
]
LedgersOption = Annotated[
    list[Path] | None, typer.Option("--ledgers", help="Ledger directory. May be repeated.", rich_help_panel="Settings")
]
FormatOption = Annotated[BodyFormat, typer.Option("--format", "-f", help="How to show what entries hold.")]
OneLedgerOption = Annotated[int | None, typer.Option("--ledger", "-L", min=0, help="Only this ledger.")]
OneEntryOption = Annotated[int | None, typer.Option("--entry", "-e", min=0, help="Only entries with this id.")]
LedgerArgument = Annotated[int, typer.Argument(min=0, help="The ledger's id.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryRow:
    """One record of a journal or an entry log, as it is printed."""

    offset: int
    kind: str
    ledger_id: int | None
    entry_id: int | None
    last_add_confirmed: int | None
    size_bytes: int
    digest: str
    problem: str = ""
    body: tuple[str, ...] = ()


ROW_COLUMNS = (
    Column("offset", lambda row: row.offset, right=True),
    Column("kind", lambda row: row.kind),
    Column("ledger", lambda row: row.ledger_id, right=True),
    Column("entry", lambda row: row.entry_id, right=True),
    Column("LAC", lambda row: row.last_add_confirmed, right=True),
    Column("bytes", lambda row: row.size_bytes, right=True),
    Column("digest", lambda row: row.problem or row.digest),
)


def read_journal(
    file: Annotated[str, typer.Argument(help="A journal file: its path, its name, or its id in hexadecimal.")],
    start: Annotated[int, typer.Option("--from", min=0, help="File offset to begin at, as last-mark says.")] = 0,
    ledger: OneLedgerOption = None,
    entry: OneEntryOption = None,
    body_format: FormatOption = BodyFormat.NONE,
    conf: BookieConfOption = None,
    journal: JournalsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the records of a journal file: entries, master keys, fences, explicit LACs.

    Reads journals of Magnetar and of Apache BookKeeper. How the file ends is told on standard error;
    a group that was being written when the power went is not shown, as nobody was told that it is safe.
    Exit code: 0 done, 1 acknowledged records are damaged, 2 wrong options or settings.

    [dim]Examples:[/]
      magnetar bookie read-journal /data/journal/current/19a2c3d4e5f.txn
      magnetar bookie read-journal --conf bookkeeper.conf 19a2c3d4e5f \\
        --ledger 12 --format hex
    """
    from magnetar.cli.commands.running import guarded
    from magnetar.cli.tools.bookie_files import find_file
    from magnetar.cli.tools.journal_reading import JournalReading

    with guarded():
        path = find_file(file, lambda: bookie_folders(conf, journal, None).journal_files())
        reading = JournalReading(path, start)
        rows = _journal_rows(reading, ledger, entry, body_format)
        _show_entries(rows, as_json)
    _tell_ending(reading)


def _journal_rows(
    reading: JournalReading, ledger: int | None, entry: int | None, body_format: BodyFormat
) -> Iterator[EntryRow]:
    for found in reading.records():
        if ledger not in (None, found.ledger_id) or entry not in (None, found.entry_id):
            continue
        yield _journal_row(found, body_format)


def _journal_row(found: JournalRecord, body_format: BodyFormat) -> EntryRow:
    is_entry = found.entry_id >= 0
    return EntryRow(
        offset=found.offset,
        kind=found.kind,
        ledger_id=found.ledger_id,
        entry_id=found.entry_id if is_entry else None,
        last_add_confirmed=_last_add_confirmed(found.record) if is_entry else None,
        size_bytes=len(found.record),
        digest=found.digest,
        body=tuple(body_lines(_payload(found.record, found.digest) if is_entry else found.record[16:], body_format)),
    )


def _tell_ending(reading: JournalReading) -> None:
    from magnetar.bookie.journal.format import Ending

    scan = reading.scan
    what = f"version {scan.version}, {'with' if scan.has_marks else 'without'} checksums"
    if reading.damage:
        complain(f"{what}; DAMAGED at {scan.end_offset}: {reading.damage}")
        raise typer.Exit(EXIT_FAILED)
    if scan.ending is Ending.CLEAN:
        note(f"{what}; ends cleanly at {scan.end_offset}")
    else:
        warn(f"{what}; ends at {scan.end_offset}: {scan.problem}; nobody was told that what follows is safe")


def read_entry_log(
    file: Annotated[str, typer.Argument(help="An entry log: its path, its name, or its id in hexadecimal.")],
    ledger: OneLedgerOption = None,
    entry: OneEntryOption = None,
    start: Annotated[int, typer.Option("--from", min=0, help="File position to begin at.")] = 0,
    end: Annotated[int | None, typer.Option("--to", min=0, help="File position to end before.")] = None,
    ledgers_map: Annotated[
        bool, typer.Option("--map", help="Only what the log says about itself: bytes of each ledger.")
    ] = False,
    body_format: FormatOption = BodyFormat.NONE,
    conf: BookieConfOption = None,
    ledgers: LedgersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the entries of an entry log, or its ledgers map.

    Reads entry logs of Magnetar and of Apache BookKeeper. A damaged record is named with its place, and reading goes
    on with the next whole entry.
    Exit code: 0 done, 1 records are damaged, 2 wrong options or settings.

    [dim]Examples:[/]
      magnetar bookie read-entry-log /data/ledgers/current/0.log --ledger 12
      magnetar bookie read-entry-log --conf bookkeeper.conf 1f --map --json
    """
    from magnetar.cli.commands.running import guarded
    from magnetar.cli.tools.bookie_files import find_file
    from magnetar.cli.tools.entry_log_reading import EntryLogReading

    damaged: list[str] = []
    with guarded():
        path = find_file(file, lambda: bookie_folders(conf, None, ledgers).entry_logs())
        with EntryLogReading(path) as log:
            if ledgers_map:
                _show_map(log, as_json)
                return
            rows = _log_rows(log, (start, end), (ledger, entry), body_format, damaged)
            _show_entries(rows, as_json)
    for place in damaged:
        complain(place)
    if damaged:
        raise typer.Exit(EXIT_FAILED)


def _log_rows(
    log: EntryLogReading,
    stretch: tuple[int, int | None],
    wanted: tuple[int | None, int | None],
    body_format: BodyFormat,
    damaged: list[str],
) -> Iterator[EntryRow]:
    ledger, entry = wanted
    for found in log.records(*stretch):
        is_wanted = ledger in (None, found.ledger_id) and entry in (None, found.entry_id)
        if found.problem and (is_wanted or not found.entry):
            damaged.append(f"{log.path.name}: DAMAGED at {found.position}, {found.size_bytes} bytes: {found.problem}")
        elif not is_wanted:
            continue
        yield _log_row(found, body_format)


def _log_row(found: LogRecord, body_format: BodyFormat) -> EntryRow:
    from magnetar.bookie.storage.entry_log_format import digest_kind
    from magnetar.cli.tools.journal_reading import DIGESTS

    digest = DIGESTS[digest_kind(found.entry)] if found.entry else ""
    return EntryRow(
        offset=found.position,
        kind=found.kind,
        ledger_id=found.ledger_id if found.entry else None,
        entry_id=found.entry_id if found.entry else None,
        last_add_confirmed=_last_add_confirmed(found.entry) if found.entry else None,
        size_bytes=found.size_bytes,
        digest=digest,
        problem=found.problem,
        body=tuple(body_lines(_payload(found.entry, digest), body_format)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MapRow:
    """One ledger in an entry log's map."""

    ledger_id: int
    size_bytes: int


def _show_map(log: EntryLogReading, as_json: bool) -> None:
    rows = [MapRow(ledger_id=ledger, size_bytes=size) for ledger, size in sorted(log.ledgers_map().items())]
    columns = (
        Column("ledger", lambda row: row.ledger_id, right=True),
        Column("bytes", lambda row: row.size_bytes, right=True),
    )
    show_rows(rows, columns, as_json=as_json, none="the log was not closed: it has no ledgers map")


def _show_entries(rows: Iterator[EntryRow], as_json: bool) -> None:
    if as_json:
        show_rows(rows, ROW_COLUMNS, as_json=True)
        return
    # Journals and logs have millions of records: columns that need not know all rows before the first is shown.
    typer.echo(_entry_line(*(column.title for column in ROW_COLUMNS)))
    for row in rows:
        cells = (column.text(row) for column in ROW_COLUMNS)
        typer.echo(_entry_line(*("" if cell is None else str(cell) for cell in cells)))
        for line in row.body:
            typer.echo(f"    {line}")


def _entry_line(*cells: str) -> str:
    widths = (12, -12, 12, 10, 10, 9)
    parts = [f"{cell:{'<' if width < 0 else '>'}{abs(width)}}" for cell, width in zip(cells, widths, strict=False)]
    return "  ".join([*parts, cells[-1]]).rstrip()


def _payload(entry: bytes, digest: str) -> bytes:
    from magnetar.wire.bookkeeper.entry import DIGEST_BYTES, HEADER_BYTES

    return entry[HEADER_BYTES + (DIGEST_BYTES[digest] if digest else 0) :]


def _last_add_confirmed(entry: bytes) -> int:
    from magnetar.wire.bookkeeper.entry import header

    return header(entry)[2]


def read_index(
    ledger: Annotated[int | None, typer.Argument(min=0, help="One ledger; without, all of them.")] = None,
    conf: BookieConfOption = None,
    ledgers: LedgersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a bookie's index keeps about ledgers: fence, master key, explicit LAC.

    Reads the RocksDB databases of Magnetar and of Apache BookKeeper's DbLedgerStorage.

    [dim]Examples:[/]
      magnetar bookie read-index --ledgers /data/ledgers
      magnetar bookie read-index 12 --conf bookkeeper.conf --json
    """
    from magnetar.cli.commands.running import guarded
    from magnetar.cli.tools.index_reading import IndexedLedger, IndexReading

    def rows() -> Iterator[IndexedLedger]:
        for folder in bookie_folders(conf, None, ledgers).index_folders():
            with IndexReading(folder) as index:
                if ledger is None:
                    yield from index.ledgers()
                elif (found := index.ledger(ledger)) is not None:
                    yield found

    columns = (
        Column("ledger", lambda row: row.ledger_id, right=True),
        Column("fenced", lambda row: "yes" if row.fenced else "no"),
        Column("master key", lambda row: row.master_key),
        Column("explicit LAC", lambda row: row.explicit_lac),
        Column("index", lambda row: row.problem or row.index),
    )
    with guarded():
        count = show_rows(rows(), columns, as_json=as_json, none="no such ledger in this bookie's index")
    if ledger is not None and not count:
        raise typer.Exit(EXIT_FAILED)


def list_entries(
    ledger: LedgerArgument,
    check: Annotated[bool, typer.Option("--check", help="Read each entry, and name those that cannot be.")] = False,
    conf: BookieConfOption = None,
    ledgers: LedgersOption = None,
    as_json: JsonOption = False,
) -> None:
    """List where a bookie's index says a ledger's entries are.

    Entries that still are in the write cache, and in the journal only, are not listed.
    Exit code: 0 done, 1 the ledger is not there or (with --check) entries are damaged, 2 wrong options or settings.

    [dim]Example:[/]
      magnetar bookie list-entries 12 --conf bookkeeper.conf --check
    """
    from magnetar.cli.commands.running import guarded
    from magnetar.cli.tools.stored_entries import StoredEntry, stored_entries

    problems: list[str] = []

    def rows() -> Iterator[StoredEntry]:
        for row in stored_entries(bookie_folders(conf, None, ledgers), ledger, check=check):
            if row.problem:
                problems.append(f"entry {ledger}:{row.entry_id}: {row.problem}")
            yield row

    columns = (
        Column("entry", lambda row: row.entry_id, right=True),
        Column("log", lambda row: f"{row.log_id:x}", right=True),
        Column("position", lambda row: row.position, right=True),
        Column("directory", lambda row: row.directory),
        Column("problem", lambda row: row.problem),
    )
    with guarded():
        count = show_rows(rows(), columns, as_json=as_json, none=f"the index has no entry of ledger {ledger}")
    for problem in problems:
        complain(problem)
    if problems or not count:
        raise typer.Exit(EXIT_FAILED)


def list_files(
    kind: Annotated[
        list[str] | None, typer.Option("--kind", help="journal, entry-log, index, cookie, mark or other. Repeatable.")
    ] = None,
    conf: BookieConfOption = None,
    journal: JournalsOption = None,
    ledgers: LedgersOption = None,
    as_json: JsonOption = False,
) -> None:
    """List a bookie's files.

    [dim]Example:[/]
      magnetar bookie list-files --conf bookkeeper.conf --kind journal
    """
    from magnetar.cli.commands.running import guarded
    from magnetar.cli.tools.bookie_files import files

    columns = (
        Column("kind", lambda row: row.kind),
        Column("bytes", lambda row: row.size_bytes, right=True),
        Column("modified", lambda row: human_time(row.modified_ms)),
        Column("file", lambda row: row.path),
    )
    with guarded():
        found = files(bookie_folders(conf, journal, ledgers))
        show_rows((row for row in found if not kind or row.kind in kind), columns, as_json=as_json, none="no files")


def disk_usage(
    conf: BookieConfOption = None,
    journal: JournalsOption = None,
    ledgers: LedgersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how full a bookie's disks are, and what of it are its own files.

    [dim]Example:[/]
      magnetar bookie disk-usage --conf bookkeeper.conf
    """
    from magnetar.cli.commands.running import guarded
    from magnetar.cli.tools.bookie_files import usage

    columns = (
        Column("directory", lambda row: row.directory),
        Column("disk", lambda row: human_bytes(row.total_bytes), right=True),
        Column("free", lambda row: human_bytes(row.free_bytes), right=True),
        Column("used", lambda row: f"{1 - row.free_bytes / max(1, row.total_bytes):.1%}", right=True),
        Column("journal", lambda row: f"{human_bytes(row.journal_bytes)} in {row.journal_files}", right=True),
        Column("entry logs", lambda row: f"{human_bytes(row.entry_log_bytes)} in {row.entry_logs}", right=True),
        Column("index", lambda row: human_bytes(row.index_bytes), right=True),
    )
    with guarded():
        show_rows(usage(bookie_folders(conf, journal, ledgers)), columns, as_json=as_json)


def last_mark(conf: BookieConfOption = None, ledgers: LedgersOption = None, as_json: JsonOption = False) -> None:
    """Show up to where the journal is in the entry logs: what stands behind it is replayed at the next start.

    [dim]Example:[/]
      magnetar bookie last-mark --conf bookkeeper.conf
    """
    from magnetar.cli.commands.running import guarded
    from magnetar.cli.tools.bookie_files import last_marks

    columns = (
        Column("journal", lambda row: row.journal, right=True),
        Column("file", lambda row: row.file),
        Column("offset", lambda row: row.offset, right=True),
        Column("ledger directory", lambda row: row.ledger_directory),
    )
    with guarded():
        marks = last_marks(bookie_folders(conf, None, ledgers))
        show_rows(marks, columns, as_json=as_json, none="no mark yet: the whole journal is replayed")
