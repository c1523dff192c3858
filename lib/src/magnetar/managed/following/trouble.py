"""One thing that may fail for a while: it is tried again after pauses that double, and told of once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from magnetar.core.backoff import doubled
from magnetar.core.errors import MagnetarError
from magnetar.managed.following.settings import FollowSettings

T = TypeVar("T")

logger: Final = logging.getLogger(__name__)


class Trouble:
    """Stands beside what may fail. Times are the loop's."""

    __slots__ = ("_failures", "_loop", "_settings", "_until_seconds", "_what", "error")

    def __init__(self, loop: asyncio.AbstractEventLoop, what: str, settings: FollowSettings) -> None:
        """`what` may fail, as the log calls it."""
        self.error: MagnetarError | None = None
        """What it failed with the last time; None: it did not fail."""
        self._loop: asyncio.AbstractEventLoop = loop
        self._what: str = what
        self._settings: FollowSettings = settings
        self._until_seconds: float = 0.0
        self._failures: int = 0

    @property
    def pause_seconds(self) -> float:
        """How long it is left alone; 0: it may be tried."""
        return max(0.0, self._until_seconds - self._loop.time())

    async def attempt(self, attempt: Callable[[], Awaitable[T]]) -> T | None:
        """Do it, unless it failed just now; None: it failed, or was not tried."""
        if self.pause_seconds > 0:
            return None
        try:
            result = await attempt()
        except MagnetarError as error:
            if self.error is None:
                logger.warning("%s cannot be read now: %r", self._what, error)
            self.error = error
            settings = self._settings
            pause_seconds = doubled(settings.retry_seconds_min, settings.retry_seconds_max, self._failures)
            self._until_seconds = self._loop.time() + pause_seconds
            self._failures += 1
            return None
        if self.error is not None:
            logger.info("%s is read again", self._what)
        self.over()
        return result

    def over(self) -> None:
        """It may be tried at once."""
        self.error = None
        self._until_seconds = 0.0
        self._failures = 0
