"""What is measured together: a name, the runs, and the rows and columns of its table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from bench.report import Metric, Results

Say: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how often."""

    window_s: float
    topic_unloads: int
    bundle_unloads: int
    crashes: int

    @property
    def seconds(self) -> str:
        return f"{self.window_s:.0f} s windows"


FULL = Plan(window_s=30.0, topic_unloads=200, bundle_unloads=50, crashes=5)
QUICK = Plan(window_s=8.0, topic_unloads=20, bundle_unloads=8, crashes=2)


@dataclass(frozen=True, slots=True)
class Group:
    """`run` gives the columns' figures; it works in a folder that is deleted afterwards."""

    name: str
    title: str
    run: Callable[[Path, Plan, Say], Results]
    metrics: list[Metric]
    ours: str
    reference: str
