"""A queue that is left at a pace."""

from __future__ import annotations

import asyncio
from functools import partial

from magnetar.net.paced_queue import GO_ON_IN_TURN_MAX, PacedQueue
from magnetar.sim.virtual_time import VirtualTimeLoop

new_event_loop = VirtualTimeLoop

GROUP = "group"


async def test_one_goes_on_at_each_pace() -> None:
    queue = PacedQueue(asyncio.get_running_loop(), lambda: 1.0)
    gone: list[str] = []
    for key in "abc":
        queue.wait(key, GROUP, partial(gone.append, key))
    assert "a" in queue
    for expected in ("", "a", "ab", "abc", "abc"):
        await asyncio.sleep(0.5 if not expected else 1.0)
        assert "".join(gone) == expected
    assert len(queue) == 0


async def test_without_a_pace_many_go_on_in_a_turn_and_not_all() -> None:
    queue = PacedQueue(asyncio.get_running_loop(), lambda: 0.0)
    gone: list[int] = []
    for number in range(2 * GO_ON_IN_TURN_MAX + 1):
        queue.wait(number, GROUP, partial(gone.append, number))
    for count in (GO_ON_IN_TURN_MAX, 2 * GO_ON_IN_TURN_MAX, 2 * GO_ON_IN_TURN_MAX + 1):
        await asyncio.sleep(0)
        assert gone == list(range(count))


async def test_a_key_waits_once_and_is_forgotten() -> None:
    queue = PacedQueue(asyncio.get_running_loop(), lambda: 1.0)
    gone: list[str] = []
    queue.wait("a", GROUP, partial(gone.append, "first"))
    queue.wait("a", GROUP, partial(gone.append, "second"))
    queue.wait("b", GROUP, partial(gone.append, "b"))
    queue.forget("b")
    queue.forget("c")
    await asyncio.sleep(5.0)
    assert gone == ["second"]
    queue.wait("d", GROUP, partial(gone.append, "d"))
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

    queue.wait("a", GROUP, fail)
    queue.wait("b", GROUP, partial(gone.append, "b"))
    await asyncio.sleep(3.0)
    assert gone == ["b"]
    assert [type(error) for error in failed] == [ValueError]


async def test_groups_take_turns() -> None:
    queue = PacedQueue(asyncio.get_running_loop(), lambda: 1.0)
    gone: list[str] = []
    for key, group in (("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b"), ("c1", "c"), ("b2", "b")):
        queue.wait(key, group, partial(gone.append, key))
    assert [queue.waiting_beside(key) for key in ("a2", "b1", "c1", "d1")] == [3, 2, 1, 0]
    await asyncio.sleep(1.5)
    queue.wait("d1", "d", partial(gone.append, "d1"))
    await asyncio.sleep(10.0)
    assert gone == ["a1", "b1", "c1", "a2", "d1", "b2", "a3"]
    assert queue.waiting_beside("a3") == 0


async def test_a_group_whose_last_one_leaves_has_no_turn() -> None:
    queue = PacedQueue(asyncio.get_running_loop(), lambda: 1.0)
    gone: list[str] = []
    for key in "abc":
        queue.wait(key, key, partial(gone.append, key))
    queue.forget("a")
    await asyncio.sleep(2.5)
    assert gone == ["b", "c"]
    assert len(queue) == 0


async def test_who_waits_again_meanwhile_has_its_turn_later() -> None:
    queue = PacedQueue(asyncio.get_running_loop(), lambda: 0.0)
    gone: list[int] = []

    def again() -> None:
        gone.append(0)
        queue.wait("again", GROUP, again)

    queue.wait("again", GROUP, again)
    for turn in range(1, 4):
        await asyncio.sleep(0)
        assert len(gone) == turn
    queue.forget("again")


async def test_a_key_that_waits_stays_in_its_group() -> None:
    queue = PacedQueue(asyncio.get_running_loop(), lambda: 1.0)
    gone: list[str] = []
    queue.wait("a", "one", partial(gone.append, "first"))
    queue.wait("a", "other", partial(gone.append, "second"))
    await asyncio.sleep(5.0)
    assert gone == ["second"]
    assert len(queue) == 0


async def test_one_that_has_others_leave_in_its_turn_does_not_fail() -> None:
    loop = asyncio.get_running_loop()
    queue = PacedQueue(loop, lambda: 0.0)
    failed: list[object] = []
    loop.set_exception_handler(lambda _, context: failed.append(context["exception"]))
    queue.wait("a", GROUP, lambda: queue.forget("b"))
    queue.wait("b", GROUP, lambda: None)
    await asyncio.sleep(1.0)
    assert (len(queue), failed) == (0, [])
