"""Prometheus' text format: families, labels, and rows with a value for each of several families."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

Definition: TypeAlias = tuple[str, str, str]
"""A family's name, its type, and what it is about."""

Row: TypeAlias = tuple[str, list[float]]
"""Labels, and the values of one topic or subscription: one for each of several families."""


def metric(name: str, kind: str, text: str, samples: Iterable[tuple[str, float]]) -> list[str]:
    """One family: help, type, samples."""
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *(f"{name}{labels} {value}" for labels, value in samples)]


def labelled(**labels: str) -> str:
    """Labels with their braces; values are escaped here."""
    return "{" + ",".join(f'{name}="{escape(value)}"' for name, value in labels.items()) + "}"


def escape(value: str) -> str:
    """A label value in Prometheus' text format."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
