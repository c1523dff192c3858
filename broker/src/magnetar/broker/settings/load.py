"""What an operator may set about load reports and load management, under Pulsar's names (`ServiceConfiguration`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from magnetar.core.errors import SettingError
from magnetar.core.limits import MIB

LEADER: Final = "leader"
CONTROL: Final = "control"
DRIVERS: Final = (LEADER, CONTROL)
"""Who moves and splits bundles: the elected leader broker by itself, or whoever calls the control service."""

DRIVER_SETTING: Final = "magnetarLoadBalanceDriver"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """Load reports, the leader's rounds and the graceful stop of one broker."""

    enabled: bool = True
    """`loadBalancerEnabled`: reports are renewed and the leader acts. A broker registers in any case."""
    shedding_enabled: bool = True
    """`loadBalancerSheddingEnabled`: the leader moves bundles."""
    auto_split: bool = True
    """`loadBalancerAutoBundleSplitEnabled`: the leader splits bundles."""
    unload_after_split: bool = True
    """`loadBalancerAutoUnloadSplitBundlesEnabled`: what was split is placed anew."""
    driver: str = LEADER
    """One of `DRIVERS`."""
    report_change_percent: int = 10
    """`loadBalancerReportUpdateThresholdPercentage`: what must have changed for a new report."""
    report_interval_ms_min: int = 5_000
    """`loadBalancerReportUpdateMinIntervalMillis`: reports are so far apart at least."""
    report_interval_seconds_max: int = 15 * 60
    """`loadBalancerReportUpdateMaxIntervalMinutes`: there is a new report at the latest after this, changed or not."""
    host_usage_seconds: int = 60
    """`loadBalancerHostUsageCheckIntervalMinutes`: over how long CPU and network are averaged."""
    nic_speed_gbps: float | None = None
    """`loadBalancerOverrideBrokerNicSpeedGbps`: of each network interface, where the system does not tell."""
    round_seconds: int = 60
    """`loadBalancerSheddingIntervalMinutes`: how often the leader decides."""
    averages_seconds: int = 15 * 60
    """`loadBalancerResourceQuotaUpdateIntervalMinutes`: how often the leader stores averages of bundles and brokers."""
    averaged_bundles_per_broker_max: int = 10
    """`loadBalancerMaxNumberOfBundlesInBundleLoadReport`: of which averages are stored, the busiest; 0: all."""
    failure_domains: bool = False
    """`failureDomainsEnabled`: namespaces of one anti-affinity group go to different domains first."""
    unload_after_stop_ms_max: int = 60_000
    """`brokerShutdownTimeoutMs`: how long a stopping broker hands its bundles over one after the other."""
    unloads_per_second_max: int = 100
    """`magnetarDrainUnloadsPerSecond`: how fast bundles leave a broker that drains or stops, so that their clients'
    lookups do not come to the others all at once."""

    history_enabled: bool = False
    """Ours, `loadBalancerHistoryEnabled`: the leader writes what all brokers do to `pulsar/system/load-history`, for
    planning (`magnetar.broker.load.history` says what that costs). Brokers that are processes of their own do unless
    told otherwise; in a standalone nobody expects the topic."""
    history_interval_seconds: int = 5 * 60
    """Ours, `loadBalancerHistoryIntervalSeconds`: how often."""
    history_retention_seconds: int = 30 * 24 * 3600
    """Ours, `loadBalancerHistoryRetentionMinutes`: how long the history is kept at least, in minutes; four weeks show
    what a week is like."""
    history_retention_bytes: int = 1024 * MIB
    """Ours, `loadBalancerHistoryRetentionSizeInMB`: how much of it is kept at most; 0 keeps nothing, as in Pulsar's
    policies."""

    def __post_init__(self) -> None:
        if self.driver not in DRIVERS:
            raise SettingError(f"{DRIVER_SETTING} is {self.driver!r}: one of {', '.join(DRIVERS)}")
        for name in (
            "report_interval_ms_min",
            "round_seconds",
            "averages_seconds",
            "unloads_per_second_max",
            "history_interval_seconds",
        ):
            if getattr(self, name) <= 0:
                raise SettingError(f"{name} is {getattr(self, name)}: it must be more than 0")
        if self.nic_speed_gbps is not None and self.nic_speed_gbps <= 0:
            raise SettingError(f"nic_speed_gbps is {self.nic_speed_gbps}: it must be more than 0")


SWITCHES: Final = {
    "loadBalancerEnabled": "enabled",
    "loadBalancerSheddingEnabled": "shedding_enabled",
    "loadBalancerAutoBundleSplitEnabled": "auto_split",
    "loadBalancerAutoUnloadSplitBundlesEnabled": "unload_after_split",
    DRIVER_SETTING: "driver",
}
"""What the cluster's dynamic settings may change while brokers run (`/admin/configuration`)."""


def switched(settings: LoadSettings, dynamic: Mapping[str, object]) -> LoadSettings:
    """The settings under the cluster's dynamic ones; values that make no sense there change nothing."""
    from magnetar.core.settings_file import parse_value  # Only a cluster that sets one needs it.

    for name, field in SWITCHES.items():
        text = dynamic.get(name)
        if isinstance(text, str) and text:
            try:
                change: dict[str, Any] = {field: parse_value(text, type(getattr(settings, field)))}
                settings = replace(settings, **change)
            except (ValueError, SettingError):
                continue
    return settings
