"""The names of `broker.conf`, and what they become."""

from __future__ import annotations

from pathlib import Path

import pytest
from magnetar.broker.settings.broker import AutoCreationSettings, BrokerSettings
from magnetar.broker.settings.names import (
    BOOKIE_CONNECTION_NAMES,
    BROKER_NAMES,
    LEDGER_CLIENT_NAMES,
    MANAGED_LEDGER_NAMES,
    known_names,
)
from magnetar.broker.settings.policies import PolicySettings
from magnetar.broker.settings.values import told
from magnetar.core.errors import SettingError
from magnetar.core.limits import MIB
from magnetar.core.settings_file import GivenSettings, SettingNames, unit_factor
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.ledger.tcp_bookie import TcpBookieSettings
from magnetar.managed.settings import ManagedLedgerSettings

LISTED = Path(__file__).parents[1] / "src" / "magnetar" / "broker" / "settings" / "upstream_settings.txt"

NEWER = {"enableBrokerTopicListWatcher"}
"""Known to later versions of Pulsar than the one that the list is made from."""

UNLISTED = {"tokenAllowedClockSkewSeconds", "tokenPublicAlg"}
"""Read by Pulsar's own providers, though its broker.conf does not list them."""

OURS = {
    "delayedDeliveryClampDelayInMillis",
    "loadBalancerHistoryEnabled",
    "loadBalancerHistoryIntervalSeconds",
    "loadBalancerHistoryRetentionMinutes",
    "loadBalancerHistoryRetentionSizeInMB",
    "magnetarDrainUnloadsPerSecond",
    "magnetarLoadBalanceDriver",
}
"""Of this broker alone."""

PARTS = [
    (BrokerSettings(), BROKER_NAMES),
    (ManagedLedgerSettings(), MANAGED_LEDGER_NAMES),
    (LedgerClientSettings(), LEDGER_CLIENT_NAMES),
    (TcpBookieSettings(), BOOKIE_CONNECTION_NAMES),
]


def given(**values: str) -> GivenSettings:
    found = GivenSettings(known_names())
    for name, value in values.items():
        found.add(name, value, "here")
    return found


@pytest.mark.parametrize(("settings", "names"), PARTS)
def test_every_name_is_one_of_pulsars_and_has_a_field_and_a_unit(settings: object, names: SettingNames) -> None:
    listed = NEWER.union(OURS, UNLISTED, LISTED.read_text().split())
    for name, path in names.fields.items():
        assert name in listed
        value: object = settings
        for part in path.split("."):
            value = getattr(value, part)
        assert unit_factor(name, path, names.units.get(name)) > 0


def test_what_a_broker_tells_of_itself_can_be_given_to_one() -> None:
    settings = BrokerSettings(
        cluster_name="x",
        keep_alive_seconds=7,
        broker_service_port_tls=6651,
        auto_creation=AutoCreationSettings(partitioned=True),
        policies=PolicySettings(unacked_share_when_broker_blocked=0.25, subscription_types=("Shared", "Failover")),
    )
    texts = told(settings)
    assert set(texts) <= set(BROKER_NAMES.fields)
    assert given(**texts).build(BrokerSettings(), BROKER_NAMES) == settings
    assert texts["webServicePortTls"] == ""


def test_secrets_are_not_told() -> None:
    assert not {"tokenSecretKey", "basicAuthConf", "brokerClientAuthenticationParameters"} & set(told(BrokerSettings()))


def test_units_and_words_become_ours() -> None:
    broker = given(
        managedLedgerCacheSizeMB="8",
        connectionLivenessCheckTimeoutMillis="2500",
        allowAutoTopicCreationType="partitioned",
    ).build(BrokerSettings(), BROKER_NAMES)
    assert broker.managed_ledger_cache_bytes_max == 8 * MIB
    assert broker.connection_liveness_check_seconds == 2.5
    assert broker.auto_creation.partitioned
    managed = given(
        managedLedgerMaxSizePerLedgerMbytes="5",
        managedLedgerMaxLedgerRolloverTimeMinutes="3",
        managedLedgerPassword="x",
    ).build(ManagedLedgerSettings(), MANAGED_LEDGER_NAMES)
    assert managed.max_size_per_ledger_bytes == 5 * MIB
    assert managed.maximum_rollover_ms == 180_000
    assert managed.password == b"x"
    client = given(bookkeeperClientIsolationGroups="a,b", bookkeeperClientTimeoutInSeconds="9").build(
        LedgerClientSettings(), LEDGER_CLIENT_NAMES
    )
    assert client.placement.isolation_groups == ("a", "b")
    assert client.add_timeout_seconds == 9


def test_a_word_that_is_none_is_named() -> None:
    with pytest.raises(SettingError, match="allowAutoTopicCreationType is 'both', and not one of partitioned"):
        given(allowAutoTopicCreationType="both").build(BrokerSettings(), BROKER_NAMES)
