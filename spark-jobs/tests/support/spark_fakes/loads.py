"""A cluster's load history that was never lived, for tests: days and nights, weekends, growth, and some noise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from magnetar.core.limits import MIB
from magnetar.spark.jobs.load.model import HOURS_PER_DAY, HOURS_PER_WEEK, BrokerHour, BundleDay, LoadHistory

FIRST_HOUR: Final = 480_000
"""October 2024; a Friday, 00:00 UTC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleMade:
    """What one bundle does at the mean hour of the first week."""

    msg_rate: float
    """Each way."""
    message_bytes: float = 1_000.0
    topics: int = 10
    sessions: int = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMade:
    """What is to be made up."""

    bundles: Mapping[tuple[str, str], BundleMade]
    """By namespace and range."""
    days: int = 21
    brokers: int = 2
    growth: float = 0.0
    """Growth a week, as a share of the first week's mean."""
    noise: float = 0.05
    daily: float = 0.5
    """How much day and night differ from the mean."""
    weekend: float = 0.6
    """Saturdays and Sundays, as a part of other days."""
    idle_percent: float = 10.0
    """Percent of a core that each broker uses without load."""
    percent_per_message: float = 0.01
    cores: int = 4
    nic_kbits: float = 10e6
    seed: int = 1
    missing: frozenset[int] = field(default_factory=frozenset)
    """Hours of which nothing is known, counted from the first."""


