"""Metric families in the shapes that BookKeeper's Prometheus provider gives: gauges, counters without `_total`, and
summaries with the label `success` and seven quantiles, in milliseconds or bytes.

A summary's quantiles are about the time since the last turn of its window, which turns when it is scraped at least
`WINDOW_SECONDS` after the turn before; counts and sums are since the start.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from magnetar.bookie.outcomes import Outcomes
from magnetar.core.histogram import QUANTILES, Histogram, Windows
from prometheus_client.metrics_core import Metric

MILLISECONDS: Final = 1000.0
NO_LABELS: Final[Mapping[str, str]] = {}


class Families:
    """The families of one scrape, in the order of their first sample."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._families: dict[str, Metric] = {}

    def all(self) -> list[Metric]:
        """Each family once."""
        return list(self._families.values())

    def gauge(self, name: str, value: float, text: str, labels: Mapping[str, str] = NO_LABELS) -> None:
        """One sample of a gauge."""
        self._family(name, "gauge", text).add_sample(name, dict(labels), value)

    def counter(self, name: str, value: float, text: str, labels: Mapping[str, str] = NO_LABELS) -> None:
        """One sample of a counter."""
        self._family(name, "counter", text).add_sample(name, dict(labels), value)

    def summary(
        self,
        name: str,
        outcomes: Outcomes,
        text: str,
        *,
        labels: Mapping[str, str] = NO_LABELS,
        scale: float = MILLISECONDS,
    ) -> None:
        """Those that worked and those that did not; recorded values times `scale` are shown."""
        family = self._family(name, "summary", text)
        for word, histogram in (("false", outcomes.failure), ("true", outcomes.success)):
            self._add_summary(family, histogram, {"success": word, **labels}, scale)

    def sizes(
        self, name: str, histogram: Histogram, text: str, *, labels: Mapping[str, str] = NO_LABELS, scale: float = 1.0
    ) -> None:
        """A summary of something that cannot fail; BookKeeper shows it with `success="true"`."""
        self._add_summary(self._family(name, "summary", text), histogram, {"success": "true", **labels}, scale)

    def _add_summary(self, family: Metric, histogram: Histogram, labels: dict[str, str], scale: float) -> None:
        since, greatest = self._windows.since(histogram)
        for word, share in QUANTILES:
            family.add_sample(
                family.name, {**labels, "quantile": word}, histogram.quantile(share, since, greatest) * scale
            )
        family.add_sample(f"{family.name}_count", labels, histogram.count)
        family.add_sample(f"{family.name}_sum", labels, histogram.total * scale)

    def _family(self, name: str, kind: str, text: str) -> Metric:
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = Metric(name, text, kind)
            # Metric cuts `_total` off a counter's name; here names stay what they are.
            family.name = name
        return family


def word_of(path: str) -> str:
    """A path as a part of a metric's name: what is neither letter nor digit becomes an underscore."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", path)
