"""Slow turns of the event loop are counted and told, with what ran, at a bounded rate."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import uvloop
from magnetar.core.slow_turns import SlowTurns
from magnetar.process.thread_stack import FRAMES_MAX, ThreadStack, stack_in
from magnetar.process.turn_watch import (
    AT_WORK_SECONDS,
    BEAT_SECONDS,
    NOT_SEEN,
    NOT_SHOWN,
    OVERDUE_SECONDS,
    REST_BEATS,
    RESTING_LOOK_SECONDS,
    TOLD_SECONDS,
    TurnWatch,
    thread_clock,
)


class HandLoop(asyncio.BaseEventLoop):
    """Never runs: the test fires its only timer."""

    def call_later(self, delay: float, callback: object, *args: object, context: object = None) -> asyncio.TimerHandle:
        assert delay == BEAT_SECONDS
        self.due = callback
        return asyncio.TimerHandle(0.0, callback, args, self)  # type: ignore[arg-type]

    def call_soon_threadsafe(self, callback: object, *args: object, context: object = None) -> asyncio.Handle:
        self.due = callback
        return asyncio.Handle(callback, args, self)  # type: ignore[arg-type]

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Nothing to take out of a heap."""


class OneStack(ThreadStack):
    """Always the same one."""

    def __init__(self, text: str) -> None:
        """No thread."""
        self.text = text

    def tell(self) -> str:
        return self.text

    def close(self) -> None:
        """No file."""


class Watched:
    """A watch over a loop whose time the test moves on."""

    def __init__(self) -> None:
        self.now = 100.0
        self.used = 0.0
        self.turns = SlowTurns()
        self.loop = HandLoop()
        self.watch = TurnWatch(self.loop, self.turns, lambda: self.now, lambda: self.used)
        self.watch._stack = self.stack = OneStack("turn (tests/test_process_turn_watch.py:1)")
        self.watch._note_beat()

    def turn(self, seconds: float, *, seen: bool = True) -> None:
        """The beat comes so much too late; the thread had its look before, or not."""
        if seen:
            self.now += BEAT_SECONDS + seconds / 2 + OVERDUE_SECONDS
            self.watch._look()
            self.now -= BEAT_SECONDS + seconds / 2 + OVERDUE_SECONDS
        self.now += BEAT_SECONDS + seconds
        self.used += seconds / 10
        self.loop.due()  # type: ignore[operator]


@pytest.fixture
def watched() -> Iterator[Watched]:
    watched = Watched()
    yield watched
    watched.watch.stop()
    watched.loop.close()


