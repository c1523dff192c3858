"""How many brokers and bookies the coming week needs. Pure.

Brokers: what all of them use together, of CPU and of each direction of the network, is foretold hour by hour; what a
broker costs without any load is told apart by a straight line through what brokers used at what load. A broker may use
so much of its limits as `target_percent` says.

Bookies: what comes in, in as many copies as are written, for as long as it is kept; and how fast it comes in."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from magnetar.balance.model import BundleLoad
from magnetar.balance.settings import LoadWeights, SplitSettings
from magnetar.balance.view import weigh
from magnetar.core.limits import MIB
from magnetar.spark.jobs.load.forecast import Forecast, forecast, quantile
from magnetar.spark.jobs.load.model import HOURS_PER_DAY, HOURS_PER_WEEK, LoadHistory
from magnetar.spark.jobs.load.policies import Retention, StoragePolicies

GIB: Final = 1024 * MIB
DISK_STEP_GIB: Final = 10

KEPT_SECONDS_MIN: Final = 4 * 3600.0
"""Ledgers go as a whole: what nobody needs stays until its ledger is closed, after
`managedLedgerMaxLedgerRolloverTimeMinutes`."""

LINE_FIT_MIN: Final = 0.5
"""R² below which load does not explain what brokers use, and an idle share cannot be told."""

BROKER_TOPICS_MAX: Final = 50_000
"""`loadBalancerBrokerMaxTopics`: brokers with more get no bundles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What whoever plans may choose."""

    target_percent: float = 60.0
    """How much of its limits a broker may use in its busiest hour."""
    spare_brokers: int = 1
    """Beyond what is needed: so many may be away."""
    brokers_min: int = 2
    interval_percent: float = 90.0
    """How many of the hours should end up inside of the intervals; plans go by the upper ends."""
    growth_percent: float | None = None
    """A week; None: what the history shows."""
    split: SplitSettings = field(default_factory=SplitSettings)
    bookie_disk_gib: float = 1_000.0
    """How large a bookie's ledger disk may be. There are no more bookies than that takes, and disks no larger than
    they must be."""
    bookie_write_mib: float = 100.0
    """What a bookie takes in a second, all copies counted."""
    disk_target_percent: float = 75.0
    """How full disks may become: bookies turn read-only at 95."""
    disk_overhead_percent: float = 20.0
    """What is deleted, but still takes room until garbage collection has gone over it."""
    spare_bookies: int = 1
    bookies_min: int = 3
    storage: StoragePolicies = field(
        default_factory=lambda: StoragePolicies(
            retention=Retention(seconds=24 * 3600.0, bytes_per_topic=None), write_quorum=2
        )
    )

    @property
    def share(self) -> float:
        """The share of hours, 0 to 1, that intervals should hold (`forecast`)."""
        return self.interval_percent / 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """What brokers use of one thing."""

    name: str
    unit: str
    idle: float
    """What a broker uses of it without any load."""
    limit: float
    """The limit of one broker; 0 is not known, and then nothing is told by it."""
    history: Mapping[int, float]
    """The usage by all brokers together, by hour."""
    forecast: Forecast
    """Without what they use idle."""
    needed: list[int]
    """Brokers, for each hour of the forecast; empty without a limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPlan:
    """How many brokers are needed, and by what."""

    now: int
    resources: list[Resource]
    first_hour: int
    needed: list[int]
    """For each hour: what the tightest resource needs, without spare ones."""
    peak: int
    """The brokers that the busiest hour needs, without spare ones."""
    peak_hour: int
    quiet: int
    """What nine of ten hours need at least."""
    recommended: int
    """At the peak, with spare ones."""
    autoscaling: tuple[int, int]
    """Bounds between which a number that follows the load would go."""
    binding: str
    """What decides how many brokers are needed: the name of the tightest resource, or what there is now."""
    notes: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceStorage:
    """What one namespace keeps."""

    namespace: str
    ingress_bytes_per_second: float
    """The mean of the last week."""
    kept: str
    write_quorum: int
    stored_bytes: float
    """At most within the coming week, all copies."""
    endless: bool
    """Whether what is kept grows for ever, as nothing deletes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BookiePlan:
    """How many bookies are needed, and by what."""

    ingress: Forecast
    history: Mapping[int, float]
    namespaces: list[NamespaceStorage]
    stored_bytes: float
    """By all namespaces, all copies, without overhead."""
    disk_bytes: float
    """What the disks must hold together, to be no fuller than wanted."""
    growth_bytes_per_day: float
    """Growth of what is kept without an end."""
    for_disks: int
    for_writes: int
    recommended: int
    """The larger of these, with spare ones."""
    disk_gib: float
    """How large each one's ledger disk should be then, without counting on the spare ones."""
    notes: list[str]


