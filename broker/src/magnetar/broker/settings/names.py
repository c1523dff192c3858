"""What the names in a `broker.conf` mean here; see `magnetar.core.settings_file`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from magnetar.broker.settings.access_names import ACCESS_NAMES
from magnetar.broker.settings.admin import ADMIN_NAMES
from magnetar.broker.settings.load_names import LOAD_NAMES
from magnetar.broker.settings.policy_names import POLICY_NAMES, POLICY_UNITS
from magnetar.core.settings_file import SettingNames

CREATION_TYPES: Final = {True: "partitioned", False: "non-partitioned"}
"""`allowAutoTopicCreationType`, by whether topics are partitioned."""


def _partitioned(text: str) -> bool:
    if text not in CREATION_TYPES.values():
        raise ValueError("one of " + ", ".join(CREATION_TYPES.values()))
    return text == CREATION_TYPES[True]


BROKER_NAMES: Final = SettingNames(
    fields={
        "advertisedAddress": "advertised_address",
        "advertisedListeners": "advertised_listeners",
        "bindAddress": "bind_address",
        "brokerServicePort": "broker_service_port",
        "brokerServicePortTls": "broker_service_port_tls",
        "clusterName": "cluster_name",
        "connectionLivenessCheckTimeoutMillis": "connection_liveness_check_seconds",
        "defaultNumberOfNamespaceBundles": "default_namespace_bundles",
        "enableBrokerTopicListWatcher": "topic_list_watchers",
        "internalListenerName": "internal_listener_name",
        "keepAliveIntervalSeconds": "keep_alive_seconds",
        "managedLedgerCacheSizeMB": "managed_ledger_cache_bytes_max",
        "maxConcurrentLookupRequest": "lookups_max",
        "maxConcurrentTopicLoadRequest": "topic_loads_max",
        "maxConsumerMetadataSize": "consumer_metadata_bytes_max",
        "maxMessageSize": "message_size_bytes_max",
        "subscriptionPatternMaxLength": "subscription_pattern_length_max",
        "webServicePort": "web_service_port",
        "webServicePortTls": "web_service_port_tls",
        "haProxyProtocolEnabled": "proxy_protocol",
        "tlsAllowInsecureConnection": "tls.allow_insecure",
        "tlsCertRefreshCheckDurationSec": "tls.refresh_seconds",
        "tlsCertificateFilePath": "tls.certificate_file",
        "tlsCiphers": "tls.ciphers",
        "tlsKeyFilePath": "tls.key_file",
        "tlsProtocols": "tls.protocols",
        "tlsRequireTrustedClientCertOnConnect": "tls.require_client_certificate",
        "tlsTrustCertsFilePath": "tls.trust_certificates_file",
        "allowAutoSubscriptionCreation": "auto_creation.subscriptions_allowed",
        "allowAutoTopicCreation": "auto_creation.topics_allowed",
        "allowAutoTopicCreationType": "auto_creation.partitioned",
        "defaultNumPartitions": "auto_creation.default_partitions",
        "activeConsumerFailoverDelayTimeMillis": "dispatch.failover_delay_ms",
        "dispatcherMaxReadBatchSize": "dispatch.read_entries_max",
        "dispatcherMaxReadSizeBytes": "dispatch.read_bytes_max",
        "dispatcherMaxRoundRobinBatchSize": "dispatch.round_robin_messages_max",
        "maxUnackedMessagesPerConsumer": "dispatch.unacked_messages_per_consumer_max",
        "maxUnackedMessagesPerSubscription": "dispatch.unacked_messages_per_subscription_max",
        **{name: f"policies.{field}" for name, field in POLICY_NAMES.items()},
        **{name: f"admin.{field}" for name, field in ADMIN_NAMES.items()},
        **{name: f"access.{field}" for name, field in ACCESS_NAMES.items()},
        **{name: f"load.{field}" for name, field in LOAD_NAMES.fields.items()},
    },
    units=POLICY_UNITS,
    readers={"allowAutoTopicCreationType": _partitioned},
)
"""Pulsar's names of the fields of `BrokerSettings`."""

