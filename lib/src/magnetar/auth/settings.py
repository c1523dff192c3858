"""What an operator may set about authentication, under Pulsar's own names; brokers and proxies have the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from magnetar.core.errors import SettingError

_PACKAGE: Final = "org.apache.pulsar.broker.authentication."

TOKEN_PROVIDER: Final = _PACKAGE + "AuthenticationProviderToken"
BASIC_PROVIDER: Final = _PACKAGE + "AuthenticationProviderBasic"
TLS_PROVIDER: Final = _PACKAGE + "AuthenticationProviderTls"
PROVIDERS: Final = (TOKEN_PROVIDER, BASIC_PROVIDER, TLS_PROVIDER)
"""What `authenticationProviders` may name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSettings:
    """How JSON Web Tokens are checked."""

    secret_key: str = ""
    """`tokenSecretKey`: for HMAC signatures; `file:`, `data:;base64,`, a path, or base64."""
    public_key: str = ""
    """`tokenPublicKey`: for signatures by a private key; DER or PEM, from the same places."""
    public_algorithm: str = "RS256"
    """`tokenPublicAlg`: tells the public key's kind; all algorithms of that kind are taken."""
    role_claim: str = "sub"
    """`tokenAuthClaim`."""
    audience_claim: str = ""
    """`tokenAudienceClaim`: which claim must name `audience`; empty: none."""
    audience: str = ""
    """`tokenAudience`."""
    clock_skew_seconds: float = 0.0
    """`tokenAllowedClockSkewSeconds`: how far the clock of who made a token may be off."""

    def __post_init__(self) -> None:
        if self.audience_claim and not self.audience:
            raise SettingError("tokenAudienceClaim is set and tokenAudience, which it must name, is not")
        if self.clock_skew_seconds < 0:
            raise SettingError("tokenAllowedClockSkewSeconds must not be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthenticationSettings:
    """Whether clients must say who they are, and how that is checked."""

    enabled: bool = False
    """`authenticationEnabled`."""
    providers: tuple[str, ...] = ()
    """`authenticationProviders`: Apache's class names."""
    anonymous_role: str = ""
    """`anonymousUserRole`: who those are who show nothing; empty: they are refused."""
    refresh_check_seconds: float = 60.0
    """`authenticationRefreshCheckSeconds`: how often it is looked whether credentials have expired."""
    token: TokenSettings = field(default_factory=TokenSettings)
    basic_users: str = ""
    """`basicAuthConf`: a file of htpasswd (a path, or `file:`), or its content (`data:;base64,` or base64)."""

    def __post_init__(self) -> None:
        unknown = [name for name in self.providers if name not in PROVIDERS]
        if unknown:
            raise SettingError(f"authenticationProviders names {', '.join(unknown)}; there are {', '.join(PROVIDERS)}")
        if self.refresh_check_seconds <= 0:
            raise SettingError("authenticationRefreshCheckSeconds must be above 0")
        if not self.enabled:
            return
        if TOKEN_PROVIDER in self.providers and not (self.token.secret_key or self.token.public_key):
            raise SettingError("AuthenticationProviderToken needs tokenSecretKey or tokenPublicKey")
        if BASIC_PROVIDER in self.providers and not self.basic_users:
            raise SettingError("AuthenticationProviderBasic needs basicAuthConf")
        if not self.providers and not self.anonymous_role:
            raise SettingError("authenticationEnabled needs authenticationProviders: nobody could connect")


AUTHENTICATION_NAMES: Final[dict[str, str]] = {
    "anonymousUserRole": "anonymous_role",
    "authenticationEnabled": "enabled",
    "authenticationProviders": "providers",
    "authenticationRefreshCheckSeconds": "refresh_check_seconds",
    "basicAuthConf": "basic_users",
    "tokenAllowedClockSkewSeconds": "token.clock_skew_seconds",
    "tokenAudience": "token.audience",
    "tokenAudienceClaim": "token.audience_claim",
    "tokenAuthClaim": "token.role_claim",
    "tokenPublicAlg": "token.public_algorithm",
    "tokenPublicKey": "token.public_key",
    "tokenSecretKey": "token.secret_key",
}
"""Pulsar's names of the fields of `AuthenticationSettings`."""
