"""Listeners that close while somebody comes, and servers that do not read whom they let in."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

import pytest
import uvloop
from magnetar.net.connection import Connection
from magnetar.net.endpoints import listen
from magnetar.net.testing import until

from lib.tests.heard import Heard


class Silent:
    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def connection_made(self) -> None:
        self.connection.write(b"hello")

    def data_received(self, data: bytes) -> None:
        raise AssertionError(data)

    def writable_changed(self, writable: bool) -> None:
        raise AssertionError(writable)

    def connection_lost(self, error: Exception | None) -> None:
        pass


@pytest.mark.parametrize("turns", range(8))
def test_who_comes_while_a_listener_closes_is_not_left_hanging(turns: int) -> None:
    # The loop that servers run on; asyncio's own (3.11) forgets the socket of whom it accepts just then.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(come_and_close(turns))


async def come_and_close(turns: int) -> None:
    """Connect, let so many turns of the loop go by, and close the listener."""
    listener = await listen("127.0.0.1", 0, Silent)
    with socket.create_connection(("127.0.0.1", listener.port)) as client:
        for _ in range(turns):
            await asyncio.sleep(0)
        await listener.close()
        for _ in range(8):
            await asyncio.sleep(0)
        assert not listener.connections
        client.settimeout(1)
        # Accepted or not, told something or not: it has ended.
        with contextlib.suppress(ConnectionResetError):
            while client.recv(16):
                pass


class NotRead(Heard):
    """A server's side that is full when somebody comes, such as a bookie's."""

    def connection_made(self) -> None:
        self.connection.pause_reading("full")


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_whoever_is_paused_as_the_connection_stands_is_not_read(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """uvloop begins to read after that, also where it was told not to."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(come_to_who_is_full())


async def come_to_who_is_full() -> None:
    heard: list[NotRead] = []

    def make(connection: Connection) -> NotRead:
        heard.append(NotRead(connection))
        return heard[-1]

    listener = await listen("127.0.0.1", 0, make)
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    await until(lambda: heard)
    for _ in range(8):
        await asyncio.sleep(0)
    writer.write(b"later")
    await writer.drain()
    for _ in range(100):
        await asyncio.sleep(0)
    (side,) = heard
    came_early = bytes(side.data)
    side.connection.resume_reading("full")
    await until(lambda: side.data == b"later")
    writer.close()
    await until(lambda: side.lost)
    await listener.close()
    assert await reader.read() == b""
    assert came_early == b""
