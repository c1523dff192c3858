"""Tables go to the terminal, to bench/results as JSON, and between markers into docs/spark-benchmarks.md."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Console

from bench import report
from bench.page import RESULTS, ROOT, with_table
from bench.report import Metric, Results

PAGE = ROOT / "docs" / "spark-benchmarks.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """A table's name in the page, its title, what was found, and which two columns are compared."""

    name: str
    title: str
    results: Results
    metrics: list[Metric]
    ours: str
    reference: str


def write(figures: Figures, taken: Mapping[str, object], console: Console, *, in_page: bool) -> None:
    """Show the table, keep figures and the circumstances (`taken`) as JSON, and put the table into the page."""
    columns = report.header(figures.results, figures.ours, figures.reference)
    body = report.rows(figures.results, figures.metrics, figures.ours, figures.reference)
    console.print(report.terminal(columns, body, figures.title))
    RESULTS.mkdir(exist_ok=True)
    when = time.strftime("%Y-%m-%d", time.gmtime())
    kept = {"time": when, **taken, "results": figures.results}
    (RESULTS / f"spark-{figures.name}.json").write_text(json.dumps(kept, indent=2) + "\n")
    if in_page:
        circumstances = "; ".join(f"{key} {value}" for key, value in taken.items())
        text = f"{when}; {circumstances}.\n\n{report.markdown_table(columns, body)}"
        PAGE.write_text(with_table(PAGE.read_text(), figures.name, text))