def broker_plan(history: LoadHistory, options: PlanOptions) -> BrokerPlan:
    """How many brokers each hour of the coming week needs. The history must not be empty."""
    present = history.brokers()
    last_hour = max(present)
    now = max(1, round(present[last_hour]))
    notes: list[str] = []
    idle_cpu = idle_share(history)
    resources = [
        _resource(history, options, *named, idle=idle)
        for named, idle in (
            (("CPU", "% of a core", "cpu_usage_percent", "cpu_limit_percent"), idle_cpu),
            (("network in", "kbit/s", "bandwidth_in_kbits", "bandwidth_in_limit_kbits"), 0.0),
            (("network out", "kbit/s", "bandwidth_out_kbits", "bandwidth_out_limit_kbits"), 0.0),
        )
    ]
    unknown = [one.name for one in resources if one.limit == 0]
    notes += [
        f"brokers use {one.idle:,.0f} {one.unit} of {one.name} without any load, which is more than "
        f"{options.target_percent:g} % of their limit: no number of them would do"
        for one in resources
        if one.limit > 0 and not one.needed
    ]
    if unknown:
        notes.append(
            f"the limit of {', '.join(unknown)} is not known to the brokers and does not count "
            "(loadBalancerOverrideBrokerNicSpeedGbps tells them that of network interfaces)"
        )
    telling = [one for one in resources if one.needed]
    if not telling:
        notes.append("no limit is known: the number of brokers stays as it is")
    needed = [max(column) for column in zip(*(one.needed for one in telling), strict=True)] if telling else []
    topics = math.ceil(max(history.total("topics").values()) / BROKER_TOPICS_MAX)
    needed = [max(one, topics, 1) for one in needed] or [now] * HOURS_PER_WEEK
    peak = max(needed)
    peak_index = needed.index(peak)
    tightest = max(telling, key=lambda one: one.needed[peak_index], default=resources[0])
    quiet = round(quantile([float(one) for one in needed], 0.1))
    memory = _memory_percent(history)
    if memory > options.target_percent:
        notes.append(f"brokers use up to {memory:.0f} % of their memory, which more of them do not change much")
    recommended = max(options.brokers_min, peak + options.spare_brokers)
    return BrokerPlan(
        now=now,
        resources=resources,
        first_hour=resources[0].forecast.first_hour,
        needed=needed,
        peak=peak,
        peak_hour=tightest.forecast.peak()[0],
        quiet=quiet,
        recommended=recommended,
        autoscaling=(min(recommended, max(options.brokers_min, quiet + options.spare_brokers)), recommended),
        binding=tightest.name if telling else "what there is now",
        notes=notes,
    )


def idle_share(history: LoadHistory) -> float:
    """What a broker uses of its CPU without any load, in percent of a core; 0 when that cannot be told."""
    # What topics and clients cost while nothing is sent is the same all the time: it cannot be told from idling.
    weights = LoadWeights(bundle=0.0, topic=0.0, session=0.0)
    loads: list[float] = []
    used: list[float] = []
    for one in history.broker_hours:
        load = BundleLoad(
            msg_rate_in=one.msg_rate_in,
            msg_rate_out=one.msg_rate_out,
            msg_throughput_in=one.throughput_in,
            msg_throughput_out=one.throughput_out,
        )
        loads.append(weigh(load, weights))
        used.append(one.cpu_usage_percent)
    if len(loads) < HOURS_PER_DAY or min(loads) == max(loads) or min(used) == max(used):
        return 0.0
    slope, intercept = statistics.linear_regression(loads, used)
    if slope <= 0 or statistics.correlation(loads, used) ** 2 < LINE_FIT_MIN:
        return 0.0
    return min(max(0.0, intercept), quantile(used, 0.1))


def _resource(
    history: LoadHistory, options: PlanOptions, name: str, unit: str, usage: str, limit_name: str, *, idle: float
) -> Resource:
    used = history.total(usage)
    brokers = history.brokers()
    load = {hour: max(0.0, value - idle * brokers[hour]) for hour, value in used.items()}
    found = forecast(load, share=options.share, growth_percent=options.growth_percent)
    limits: list[float] = [getattr(one, limit_name) for one in history.broker_hours if getattr(one, limit_name) > 0]
    limit = statistics.median(limits) if limits else 0.0
    room = limit * options.target_percent / 100 - idle
    needed = [math.ceil(value / room) for value in found.high] if room > 0 else []
    return Resource(name=name, unit=unit, idle=idle, limit=limit, history=used, forecast=found, needed=needed)


def _memory_percent(history: LoadHistory) -> float:
    return max(
        (100 * one.memory_usage_mib / one.memory_limit_mib for one in history.broker_hours if one.memory_limit_mib > 0),
        default=0.0,
    )


