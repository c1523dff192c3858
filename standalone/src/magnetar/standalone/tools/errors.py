"""What tools refuse to do."""

from __future__ import annotations

from magnetar.core.errors import MagnetarError


class UnreadableFile(MagnetarError):
    """The file is not of the kind that was expected."""


class CookieConflict(MagnetarError):
    """The cookie cannot be changed like this."""
