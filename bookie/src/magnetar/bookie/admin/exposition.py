"""Metric families as Prometheus' text, under exactly the names that they have.

prometheus_client's own writer puts `_total` behind every counter's name; BookKeeper's counters (`bookie_WRITE_BYTES`)
have none, and dashboards ask for them so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from prometheus_client.metrics_core import Metric


def write(families: Iterable[Metric]) -> str:
    """Metric families as Prometheus' text, format 0.0.4."""
    lines: list[str] = []
    for family in families:
        name = family.name
        if family.type == "counter" and all(sample.name == f"{name}_total" for sample in family.samples):
            name = f"{name}_total"
        if family.documentation:
            text = family.documentation.replace("\\", "\\\\").replace("\n", "\\n")
            lines.append(f"# HELP {name} {text}")
        lines.append(f"# TYPE {name} {'untyped' if family.type == 'unknown' else family.type}")
        for sample in family.samples:
            labels = ",".join(f'{label}="{_escape(value)}"' for label, value in sample.labels.items())
            lines.append(
                f"{sample.name}{{{labels}}} {_number(sample.value)}"
                if labels
                else f"{sample.name} {_number(sample.value)}"
            )
    lines.append("")
    return "\n".join(lines)


def _number(value: float) -> str:
    if math.isfinite(value):
        return str(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
