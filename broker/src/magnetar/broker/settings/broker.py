"""What an operator may set on a broker, under Pulsar's own meanings (`ServiceConfiguration`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from magnetar.broker.settings.access import AccessSettings
from magnetar.broker.settings.admin import AdminSettings
from magnetar.broker.settings.load import LoadSettings
from magnetar.broker.settings.offload import OffloadSettings
from magnetar.broker.settings.policies import PolicySettings
from magnetar.broker.settings.read_only import ReadOnlySettings
from magnetar.broker.settings.shared_ports import SharedPortSettings
from magnetar.broker.settings.transactions import TransactionSettings
from magnetar.core.errors import SettingError
from magnetar.core.limits import MESSAGE_SIZE_BYTES_MAX, MIB, PORT_MAX
from magnetar.core.setting import check_ranges, part, setting
from magnetar.core.text import host_of_url
from magnetar.net.tls import SERVER_TLS_NAMES, TlsSettings

VERSION_PREFIX: Final = "Pulsar Server"

SERVER_VERSION: Final = VERSION_PREFIX + "4.0.8"
"""What CONNECTED reports: the text that Apache's broker of the same protocol level sends (it puts no space)."""

BUNDLES_MAX: Final = 4_096
"""Of a namespace: more ranges than any of a cluster of this size needs; each costs a metadata node. Apache has no
limit, and hangs with what does not fit into its metadata store."""

RING_POINTS_MAX: Final = 10_000
"""Points of a consumer on the ring of a Key_Shared subscription: it is sorted whenever one comes or goes."""

