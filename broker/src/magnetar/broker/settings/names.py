"""All settings of a broker's process; see `magnetar.core.setting`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from magnetar.balance.settings import BalanceSettings
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.core.setting_catalogue import Catalogue
from magnetar.ledger.bookie_client.tcp_bookie import TcpBookieSettings
from magnetar.ledger.bookie_client.tls_settings import BrokerBookieTlsSettings
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.process.control_settings import CONTROL_NAMES
from magnetar.process.missing_features import MissingFeature

UNLISTED: Final = (
    *("bookkeeper_tlsHostnameVerificationEnabled", "enableBrokerTopicListWatcher"),
    *("tokenAllowedClockSkewSeconds", "tokenPublicAlg"),
    *("managedLedgerOffloadRegion", "managedLedgerOffloadServiceEndpoint"),
    *("managedLedgerOffloadMaxBlockSizeInBytes", "managedLedgerOffloadReadBufferSizeInBytes"),
    *("s3ManagedLedgerOffloadCredentialId", "s3ManagedLedgerOffloadCredentialSecret"),
    *("s3ManagedLedgerOffloadRole", "s3ManagedLedgerOffloadRoleSessionName"),
)
"""The first is passed on to BookKeeper's client, the second is of later versions than the list is made from; the others
are read by Pulsar's providers and offloaders themselves."""

STORE_NAMES: Final = (
    "configurationStoreConfigPath",
    "metadataStoreConfigPath",
    "metadataStoreSessionTimeoutMillis",
    "zookeeperServers",
)
"""Pulsar's names of settings that `magnetar.process` reads itself."""

_ON: Final = ("true", "yes", "on")

MISSING: Final[Mapping[str, MissingFeature]] = {
    "additionalServlets": MissingFeature("further servlets"),
    "bookkeeperClientAuthenticationPlugin": MissingFeature("authentication at bookies"),
    "brokerEntryMetadataInterceptors": MissingFeature("index and time of the broker on entries"),
    "brokerInterceptors": MissingFeature("interceptors"),
    "configurationMetadataSyncEventTopic": MissingFeature("exchange of configuration metadata by a topic"),
    "enableNonPersistentTopics": MissingFeature("way to switch non-persistent topics off", _ON),
    "enablePackagesManagement": MissingFeature("packages"),
    "enablePersistentTopics": MissingFeature("way to switch persistent topics off", _ON),
    "entryFilterNames": MissingFeature("entry filters"),
    "functionsWorkerEnabled": MissingFeature("functions, sources and sinks"),
    "httpRequestsLimitEnabled": MissingFeature("limit of HTTP requests per second"),
    "messagingProtocols": MissingFeature("other protocols beside Pulsar's own"),
    "metadataSyncEventTopic": MissingFeature("exchange of metadata by a topic"),
    "resourceUsageTransportClassName": MissingFeature(
        "way to share limits of resource groups but by the system topic",
        ("resourceusagetopictransportmanager",),
    ),
    "schemaRegistryStorageClassName": MissingFeature(
        "storage of schemas but BookKeeper", ("bookkeeperschemastoragefactory",)
    ),
    "strictBookieAffinityEnabled": MissingFeature("strict affinity of namespaces to bookies"),
    "topicFactoryClassName": MissingFeature("topics of another class"),
    "transactionCoordinatorEnabled": MissingFeature("transactions"),
    "webSocketServiceEnabled": MissingFeature("WebSocket"),
}
"""Settings that ask for features which are not there. Those that have an effect by now are not told of."""

SETTINGS: Final = Catalogue(
    Path(__file__).with_name("upstream_settings.txt"),
    BrokerSettings,
    ManagedLedgerSettings,
    LedgerClientSettings,
    TcpBookieSettings,
    BrokerBookieTlsSettings,
    BalanceSettings,
    unlisted=UNLISTED,
    ignored=Path(__file__).with_name("ignored_settings.txt"),
    read_apart=(*CONTROL_NAMES, *STORE_NAMES),
)


def known_names() -> frozenset[str]:
    """Every name that a `broker.conf` may hold."""
    return SETTINGS.names


def ignored_names() -> Mapping[str, str]:
    """Names that a `broker.conf` of another version may hold, and why they are passed over."""
    return SETTINGS.ignored


def missing_features() -> Mapping[str, MissingFeature]:
    """What some settings ask for in vain."""
    return MISSING
