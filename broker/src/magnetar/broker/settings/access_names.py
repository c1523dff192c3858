"""Pulsar's names of `AccessSettings`; loaded by those who read or tell settings by name."""

from __future__ import annotations

from typing import Final

from magnetar.auth.settings import AUTHENTICATION_NAMES
from magnetar.core.settings_file import SettingNames, Unit

_PEER_TLS_NAMES: Final = {
    "brokerClientCertificateFilePath": "certificate_file",
    "brokerClientKeyFilePath": "key_file",
    "brokerClientTlsCiphers": "ciphers",
    "brokerClientTlsProtocols": "protocols",
    "brokerClientTrustCertsFilePath": "trust_certificates_file",
    "tlsHostnameVerificationEnabled": "verify_host_name",
}

ACCESS_NAMES: Final[dict[str, str]] = {
    **{name: f"authentication.{field}" for name, field in AUTHENTICATION_NAMES.items()},
    "authenticateMetricsEndpoint": "metrics_authenticated",
    "authenticateOriginalAuthData": "authenticate_original_data",
    "authorizationAllowWildcardsMatching": "wildcards",
    "authorizationEnabled": "authorization_enabled",
    "authorizationProvider": "authorization_provider",
    "proxyRoles": "proxy_roles",
    "superUserRoles": "super_user_roles",
    "brokerClientAuthenticationParameters": "peers.parameters",
    "brokerClientAuthenticationPlugin": "peers.plugin",
    "brokerClientTlsEnabled": "peers.tls_enabled",
    **{name: f"peers.tls.{field}" for name, field in _PEER_TLS_NAMES.items()},
}
"""Pulsar's names of the fields of `AccessSettings`."""

PEER_TLS_BOTH_NAMES: Final = SettingNames(
    fields={"tlsAllowInsecureConnection": "allow_insecure", "tlsCertRefreshCheckDurationSec": "refresh_seconds"},
    units={"tlsCertRefreshCheckDurationSec": Unit.SECONDS},
)
"""Settings of a broker's own ports that are meant for its connections to others, too: fields of their TLS."""