CREATION_TYPES: Final = {"partitioned": True, "non-partitioned": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoCreationSettings:
    """What is made on first use: topics and subscriptions."""

    topics_allowed: bool = setting("allowAutoTopicCreation", True, dynamic="broker")
    partitioned: bool = setting("allowAutoTopicCreationType", False, dynamic="broker", words=CREATION_TYPES)
    """Whether topics that are made on first use are partitioned."""
    default_partitions: int = setting("defaultNumPartitions", 1, dynamic="broker", low=1)
    """Partitions of a topic that is made on first use, if `partitioned`."""
    subscriptions_allowed: bool = setting("allowAutoSubscriptionCreation", True, dynamic="broker")


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchSettings:
    """How entries leave for consumers."""

    read_entries_max: int = setting("dispatcherMaxReadBatchSize", 100, low=1, dynamic="broker")
    """Entries that one read of a cursor brings, at most."""
    read_bytes_max: int = setting("dispatcherMaxReadSizeBytes", 5 * MIB, low=1, dynamic="broker")
    round_robin_messages_max: int = setting("dispatcherMaxRoundRobinBatchSize", 20, low=1, dynamic="broker")
    """Messages that one consumer is sent before the next one's turn."""
    read_retry_ms_min: int = setting(
        "dispatcherReadFailureBackoffInitialTimeInMs", 100, low=1, dynamic="broker", unit="ms"
    )
    """The pause after the first of several reads that fail. Ours is short enough not to be seen when a bookie restarts;
    Apache's is 15 s."""
    read_retry_ms_max: int = setting(
        "dispatcherReadFailureBackoffMaxTimeInMs", 15_000, low=1, dynamic="broker", unit="ms"
    )
    """The longest pause between two reads that fail; Apache's is 60 s."""
    read_retry_surely_ms: int = setting(
        "dispatcherReadFailureBackoffMandatoryStopTimeInMs", 0, dynamic="broker", unit="ms"
    )
    """When the pauses since the first failure are so long together, a read is tried, whatever the next one would be; 0
    is no such moment."""
    pauses_on_ack_state: bool = setting("dispatcherPauseOnAckStatePersistentEnabled", False, dynamic="broker")
    """Shared and Key_Shared: whether nothing new is sent while more stretches are acknowledged than are stored."""
    redeliveries_told: bool = setting("subscriptionRedeliveryTrackerEnabled", True, dynamic="broker")
    """Shared and Key_Shared: whether consumers are told how often an entry was delivered before."""
    unacked_messages_per_consumer_max: int = setting("maxUnackedMessagesPerConsumer", 50_000, below_zero=0)
    """Unacknowledged messages that a consumer may hold before it is sent no more; 0 is no limit."""
    unacked_messages_per_subscription_max: int = setting("maxUnackedMessagesPerSubscription", 200_000, below_zero=0)
    """Unacknowledged messages that a subscription may hold before its consumers are sent no more; 0 is no limit."""
    failover_delay_ms: int = setting("activeConsumerFailoverDelayTimeMillis", 1_000, below_zero=0)
    failover_consistent_hashing: bool = setting("activeConsumerFailoverConsistentHashing", False)
    """Whether a hash ring picks the active consumer of a partition, too, and not the partition's index."""
    key_shared_consistent_hashing: bool = setting("subscriptionKeySharedUseConsistentHashing", True)
    """Whether keys are spread over consumers by a hash ring; if not, who joins gets half of the widest range."""
    key_shared_points_per_consumer: int = setting(
        "subscriptionKeySharedConsistentHashingReplicaPoints", 100, low=1, high=RING_POINTS_MAX
    )
    look_ahead_per_consumer_max: int = setting(
        "keySharedLookAheadMsgInReplayThresholdPerConsumer", 2_000, dynamic="broker", below_zero=0
    )
    """Key_Shared: entries that may wait for each consumer before reading on stops; 0 is no limit of this kind."""
    look_ahead_max: int = setting(
        "keySharedLookAheadMsgInReplayThresholdPerSubscription", 20_000, dynamic="broker", below_zero=0
    )
    """Key_Shared: entries of a subscription that may wait before reading on stops; 0 is no limit of this kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """A broker's settings; each object below the broker gets only its part."""

    cluster_name: str = setting("clusterName", "standalone")
    bind_address: str = setting("bindAddress", "127.0.0.1")
    advertised_address: str = setting("advertisedAddress", "127.0.0.1")
    broker_service_port: int = setting("brokerServicePort", 6650, low=0, high=PORT_MAX)
    web_service_port: int = setting("webServicePort", 8080, low=0, high=PORT_MAX)
    broker_service_port_tls: int | None = setting("brokerServicePortTls", None, low=0, high=PORT_MAX)
    """The binary protocol's port with TLS; None: it is not served with TLS."""
    web_service_port_tls: int | None = setting("webServicePortTls", None, low=0, high=PORT_MAX)
    tls: TlsSettings = part(TlsSettings, SERVER_TLS_NAMES)
    """Certificates, authorities and versions of TLS, for both TLS ports."""
    shared_ports: SharedPortSettings = field(default_factory=SharedPortSettings)
    proxy_protocol: bool = setting("haProxyProtocolEnabled", False)
    """Connections may begin with a PROXY header that names the true client."""
    advertised_listeners: str = setting("advertisedListeners", "")
    """Addresses by listener: `name:pulsar://host:port`, `name:pulsar+ssl://…`, `name:http://…`, separated by commas."""
    internal_listener_name: str = setting("internalListenerName", "")
    """Whose addresses brokers and clients that name no listener get; empty: the first one's."""

    keep_alive_seconds: float = setting("keepAliveIntervalSeconds", 30, below_zero=0)
    """A peer that answers no PING for this long is gone; 0: nobody is asked."""
    connection_liveness_check_seconds: float = setting("connectionLivenessCheckTimeoutMillis", 5, below_zero=0)
    """How long the holder of a name may take to show that it is alive; 0: it is believed to be."""
    known_after_seconds: float = 0.2
    """Ours: how long after its success a client may not know its producer or consumer by its id yet. Clients register
    the id when they have read the answer and pass over a close that comes before; Go's then waits for ever."""
    message_size_bytes_max: int = setting("maxMessageSize", MESSAGE_SIZE_BYTES_MAX, low=1, high=MESSAGE_SIZE_BYTES_MAX)
    """No larger ones fit into what bookies take and give at once (`BOOKKEEPER_FRAME_BYTES_MAX`)."""
    publish_buffer_bytes_per_connection_max: int = 16 * MIB
    """Unacknowledged publishes of one connection before it is read no further; several batches of the largest size."""
    lookups_max: int = setting("maxConcurrentLookupRequest", 50_000, dynamic="broker")
    """Lookups under way at a time; further ones are answered TooManyRequests."""
    topic_loads_max: int = setting("maxConcurrentTopicLoadRequest", 5_000, dynamic="broker")
    topic_list_watchers: bool = setting("enableBrokerTopicListWatcher", True)
    subscription_pattern_length_max: int = setting("subscriptionPatternMaxLength", 50)
    consumer_metadata_bytes_max: int = setting("maxConsumerMetadataSize", 1_024)
    managed_ledger_cache_bytes_max: int = setting("managedLedgerCacheSizeMB", 64 * MIB, dynamic="broker")
    managed_ledger_cache_seconds_max: float = setting(
        "managedLedgerCacheEvictionTimeThresholdMillis", 120.0, dynamic="broker"
    )
    """Entries that are older leave the cache, so that idle topics give their memory back; at most twice as old, for so
    often is looked. Apache's is one second: what was read ahead for a slow consumer is then read again."""
    storage_statistics_seconds: int = setting("managedLedgerStatsPeriodSeconds", 60, low=1)
    """How long a period is whose writes, reads and cache hits the metrics tell."""
    default_namespace_bundles: int = setting(
        "defaultNumberOfNamespaceBundles", 4, dynamic="broker", low=1, high=BUNDLES_MAX
    )
    auto_creation: AutoCreationSettings = field(default_factory=AutoCreationSettings)
    dispatch: DispatchSettings = field(default_factory=DispatchSettings)
    policies: PolicySettings = field(default_factory=PolicySettings)
    load: LoadSettings = field(default_factory=LoadSettings)
    admin: AdminSettings = field(default_factory=AdminSettings)
    transactions: TransactionSettings = field(default_factory=TransactionSettings)
    offload: OffloadSettings = field(default_factory=OffloadSettings)
    access: AccessSettings = field(default_factory=AccessSettings)
    read_only: ReadOnlySettings = field(default_factory=ReadOnlySettings)

    def __post_init__(self) -> None:
        check_ranges(self)
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
    def _url_host(self) -> str:
        return host_of_url(self.advertised_address)

    @property
    def service_url(self) -> str:
        """Where clients find the binary protocol."""
        return f"pulsar://{self._url_host}:{self.broker_service_port}"

    @property
    def service_url_tls(self) -> str | None:
        """The URL at which clients find the binary protocol with TLS; None where it is not served with TLS."""
        port = self.broker_service_port_tls
        return None if port is None else f"pulsar+ssl://{self._url_host}:{port}"

    @property
    def web_service_url_tls(self) -> str | None:
        """Where tools find the admin API with TLS; None where that is not served."""
        port = self.web_service_port_tls
        return None if port is None else f"https://{self._url_host}:{port}"

    @property
    def web_service_url(self) -> str:
        """Where tools find the admin API."""
        return f"http://{self._url_host}:{self.web_service_port}"

    @property
    def served_urls(self) -> str:
        """All URLs at which clients and tools connect, a space between two; those with TLS last."""
        urls = (self.service_url, self.web_service_url, self.service_url_tls, self.web_service_url_tls)
        return " ".join(url for url in urls if url is not None)
