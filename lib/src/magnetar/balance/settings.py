"""What an operator may set about load management, under Pulsar's own meanings (`ServiceConfiguration`).

Settings that Pulsar lacks say «ours». Limits that only say when load is looked at and reported are the broker's.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Final

from magnetar.core.errors import SettingError
from magnetar.core.limits import MIB
from magnetar.core.setting import class_named, setting

MINUTE_MS: Final = 60_000

RANGE_EQUALLY: Final = "range_equally_divide"
TOPIC_COUNT_EQUALLY: Final = "topic_count_equally_divide"
SPECIFIED_POSITIONS: Final = "specified_positions_divide"
FLOW_OR_QPS_EQUALLY: Final = "flow_or_qps_equally_divide"
SPLIT_ALGORITHMS: Final = (RANGE_EQUALLY, TOPIC_COUNT_EQUALLY, SPECIFIED_POSITIONS, FLOW_OR_QPS_EQUALLY)
"""Pulsar's four ways to split a bundle, by its names (`NamespaceBundleSplitAlgorithm`)."""


class SheddingStrategy(enum.Enum):
    """Who decides which bundles leave a broker, by the last part of the class name that Pulsar's setting holds."""

    BALANCED = "BalancedShedder"
    """Ours: levels the weighted load of all brokers, with traffic or without (`magnetar.balance.balanced`)."""
    THRESHOLD = "ThresholdShedder"
    OVERLOAD = "OverloadShedder"
    UNIFORM = "UniformLoadShedder"
    AVG = "AvgShedder"
    """Pulsar's is a shedder and a placement at once, and so it is named twice."""


