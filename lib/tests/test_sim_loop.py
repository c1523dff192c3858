"""The loop on virtual time."""

from __future__ import annotations

import asyncio
import gc
import random
import subprocess
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from magnetar.sim.loop import Deadlock, EndlessRun, SimulatedLoop
from magnetar.sim.process import Process
from magnetar.sim.trace import Trace


@pytest.fixture
def loop() -> Iterator[SimulatedLoop]:
    made = SimulatedLoop(random.Random(1), Trace(keep=True), steps_max=10_000, seconds_max=1_000.0)
    yield made
    made.bury()


def new_process(loop: SimulatedLoop, name: str = "p") -> Process:
    process = Process(name, name)
    loop.register(process)
    return process


def test_time_jumps_to_the_next_timer(loop: SimulatedLoop) -> None:
    order: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        order.append((name, loop.time()))

    async def main() -> None:
        await asyncio.gather(sleeper("slow", 100.0), sleeper("quick", 0.5), sleeper("also quick", 0.5))

    loop.run(main())
    assert order == [("quick", 0.5), ("also quick", 0.5), ("slow", 100.0)]


def test_timeouts_and_cancelled_timers(loop: SimulatedLoop) -> None:
    async def main() -> float:
        loop.call_later(900.0, lambda: None).cancel()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.0):
                await asyncio.Event().wait()
        return loop.time()

    assert loop.run(main()) == 2.0


def test_nothing_scheduled_is_a_deadlock(loop: SimulatedLoop) -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock):
        loop.run(main())


def test_steps_and_time_are_bounded(loop: SimulatedLoop) -> None:
    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(EndlessRun, match="steps"):
        loop.run(spin())


def test_time_is_bounded(loop: SimulatedLoop) -> None:
    async def idle() -> None:
        while True:
            await asyncio.sleep(100.0)

    with pytest.raises(EndlessRun, match="virtual seconds"):
        loop.run(idle())


def test_a_dead_process_runs_no_further_and_no_finally(loop: SimulatedLoop) -> None:
    process = new_process(loop)
    seen: list[str] = []

    async def program() -> None:
        try:
            seen.append("runs")
            await asyncio.sleep(1.0)
            seen.append("survived")
        finally:
            seen.append("cleaned up")

    async def main() -> None:
        process.start(program())
        await asyncio.sleep(0.5)
        process.alive = False
        await asyncio.sleep(5.0)
        assert seen == ["runs"]

    loop.run(main())
    assert loop.problems == []


def test_a_paused_process_does_late_what_it_had_to_do(loop: SimulatedLoop) -> None:
    process = new_process(loop)
    seen: list[float] = []

    async def program() -> None:
        while True:
            await asyncio.sleep(1.0)
            seen.append(loop.time())

    async def main() -> None:
        process.start(program())
        await asyncio.sleep(2.5)
        loop.pause(process)
        await asyncio.sleep(10.0)
        assert seen == [1.0, 2.0]
        loop.resume(process)
        await asyncio.sleep(1.2)
        assert seen == [1.0, 2.0, 12.5, 13.5]

    loop.run(main())


def test_an_executor_runs_inline_later_and_one_call_after_the_other(loop: SimulatedLoop) -> None:
    process = new_process(loop)
    executor = ThreadPoolExecutor(1)
    log: list[tuple[str, float]] = []

    def work(name: str) -> str:
        log.append((name, loop.time()))
        process.spent_seconds += 1.0
        loop.call_soon_threadsafe(lambda: log.append((f"{name} said", loop.time())))
        return name

    async def program() -> None:
        before = loop.time()
        first = loop.run_in_executor(executor, work, "one")
        second = loop.run_in_executor(executor, work, "two")
        assert log == []
        assert [await first, await second] == ["one", "two"]
        assert loop.time() >= before + 2.0

    async def main() -> None:
        await process.start(program())

    loop.run(main())
    assert [name for name, _ in log] == ["one", "one said", "two", "two said"]
    assert log[2][1] >= log[0][1] + 1.0


def test_a_process_that_dies_before_its_call_never_makes_it(loop: SimulatedLoop) -> None:
    process = new_process(loop)
    called: list[int] = []

    async def program() -> None:
        await loop.run_in_executor(None, called.append, 1)

    async def main() -> None:
        process.start(program())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        process.alive = False
        await asyncio.sleep(1.0)

    loop.run(main())
    assert called == []


def test_what_begins_while_the_loop_is_buried_never_runs() -> None:
    said: list[str] = []

    async def clean_up() -> None:
        said.append("cleaned up")

    async def work() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.shield(clean_up())

    def run_and_bury() -> None:
        loop = SimulatedLoop(random.Random(1), Trace(), steps_max=10_000, seconds_max=1_000.0)
        process = new_process(loop)

        async def main() -> None:
            process.start(work())
            await asyncio.sleep(1)

        loop.run(main())
        loop.bury()

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        run_and_bury()
        gc.collect()
    assert said == []
    assert [str(warning.message) for warning in heard] == []


def test_errors_of_callbacks_are_problems(loop: SimulatedLoop) -> None:
    async def main() -> None:
        loop.call_soon(lambda: 1 // 0)
        await asyncio.sleep(1.0)

    loop.run(main())
    assert len(loop.problems) == 1
    assert "ZeroDivisionError" in loop.problems[0]


def test_there_is_no_real_network(loop: SimulatedLoop) -> None:
    async def main() -> None:
        with pytest.raises(NotImplementedError):
            await asyncio.open_connection("127.0.0.1", 80)

    loop.run(main())


PROGRAM = """
import asyncio, random
from magnetar.sim.loop import SimulatedLoop
from magnetar.sim.trace import Trace

async def work(trace, name):
    for _ in range(20):
        await asyncio.sleep(random_source.random())
        trace.note(name, "turn")

async def main():
    tasks = {asyncio.create_task(work(trace, f"task {number}")) for number in range(50)}
    while tasks:
        done, tasks = await asyncio.wait(tasks, timeout=0.3)
        for task in list(tasks)[:1]:
            trace.note(task.get_name(), "first of the set")

random_source = random.Random(5)
trace = Trace()
loop = SimulatedLoop(random.Random(1), trace)
loop.run(main())
loop.bury()
print(trace.digest, trace.notes)
"""


@pytest.mark.slow
def test_two_processes_with_different_hash_seeds_do_the_same() -> None:
    said = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM], env={"PYTHONHASHSEED": seed}, check=True, capture_output=True
        ).stdout
        for seed in ("1", "2", "random")
    }
    assert len(said) == 1
