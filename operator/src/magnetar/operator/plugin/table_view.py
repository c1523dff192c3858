"""Sorted tables of rows. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from magnetar.core.errors import SettingError
from magnetar.core.text import human_bytes
from magnetar.operator.plugin.drawing import QUIET, Signs, bar, rate_text
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

UNKNOWN: Final = "-"


@dataclass(frozen=True, slots=True)
class TableColumn:
    """One column."""

    title: str
    """Also what it is sorted by."""
    value: Callable[[Any], Any]
    text: Callable[[Any], str] = str
    """The text of a value that is known."""
    right: bool = True
    bar: bool = False
    """A percentage that is drawn, too."""
    wide: bool = False
    """Only where there is room."""


def words(title: str, value: Callable[[Any], Any], **rest: Any) -> TableColumn:
    """A column of text."""
    return TableColumn(title, value, right=False, **rest)


def number(title: str, value: Callable[[Any], Any], **rest: Any) -> TableColumn:
    """A column of counts."""
    return TableColumn(title, value, lambda count: f"{count:,}".replace(",", " "), **rest)


def rate(title: str, value: Callable[[Any], Any], **rest: Any) -> TableColumn:
    """A column of numbers per second."""
    return TableColumn(title, value, rate_text, **rest)


def size(title: str, value: Callable[[Any], Any], **rest: Any) -> TableColumn:
    """A column of bytes."""
    return TableColumn(title, value, human_bytes, **rest)


def percent(title: str, value: Callable[[Any], Any], **rest: Any) -> TableColumn:
    """A column of percentages."""
    return TableColumn(title, value, lambda share: f"{share:.0f}", **rest)


def sorted_rows(rows: Sequence[Any], columns: Sequence[TableColumn], by: str) -> list[Any]:
    """Largest first for numbers, A first for words, unknown last. `SettingError` for a column that there is not."""
    wanted = by.strip().lower()
    column = next((one for one in columns if one.title.lower() == wanted), None)
    if column is None:
        raise SettingError(
            f"there is no column {by!r} to sort by; there are: {', '.join(one.title for one in columns)}"
        )
    value = column.value
    known = [row for row in rows if value(row) is not None]
    unknown = [row for row in rows if value(row) is None]
    return sorted(known, key=value, reverse=column.right) + unknown


def draw_table(rows: Sequence[Any], columns: Sequence[TableColumn], signs: Signs, *, wide: bool) -> RenderableType:
    """The rows in their order."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style=QUIET)
    shown = [column for column in columns if wide or not column.wide]
    for column in shown:
        table.add_column(column.title, justify="right" if column.right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(column, row, signs) for column in shown))
    return table


def _cell(column: TableColumn, row: Any, signs: Signs) -> Text:
    value = column.value(row)
    if value is None:
        return Text(UNKNOWN, style=QUIET)
    if column.bar:
        return Text.assemble(bar(signs, value), f" {column.text(value):>3}")
    return Text(column.text(value))
