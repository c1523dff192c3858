"""The transport that a server's protocol has of an HTTP connection: the loop's, with two who may stop reading."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any


def _nothing() -> None:
    """Nobody is told any more."""


class ServedTransport(asyncio.Transport):
    """Reading goes on only when neither the server's protocol nor whoever gives it what came has stopped it. The loop's
    own knows of one: who resumes undoes what the other stopped."""

    __slots__ = ("_below", "_goes_on", "_reading", "_waits", "_wrote", "stopped_by_server")

    def __init__(self, below: asyncio.Transport, goes_on: Callable[[], None], wrote: Callable[[], None]) -> None:
        """`goes_on` is called when the server's protocol resumes, `wrote` when it has written something."""
        super().__init__()
        self._below = below
        self._goes_on = goes_on
        self._wrote = wrote
        self.stopped_by_server = False
        """The server's protocol wants nothing more for now."""
        self._waits = False
        """What came before waits to be given to it."""
        self._reading = True

    def let_go(self) -> None:
        """The connection is gone: nobody is told of anything, and nothing refers back."""
        self._goes_on = self._wrote = _nothing

    # --- reading

    def pause_reading(self) -> None:
        """For the server's protocol."""
        self.stopped_by_server = True
        self._read_or_not()

    def resume_reading(self) -> None:
        """For the server's protocol."""
        if not self.stopped_by_server:
            return
        self.stopped_by_server = False
        self._read_or_not()
        self._goes_on()

    def wait(self, waits: bool) -> None:
        """Whether something that came waits, so that nothing more may be read."""
        self._waits = waits
        self._read_or_not()

    def _read_or_not(self) -> None:
        reading = not self.stopped_by_server and not self._waits
        # One that is closing reads for itself, or not.
        if reading is self._reading or self._below.is_closing():
            return
        self._reading = reading
        if reading:
            self._below.resume_reading()
        else:
            self._below.pause_reading()

    def is_reading(self) -> bool:
        """Whether anything is read."""
        return self._below.is_reading()

    # --- writing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send it."""
        self._below.write(data)
        self._wrote()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Send them."""
        self._below.writelines(list_of_data)
        self._wrote()

    def write_eof(self) -> None:
        """End this direction alone."""
        self._below.write_eof()

    def can_write_eof(self) -> bool:
        """Whether one direction alone may end."""
        return self._below.can_write_eof()

    def get_write_buffer_size(self) -> int:
        """Bytes that wait for the client to read."""
        return self._below.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Low and high, in bytes."""
        return self._below.get_write_buffer_limits()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """When the protocol is told that the client is behind, and has caught up."""
        self._below.set_write_buffer_limits(high, low)

    # --- the rest

    def is_closing(self) -> bool:
        """Whether it is closing, or closed."""
        return self._below.is_closing()

    def close(self) -> None:
        """Once what was written is sent."""
        self._below.close()

    def abort(self) -> None:
        """At once."""
        self._below.abort()

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Whoever is told of what comes."""
        return self._below.get_protocol()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Tell this one from now on."""
        self._below.set_protocol(protocol)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What TLS and the loop know of the connection."""
        return self._below.get_extra_info(name, default)
