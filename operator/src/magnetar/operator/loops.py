"""One loop per resource: passes, one after the other, when something has changed or it is time."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final

from magnetar.core.backoff import doubled
from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError
from magnetar.operator.kubernetes.errors import Refused, ServerUnavailable
from magnetar.operator.reconcile import Key

PASS_SECONDS_MAX: Final = 120.0
"""A pass that takes longer is given up: each call in it has a shorter limit, so it does more than a pass should."""
COALESCE_SECONDS: Final = 0.25
"""Changes come in bursts (a pod that starts is five events): one pass for all of them."""
BACKOFF_SECONDS_FIRST: Final = 1.0
BACKOFF_SECONDS_MAX: Final = 60.0
BACKOFF_REFUSED_SECONDS_MAX: Final = 15.0
"""After a pass of which the API server has refused something: it has looked after all the rest, and is to go on with
that."""
BACKOFF_HELD_SECONDS_MAX: Final = 5.0
"""How much of the wait after a failure no change cuts short: a pass that fails may itself be what changes things."""
WAIT_SECONDS_MAX: Final = 60.0
"""Whatever a pass says, the next one is not later: events can be lost."""
LOOPS_MAX: Final = 1000
"""Resources that one operator looks after. More are left alone, and said so: the process is not made for them."""
PASSES_AT_ONCE_MAX: Final = 4
"""Each holds all that it has seen of a resource in memory, and asks up to 16 pods."""

logger: Final = logging.getLogger(__name__)


class _Loop:
    __slots__ = ("awake", "began_seconds", "task")

    def __init__(self) -> None:
        self.awake = asyncio.Event()
        self.awake.set()
        self.began_seconds: float | None = None
        """When the pass that is under way began; None: none is."""
        self.task: asyncio.Task[None] | None = None

    def hangs(self, now_seconds: float, seconds: float) -> bool:
        """Whether its pass outlives its limit, or the loop itself has died."""
        if self.task is not None and self.task.done():
            return True
        return self.began_seconds is not None and now_seconds - self.began_seconds > seconds


class Loops:
    """All loops. Wake a resource to have it looked after; its loop ends when the resource is gone."""

    def __init__(
        self,
        reconcile: Callable[[Key], Awaitable[float | None]],
        *,
        clock: Clock,
        passed: Callable[[Key, float, str], None],
        chance: random.Random,
    ) -> None:
        """`passed` is told of each pass that is over: whose, how many seconds it took, and the kind of the error that
        ended it, empty for none. `chance` spreads repetitions: what failed together is not tried again together."""
        self._reconcile = reconcile
        self._clock = clock
        self._passed = passed
        self._chance = chance
        self._loops: dict[Key, _Loop] = {}
        self._turns = asyncio.Semaphore(PASSES_AT_ONCE_MAX)
        self._ended_seconds = 0.0
        """When a pass of any of them came to an end, or the first loop began."""
        self._stopped = False

    def wake(self, key: Key) -> None:
        """Something of it has changed, or may have: a pass begins soon, however often this is called."""
        loop = self._loops.get(key)
        if loop is not None:
            loop.awake.set()
            return
        if self._stopped:
            return
        if len(self._loops) >= LOOPS_MAX:
            logger.error("%s is left alone: %d resources are looked after already", key, LOOPS_MAX)
            return
        if not self._loops:
            self._ended_seconds = self._clock.monotonic_seconds()
        loop = self._loops[key] = _Loop()
        loop.task = asyncio.get_running_loop().create_task(self._run(key, loop), name=str(key))

    def wake_known(self, key: Key) -> None:
        """Wake the loop of a resource, if it has one: children whose resource is gone wake nobody."""
        if key in self._loops:
            self.wake(key)

    def looks_after(self, key: Key) -> bool:
        """Whether it has a loop."""
        return key in self._loops

    def stuck(self, seconds: float) -> list[Key]:
        """Those whose loop is of no use any more, as that of a new process might be: a pass that does not end, whatever
        its limit; all of them, if of none a pass has come to an end for so long. One resource that nothing can be done
        about is none of these, nor are many that wait for their turn."""
        now_seconds = self._clock.monotonic_seconds()
        hang = [key for key, loop in self._loops.items() if loop.hangs(now_seconds, seconds)]
        if not hang and now_seconds - self._ended_seconds > seconds:
            return list(self._loops)
        return hang

    def __len__(self) -> int:
        return len(self._loops)

    async def stop(self) -> None:
        """Cancel all passes, wherever they are, and wait until they have ended. From now on nothing is woken."""
        self._stopped = True
        tasks = [loop.task for loop in self._loops.values() if loop.task is not None]
        self._loops.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, key: Key, loop: _Loop) -> None:
        failures = 0
        while True:
            loop.awake.clear()
            wait_seconds, failed = await self._pass(key, loop, failures)
            if wait_seconds is None:
                if loop.awake.is_set():
                    # Made anew meanwhile.
                    continue
                if self._loops.get(key) is loop:
                    del self._loops[key]
                return
            failures = failures + 1 if failed else 0
            if failed:
                held_seconds = min(wait_seconds, BACKOFF_HELD_SECONDS_MAX)
                await asyncio.sleep(held_seconds)
                wait_seconds -= held_seconds
            if await _awake(loop.awake, wait_seconds) and not failed:
                await asyncio.sleep(COALESCE_SECONDS)

    async def _pass(self, key: Key, loop: _Loop, failures: int) -> tuple[float | None, bool]:
        """When to go on (None: never), and whether it failed."""
        async with self._turns:
            started_seconds = loop.began_seconds = self._clock.monotonic_seconds()
            error: BaseException | None = None
            wait_seconds: float | None = None
            try:
                async with asyncio.timeout(PASS_SECONDS_MAX):
                    wait_seconds = await self._reconcile(key)
            except Exception as raised:  # noqa: BLE001  (A loop outlives whatever goes wrong in one pass.)
                error = raised
            except asyncio.CancelledError as raised:
                if _is_cancelled():
                    raise
                # Of something that the pass waited for, such as a call whose channel was closed.
                error = raised
            finally:
                loop.began_seconds = None
            now_seconds = self._clock.monotonic_seconds()
        if error is None or isinstance(error, MagnetarError):
            self._ended_seconds = now_seconds
        self._passed(key, now_seconds - started_seconds, type(error).__name__ if error else "")
        if error is None:
            return (None if wait_seconds is None else min(wait_seconds, WAIT_SECONDS_MAX)), False
        if isinstance(error, MagnetarError):
            logger.warning("%s: %s", key, error)
        else:
            logger.error("%s: a pass failed", key, exc_info=error)
        most_seconds = BACKOFF_REFUSED_SECONDS_MAX if isinstance(error, Refused) else BACKOFF_SECONDS_MAX
        longest_seconds = doubled(BACKOFF_SECONDS_FIRST, most_seconds, failures)
        pause_seconds = longest_seconds * self._chance.uniform(0.5, 1.0)
        asked_seconds = error.retry_after_seconds if isinstance(error, ServerUnavailable) else 0.0
        return max(pause_seconds, min(asked_seconds, BACKOFF_SECONDS_MAX)), True


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


async def _awake(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(max(seconds, 0.0)):
            await event.wait()
    except TimeoutError:
        return False
    return True
