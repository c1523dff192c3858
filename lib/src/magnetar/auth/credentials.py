"""What somebody shows, who that makes it, and the error when it makes it nobody."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeAlias

from magnetar.core.errors import PeerError

METHOD_NONE: Final = "none"
METHOD_TOKEN: Final = "token"  # noqa: S105  (a method's name)
METHOD_BASIC: Final = "basic"
METHOD_TLS: Final = "tls"

REFRESH: Final = b"PulsarAuthRefresh"
"""The challenge that asks for fresh credentials (Pulsar `AuthData.REFRESH_AUTH_DATA`)."""

Certificate: TypeAlias = dict[str, Any]
"""A certificate that TLS has verified, as `ssl.SSLSocket.getpeercert` gives it; empty when there was none."""


class AuthenticationFailed(PeerError):
    """The credentials are not good. The text is for the log: who failed is not told why."""


class Credentials(NamedTuple):
    """What came in, by the protocol or by HTTP."""

    method: str
    data: bytes = b""
    """What proves who it is, as bytes: a token, or `user:password`; empty where the certificate does."""
    certificate: Certificate | None = None


class Identity(NamedTuple):
    """Somebody whose credentials were good."""

    role: str
    method: str
    expires_ms: int | None = None
    """When the credentials stop being good, in milliseconds since 1970; None: never."""

    def expired(self, now_ms: int) -> bool:
        """Whether other credentials are due."""
        return self.expires_ms is not None and self.expires_ms < now_ms


def common_name(certificate: Certificate | None) -> str:
    """The common name of a certificate's subject, the most specific one; empty when it has none."""
    found = ""
    for part in (certificate or {}).get("subject", ()):
        for name, value in part:
            if name == "commonName":
                found = value
    return found
