"""A queue that is left at a pace."""

from __future__ import annotations

import asyncio
from functools import partial

from magnetar.net.paced_queue import GO_ON_IN_TURN_MAX, PacedQueue
from magnetar.sim.virtual_time import VirtualTimeLoop

new_event_loop = VirtualTimeLoop


async def test_one_goes_on_at_each_pace() -> None:
    queue = PacedQueue(asyncio.get_running_loop(), lambda: 1.0)
    gone: list[str] = []
    for key in "abc":
        queue.wait(key, partial(gone.append, key))
    assert "a" in queue
    for expected in ("", "a", "ab", "abc", "abc"):
        await asyncio.sleep(0.5 if not expected else 1.0)
        assert "".join(gone) == expected
    assert len(queue) == 0


async def test_without_a_pace_many_go_on_in_a_turn_and_not_all() -> None:
    queue = PacedQueue(asyncio.get_running_loop(), lambda: 0.0)
    gone: list[int] = []
    for number in range(2 * GO_ON_IN_TURN_MAX + 1):
        queue.wait(number, partial(gone.append, number))
    for count in (GO_ON_IN_TURN_MAX, 2 * GO_ON_IN_TURN_MAX, 2 * GO_ON_IN_TURN_MAX + 1):
        await asyncio.sleep(0)
        assert gone == list(range(count))


async def test_a_key_waits_once_and_is_forgotten() -> None:
    queue = PacedQueue(asyncio.get_running_loop(), lambda: 1.0)
    gone: list[str] = []
    queue.wait("a", partial(gone.append, "first"))
    queue.wait("a", partial(gone.append, "second"))
    queue.wait("b", partial(gone.append, "b"))
    queue.forget("b")
    queue.forget("c")
    await asyncio.sleep(5.0)
    assert gone == ["second"]
    queue.wait("d", partial(gone.append, "d"))
    await asyncio.sleep(1.1)
    assert gone == ["second", "d"], "it begins again"


async def test_one_that_fails_holds_up_nobody() -> None:
    loop = asyncio.get_running_loop()
    queue = PacedQueue(loop, lambda: 1.0)
    gone: list[str] = []
    failed: list[BaseException] = []
    loop.set_exception_handler(lambda _, context: failed.append(context["exception"]))

    def fail() -> None:
        raise ValueError

    queue.wait("a", fail)
    queue.wait("b", partial(gone.append, "b"))
    await asyncio.sleep(3.0)
    assert gone == ["b"]
    assert [type(error) for error in failed] == [ValueError]
