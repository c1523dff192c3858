"""Checks credentials with the providers that the settings name (Pulsar `AuthenticationService`).

Providers and the libraries they stand on are loaded when an `Authenticator` is made: who needs none pays for none.
"""

from __future__ import annotations

from typing import Protocol

from magnetar.auth.credentials import METHOD_NONE, AuthenticationFailed, Certificate, Credentials, Identity
from magnetar.auth.settings import BASIC_PROVIDER, TLS_PROVIDER, TOKEN_PROVIDER, AuthenticationSettings
from magnetar.core.clock import Clock


class Provider(Protocol):
    """One way to say who one is."""

    @property
    def method(self) -> str:
        """Its name in the protocol."""
        ...

    def http_credentials(self, authorization: str, certificate: Certificate | None) -> Credentials | None:
        """What a request shows to this provider: its header `Authorization`, its connection's certificate. None:
        nothing. `AuthenticationFailed` for what is damaged."""
        ...

    async def authenticate(self, credentials: Credentials) -> Identity:
        """Who that is. `AuthenticationFailed`."""
        ...


class Authenticator:
    """All providers of a broker or a proxy."""

    def __init__(self, settings: AuthenticationSettings, clock: Clock) -> None:
        """`SettingError` for keys and files that cannot be used."""
        self.settings = settings
        self._providers: dict[str, Provider] = {}
        for name in settings.providers:
            provider = _provider(name, settings, clock)
            self._providers[provider.method] = provider

    @property
    def anonymous(self) -> Identity | None:
        """Who those are who show nothing; None when they are refused."""
        role = self.settings.anonymous_role
        return Identity(role, METHOD_NONE) if role else None

    def knows(self, method: str) -> bool:
        """Whether there is a provider for a method."""
        return method in self._providers

    async def authenticate(self, credentials: Credentials) -> Identity:
        """Who shows these; somebody with a method that nobody here knows is anonymous. `AuthenticationFailed`."""
        provider = self._providers.get(credentials.method)
        if provider is not None:
            return await provider.authenticate(credentials)
        if (anonymous := self.anonymous) is not None:
            return anonymous
        raise AuthenticationFailed(f"Unsupported authentication method: [{credentials.method}].")

    async def authenticate_http(
        self, method: str | None, authorization: str, certificate: Certificate | None
    ) -> Identity:
        """Who sends a request: by the provider that it names (header `X-Pulsar-Auth-Method-Name`), else by the first
        that takes what it shows. `AuthenticationFailed`."""
        if method is not None:
            provider = self._providers.get(method)
            if provider is None:
                raise AuthenticationFailed(f"Unsupported authentication method: [{method}].")
            credentials = provider.http_credentials(authorization, certificate)
            return await provider.authenticate(credentials or Credentials(method))
        failure = "Authentication required"
        for provider in self._providers.values():
            try:
                credentials = provider.http_credentials(authorization, certificate)
                if credentials is not None:
                    return await provider.authenticate(credentials)
            except AuthenticationFailed as error:
                failure = str(error)
        if (anonymous := self.anonymous) is not None:
            return anonymous
        raise AuthenticationFailed(failure)


def _provider(name: str, settings: AuthenticationSettings, clock: Clock) -> Provider:
    # Here, not above: PyJWT and cryptography take 60 ms to load.
    if name == TOKEN_PROVIDER:
        from magnetar.auth.token import TokenProvider

        return TokenProvider(settings.token, clock)
    if name == BASIC_PROVIDER:
        from magnetar.auth.basic import BasicProvider

        return BasicProvider(settings.basic_users)
    assert name == TLS_PROVIDER  # The settings have checked the names.
    from magnetar.auth.tls import TlsProvider

    return TlsProvider()
