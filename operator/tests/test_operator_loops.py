from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from magnetar.control.errors import ControlRefused, ControlUnavailable, RefusalReason
from magnetar.core.clock import SystemClock
from magnetar.operator import loops as module
from magnetar.operator.kubernetes.errors import Refused, ServerUnavailable
from magnetar.operator.loops import Loops
from magnetar.operator.reconcile import Key
from magnetar.sim.virtual_time import VirtualTimeLoop

new_event_loop = VirtualTimeLoop

BLUE = Key("PulsarCluster", "here", "blue")
COLD = Key("Bookie", "here", "cold")


class Passes:
    """What loops do, as a test says: answers in turn, the last one for good."""

    def __init__(self) -> None:
        self.keys: list[Key] = []
        self.answers: list[float | Exception | None] = [60.0]
        self.failures: list[str] = []
        self.began = asyncio.Event()
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.at_once = self.at_once_max = 0

    async def reconcile(self, key: Key) -> float | None:
        self.keys.append(key)
        self.began.set()
        self.at_once += 1
        self.at_once_max = max(self.at_once, self.at_once_max)
        try:
            await self.may_end.wait()
        finally:
            self.at_once -= 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def passed(self, key: Key, seconds: float, failure: str) -> None:
        self.failures.append(failure)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COALESCE_SECONDS", 0.001)
    monkeypatch.setattr(module, "BACKOFF_SECONDS_FIRST", 0.001)


@pytest.fixture
def passes() -> Passes:
    return Passes()


@pytest.fixture
async def loops(passes: Passes, quick: None) -> AsyncIterator[Loops]:
    found = Loops(passes.reconcile, clock=SystemClock(), passed=passes.passed, chance=random.Random(1))
    yield found
    await found.stop()


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not what():
            await asyncio.sleep(0.001)


async def test_waking_begins_a_pass_and_waking_again_another(loops: Loops, passes: Passes) -> None:
    loops.wake(BLUE)
    loops.wake(COLD)
    await until(lambda: len(passes.keys) == 2)
    loops.wake(COLD)
    await until(lambda: passes.keys == [BLUE, COLD, COLD])


async def test_many_changes_during_a_pass_make_one_more(loops: Loops, passes: Passes) -> None:
    passes.may_end.clear()
    loops.wake(BLUE)
    await until(passes.began.is_set)
    for _ in range(10):
        loops.wake(BLUE)
    passes.may_end.set()
    await until(lambda: len(passes.keys) == 2)
    await asyncio.sleep(0.02)
    assert passes.keys == [BLUE, BLUE]


async def test_the_next_pass_comes_when_the_last_one_said(loops: Loops, passes: Passes) -> None:
    passes.answers = [0.001, 0.001, 60.0]
    loops.wake(BLUE)
    await until(lambda: len(passes.keys) == 3)


async def test_a_loop_ends_with_its_resource_and_begins_anew(loops: Loops, passes: Passes) -> None:
    passes.answers = [None]
    loops.wake(BLUE)
    await until(lambda: len(loops) == 0)
    loops.wake_known(BLUE)
    await asyncio.sleep(0.005)
    assert len(passes.keys) == 1
    loops.wake(BLUE)
    await until(lambda: len(passes.keys) == 2)


async def test_a_resource_that_is_made_again_while_its_end_is_noticed_is_not_lost(loops: Loops, passes: Passes) -> None:
    passes.answers = [None, 60.0]
    passes.may_end.clear()
    loops.wake(BLUE)
    await until(passes.began.is_set)
    loops.wake(BLUE)
    passes.may_end.set()
    await until(lambda: len(passes.keys) == 2)
    assert len(loops) == 1


async def test_failures_are_tried_again_and_counted(loops: Loops, passes: Passes) -> None:
    passes.answers = [ServerUnavailable("down"), RuntimeError("a mistake"), Refused("no"), 60.0]
    loops.wake(BLUE)
    await until(lambda: len(passes.failures) == 4)
    assert passes.failures == ["ServerUnavailable", "RuntimeError", "Refused", ""]


