"""The cluster at one moment, as load management looks at it: put together from load reports and policies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import Final, TypeAlias

from magnetar.balance.model import BrokerLoad, BundleLoad, LoadSnapshot, ResourceUsages
from magnetar.broker.bundles.namespace_bundles import named_broker
from magnetar.broker.bundles.statistics import BundleStats
from magnetar.broker.load.averages import BundleAverages
from magnetar.broker.load.broker_report import LOAD_MANAGER_CLASS, BrokerReport
from magnetar.broker.load.cluster_policies import ClusterPolicies
from magnetar.core.bundle import BundleName
from magnetar.core.topic_name import InvalidTopicName

NAMES_KEPT_MAX: Final = 50_000
"""Bundles of a cluster whose names are kept parsed, some 500 bytes each, as reports name them again and again."""

EMPTY: Final = BundleLoad()

OWNERS_AT_ONCE_MAX: Final = 64
"""Reads of ownership nodes that are under way at a time."""

FindOwner: TypeAlias = Callable[[BundleName], Awaitable[str | None]]
"""The id of the broker that owns a bundle."""


@lru_cache(maxsize=NAMES_KEPT_MAX)
def parse_bundle(name: str) -> BundleName | None:
    """A bundle that load management may move; None for others, and for what is no bundle.

    What belongs to a broker by its name (health checks) stays where it is."""
    try:
        bundle = BundleName.parse(name)
    except InvalidTopicName:
        return None
    return None if named_broker(bundle.namespace) is not None else bundle


def takes_part(report: BrokerReport) -> bool:
    """Whether a broker shares out bundles by the same rules; Apache leaves others out, too."""
    return report.load_manager_class in ("", LOAD_MANAGER_CLASS)


def bundle_load(stats: BundleStats) -> BundleLoad:
    """What a report says of a bundle."""
    return BundleLoad(
        msg_rate_in=stats.msg_rate_in,
        msg_rate_out=stats.msg_rate_out,
        msg_throughput_in=stats.throughput_in,
        msg_throughput_out=stats.throughput_out,
        topics=stats.topics,
        producers=stats.producers,
        consumers=stats.consumers,
    )


def average_load(averages: BundleAverages) -> BundleLoad:
    """The long-term load of a bundle."""
    values = averages.long_term.values
    return BundleLoad(
        msg_rate_in=values["msgRateIn"],
        msg_rate_out=values["msgRateOut"],
        msg_throughput_in=values["msgThroughputIn"],
        msg_throughput_out=values["msgThroughputOut"],
        topics=averages.topics,
    )


def broker_load(report: BrokerReport) -> BrokerLoad:
    """A broker's load, from its report."""
    loads: dict[BundleName, BundleLoad] = {}
    for name in report.bundles:
        bundle = parse_bundle(name)
        if bundle is not None:
            stats = report.stats.get(name)
            loads[bundle] = EMPTY if stats is None else bundle_load(stats)
    host = report.host
    return BrokerLoad(
        broker_id=report.broker_id,
        started_ms=report.started_ms,
        usages=ResourceUsages(
            cpu=host.cpu.percent,
            memory=host.memory.percent,
            direct_memory=host.direct_memory.percent,
            bandwidth_in=host.bandwidth_in.percent,
            bandwidth_out=host.bandwidth_out.percent,
        ),
        bundles=loads,
        reported_ms=None if report.seen_seconds is None else int(report.seen_seconds * 1000),
        draining=report.draining,
        persistent_topics=report.persistent_topics,
        non_persistent_topics=report.non_persistent_topics,
        version=report.version,
    )


async def add_idle_bundles(brokers: Mapping[str, BrokerLoad], names: list[str], find_owner: FindOwner) -> None:
    """Give brokers what they own and do not tell: Apache's report only bundles in which a topic is loaded, and others
    would be taken for nobody's, so that a broker with many of them got more and more."""
    told = {bundle for load in brokers.values() for bundle in load.bundles}
    asked = [bundle for name in names if (bundle := parse_bundle(name)) is not None and bundle not in told]
    for begin in range(0, len(asked), OWNERS_AT_ONCE_MAX):
        some = asked[begin : begin + OWNERS_AT_ONCE_MAX]
        owners = await asyncio.gather(*map(find_owner, some))
        for bundle, owner in zip(some, owners, strict=True):
            load = brokers.get(owner or "")
            if load is not None:
                # Made in `broker_load`: only its type forbids readers to write.
                assert isinstance(load.bundles, dict)
                load.bundles[bundle] = EMPTY


async def take_snapshot(
    reports: Mapping[str, BrokerReport],
    policies: ClusterPolicies,
    averages: Mapping[str, BundleAverages],
    now_ms: int,
    *,
    failure_domains: bool,
    find_owner: FindOwner,
) -> LoadSnapshot:
    """Everything. `StoreUnavailable` while policies have to be read and cannot."""
    brokers = {broker_id: broker_load(report) for broker_id, report in reports.items() if takes_part(report)}
    namespaces = {str(bundle.namespace) for load in brokers.values() for bundle in load.bundles}
    facts = await policies.namespaces(sorted(namespaces))
    if not all(report.ours for report in reports.values()):
        names = [name for namespace, fact in facts.items() for name in fact.bundle_names(namespace)]
        await add_idle_bundles(brokers, names, find_owner)
    long_term = {bundle: average_load(one) for name, one in averages.items() if (bundle := parse_bundle(name))}
    return LoadSnapshot(
        now_ms=now_ms,
        brokers=brokers,
        bundle_counts={name: fact.bundle_count for name, fact in facts.items()},
        anti_affinity_groups={
            name: fact.anti_affinity_group for name, fact in facts.items() if fact.anti_affinity_group is not None
        },
        failure_domains=await policies.failure_domains() if failure_domains else {},
        isolation_policies=await policies.isolation_policies(),
        bundle_averages=long_term,
    )
