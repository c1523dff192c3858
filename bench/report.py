"""Turns measured figures into a table with ratios, for the terminal and as Markdown. Pure."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from rich.table import Table

Results = dict[str, dict[str, float]]
Ranges = dict[str, dict[str, tuple[float, float]]]
"""The least and the most of each figure over the rounds."""

BALANCE_MAX = 0.02
"""By so much of what goes in may what comes out differ, for the backlog neither to grow nor to shrink."""


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
    balance: str = ""
    """The figure that tells what came out to what went in; where it is not 1, on either side, the goal is not met.
    Empty: nothing goes in."""

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
    return {
        server: {key: statistics.median(figures) for key, figures in found.items()}
        for server, found in _by_figure(rounds).items()
    }


def ranges(rounds: list[Results]) -> Ranges:
    """The least and the most of each figure over the rounds that have it."""
    return {
        server: {key: (min(figures), max(figures)) for key, figures in found.items()}
        for server, found in _by_figure(rounds).items()
    }


def told(rounds: list[Results]) -> str:
    """What the figures of so many rounds are, in words."""
    if len(rounds) == 1:
        return "one round"
    return f"medians of {len(rounds)} rounds, with the least and the most"


def _by_figure(rounds: list[Results]) -> dict[str, dict[str, list[float]]]:
    found: dict[str, dict[str, list[float]]] = {}
    for each in rounds:
        for server, figures in each.items():
            kept = found.setdefault(server, {})
            for key, figure in figures.items():
                kept.setdefault(key, []).append(figure)
    return found


def balanced(out_to_in: float | None) -> bool:
    """Whether what came out is what went in."""
    return out_to_in is not None and 1 - BALANCE_MAX <= round(out_to_in, 6) <= 1 + BALANCE_MAX


def unbalanced(results: Results, metric: Metric, servers: tuple[str, ...]) -> list[str]:
    """The servers at which what came out is not what went in, so that the metric's goal cannot be met."""
    if not metric.balance or metric.goal is None:
        return []
    return [name for name in servers if not balanced(results.get(name, {}).get(metric.balance))]


def rows(
    results: Results, metrics: list[Metric], ours: str, reference: str, spread: Ranges | None = None
) -> list[list[str]]:
    """A row a metric: label, one figure a server, the ratio ours : reference, and whether it meets its goal. With
    `spread` a figure has the least and the most of its rounds behind it."""
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
        if verdict and (at := unbalanced(results, metric, (ours, reference))):
            verdict = f"not met: in is not out at {' and '.join(at)}"
        named = f"{metric.label}, {metric.unit}" if metric.unit else metric.label
        shown = [
            metric.show(figure) + _range(metric, (spread or {}).get(server, {}).get(metric.key))
            for server, figure in zip(results, figures, strict=True)
        ]
        table.append([named, *shown, ratio_text, verdict])
    return table


def _range(metric: Metric, spread: tuple[float, float] | None) -> str:
    if spread is None or spread[0] == spread[1]:
        return ""
    return f" ({metric.show(spread[0])} to {metric.show(spread[1])})"


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
