"""How each of our processes runs: logs on standard error, serves until a signal, stops cleanly or at once."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Final, NoReturn, Protocol, TypeVar

from magnetar.core.crashes import CRASHES
from magnetar.core.exit_codes import EXIT_STOPPED
from magnetar.core.log_lines import LineFormatter
from magnetar.core.log_rate import AlikeFilter
from magnetar.process.collecting import CycleCollection
from magnetar.process.console import write_lines
from magnetar.process.supervision.group_size import memory_share_bytes
from magnetar.process.turn_watch import TurnWatch

THREAD_SWITCH_SECONDS: Final = 0.0005
"""How long the event loop may keep the interpreter from the journal thread, which needs it for microseconds only.
The default of 5 ms would stand in every acknowledgement under load."""

STOP_SECONDS_MAX: Final = 10.0
"""A clean stop takes milliseconds. A disk that hangs must not keep the process for ever: what is acknowledged is in
the journal already."""

STORE_SILENCE_SECONDS_MAX: Final = 2.5
"""How long a stop waits, in all, for a metadata store that says nothing: longer than a client needs to find another
server of an ensemble. Without the store the session's end takes back what this process held there; nothing that is
kept needs it."""

GIVE_UP_SECONDS_MAX: Final = 2.0
"""For a start that was given up to close what it has opened. A kill at that point would lose nothing either."""

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def request_stop() -> None:
    """Stop this process as an operator would: cleanly, and at once when it is asked for twice."""
    signal.raise_signal(signal.SIGTERM)


class Closable(Protocol):
    """Something that serves until it is closed."""

    async def close(self) -> None:
        """Stop serving, with everything written."""
        ...


S = TypeVar("S", bound=Closable)


def prepare(log_level: str) -> None:
    """Log to standard error, stacks of a crash of the interpreter as well; let threads run without long waits."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter("%(asctime)s %(levelname)-7s %(name)s %(message)s"))
    handler.addFilter(AlikeFilter())
    logging.basicConfig(level=log_level.upper(), handlers=[handler])
    CRASHES.tell_on_standard_error()
    sys.setswitchinterval(THREAD_SWITCH_SECONDS)


async def serve_until_told(
    start: Callable[[], Coroutine[None, None, S]],
    started: Callable[[S], None],
    stopping: Callable[[], None],
    stop_seconds_max: float = STOP_SECONDS_MAX,
) -> None:
    """Start, say so, serve until SIGINT or SIGTERM, say so, stop. A signal while starting gives the start up.

    A second signal ends the process at once, by that signal. TimeoutError when stopping takes too long; what `start`
    and `close` raise."""
    loop = asyncio.get_running_loop()
    told = asyncio.Event()

    def tell() -> None:
        told.set()
        for number in SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        stopping()

    for number in SIGNALS:
        loop.add_signal_handler(number, tell)
    stop = loop.create_task(told.wait())
    starting = loop.create_task(start())
    await asyncio.wait((starting, stop), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.wait((starting,), timeout=GIVE_UP_SECONDS_MAX)
        if not starting.done() or starting.cancelled() or starting.exception() is not None:
            _leave()
        await _close(starting.result(), stop_seconds_max)
        return
    try:
        service = starting.result()
    except BaseException:
        stop.cancel()
        raise
    started(service)
    collecting = CycleCollection(loop, limit_bytes=memory_share_bytes())
    collecting.start()  # `main` has held the collector back so far.
    watch = TurnWatch(loop)
    watch.start()
    await stop
    collecting.stop()
    try:
        await _close(service, stop_seconds_max)
    finally:
        watch.stop()


def _leave() -> NoReturn:
    """End the process now. A thread of a start that was given up may wait for a server for long yet, and the end of
    the event loop would wait for that thread; nothing was served, so nothing is lost."""
    logging.shutdown()
    write_lines(sys.stdout)
    os._exit(EXIT_STOPPED)


async def _close(service: Closable, seconds_max: float) -> None:
    async with asyncio.timeout(seconds_max):
        await service.close()
