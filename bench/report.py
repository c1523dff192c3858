"""Turns measured figures into a table with ratios, for the terminal and as Markdown. Pure."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from rich.table import Table

Results = dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True)
class Metric:
    """How to show a figure, and which ratio to Apache at its leanest is the goal (None: for information)."""

    key: str
    label: str
    unit: str
    goal: float | None = None
    more_is_better: bool = False
    absolute: bool = False
    """The goal is one for our figure itself, not for its ratio."""

    def show(self, value: float | None) -> str:
        if value is None:
            return "-"
        digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 10 else 2
        return f"{value:,.{digits}f}".replace(",", "\u202f")

    def met(self, value: float) -> bool:
        assert self.goal is not None
        return value >= self.goal if self.more_is_better else value <= self.goal

    def verdict(self, value: float) -> str:
        """Whether a ratio (or the figure itself) meets the goal; empty where there is none."""
        if self.goal is None:
            return ""
        sign = "≥" if self.more_is_better else "≤"
        wanted = self.show(self.goal) if self.absolute else f"{self.goal:.2f}"
        return f"{'met' if self.met(value) else 'missed'} ({sign} {wanted})"


def median(rounds: list[Results]) -> Results:
    """The median of each figure over the rounds that have it."""
    merged: Results = {}
    for server in dict.fromkeys(name for each in rounds for name in each):
        keys = dict.fromkeys(key for each in rounds for key in each.get(server, {}))
        merged[server] = {
            key: statistics.median(each[server][key] for each in rounds if key in each.get(server, {})) for key in keys
        }
    return merged


def rows(results: Results, metrics: list[Metric], ours: str, reference: str) -> list[list[str]]:
    """A row a metric: label, one figure a server, the ratio ours : reference, and whether it meets its goal."""
    table = []
    for metric in metrics:
        figures = [results[server].get(metric.key) for server in results]
        if all(figure is None for figure in figures):
            continue
        ratio_text, verdict = "-", ""
        mine, theirs = results.get(ours, {}).get(metric.key), results.get(reference, {}).get(metric.key)
        if mine is not None and theirs is not None and theirs > 0:
            ratio = mine / theirs
            ratio_text = f"{ratio:.2f}"
            verdict = "" if metric.absolute else metric.verdict(ratio)
        if mine is not None and metric.absolute:
            verdict = metric.verdict(mine)
        named = f"{metric.label}, {metric.unit}" if metric.unit else metric.label
        table.append([named, *map(metric.show, figures), ratio_text, verdict])
    return table


def header(results: Results, ours: str, reference: str) -> list[str]:
    """The columns that `rows` fills."""
    return ["figure", *results, f"{ours} : {reference}", "goal"]


def terminal(columns: list[str], body: list[list[str]], title: str) -> Table:
    """For rich's console."""
    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right")
    for row in body:
        table.add_row(*row)
    return table


def markdown(columns: list[str], body: list[list[str]], title: str) -> str:
    """A heading and a table."""
    return f"# {title}\n\n{markdown_table(columns, body)}"


def markdown_table(columns: list[str], body: list[list[str]]) -> str:
    """The table alone."""
    lines = ["| " + " | ".join(columns) + " |", "| --- |" + " ---: |" * (len(columns) - 1)]
    lines += ["| " + " | ".join(row) + " |" for row in body]
    return "\n".join(lines) + "\n"
