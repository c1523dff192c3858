"""What tools refuse to do."""

from __future__ import annotations

from magnetar.core.errors import MagnetarError


class UnreadableFile(MagnetarError):
    """The file is not of the kind that was expected."""


class CookieConflict(MagnetarError):
    """The cookie cannot be changed like this."""


class SmokeTestFailed(MagnetarError):
    """The cluster did not give back what was published; the text names the step."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.remedy = remedy
        """What to do, in a sentence."""