def bookie_plan(history: LoadHistory, options: PlanOptions) -> BookiePlan:
    """How many bookies the coming week needs. The history must not be empty."""
    ingress = history.total("throughput_in")
    found = forecast(ingress, share=options.share, growth_percent=options.growth_percent)
    means, topics = _ingress_of_namespaces(history)
    total = math.fsum(means.values())
    windows = _Windows(ingress, found)
    namespaces: list[NamespaceStorage] = []
    growth = 0.0
    peak_written = 0.0
    for namespace, mean in sorted(means.items(), key=lambda item: (-item[1], item[0])):
        share = mean / total if total > 0 else 0.0
        quorum = options.storage.write_quorum_of(namespace)
        one = _kept(namespace, mean, share, topics[namespace], options.storage, windows)
        namespaces.append(one)
        peak_written += share * found.peak()[1] * quorum
        if one.endless:
            growth += share * math.fsum(found.expected) / len(found.expected) * 86_400 * quorum
    stored = math.fsum(one.stored_bytes for one in namespaces)
    disk = stored * (1 + options.disk_overhead_percent / 100) / (options.disk_target_percent / 100)
    for_disks = max(1, math.ceil(disk / (options.bookie_disk_gib * GIB)))
    for_writes = max(1, math.ceil(peak_written / (options.bookie_write_mib * MIB)))
    notes = [
        "backlogs are not in the history: what consumers leave behind for longer than the retention comes on top",
    ]
    if growth > 0:
        notes.append(
            f"messages that are kept without an end grow by {growth / GIB:,.1f} GiB a day, all copies; what of them is "
            "older than the history comes on top"
        )
    quorums = [one.write_quorum for one in namespaces] or [options.storage.write_quorum]
    working = max(for_disks, for_writes, *quorums, options.bookies_min - options.spare_bookies)
    return BookiePlan(
        ingress=found,
        history=ingress,
        namespaces=namespaces,
        stored_bytes=stored,
        disk_bytes=disk,
        growth_bytes_per_day=growth,
        for_disks=for_disks,
        for_writes=for_writes,
        recommended=working + options.spare_bookies,
        disk_gib=DISK_STEP_GIB * max(1, math.ceil(disk / GIB / working / DISK_STEP_GIB)),
        notes=notes,
    )


class _Windows:
    """What came in during the last so many hours, past and foretold: the most of that at any time of the week."""

    def __init__(self, history: Mapping[int, float], found: Forecast) -> None:
        last = found.first_hour - 1
        mean = math.fsum(history.values()) / len(history)
        self.past = [history.get(hour, mean) for hour in range(min(history), last + 1)]
        self.sums = list(accumulate([*self.past, *found.high], initial=0.0))

    def most_bytes(self, seconds: float | None) -> float:
        """None: all of it. What is older than the history counts as its mean."""
        ends = range(len(self.past), len(self.sums))
        if seconds is None:
            return self.sums[-1] * 3600
        hours = math.ceil(seconds / 3600)
        mean = self.sums[len(self.past)] / len(self.past)
        return 3600 * max(self.sums[end] - self.sums[max(0, end - hours)] + max(0, hours - end) * mean for end in ends)


def _ingress_of_namespaces(history: LoadHistory) -> tuple[dict[str, float], dict[str, int]]:
    """The mean of the last week that is known, and the most topics, by namespace."""
    hours_of_days = history.hours_of_days()
    lately = {day: hours for day, hours in hours_of_days.items() if day > max(hours_of_days) - 7}
    known_hours = sum(lately.values())
    means: defaultdict[str, float] = defaultdict(float)
    topics: defaultdict[str, int] = defaultdict(int)
    newest: dict[str, int] = {}
    for one in history.bundle_days:
        if one.day in lately:
            means[one.namespace] += one.throughput_in_sum / known_hours
            newest[one.namespace] = max(newest.get(one.namespace, one.day), one.day)
    for one in history.bundle_days:
        if newest.get(one.namespace) == one.day:
            topics[one.namespace] += one.topics
    return dict(means), topics


def _kept(
    namespace: str, mean: float, share: float, topics: int, policies: StoragePolicies, windows: _Windows
) -> NamespaceStorage:
    retention = policies.retention_of(namespace)
    quorum = policies.write_quorum_of(namespace)
    seconds = None if retention.seconds is None else max(retention.seconds, KEPT_SECONDS_MIN)
    stored = share * windows.most_bytes(seconds)
    if retention.seconds is None:
        kept = "without an end"
    else:
        kept = f"{retention.seconds / 3600:,.4g} h" if retention.seconds > 0 else "until acknowledged"
    endless = retention.seconds is None
    if retention.bytes_per_topic is not None and retention.bytes_per_topic > 0:
        by_size = retention.bytes_per_topic * max(1, topics)
        endless = False
        kept += f", {retention.bytes_per_topic / GIB:,.3g} GiB a topic"
        stored = min(stored, by_size)
    return NamespaceStorage(
        namespace=namespace,
        ingress_bytes_per_second=mean,
        kept=kept,
        write_quorum=quorum,
        stored_bytes=stored * quorum,
        endless=endless,
    )


def hours_of_week(numbers: Sequence[int], first_hour: int) -> dict[str, list[int]]:
    """Numbers by day of the week and hour, for people: Monday first."""
    days = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
    found = {day: [0] * HOURS_PER_DAY for day in days}
    for index, number in enumerate(numbers):
        hour = first_hour + index
        # 1970 began on a Thursday.
        found[days[(hour // HOURS_PER_DAY + 3) % 7]][hour % HOURS_PER_DAY] = number
    return found
