"""Handlers of connections that keep what they hear, for the tests of connections with TLS."""

from __future__ import annotations

from magnetar.net.connection import Connection


class Heard:
    """A handler that keeps what it hears."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.data = bytearray()
        self.made = 0
        self.lost = 0
        self.error: Exception | None = None
        self.writable: list[bool] = []

    def connection_made(self) -> None:
        self.made += 1

    def data_received(self, data: bytes) -> None:
        self.data += data

    def writable_changed(self, writable: bool) -> None:
        self.writable.append(writable)

    def connection_lost(self, error: Exception | None) -> None:
        self.lost += 1
        self.error = error


class HeardByRoom(Heard):
    """One that has memory of its own, of two bytes."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._room = bytearray(2)

    def room(self) -> memoryview:
        return memoryview(self._room)

    def received(self, size_bytes: int) -> None:
        self.data += self._room[:size_bytes]
