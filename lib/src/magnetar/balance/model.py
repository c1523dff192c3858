"""What load management looks at and what it decides.

Rates are per second, throughputs in bytes per second, usages in percent. The quantities are those of Pulsar's load
reports (`LocalBrokerData`, `NamespaceBundleStats`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from magnetar.balance.isolation import IsolationPolicy
from magnetar.core.bundle import BundleName


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleLoad:
    """What one bundle costs the broker that serves it."""

    msg_rate_in: float = 0.0
    msg_rate_out: float = 0.0
    msg_throughput_in: float = 0.0
    msg_throughput_out: float = 0.0
    topics: int = 0
    producers: int = 0
    consumers: int = 0

    @property
    def msg_rate(self) -> float:
        """Messages per second in both directions."""
        return self.msg_rate_in + self.msg_rate_out

    @property
    def msg_throughput(self) -> float:
        """Bytes per second in both directions."""
        return self.msg_throughput_in + self.msg_throughput_out

    @property
    def sessions(self) -> int:
        """Producers and consumers."""
        return self.producers + self.consumers


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceUsages:
    """How full a broker's host or container is, each in percent of its limit."""

    cpu: float = 0.0
    memory: float = 0.0
    direct_memory: float = 0.0
    bandwidth_in: float = 0.0
    bandwidth_out: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLoad:
    """One broker that is alive."""

    broker_id: str
    started_ms: int = 0
    usages: ResourceUsages = field(default_factory=ResourceUsages)
    bundles: Mapping[BundleName, BundleLoad] = field(default_factory=dict)
    """What it serves; a bundle that it does not report on yet has an empty load."""
    reported_ms: int | None = None
    """When it was heard, on the snapshot's clock; None is just now. Pulsar's brokers write none for up to 15 minutes
    while little has changed, and a move is not taken to have failed because an old report does not show it."""
    draining: bool = False
    """It is about to stop: everything is to leave, nothing is to come."""
    persistent_topics: bool = True
    non_persistent_topics: bool = True
    version: str = ""

    @property
    def msg_rate(self) -> float:
        """Messages per second in both directions, of all its bundles."""
        return sum(load.msg_rate for load in self.bundles.values())

    @property
    def msg_throughput(self) -> float:
        """Bytes per second in both directions, of all its bundles."""
        return sum(load.msg_throughput for load in self.bundles.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSnapshot:
    """The cluster at one moment."""

    now_ms: int
    """By a clock that never goes back nor jumps: windows are counted by it. What it counts from is its owner's."""
    brokers: Mapping[str, BrokerLoad]
    """The load of each broker, by broker id."""
    bundle_counts: Mapping[str, int] = field(default_factory=dict)
    """How many bundles each namespace (`tenant/namespace`) has."""
    anti_affinity_groups: Mapping[str, str] = field(default_factory=dict)
    """Namespaces that must not share a broker or failure domain, if possible: namespace to its group."""
    failure_domains: Mapping[str, str] = field(default_factory=dict)
    """Broker id to its failure domain."""
    isolation_policies: tuple[IsolationPolicy, ...] = ()
    bundle_averages: Mapping[BundleName, BundleLoad] = field(default_factory=dict)
    """Long-term averages of bundles (`longTermData` of `/loadbalance/bundle-data`), also of those that nobody owns. A
    bundle without one is taken at what its broker reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Cut a bundle in two or more."""

    bundle: BundleName
    broker_id: str
    algorithm: str
    """One of Pulsar's names, such as `range_equally_divide`."""
    reason: str
    """For people: what was seen and which limit it passed, with the numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unload:
    """Let a bundle go from its broker."""

    bundle: BundleName
    source: str
    destination: str | None
    """The broker that is to take it, or None to let placement decide."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a bundle that nobody owns should go."""

    bundle: BundleName
    broker_id: str | None
    """None when no broker may take it."""
    reason: str


Decision: TypeAlias = Split | Unload


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord:
    """What was decided when; for the admin API and the log."""

    decided_ms: int
    decision: Decision | Placement
