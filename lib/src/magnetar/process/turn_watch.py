"""Finds turns of the event loop that take too long, and tells what ran: in production, at next to no cost.

A timer on the loop beats forty times a second. When a beat is late, the turn that stood in its way took at least so
long. What ran is seen from outside: a thread looks whether a beat is overdue, and if so at the loop's stack. No debug
mode, nothing per turn.

The beats of a process that has next to nothing to do rest. Only the thread calls the loop then, ten times a second, and
the beats begin again when the loop is found at work.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from magnetar.core.slow_turns import SLOW_SECONDS, SLOW_TURNS, SlowTurns
from magnetar.process.thread_stack import ThreadStack

logger: Final = logging.getLogger(__name__)

BEAT_SECONDS: Final = 0.025
"""A turn is seen as shorter than it is by this at most: one of 125 ms is always found, one of 101 ms seldom. Forty
beats take less than a thousandth of a processor."""

LOOK_SECONDS: Final = 0.05
"""Between two looks of the thread: a slow turn sees at least one of them."""

REST_BEATS: Final = 40
"""After so many, a second in all, the beats rest if the loop did next to nothing meanwhile."""

RESTING_SHARE: Final = 0.02
"""Share of a processor that the loop may use while its beats rest."""

RESTING_LOOK_SECONDS: Final = 0.1
"""Between two looks of the thread while the beats rest: a turn of 200 ms is always found then."""

AT_WORK_SECONDS: Final = 0.01
"""Use of the processor between two such looks from which on the loop is at work."""

OVERDUE_SECONDS: Final = 0.05
"""Lateness of a beat from which on the thread looks at the stack, once per beat."""

TOLD_SECONDS: Final = 10.0
"""Between two lines of the log. Slow turns in between are in the next one, with the stack of the longest."""

NOT_SEEN: Final = "what ran was not seen: it never let go of the interpreter"
NOT_SHOWN: Final = "what ran cannot be seen: this process has no file in memory, or too many threads"


class _SlowTurn(NamedTuple):
    seconds: float
    processor_seconds: float
    """Of the loop's thread. Far less than `seconds`: the machine, or a disk, was slow rather than the code."""
    stack: str


