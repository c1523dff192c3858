"""Listeners that close while somebody comes."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest
import uvloop
from magnetar.net.connection import Connection
from magnetar.net.endpoints import listen


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
