"""SENDs take turns: however many connections publish, whoever asks for messages is served in between."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable

from magnetar.broker.policies.send_turns import (
    HELD_BYTES_MAX,
    PAUSED_FOR_TURN,
    READ_AGAIN_IN_TURN,
    SEND_BYTES,
    TURN_BYTES,
    SendTurns,
)
from magnetar.core.limits import KIB
from magnetar.sim.virtual_time import VirtualTimeLoop

new_event_loop = VirtualTimeLoop

BUSY = 1_000
READ_BYTES = 256 * KIB
"""What the loop reads from a socket at once."""
READS_AT_ONCE = 32
"""So many times, one after the other, while the socket is full."""
SENDS = 16
COST_BYTES = READ_BYTES + SENDS * SEND_BYTES


class World:
    """What is stored, and how much of it at most between two looks of somebody else."""

    def __init__(self) -> None:
        self.turns = SendTurns()
        self.stored: list[Busy] = []
        self.stored_bytes = 0
        self.waiting_bytes_most = 0


class Busy:
    """A connection whose client publishes all the time: it holds what it read until it is its turn."""

    def __init__(self, world: World, number: int, reads: int = 1 << 30) -> None:
        self.number = number
        self.reads = reads
        self.read = 0
        self._world = world
        self._reasons: set[str] = set()
        self._waiting: deque[int] = deque()
        world.turns.joined(self)

    @property
    def paused(self) -> bool:
        return bool(self._reasons)

    @property
    def ready(self) -> bool:
        """Whether the loop finds it readable."""
        return not self._reasons and self.reads > self.read

    def readable(self) -> None:
        """The loop's part: read on and on, until it is told to stop."""
        for _ in range(READS_AT_ONCE):
            if not self.ready:
                return
            self.read += 1
            self._waiting.append(READ_BYTES)
            self._store()

    def pause_reading(self, reason: str) -> None:
        self._reasons.add(reason)

    def resume_reading(self, reason: str) -> None:
        self._reasons.discard(reason)
        self._store()

    def end(self) -> None:
        self._waiting.clear()
        self._world.turns.left(self)

    def _store(self) -> None:
        world = self._world
        while self._waiting:
            if world.turns.left_bytes <= 0:
                world.turns.hold(self, sum(self._waiting))
                break
            size_bytes = self._waiting.popleft()
            world.turns.take(size_bytes, SENDS)
            world.stored.append(self)
            world.stored_bytes += size_bytes + SENDS * SEND_BYTES
        world.waiting_bytes_most = max(world.waiting_bytes_most, world.turns.held_bytes)


async def go_round(connections: list[Busy], times: int, look: Callable[[], None] = lambda: None) -> None:
    """Turns of a loop that finds every socket readable that is not paused. In the midst of each, `look`."""
    for _ in range(times):
        for connection in connections:
            connection.readable()
        look()
        await asyncio.sleep(0)


async def test_a_thousand_busy_connections_keep_a_consumer_waiting_for_two_turns_at_most() -> None:
    """One of which the rest is stored before it is heard, and the next one's share."""
    world = World()
    looks: list[int] = []
    busy = [Busy(world, number) for number in range(BUSY)]
    await go_round(busy, 500, lambda: looks.append(world.stored_bytes))
    between = [after - before for before, after in itertools.pairwise(looks)]
    assert max(between) <= 2 * (TURN_BYTES + COST_BYTES)
    assert min(between) >= TURN_BYTES, "and each turn stores what it may"


async def test_what_waits_for_its_turn_is_bounded() -> None:
    """When too much waits, nobody is read any more; the loop had read one more of each until then at most."""
    world = World()
    busy = [Busy(world, number) for number in range(BUSY)]
    await go_round(busy, 500)
    assert world.waiting_bytes_most <= HELD_BYTES_MAX + READ_BYTES


async def test_busy_connections_take_turns_one_after_the_other() -> None:
    world = World()
    busy = [Busy(world, number) for number in range(BUSY)]
    await go_round(busy, 3 * BUSY)
    reads = [connection.read for connection in busy]
    assert min(reads) > 0
    assert max(reads) <= 2 * min(reads) + 2, "nobody is served twice as often as another"


async def test_one_busy_connection_alone_is_read_in_every_turn() -> None:
    world = World()
    alone = Busy(world, 0)
    await go_round([alone], 100)
    assert world.stored_bytes >= 99 * TURN_BYTES


async def test_all_that_was_read_is_stored_and_everybody_is_read_again() -> None:
    world = World()
    busy = [Busy(world, number, reads=2) for number in range(BUSY)]
    await go_round(busy, 3 * BUSY)
    assert len(world.stored) == 2 * BUSY
    assert not any(connection.paused for connection in busy)
    assert world.turns.held_bytes == 0


async def test_a_small_send_is_stored_at_once_in_a_turn_that_has_room() -> None:
    turns = SendTurns()
    turns.take(100, 1)
    assert turns.left_bytes == TURN_BYTES - 100 - SEND_BYTES
    await asyncio.sleep(0)
    assert turns.left_bytes == TURN_BYTES


async def test_one_that_ends_while_it_waits_holds_nothing_and_the_others_go_on() -> None:
    world = World()
    busy = [Busy(world, number) for number in range(BUSY)]
    await go_round(busy, 1)
    for connection in busy[: BUSY - 2]:
        connection.end()
    assert not any(connection.paused for connection in busy[: BUSY - 2])
    world.stored.clear()
    await go_round(busy[BUSY - 2 :], 2 * READ_AGAIN_IN_TURN)
    assert {connection.number for connection in world.stored} == {BUSY - 2, BUSY - 1}


async def test_one_that_fails_when_it_is_its_turn_does_not_keep_the_others() -> None:
    class Failing(Busy):
        def resume_reading(self, reason: str) -> None:
            raise RuntimeError("a mistake of ours")

    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
    world = World()
    failing, other = Failing(world, 0), Busy(world, 1, reads=1)
    world.turns.take(TURN_BYTES, 1)
    failing.readable()
    other.readable()
    assert all(connection.paused for connection in (failing, other))
    for _ in range(3):
        await asyncio.sleep(0)
    assert [str(error) for error in told] == ["a mistake of ours"]
    assert not other.paused
    assert world.stored == [other]
    assert PAUSED_FOR_TURN in failing._reasons


async def test_one_that_ends_while_another_is_read_again_is_passed_over() -> None:
    class Ending(Busy):
        def resume_reading(self, reason: str) -> None:
            super().resume_reading(reason)
            other.end()

    world = World()
    ending, other = Ending(world, 0, reads=0), Busy(world, 1, reads=0)
    for connection in (ending, other):
        world.turns._leave_unread(connection)
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
    world.turns.take(1, 1)
    for _ in range(3):
        await asyncio.sleep(0)
    assert told == []
    assert [ending.paused, other.paused] == [False, False]
