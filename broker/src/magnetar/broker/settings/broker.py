"""What an operator may set on a broker, under Pulsar's own meanings (`ServiceConfiguration`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from magnetar.broker.settings.access import AccessSettings
from magnetar.broker.settings.admin import AdminSettings
from magnetar.broker.settings.load import LoadSettings
from magnetar.broker.settings.policies import PolicySettings
from magnetar.core.errors import SettingError
from magnetar.core.limits import MESSAGE_SIZE_BYTES_MAX, MIB
from magnetar.net.tls import TlsSettings

SERVER_VERSION: Final = "Pulsar Server4.0.8"
"""What CONNECTED reports: the text that Apache's broker of the same protocol level sends (it puts no space)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoCreationSettings:
    """What is made on first use."""

    topics_allowed: bool = True
    """`allowAutoTopicCreation`."""
    partitioned: bool = False
    """`allowAutoTopicCreationType`: non-partitioned or partitioned."""
    default_partitions: int = 1
    """`defaultNumPartitions`, when `partitioned`."""
    subscriptions_allowed: bool = True
    """`allowAutoSubscriptionCreation`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchSettings:
    """How entries leave for consumers."""

    read_entries_max: int = 100
    """`dispatcherMaxReadBatchSize`: entries read from a cursor at a time."""
    read_bytes_max: int = 5 * MIB
    """`dispatcherMaxReadSizeBytes`."""
    round_robin_messages_max: int = 20
    """`dispatcherMaxRoundRobinBatchSize`: messages to one consumer before the next one's turn."""
    unacked_messages_per_consumer_max: int = 50_000
    """`maxUnackedMessagesPerConsumer`; 0 is no limit."""
    unacked_messages_per_subscription_max: int = 200_000
    """`maxUnackedMessagesPerSubscription`; 0 is no limit."""
    failover_delay_ms: int = 1_000
    """`activeConsumerFailoverDelayTimeMillis`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """A broker's settings; each object below the broker gets only its part."""

    cluster_name: str = "standalone"
    bind_address: str = "127.0.0.1"
    advertised_address: str = "127.0.0.1"
    broker_service_port: int = 6650
    web_service_port: int = 8080
    broker_service_port_tls: int | None = None
    """`brokerServicePortTls`; None: not served with TLS."""
    web_service_port_tls: int | None = None
    """`webServicePortTls`."""
    tls: TlsSettings = field(default_factory=TlsSettings)
    """Of both TLS ports."""
    proxy_protocol: bool = False
    """`haProxyProtocolEnabled`: connections may begin with a PROXY header that names the true client."""
    advertised_listeners: str = ""
    """`advertisedListeners`: `name:pulsar://host:port`, `name:pulsar+ssl://…`, `name:http://…`, separated by commas."""
    internal_listener_name: str = ""
    """`internalListenerName`: whose addresses brokers and clients that name no listener get; empty: the first one's."""

    keep_alive_seconds: float = 30
    """`keepAliveIntervalSeconds`: a peer that answers no PING for this long is gone."""
    connection_liveness_check_seconds: float = 5
    """`connectionLivenessCheckTimeoutMillis`: how long the holder of a name may take to show that it is alive."""
    known_after_seconds: float = 0.2
    """Ours: how long after its success a client may not know its producer or consumer by its id yet. Clients register
    the id when they have read the answer and pass over a close that comes before; Go's then waits for ever."""
    message_size_bytes_max: int = MESSAGE_SIZE_BYTES_MAX
    """`maxMessageSize`."""
    publish_buffer_bytes_per_connection_max: int = 16 * MIB
    """Unacknowledged publishes of one connection before it is read no further; several batches of the largest size."""
    lookups_max: int = 50_000
    """`maxConcurrentLookupRequest`: beyond it lookups answer TooManyRequests."""
    topic_loads_max: int = 5_000
    """`maxConcurrentTopicLoadRequest`."""
    topic_list_watchers: bool = True
    """`enableBrokerTopicListWatcher`."""
    subscription_pattern_length_max: int = 50
    """`subscriptionPatternMaxLength`."""
    consumer_metadata_bytes_max: int = 1_024
    """`maxConsumerMetadataSize`."""
    managed_ledger_cache_bytes_max: int = 64 * MIB
    """`managedLedgerCacheSizeMB`."""
    default_namespace_bundles: int = 4
    """`defaultNumberOfNamespaceBundles`."""
    auto_creation: AutoCreationSettings = field(default_factory=AutoCreationSettings)
    dispatch: DispatchSettings = field(default_factory=DispatchSettings)
    policies: PolicySettings = field(default_factory=PolicySettings)
    load: LoadSettings = field(default_factory=LoadSettings)
    admin: AdminSettings = field(default_factory=AdminSettings)
    access: AccessSettings = field(default_factory=AccessSettings)

    def __post_init__(self) -> None:
        for name in ("broker_service_port", "web_service_port", "broker_service_port_tls", "web_service_port_tls"):
            port = getattr(self, name)
            if port is not None and not 0 <= port <= 65_535:
                raise SettingError(f"{name} is {port}: a port lies between 0 (any free one) and 65535")
        if self.publish_buffer_bytes_per_connection_max < 2 * self.message_size_bytes_max:
            raise SettingError(
                "publish_buffer_bytes_per_connection_max must hold two messages of message_size_bytes_max: "
                "one in flight, one being read"
            )

    @property
    def broker_id(self) -> str:
        """How this broker is named in metadata and REST paths."""
        return f"{self.advertised_address}:{self.web_service_port}"

    @property
    def service_url(self) -> str:
        """Where clients find the binary protocol."""
        return f"pulsar://{self.advertised_address}:{self.broker_service_port}"

    @property
    def service_url_tls(self) -> str | None:
        """The same with TLS; None where that is not served."""
        port = self.broker_service_port_tls
        return None if port is None else f"pulsar+ssl://{self.advertised_address}:{port}"

    @property
    def web_service_url_tls(self) -> str | None:
        """Where tools find the admin API with TLS; None where that is not served."""
        port = self.web_service_port_tls
        return None if port is None else f"https://{self.advertised_address}:{port}"

    @property
    def web_service_url(self) -> str:
        """Where tools find the admin API."""
        return f"http://{self.advertised_address}:{self.web_service_port}"