async def test_a_pass_that_hangs_is_given_up(loops: Loops, passes: Passes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PASS_SECONDS_MAX", 0.005)
    passes.may_end.clear()
    loops.wake(BLUE)
    await until(lambda: "TimeoutError" in passes.failures)


async def test_few_passes_run_at_once(loops: Loops, passes: Passes) -> None:
    passes.may_end.clear()
    for number in range(20):
        loops.wake(Key("Bookie", "here", f"pool-{number}"))
    await until(lambda: passes.at_once == module.PASSES_AT_ONCE_MAX)
    passes.may_end.set()
    await until(lambda: len(passes.keys) == 20)
    assert passes.at_once_max == module.PASSES_AT_ONCE_MAX


async def test_more_resources_than_one_operator_is_made_for_are_left_alone(
    loops: Loops, passes: Passes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOPS_MAX", 1)
    loops.wake(BLUE)
    loops.wake(COLD)
    assert len(loops) == 1


async def test_stopping_ends_passes_where_they_are(loops: Loops, passes: Passes) -> None:
    passes.may_end.clear()
    loops.wake(BLUE)
    await until(passes.began.is_set)
    await loops.stop()
    assert passes.at_once == 0
    assert len(loops) == 0


class SlowClock:
    """A clock that a test sets."""

    now = 0.0

    def now_ms(self) -> int:
        return int(self.now * 1000)

    def monotonic_seconds(self) -> float:
        return self.now


@pytest.fixture
async def clock() -> SlowClock:
    return SlowClock()


@pytest.fixture
async def slow_loops(passes: Passes, quick: None, clock: SlowClock) -> AsyncIterator[Loops]:
    found = Loops(passes.reconcile, clock=clock, passed=passes.passed, chance=random.Random(1))
    yield found
    await found.stop()


@pytest.mark.parametrize(
    ("answer", "is_stuck"),
    [
        (60.0, False),
        (Refused("an invalid object"), False),
        (ControlRefused(RefusalReason.FAILED_PRECONDITION, "not now"), False),
        (ControlUnavailable("a pod that hangs"), False),
        # A webhook that is down; without any API server the Lease is lost, which ends the process anyway.
        (ServerUnavailable("down"), False),
        (RuntimeError("a mistake"), True),
    ],
)
async def test_only_what_a_new_process_might_mend_is_stuck(
    passes: Passes, slow_loops: Loops, clock: SlowClock, answer: float | Exception, is_stuck: bool
) -> None:
    passes.may_end.clear()
    slow_loops.wake(BLUE)
    await until(passes.began.is_set)
    clock.now = 400.0
    assert slow_loops.stuck(300.0) == [BLUE]
    passes.answers = [answer]
    passes.may_end.set()
    await until(lambda: len(passes.failures) > 0)
    assert slow_loops.stuck(300.0) == ([BLUE] if is_stuck else [])


async def test_a_resource_that_always_fails_does_not_end_the_work_on_others(
    slow_loops: Loops, passes: Passes, clock: SlowClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def reconcile(key: Key) -> float:
        if key == BLUE:
            raise RuntimeError("a mistake")
        return 0.001

    monkeypatch.setattr(slow_loops, "_reconcile", reconcile)
    slow_loops.wake(BLUE)
    slow_loops.wake(COLD)
    await until(lambda: len(passes.failures) > 5)
    clock.now = 400.0
    ended = len(passes.failures)
    await until(lambda: passes.failures[ended:].count("") > 1)
    assert slow_loops.stuck(300.0) == []


async def test_many_that_wait_for_their_turn_are_not_stuck(slow_loops: Loops, passes: Passes, clock: SlowClock) -> None:
    """A pass of a cluster whose nodes are gone takes long, and there may be hundreds of them."""
    passes.may_end.clear()
    for number in range(20):
        slow_loops.wake(Key("Bookie", "here", f"pool-{number}"))
    await until(lambda: passes.at_once == module.PASSES_AT_ONCE_MAX)
    for _ in range(4):
        clock.now += 100.0
        ended = len(passes.failures)
        passes.may_end.set()
        passes.may_end.clear()
        await until(lambda ended=ended: len(passes.failures) == ended + 4)  # type: ignore[misc]  # A lambda's default.
        await until(lambda: passes.at_once == module.PASSES_AT_ONCE_MAX)
    assert clock.now == 400.0
    assert slow_loops.stuck(300.0) == []
    clock.now = 701.0
    assert len(slow_loops.stuck(300.0)) == module.PASSES_AT_ONCE_MAX


async def test_an_idle_operator_is_not_stuck(slow_loops: Loops, passes: Passes, clock: SlowClock) -> None:
    clock.now = 4000.0
    assert slow_loops.stuck(300.0) == []
    slow_loops.wake(BLUE)
    assert slow_loops.stuck(300.0) == []


async def test_a_loop_that_has_died_is_stuck(slow_loops: Loops, passes: Passes) -> None:
    slow_loops.wake(BLUE)
    await until(lambda: len(passes.failures) == 1)
    task = slow_loops._loops[BLUE].task
    assert task is not None
    task.cancel()
    await until(task.done)
    assert slow_loops.stuck(300.0) == [BLUE]


async def test_a_call_that_is_cancelled_elsewhere_does_not_end_the_loop(
    loops: Loops, passes: Passes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC says so of calls whose channel is closed under them."""
    tried = 0

    async def reconcile(_: Key) -> float:
        nonlocal tried
        tried += 1
        raise asyncio.CancelledError

    monkeypatch.setattr(loops, "_reconcile", reconcile)
    loops.wake(BLUE)
    await until(lambda: tried > 2)
    assert passes.failures[:2] == ["CancelledError", "CancelledError"]


async def test_nothing_is_woken_after_the_end(loops: Loops, passes: Passes) -> None:
    """Watches end later than the loops, and another operator may lead by then."""
    await loops.stop()
    loops.wake(BLUE)
    await asyncio.sleep(0.005)
    assert (len(loops), passes.keys) == (0, [])


async def test_waiting_grows_with_failures_and_is_spread() -> None:
    waits = []
    chance = random.Random(3)

    async def fail(_: Key) -> float:
        raise ServerUnavailable("down")

    loops = Loops(fail, clock=SystemClock(), passed=Passes().passed, chance=chance)
    run_one: Callable[..., Awaitable[tuple[float | None, bool]]] = loops._pass
    for failures in range(12):
        seconds, failed = await run_one(BLUE, module._Loop(), failures)
        assert failed
        assert seconds is not None
        waits.append(seconds)
    longest = [min(60.0, 2.0**number) for number in range(12)]
    assert all(most / 2 <= wait <= most for wait, most in zip(waits, longest, strict=True))


@pytest.mark.parametrize(("asked_seconds", "least_seconds"), [(0.0, 0.5), (7.0, 7.0), (3600.0, 60.0)])
async def test_a_server_that_wants_to_be_left_alone_is(asked_seconds: float, least_seconds: float) -> None:
    async def fail(_: Key) -> float:
        raise ServerUnavailable("too many requests", retry_after_seconds=asked_seconds)

    loops = Loops(fail, clock=SystemClock(), passed=Passes().passed, chance=random.Random(3))
    seconds, _ = await loops._pass(BLUE, module._Loop(), 0)
    assert seconds is not None
    assert least_seconds <= seconds <= max(least_seconds, 1.0)
