"""One in each turn of the loop begins."""

from __future__ import annotations

import asyncio

from magnetar.net.one_per_turn import OnePerTurn
from magnetar.sim.virtual_time import VirtualTimeLoop

new_event_loop = VirtualTimeLoop


async def begin(turns: OnePerTurn, begun: list[int], number: int) -> None:
    await turns.begin()
    begun.append(number)


async def test_who_is_alone_goes_on_at_once() -> None:
    turns = OnePerTurn(asyncio.get_running_loop())
    begun: list[int] = []
    for number in range(3):
        await begin(turns, begun, number)
        assert len(begun) == number + 1
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert begun == [0, 1, 2]


async def test_many_begin_in_order_and_in_turns() -> None:
    turns = OnePerTurn(asyncio.get_running_loop())
    begun: list[int] = []
    tasks = [asyncio.create_task(begin(turns, begun, number)) for number in range(20)]
    tasks[7].cancel()
    for _ in range(30):
        before = len(begun)
        await asyncio.sleep(0)
        assert len(begun) - before <= 1
    assert begun == [number for number in range(20) if number != 7]


async def test_one_that_is_cancelled_while_it_waits_holds_up_nobody() -> None:
    turns = OnePerTurn(asyncio.get_running_loop())
    begun: list[int] = []
    tasks = [asyncio.create_task(begin(turns, begun, number)) for number in range(4)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    tasks[2].cancel()
    await asyncio.wait(tasks, timeout=1.0)
    assert begun == [0, 3]
    await asyncio.wait_for(begin(turns, begun, 4), timeout=1.0)
    assert begun == [0, 3, 4]
