"""The load history as planning looks at it: small tables that Spark has made of it. Plain data, no Spark.

An hour is the number of hours since 1970 (UTC), a day that of days. Rates are per second, throughputs bytes per second;
what a load report has in kbit/s is kept so, as its limits are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from magnetar.core.bundle import BundleName, BundleRange
from magnetar.core.topic_name import NamespaceName

HOURS_PER_DAY: Final = 24
HOURS_PER_WEEK: Final = 168


class BrokerHour(NamedTuple):
    """One broker in one hour: means over the rounds in which it was there."""

    broker_id: str
    hour: int
    rounds: int
    cpu_usage_percent: float
    """Usage in percent of one core."""
    cpu_limit_percent: float
    memory_usage_mib: float
    memory_limit_mib: float
    bandwidth_in_kbits: float
    bandwidth_in_limit_kbits: float
    bandwidth_out_kbits: float
    bandwidth_out_limit_kbits: float
    msg_rate_in: float
    msg_rate_out: float
    throughput_in: float
    throughput_out: float
    topics: int
    """The most that there were, as the next two."""
    sessions: int
    """The most producers and consumers that there were at a time."""
    bundles: int


class BundleDay(NamedTuple):
    """One bundle on one day."""

    namespace: str
    range: str
    day: int
    msg_rate_peak: float
    """The busiest hour's mean, both directions, as the next one."""
    throughput_peak: float
    throughput_in_sum: float
    """The sum of the means of its hours."""
    topics: int
    """The most that there were, as the next one."""
    sessions: int
    last_hour: int
    """In which it was last seen on that day."""

    @property
    def name(self) -> BundleName:
        """The name of the bundle."""
        return BundleName(NamespaceName.parse(self.namespace), BundleRange.parse(self.range))


@dataclass(frozen=True, kw_only=True)
class LoadHistory:
    """All that planning knows of the past."""

    broker_hours: list[BrokerHour]
    bundle_days: list[BundleDay]

    @cached_property
    def rounds(self) -> dict[int, int]:
        """How often the leader looked, by hour."""
        found: dict[int, int] = {}
        for one in self.broker_hours:
            found[one.hour] = max(found.get(one.hour, 0), one.rounds)
        return found

    @property
    def hours(self) -> list[int]:
        """The hours of which something is known, in order."""
        return sorted(self.rounds)

    def total(self, quantity: str) -> dict[int, float]:
        """A quantity of all brokers together, by hour: who was there for a part of an hour counts for that part."""
        found: defaultdict[int, float] = defaultdict(float)
        for one in self.broker_hours:
            value: float = getattr(one, quantity)
            found[one.hour] += value * one.rounds / self.rounds[one.hour]
        return dict(found)

    def brokers(self) -> dict[int, float]:
        """How many brokers there were, by hour."""
        found: defaultdict[int, float] = defaultdict(float)
        for one in self.broker_hours:
            found[one.hour] += one.rounds / self.rounds[one.hour]
        return dict(found)

    def bundles(self) -> dict[tuple[str, str], list[BundleDay]]:
        """The days of each bundle, by namespace and range, in order."""
        found: defaultdict[tuple[str, str], list[BundleDay]] = defaultdict(list)
        for one in sorted(self.bundle_days, key=lambda each: each.day):
            found[one.namespace, one.range].append(one)
        return dict(found)

    def hours_of_days(self) -> dict[int, int]:
        """By day, of how many of its hours something is known."""
        return _counted(hour // HOURS_PER_DAY for hour in self.rounds)


def _counted(days: Iterable[int]) -> dict[int, int]:
    found: defaultdict[int, int] = defaultdict(int)
    for day in days:
        found[day] += 1
    return dict(found)
