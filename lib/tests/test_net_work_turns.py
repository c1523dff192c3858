"""Work that many connections have at a time is shared out over the turns of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from magnetar.net.http.work_turns import WorkTurns


async def test_work_goes_on_in_the_next_turn_when_this_one_has_enough() -> None:
    turns = WorkTurns(asyncio.get_running_loop(), 10)
    done: list[str] = []

    def work(name: str, size: int) -> Callable[[], None]:
        def worker() -> None:
            done.append(name)
            turns.worked(size)

        return worker

    turns.call(work("a", 4))
    turns.call(work("b", 6))
    assert done == ["a", "b"]
    for name in "cde":
        turns.call(work(name, 7))
    assert done == ["a", "b"]
    await asyncio.sleep(0)
    assert done == ["a", "b", "c", "d"]
    turns.call(work("f", 1))
    await asyncio.sleep(0)
    assert done == ["a", "b", "c", "d", "e", "f"]
    await asyncio.sleep(0)
    turns.call(work("g", 1))
    assert done[-1] == "g"


async def test_whoever_is_not_done_gets_in_line_behind_the_others() -> None:
    turns = WorkTurns(asyncio.get_running_loop(), 1)
    done: list[str] = []

    def work(name: str, times: int) -> Callable[[], None]:
        def worker() -> None:
            done.append(name)
            turns.worked(1)
            if done.count(name) < times:
                turns.call(worker)

        return worker

    turns.call(work("a", 3))
    turns.call(work("b", 2))
    for count in range(1, 6):
        assert len(done) == count
        await asyncio.sleep(0)
    assert done == ["a", "a", "b", "a", "b"]


async def test_a_failure_leaves_others_their_turns() -> None:
    turns = WorkTurns(asyncio.get_running_loop(), 1)
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context["exception"]))
    done: list[str] = []

    def failing() -> None:
        raise ValueError

    turns.call(lambda: turns.worked(1))
    turns.call(failing)
    turns.call(lambda: done.append("after"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [type(failure) for failure in failures] == [ValueError]
    assert done == ["after"]
