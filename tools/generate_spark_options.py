"""Writes docs/spark.md's tables of options, from what the data source checks options by; `--check` only compares."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from magnetar.spark.options.connection import CONNECTION_OPTIONS
from magnetar.spark.options.parsing import Option
from magnetar.spark.options.reading import FILTER_OPTIONS, RANGE_OPTIONS, READING_OPTIONS, SELECTION_OPTIONS
from magnetar.spark.sink.options import SINK_ONLY_OPTIONS

from tools.charts.rendering import between

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = Path("docs/spark.md")

TABLES: Final = {
    "options-connection": CONNECTION_OPTIONS,
    "options-topics": SELECTION_OPTIONS,
    "options-range": RANGE_OPTIONS,
    "options-filters": FILTER_OPTIONS,
    "options-reading": READING_OPTIONS,
    "options-writing": SINK_ONLY_OPTIONS,
}
"""By the names of the page's markers."""


def table(options: Sequence[Option]) -> str:
    """A Markdown table of them."""
    lines = ["| option | default | what |", "| --- | --- | --- |"]
    for option in options:
        default = f"`{option.default}`" if option.default else ""
        also = f" Also called {', '.join(f'`{alias}`' for alias in option.aliases)}." if option.aliases else ""
        what = option.what.replace("|", "\\|").replace("<", "&lt;")
        lines.append(f"| `{option.name}` | {default} | {what}{also} |")
    return "\n".join(lines) + "\n"


def written(text: str) -> str:
    """The page with its tables as the declarations have them."""
    for name, options in TABLES.items():
        text = between(text, name, table(options))
    return text


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="say whether the page is out of date, write nothing")
    page = ROOT / PAGE
    text = page.read_text(encoding="utf-8")
    wanted = written(text)
    if parser.parse_args().check:
        if text != wanted:
            print(f"{PAGE} is out of date: run `make generate`", file=sys.stderr)
        return int(text != wanted)
    page.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
