"""Pulsar's names of `LoadSettings`; loaded by those who read or tell settings by name."""

from __future__ import annotations

from typing import Final

from magnetar.broker.settings.load import DRIVER_SETTING
from magnetar.core.settings_file import SettingNames

LOAD_NAMES: Final = SettingNames(
    fields={
        "brokerShutdownTimeoutMs": "unload_after_stop_ms_max",
        "failureDomainsEnabled": "failure_domains",
        "loadBalancerAutoBundleSplitEnabled": "auto_split",
        "loadBalancerAutoUnloadSplitBundlesEnabled": "unload_after_split",
        "loadBalancerEnabled": "enabled",
        "loadBalancerHistoryEnabled": "history_enabled",
        "loadBalancerHistoryIntervalSeconds": "history_interval_seconds",
        "loadBalancerHistoryRetentionMinutes": "history_retention_seconds",
        "loadBalancerHistoryRetentionSizeInMB": "history_retention_bytes",
        "loadBalancerHostUsageCheckIntervalMinutes": "host_usage_seconds",
        "loadBalancerMaxNumberOfBundlesInBundleLoadReport": "averaged_bundles_per_broker_max",
        "loadBalancerOverrideBrokerNicSpeedGbps": "nic_speed_gbps",
        "loadBalancerReportUpdateMaxIntervalMinutes": "report_interval_seconds_max",
        "loadBalancerReportUpdateMinIntervalMillis": "report_interval_ms_min",
        "loadBalancerReportUpdateThresholdPercentage": "report_change_percent",
        "loadBalancerResourceQuotaUpdateIntervalMinutes": "averages_seconds",
        "loadBalancerSheddingEnabled": "shedding_enabled",
        "loadBalancerSheddingIntervalMinutes": "round_seconds",
        DRIVER_SETTING: "driver",
        "magnetarDrainUnloadsPerSecond": "unloads_per_second_max",
    },
)
"""Pulsar's names of the fields of `LoadSettings`, and those of our own."""
