"""Transactions on their way to the end: so many attempts at a time, and again after a pause for as long as it takes.

Pulsar: `TransactionMetadataStoreService.endTransaction`, which tries again each second without end.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from magnetar.broker.transactions.coordinator_timeouts import CallLater
from magnetar.core.errors import MagnetarError, Misuse, Unavailable, forget_frames
from magnetar.wire.pulsar.errors import PulsarError, ServerError

logger: Final = logging.getLogger(__name__)

RETRY_SECONDS: Final = 1.0
"""Between attempts while a topic moves, a broker restarts or bookies are away, as Apache's."""

REFUSED_RETRY_SECONDS: Final = 60.0
"""After a refusal that only an operator can change, such as of a broker without transactions. Apache's broker gives up
until its next restart; the transaction's messages would be held back until then."""

_SOON: Final = frozenset(
    {
        ServerError.SERVICE_NOT_READY,
        ServerError.METADATA_ERROR,
        ServerError.PERSISTENCE_ERROR,
        ServerError.TOO_MANY_REQUESTS,
        ServerError.TOPIC_NOT_FOUND,
    }
)
"""Refusals that pass by themselves. TOPIC_NOT_FOUND is of a lookup: a topic that is gone answers with success."""


class TransactionEnding:
    """One transaction that is being ended."""

    __slots__ = ("commit", "over", "sequence", "told")

    def __init__(self, sequence: int, *, commit: bool) -> None:
        self.sequence = sequence
        self.commit = commit
        self.told: set[object] = set()
        """Participants that have heard of the end, so that the next attempt leaves them alone."""
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the transaction is over; an error is what those hear who wait now."""


Attempt = Callable[[TransactionEnding], Awaitable[None]]
"""Ends a transaction; raises a `MagnetarError` when that has to be tried again."""


class Endings:
    """The endings of one coordinator."""

    def __init__(
        self,
        attempt: Attempt,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        call_later: CallLater,
        at_once_max: int,
    ) -> None:
        self._attempt = attempt
        self._spawn = spawn
        self._call_later = call_later
        self._at_once_max = at_once_max
        self._under_way: dict[int, TransactionEnding] = {}
        """One for each transaction at most."""
        self._queue: deque[TransactionEnding] = deque()
        self._running = 0
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._stopped: PulsarError | None = None

    def get(self, sequence: int) -> TransactionEnding | None:
        """The ending of a transaction, if it has begun."""
        return self._under_way.get(sequence)

    def begin(self, sequence: int, *, commit: bool) -> TransactionEnding:
        """Begin to end a transaction that is not being ended."""
        ending = self._under_way[sequence] = TransactionEnding(sequence, commit=commit)
        if self._stopped is not None:
            self._finish(ending, self._stopped)
        else:
            self._queue.append(ending)
            self._start()
        return ending

    def hurry(self, ending: TransactionEnding) -> None:
        """Somebody asks for it again: try now, if it waits for its next attempt, and tell him what comes of it."""
        timer = self._timers.pop(ending.sequence, None)
        if ending.over.done():
            ending.over = asyncio.get_running_loop().create_future()
        if timer is not None:
            timer.cancel()
            self._again(ending)

    def stop(self, error: PulsarError) -> None:
        """Begin no attempt any more; all who wait hear the error. Attempts under way come to nothing by themselves."""
        self._stopped = error
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._queue.clear()
        for ending in list(self._under_way.values()):
            self._finish(ending, error)

    def _start(self) -> None:
        while self._queue and self._running < self._at_once_max:
            self._running += 1
            self._spawn(self._run(self._queue.popleft()))

    async def _run(self, ending: TransactionEnding) -> None:
        error: MagnetarError | None = Misuse("the attempt failed by a mistake of ours, which the log tells")
        try:
            await self._attempt(ending)
            error = None
        except MagnetarError as problem:
            error = problem
            forget_frames(problem)
        finally:
            self._running -= 1
            if self._stopped is None:
                if error is None:
                    self._finish(ending, None)
                else:
                    self._failed(ending, error)
                self._start()

    def _failed(self, ending: TransactionEnding, error: MagnetarError) -> None:
        soon = passes_soon(error)
        if soon:
            logger.info("transaction %d is not ended yet: %s", ending.sequence, error)
        else:
            logger.warning("transaction %d cannot be ended, trying again in a while: %s", ending.sequence, error)
            _tell(ending, error)
        seconds = RETRY_SECONDS if soon else REFUSED_RETRY_SECONDS
        self._timers[ending.sequence] = self._call_later(seconds, lambda: self._due(ending))

    def _due(self, ending: TransactionEnding) -> None:
        del self._timers[ending.sequence]
        self._again(ending)

    def _again(self, ending: TransactionEnding) -> None:
        self._queue.append(ending)
        self._start()

    def _finish(self, ending: TransactionEnding, error: MagnetarError | None) -> None:
        self._under_way.pop(ending.sequence, None)
        _tell(ending, error)


def passes_soon(error: MagnetarError) -> bool:
    """Whether what an attempt failed with is mostly over after a second."""
    return isinstance(error, Unavailable) or (isinstance(error, PulsarError) and error.code in _SOON)


def _tell(ending: TransactionEnding, error: MagnetarError | None) -> None:
    if ending.over.done():
        return
    if error is None:
        ending.over.set_result(None)
    else:
        ending.over.set_exception(error)
        ending.over.exception()  # Looked at: nobody may wait for it.
