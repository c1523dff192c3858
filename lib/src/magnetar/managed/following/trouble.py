"""One thing that may fail for a while and is tried again: how long to leave it alone. Pure."""

from __future__ import annotations

from magnetar.core.backoff import doubled
from magnetar.core.errors import MagnetarError
from magnetar.managed.following.settings import FollowSettings


class Trouble:
    """Pauses that double with each failure in a row."""

    __slots__ = ("_failures", "_settings", "error", "until_seconds")

    def __init__(self, settings: FollowSettings) -> None:
        self.error: MagnetarError | None = None
        """What it failed with the last time; None: it did not fail."""
        self.until_seconds: float = 0.0
        """When it may be tried again, by the monotonic clock."""
        self._failures: int = 0
        self._settings: FollowSettings = settings

    def failed(self, error: MagnetarError, now_seconds: float) -> bool:
        """It failed; whether that is news."""
        news = self.error is None
        self.error = error
        settings = self._settings
        pause_seconds = doubled(settings.retry_seconds_min, settings.retry_seconds_max, self._failures)
        self.until_seconds = now_seconds + pause_seconds
        self._failures += 1
        return news

    def over(self) -> bool:
        """It went well; whether that is news."""
        news = self.error is not None
        self.error = None
        self.until_seconds = 0.0
        self._failures = 0
        return news
