"""What can come of a call to the admin API instead of an answer."""

from __future__ import annotations

from magnetar.core.errors import PeerError, Unavailable


class AdminRefused(PeerError):
    """A broker answered with an error status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason or f"status {status}")
        self.status = status


class AdminUnreachable(Unavailable):
    """No broker answered."""

    def __init__(self, reason: str, *, may_pass: bool = True) -> None:
        """`may_pass`: False for what would be the same the next time."""
        super().__init__(reason)
        self.may_pass = may_pass
