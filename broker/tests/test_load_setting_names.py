"""Names of load management in a `broker.conf`: each finds its field, and values mean what they mean to Pulsar."""

from __future__ import annotations

import pytest
from magnetar.balance.settings import BalanceSettings, PlacementStrategy, SheddingStrategy
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.broker.settings.load import LoadSettings
from magnetar.broker.settings.names import known_names
from magnetar.broker.settings.values import told
from magnetar.core.errors import SettingError
from magnetar.core.limits import MIB
from magnetar.core.setting import rows_of
from magnetar.core.settings_file import GivenSettings

OURS = "org.apache.pulsar.broker.loadbalance.impl."


def given(**values: str) -> GivenSettings:
    settings = GivenSettings(known_names())
    for name, value in values.items():
        settings.add(name, value, "test")
    return settings


def test_times_and_sizes_have_their_units() -> None:
    settings = given(
        brokerShutdownTimeoutMs="1000",
        loadBalancerOverrideBrokerNicSpeedGbps="2.5",
        loadBalancerReportUpdateMaxIntervalMinutes="2",
        loadBalancerReportUpdateMinIntervalMillis="7000",
        loadBalancerSheddingIntervalMinutes="3",
        magnetarLoadBalanceDriver="control",
    ).build(LoadSettings())
    assert settings.unload_after_stop_ms_max == 1_000
    assert settings.nic_speed_gbps == 2.5
    assert settings.report_interval_seconds_max == 120
    assert settings.report_interval_ms_min == 7_000
    assert settings.round_seconds == 180
    assert settings.driver == "control"
    names = {row.name for row in rows_of(LoadSettings)}
    texts = {name: text for name, text in told(BrokerSettings(load=settings)).items() if name in names}
    assert given(**texts).build(LoadSettings()) == settings


def test_the_balancers_settings() -> None:
    balance = given(
        loadBalancerBundleUnloadMinThroughputThreshold="20",
        loadBalancerLoadPlacementStrategy=OURS + "LeastLongTermMessageRate",
        loadBalancerLoadSheddingStrategy=OURS + "ThresholdShedder",
        loadBalancerNamespaceBundleMaxBandwidthMbytes="5",
        loadBalancerSheddingGracePeriodMinutes="1",
        loadBalancerSplitCoolDownSeconds="9",
        supportedNamespaceBundleSplitAlgorithms="range_equally_divide,topic_count_equally_divide",
    ).build(BalanceSettings())
    assert balance.threshold.unload_throughput_bytes_min == 20 * MIB
    assert balance.placement_strategy is PlacementStrategy.LEAST_MESSAGE_RATE
    assert balance.shedding_strategy is SheddingStrategy.THRESHOLD
    assert balance.split.bundle_bandwidth_bytes_max == 5 * MIB
    assert balance.shedding_grace_ms == 60_000
    assert balance.split.cool_down_ms == 9_000
    assert balance.split.algorithms == ("range_equally_divide", "topic_count_equally_divide")


def test_every_name_finds_a_field() -> None:
    named: GivenSettings = given()
    assert named.build(BalanceSettings()) == BalanceSettings()
    for row in rows_of(BalanceSettings):
        for name in row.names:
            with pytest.raises(SettingError, match=name):
                given(**{name: "?"}).build(BalanceSettings())


@pytest.mark.parametrize("name", ["loadBalancerLoadSheddingStrategy", "loadBalancerLoadPlacementStrategy"])
def test_unknown_strategies_are_refused(name: str) -> None:
    with pytest.raises(SettingError, match=f"{name} is .*TransferShedder"):
        given(**{name: OURS + "TransferShedder"}).build(BalanceSettings())
