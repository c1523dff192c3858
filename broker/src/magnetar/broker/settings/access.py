"""What an operator may set about who may do what, under Pulsar's own names (`ServiceConfiguration`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from magnetar.auth.settings import AuthenticationSettings
from magnetar.core.errors import SettingError
from magnetar.core.setting import part, setting
from magnetar.net.tls import CLIENT_TLS_NAMES, TlsSettings

AUTHORIZATION_PROVIDER: Final = "org.apache.pulsar.broker.authorization.PulsarAuthorizationProvider"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSettings:
    """How this broker shows itself to others, by HTTP and by the protocol."""

    plugin: str = setting("brokerClientAuthenticationPlugin", "")
    parameters: str = setting("brokerClientAuthenticationParameters", "", secret=True)
    tls_enabled: bool = setting("brokerClientTlsEnabled", False)
    tls: TlsSettings = part(TlsSettings, CLIENT_TLS_NAMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    """Who may come, and who may do what."""

    authentication: AuthenticationSettings = field(default_factory=AuthenticationSettings)
    authorization_enabled: bool = setting("authorizationEnabled", False)
    authorization_provider: str = setting("authorizationProvider", AUTHORIZATION_PROVIDER)
    """Apache's class name of the authorization provider; there is only this one."""
    wildcards: bool = setting("authorizationAllowWildcardsMatching", False)
    """A grant to `a*` or `*a` is one to all roles that begin or end so."""
    super_user_roles: tuple[str, ...] = setting("superUserRoles", (), dynamic="broker")
    """They may do everything."""
    proxy_roles: tuple[str, ...] = setting("proxyRoles", ())
    """Roles of proxies: they speak for clients, whom they have to name; proxy and client both need the right."""
    authenticate_original_data: bool = setting("authenticateOriginalAuthData", False)
    """Whether the client's own credentials are checked, as a proxy's word about them is not enough."""
    metrics_authenticated: bool = setting("authenticateMetricsEndpoint", False)
    peers: PeerSettings = field(default_factory=PeerSettings)

    def __post_init__(self) -> None:
        if self.authorization_enabled and not self.authentication.enabled:
            raise SettingError("authorizationEnabled needs authenticationEnabled: rights are those of somebody")
        if self.authorization_provider != AUTHORIZATION_PROVIDER:
            raise SettingError(
                f"authorizationProvider is {self.authorization_provider}; there is {AUTHORIZATION_PROVIDER}"
            )
