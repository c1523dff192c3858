"""What all connections of a server hold is bounded: who is asked to hold less, and who is cut."""

from __future__ import annotations

import asyncio
import logging

import pytest
from magnetar.net.held_bytes import LOOK_SECONDS, NOTED_BYTES, HeldBytes
from magnetar.sim.virtual_time import VirtualTimeLoop

new_event_loop = VirtualTimeLoop

BYTES_MAX = 10 * NOTED_BYTES
SIZE = NOTED_BYTES + 1


class FakeConnection:
    """Holds and moves what a test says."""

    def __init__(self, held: HeldBytes, name: str, held_bytes: int = SIZE) -> None:
        self._held = held
        self.peer_address = name
        self.held_bytes = held_bytes
        self.moved_bytes = 0
        self.narrowed = False
        self.aborted = False
        held.note(self, held_bytes)

    def narrow(self) -> bool:
        self.narrowed = True
        return True

    def abort(self) -> None:
        self.aborted = True
        self._held.forget(self)


@pytest.fixture
async def held() -> HeldBytes:
    return HeldBytes(asyncio.get_running_loop(), BYTES_MAX)


async def looks(count: int = 1) -> None:
    await asyncio.sleep((count + 0.5) * LOOK_SECONDS)


def cut(connections: list[FakeConnection]) -> list[str]:
    return [each.peer_address for each in connections if each.aborted]


async def test_below_the_bound_nobody_is_cut(held: HeldBytes) -> None:
    connections = [FakeConnection(held, str(index)) for index in range(9)]
    await looks(5)
    assert cut(connections) == []
    assert held.held_bytes == 9 * SIZE
    assert all(each.narrowed for each in connections), "but above its half they hold less"


async def test_little_is_no_longer_counted(held: HeldBytes) -> None:
    connection = FakeConnection(held, "a")
    connection.held_bytes = NOTED_BYTES
    await looks()
    assert (held.held_bytes, held.holders) == (0, 0)


async def test_those_that_move_least_are_cut(held: HeldBytes, caplog: pytest.LogCaptureFixture) -> None:
    connections = [FakeConnection(held, str(index)) for index in range(14)]
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            for index, each in enumerate(connections):
                each.moved_bytes += index
            await asyncio.sleep(LOOK_SECONDS)
    assert cut(connections) == [str(index) for index in range(7)]
    assert held.held_bytes <= 0.75 * BYTES_MAX
    assert held.cuts == 7
    assert len(caplog.records) == 1


async def test_who_holds_most_is_cut_among_those_that_do_not_move(held: HeldBytes) -> None:
    small = [FakeConnection(held, f"small {index}") for index in range(7)]
    large = FakeConnection(held, "large", 4 * SIZE)
    await looks(2)
    assert cut([*small, large]) == ["large"]


async def test_a_burst_does_not_wait_for_the_next_look(held: HeldBytes) -> None:
    connections = [FakeConnection(held, str(index)) for index in range(40)]
    assert held.held_bytes == 40 * SIZE
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert held.held_bytes <= 0.75 * BYTES_MAX
    assert len(cut(connections)) == 33
    again = [FakeConnection(held, str(index)) for index in range(40)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert held.held_bytes <= 0.75 * BYTES_MAX, "nor does the next one"
    assert len(cut(again)) >= 33


async def test_a_burst_that_is_sent_in_its_turn_cuts_nobody(held: HeldBytes) -> None:
    connections = [FakeConnection(held, str(index)) for index in range(40)]
    for each in connections:
        each.held_bytes = 0
    await looks(2)
    assert cut(connections) == []
    assert held.held_bytes == 0


async def test_who_leaves_is_forgotten(held: HeldBytes) -> None:
    connection = FakeConnection(held, "a")
    held.forget(connection)
    held.forget(connection)
    assert (held.held_bytes, held.holders) == (0, 0)
    await looks(2)
