"""What an operator may set on a proxy, under Pulsar's own meanings (`ProxyConfiguration`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from magnetar.auth.settings import AuthenticationSettings
from magnetar.core.errors import SettingError
from magnetar.core.limits import MESSAGE_SIZE_BYTES_MAX, MIB
from magnetar.core.setting import check_ranges, part, setting
from magnetar.net.tls import CLIENT_TLS_NAMES, SERVER_TLS_NAMES, TlsSettings

SERVER_VERSION: Final = "Pulsar Server4.0.8"
"""What CONNECTED reports on lookup connections: the text that Apache's proxy of the same protocol level sends."""

PROXY_VERSION: Final = "4.0.8"
"""What brokers are told as `proxy_version`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedBrokers:
    """Brokers, or a load balancer in front of them, that are named instead of discovered; empty: discovered.

    A URL may list several hosts: they take turns."""

    service_url: str = setting("brokerServiceURL", "")
    service_url_tls: str = setting("brokerServiceURLTLS", "")
    web_service_url: str = setting("brokerWebServiceURL", "")
    web_service_url_tls: str = setting("brokerWebServiceURLTLS", "")
    function_worker_url: str = setting("functionWorkerWebServiceURL", "")
    """Who serves the routes of functions, sources and sinks; empty: brokers do."""
    function_worker_url_tls: str = setting("functionWorkerWebServiceURLTLS", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSettings:
    """Which brokers a client may ask to be connected with."""

    host_names: tuple[str, ...] = setting("brokerProxyAllowedHostNames", ("*",))
    """Host names of brokers that clients may be connected with; `*` stands for any letters."""
    addresses: tuple[str, ...] = setting("brokerProxyAllowedIPAddresses", ("*",))
    """Addresses, networks (`10.0.0.0/8`), ranges (`10.0.1-3.*`)."""
    ports: tuple[str, ...] = setting("brokerProxyAllowedTargetPorts", ("6650", "6651"))
    """Ports of brokers that clients may be connected with; `6650-6659` is a range."""
    only_active: bool | None = setting("checkActiveBrokers", None)
    """Only what brokers have registered, or have named in a lookup's answer. None: where brokers
    register themselves. Whatever it says, the proxy's own credentials go to such brokers only; see
    `proven_targets`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerClientSettings:
    """How brokers are reached."""

    tls_enabled: bool = setting("tlsEnabledWithBroker", False)
    tls: TlsSettings = part(TlsSettings, CLIENT_TLS_NAMES)
    connect_timeout_ms: int = setting("brokerProxyConnectTimeoutMs", 10_000, low=1)
    read_timeout_ms: int = setting("brokerProxyReadTimeoutMs", 75_000, below_zero=0)
    """A broker or a client from which nothing came for so long is gone; both send a PING
    every 30 s. 0: for ever."""
    authentication_plugin: str = setting("brokerClientAuthenticationPlugin", "")
    authentication_parameters: str = setting("brokerClientAuthenticationParameters", "", secret=True)
    forward_credentials: bool = setting("forwardAuthorizationCredentials", False)
    """Brokers get the client's credentials beside the proxy's own."""


