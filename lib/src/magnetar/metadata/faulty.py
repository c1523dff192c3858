"""A session with a metadata store whose answers get lost, for tests of what stands on one.

As with ZooKeeper, one session's writes happen in the order in which they were asked for: a write whose answer was lost
happens before the next one of the same session, or never. A read may still be shown what was before.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from typing import TypeAlias, TypeVar

from magnetar.core.errors import MagnetarError
from magnetar.metadata.store import (
    ANY_VERSION,
    MetadataStore,
    Node,
    Notification,
    SessionEvent,
    Stat,
    StoreUnavailable,
)

T = TypeVar("T")


class RequestFate(enum.Enum):
    """What becomes of one request."""

    DONE = enum.auto()
    REFUSED = enum.auto()
    """It does not happen, and whoever asked hears that nobody knows."""
    LOST = enum.auto()
    """It happens, but the answer is lost. The same as REFUSED for a read."""
    LATE = enum.auto()
    """The answer is lost, and it happens later: before the next write, or when `late_seconds` are over."""


Request: TypeAlias = Callable[[MetadataStore], Awaitable[T]]


class FaultyStore:
    """A `MetadataStore` on another one. `fate` is asked for each request, by the name of its verb and its path."""

    def __init__(
        self,
        store: MetadataStore,
        fate: Callable[[str, str], RequestFate],
        delay_seconds: Callable[[], float] | None = None,
        late_seconds: float = 1.0,
    ) -> None:
        """`delay_seconds` is how long each request, and each answer, is under way."""
        self._store = store
        self._fate = fate
        self._delay_seconds = delay_seconds
        self._late_seconds = late_seconds
        self._late: deque[Request[object]] = deque()
        self._ended = False

    @property
    def late_writes(self) -> list[Request[object]]:
        """Writes that were asked for and have not happened yet, as what does them to a store."""
        return list(self._late)

    def end(self) -> None:
        """The process has died: nothing that it asks for from now on happens. What was under way still does."""
        self._ended = True

    async def get(self, path: str, *, watch: bool = True) -> Node | None:
        """The node, or None when there is none. Reads see every write this client has finished. Without `watch` this
        read promises no notification: for whoever reads more nodes than could be watched."""
        return await self._read("get", path, lambda store: store.get(path, watch=watch))

    async def exists(self, path: str, *, watch: bool = True) -> bool:
        """Whether there is a node at the path. `watch` as for `get`."""
        return await self._read("exists", path, lambda store: store.exists(path, watch=watch))

    async def children(self, path: str, *, watch: bool = True) -> list[str]:
        """Names (not paths) of the direct children, sorted; empty when there is no such node. `watch` as for `get`."""
        return await self._read("children", path, lambda store: store.children(path, watch=watch))

    async def put(
        self,
        path: str,
        value: bytes,
        expected_version: int | None = ANY_VERSION,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
    ) -> Stat:
        """Create or replace. With a version: compare and set, `VersionConflict` otherwise. A sequential put always
        creates; ten decimal digits are appended to the path (see `Stat.path`)."""
        return await self._write(
            "put",
            path,
            lambda store: store.put(path, value, expected_version, ephemeral=ephemeral, sequential=sequential),
        )

    async def put_while_there(self, path: str, value: bytes, expected_version: int, others: Collection[str]) -> int:
        """Compare and set one node while all the others are there; its fate is that of a `put`. Returns the new
        version. `VersionConflict`, `NodeNotFound`, `StoreUnavailable`."""
        return await self._write(
            "put", path, lambda store: store.put_while_there(path, value, expected_version, others)
        )

    async def delete(self, path: str, expected_version: int | None = ANY_VERSION) -> None:
        """Remove one node. `NodeNotFound`, `VersionConflict`, `NodeHasChildren`."""
        await self._write("delete", path, lambda store: store.delete(path, expected_version))

    async def delete_recursively(self, path: str) -> None:
        """Remove the node and all below it; nothing there is no error."""
        await self._write("delete_recursively", path, lambda store: store.delete_recursively(path))

    def watch(self, listener: Callable[[Notification], None]) -> Callable[[], None]:
        """Be told of changes under every path that this store has read or listed; returns the way to stop."""
        return self._store.watch(listener)

    def watch_session(self, listener: Callable[[SessionEvent], None]) -> Callable[[], None]:
        """Be told how the session fares; returns the way to stop."""
        return self._store.watch_session(listener)

    def limit_waiting(self, seconds: float) -> None:
        """Once a server that is asked has said nothing for so many seconds, fail all requests with `StoreClosed`. For a
        process that stops: it waits once, and not in each step."""
        self._store.limit_waiting(seconds)

    async def close(self) -> None:
        """End the session; its ephemeral nodes vanish at once, or by its timeout if the server does not answer."""
        await self._catch_up()
        await self._store.close()

    async def _read(self, verb: str, path: str, request: Request[T]) -> T:
        await self._under_way()
        if self._fate(verb, path) is not RequestFate.DONE:
            raise StoreUnavailable(f"no answer to {verb} of {path}")
        answer = await request(self._store)
        await self._under_way()
        return answer

    async def _write(self, verb: str, path: str, request: Request[T]) -> T:
        await self._under_way()
        fate = self._fate(verb, path)
        if fate is RequestFate.LATE:
            self._late.append(request)
            asyncio.get_running_loop().call_later(self._late_seconds, self._start_catching_up)
        elif fate is not RequestFate.REFUSED:
            await self._catch_up()
            answer = await request(self._store)
            await self._under_way()
            if fate is RequestFate.DONE:
                return answer
        raise StoreUnavailable(f"no answer to {verb} of {path}")

    async def _under_way(self) -> None:
        if self._delay_seconds is not None:
            await asyncio.sleep(self._delay_seconds())
        if self._ended:
            await asyncio.get_running_loop().create_future()  # Nobody is there any more to be answered.

    def _start_catching_up(self) -> None:
        if self._late:
            self._catching_up = asyncio.ensure_future(self._catch_up())

    async def _catch_up(self) -> None:
        while self._late:
            with contextlib.suppress(MagnetarError):  # Nobody hears of it.
                await self._late.popleft()(self._store)
