"""Outboxes that are sent before the next turn of the loop, because somebody says so."""

from __future__ import annotations

import asyncio

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
    failing, other = connected(outboxes, FailingTransport()), connected(outboxes, transport)
    failing.write(b"one")
    other.write(b"two")
    with pytest.raises(ValueError, match="a mistake"):
        outboxes.send()
    await asyncio.sleep(0)
    assert transport.unsent_bytes == 3
    assert len(outboxes) == 0
