"""What an operator may set about authentication, under Pulsar's own names; brokers and proxies have the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from magnetar.core.errors import SettingError
from magnetar.core.setting import setting

_PACKAGE: Final = "org.apache.pulsar.broker.authentication."

TOKEN_PROVIDER: Final = _PACKAGE + "AuthenticationProviderToken"
BASIC_PROVIDER: Final = _PACKAGE + "AuthenticationProviderBasic"
TLS_PROVIDER: Final = _PACKAGE + "AuthenticationProviderTls"
PROVIDERS: Final = (TOKEN_PROVIDER, BASIC_PROVIDER, TLS_PROVIDER)
"""Apache's class names that `authenticationProviders` may hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSettings:
    """How JSON Web Tokens are checked."""

    secret_key: str = setting("tokenSecretKey", "", secret=True)
    """For HMAC signatures; `file:`, `data:;base64,`, a path, or base64."""
    public_key: str = setting("tokenPublicKey", "", secret=True)
    """For signatures by a private key; DER or PEM, from the same places."""
    public_algorithm: str = setting("tokenPublicAlg", "RS256")
    """Tells the public key's kind; all algorithms of that kind are taken."""
    role_claim: str = setting("tokenAuthClaim", "sub")
    audience_claim: str = setting("tokenAudienceClaim", "")
    """Which claim must name `audience`; empty: none."""
    audience: str = setting("tokenAudience", "")
    clock_skew_seconds: float = setting("tokenAllowedClockSkewSeconds", 0.0)
    """How far the clock of who made a token may be off."""

    def __post_init__(self) -> None:
        if self.audience_claim and not self.audience:
            raise SettingError("tokenAudienceClaim is set and tokenAudience, which it must name, is not")
        if self.clock_skew_seconds < 0:
            raise SettingError("tokenAllowedClockSkewSeconds must not be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthenticationSettings:
    """Whether clients must say who they are, and how that is checked."""

    enabled: bool = setting("authenticationEnabled", False)
    providers: tuple[str, ...] = setting("authenticationProviders", ())
    """Apache's class names of the authentication providers that check credentials."""
    anonymous_role: str = setting("anonymousUserRole", "")
    """Who those are who show nothing; empty: they are refused."""
    refresh_check_seconds: float = setting("authenticationRefreshCheckSeconds", 60.0, low=1)
    """How often it is looked whether credentials have expired."""
    token: TokenSettings = field(default_factory=TokenSettings)
    basic_users: str = setting("basicAuthConf", "", secret=True)
    """A file of htpasswd (a path, or `file:`), or its content (`data:;base64,` or base64)."""

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
