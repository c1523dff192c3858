"""The bytes of messages that a broker has taken and not stored yet.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from magnetar.broker.policies.limiter import Pausable

PAUSED_FOR_BUFFER: Final = "broker's publish buffer full"


class PublishBuffer:
    """Bytes of all connections that wait to be stored. Over the limit, those that publish are read no further until
    half of it is stored (Pulsar: `maxMessagePublishBufferSizeInMB`)."""

    __slots__ = ("_bytes_max", "_held", "held_bytes")

    def __init__(self, bytes_max: int) -> None:
        """0 or less: no limit."""
        self._bytes_max = bytes_max
        self._held: dict[Pausable, None] = {}
        self.held_bytes = 0

    def limit(self, bytes_max: int) -> None:
        """Another limit holds; 0 or less: none."""
        self._bytes_max = bytes_max
        self.remove(0)

    def add(self, size_bytes: int, connection: Pausable) -> None:
        """A connection brought so much."""
        self.held_bytes += size_bytes
        if 0 < self._bytes_max < self.held_bytes and connection not in self._held:
            self._held[connection] = None
            connection.pause_reading(PAUSED_FOR_BUFFER)

    def remove(self, size_bytes: int) -> None:
        """So much is stored, or refused."""
        self.held_bytes -= size_bytes
        if self._held and (self._bytes_max <= 0 or self.held_bytes <= self._bytes_max // 2):
            held, self._held = self._held, {}
            for connection in held:
                connection.resume_reading(PAUSED_FOR_BUFFER)
