"""What commands print: tables for people, JSON and plain columns for programs, progress on standard error."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import enum
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import typer
from magnetar.process.console import DIM, RED, YELLOW, styled

PROGRESS_LINE_SECONDS: Final = 5.0
"""Between two lines of progress where there is no terminal to draw a bar on."""
WIDTH_WITH_BAR: Final = 80
"""Of a terminal. In a narrower one numbers would be cut off for the bar and the detail."""
HEX_BYTES_PER_LINE: Final = 16


class Column(NamedTuple):
    """One column of a table."""

    title: str
    text: Callable[[Any], object]
    """The cell of a row."""
    right: bool = False
    """Whether the cells stand at the right, as numbers do."""


class RowPrinter:
    """Prints dataclass objects as they come: as a JSON array, as a table on a terminal (which waits for all of them),
    else as columns divided by tabs. A context manager; what is open is closed at its end."""

    def __init__(self, columns: Sequence[Column], *, as_json: bool, plain: bool = False) -> None:
        """With `plain` there are no columns: the caller prints, unless it is JSON."""
        self.count = 0
        self._columns = columns
        self._as_json = as_json
        self._plain = plain
        self._rows: list[Any] | None = [] if sys.stdout.isatty() and not as_json and not plain else None

    def __enter__(self) -> RowPrinter:
        """Begin the table or the JSON array."""
        if self._as_json:
            typer.echo("[", nl=False)
        elif self._rows is None and not self._plain:
            typer.echo("\t".join(column.title for column in self._columns))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End. After an error an array stays open: nobody shall take it for whole."""
        if self._as_json and kind is None:
            typer.echo("\n]" if self.count else "]")
        elif self._rows:
            _show_table(self._rows, self._columns)

    def add(self, row: Any) -> None:
        """Print one more row."""
        if self._as_json:
            typer.echo(("," if self.count else "") + "\n  " + to_json(row), nl=False)
        elif self._rows is not None:
            self._rows.append(row)
        elif not self._plain:
            typer.echo("\t".join(_cell(column, row) for column in self._columns))
        self.count += 1


def show_rows(rows: Iterable[Any], columns: Sequence[Column], *, as_json: bool, none: str = "") -> int:
    """Print all rows as `RowPrinter` does; returns how many. `none` is said when there are none."""
    rows = iter(rows)
    first = list(itertools.islice(rows, 1))  # What fails before its first row has no table.
    with RowPrinter(columns, as_json=as_json) as printer:
        for row in itertools.chain(first, rows):
            printer.add(row)
    if not printer.count and none:
        note(none)
    return printer.count


def show_object(value: Any, *, as_json: bool, labels: Sequence[Column] = ()) -> None:
    """Print one object: as JSON, else a line for each label."""
    if as_json:
        typer.echo(to_json(value, indent=2))
        return
    width = max((len(label.title) for label in labels), default=0)
    for label in labels:
        typer.echo(f"{label.title:{width}}  {_cell(label, value)}")


def to_json(value: Any, indent: int | None = None) -> str:
    """JSON of dataclasses, enums, bytes (hexadecimal), and what JSON knows itself."""
    return json.dumps(_plain(value), indent=indent, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: _plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value if isinstance(value, str) else value.name
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(inner) for inner in value]
    return value


def _show_table(rows: Iterable[Any], columns: Sequence[Column]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column.title, justify="right" if column.right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(column, row)) for column in columns))
    Console().print(table)


def _cell(column: Column, row: Any) -> str:
    value = column.text(row)
    return "" if value is None else str(value)


def note(text: str) -> None:
    """A remark for people, on standard error: programs that read the output do not see it."""
    typer.echo(styled(text, DIM), err=True)


def warn(text: str) -> None:
    """Something that is not as it should be, on standard error."""
    typer.echo(styled(text, YELLOW), err=True)


def complain(text: str) -> None:
    """Something that is wrong, on standard error."""
    typer.echo(styled(text, RED), err=True)


def human_time(time_ms: int | None) -> str:
    """A moment in UTC; empty for none."""
    if time_ms is None or time_ms < 0:
        return ""
    moment = dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%SZ")


class BodyFormat(enum.StrEnum):
    """How an entry's bytes are shown."""

    NONE = "none"
    TEXT = "text"
    HEX = "hex"


def body_lines(data: bytes, how: BodyFormat) -> list[str]:
    """The bytes for people."""
    if how is BodyFormat.NONE:
        return []
    if how is BodyFormat.TEXT:
        text = data.decode("utf-8", "replace")
        return ["".join(letter if letter.isprintable() else "·" for letter in line) for line in text.splitlines()]
    return [_hex_line(data, at) for at in range(0, len(data), HEX_BYTES_PER_LINE)]


def _hex_line(data: bytes, at: int) -> str:
    part = data[at : at + HEX_BYTES_PER_LINE]
    letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
    return f"{at:08x}  {part.hex(' '):{3 * HEX_BYTES_PER_LINE - 1}}  {letters}"


Report = Callable[[int, int, str], None]
"""(done, total, what is going on): total 0 is not known yet."""


@contextlib.contextmanager
def progress(title: str) -> Iterator[Report]:
    """A bar on standard error while the block runs; without a terminal a line from time to time."""
    if not sys.stderr.isatty():
        yield _progress_lines(title)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    console = Console(stderr=True)
    columns: list[ProgressColumn] = [TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn()]
    if console.width >= WIDTH_WITH_BAR:
        columns.insert(1, BarColumn())
        columns.append(TextColumn("{task.fields[detail]}"))
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(title, total=None, detail="")

        def report(done: int, total: int, detail: str) -> None:
            bar.update(task, completed=done, total=total or None, detail=detail)

        yield report


def _progress_lines(title: str) -> Report:
    last = time.monotonic()

    def report(done: int, total: int, detail: str) -> None:
        nonlocal last
        if time.monotonic() - last >= PROGRESS_LINE_SECONDS:
            last = time.monotonic()
            typer.echo(f"{title}: {done}{f' of {total}' if total else ''} {detail}".rstrip(), err=True)

    return report
