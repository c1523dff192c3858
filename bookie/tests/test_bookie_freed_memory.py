"""Memory that is free goes back to the system, now and then."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Final

import pytest
from magnetar.bookie.app import RunningBookie
from magnetar.bookie.freed_memory import (
    FREE_BYTES_MAX,
    FREE_BYTES_MIN,
    GIVEN_BYTES_MIN,
    PAUSE_SECONDS,
    PAUSE_SECONDS_MAX,
    FreedMemory,
)
from magnetar.core.limits import MIB

PIECE_BYTES: Final = 64 * 1024
"""Of the heap, not mapped by itself; and with what stays in between, none is at its end."""

PROGRAM: Final = """
import sys
from magnetar.bookie.freed_memory import FreedMemory
from magnetar.process.collecting import resident_bytes

pieces = [bytes(b"x" * {piece}) for _ in range(int(sys.argv[1]))]
between = pieces[::64]
last = bytes(b"x" * {piece})
del pieces
now = [0.0]
memory = FreedMemory(lambda: now[0])
before = resident_bytes()
print(memory.give_back(), before - resident_bytes())
more = [bytes(b"y" * {piece}) for _ in range(int(sys.argv[1]))]
del more
for seconds in map(float, sys.argv[2:]):
    now[0] = seconds
    print(memory.give_back(), 0)
"""


def run(pieces: int, *later_seconds: float) -> list[tuple[bool, int]]:
    """In a process of its own, whose heap is its own: what was tried, and bytes that went back."""
    program = PROGRAM.format(piece=PIECE_BYTES)
    arguments = [str(pieces), *map(str, later_seconds)]
    said = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, check=True, text=True)
    return [(tried == "True", int(given)) for tried, given in map(str.split, said.stdout.splitlines())]


@pytest.fixture
def glibc() -> None:
    """The C library is glibc."""
    memory = FreedMemory()
    if memory._mallinfo2 is None or memory._malloc_trim is None:
        pytest.skip("the C library is another one")


@pytest.mark.usefixtures("glibc")
def test_what_is_free_in_the_middle_of_the_heap_goes_back_and_not_at_every_turn() -> None:
    pieces = 400
    first, *later = run(pieces, PAUSE_SECONDS - 0.1, PAUSE_SECONDS + 0.1)
    assert first[0]
    assert first[1] > 0.8 * pieces * PIECE_BYTES
    assert [tried for tried, _ in later] == [False, True]


@pytest.mark.usefixtures("glibc")
@pytest.mark.parametrize("pieces", [16, FREE_BYTES_MAX // PIECE_BYTES * 5 // 4], ids=["little", "too much"])
def test_what_is_little_or_would_take_long_stays(pieces: int) -> None:
    [(tried, _)] = run(pieces)
    assert not tried


async def test_a_checkpoint_has_it_done_and_keeps_the_loop_from_nothing(
    start: Callable[[], Awaitable[RunningBookie]], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    running = await start()
    monkeypatch.setattr(FreedMemory, "give_back", lambda _memory: threads.append(threading.get_ident()))
    assert await running.parts.checkpointer.checkpoint(running.parts.journals.marks, also_idle=True)
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


def test_where_next_to_nothing_goes_back_the_pause_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces that were given back, and those too small for it, count as free for ever."""
    now, given, resident = [0.0], [False], [100 * MIB]
    memory = FreedMemory(lambda: now[0])

    def trim(_padding: int) -> int:
        resident[0] -= GIVEN_BYTES_MIN if given[0] else 0
        return 1

    monkeypatch.setattr("magnetar.bookie.freed_memory.resident_bytes", lambda: resident[0])
    monkeypatch.setattr(memory, "_mallinfo2", lambda: SimpleNamespace(fordblks=2 * FREE_BYTES_MIN))
    monkeypatch.setattr(memory, "_malloc_trim", trim)

    def next_pause_seconds() -> float:
        """Until the next time that it is tried."""
        begun_seconds = now[0]
        while not memory.give_back():
            now[0] += PAUSE_SECONDS / 2
        return now[0] - begun_seconds

    assert [next_pause_seconds() for _ in range(4)] == [0, 2 * PAUSE_SECONDS, 4 * PAUSE_SECONDS, 8 * PAUSE_SECONDS]
    assert max(next_pause_seconds() for _ in range(5)) == PAUSE_SECONDS_MAX
    given[0] = True
    next_pause_seconds()
    assert next_pause_seconds() == PAUSE_SECONDS
