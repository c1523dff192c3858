"""What protects a bookie's port, read from its settings."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from magnetar.bookie.settings import BookieSettings
from magnetar.core.errors import SettingError
from magnetar.net.tls import ServerTls

logger: Final = logging.getLogger(__name__)

ROLES_PROVIDER: Final = "org.apache.bookkeeper.tls.BookieAuthZFactory"
"""BookKeeper's provider that goes by clients' certificates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    """The certificates of the port, and who is served."""

    tls: ServerTls | None = None
    """None: nobody gets TLS."""
    roles: frozenset[str] | None = None
    """Only clients whose certificate has one of these roles are served; None: certificates give no rights."""
    tls_required: bool = False
    """Clients without TLS are not served."""

    @property
    def serves_plain(self) -> bool:
        """Whether clients without TLS are served."""
        return self.roles is None and not self.tls_required


def read_protection(settings: BookieSettings) -> Protection:
    """Reads the files. `SettingError` says what is missing or cannot be."""
    tls = settings.tls.server_tls()
    return Protection(
        tls=ServerTls(tls) if tls is not None else None,
        roles=_roles(settings),
        tls_required=settings.tls.required,
    )


def tell_protection(protection: Protection) -> None:
    """Who relies on TLS must not find out later that it can be left out."""
    if protection.tls is not None and protection.serves_plain:
        logger.warning(
            "TLS is offered to clients, and those without are served as well; tlsRequired=true, or "
            "bookieAuthProviderFactoryClass=%s with authorizedRoles, refuses them",
            ROLES_PROVIDER,
        )


def _roles(settings: BookieSettings) -> frozenset[str] | None:
    provider = settings.auth_provider
    if provider in ("", "null"):
        if settings.authorized_roles:
            raise SettingError(f"authorizedRoles needs bookieAuthProviderFactoryClass={ROLES_PROVIDER}")
        return None
    if provider.rpartition(".")[2] != ROLES_PROVIDER.rpartition(".")[2]:
        raise SettingError(f"bookieAuthProviderFactoryClass is {provider}; there is {ROLES_PROVIDER}")
    if not settings.authorized_roles:
        raise SettingError(f"bookieAuthProviderFactoryClass={provider} needs authorizedRoles: whom the bookie serves")
    if not (settings.tls.enabled and settings.tls.client_authentication):
        raise SettingError(
            f"bookieAuthProviderFactoryClass={provider} goes by clients' certificates and would serve nobody: it needs "
            "tlsProviderFactoryClass and tlsClientAuthentication=true"
        )
    return frozenset(settings.authorized_roles)