class TurnWatch:
    """Watches one loop from `start` to `stop`, both of which are called in its thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        turns: SlowTurns = SLOW_TURNS,
        now_seconds: Callable[[], float] = time.monotonic,
        processor_seconds: Callable[[], float] | None = None,
    ) -> None:
        """`processor_seconds`: what the loop's thread has used of the processor, asked for in any thread."""
        self._loop = loop
        self._turns = turns
        self._now_seconds = now_seconds
        self._processor_seconds = processor_seconds or thread_clock()
        self._beat_seconds = 0.0
        self._beat_processor_seconds = 0.0
        self._beats_to_rest = REST_BEATS
        self._busy_processor_seconds = 0.0
        """Use of the processor at which the count of beats to the next rest began."""
        self._resting = False
        self._seen: tuple[float, str] = (-1.0, NOT_SEEN)
        """The beat after which the stack was looked at, and the stack."""
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._stack: ThreadStack | None = None
        """That of the loop's thread."""
        self._called_seconds: float | None = None
        """When a look at rest called the loop, which has not answered yet."""
        self._longest: _SlowTurn | None = None
        """Of those that the log does not have yet."""
        self._untold = 0
        self._told_seconds = -TOLD_SECONDS

    def start(self) -> None:
        """Begin to watch the loop of the thread that calls this."""
        self._stack = ThreadStack(threading.get_ident())
        self._note_beat()
        self._thread = threading.Thread(target=self._look_on, name="turn-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End, with what is untold told. Twice is no error."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._stack is not None:
            self._stack.close()
            self._stack = None
        if self._longest is not None:
            self._tell(self._longest)

    # --- on the loop

    def _note_beat(self) -> None:
        self._beat_processor_seconds = self._processor_seconds()
        self._beat_seconds = self._now_seconds()
        self._beats_to_rest -= 1
        if self._beats_to_rest <= 0 and self._may_rest():
            self._timer = None
            self._resting = True
        else:
            self._timer = self._loop.call_later(BEAT_SECONDS, self._beat)

    def _may_rest(self) -> bool:
        """Whether the loop did next to nothing since this was last asked, and no line is due."""
        used_seconds = self._beat_processor_seconds - self._busy_processor_seconds
        self._busy_processor_seconds = self._beat_processor_seconds
        self._beats_to_rest = REST_BEATS
        return used_seconds < REST_BEATS * BEAT_SECONDS * RESTING_SHARE and self._longest is None

    def _beat(self) -> None:
        if self._stopped.is_set():
            return
        now = self._now_seconds()
        # The timer was due a beat after the last one, and everything since then was one turn.
        late_seconds = now - self._beat_seconds - BEAT_SECONDS
        if late_seconds > SLOW_SECONDS:
            used_seconds = self._processor_seconds() - self._beat_processor_seconds
            beat, stack = self._seen
            turn = _SlowTurn(late_seconds, used_seconds, stack if beat == self._beat_seconds else NOT_SEEN)
            self._turns.happened(late_seconds)
            self._untold += 1
            if self._longest is None or late_seconds > self._longest.seconds:
                self._longest = turn
        if self._longest is not None and now - self._told_seconds >= TOLD_SECONDS:
            self._told_seconds = now
            self._tell(self._longest)
        self._note_beat()

    def _tell(self, longest: _SlowTurn) -> None:
        others = f", the longest of {self._untold} since the last line" if self._untold > 1 else ""
        self._untold = 0
        self._longest = None
        logger.warning(
            "a turn of the event loop took %.0f ms%s, %.0f ms of them on the processor: everybody waited for %s",
            *(1000 * longest.seconds, others, 1000 * longest.processor_seconds, longest.stack),
        )

    # --- in the thread

    def _look_on(self) -> None:
        while not self._stopped.wait(RESTING_LOOK_SECONDS if self._resting else LOOK_SECONDS):
            if self._resting:
                self._look_at_rest()
            else:
                self._look()

    def _look_at_rest(self) -> None:
        """Let the beats begin again if the loop is at work: it has used the processor, or has not answered the call of
        the last look. In that case its turn has lasted since then at least, and counts from there."""
        used_seconds, now = self._processor_seconds(), self._now_seconds()
        called_seconds = self._called_seconds
        is_at_work = used_seconds - self._beat_processor_seconds > AT_WORK_SECONDS
        # Nothing on the loop writes any of these while the beats rest.
        if called_seconds is None:
            self._beat_processor_seconds = used_seconds
        if called_seconds is not None or is_at_work:
            self._busy_processor_seconds = used_seconds
            self._beat_seconds = (now if called_seconds is None else called_seconds) - BEAT_SECONDS
            self._resting, self._called_seconds = False, None
            self._loop.call_soon_threadsafe(self._beat)
        else:
            self._called_seconds = now
            self._loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
        """On the loop: it is not stuck."""
        self._called_seconds = None

    def _look(self) -> None:
        """See what runs if a beat is overdue, once per beat."""
        beat = self._beat_seconds
        overdue_seconds = self._now_seconds() - beat - BEAT_SECONDS
        if overdue_seconds > OVERDUE_SECONDS and self._seen[0] != beat and self._stack is not None:
            self._seen = (beat, self._stack.tell() or NOT_SHOWN)


def thread_clock() -> Callable[[], float]:
    """Tells, in any thread, the seconds of the processor that the calling thread has used."""
    if sys.platform == "darwin":
        # It has no clock of another thread; the process uses more, so its beats rest less often.
        return time.process_time
    clock = time.pthread_getcpuclockid(threading.get_ident())
    return lambda: time.clock_gettime(clock)