def level(made: ClusterMade, hour: int, random: Random) -> float:
    """How much there is to do in an hour, 1 being the mean of the first week's working days."""
    weekday = ((FIRST_HOUR + hour) // HOURS_PER_DAY + 3) % 7
    # The busiest hour is 15:00.
    season = 1 + made.daily * math.cos(2 * math.pi * ((FIRST_HOUR + hour) % HOURS_PER_DAY - 15) / HOURS_PER_DAY)
    growth = 1 + made.growth * hour / HOURS_PER_WEEK
    return season * (made.weekend if weekday >= 5 else 1.0) * growth * (1 + made.noise * random.gauss(0, 1))


def messages(made: ClusterMade, *, rounds: int = 1) -> Iterator[dict[str, Any]]:
    """As brokers publish them, so many rounds an hour; bundles go from broker to broker in turn."""
    random = Random(made.seed)
    for hour in range(made.days * HOURS_PER_DAY):
        factor = level(made, hour, random)
        if hour in made.missing:
            continue
        for number in range(rounds):
            taken_ms = (FIRST_HOUR + hour) * 3_600_000 + number * (3_600_000 // rounds)
            for broker in range(made.brokers):
                bundles = [
                    bundle_message(name, bundle, factor)
                    for index, (name, bundle) in enumerate(made.bundles.items())
                    if (index + hour) % made.brokers == broker
                ]
                yield broker_message(made, f"broker-{broker}:8080", taken_ms, bundles)


def bundle_message(name: tuple[str, str], made: BundleMade, factor: float) -> dict[str, Any]:
    """The part about one bundle in a broker's message; `factor`: how many times its mean load."""
    rate = made.msg_rate * factor
    return {
        "namespace": name[0],
        "range": name[1],
        "msgRateIn": rate,
        "msgRateOut": rate,
        "msgThroughputIn": rate * made.message_bytes,
        "msgThroughputOut": rate * made.message_bytes,
        "topics": made.topics,
        "producers": made.sessions // 2,
        "consumers": made.sessions - made.sessions // 2,
    }


def broker_message(made: ClusterMade, broker_id: str, taken_ms: int, bundles: list[dict[str, Any]]) -> dict[str, Any]:
    """One broker's message of the load history, taken at `taken_ms`."""

    def total(name: str) -> float:
        return math.fsum(bundle[name] for bundle in bundles)

    rate = total("msgRateIn") + total("msgRateOut")
    return {
        "takenMillis": taken_ms,
        "brokerId": broker_id,
        "cpuUsagePercent": made.idle_percent + made.percent_per_message * rate,
        "cpuLimitPercent": 100.0 * made.cores,
        "memoryUsageMib": 1_000.0,
        "memoryLimitMib": 4_000.0,
        "bandwidthInUsageKbits": total("msgThroughputIn") * 8 / 1024,
        "bandwidthInLimitKbits": made.nic_kbits,
        "bandwidthOutUsageKbits": total("msgThroughputOut") * 8 / 1024,
        "bandwidthOutLimitKbits": made.nic_kbits,
        "msgRateIn": total("msgRateIn"),
        "msgRateOut": total("msgRateOut"),
        "msgThroughputIn": total("msgThroughputIn"),
        "msgThroughputOut": total("msgThroughputOut"),
        "numTopics": int(total("topics")),
        "numProducers": int(total("producers")),
        "numConsumers": int(total("consumers")),
        "numBundles": len(bundles),
        "bundles": bundles,
    }


def lived(made: ClusterMade) -> LoadHistory:
    """The tables that Spark makes of `messages` at one round an hour, made without it."""
    broker_hours: list[BrokerHour] = []
    days: dict[tuple[str, str, int], BundleDay] = {}
    for one in messages(made):
        hour = one["takenMillis"] // 3_600_000
        broker_hours.append(_broker_hour(one, hour))
        for bundle in one["bundles"]:
            key = bundle["namespace"], bundle["range"], hour // HOURS_PER_DAY
            days[key] = _bundle_day(bundle, hour, days.get(key))
    return LoadHistory(broker_hours=sorted(broker_hours), bundle_days=sorted(days.values()))


def _broker_hour(one: Mapping[str, Any], hour: int) -> BrokerHour:
    return BrokerHour(
        broker_id=one["brokerId"],
        hour=hour,
        rounds=1,
        cpu_usage_percent=one["cpuUsagePercent"],
        cpu_limit_percent=one["cpuLimitPercent"],
        memory_usage_mib=one["memoryUsageMib"],
        memory_limit_mib=one["memoryLimitMib"],
        bandwidth_in_kbits=one["bandwidthInUsageKbits"],
        bandwidth_in_limit_kbits=one["bandwidthInLimitKbits"],
        bandwidth_out_kbits=one["bandwidthOutUsageKbits"],
        bandwidth_out_limit_kbits=one["bandwidthOutLimitKbits"],
        msg_rate_in=one["msgRateIn"],
        msg_rate_out=one["msgRateOut"],
        throughput_in=one["msgThroughputIn"],
        throughput_out=one["msgThroughputOut"],
        topics=one["numTopics"],
        sessions=one["numProducers"] + one["numConsumers"],
        bundles=one["numBundles"],
    )


def _bundle_day(bundle: Mapping[str, Any], hour: int, before: BundleDay | None) -> BundleDay:
    now = BundleDay(
        namespace=bundle["namespace"],
        range=bundle["range"],
        day=hour // HOURS_PER_DAY,
        msg_rate_peak=bundle["msgRateIn"] + bundle["msgRateOut"],
        throughput_peak=bundle["msgThroughputIn"] + bundle["msgThroughputOut"],
        throughput_in_sum=bundle["msgThroughputIn"],
        topics=bundle["topics"],
        sessions=bundle["producers"] + bundle["consumers"],
        last_hour=hour,
    )
    if before is None:
        return now
    return now._replace(
        msg_rate_peak=max(now.msg_rate_peak, before.msg_rate_peak),
        throughput_peak=max(now.throughput_peak, before.throughput_peak),
        throughput_in_sum=now.throughput_in_sum + before.throughput_in_sum,
        topics=max(now.topics, before.topics),
        sessions=max(now.sessions, before.sessions),
    )


QUARTERS: Final = tuple(
    f"0x{low:08x}_0x{high:08x}"
    for low, high in (
        (0, 0x40000000),
        (0x40000000, 0x80000000),
        (0x80000000, 0xC0000000),
        (0xC0000000, 0xFFFFFFFF),
    )
)

EXAMPLE: Final = ClusterMade(
    bundles={
        **{("public/default", one): BundleMade(msg_rate=2_000) for one in QUARTERS},
        ("shop/orders", QUARTERS[0]): BundleMade(msg_rate=9_000, message_bytes=3_000),
        ("shop/clicks", QUARTERS[0]): BundleMade(msg_rate=10_000, topics=1, message_bytes=MIB / 1_000),
    },
    growth=0.1,
    brokers=3,
)
"""Two namespaces with a bundle that grows too large, of which one is a single topic."""
