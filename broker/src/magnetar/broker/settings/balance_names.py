"""What the names of load management in a `broker.conf` mean to `magnetar.balance`."""

from __future__ import annotations

from typing import Final

from magnetar.balance.settings import PlacementStrategy, SheddingStrategy
from magnetar.core.settings_file import SettingNames, Unit


def _shedding(text: str) -> SheddingStrategy:
    """By the last part of a class name. Pulsar's AvgShedder is a shedder and a placement at once; it is not there."""
    names = [member.value for member in SheddingStrategy]
    name = text.rpartition(".")[2]
    if name not in names:
        raise ValueError("the class name of one of " + ", ".join(names))
    return SheddingStrategy(name)


def _placement(text: str) -> PlacementStrategy:
    names = [member.value for member in PlacementStrategy]
    name = text.rpartition(".")[2]
    if name not in names:
        raise ValueError("the class name of one of " + ", ".join(names))
    return PlacementStrategy(name)


BALANCE_NAMES: Final = SettingNames(
    fields={
        "defaultNamespaceBundleSplitAlgorithm": "split.algorithm",
        "failureDomainsEnabled": "failure_domains_enabled",
        "flowOrQpsDifferenceThresholdPercentage": "split.difference_percent",
        "loadBalancerAutoBundleSplitEnabled": "split.enabled",
        "loadBalancerAutoUnloadSplitBundlesEnabled": "split.unload_parts",
        "loadBalancerAverageResourceUsageDifferenceThresholdPercentage": "usage_difference_percent",
        "loadBalancerBalancedShedderHistoryShare": "balanced.load_history_share",
        "loadBalancerBalancedShedderMaxMovesPerRound": "balanced.moves_per_round_max",
        "loadBalancerBalancedShedderSettleRatio": "balanced.settle_ratio",
        "loadBalancerBalancedShedderTriggerRatio": "balanced.trigger_ratio",
        "loadBalancerBandwithInResourceWeight": "resource_weights.bandwidth_in",
        "loadBalancerBandwithOutResourceWeight": "resource_weights.bandwidth_out",
        "loadBalancerBandwidthInResourceWeight": "resource_weights.bandwidth_in",
        "loadBalancerBandwidthOutResourceWeight": "resource_weights.bandwidth_out",
        "loadBalancerBrokerMaxTopics": "broker_topics_max",
        "loadBalancerBrokerOverloadedThresholdPercentage": "overloaded_percent",
        "loadBalancerBrokerThresholdShedderPercentage": "threshold.usage_difference_percent",
        "loadBalancerBundleUnloadMinThroughputThreshold": "threshold.unload_throughput_bytes_min",
        "loadBalancerCPUResourceWeight": "resource_weights.cpu",
        "loadBalancerDecisionHistorySize": "history_length_max",
        "loadBalancerDirectMemoryResourceWeight": "resource_weights.direct_memory",
        "loadBalancerDistributeBundlesEvenlyEnabled": "distribute_bundles_evenly",
        "loadBalancerDrainMaxMovesPerRound": "drain_moves_per_round_max",
        "loadBalancerHistoryResourcePercentage": "usage_history_share",
        "loadBalancerLoadPlacementStrategy": "placement_strategy",
        "loadBalancerLoadSheddingStrategy": "shedding_strategy",
        "loadBalancerMaxNumberOfBundlesToSplitPerCycle": "split.splits_per_round_max",
        "loadBalancerMemoryResourceWeight": "resource_weights.memory",
        "loadBalancerMsgRateDifferenceShedderThreshold": "uniform.msg_rate_difference_percent",
        "loadBalancerMsgThroughputMultiplierDifferenceShedderThreshold": "uniform.throughput_ratio",
        "loadBalancerNamespaceBundleMaxBandwidthMbytes": "split.bundle_bandwidth_bytes_max",
        "loadBalancerNamespaceBundleMaxMsgRate": "split.bundle_msg_rate_max",
        "loadBalancerNamespaceBundleMaxSessions": "split.bundle_sessions_max",
        "loadBalancerNamespaceBundleMaxTopics": "split.bundle_topics_max",
        "loadBalancerNamespaceBundleSplitConditionHitCountThreshold": "split.hits",
        "loadBalancerNamespaceMaximumBundles": "split.namespace_bundles_max",
        "loadBalancerSheddingConditionHitCountThreshold": "balanced.hits",
        "loadBalancerSheddingEnabled": "shedding_enabled",
        "loadBalancerSheddingGracePeriodMinutes": "shedding_grace_ms",
        "loadBalancerSplitCoolDownSeconds": "split.cool_down_ms",
        "lowerBoundarySheddingEnabled": "threshold.lower_boundary",
        "maxUnloadBundleNumPerShedding": "uniform.unloads_per_round_max",
        "maxUnloadPercentage": "uniform.unload_share_max",
        "minUnloadMessage": "uniform.unload_msg_rate_min",
        "minUnloadMessageThroughput": "uniform.unload_throughput_bytes_min",
        "namespaceBundleUnloadingTimeoutMs": "unloading_timeout_ms",
        "preferLaterVersions": "prefer_later_versions",
        "supportedNamespaceBundleSplitAlgorithms": "split.algorithms",
    },
    units={"loadBalancerBundleUnloadMinThroughputThreshold": Unit.MIB},
    readers={
        "loadBalancerLoadPlacementStrategy": _placement,
        "loadBalancerLoadSheddingStrategy": _shedding,
    },
)
"""Pulsar's names of the fields of `BalanceSettings`, and some of our own."""
