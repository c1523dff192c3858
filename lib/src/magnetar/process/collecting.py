"""When the collector of cycles looks at what: seldom at everything, as that is one long turn of the event loop.

A look at all objects of a broker with eight thousand connections takes half a second, and CPython takes one whenever
there are a quarter more of them. Here what has outlived a look is set aside (`gc.freeze`) as soon as it is so much that
the next look would take long. That one goes through what has come since only: thousands of objects, milliseconds. What
is set aside becomes free as soon as nobody refers to it, as ever. Only cycles among it stay; the code breaks those that
peers could make by thousands. For all others, everything is looked at when the process has grown by so much that they
matter, and seldom.

CPython looks at young objects when some thousands more were made than ended. Where old ones end as fast as new ones are
made, such as sessions of clients that come and go, that is never: a hundred thousand young objects were looked at in
one turn of 40 ms. So looks come by time as well, as often as there is much new. Those of CPython remain for long turns.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Callable
from typing import Final

from magnetar.core.limits import MIB
from magnetar.core.process_memory import resident_bytes

logger: Final = logging.getLogger(__name__)

ALL_GENERATIONS: Final = 2

SELDOM_SECONDS: Final = 600.0
"""Between two looks at everything: such a turn is a thousandth of the time."""

SELDOM_GROWTH_BYTES: Final = 128 * MIB
"""Growth of the process, since everything was looked at, after which that is done again when it is long ago: some of it
may be cycles that nobody refers to."""

GROWTH_BYTES: Final = 1024 * MIB
"""Sooner only after that: half of the memory that pods have by default. What peers may have a broker hold is less, so
that they cannot ask for long turns."""

GROWTH_SHARE: Final = 0.5
"""Of what the process may have of its container, if that is less: it would be killed before it has grown by so
much."""

YOUNG_OBJECTS: Final = 5_000
"""CPython looks at the first generation when so many more were made than ended: a millisecond or two. At CPython's
own 700 a server of 100 topics under load spent 6 % of its time on messages that were still under way, now 3 %."""

FIRST_GENERATIONS: Final = 0
"""After more looks at the first generation than that, CPython looks at the second: 10 000 objects."""

SECOND_GENERATIONS: Final = 0
"""After more looks at the second generation than that, it looks at all that is not set aside: 15 000 objects and what a
look kept before. It is more when as many end meanwhile, as CPython counts what begins less what ends."""

YOUNG_LOOK_SECONDS_MIN: Final = 0.01
"""Between two looks by time, while much is new: a look takes a millisecond or two then."""

YOUNG_LOOK_SECONDS_MAX: Final = 0.32
"""While little is new: three looks a second at what is not set aside are at most a hundredth of a processor."""

NEW_SECONDS: Final = 0.001
"""What a look should take for what came since the one before: the pause is made for that."""

LATER: Final = 1.25
"""The next pause is longer by this factor at most. What is new is a difference of two looks, each of which may take
half as long again as it should: with doubled pauses four times as many looks took over 5 ms."""

SET_ASIDE_SECONDS: Final = 0.0015
"""What outlived a look is set aside when the next one would take so long for it. The later that is, the more cycles are
found before: whatever is set aside alive may be one later on."""

LOOK_SECONDS: Final = 5.0
"""Between two questions how large the process is."""


def due(grown_bytes: int, seconds: float, limit_bytes: int = 0) -> bool:
    """Whether everything is to be looked at, when the process has grown by so much since the last time; `limit_bytes`
    is what it may have of its container, 0 for no limit."""
    bytes_max = min(GROWTH_BYTES, int(GROWTH_SHARE * limit_bytes) or GROWTH_BYTES)
    return grown_bytes > (min(SELDOM_GROWTH_BYTES, bytes_max) if seconds >= SELDOM_SECONDS else bytes_max)


def next_young_look_seconds(before_seconds: float, new_seconds: float) -> float:
    """When to look again, when the last pause was so long and what came in it took so long to look at."""
    # Sooner at once, later by and by.
    fitting_seconds = before_seconds * NEW_SECONDS / max(new_seconds, NEW_SECONDS / LATER)
    return min(YOUNG_LOOK_SECONDS_MAX, max(YOUNG_LOOK_SECONDS_MIN, fitting_seconds))


class CycleCollection:
    """The collection of cycles in one process, once it serves: while one runs, it is the only one who freezes."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        resident_bytes_now: Callable[[], int] = resident_bytes,
        processor_seconds: Callable[[], float] = time.thread_time,
        limit_bytes: int = 0,
    ) -> None:
        """`resident_bytes_now` is 0 where it is not known: then the automatic looks stay what they are. `limit_bytes`
        is what the process may have of its container's memory; 0: there is no limit.

        `processor_seconds`: what the asking thread has used. What other processes do has no part in it."""
        self._loop = loop
        self._resident_bytes_now = resident_bytes_now
        self._processor_seconds = processor_seconds
        self._limit_bytes = limit_bytes
        self._then_bytes = 0
        self._then_seconds = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._young_timer: asyncio.TimerHandle | None = None
        self._young_look_seconds = YOUNG_LOOK_SECONDS_MIN
        self._looks = 0
        """At all generations, automatic ones as well."""
        self._begun_seconds = 0.0
        self._new_seconds = 0.0
        """What the last look took for what came since the one before."""
        self._kept_seconds = 0.0
        """What the next look will take for what the last one left."""
        self._threshold = gc.get_threshold()
        self.complete = 0
        """How often everything was looked at."""

    def start(self) -> None:
        """What stands now stays; turn the collector on."""
        gc.freeze()
        gc.collect()  # Of nothing: CPython waits until there is a quarter more than at the last time.
        gc.enable()
        self._note()
        if self._then_bytes:
            gc.set_threshold(YOUNG_OBJECTS, FIRST_GENERATIONS, SECOND_GENERATIONS)
            gc.callbacks.append(self._collected)
            self._timer = self._loop.call_later(LOOK_SECONDS, self._look)
            self._young_timer = self._loop.call_later(self._young_look_seconds, self._look_at_young)

    def stop(self) -> None:
        """Leave the collector to itself. Twice is no error."""
        if self._young_timer is not None:
            self._young_timer.cancel()
            self._young_timer = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            gc.callbacks.remove(self._collected)
            gc.set_threshold(*self._threshold)

    def _note(self) -> None:
        self._then_bytes = self._resident_bytes_now()
        self._then_seconds = self._loop.time()

    def _collected(self, phase: str, told: dict[str, int]) -> None:
        """Set aside what outlived a look at all generations, if that is much; in the thread that looks."""
        if told["generation"] != ALL_GENERATIONS:
            return
        if phase == "start":
            self._begun_seconds = self._processor_seconds()
            return
        self._looks += 1
        taken_seconds = self._processor_seconds() - self._begun_seconds
        self._new_seconds = taken_seconds - self._kept_seconds
        self._kept_seconds = taken_seconds
        if taken_seconds > SET_ASIDE_SECONDS and told["collected"]:
            left = len(gc.get_objects(generation=ALL_GENERATIONS))
            self._kept_seconds *= left / (left + told["collected"])
        if self._kept_seconds > SET_ASIDE_SECONDS:
            gc.freeze()
            self._kept_seconds = 0.0

    def _look_at_young(self) -> None:
        gc.collect()
        self._young_look_seconds = next_young_look_seconds(self._young_look_seconds, self._new_seconds)
        self._young_timer = self._loop.call_later(self._young_look_seconds, self._look_at_young)

    def _look(self) -> None:
        now_bytes = self._resident_bytes_now()
        # After a flood has passed, the process would else grow by so much again, and beyond what its pod has.
        self._then_bytes = min(self._then_bytes, now_bytes or self._then_bytes)
        if due(now_bytes - self._then_bytes, self._loop.time() - self._then_seconds, self._limit_bytes):
            self._look_at_everything(now_bytes)
        self._timer = self._loop.call_later(LOOK_SECONDS, self._look)

    def _look_at_everything(self, before_bytes: int) -> None:
        begun_seconds, looks = time.perf_counter(), self._looks
        gc.unfreeze()
        found = gc.collect()
        if self._looks == looks:  # Another thread looks, and one of its finalizers waits: CPython did nothing.
            gc.freeze()
            return  # To be asked again.
        gc.collect()  # Of what has come since, which is nothing: CPython waits until it is a quarter more than that.
        self._note()
        self.complete += 1
        logger.info(
            "the process grew to %d MiB: looked for cycles among all objects in %.0f ms, and freed %d",
            *(before_bytes // MIB, 1000 * (time.perf_counter() - begun_seconds), found),
        )
