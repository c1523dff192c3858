"""Bytes that come before the protocol itself: they are taken off, then the connection gets its true handler."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from magnetar.core.errors import PeerError
from magnetar.net.connection import Connection, HandlerFactory
from magnetar.net.handlers import Handler

logger: Final = logging.getLogger(__name__)

PREAMBLE_SECONDS_MAX: Final = 30.0
"""How long a peer may take for its first bytes; the handlers behind have a limit of the same length of their own."""


class Preamble(Protocol):
    """What reads them."""

    @property
    def done(self) -> bool:
        """Whether the preamble is over."""
        ...

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes; returns those behind the preamble. `PeerError` closes the connection."""
        ...


P = TypeVar("P", bound=Preamble)


def after_preamble(make_preamble: Callable[[], P], make_handler: Callable[[Connection, P], Handler]) -> HandlerFactory:
    """A handler factory that first reads a preamble, then makes the handler with what the preamble said."""
    return lambda connection: _PreambleHandler(connection, make_preamble(), make_handler)


class _PreambleHandler(Generic[P]):
    """Reads the preamble and then hands the connection to the handler that is made for it (a `Handler`)."""

    def __init__(self, connection: Connection, preamble: P, make_handler: Callable[[Connection, P], Handler]) -> None:
        self._connection = connection
        self._preamble = preamble
        self._make_handler = make_handler
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(PREAMBLE_SECONDS_MAX, self._connection.abort)

    def data_received(self, data: bytes) -> None:
        try:
            rest = self._preamble.feed(data)
        except PeerError as error:
            logger.warning("closing connection of %s: %s", self._connection.peer_address, error)
            self._connection.abort()
            return
        if not self._preamble.done:
            return
        self._stop_timer()
        handler = self._make_handler(self._connection, self._preamble)
        self._connection.replace_handler(handler)
        handler.connection_made()
        if rest:
            handler.data_received(rest)

    def writable_changed(self, writable: bool) -> None:
        pass

    def connection_lost(self, error: Exception | None) -> None:
        del error
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
