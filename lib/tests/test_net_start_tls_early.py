"""What comes in between the end of a TLS handshake and the turn in which it is told: all of it, in order."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from magnetar.net.connection import Connection
from magnetar.net.start_tls import start_tls


class Bare(asyncio.Transport):
    """The transport below TLS."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True


class Secured(asyncio.Transport):
    """The transport with TLS."""

    def __init__(self, protocol: asyncio.BaseProtocol) -> None:
        super().__init__()
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol


class Upgraded:
    """A connection, as far as the upgrade knows it; it closes when it hears `until`, and fails at "mistake"."""

    def __init__(self, protocol: asyncio.BaseProtocol, until: bytes = b"") -> None:
        self.closing = False
        self.lost: list[Exception | None] = []
        self.bare = Bare()
        self.heard: list[bytes] = []
        self.protocol = protocol
        self._until = until

    def begin_upgrade(self) -> asyncio.Transport:
        return self.bare

    def upgraded(self, transport: asyncio.BaseTransport, make_handler: object) -> None:
        del transport, make_handler

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.append(error)

    def abort(self) -> None:
        self.bare.abort()

    def hear(self, data: bytes) -> None:
        self.heard.append(data)
        self.closing = bool(self._until) and data == self._until
        if data == b"mistake":
            raise ValueError("a handler's own")


class Plain(asyncio.Protocol):
    """Takes what is received."""

    connection: Upgraded

    def data_received(self, data: bytes) -> None:
        self.connection.hear(data)


class Small(asyncio.BufferedProtocol):
    """Has memory of its own, of two bytes."""

    connection: Upgraded

    def __init__(self) -> None:
        self._room = bytearray(2)

    def get_buffer(self, sizehint: int) -> Any:
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        self.connection.hear(bytes(self._room[:nbytes]))


async def upgraded(
    protocol: Plain | Small, monkeypatch: pytest.MonkeyPatch, *pieces: bytes, until: bytes = b""
) -> Upgraded:
    """A connection whose peer says these before the end of its handshake is told."""
    connection = protocol.connection = Upgraded(protocol, until)
    seconds: list[float] = []

    async def handshake(bare: asyncio.Transport, early: asyncio.Protocol, *_: object, **options: Any) -> Secured:
        seconds.append(options["ssl_handshake_timeout"])
        for piece in pieces:
            early.data_received(piece)
        return Secured(protocol)

    monkeypatch.setattr(asyncio.get_running_loop(), "start_tls", handshake)
    await start_tls(cast(Connection, connection), cast(Any, None), server_side=True, timeout_seconds=7.0)
    assert seconds == [7.0]
    return connection


async def test_all_pieces_are_heard_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = await upgraded(Plain(), monkeypatch, b"one", b"two", b"three")
    assert connection.heard == [b"one", b"two", b"three"]


async def test_who_has_little_memory_hears_all_of_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = await upgraded(Small(), monkeypatch, b"abc", b"d")
    assert connection.heard == [b"ab", b"c", b"d"]


async def test_who_closes_the_connection_hears_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = await upgraded(Plain(), monkeypatch, b"one", b"bye", b"three", until=b"bye")
    assert connection.heard == [b"one", b"bye"]


async def test_a_handler_that_fails_at_early_words_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    protocol = Plain()
    with pytest.raises(ValueError, match="a handler's own"):
        await upgraded(protocol, monkeypatch, b"one", b"mistake", b"three")
    assert protocol.connection.heard == [b"one", b"mistake"]
    assert protocol.connection.bare.aborted


@pytest.mark.parametrize("how", ["error", "silence", "nothing"])
async def test_a_handshake_that_does_not_stand_ends_the_connection(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """The transport below is cut, and its handler hears why: loops say nothing of a peer that hangs up."""
    protocol = Plain()
    connection = protocol.connection = Upgraded(protocol)

    async def handshake(bare: asyncio.Transport, early: asyncio.Protocol, *_: object, **__: object) -> Secured | None:
        if how == "error":
            raise ConnectionResetError
        if how == "silence":
            early.connection_lost(None)
        return None if how == "nothing" else Secured(protocol)

    monkeypatch.setattr(asyncio.get_running_loop(), "start_tls", handshake)
    with pytest.raises(ConnectionResetError, match="during its TLS handshake"):
        await start_tls(cast(Connection, connection), cast(Any, None), server_side=True)
    assert connection.bare.aborted
    assert [str(error) for error in connection.lost] == [
        "the other side closed the connection during its TLS handshake"
    ]
