"""Puts tables into pages of the documentation, each between markers of its own. Pure but for `Page.write`."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console

from bench import report
from bench.report import Metric, Results

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "results"
TEXT_COLUMNS = 118
"""Of the text before a table."""


def begin(name: str) -> str:
    """The marker before a table."""
    return f"<!-- figures: {name} -->"


def end(name: str) -> str:
    """The marker after it."""
    return f"<!-- end of figures: {name} -->"


def with_table(page: str, name: str, table: str) -> str:
    """The page with another table between the markers of that name. Raises ValueError when it has none."""
    before, opened, rest = page.partition(begin(name))
    _, closed, after = rest.partition(end(name))
    if not opened or not closed:
        raise ValueError(f"the page has no markers for {name!r}")
    return f"{before}{begin(name)}\n{table.strip()}\n{end(name)}{after}"


@dataclass(frozen=True, slots=True)
class Figures:
    """A table's name in the page, its title, what was found, and which two columns are compared."""

    name: str
    title: str
    results: Results
    metrics: list[Metric]
    ours: str
    reference: str


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the documentation with tables of one benchmark, and that benchmark's name, which its results begin
    with."""

    path: Path
    benchmark: str

    def write(self, figures: Figures, taken: Mapping[str, object], console: Console, *, in_page: bool) -> None:
        """Show the table, keep figures and the circumstances (`taken`) as JSON, and put the table into the page."""
        columns = report.header(figures.results, figures.ours, figures.reference)
        body = report.rows(figures.results, figures.metrics, figures.ours, figures.reference)
        console.print(report.terminal(columns, body, figures.title))
        RESULTS.mkdir(exist_ok=True)
        when = time.strftime("%Y-%m-%d", time.gmtime())
        kept = {"time": when, **taken, "results": figures.results}
        (RESULTS / f"{self.benchmark}-{figures.name}.json").write_text(json.dumps(kept, indent=2) + "\n")
        if in_page:
            circumstances = "; ".join(f"{key} {value}" for key, value in taken.items())
            text = f"{when}; {circumstances}.\n\n{report.markdown_table(columns, body)}"
            self.path.write_text(with_table(self.path.read_text(), figures.name, text))


CLUSTER: Final = Page(ROOT / "docs" / "cluster-benchmarks.md", "cluster")
SPARK: Final = Page(ROOT / "docs" / "spark-benchmarks.md", "spark")
