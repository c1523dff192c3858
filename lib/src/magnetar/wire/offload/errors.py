"""What can be wrong with the bytes of an offloaded ledger."""

from __future__ import annotations

from magnetar.core.errors import PeerError


class BadOffload(PeerError):
    """An object is not what an offloader writes: cut short, of another format, or with numbers that lie."""
