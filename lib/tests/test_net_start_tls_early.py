"""What comes in between the end of a TLS handshake and the turn in which it is told: all of it, in order."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from magnetar.net.connection import Connection
from magnetar.net.start_tls import start_tls
from magnetar.sim.virtual_time import VirtualTimeLoop

from lib.tests.tls_peers import Bare, client, sealed, server_context

new_event_loop = VirtualTimeLoop

ENDED = "the other side closed the connection during its TLS handshake"


class Upgraded:
    """A connection, as far as the upgrade knows it; it closes when it hears `until`, and fails at "mistake"."""

    def __init__(self, protocol: asyncio.BaseProtocol, until: bytes = b"") -> None:
        self.closing = False
        self.lost: list[Exception | None] = []
        self.bare = Bare()
        self.heard: list[bytes] = []
        self._protocol = protocol
        self._until = until

    def begin_upgrade(self) -> asyncio.Transport:
        return self.bare

    def upgraded(self, transport: asyncio.Transport, make_handler: object) -> None:
        assert make_handler is None
        transport.set_protocol(self._protocol)

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


def begun(protocol: Plain | Small, until: bytes = b"") -> tuple[Upgraded, asyncio.Task[None]]:
    connection = protocol.connection = Upgraded(protocol, until)
    upgrade = start_tls(cast(Connection, connection), server_context(), server_side=True, timeout_seconds=7.0)
    return connection, asyncio.create_task(upgrade)


async def upgraded(protocol: Plain | Small, *pieces: bytes, until: bytes = b"", ends: bool = False) -> Upgraded:
    """A connection whose peer says these in one turn with the end of its handshake, and then `ends`."""
    connection, upgrade = begun(protocol, until)
    await asyncio.sleep(0)
    bare, there = connection.bare, client()
    there.receive(b"")
    bare.comes(there.take())
    there.receive(bare.take())
    assert there.stands
    bare.comes(there.take())
    for piece in pieces:
        bare.comes(sealed(there, piece))
    if ends:
        there.end()
        bare.comes(there.take())
    assert connection.heard == []
    await upgrade
    return connection


async def test_all_pieces_are_heard_in_order() -> None:
    connection = await upgraded(Plain(), b"one", b"two", b"three")
    assert connection.heard == [b"one", b"two", b"three"]


async def test_who_has_little_memory_hears_all_of_them_too() -> None:
    connection = await upgraded(Small(), b"abc", b"d")
    assert connection.heard == [b"ab", b"c", b"d"]


async def test_the_last_words_of_a_peer_that_ends_at_once_are_heard() -> None:
    connection = await upgraded(Plain(), b"one", b"bye", ends=True)
    assert connection.heard == [b"one", b"bye"]
    assert connection.bare.closing
    assert not connection.bare.aborted


async def test_who_closes_the_connection_hears_no_more() -> None:
    connection = await upgraded(Plain(), b"one", b"bye", b"three", until=b"bye")
    assert connection.heard == [b"one", b"bye"]


async def test_a_handler_that_fails_at_early_words_ends_the_connection() -> None:
    protocol = Plain()
    with pytest.raises(ValueError, match="a handler's own"):
        await upgraded(protocol, b"one", b"mistake", b"three")
    assert protocol.connection.heard == [b"one", b"mistake"]
    assert protocol.connection.bare.aborted


@pytest.mark.parametrize("how", ["end", "silence", "cut before it is told"])
async def test_a_handshake_that_does_not_stand_ends_the_connection(how: str) -> None:
    """The transport below is cut, and its handler hears why: nothing is said of a peer that hangs up."""
    connection, upgrade = begun(Plain())
    await asyncio.sleep(0)
    bare, there = connection.bare, client()
    if how == "end":
        protocol = bare.protocol
        assert isinstance(protocol, asyncio.BufferedProtocol)
        protocol.eof_received()
    elif how == "silence":
        bare.close()
    else:
        there.receive(b"")
        bare.comes(there.take())
        there.receive(bare.take())
        bare.comes(there.take())
        bare.abort()
    with pytest.raises(ConnectionResetError, match=ENDED):
        await upgrade
    assert bare.aborted
    assert [str(error) for error in connection.lost] == [ENDED]


async def test_a_handshake_has_the_time_that_it_is_given() -> None:
    connection, upgrade = begun(Plain())
    with pytest.raises(ConnectionAbortedError, match=r"taking longer than 7\.0 seconds"):
        await upgrade
    assert asyncio.get_running_loop().time() == 7.0
    assert connection.bare.aborted
