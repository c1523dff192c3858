"""Work on many things, some at a time: a hundred thousand of them are never as many tasks, nor one turn of the loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec
from magnetar.core.limits import KIB

Item = TypeVar("Item")
Result = TypeVar("Result")

CALLS_AT_ONCE: Final = 100
"""Partitions asked side by side; the client of other brokers has a bound of its own."""


async def in_slices(
    work: Callable[[Item], Awaitable[Result]], items: Sequence[Item], at_once: int = CALLS_AT_ONCE
) -> list[Result]:
    """What the work on each came to, in order. The first error is raised when its slice is through, and none begins."""
    results: list[Result] = []
    for first in range(0, len(items), at_once):
        tasks = [asyncio.ensure_future(work(item)) for item in items[first : first + at_once]]
        await asyncio.gather(*tasks, return_exceptions=True)
        # Results may be errors, too, if the work returns them.
        results += [task.result() for task in tasks]
    return results


TURN_SECONDS_MAX: Final = 0.005
"""Work in one go on behalf of one client: ten of these in a row are still no pause that others would notice."""


class TimeSlice:
    """One turn of the loop, for work that grows with what clients ask for: `if turn.over: await turn.pause()`."""

    __slots__ = ("_ends_seconds",)

    def __init__(self) -> None:
        self._ends_seconds = asyncio.get_running_loop().time() + TURN_SECONDS_MAX

    @property
    def over(self) -> bool:
        """Whether it is others' turn now."""
        return asyncio.get_running_loop().time() >= self._ends_seconds

    async def pause(self) -> None:
        """Let the others go on; then it is the next turn."""
        await asyncio.sleep(0)
        self._ends_seconds = asyncio.get_running_loop().time() + TURN_SECONDS_MAX


LARGE_MEMBER_BYTES: Final = 64 * KIB
"""Of a JSON object: a larger one holds many others, as a topic's subscriptions do. Less takes half a millisecond."""

_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_elements: Final = msgspec.json.Decoder(list[msgspec.Raw])
"""They pass over what is in an object or list, some times as fast as it could be decoded."""


async def decoded_in_turns(body: bytes) -> Any:
    """A JSON document. Of an object the large members are decoded in turns with what clients send. ValueError when it
    is no JSON; None when it is empty."""
    if len(body) <= LARGE_MEMBER_BYTES:
        return json.loads(body) if body else None
    try:
        turn = TimeSlice()
        return {name: await _member(raw, turn) for name, raw in _members.decode(body).items()}
    except msgspec.MsgspecError:
        # It is no object, or no JSON, or a dialect of it: Java's NaN.
        return json.loads(body)


async def _member(raw: msgspec.Raw, turn: TimeSlice) -> Any:
    if turn.over:
        await turn.pause()
    begins = bytes(memoryview(raw)[:1])
    if memoryview(raw).nbytes <= LARGE_MEMBER_BYTES or begins not in (b"{", b"["):
        return msgspec.json.decode(raw)
    if begins == b"[":
        return [await _decoded(each, turn) for each in _elements.decode(raw)]
    return {name: await _decoded(each, turn) for name, each in _members.decode(raw).items()}


async def _decoded(raw: msgspec.Raw, turn: TimeSlice) -> Any:
    if turn.over:
        await turn.pause()
    return msgspec.json.decode(raw)
