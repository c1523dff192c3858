import pytest
from magnetar.balance.settings import BalanceSettings, PlacementStrategy, SheddingStrategy, SplitSettings
from magnetar.broker.settings.values import told
from magnetar.core.errors import SettingError
from magnetar.core.limits import MIB
from magnetar.core.setting import rows_of
from magnetar.core.settings_file import GivenSettings

NAMES = {name for row in rows_of(BalanceSettings) for name in row.names}
OURS = {row.name for row in rows_of(BalanceSettings) if row.ours}


def built(**given: str) -> BalanceSettings:
    settings = GivenSettings(NAMES)
    for name, value in given.items():
        settings.add(name, value, "here")
    return settings.build(BalanceSettings())


def test_only_our_own_settings_have_names_that_pulsar_lacks() -> None:
    assert {
        "loadBalancerBalancedShedderHistoryShare",
        "loadBalancerBalancedShedderMaxMovesPerRound",
        "loadBalancerBalancedShedderSettleRatio",
        "loadBalancerBalancedShedderTriggerRatio",
        "loadBalancerDecisionHistorySize",
        "loadBalancerDrainMaxMovesPerRound",
        "loadBalancerSplitCoolDownSeconds",
    } == OURS


def test_units_are_pulsars() -> None:
    settings = built(
        loadBalancerSheddingGracePeriodMinutes="2",
        loadBalancerNamespaceBundleMaxBandwidthMbytes="7",
        loadBalancerBundleUnloadMinThroughputThreshold="0.5",
        minUnloadMessageThroughput="1024",
        loadBalancerSplitCoolDownSeconds="9",
        namespaceBundleUnloadingTimeoutMs="30000",
    )
    assert settings.shedding_grace_ms == 120_000
    assert settings.split.bundle_bandwidth_bytes_max == 7 * MIB
    assert settings.threshold.unload_throughput_bytes_min == MIB / 2
    assert settings.uniform.unload_throughput_bytes_min == 1024
    assert settings.split.cool_down_ms == 9_000
    assert settings.unloading_timeout_ms == 30_000


def test_what_a_broker_tells_of_balance_can_be_given_to_one() -> None:
    settings = BalanceSettings(
        shedding_strategy=SheddingStrategy.THRESHOLD,
        shedding_grace_ms=120_000,
        usage_history_share=0.25,
        split=SplitSettings(algorithms=("range_equally_divide",), bundle_bandwidth_bytes_max=7 * MIB),
    )
    texts = told(settings)
    assert set(texts) == NAMES
    assert built(**texts) == settings


def test_pulsars_defaults_are_ours_but_for_the_strategies() -> None:
    shipped = built(
        loadBalancerBrokerMaxTopics="50000",
        loadBalancerBrokerOverloadedThresholdPercentage="85",
        loadBalancerHistoryResourcePercentage="0.9",
        loadBalancerBrokerThresholdShedderPercentage="10",
        loadBalancerNamespaceBundleMaxTopics="1000",
        loadBalancerNamespaceBundleMaxMsgRate="30000",
        loadBalancerNamespaceBundleMaxBandwidthMbytes="100",
        loadBalancerBundleUnloadMinThroughputThreshold="10",
        loadBalancerSheddingGracePeriodMinutes="30",
        maxUnloadPercentage="0.2",
        minUnloadMessage="1000",
        supportedNamespaceBundleSplitAlgorithms=(
            "range_equally_divide,topic_count_equally_divide,specified_positions_divide,flow_or_qps_equally_divide"
        ),
    )
    assert shipped == BalanceSettings()


def test_strategies_are_class_names_of_which_the_last_part_counts() -> None:
    settings = built(
        loadBalancerLoadSheddingStrategy="org.apache.pulsar.broker.loadbalance.impl.ThresholdShedder",
        loadBalancerLoadPlacementStrategy="LeastLongTermMessageRate",
    )
    assert settings.shedding_strategy is SheddingStrategy.THRESHOLD
    assert settings.placement_strategy is PlacementStrategy.LEAST_MESSAGE_RATE
    with pytest.raises(SettingError, match="BalancedShedder, ThresholdShedder, OverloadShedder, UniformLoadShedder"):
        built(loadBalancerLoadSheddingStrategy="org.apache.pulsar.broker.loadbalance.impl.SomeShedder")
    name = "org.apache.pulsar.broker.loadbalance.impl.AvgShedder"
    both = built(loadBalancerLoadSheddingStrategy=name, loadBalancerLoadPlacementStrategy=name)
    assert (both.shedding_strategy, both.placement_strategy) == (SheddingStrategy.AVG, PlacementStrategy.AVG)


def test_the_name_that_pulsar_once_misspelt_is_understood() -> None:
    assert built(loadBalancerBandwithInResourceWeight="0.5").resource_weights.bandwidth_in == 0.5
