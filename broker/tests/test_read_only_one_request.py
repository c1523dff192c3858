"""Who shares an answer with whom. In virtual time."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from magnetar.broker.read_only.one_request import OneRequest
from magnetar.core.errors import Unavailable
from magnetar.sim.virtual_time import VirtualTimeLoop

new_event_loop = VirtualTimeLoop


class Asked:
    """Answers the number of the request, a second after it."""

    def __init__(self) -> None:
        self.count = 0
        self.at_once = 0
        self.failing = False

    async def __call__(self) -> int:
        self.count += 1
        self.at_once += 1
        assert self.at_once == 1
        number = self.count
        await asyncio.sleep(1.0)
        self.at_once -= 1
        if self.failing:
            raise Unavailable(f"request {number}")
        return number


async def test_who_comes_while_one_is_under_way_waits_for_the_next() -> None:
    asked = Asked()
    request = OneRequest("a question", asked)
    first = [asyncio.create_task(request.answer()) for _ in range(3)]
    await asyncio.sleep(0.5)
    second = [asyncio.create_task(request.answer()) for _ in range(3)]
    await asyncio.sleep(1.0)
    third = asyncio.create_task(request.answer())
    assert await asyncio.gather(*first) == [1, 1, 1]
    assert await asyncio.gather(*second) == [2, 2, 2]
    assert await third == 3
    assert await request.answer() == 4
    assert asked.count == 4


async def test_a_failure_is_told_to_all_who_waited_and_the_next_one_is_asked_anew() -> None:
    asked = Asked()
    asked.failing = True
    request = OneRequest("a question", asked)
    found = await asyncio.gather(*(request.answer() for _ in range(2)), return_exceptions=True)
    assert [str(each) for each in found] == ["request 1"] * 2
    asked.failing = False
    assert await request.answer() == 2


async def test_who_waits_no_more_stops_nobody() -> None:
    asked = Asked()
    request = OneRequest("a question", asked)
    gone, stays = asyncio.create_task(request.answer()), asyncio.create_task(request.answer())
    await asyncio.sleep(0.5)
    gone.cancel()
    assert await stays == 1
    assert gone.cancelled()


@pytest.mark.parametrize("fails", [True, False], ids=["fails", "is closed"])
async def test_what_nobody_hears_any_more_is_no_error_of_the_loop(fails: bool) -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    asked = Asked()
    asked.failing = fails
    request = OneRequest("a question", asked)
    gone = asyncio.create_task(request.answer())
    await asyncio.sleep(0.5)
    gone.cancel()
    await asyncio.sleep(1.0 if fails else 0.1)
    await request.close()
    del request
    gc.collect()
    await asyncio.sleep(0)
    assert told == []


async def test_the_end_is_told_as_an_error_and_not_as_a_cancellation() -> None:
    asked = Asked()
    request = OneRequest("a question", asked)
    waiting = [asyncio.create_task(request.answer())]
    await asyncio.sleep(0.5)
    waiting.append(asyncio.create_task(request.answer()))
    await asyncio.sleep(0.1)
    await request.close()
    for each in waiting:
        with pytest.raises(Unavailable, match="a question"):
            await each
    with pytest.raises(Unavailable):
        await request.answer()
    await asyncio.sleep(5.0)
    assert asked.count == 1
