"""Who may use this proxy (Pulsar `ProxyConnection.handleConnect`, `AuthenticationFilter`, `ProxyStats`).

Made only where authentication is enabled: what checks credentials loads libraries that others need not.
"""

from __future__ import annotations

from magnetar.auth.authenticator import Authenticator
from magnetar.auth.credentials import Identity
from magnetar.core.clock import Clock
from magnetar.proxy.settings import ProxyAccessSettings


class ProxyAccess:
    """The checks that all connections and requests share."""

    def __init__(self, settings: ProxyAccessSettings, clock: Clock, *, forward_credentials: bool) -> None:
        """`SettingError` for keys and files that cannot be used."""
        self.settings = settings
        self.clock = clock
        self.authenticator = Authenticator(settings.authentication, clock)
        self.forward_credentials = forward_credentials
        """Brokers get the clients' credentials, too."""
        self._super_user_roles = frozenset(settings.super_user_roles)

    def may_see_statistics(self, identity: Identity) -> bool:
        """Whether the proxy's own pages are for somebody: all that authorization means for a proxy, as brokers decide
        about the rest."""
        return not self.settings.authorization_enabled or identity.role in self._super_user_roles
