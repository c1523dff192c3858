"""What the names in a `proxy.conf` mean here; see `magnetar.core.settings_file`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from magnetar.auth.settings import AUTHENTICATION_NAMES
from magnetar.core.settings_file import SettingNames, Unit
from magnetar.process.control_settings import CONTROL_NAMES

_TLS_FIELDS: Final = {
    "tlsAllowInsecureConnection": "allow_insecure",
    "tlsCertRefreshCheckDurationSec": "refresh_seconds",
}
"""Of both sides."""

PROXY_NAMES: Final = SettingNames(
    fields={
        "advertisedAddress": "advertised_address",
        "bindAddress": "bind_address",
        "clusterName": "cluster_name",
        "drainTimeoutSeconds": "drain_seconds",
        "haProxyProtocolEnabled": "proxy_protocol",
        "keepAliveIntervalSeconds": "keep_alive_seconds",
        "magnetarHaProxyProtocolVersion": "proxy_protocol_version",
        "maxConcurrentInboundConnections": "connections_max",
        "maxConcurrentInboundConnectionsPerIp": "connections_per_address_max",
        "maxConcurrentLookupRequests": "lookups_max",
        "maxMessageSize": "message_size_bytes_max",
        "brokerServiceURL": "fixed_brokers.service_url",
        "brokerServiceURLTLS": "fixed_brokers.service_url_tls",
        "brokerWebServiceURL": "fixed_brokers.web_service_url",
        "brokerWebServiceURLTLS": "fixed_brokers.web_service_url_tls",
        "functionWorkerWebServiceURL": "fixed_brokers.function_worker_url",
        "functionWorkerWebServiceURLTLS": "fixed_brokers.function_worker_url_tls",
        "brokerProxyAllowedHostNames": "targets.host_names",
        "brokerProxyAllowedIPAddresses": "targets.addresses",
        "brokerProxyAllowedTargetPorts": "targets.ports",
        "checkActiveBrokers": "targets.only_active",
        "brokerClientAuthenticationParameters": "broker_client.authentication_parameters",
        "brokerClientAuthenticationPlugin": "broker_client.authentication_plugin",
        "brokerProxyConnectTimeoutMs": "broker_client.connect_timeout_ms",
        "brokerProxyReadTimeoutMs": "broker_client.read_timeout_ms",
        "forwardAuthorizationCredentials": "broker_client.forward_credentials",
        "tlsEnabledWithBroker": "broker_client.tls_enabled",
        "enableProxyStatsEndpoints": "http.statistics",
        "httpInputMaxReplayBufferSize": "http.replay_bytes_max",
        "httpMaxRequestHeaderSize": "http.header_bytes_max",
        "httpProxyTimeout": "http.proxy_timeout_ms",
        "maxConcurrentHttpRequests": "http.requests_max",
        "maxHttpServerConnections": "http.connections_max",
        "statusFilePath": "http.status_file",
        **{name: f"access.authentication.{field}" for name, field in AUTHENTICATION_NAMES.items()},
        "authenticateMetricsEndpoint": "access.metrics_authenticated",
        "authorizationEnabled": "access.authorization_enabled",
        "authorizationProvider": "access.authorization_provider",
        "superUserRoles": "access.super_user_roles",
    },
    units={"httpProxyTimeout": Unit.MS},
)
"""Pulsar's names of the fields of `ProxySettings`; ports and TLS are read apart."""

PORT_NAMES: Final = ("servicePort", "servicePortTls", "webServicePort", "webServicePortTls")
"""Read apart, as an empty value switches a port off."""

SERVER_TLS_NAMES: Final = SettingNames(
    fields={
        **_TLS_FIELDS,
        "tlsCertificateFilePath": "certificate_file",
        "tlsCiphers": "ciphers",
        "tlsKeyFilePath": "key_file",
        "tlsProtocols": "protocols",
        "tlsRequireTrustedClientCertOnConnect": "require_client_certificate",
        "tlsTrustCertsFilePath": "trust_certificates_file",
    },
)
"""Pulsar's names of the fields of `TlsSettings` for ports; brokers have the same."""

CLIENT_TLS_NAMES: Final = SettingNames(
    fields={
        **_TLS_FIELDS,
        "brokerClientCertificateFilePath": "certificate_file",
        "brokerClientKeyFilePath": "key_file",
        "brokerClientTlsCiphers": "ciphers",
        "brokerClientTlsProtocols": "protocols",
        "brokerClientTrustCertsFilePath": "trust_certificates_file",
        "tlsHostnameVerificationEnabled": "verify_host_name",
    },
)
"""Pulsar's names of the fields of `TlsSettings` towards brokers."""


def known_names() -> frozenset[str]:
    """Every name that a `proxy.conf` may hold (made by `tools/generate_setting_names.py`), and our own."""
    listed = Path(__file__).with_name("upstream_settings.txt").read_text(encoding="utf-8").split()
    parts = (PROXY_NAMES, SERVER_TLS_NAMES, CLIENT_TLS_NAMES)
    return frozenset(listed).union(PORT_NAMES, CONTROL_NAMES, *(part.fields for part in parts))
