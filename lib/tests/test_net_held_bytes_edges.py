"""What thousands hold a little of, and connections that cannot be cut or read."""

from __future__ import annotations

import asyncio

from magnetar.core.limits import KIB, MIB
from magnetar.net.held_bytes import (
    CUT_PACE_SECONDS,
    HELD_BYTES_MAX,
    LOOK_SECONDS,
    NOTED_BYTES,
    NOTED_BYTES_MIN,
    UNANSWERED_BYTES,
    HeldBytes,
)
from magnetar.sim.virtual_time import VirtualTimeLoop

from lib.tests.held_bytes_world import Peer, connected
from lib.tests.test_net_held_bytes import BYTES_MAX, FakeConnection, a_cut_begins, cut

new_event_loop = VirtualTimeLoop


class QuietPeer(Peer):
    """Brings nothing more."""

    def resume_reading(self, reason: str) -> None:
        self._reasons.remove(reason)


async def test_the_more_connections_there_are_the_less_is_held_uncounted() -> None:
    held = HeldBytes(asyncio.get_running_loop())
    peers = [Peer(held, str(index)) for index in range(100_000)]
    for each in peers[:1_000]:
        held.opened(each)
    assert held.noted_bytes == NOTED_BYTES
    for each in peers[1_000:8_000]:
        held.opened(each)
    assert held.noted_bytes == HELD_BYTES_MAX // 2 // 8_000
    for each in peers[8_000:]:
        held.opened(each)
    assert held.noted_bytes == NOTED_BYTES_MIN
    for each in peers[1_000:]:
        held.closed(each)
    assert held.noted_bytes == NOTED_BYTES


async def test_those_that_held_a_little_before_there_were_many_are_counted_then() -> None:
    held = HeldBytes(asyncio.get_running_loop(), 16 * MIB)
    first = [QuietPeer(held, str(index), UNANSWERED_BYTES + 1) for index in range(100)]
    for each in first:
        held.opened(each)
        each.held_bytes = NOTED_BYTES
    many = [QuietPeer(held, f"later {index}") for index in range(500)]
    for each in many:
        held.opened(each)
    many[0].bring(NOTED_BYTES)
    assert held.holders == 1
    await asyncio.sleep(1.5 * LOOK_SECONDS)
    assert (held.holders, held.held_bytes) == (101, 101 * NOTED_BYTES)


async def test_thousands_that_each_hold_a_little_less_than_counts_are_counted_when_there_are_many() -> None:
    """Nobody held as much as counts when it came, and so nobody looked: half a gigabyte was uncounted."""
    bytes_max = 16 * MIB
    held = HeldBytes(asyncio.get_running_loop(), bytes_max)
    peers: list[QuietPeer] = []
    for number in range(4_000):
        peers.append(QuietPeer(held, str(number), UNANSWERED_BYTES + 1))
        held.opened(peers[-1])
        peers[-1].held_bytes = held.noted_bytes
        if number % 100 == 0:
            await asyncio.sleep(LOOK_SECONDS)
    await asyncio.sleep(2 * LOOK_SECONDS)
    uncounted = [each.held_bytes for each in peers if not each.aborted and each not in held._noted]
    assert max(uncounted) <= 2 * held.noted_bytes
    assert held.cuts, "their sum was above the bound"


async def test_thousands_of_small_half_frames_are_counted() -> None:
    held = HeldBytes(asyncio.get_running_loop(), MIB)
    connections = [connected(held) for _ in range(100)]
    for each in connections:
        each.hold_incoming(8 * KIB)
    assert (held.holders, held.held_bytes) == (100, 100 * 8 * KIB)
    for each in connections:
        each.connection_lost(None)
    assert (held.holders, held.held_bytes, held.noted_bytes) == (0, 0, NOTED_BYTES)


class FailingConnection(FakeConnection):
    """Cannot be cut, nor read again."""

    def abort(self) -> None:
        raise OSError("no")

    def resume_reading(self, reason: str) -> None:
        raise OSError("no")


async def test_one_that_cannot_be_cut_keeps_no_other_from_it() -> None:
    held = HeldBytes(asyncio.get_running_loop(), BYTES_MAX)
    asyncio.get_running_loop().set_exception_handler(lambda _, context: None)
    failing = [FailingConnection(held, f"failing {index}") for index in range(2)]
    connections = [FakeConnection(held, str(index)) for index in range(12)]
    await a_cut_begins(held)
    await asyncio.sleep(14 * CUT_PACE_SECONDS)
    assert len(failing) + len(cut(connections)) >= held.cuts > 2


async def test_one_that_cannot_be_read_again_keeps_no_other_from_it() -> None:
    asyncio.get_running_loop().set_exception_handler(lambda _, context: None)
    held = HeldBytes(asyncio.get_running_loop(), 16 * MIB)
    failing = FailingConnection(held, "failing", 3 * MIB)
    connections = [FakeConnection(held, str(index), 3 * MIB) for index in range(6)]
    assert failing.paused
    assert any(each.paused for each in connections)
    for _ in range(10):
        await asyncio.sleep(0)
    assert not any(each.paused for each in connections)
