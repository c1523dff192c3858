"""What a connection calls: its handler, which may give the memory that bytes are read into.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

import asyncio
from typing import Protocol, cast


class ConnectionHandler(Protocol):
    """What all handlers have. All calls come from the event loop."""

    def connection_made(self) -> None:
        """The connection stands; the handler may write."""
        ...

    def writable_changed(self, writable: bool) -> None:
        """The peer has fallen behind (False) or caught up (True)."""
        ...

    def connection_lost(self, error: Exception | None) -> None:
        """It is over, for good. `error` is None after a clean close."""
        ...


class Handler(ConnectionHandler, Protocol):
    """What a connection needs from the protocol that runs over it."""

    def data_received(self, data: bytes) -> None:
        """Some bytes; any chunking."""
        ...


class ReceivingHandler(ConnectionHandler, Protocol):
    """A handler that gives the memory for what comes in."""

    def room(self) -> memoryview:
        """Where the next bytes are to be put, at least one of them."""
        ...

    def received(self, size_bytes: int) -> None:
        """So many bytes were put at the beginning of the room given last; any chunking."""
        ...


def receives(handler: Handler | ReceivingHandler | None) -> bool:
    """Whether it gives the memory for what comes in."""
    return hasattr(handler, "room")


class ReceivingSide(asyncio.BufferedProtocol):
    """Reads into a handler's memory; everything else is the connection's."""

    def __init__(self, connection: asyncio.Protocol, handler: Handler | ReceivingHandler | None) -> None:
        self._connection = connection
        self._handler = cast(ReceivingHandler, handler)

    def get_buffer(self, sizehint: int) -> memoryview:
        """asyncio: where the next bytes go."""
        return self._handler.room()

    def buffer_updated(self, nbytes: int) -> None:
        """asyncio: so many came."""
        self._handler.received(nbytes)

    def pause_writing(self) -> None:
        """asyncio: as of the connection."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """asyncio: as of the connection."""
        self._connection.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: as of the connection."""
        self._connection.connection_lost(exc)
