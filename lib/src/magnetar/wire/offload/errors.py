"""The errors of bytes of an offloaded ledger that cannot be decoded."""

from __future__ import annotations

from magnetar.core.errors import PeerError


class BadOffload(PeerError):
    """An object is not what an offloader writes: cut short, of another format, or with numbers that lie."""
