"""A client's connection joined with a broker's, as the proxy keeps account of it."""

from __future__ import annotations

import logging
from typing import Final

from magnetar.net.splice import Splice, SpliceEnd

logger: Final = logging.getLogger(__name__)

CLOSING_SWEEPS_MAX: Final = 3
"""A pair of which one end is gone may take this long to send the rest to the other one."""

RATE_SECONDS: Final = 60.0
"""Rates are about a time of this length, as in Pulsar's proxy."""


class JoinedConnection:
    """A client's connection joined with a broker's. One of thousands: as little as possible."""

    __slots__ = (
        "_bytes_at_turn",
        "_closing_sweeps",
        "_far_bytes",
        "_far_quiet",
        "_near_bytes",
        "_near_quiet",
        "_reads_at_turn",
        "_turned_seconds",
        "byte_rate",
        "client_address",
        "client_host",
        "request_rate",
        "splice",
    )

    def __init__(self, splice: Splice, client_address: str, client_host: str) -> None:
        self.splice = splice
        self.client_address = client_address
        self.client_host = client_host
        self.request_rate = 0.0
        """Reads from the client in a second."""
        self.byte_rate = 0.0
        """Bytes from the client in a second."""
        self._near_bytes = 0
        self._far_bytes = 0
        self._near_quiet = 0
        self._far_quiet = 0
        self._closing_sweeps = 0
        self._turned_seconds = 0.0
        self._reads_at_turn = 0
        self._bytes_at_turn = 0

    @property
    def broker_address(self) -> str:
        """The address of the other end."""
        return self.splice.far_address

    @property
    def reads(self) -> int:
        """Reads in both directions."""
        return self.splice.near.reads + self.splice.far.reads

    @property
    def received_bytes(self) -> int:
        """Bytes received in both directions."""
        return self.splice.near.received_bytes + self.splice.far.received_bytes

    def sweep(self, now_seconds: float, quiet_sweeps_max: float | None) -> None:
        """Look at it: an end that has been quiet for too long is gone (both sides send PINGs), a pair that does not
        manage to close is cut."""
        splice = self.splice
        if splice.closing:
            self._closing_sweeps += 1
            if self._closing_sweeps > CLOSING_SWEEPS_MAX:
                splice.abort()
            return
        near, far = splice.near, splice.far
        self._near_quiet = _quiet(near, self._near_bytes, self._near_quiet)
        self._far_quiet = _quiet(far, self._far_bytes, self._far_quiet)
        self._near_bytes, self._far_bytes = near.received_bytes, far.received_bytes
        if quiet_sweeps_max is not None and max(self._near_quiet, self._far_quiet) > quiet_sweeps_max:
            which = "broker" if self._far_quiet > quiet_sweeps_max else "client"
            logger.warning("cutting %s to %s: nothing from the %s", self.client_address, self.broker_address, which)
            splice.abort()
            return
        self._turn(now_seconds)

    def _turn(self, now_seconds: float) -> None:
        elapsed = now_seconds - self._turned_seconds
        if elapsed < RATE_SECONDS:
            return
        near = self.splice.near
        if self._turned_seconds:
            self.request_rate = (near.reads - self._reads_at_turn) / elapsed
            self.byte_rate = (near.received_bytes - self._bytes_at_turn) / elapsed
        self._turned_seconds = now_seconds
        self._reads_at_turn, self._bytes_at_turn = near.reads, near.received_bytes


def _quiet(end: SpliceEnd, bytes_before: int, quiet_before: int) -> int:
    """For how many sweeps nothing has come from an end. One that is not read, as the other end is slow, is not."""
    if end.received_bytes != bytes_before or (end.transport is not None and not end.transport.is_reading()):
        return 0
    return quiet_before + 1