AUTHORIZATION_PROVIDER: Final = "org.apache.pulsar.broker.authorization.PulsarAuthorizationProvider"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyAccessSettings:
    """Who may use the proxy; what they may do is the brokers' business."""

    authentication: AuthenticationSettings = field(default_factory=AuthenticationSettings)
    authorization_enabled: bool = setting("authorizationEnabled", False)
    """The proxy's own pages are for super users alone."""
    authorization_provider: str = setting("authorizationProvider", AUTHORIZATION_PROVIDER)
    """Apache's class name of the authorization provider; there is only this one."""
    super_user_roles: tuple[str, ...] = setting("superUserRoles", ())
    metrics_authenticated: bool = setting("authenticateMetricsEndpoint", True)
    """With authentication, /metrics wants credentials, too."""

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

    proxy_timeout_ms: int = setting("httpProxyTimeout", 300_000, unit="ms", low=1)
    """Milliseconds that a broker's whole answer may take."""
    replay_bytes_max: int = setting("httpInputMaxReplayBufferSize", 5 * MIB)
    """A longer body is passed on as it comes, and cannot follow a redirect."""
    requests_max: int = setting("maxConcurrentHttpRequests", 1_024, low=1)
    """Further ones are answered 503."""
    connections_max: int = setting("maxHttpServerConnections", 2_048, low=1)
    """When another one comes, the one goes that has asked for nothing for the longest."""
    header_bytes_max: int = setting("httpMaxRequestHeaderSize", 8_192, low=256, high=16 * MIB)
    status_file: str = setting("statusFilePath", "")
    """/status.html is 404 while this file is not there; empty: no such file is wanted."""
    statistics: bool = setting("enableProxyStatsEndpoints", True)
    """Whether /proxy-stats is served."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySettings:
    """A proxy's settings; each object below the proxy gets only its part."""

    cluster_name: str = setting("clusterName", "")
    """A label of the metrics."""
    bind_address: str = setting("bindAddress", "0.0.0.0")  # noqa: S104  (a server's default)
    advertised_address: str = setting("advertisedAddress", "")
    """The address that others reach this proxy by; empty: `bind_address`."""
    service_port: int | None = setting("servicePort", 6650, port=True)
    """The binary protocol's port without TLS; None: it is not served without TLS."""
    service_port_tls: int | None = setting("servicePortTls", None, port=True)
    web_service_port: int | None = setting("webServicePort", 8080, port=True)
    web_service_port_tls: int | None = setting("webServicePortTls", None, port=True)
    tls: TlsSettings = part(TlsSettings, SERVER_TLS_NAMES)
    """The TLS settings of both ports."""
    fixed_brokers: FixedBrokers = field(default_factory=FixedBrokers)
    targets: TargetSettings = field(default_factory=TargetSettings)
    broker_client: BrokerClientSettings = field(default_factory=BrokerClientSettings)
    http: HttpSettings = field(default_factory=HttpSettings)
    access: ProxyAccessSettings = field(default_factory=ProxyAccessSettings)

    proxy_protocol: bool = setting("haProxyProtocolEnabled", False)
    """Take PROXY headers from clients, and send them to brokers on data connections."""
    proxy_protocol_version: int = setting("magnetarHaProxyProtocolVersion", 1, ours=True, low=1, high=2)
    """For the headers that are sent. Pulsar's proxy sends version 1 alone."""
    keep_alive_seconds: float = setting("keepAliveIntervalSeconds", 30, below_zero=0)
    """0: nobody is asked whether they live."""
    connections_max: int = setting("maxConcurrentInboundConnections", 10_000)
    connections_per_address_max: int = setting("maxConcurrentInboundConnectionsPerIp", 0, below_zero=0)
    """Connections that one address may have; 0 is no limit."""
    lookups_max: int = setting("maxConcurrentLookupRequests", 50_000)
    """Lookups, partition counts, topic lists and schemas being asked for."""
    message_size_bytes_max: int = setting("maxMessageSize", MESSAGE_SIZE_BYTES_MAX)
    """How long a broker's answer to a lookup command may be."""
    drain_seconds: float = setting("drainTimeoutSeconds", 5, ours=True, low=0, high=86_400)
    """How long connections may go on when the process is told to stop."""

    def __post_init__(self) -> None:
        ports = (self.service_port, self.service_port_tls, self.web_service_port, self.web_service_port_tls)
        for port in ports:
            if port is not None and not 0 <= port <= 65_535:
                raise SettingError(f"{port} is no port: it lies between 0 (any free one) and 65535")
        if self.service_port is None and self.service_port_tls is None:
            raise SettingError("neither servicePort nor servicePortTls is set: nobody could connect")
        check_ranges(self, accepted=False)

    @property
    def shown_address(self) -> str:
        """How others call this machine."""
        return self.advertised_address or self.bind_address