class PlacementStrategy(enum.Enum):
    """Who chooses among the brokers that may take a bundle, by the last part of Pulsar's class name."""

    LEAST_LOAD = "LeastLoad"
    """Ours: the broker with the least weighted load, in which an idle bundle counts too."""
    LEAST_MESSAGE_RATE = "LeastLongTermMessageRate"
    LEAST_RESOURCE_USAGE = "LeastResourceUsageWithWeight"
    ROUND_ROBIN = "RoundRobinBrokerSelector"
    AVG = "AvgShedder"
    """Any of them: what it sheds has its destination already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceWeights:
    """How much each resource's usage counts; a broker's usage is the largest of the products."""

    cpu: float = setting("loadBalancerCPUResourceWeight", 1.0, low=0, high=1_000, dynamic="broker")
    memory: float = setting("loadBalancerMemoryResourceWeight", 0.0, low=0, high=1_000, dynamic="broker")
    direct_memory: float = setting("loadBalancerDirectMemoryResourceWeight", 0.0, low=0, high=1_000, dynamic="broker")
    bandwidth_in: float = setting(
        "loadBalancerBandwidthInResourceWeight",
        1.0,
        older="loadBalancerBandwithInResourceWeight",
        low=0,
        high=1_000,
        dynamic="broker",
    )
    bandwidth_out: float = setting(
        "loadBalancerBandwidthOutResourceWeight",
        1.0,
        older="loadBalancerBandwithOutResourceWeight",
        low=0,
        high=1_000,
        dynamic="broker",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadWeights:
    """Ours: what makes up the load of a bundle, counted in messages per second that would cost about as much.

    The first term makes idle bundles spread evenly, without a second mode that one could flap in and out of: traffic
    far below it is negligible, traffic far above it is all that counts. It is what Pulsar takes a bundle to cost about
    which it knows nothing (50 messages per second in, 50 out). The others keep the proportions of Pulsar's limits for a
    split: 30 000 messages per second, 100 MiB per second, 1 000 topics, 1 000 sessions, the last two weighed a third.
    """

    bundle: float = 100.0
    topic: float = 10.0
    session: float = 10.0
    message: float = 1.0
    mebibyte: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSettings:
    """When bundles are split by themselves."""

    enabled: bool = setting("loadBalancerAutoBundleSplitEnabled", True)
    unload_parts: bool = setting("loadBalancerAutoUnloadSplitBundlesEnabled", True)
    """Whoever does the split lets the parts go from their broker too."""
    algorithm: str = setting("defaultNamespaceBundleSplitAlgorithm", RANGE_EQUALLY, dynamic="broker")
    algorithms: tuple[str, ...] = setting("supportedNamespaceBundleSplitAlgorithms", SPLIT_ALGORITHMS, dynamic="broker")
    bundle_topics_max: int = setting("loadBalancerNamespaceBundleMaxTopics", 1_000, below_zero=0, dynamic="broker")
    bundle_sessions_max: int = setting("loadBalancerNamespaceBundleMaxSessions", 1_000, below_zero=0, dynamic="broker")
    """Producers and consumers; -1 or 0 is no limit."""
    bundle_msg_rate_max: int = setting("loadBalancerNamespaceBundleMaxMsgRate", 30_000, below_zero=0, dynamic="broker")
    """Messages per second in both directions."""
    bundle_bandwidth_bytes_max: int = setting(
        "loadBalancerNamespaceBundleMaxBandwidthMbytes", 100 * MIB, below_zero=0, dynamic="broker"
    )
    """Bytes per second in both directions."""
    namespace_bundles_max: int = setting("loadBalancerNamespaceMaximumBundles", 128, low=1, dynamic="broker")
    difference_percent: float = setting("flowOrQpsDifferenceThresholdPercentage", 10, dynamic="broker")
    """How far above its maximum a bundle must be for that algorithm."""
    hits: int = setting("loadBalancerNamespaceBundleSplitConditionHitCountThreshold", 3, dynamic="broker")
    """Rounds in a row in which it must be too large."""
    splits_per_round_max: int = setting("loadBalancerMaxNumberOfBundlesToSplitPerCycle", 10, dynamic="broker")
    cool_down_ms: int = setting("loadBalancerSplitCoolDownSeconds", 5 * MINUTE_MS, ours=True)
    """How long a bundle's parts are left alone before they are split in
    turn, so that what the first split did has been seen in several reports."""

    def __post_init__(self) -> None:
        for name in (self.algorithm, *self.algorithms):
            if name not in SPLIT_ALGORITHMS:
                raise SettingError(
                    f"defaultNamespaceBundleSplitAlgorithm and supportedNamespaceBundleSplitAlgorithms: {name!r} is "
                    f"none of {', '.join(SPLIT_ALGORITHMS)}"
                )
        if self.algorithm not in self.algorithms:
            raise SettingError(
                f"defaultNamespaceBundleSplitAlgorithm {self.algorithm!r} is not among "
                "supportedNamespaceBundleSplitAlgorithms"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdSettings:
    """`ThresholdShedder`'s."""

    usage_difference_percent: float = setting("loadBalancerBrokerThresholdShedderPercentage", 10, dynamic="broker")
    """How far above the average a broker must be."""
    unload_throughput_bytes_min: float = setting(
        "loadBalancerBundleUnloadMinThroughputThreshold", 10.0 * MIB, unit="mib", dynamic="broker"
    )
    """Nothing is moved for less."""
    lower_boundary: bool = setting("lowerBoundarySheddingEnabled", False)
    """The fullest broker gives to one that is far below the average."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformSettings:
    """`UniformLoadShedder`'s."""

    msg_rate_difference_percent: float = setting(
        "loadBalancerMsgRateDifferenceShedderThreshold", 50, below_zero=0, dynamic="broker"
    )
    """0 or less: rates do not count."""
    throughput_ratio: float = setting(
        "loadBalancerMsgThroughputMultiplierDifferenceShedderThreshold", 4, below_zero=0, dynamic="broker"
    )
    """0 or less: throughputs do not count."""
    unload_share_max: float = setting("maxUnloadPercentage", 0.2, low=0, high=1, dynamic="broker")
    """How much of the difference one round moves."""
    unload_msg_rate_min: float = setting("minUnloadMessage", 1_000, dynamic="broker")
    """Messages per second that a round must want to move; it moves nothing for less."""
    unload_throughput_bytes_min: int = setting("minUnloadMessageThroughput", MIB, dynamic="broker")
    """Bytes per second that a round must want to move; it moves nothing for less."""
    unloads_per_round_max: int = setting("maxUnloadBundleNumPerShedding", -1, below_zero=-1, dynamic="broker")
    """Bundles that one round unloads at most; -1: any number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AvgSettings:
    """`AvgShedder`'s; it moves as much as `UniformSettings` says."""

    low_percent: float = setting("loadBalancerAvgShedderLowThreshold", 15, dynamic="broker")
    """By how much the usages of two brokers must differ for the one to give to the other, at last."""
    high_percent: float = setting("loadBalancerAvgShedderHighThreshold", 40, dynamic="broker")
    """By how much they must differ for that to happen soon."""
    low_hits: int = setting("loadBalancerAvgShedderHitCountLowThreshold", 8, dynamic="broker")
    """Rounds in a row with a difference of the low threshold before anything moves."""
    high_hits: int = setting("loadBalancerAvgShedderHitCountHighThreshold", 2, dynamic="broker")
    """Rounds in a row with a difference of the high threshold before anything moves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancedSettings:
    """`BalancedShedder`'s, all ours but one."""

    trigger_ratio: float = setting("loadBalancerBalancedShedderTriggerRatio", 1.25, ours=True, low=1, high=1_000)
    """Two brokers are out of balance when one bears this many times the
    other's load."""
    settle_ratio: float = setting("loadBalancerBalancedShedderSettleRatio", 1.1, ours=True, low=1, high=1_000)
    """Once at it, moves go on until no two brokers differ more than this."""
    hits: int = setting("loadBalancerSheddingConditionHitCountThreshold", 3, dynamic="broker")
    """Rounds in a row in which a broker must be too loaded."""
    load_history_share: float = setting("loadBalancerBalancedShedderHistoryShare", 0.75, ours=True, low=0, high=1)
    """How much of a bundle's load is what it was before, in each round."""
    moves_per_round_max: int = setting("loadBalancerBalancedShedderMaxMovesPerRound", 0, ours=True)
    """0 is 10, or one in 50 of a larger cluster's bundles."""
    weights: LoadWeights = field(default_factory=LoadWeights)

    def __post_init__(self) -> None:
        if not 1 <= self.settle_ratio <= self.trigger_ratio:
            raise SettingError(
                f"loadBalancerBalancedShedderSettleRatio {self.settle_ratio} must lie between 1 and "
                f"loadBalancerBalancedShedderTriggerRatio {self.trigger_ratio}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceSettings:
    """All of load management's settings."""

    shedding_enabled: bool = setting("loadBalancerSheddingEnabled", True)
    """Whether bundles leave loaded brokers. Draining brokers are emptied either way."""
    shedding_strategy: SheddingStrategy = setting(
        "loadBalancerLoadSheddingStrategy",
        SheddingStrategy.BALANCED,
        read=class_named(SheddingStrategy),
        dynamic="broker",
    )
    placement_strategy: PlacementStrategy = setting(
        "loadBalancerLoadPlacementStrategy", PlacementStrategy.LEAST_LOAD, read=class_named(PlacementStrategy)
    )
    shedding_grace_ms: int = setting("loadBalancerSheddingGracePeriodMinutes", 30 * MINUTE_MS, dynamic="broker")
    """A bundle that was moved stays for this long."""
    unloading_timeout_ms: int = setting("namespaceBundleUnloadingTimeoutMs", MINUTE_MS, dynamic="broker")
    distribute_bundles_evenly: bool = setting("loadBalancerDistributeBundlesEvenlyEnabled", True, dynamic="broker")
    """New bundles go to brokers with the fewest of their namespace; with
    `LeastLoad`, of those that are about as little loaded as the least."""
    broker_topics_max: int = setting("loadBalancerBrokerMaxTopics", 50_000, dynamic="broker")
    """Brokers with more get no bundles, as long as there are others."""
    overloaded_percent: float = setting("loadBalancerBrokerOverloadedThresholdPercentage", 85, dynamic="broker")
    usage_history_share: float = setting("loadBalancerHistoryResourcePercentage", 0.9, low=0, high=1, dynamic="broker")
    """How much of a usage is what it was before, in each round."""
    usage_difference_percent: float = setting(
        "loadBalancerAverageResourceUsageDifferenceThresholdPercentage", 10, dynamic="broker"
    )
    """`LeastResourceUsageWithWeight` takes brokers
    this far below the average."""
    prefer_later_versions: bool = setting("preferLaterVersions", False, dynamic="broker")
    """Bundles go to the brokers of the latest version alone."""
    failure_domains_enabled: bool = setting("failureDomainsEnabled", False, dynamic="broker")
    """Whether anti-affinity looks at failure domains before it looks at brokers."""
    drain_moves_per_round_max: int = setting("loadBalancerDrainMaxMovesPerRound", 100, ours=True, low=1)
    """Each of them closes topics on the draining broker and loads them
    elsewhere, and clients look them up again."""
    history_length_max: int = setting("loadBalancerDecisionHistorySize", 1_000, ours=True, low=0, high=1_000_000)
    """Decisions kept for people; about 1 kB each."""
    resource_weights: ResourceWeights = field(default_factory=ResourceWeights)
    split: SplitSettings = field(default_factory=SplitSettings)
    threshold: ThresholdSettings = field(default_factory=ThresholdSettings)
    uniform: UniformSettings = field(default_factory=UniformSettings)
    avg: AvgSettings = field(default_factory=AvgSettings)
    balanced: BalancedSettings = field(default_factory=BalancedSettings)
