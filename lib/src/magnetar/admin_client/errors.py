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


class AdminUntrusted(AdminUnreachable):
    """The broker's certificate comes from no authority that is trusted, or is for another host."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, may_pass=False)


class AdminElsewhere(AdminUnreachable):
    """The broker that was asked sends the request to an address that it does not name as a broker's."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, may_pass=False)
