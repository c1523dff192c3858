"""What an operator may set about who may do what, under Pulsar's own names (`ServiceConfiguration`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from magnetar.auth.settings import AUTHENTICATION_NAMES, AuthenticationSettings
from magnetar.core.errors import SettingError
from magnetar.core.settings_file import SettingNames, Unit
from magnetar.net.tls import TlsSettings

AUTHORIZATION_PROVIDER: Final = "org.apache.pulsar.broker.authorization.PulsarAuthorizationProvider"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSettings:
    """How this broker shows itself to others, by HTTP and by the protocol."""

    plugin: str = ""
    """`brokerClientAuthenticationPlugin`."""
    parameters: str = ""
    """`brokerClientAuthenticationParameters`."""
    tls_enabled: bool = False
    """`brokerClientTlsEnabled`."""
    tls: TlsSettings = field(default_factory=TlsSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    """Who may come, and who may do what."""

    authentication: AuthenticationSettings = field(default_factory=AuthenticationSettings)
    authorization_enabled: bool = False
    """`authorizationEnabled`."""
    authorization_provider: str = AUTHORIZATION_PROVIDER
    """`authorizationProvider`: there is one."""
    wildcards: bool = False
    """`authorizationAllowWildcardsMatching`: a grant to `a*` or `*a` is one to all roles that begin or end so."""
    super_user_roles: tuple[str, ...] = ()
    """`superUserRoles`: they may do everything."""
    proxy_roles: tuple[str, ...] = ()
    """`proxyRoles`: they speak for others, whom they have to name; both need the right."""
    authenticate_original_data: bool = False
    """`authenticateOriginalAuthData`: a proxy's word is not enough, the client's own credentials are checked."""
    metrics_authenticated: bool = False
    """`authenticateMetricsEndpoint`."""
    peers: PeerSettings = field(default_factory=PeerSettings)

    def __post_init__(self) -> None:
        if self.authorization_enabled and not self.authentication.enabled:
            raise SettingError("authorizationEnabled needs authenticationEnabled: rights are those of somebody")
        if self.authorization_provider != AUTHORIZATION_PROVIDER:
            raise SettingError(
                f"authorizationProvider is {self.authorization_provider}; there is {AUTHORIZATION_PROVIDER}"
            )

    def upstream(self) -> dict[str, str]:
        """The settings by Pulsar's names, written as its configuration files write them; no secrets."""
        authentication = self.authentication
        values: dict[str, object] = {
            "authenticationEnabled": authentication.enabled,
            "authenticationProviders": authentication.providers,
            "authenticationRefreshCheckSeconds": int(authentication.refresh_check_seconds),
            "anonymousUserRole": authentication.anonymous_role,
            "authorizationEnabled": self.authorization_enabled,
            "authorizationProvider": self.authorization_provider,
            "authorizationAllowWildcardsMatching": self.wildcards,
            "superUserRoles": self.super_user_roles,
            "proxyRoles": self.proxy_roles,
            "authenticateOriginalAuthData": self.authenticate_original_data,
            "authenticateMetricsEndpoint": self.metrics_authenticated,
            "brokerClientAuthenticationPlugin": self.peers.plugin,
            "brokerClientTlsEnabled": self.peers.tls_enabled,
        }
        return {name: _text(value) for name, value in values.items()}


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


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
