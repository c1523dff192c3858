"""Logs of several pods as one, in the order of their times."""

from __future__ import annotations

import asyncio
import heapq
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, NamedTuple

from magnetar.core.errors import MagnetarError
from magnetar.operator.kubernetes.errors import NotFound
from magnetar.operator.kubernetes.pods import LogOptions
from magnetar.operator.plugin.kubernetes import Kubernetes

QUEUE_LINES_MAX: Final = 10_000
"""Lines that have been read and not printed; a pod that says more waits."""
WINDOW_SECONDS: Final = 0.3
"""Lines of that long are put in order before they are printed: pods are not read in step."""
AGAIN_SECONDS: Final = 2.0
"""Before a log that has ended is asked for again: its container may be started anew."""


class Line(NamedTuple):
    """One line; they sort by time."""

    time: str
    """RFC 3339 in UTC with nanoseconds, so that text sorts as time does."""
    source: str
    text: str


_STAMP: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?(Z|[+-][0-9:]{5})"
)


def parse_line(source: str, raw: bytes, before: str = "") -> Line:
    """A line as the API server sends it with `timestamps`: its fraction has as many digits as it needs, its time is the
    node's. What has none, as the kubelet's own words and the rest of a line that was cut, has the time of the line
    `before`."""
    text = raw.decode("utf-8", "replace").rstrip("\r")
    stamp, _, rest = text.partition(" ")
    found = _STAMP.fullmatch(stamp)
    try:
        if found is not None:
            whole = (
                found[1] if found[3] == "Z" else f"{datetime.fromisoformat(found[1] + found[3]).astimezone(UTC):%FT%T}"
            )
            return Line(f"{whole}.{found[2] or '':0<9}Z", source, rest)
    except (ValueError, OverflowError):
        pass
    return Line(before, source, text)


def merged(logs: Iterable[Sequence[Line]]) -> Iterator[Line]:
    """All lines by time; those of one log stay in their order."""
    return heapq.merge(*logs, key=lambda line: line.time)


async def read_log(kubernetes: Kubernetes, options: LogOptions, source: str) -> list[Line]:
    """A log as it is. One that there is not (its container has not started) is empty."""
    found: list[Line] = []
    try:
        async for raw in kubernetes.log(options):
            found.append(parse_line(source, raw, found[-1].time if found else ""))
    except NotFound:
        return []
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSource:
    """One container's log."""

    name: str
    """The name that stands before the log's lines."""
    options: LogOptions


class Follower:
    """Follows logs of pods that come and go."""

    def __init__(self, kubernetes: Kubernetes, said: Callable[[str], None]) -> None:
        self._kubernetes = kubernetes
        self._said = said
        self._queue: asyncio.Queue[Line] = asyncio.Queue(QUEUE_LINES_MAX)
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}

    def follow(self, sources: Iterable[LogSource]) -> None:
        """Follow these pods from now on, too; those that are no more end."""
        wanted = {(source.options.pod, source.options.container): source for source in sources}
        for key in self._tasks.keys() - wanted.keys():
            self._tasks.pop(key).cancel()
        for key, source in wanted.items():
            if key not in self._tasks or self._tasks[key].done():  # Gone for a moment, and there again by its name.
                self._tasks[key] = asyncio.create_task(self._read(source))

    async def lines(self) -> AsyncIterator[list[Line]]:
        """What has come, in order, a few times a second. Ends never."""
        while True:
            batch = [await self._queue.get()]
            await asyncio.sleep(WINDOW_SECONDS)
            while not self._queue.empty():
                batch.append(self._queue.get_nowait())
            yield sorted(batch, key=lambda line: line.time)

    async def close(self) -> None:
        """Stop reading all logs."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _read(self, source: LogSource) -> None:
        options, last = source.options, ""
        while True:
            shown_before = last
            try:
                async for raw in self._kubernetes.log(options):
                    line = parse_line(source.name, raw, last)
                    if shown_before and line.time <= shown_before:
                        continue  # Of the second in which the log broke off.
                    # From here on everything is new, also where a node's clock was put back.
                    shown_before, last = "", line.time
                    await self._queue.put(line)
            except NotFound:
                # The pod is gone; whoever looks for pods will say so.
                return
            except MagnetarError as error:
                # Not to be reached just now, or its container waits to be started.
                self._said(f"{source.name}: {error}; trying again")
            if last:
                options = replace(options, tail_lines=None, since_seconds=None, since_time=last)
            await asyncio.sleep(AGAIN_SECONDS)
