"""The cluster as one round of decisions sees it: sums over a snapshot, kept right while bundles are moved on paper."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final

from magnetar.balance.model import BrokerLoad, BundleLoad, LoadSnapshot, ResourceUsages
from magnetar.balance.settings import LoadWeights, ResourceWeights
from magnetar.core.bundle import BundleName
from magnetar.core.limits import MIB

UNKNOWN_LOAD: Final = BundleLoad(msg_rate_in=50, msg_rate_out=50, msg_throughput_in=50_000, msg_throughput_out=50_000)
"""What a bundle that nobody has reported on is taken to cost (Pulsar `ModularLoadManagerImpl`'s default stats)."""

NO_LOAD: Final = BundleLoad()
_PINNED_TENANTS: Final = ("pulsar", "sla-monitor")


def pinned_broker(bundle: BundleName) -> str | None:
    """The broker that alone may serve a bundle, by its namespace's name: heartbeats in `pulsar/<brokerId>`, and
    `sla-monitor/<brokerId>`. Such bundles are never moved, split or counted."""
    namespace = bundle.namespace
    if namespace.tenant in _PINNED_TENANTS and namespace.name.rpartition(":")[2].isdigit() and ":" in namespace.name:
        return namespace.name
    return None


def exact(weight: float) -> float:
    """Rounded to a 64th: such numbers add up to the same in any order, so that equal loads stay equal."""
    return math.floor(weight * 64 + 0.5) / 64


def weigh(load: BundleLoad, weights: LoadWeights) -> float:
    """The load of a bundle as one number: messages per second that would cost about as much."""
    return exact(
        weights.bundle
        + weights.topic * load.topics
        + weights.session * load.sessions
        + weights.message * load.msg_rate
        + weights.mebibyte * load.msg_throughput / MIB
    )


def usage_of(usages: ResourceUsages, weights: ResourceWeights) -> float:
    """The fullest resource, each times its weight, in percent (Pulsar `getMaxResourceUsageWithWeight`)."""
    return max(
        usages.cpu * weights.cpu,
        usages.memory * weights.memory,
        usages.direct_memory * weights.direct_memory,
        usages.bandwidth_in * weights.bandwidth_in,
        usages.bandwidth_out * weights.bandwidth_out,
    )


class BundleView:
    """One bundle that may be moved."""

    __slots__ = ("average", "load", "name", "namespace", "weight")

    def __init__(self, name: BundleName, load: BundleLoad, average: BundleLoad, weight: float) -> None:
        self.name = name
        self.namespace = str(name.namespace)
        self.load = load
        self.average = average
        self.weight = weight
        """Its smoothed load as one number."""


class BrokerView:
    """One broker, with the bundles that it serves or is about to."""

    __slots__ = (
        "bundles",
        "load",
        "msg_rate",
        "msg_rate_average",
        "namespaces",
        "throughput",
        "topics",
        "usage",
        "weight",
    )

    def __init__(self, load: BrokerLoad, usage: float) -> None:
        self.load = load
        self.usage = usage
        """Its smoothed usage in percent; moves on paper shift it by what the bundle's share should be."""
        self.bundles: dict[BundleName, BundleView] = {}
        self.namespaces: dict[str, int] = {}
        """How many bundles of each namespace it serves."""
        self.weight = 0.0
        self.msg_rate = 0.0
        self.msg_rate_average = 0.0
        self.throughput = 0.0
        self.topics = 0

    @property
    def broker_id(self) -> str:
        """Its id, `host:port`."""
        return self.load.broker_id

    def usage_share(self, weight: float) -> float:
        """How much of its usage a load of this weight stands for."""
        return self.usage * weight / self.weight if self.weight > 0 else 0.0

    def add(self, bundle: BundleView) -> None:
        """Count a bundle that it does not serve yet."""
        assert bundle.name not in self.bundles
        self.bundles[bundle.name] = bundle
        self._count(bundle, 1)

    def remove(self, name: BundleName) -> BundleView:
        """Count a bundle no more."""
        bundle = self.bundles.pop(name)
        self._count(bundle, -1)
        return bundle

    def _count(self, bundle: BundleView, sign: int) -> None:
        self.namespaces[bundle.namespace] = self.namespaces.get(bundle.namespace, 0) + sign
        self.weight += sign * bundle.weight
        self.msg_rate += sign * bundle.load.msg_rate
        self.msg_rate_average += sign * bundle.average.msg_rate
        self.throughput += sign * bundle.load.msg_throughput
        self.topics += sign * bundle.load.topics


def arriving_usage(bundle: BundleView, source: BrokerView, destination: BrokerView) -> float:
    """What a bundle should add to the usage of the broker that it is moved to, in percent.

    The larger of what it seems to make at its source and what such a load makes at its destination, which may be the
    slower machine; that is not asked of a broker with much less load, whose usage has other causes."""
    share = source.usage_share(bundle.weight)
    if destination.weight >= source.weight / 2:
        share = max(share, destination.usage_share(bundle.weight))
    return share


class ClusterView:
    """All brokers, in the order of their ids, so that nothing depends on how a mapping was filled."""

    __slots__ = ("brokers", "snapshot")

    def __init__(self, snapshot: LoadSnapshot, brokers: Mapping[str, BrokerView]) -> None:
        self.snapshot = snapshot
        self.brokers = {broker_id: brokers[broker_id] for broker_id in sorted(brokers)}

    def move(self, name: BundleName, source: str, destination: str) -> None:
        """A bundle goes from one broker to another, with the share of the usage that it should make."""
        origin, target = self.brokers[source], self.brokers[destination]
        share = origin.usage_share(origin.bundles[name].weight)
        arriving = arriving_usage(origin.bundles[name], origin, target)
        bundle = origin.remove(name)
        origin.usage = max(0.0, origin.usage - share)
        target.add(bundle)
        target.usage += arriving

    def owner(self, name: BundleName) -> str | None:
        """The broker that serves a bundle or is about to."""
        return next((broker_id for broker_id, broker in self.brokers.items() if name in broker.bundles), None)

    def __iter__(self) -> Iterator[BrokerView]:
        return iter(self.brokers.values())
