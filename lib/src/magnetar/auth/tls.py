"""Client certificates (method `tls`; Pulsar `AuthenticationProviderTls`): the role is the subject's common name."""

from __future__ import annotations

from typing import Final

from magnetar.auth.credentials import METHOD_TLS, AuthenticationFailed, Certificate, Credentials, Identity, common_name


class TlsProvider:
    """Takes a certificate that the TLS handshake has verified."""

    method: Final = METHOD_TLS

    def http_credentials(self, authorization: str, certificate: Certificate | None) -> Credentials | None:
        """The connection's certificate; None when it has none."""
        del authorization
        return Credentials(METHOD_TLS, b"", certificate) if certificate else None

    async def authenticate(self, credentials: Credentials) -> Identity:
        """The certificate's common name. `AuthenticationFailed`."""
        if not credentials.certificate:
            raise AuthenticationFailed("Failed to get TLS certificates from client")
        role = common_name(credentials.certificate)
        if not role:
            raise AuthenticationFailed("Client unable to authenticate with TLS certificate")
        return Identity(role, METHOD_TLS)
