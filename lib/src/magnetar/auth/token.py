"""JSON Web Tokens (method `token`; Pulsar `AuthenticationProviderToken`). Importing this loads PyJWT."""

from __future__ import annotations

from typing import Any, Final

import jwt
from magnetar.auth.credentials import METHOD_TOKEN, AuthenticationFailed, Certificate, Credentials, Identity
from magnetar.auth.keys import algorithms_of, family, hmac_algorithms, read_public_key, read_secret_key
from magnetar.auth.settings import TokenSettings
from magnetar.core.clock import Clock
from magnetar.core.errors import SettingError

BEARER: Final = "Bearer "

TIME_SECONDS_MAX: Final = 2**53
"""Either way, since 1970: what JSON's numbers say exactly, and Java's clocks (64 bits of milliseconds) can show."""

_SIGNATURE_ALONE: Final[Any] = {
    "verify_signature": True,
    "verify_aud": False,
    "verify_exp": False,
    "verify_iat": False,
    "verify_iss": False,
    "verify_jti": False,
    "verify_nbf": False,
    "verify_sub": False,
}
"""Times are compared with our own clock, audiences by a claim that the settings name; nothing else is looked at."""


class TokenProvider:
    """Checks tokens with one key."""

    method: Final = METHOD_TOKEN

    def __init__(self, settings: TokenSettings, clock: Clock) -> None:
        """`SettingError` for keys that cannot be used."""
        self._settings = settings
        self._clock = clock
        self._key: Any
        if settings.secret_key:
            self._key = read_secret_key("tokenSecretKey", settings.secret_key)
            self._algorithms = hmac_algorithms(self._key)
        elif settings.public_key:
            self._key = read_public_key("tokenPublicKey", settings.public_key)
            self._algorithms = algorithms_of("tokenPublicKey", self._key)
            if family(settings.public_algorithm) != family(self._algorithms[0]):
                raise SettingError(
                    f"tokenPublicAlg is {settings.public_algorithm} and tokenPublicKey is for "
                    f"{', '.join(self._algorithms)}"
                )
        else:
            raise SettingError("AuthenticationProviderToken needs tokenSecretKey or tokenPublicKey")

    def http_credentials(self, authorization: str, certificate: Certificate | None) -> Credentials | None:
        """From the header `Authorization: Bearer …`; None when there is none."""
        del certificate
        if not authorization.startswith(BEARER):
            return None
        return Credentials(METHOD_TOKEN, authorization.removeprefix(BEARER).strip().encode())

    async def authenticate(self, credentials: Credentials) -> Identity:
        """Who the token is of. `AuthenticationFailed`."""
        claims = self._claims(credentials.data)
        return Identity(self._role(claims), METHOD_TOKEN, self._check_times(claims))

    def _claims(self, token: bytes) -> dict[str, Any]:
        if not token.strip():
            raise AuthenticationFailed("Blank token found")
        try:
            claims: dict[str, Any] = jwt.decode(token, self._key, algorithms=self._algorithms, options=_SIGNATURE_ALONE)
        except (jwt.PyJWTError, ValueError, RecursionError) as error:
            raise AuthenticationFailed(f"the token is not valid: {error}") from None
        return claims

    def _check_times(self, claims: dict[str, Any]) -> int | None:
        now_ms, skew_ms = self._clock.now_ms(), int(self._settings.clock_skew_seconds * 1000)
        # When it was made decides nothing, but who writes nonsense there is not believed the rest.
        expires_ms, begins_ms, _ = (_milliseconds(claims, name) for name in ("exp", "nbf", "iat"))
        if expires_ms is not None and expires_ms + skew_ms <= now_ms:
            raise AuthenticationFailed(f"the token expired {now_ms - expires_ms} ms ago")
        if begins_ms is not None and begins_ms - skew_ms > now_ms:
            raise AuthenticationFailed(f"the token is good in {begins_ms - now_ms} ms only")
        return expires_ms

    def _role(self, claims: dict[str, Any]) -> str:
        settings = self._settings
        if settings.audience_claim:
            audience = claims.get(settings.audience_claim)
            audiences = audience if isinstance(audience, list) else [audience]
            if settings.audience not in audiences:
                raise AuthenticationFailed(f"the token is for {audiences}, not for {settings.audience}")
        role = claims.get(settings.role_claim)
        if isinstance(role, list) and role:
            role = role[0]
        if not isinstance(role, str) or not role:
            raise AuthenticationFailed(f"the token has no role in its claim {settings.role_claim!r}")
        if any("\ud800" <= letter <= "\udfff" for letter in role):
            # JSON can say half a letter; nothing else that carries a role can.
            raise AuthenticationFailed(f"the token's role is no text: {role!a}")
        return role


def _milliseconds(claims: dict[str, Any], name: str) -> int | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise AuthenticationFailed(f"the token's claim {name} is no number")
    # Also false for what is no number at all (NaN), which JSON as Python reads it may hold.
    if not -TIME_SECONDS_MAX <= value <= TIME_SECONDS_MAX:
        raise AuthenticationFailed(f"the token's claim {name} is no time")
    return int(value * 1000)
