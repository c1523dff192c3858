"""Peers of a server that bounds what it holds for them all, and connections with transports that a test makes."""

from __future__ import annotations

import asyncio

from magnetar.core.limits import KIB, MIB
from magnetar.net.connection import Connection
from magnetar.net.held_bytes import UNANSWERED_BYTES, HeldBytes

BYTES_MAX = 64 * MIB
READ_BYTES = 256 * KIB


class TakingTransport(asyncio.Transport):
    """The peer takes everything at once."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def is_closing(self) -> bool:
        return False


class Deaf:
    """A handler to which nothing matters."""

    def connection_made(self) -> None:
        pass

    def data_received(self, data: bytes) -> None:
        pass

    def writable_changed(self, writable: bool) -> None:
        pass

    def connection_lost(self, error: Exception | None) -> None:
        pass


class Peer:
    """Brings a piece whenever it is read."""

    def __init__(self, held: HeldBytes, name: str, moved_bytes: int = 0) -> None:
        self._held = held
        self.peer_address = name
        self.held_bytes = 0
        self.incoming_bytes = 0
        self.moved_bytes = moved_bytes
        self._reasons: set[str] = set()
        self.aborted = False
        self.pieces = 0
        self.piece_bytes = READ_BYTES
        """What it brings whenever it is read again."""

    @property
    def paused(self) -> bool:
        return bool(self._reasons)

    def bring(self, size_bytes: int = READ_BYTES) -> None:
        self.pieces += 1
        self.held_bytes += size_bytes
        self.incoming_bytes = self.held_bytes
        self._held.note(self, self.held_bytes)

    def narrow(self) -> bool:
        return True

    def pause_reading(self, reason: str) -> None:
        self._reasons.add(reason)

    def resume_reading(self, reason: str) -> None:
        self._reasons.remove(reason)
        if not self.paused:
            self.moved_bytes += self.piece_bytes
            self.bring(self.piece_bytes)

    def abort(self) -> None:
        self.aborted = True
        self._held.forget(self)


def press(held: HeldBytes) -> Peer:
    """Somebody holds half of all, and a little more."""
    peer = Peer(held, "much", UNANSWERED_BYTES + 1)
    peer.bring(BYTES_MAX // 2 + 1)
    return peer


def connected(held: HeldBytes, transport: asyncio.Transport | None = None) -> Connection:
    connection = Connection(asyncio.get_running_loop(), lambda _: Deaf(), held=held)
    connection.connection_made(transport or TakingTransport())
    return connection


class HoldingTransport(TakingTransport):
    """The peer takes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.unsent_bytes = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.unsent_bytes += len(data)

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes
