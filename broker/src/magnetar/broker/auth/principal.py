"""On whose behalf something is asked."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple


class Principal(NamedTuple):
    """Who is connected, and for whom it speaks if it is a proxy."""

    role: str
    original: str = ""
    """The role of the client that a proxy speaks for; empty unless a proxy named somebody."""
    through_proxy: bool = False

    @property
    def roles(self) -> tuple[str, ...]:
        """Those who all need a right."""
        return (self.role, self.original) if self.through_proxy else (self.role,)


def principal_of(
    role: str, original: str, proxy_roles: Collection[str], *, itself_allowed: bool = False
) -> Principal | None:
    """None for roles that do not go together: a proxy must name somebody who is no proxy, others nobody, or (with
    `itself_allowed`) themselves. (Pulsar `AuthorizationService.isValidOriginalPrincipal`.)"""
    if role in proxy_roles:
        if not original.strip() or original in proxy_roles:
            return None
        return Principal(role, original, through_proxy=True)
    if original.strip() and not (itself_allowed and original == role):
        return None
    return Principal(role, original)
