"""Whom a broker lets in, and who may do what there. Made only where authentication is enabled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Final, Protocol

from magnetar.auth.authenticator import Authenticator
from magnetar.broker.auth.authorizer import Authorizer
from magnetar.broker.resources import Resources
from magnetar.broker.settings.access import AccessSettings
from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError

logger: Final = logging.getLogger(__name__)


class GuardedSession(Protocol):
    """A session whose rights count for as long as it lasts."""

    @property
    def address(self) -> str:
        """The client's address, for the log: `/host:port`."""
        ...

    async def look_again(self, changed: Collection[str]) -> None:
        """Rights in these tenants and namespaces have changed."""
        ...


class AccessControl:
    """Checks credentials and, where authorization is enabled, rights."""

    def __init__(
        self,
        settings: AccessSettings,
        resources: Resources,
        clock: Clock,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """`SettingError` for keys and files that cannot be used."""
        self.settings = settings
        self.clock = clock
        self.authenticator = Authenticator(settings.authentication, clock)
        self.authorizer: Authorizer | None = None
        self._spawn = spawn
        self._sessions: set[GuardedSession] = set()
        self._changed: set[str] = set()
        self._stop_watching: Callable[[], None] | None = None
        if settings.authorization_enabled:
            self.authorizer = Authorizer(resources, settings.super_user_roles, wildcards=settings.wildcards)
            self._stop_watching = self.authorizer.watch(self._rights_changed)

    def close(self) -> None:
        """Listen to the store no more."""
        if self._stop_watching is not None:
            self._stop_watching()
        if self.authorizer is not None:
            self.authorizer.close()

    def enter(self, session: GuardedSession) -> None:
        """A session whose rights count from now on, also when they are taken away."""
        self._sessions.add(session)

    def leave(self, session: GuardedSession) -> None:
        """It has ended."""
        self._sessions.discard(session)

    def _rights_changed(self, place: str) -> None:
        """The store: a tenant (`tenant`) or a namespace (`tenant/namespace`) may allow less than before."""
        if not self._sessions:
            return
        if not self._changed:
            self._spawn(self._look_again())
        self._changed.add(place)

    async def _look_again(self) -> None:
        # Whatever else changes in this turn of the loop is looked at together.
        await asyncio.sleep(0)
        changed, self._changed = self._changed, set()
        for session in list(self._sessions):
            try:
                await session.look_again(changed)
            except MagnetarError as error:
                logger.warning("the rights of %s cannot be looked at again: %s", session.address, error)