def test_only_what_takes_over_a_tenth_of_a_second_counts(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    for seconds in (0.0, 0.05, 0.099):
        watched.turn(seconds)
    assert (watched.turns.count, caplog.messages) == (0, [])
    watched.turn(0.350)
    assert watched.turns.count == 1
    assert watched.turns.seconds == watched.turns.longest_seconds == pytest.approx(0.350)
    (line,) = caplog.messages
    assert "took 350 ms, 35 ms of them on the processor" in line
    assert "turn (tests/test_process_turn_watch.py:" in line


def test_a_flood_of_slow_turns_is_few_lines(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    watched.turn(0.2)
    for _ in range(20):
        watched.turn(0.3)
    watched.turn(0.9, seen=False)
    assert len(caplog.messages) == 1
    assert watched.turns.count == 22
    watched.now += TOLD_SECONDS
    watched.watch._note_beat()
    watched.turn(0.0)
    assert len(caplog.messages) == 2
    assert "900 ms, the longest of 21 since the last line" in caplog.messages[1]
    assert caplog.messages[1].endswith(NOT_SEEN)
    assert watched.turns.longest_seconds == pytest.approx(0.9)


def test_what_an_earlier_turn_ran_is_not_told_of_a_later_one(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.turn(0.08)
    watched.turn(0.2, seen=False)
    assert caplog.messages[0].endswith(NOT_SEEN)


def test_a_stack_that_cannot_be_had_is_not_blamed_on_the_turn(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.stack.text = ""
    watched.turn(0.2)
    assert caplog.messages[0].endswith(NOT_SHOWN)


def test_what_is_untold_is_told_at_the_end(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    watched.turn(0.2)
    watched.turn(0.3)
    watched.watch.stop()
    watched.watch.stop()
    assert len(caplog.messages) == 2
    assert "took 300 ms" in caplog.messages[1]


def rests(watched: Watched) -> bool:
    return watched.watch._resting


def beats(watched: Watched, used_seconds: float) -> None:
    """As many beats as there are between two questions whether they may rest, unless they do."""
    for _ in range(REST_BEATS):
        if rests(watched):
            return
        watched.used += used_seconds / REST_BEATS
        watched.turn(0.0)


def test_beats_rest_while_there_is_next_to_nothing_to_do(watched: Watched) -> None:
    beats(watched, 0.5)
    beats(watched, 0.021)
    assert not rests(watched)
    beats(watched, 0.019)
    assert rests(watched)
    assert watched.watch._timer is None


def test_beats_begin_again_when_the_loop_is_at_work(watched: Watched) -> None:
    beats(watched, 0.0)
    watched.now += 60
    for _ in range(2):
        watched.used += AT_WORK_SECONDS / 2
        watched.watch._look_at_rest()
        watched.loop.due()  # type: ignore[operator]
    assert rests(watched), "little work in each look, however much in all"
    watched.used += 2 * AT_WORK_SECONDS
    watched.watch._look_at_rest()
    assert not rests(watched)
    # The minute of rest is no slow turn; what still runs from the look on is one.
    watched.now += 0.2
    watched.loop.due()  # type: ignore[operator]
    assert watched.turns.count == 1
    assert watched.turns.seconds == pytest.approx(0.2)
    assert watched.watch._timer is not None


def test_a_resting_loop_that_waits_for_a_disk_is_at_work(watched: Watched) -> None:
    beats(watched, 0.0)
    watched.watch._look_at_rest()
    assert rests(watched), "it may come to the call yet"
    watched.now += RESTING_LOOK_SECONDS
    watched.watch._look_at_rest()
    assert not rests(watched)
    # A turn of two looks is found: it counts from the call that was not answered.
    watched.now += 0.001
    watched.loop.due()  # type: ignore[operator]
    assert watched.turns.count == 1
    assert watched.turns.seconds == pytest.approx(RESTING_LOOK_SECONDS + 0.001)


def test_no_rest_before_a_slow_turn_is_told(watched: Watched) -> None:
    watched.turn(0.2)
    watched.turn(0.2)
    for _ in range(5):
        beats(watched, 0.0)
    assert not rests(watched)
    watched.now += TOLD_SECONDS
    watched.watch._note_beat()
    beats(watched, 0.0)
    beats(watched, 0.0)
    assert rests(watched)


def test_a_beat_after_the_end_is_none(watched: Watched) -> None:
    beats(watched, 0.0)
    for _ in range(2):
        watched.watch._look_at_rest()
    watched.watch.stop()
    watched.loop.due()  # type: ignore[operator]
    assert watched.watch._timer is None


def test_a_thread_s_clock_counts_in_any_thread() -> None:
    clock = thread_clock()
    hold_the_loop()
    found: list[float] = []
    other = threading.Thread(target=lambda: found.append(clock()))
    other.start()
    other.join()
    assert 0.0 < found[0] <= clock()
    assert clock() - found[0] < 0.3


def hold_the_loop() -> None:
    """A turn that is too long, in Python's own code."""
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        sum(range(100))


def sleep_on_the_loop() -> None:
    """A turn that is too long, without any use of the processor."""
    time.sleep(0.4)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("hold", [hold_the_loop, sleep_on_the_loop])
def test_a_loop_at_rest_is_watched_from_outside(new_loop: object, hold: object) -> None:
    turns = SlowTurns()
    rested = []

    async def main() -> None:
        watch = TurnWatch(asyncio.get_running_loop(), turns)
        watch.start()
        for _ in range(3):
            # At its own pace: a machine under load may take long to do nothing for a second.
            async with asyncio.timeout(60):
                while not watch._resting:
                    await asyncio.sleep(0.1)
            await asyncio.sleep(0.3)
            rested.append(watch._resting)
            asyncio.get_running_loop().call_soon(hold)  # type: ignore[arg-type]
            await asyncio.sleep(2 * BEAT_SECONDS)
        watch.stop()

    with asyncio.Runner(loop_factory=new_loop) as runner:  # type: ignore[arg-type]
        runner.run(main())
    assert any(rested), "nothing to do leaves the beats at rest"
    assert turns.count >= 1


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_loop_that_runs_is_watched_from_outside(new_loop: object, caplog: pytest.LogCaptureFixture) -> None:
    turns = SlowTurns()

    async def main() -> None:
        watch = TurnWatch(asyncio.get_running_loop(), turns)
        watch.start()
        # On a machine that has no time for the thread, one turn may go unseen: the end tells of the longest.
        for _ in range(3):
            await asyncio.sleep(2 * BEAT_SECONDS)
            asyncio.get_running_loop().call_soon(hold_the_loop)
        await asyncio.sleep(2 * BEAT_SECONDS)
        watch.stop()

    with caplog.at_level(logging.WARNING), asyncio.Runner(loop_factory=new_loop) as runner:  # type: ignore[arg-type]
        runner.run(main())
    assert turns.count >= 3
    assert turns.longest_seconds > 0.25
    assert any("hold_the_loop (tests/test_process_turn_watch.py:" in line for line in caplog.messages)
    assert not [thread for thread in threading.enumerate() if thread.name == "turn-watch"]


def waiting(depth: int, begun: threading.Event, over: threading.Event) -> None:
    if depth:
        waiting(depth - 1, begun, over)
    else:
        begun.set()
        over.wait()


@contextmanager
def waiting_thread(depth: int) -> Iterator[ThreadStack]:
    begun, over = threading.Event(), threading.Event()
    thread = threading.Thread(target=waiting, args=(depth, begun, over))
    thread.start()
    begun.wait()
    assert thread.ident is not None
    stack = ThreadStack(thread.ident)
    yield stack
    over.set()
    thread.join()
    assert stack.tell() == "", "a thread that has ended"
    stack.close()


def test_a_stack_of_another_thread_is_told_innermost_first() -> None:
    with waiting_thread(2) as stack, waiting_thread(0):
        for _ in range(2):
            found = stack.tell().split(" < ")
            assert [one.partition(" ")[0] for one in found[2:5]] == ["waiting"] * 3, found
            assert found[2].startswith("waiting (tests/test_process_turn_watch.py:")
            assert found[-1].startswith("_bootstrap (")


def test_a_process_that_may_have_no_file_runs_without_stacks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(_name: str) -> int:
        raise OSError(errno.EPERM, "not allowed here")

    monkeypatch.setattr(os, "memfd_create", refused, raising=False)
    stack = ThreadStack(threading.get_ident())
    assert stack.tell() == ""
    stack.close()
    assert "not allowed here" in caplog.text


def test_among_more_threads_than_faulthandler_tells_of_there_is_no_stack() -> None:
    over = threading.Event()
    with waiting_thread(0) as stack:
        others = [threading.Thread(target=over.wait) for _ in range(120)]
        for other in others:
            other.start()
        assert stack.tell() == "", "the newest threads come first"
        over.set()
        for other in others:
            other.join()
        assert stack.tell().startswith("wait (")


def test_only_the_innermost_frames_are_told() -> None:
    with waiting_thread(50) as stack:
        assert len(stack.tell().split(" < ")) == FRAMES_MAX


def test_a_stack_is_found_among_those_of_all_threads() -> None:
    text = """Thread 0x00000000000000aa (most recent call first):
  File "/a/b/other.py", line 1 in other

Current thread 0x00000000000000ab (most recent call first):
  File "/a/b/c.py", line 7 in f
  File "<string>", line ??? in <module>

Thread 0x00000000000000ac (most recent call first):
  File "/a/b/other.py", line 1 in other
"""
    assert stack_in(text, "0x00000000000000ab") == "f (b/c.py:7) < <module> (<string>:???)"
    assert stack_in(text, "0x00000000000000ff") == ""
    assert stack_in("Thread 0x00000000000000aa (most recent call first):\n  <no Python frame>\n", "0xaa") == ""


SERVICE = """
import asyncio, time
from magnetar.process.serving import prepare, request_stop, serve_until_told

class Service:
    async def close(self):
        pass

async def start():
    return Service()

def hold_the_loop_in_service():
    time.sleep(0.4)

def started(service):
    loop = asyncio.get_running_loop()
    loop.call_later(0.1, hold_the_loop_in_service)
    loop.call_later(0.2, request_stop)

prepare("info")
asyncio.run(serve_until_told(start, started, lambda: None))
"""


def test_every_process_that_serves_is_watched() -> None:
    ran = subprocess.run([sys.executable, "-c", SERVICE], capture_output=True, text=True, timeout=60, check=True)
    assert "WARNING magnetar.process.turn_watch a turn of the event loop took" in ran.stderr
    assert "hold_the_loop_in_service" in ran.stderr
