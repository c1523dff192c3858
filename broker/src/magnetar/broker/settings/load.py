"""What an operator may set about load reports and load management, under Pulsar's names (`ServiceConfiguration`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from magnetar.core.errors import SettingError
from magnetar.core.limits import MIB
from magnetar.core.setting import rows_of, setting

LEADER: Final = "leader"
CONTROL: Final = "control"
DRIVERS: Final = (LEADER, CONTROL)
"""Who moves and splits bundles: the elected leader broker by itself, or whoever calls the control service."""

DRIVER_SETTING: Final = "magnetarLoadBalanceDriver"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """Load reports, the leader's rounds and the graceful stop of one broker."""

    enabled: bool = setting("loadBalancerEnabled", True, dynamic="load")
    """Reports are renewed and the leader acts. A broker registers in any case."""
    shedding_enabled: bool = setting("loadBalancerSheddingEnabled", True, dynamic="load")
    """Whether the leader moves bundles from brokers with much load to others."""
    auto_split: bool = setting("loadBalancerAutoBundleSplitEnabled", True, dynamic="load")
    """Whether the leader splits bundles that have too much load."""
    unload_after_split: bool = setting("loadBalancerAutoUnloadSplitBundlesEnabled", True, dynamic="load")
    """Whether the parts of a bundle that was split are unloaded and placed anew."""
    driver: str = setting("magnetarLoadBalanceDriver", LEADER, dynamic="load", ours=True)
    """Who moves and splits bundles: one of `DRIVERS`, the leader broker or the control service's caller."""
    report_change_percent: int = setting("loadBalancerReportUpdateThresholdPercentage", 10, dynamic="broker")
    """Percent by which a broker's load must have changed for a new report."""
    report_interval_ms_min: int = setting("loadBalancerReportUpdateMinIntervalMillis", 5_000, low=1, dynamic="broker")
    """Milliseconds between two load reports, at least."""
    report_interval_seconds_max: int = setting(
        "loadBalancerReportUpdateMaxIntervalMinutes", 15 * 60, low=60, dynamic="broker"
    )
    """Seconds after which a new load report is written, changed or not."""
    host_usage_seconds: int = setting("loadBalancerHostUsageCheckIntervalMinutes", 60, low=60, dynamic="broker")
    """Seconds over which CPU and network usage are averaged."""
    nic_speed_gbps: float | None = setting("loadBalancerOverrideBrokerNicSpeedGbps", None, low=0.001, high=1_000_000)
    """Gbit/s of each network interface, which count instead of what the system tells; None: the system's word."""
    round_seconds: int = setting("loadBalancerSheddingIntervalMinutes", 60, low=60, dynamic="broker")
    """Seconds between two rounds of the leader, each of which decides what moves and splits."""
    averages_seconds: int = setting("loadBalancerResourceQuotaUpdateIntervalMinutes", 15 * 60, low=60)
    """Seconds between two writes of bundles' and brokers' averages by the leader."""
    averaged_bundles_per_broker_max: int = setting(
        "loadBalancerMaxNumberOfBundlesInBundleLoadReport", 10, below_zero=0, dynamic="broker"
    )
    """Of which averages are stored, the busiest; 0: all."""
    failure_domains: bool = setting("failureDomainsEnabled", False, dynamic="broker")
    """Namespaces of one anti-affinity group go to different domains first."""
    unload_after_stop_ms_max: int = setting("brokerShutdownTimeoutMs", 60_000, dynamic="broker", below_zero=0)
    """How long a stopping broker hands its bundles over one after the other."""
    bundle_metrics: bool = setting("exposeBundlesMetricsInPrometheus", False, dynamic="broker")
    """Whether `/metrics` has what each bundle of this broker does."""
    unloads_per_second_max: int = setting("magnetarDrainUnloadsPerSecond", 100, ours=True, low=1, high=1_000_000)
    """How fast bundles leave a broker that drains or stops, so that their clients'
    lookups do not come to the others all at once."""

    history_enabled: bool = setting("loadBalancerHistoryEnabled", False, ours=True)
    """The leader writes what all brokers do to `pulsar/system/load-history`, for
    planning (`magnetar.broker.load.history` says what that costs). Brokers that are processes of their own do unless
    told otherwise; in a standalone nobody expects the topic."""
    history_interval_seconds: int = setting("loadBalancerHistoryIntervalSeconds", 5 * 60, ours=True, low=1)
    """Seconds between two records of the load history."""
    history_retention_seconds: int = setting("loadBalancerHistoryRetentionMinutes", 30 * 24 * 3600, ours=True)
    """How long the history is kept at least, in minutes; four weeks show
    what a week is like."""
    history_retention_bytes: int = setting("loadBalancerHistoryRetentionSizeInMB", 1024 * MIB, ours=True)
    """How much of it is kept at most; 0 keeps nothing, as in Pulsar's
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


SWITCHES: Final = {row.name: row.path for row in rows_of(LoadSettings) if row.dynamic == "load"}
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
