"""The names of `broker.conf`, and what they become."""

from __future__ import annotations

import pytest
from magnetar.broker.settings.broker import AutoCreationSettings, BrokerSettings
from magnetar.broker.settings.names import SETTINGS, known_names
from magnetar.broker.settings.policies import PolicySettings
from magnetar.broker.settings.values import told
from magnetar.core.errors import SettingError
from magnetar.core.limits import MIB
from magnetar.core.setting import rows_of
from magnetar.core.settings_file import GivenSettings, unit_factor
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.managed.settings import ManagedLedgerSettings

OURS = {
    "bookkeeperClientLocalRack",
    "delayedDeliveryClampDelayInMillis",
    "loadBalancerBalancedShedderHistoryShare",
    "loadBalancerBalancedShedderMaxMovesPerRound",
    "loadBalancerBalancedShedderSettleRatio",
    "loadBalancerBalancedShedderTriggerRatio",
    "loadBalancerDecisionHistorySize",
    "loadBalancerDrainMaxMovesPerRound",
    "loadBalancerHistoryEnabled",
    "loadBalancerHistoryIntervalSeconds",
    "loadBalancerHistoryRetentionMinutes",
    "loadBalancerHistoryRetentionSizeInMB",
    "loadBalancerSplitCoolDownSeconds",
    "magnetarDrainUnloadsPerSecond",
    "magnetarLoadBalanceDriver",
    "readOnlyBrokerEnabled",
    "readOnlyBrokerLagMaxMillis",
    "readOnlyBrokerPositionIntervalMillis",
    "readOnlyBrokerTailIntervalMaxMillis",
    "readOnlyBrokerTailIntervalMillis",
    "sharedBrokerServicePort",
    "sharedBrokerServicePortTls",
    "sharedWebServicePort",
    "sharedWebServicePortTls",
    "topicCompactionMaxKeys",
}
"""Of this broker alone."""


def given(**values: str) -> GivenSettings:
    found = GivenSettings(known_names())
    for name, value in values.items():
        found.add(name, value, "here")
    return found


def test_every_name_is_one_of_pulsars_and_has_a_field_and_a_unit() -> None:
    """The catalogue refuses others when it is made; what it takes for ours is what we know to be ours."""
    assert {row.name for row in SETTINGS.rows if row.ours} == OURS
    for row in SETTINGS.rows:
        assert all(unit_factor(row, name) > 0 for name in row.names)


def test_what_a_broker_tells_of_itself_can_be_given_to_one() -> None:
    settings = BrokerSettings(
        cluster_name="x",
        keep_alive_seconds=7,
        broker_service_port_tls=6651,
        auto_creation=AutoCreationSettings(partitioned=True),
        policies=PolicySettings(unacked_share_when_broker_blocked=0.25, subscription_types=("Shared", "Failover")),
    )
    texts = told(settings)
    assert set(texts) <= {row.name for row in rows_of(BrokerSettings)}
    assert given(**texts).build(BrokerSettings()) == settings
    assert texts["webServicePortTls"] == ""


def test_secrets_are_not_told() -> None:
    assert not {"tokenSecretKey", "basicAuthConf", "brokerClientAuthenticationParameters"} & set(told(BrokerSettings()))


def test_units_and_words_become_ours() -> None:
    broker = given(
        managedLedgerCacheSizeMB="8",
        connectionLivenessCheckTimeoutMillis="2500",
        allowAutoTopicCreationType="partitioned",
    ).build(BrokerSettings())
    assert broker.managed_ledger_cache_bytes_max == 8 * MIB
    assert broker.connection_liveness_check_seconds == 2.5
    assert broker.auto_creation.partitioned
    managed = given(
        managedLedgerMaxSizePerLedgerMbytes="5",
        managedLedgerMaxLedgerRolloverTimeMinutes="3",
        managedLedgerPassword="x",
    ).build(ManagedLedgerSettings())
    assert managed.max_size_per_ledger_bytes == 5 * MIB
    assert managed.maximum_rollover_ms == 180_000
    assert managed.password == b"x"
    client = given(bookkeeperClientIsolationGroups="a,b", bookkeeperClientTimeoutInSeconds="9").build(
        LedgerClientSettings()
    )
    assert client.placement.isolation_groups == ("a", "b")
    assert client.add_timeout_seconds == 9


def test_a_word_that_is_none_is_named() -> None:
    with pytest.raises(SettingError, match="allowAutoTopicCreationType is 'both', and not one of partitioned"):
        given(allowAutoTopicCreationType="both").build(BrokerSettings())
