"""What an operator may set on a proxy, under Pulsar's own meanings (`ProxyConfiguration`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from magnetar.auth.settings import AuthenticationSettings
from magnetar.core.errors import SettingError
from magnetar.core.limits import MESSAGE_SIZE_BYTES_MAX, MIB
from magnetar.net.tls import TlsSettings

SERVER_VERSION: Final = "Pulsar Server4.0.8"
"""What CONNECTED reports on lookup connections: the text that Apache's proxy of the same protocol level sends."""

PROXY_VERSION: Final = "4.0.8"
"""What brokers are told as `proxy_version`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedBrokers:
    """Brokers, or a load balancer in front of them, that are named instead of discovered; empty: discovered.

    A URL may list several hosts: they take turns."""

    service_url: str = ""
    """`brokerServiceURL`."""
    service_url_tls: str = ""
    """`brokerServiceURLTLS`."""
    web_service_url: str = ""
    """`brokerWebServiceURL`."""
    web_service_url_tls: str = ""
    """`brokerWebServiceURLTLS`."""
    function_worker_url: str = ""
    """`functionWorkerWebServiceURL`: who serves the routes of functions, sources and sinks; empty: brokers do."""
    function_worker_url_tls: str = ""
    """`functionWorkerWebServiceURLTLS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSettings:
    """Which brokers a client may ask to be connected with."""

    host_names: tuple[str, ...] = ("*",)
    """`brokerProxyAllowedHostNames`: with `*` for any letters."""
    addresses: tuple[str, ...] = ("*",)
    """`brokerProxyAllowedIPAddresses`: addresses, networks (`10.0.0.0/8`), ranges (`10.0.1-3.*`)."""
    ports: tuple[str, ...] = ("6650", "6651")
    """`brokerProxyAllowedTargetPorts`; `6650-6659` is a range."""
    only_active: bool | None = None
    """`checkActiveBrokers`: only what brokers have registered, or have named in a lookup's answer. None: where brokers
    register themselves. Whatever it says, the proxy's own credentials go to such brokers only; see
    `proven_targets`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerClientSettings:
    """How brokers are reached."""

    tls_enabled: bool = False
    """`tlsEnabledWithBroker`."""
    tls: TlsSettings = field(default_factory=TlsSettings)
    connect_timeout_ms: int = 10_000
    """`brokerProxyConnectTimeoutMs`."""
    read_timeout_ms: int = 75_000
    """`brokerProxyReadTimeoutMs`: a broker or a client from which nothing came for so long is gone; both send a PING
    every 30 s. 0: for ever."""
    authentication_plugin: str = ""
    """`brokerClientAuthenticationPlugin`."""
    authentication_parameters: str = ""
    """`brokerClientAuthenticationParameters`."""
    forward_credentials: bool = False
    """`forwardAuthorizationCredentials`: brokers get the client's credentials beside the proxy's own."""


AUTHORIZATION_PROVIDER: Final = "org.apache.pulsar.broker.authorization.PulsarAuthorizationProvider"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyAccessSettings:
    """Who may use the proxy; what they may do is the brokers' business."""

    authentication: AuthenticationSettings = field(default_factory=AuthenticationSettings)
    authorization_enabled: bool = False
    """`authorizationEnabled`: the proxy's own pages are for super users alone."""
    authorization_provider: str = AUTHORIZATION_PROVIDER
    """`authorizationProvider`: there is one."""
    super_user_roles: tuple[str, ...] = ()
    """`superUserRoles`."""
    metrics_authenticated: bool = True
    """`authenticateMetricsEndpoint`: with authentication, /metrics wants credentials, too."""

    def __post_init__(self) -> None:
        if self.authorization_enabled and not self.authentication.enabled:
            raise SettingError("authorizationEnabled needs authenticationEnabled: rights are those of somebody")
        if self.authorization_provider != AUTHORIZATION_PROVIDER:
            raise SettingError(
                f"authorizationProvider is {self.authorization_provider}; there is {AUTHORIZATION_PROVIDER}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """The HTTP side."""

    proxy_timeout_ms: int = 300_000
    """`httpProxyTimeout`: for a broker's whole answer."""
    replay_bytes_max: int = 5 * MIB
    """`httpInputMaxReplayBufferSize`: a longer body is passed on as it comes, and cannot follow a redirect."""
    requests_max: int = 1_024
    """`maxConcurrentHttpRequests`: further ones are answered 503."""
    connections_max: int = 2_048
    """`maxHttpServerConnections`: when another one comes, the one goes that has asked for nothing for the longest."""
    header_bytes_max: int = 8_192
    """`httpMaxRequestHeaderSize`."""
    status_file: str = ""
    """`statusFilePath`: /status.html is 404 while this file is not there; empty: no such file is wanted."""
    statistics: bool = True
    """`enableProxyStatsEndpoints`: /proxy-stats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySettings:
    """A proxy's settings; each object below the proxy gets only its part."""

    cluster_name: str = ""
    """`clusterName`: a label of the metrics."""
    bind_address: str = "0.0.0.0"  # noqa: S104  (a server's default)
    advertised_address: str = ""
    """`advertisedAddress`; empty: `bind_address`."""
    service_port: int | None = 6650
    """None: not served without TLS."""
    service_port_tls: int | None = None
    web_service_port: int | None = 8080
    web_service_port_tls: int | None = None
    tls: TlsSettings = field(default_factory=TlsSettings)
    """The TLS settings of both ports."""
    fixed_brokers: FixedBrokers = field(default_factory=FixedBrokers)
    targets: TargetSettings = field(default_factory=TargetSettings)
    broker_client: BrokerClientSettings = field(default_factory=BrokerClientSettings)
    http: HttpSettings = field(default_factory=HttpSettings)
    access: ProxyAccessSettings = field(default_factory=ProxyAccessSettings)

    proxy_protocol: bool = False
    """`haProxyProtocolEnabled`: take PROXY headers from clients, and send them to brokers on data connections."""
    proxy_protocol_version: int = 1
    """`magnetarHaProxyProtocolVersion`, ours: of the headers that are sent. Pulsar's proxy sends version 1 alone."""
    keep_alive_seconds: float = 30
    """`keepAliveIntervalSeconds`."""
    connections_max: int = 10_000
    """`maxConcurrentInboundConnections`."""
    connections_per_address_max: int = 0
    """`maxConcurrentInboundConnectionsPerIp`; 0: no limit."""
    lookups_max: int = 50_000
    """`maxConcurrentLookupRequests`: lookups, partition counts, topic lists and schemas being asked for."""
    message_size_bytes_max: int = MESSAGE_SIZE_BYTES_MAX
    """`maxMessageSize`: how long a broker's answer to a lookup command may be."""
    drain_seconds: float = 5
    """`drainTimeoutSeconds`, ours: how long connections may go on when the process is told to stop."""

    def __post_init__(self) -> None:
        ports = (self.service_port, self.service_port_tls, self.web_service_port, self.web_service_port_tls)
        for port in ports:
            if port is not None and not 0 <= port <= 65_535:
                raise SettingError(f"{port} is no port: it lies between 0 (any free one) and 65535")
        if self.service_port is None and self.service_port_tls is None:
            raise SettingError("neither servicePort nor servicePortTls is set: nobody could connect")
        if not 0 <= self.drain_seconds <= 86_400:
            raise SettingError(f"drainTimeoutSeconds is out of bounds: {self.drain_seconds}")
        if self.proxy_protocol_version not in (1, 2):
            raise SettingError(f"magnetarHaProxyProtocolVersion is {self.proxy_protocol_version}; there are 1 and 2")
        if self.keep_alive_seconds <= 0:
            raise SettingError(f"keepAliveIntervalSeconds is out of bounds: {self.keep_alive_seconds}")

    @property
    def shown_address(self) -> str:
        """How others call this machine."""
        return self.advertised_address or self.bind_address
