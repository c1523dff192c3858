"""Outboxes that are sent before the next turn of the loop, because somebody says so."""

from __future__ import annotations

import asyncio
import gc

import pytest
from magnetar.net.connection import Connection
from magnetar.net.outboxes import Outboxes
from magnetar.sim.virtual_time import VirtualTimeLoop

from lib.tests.test_net_connection import Mute, StuckTransport

new_event_loop = VirtualTimeLoop


class FailingTransport(StuckTransport):
    """Fails once."""

    failed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.failed:
            self.failed = True
            raise ValueError("a mistake")
        super().write(data)


def connected(outboxes: Outboxes, transport: StuckTransport) -> Connection:
    made = Connection(asyncio.get_running_loop(), lambda _: Mute(), outboxes=outboxes)
    made.connection_made(transport)
    return made


async def test_what_was_written_is_sent_when_somebody_says_so() -> None:
    outboxes = Outboxes()
    transports = [StuckTransport(), StuckTransport(), StuckTransport()]
    first, second, _ = [connected(outboxes, transport) for transport in transports]
    first.write(b"one")
    first.write(b"two")
    second.write_parts([b"three"])
    assert len(outboxes) == 2
    assert [transport.unsent_bytes for transport in transports] == [0, 0, 0]
    outboxes.send()
    assert [transport.unsent_bytes for transport in transports] == [6, 5, 0]
    assert len(outboxes) == 0
    await asyncio.sleep(0)
    assert [transport.unsent_bytes for transport in transports] == [6, 5, 0], "nothing is sent twice"
    first.write(b"four")
    await asyncio.sleep(0)
    assert transports[0].unsent_bytes == 10, "the next turn sends what nobody has sent before"
    assert len(outboxes) == 0


async def test_a_connection_that_is_over_waits_no_longer() -> None:
    outboxes = Outboxes()
    connection = connected(outboxes, StuckTransport())
    connection.write(b"one")
    connection.connection_lost(None)
    outboxes.send()
    await asyncio.sleep(0)
    assert len(outboxes) == 0


async def test_the_failure_of_one_leaves_the_others_for_the_next_turn() -> None:
    outboxes = Outboxes()
    transport = StuckTransport()
    broken = FailingTransport()
    failing, other = connected(outboxes, broken), connected(outboxes, transport)
    failing.write(b"one")
    other.write(b"two")
    with pytest.raises(ValueError, match="a mistake"):
        outboxes.send()
    await asyncio.sleep(0)
    assert transport.unsent_bytes == 3
    assert len(outboxes) == 0
    assert broken.aborted, "nothing is sent after a gap"


class OtherTransport(StuckTransport):
    """One that serves several protocols, and keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.protocols: list[object] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data
        super().write(data)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocols.append(protocol)


async def test_what_was_written_before_an_upgrade_leaves_in_clear_and_the_rest_over_tls() -> None:
    outboxes = Outboxes()
    bare, secured = OtherTransport(), OtherTransport()
    connection = connected(outboxes, bare)
    connection.write(b"before")
    assert connection.begin_upgrade() is bare
    assert bare.written == b"before"
    connection.write(b"after")
    outboxes.send()
    await asyncio.sleep(0)
    assert bare.written == b"before"
    assert len(outboxes) == 0
    connection.upgraded(secured)
    assert (bare.written, secured.written) == (b"before", b"after"), "without another turn"
    connection.abort()


async def test_what_was_written_is_sent_before_a_connection_is_handed_over() -> None:
    outboxes = Outboxes()
    transport = OtherTransport()
    connection = connected(outboxes, transport)
    connection.write(b"last words")
    assert connection.hand_over(asyncio.Protocol()) is transport
    assert transport.written == b"last words"
    assert len(outboxes) == 0
    connection.write(b"more")
    outboxes.send()
    await asyncio.sleep(0)
    assert transport.written == b"last words"
    assert len(outboxes) == 0


class PausingTransport(OtherTransport):
    """Tells at each write that it has enough."""

    connection: Connection

    def write(self, data: bytes | bytearray | memoryview) -> None:
        super().write(data)
        if len(self.written) < 10:
            self.connection.pause_writing()


class WritesMore(Mute):
    """Whenever its connection falls behind it says so to all."""

    def __init__(self, others: list[Connection]) -> None:
        self.others = others

    def writable_changed(self, writable: bool) -> None:
        for other in self.others:
            other.write(b"+")


async def test_what_is_written_while_outboxes_are_sent_leaves_once_and_in_order() -> None:
    outboxes = Outboxes()
    connections: list[Connection] = []
    transports = [PausingTransport(), PausingTransport()]
    for transport in transports:
        made = Connection(asyncio.get_running_loop(), lambda _: WritesMore(connections), outboxes=outboxes)
        made.connection_made(transport)
        transport.connection = made
        connections.append(made)
    connections[0].write(b"a")
    connections[1].write(b"b")
    outboxes.send()
    # The first one's own word has to wait for the next turn, as does what the second one tells it.
    assert [transport.written for transport in transports] == [b"a", b"b+"]
    while outboxes:
        await asyncio.sleep(0)
    assert transports[0].written.startswith(b"a++")
    for transport in transports:
        assert transport.unsent_bytes == len(transport.written)
        assert set(transport.written[2:]) == {ord("+")}


def connections() -> int:
    """How many there are in this process. No weak reference: mypyc's classes do not clear theirs."""
    gc.collect()
    return sum(isinstance(each, Connection) for each in gc.get_objects())


async def test_nobody_keeps_a_connection_that_ended() -> None:
    before = connections()
    outboxes = Outboxes()
    connection = connected(outboxes, StuckTransport())
    assert connections() == before + 1
    connection.write(b"one")
    connection.abort()
    connection.connection_lost(None)
    connection.write(b"two")
    del connection
    await asyncio.sleep(0)
    assert len(outboxes) == 0
    assert connections() == before