MANAGED_LEDGER_NAMES: Final = SettingNames(
    fields={
        "autoSkipNonRecoverableData": "skip_lost_data",
        "managedLedgerCursorMaxEntriesPerLedger": "cursor_ledger_entries_max",
        "managedLedgerCursorRolloverTimeInSeconds": "cursor_ledger_age_ms_max",
        "managedLedgerDefaultAckQuorum": "ack_quorum",
        "managedLedgerDefaultEnsembleSize": "ensemble_size",
        "managedLedgerDefaultMarkDeleteRateLimit": "mark_delete_rate",
        "managedLedgerDefaultWriteQuorum": "write_quorum",
        "managedLedgerDigestType": "digest_type",
        "managedLedgerInactiveLedgerRolloverTimeSeconds": "inactive_rollover_ms",
        "managedLedgerMaxEntriesPerLedger": "max_entries_per_ledger",
        "managedLedgerMaxLedgerRolloverTimeMinutes": "maximum_rollover_ms",
        "managedLedgerMaxSizePerLedgerMbytes": "max_size_per_ledger_bytes",
        "managedLedgerMaxUnackedRangesToPersist": "unacked_ranges_max",
        "managedLedgerMaxUnackedRangesToPersistInMetadataStore": "unacked_ranges_in_metadata_max",
        "managedLedgerMinLedgerRolloverTimeMinutes": "minimum_rollover_ms",
        "managedLedgerPassword": "password",
        "managedLedgerPersistIndividualAckAsLongArray": "persist_acks_as_long_array",
    },
)
"""Pulsar's names of the fields of `ManagedLedgerSettings`."""

LEDGER_CLIENT_NAMES: Final = SettingNames(
    fields={
        "bookkeeperClientEnforceMinNumRacksPerWriteQuorum": "placement.enforce_racks",
        "bookkeeperClientIsolationGroups": "placement.isolation_groups",
        "bookkeeperClientMinNumRacksPerWriteQuorum": "placement.racks_per_write_quorum_min",
        "bookkeeperClientRackawarePolicyEnabled": "placement.rack_aware",
        "bookkeeperClientRegionawarePolicyEnabled": "placement.region_aware",
        "bookkeeperClientSecondaryIsolationGroups": "placement.secondary_isolation_groups",
        "bookkeeperClientTimeoutInSeconds": "add_timeout_seconds",
    },
)
"""Pulsar's names of the fields of `LedgerClientSettings`."""

BOOKIE_CONNECTION_NAMES: Final = SettingNames(fields={"bookkeeperClientTimeoutInSeconds": "add_timeout_seconds"})
"""Pulsar's names of the fields of `TcpBookieSettings`."""


CONTROL_NAMES: Final = (
    "controlEnabled",
    "controlHost",
    "controlPort",
    "controlTlsCertificateFile",
    "controlTlsClientAuthorityFile",
    "controlTlsKeyFile",
    "controlToken",
    "controlTokenFile",
)
"""Our own: the gRPC control port, which Pulsar's brokers do not have."""


def known_names() -> frozenset[str]:
    """Every name that a `broker.conf` may hold (made by `tools/generate_setting_names.py`), and our own."""
    from magnetar.broker.settings.balance_names import BALANCE_NAMES  # What a standalone need not load.

    listed = Path(__file__).with_name("upstream_settings.txt").read_text(encoding="utf-8").split()
    parts = (BROKER_NAMES, MANAGED_LEDGER_NAMES, LEDGER_CLIENT_NAMES, BOOKIE_CONNECTION_NAMES, BALANCE_NAMES)
    return frozenset(listed).union(CONTROL_NAMES, *(part.fields for part in parts))
