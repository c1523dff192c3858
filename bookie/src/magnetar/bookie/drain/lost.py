"""Has the cluster forget a bookie whose disks are lost, so that it may come back with empty ones.

A drain copies by itself and belongs to one process; here the auditor's marks are set at once, whatever the delay for
lost bookies is, and the replication workers of all bookies copy. Each call looks at what is and takes one step, so that
it does not matter who asks which bookie how often, or what is killed in between. The cookie goes only when

* the bookie was not registered for a while before a look at all ledgers began, so that every client has heard of it
  (for a ledger that one creates later all the same, from an old list, see `magnetar.bookie.drain.drain`: the bookie has
  confirmed nothing of it);
* that look found no ledger that names it;
* it has not registered until the cookie was gone. It looks for its cookie after it has registered, and here it is the
  other way round, so that one of the two sees the other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from magnetar.bookie.autorecovery.parallel import for_each
from magnetar.bookie.cookie import COOKIES_PATH
from magnetar.bookie.drain.drain import DrainParts
from magnetar.bookie.drain.paths import intention_path, lock_path
from magnetar.bookie.drain.scan import Naming, ledgers_naming
from magnetar.bookie.drain.state import Capacity
from magnetar.bookie.operations import LostBookie, OperationRefused
from magnetar.core.errors import PeerError, Unavailable
from magnetar.ledger.ledger_paths import AVAILABLE_PATH, READ_ONLY_PATH
from magnetar.metadata.coordination import LockState, LockTaken, ResourceLock
from magnetar.metadata.store import (
    MUST_NOT_EXIST,
    Node,
    NodeChange,
    NodeNotFound,
    Notification,
    VersionConflict,
)
from magnetar.metadata.sure_writes import put_surely

logger: Final = logging.getLogger(__name__)

MARKS_IN_FLIGHT: Final = 64
"""Ledgers that are marked at a time; as many as are read."""

PROBLEMS_LOOKED_FOR: Final = 20
"""Ledgers of which it is asked why they are not whole; one that says so is enough."""

LOOKS_AT_ONCE: Final = 4
"""Bookies that are looked for at the same time: each look reads all ledgers' metadata."""

KEPT_SECONDS: Final = 30.0
"""How long what a look found waits for whoever asked and did not wait for it."""

ABSENT_MAX: Final = 1_000
"""Bookies that are remembered as not registered; more are forgotten, and have to wait again."""


@dataclass(slots=True)
class _Look:
    task: asyncio.Task[LostBookie]
    ended_seconds: float | None = None


class LostBookies:
    """Looks for bookies that do not run. One of a process."""

    def __init__(self, parts: DrainParts) -> None:
        self._parts = parts
        self._store = parts.store
        self._looks: dict[tuple[str, bool], _Look] = {}
        self._absent_since: dict[str, float] = {}
        self._stop_watching = parts.store.watch(self._take_notification)

    async def close(self) -> None:
        """Stop looking. What was done stays done."""
        self._stop_watching()
        looks, self._looks = self._looks, {}
        for look in looks.values():
            look.task.cancel()
        await asyncio.gather(*(look.task for look in looks.values()), return_exceptions=True)

    async def state(self, bookie_id: str) -> LostBookie:
        """How it stands with a bookie. Raises `Unavailable`."""
        return await self._joined(bookie_id, retire=False)

    async def retire(self, bookie_id: str) -> LostBookie:
        """Take the next step. Raises `OperationRefused` while it is registered, `Unavailable`."""
        return await self._joined(bookie_id, retire=True)

    async def _joined(self, bookie_id: str, *, retire: bool) -> LostBookie:
        """What one look finds. With many ledgers it takes longer than callers wait: it goes on without them, and who
        asks the next time joins it, or has what it found."""
        key = (bookie_id, retire)
        self._drop_old_looks()
        look = self._looks.get(key)
        if look is None:
            if sum(not other.task.done() for other in self._looks.values()) >= LOOKS_AT_ONCE:
                raise Unavailable(f"{LOOKS_AT_ONCE} bookies are looked for by this one already: ask again later")
            work = self._retire(bookie_id) if retire else self._state(bookie_id)
            look = _Look(asyncio.get_running_loop().create_task(work, name=f"look for {bookie_id}"))
            look.task.add_done_callback(partial(self._look_ended, key, look))
            self._looks[key] = look
        result = await asyncio.shield(look.task)
        if self._looks.get(key) is look:
            del self._looks[key]
        return result

    def _look_ended(self, key: tuple[str, bool], look: _Look, task: asyncio.Task[LostBookie]) -> None:
        look.ended_seconds = self._parts.clock.monotonic_seconds()
        if task.cancelled() or task.exception() is not None:
            # Who waits has the error; nobody else is to have it later.
            self._looks.pop(key, None)

    def _drop_old_looks(self) -> None:
        oldest = self._parts.clock.monotonic_seconds() - KEPT_SECONDS
        self._looks = {
            key: look for key, look in self._looks.items() if look.ended_seconds is None or look.ended_seconds > oldest
        }

    async def _state(self, bookie_id: str) -> LostBookie:
        naming = await ledgers_naming(self._parts.client.metadata, bookie_id)
        return await self._told(bookie_id, naming)

    async def _told(self, bookie_id: str, naming: Naming, waits_for: str = "") -> LostBookie:
        return LostBookie(
            bookie_id=bookie_id,
            registered=await self._registered(bookie_id),
            has_cookie=await self._store.exists(_cookie_path(bookie_id)),
            ledgers_left=len(naming.ledger_ids),
            waits_for=waits_for,
        )

    async def _retire(self, bookie_id: str) -> LostBookie:
        await self._refuse_registered(bookie_id)
        now = self._parts.clock.monotonic_seconds()
        absent_since = self._absent_since.setdefault(bookie_id, now)
        if len(self._absent_since) > ABSENT_MAX:
            del self._absent_since[next(iter(self._absent_since))]
        cookie = await self._store.get(_cookie_path(bookie_id))
        capacity = Capacity(bookie_id, self._parts.connections.writable_bookies())
        naming = await ledgers_naming(self._parts.client.metadata, bookie_id, capacity.add)
        if naming.ledger_ids:
            await self._mark(bookie_id, naming)
            return await self._told(bookie_id, naming, await self._what_copying_waits_for(naming, capacity))
        unsettled_seconds = absent_since + self._parts.settle_seconds - now
        if unsettled_seconds > 0:
            waits_for = f"no ledger names it; clients may not have heard for {unsettled_seconds:.1f} s more"
            return await self._told(bookie_id, naming, waits_for)
        if self._absent_since.get(bookie_id) != absent_since:
            return await self._told(bookie_id, naming, "it was registered a moment ago")
        return await self._told(bookie_id, naming, await self._forget_locked(bookie_id, cookie))

    async def _mark(self, bookie_id: str, naming: Naming) -> None:
        async def one(ledger_id: int) -> None:
            try:
                await self._parts.underreplicated.mark(ledger_id, (bookie_id,))
            except PeerError as error:
                logger.warning("ledger %d cannot be marked: %s", ledger_id, error)

        readable = [ledger_id for ledger_id in naming.ledger_ids if ledger_id not in naming.unreadable]
        await for_each(_each(readable), one, MARKS_IN_FLIGHT)

    async def _what_copying_waits_for(self, naming: Naming, capacity: Capacity) -> str:
        if capacity.refusal is not None:
            return capacity.refusal
        if naming.unreadable:
            ledger_id, problem = next(iter(naming.unreadable.items()))
            return f"ledger {ledger_id}: {problem}"
        if not await self._parts.underreplicated.enabled():
            return "AutoRecovery is disabled in this cluster: enable it, so that the ledgers are copied"
        copies = f"AutoRecovery copies {len(naming.ledger_ids)} ledgers that name it"
        for ledger_id in naming.ledger_ids[:PROBLEMS_LOOKED_FOR]:
            problem = await self._parts.underreplicated.problem(ledger_id)
            if problem:
                return f"{copies}; ledger {ledger_id} has failed at {problem}"
        return copies

    async def _forget_locked(self, bookie_id: str, cookie: Node | None) -> str:
        """Remove what is left of it, unless somebody drains it just now. Why not, if it did not go."""
        intention = await self._store.get(intention_path(bookie_id))
        if cookie is None and intention is None:
            return ""
        holder = f"{self._parts.holder}-lost".encode()
        lock = ResourceLock(self._store, lock_path(bookie_id), holder, lambda _: None)
        try:
            await lock.acquire()
        except LockTaken as error:
            return f"another process drains it: {error}"
        try:
            return await self._forget(bookie_id, cookie, lock)
        except (VersionConflict, NodeNotFound):
            return "another changes what is known of it just now"
        finally:
            await lock.release()

    async def _forget(self, bookie_id: str, cookie: Node | None, lock: ResourceLock) -> str:
        await self._refuse_registered(bookie_id)
        # First what would have a new bookie of this name drained; while the cookie stands there is none.
        intention = await self._store.get(intention_path(bookie_id))
        if intention is not None:
            await self._store.delete(intention_path(bookie_id), intention.stat.version)
        if cookie is None:
            return ""
        path = _cookie_path(bookie_id)
        now = await self._store.get(path)
        if now is None or now.stat.made != cookie.stat.made:
            return "it has been set up anew"
        await self._refuse_registered(bookie_id)
        if lock.state is not LockState.HELD:
            return "the lock of its drain is lost"
        await self._store.delete(path, now.stat.version)
        try:
            await self._refuse_registered(bookie_id)
        except OperationRefused:
            await self._restore(path, now.value)
            raise
        logger.warning("bookie %s is forgotten: no ledger names it, and its cookie is removed", bookie_id)
        return ""

    async def _restore(self, path: str, cookie: bytes) -> None:
        try:
            await put_surely(self._store, path, cookie, MUST_NOT_EXIST)
        except VersionConflict:
            logger.info("%s was written by the bookie itself", path)

    async def _refuse_registered(self, bookie_id: str) -> None:
        if await self._registered(bookie_id):
            raise OperationRefused(
                f"bookie {bookie_id} is registered: it runs, or was killed and its session has not ended yet. Have it "
                "drain itself, or stop it and ask again"
            )

    async def _registered(self, bookie_id: str) -> bool:
        # It makes one node before it removes the other, so that three looks do not miss it. They leave watches.
        for folder in (AVAILABLE_PATH, READ_ONLY_PATH, AVAILABLE_PATH):
            if await self._store.exists(f"{folder}/{bookie_id}"):
                self._absent_since.pop(bookie_id, None)
                return True
        return False

    def _take_notification(self, notification: Notification) -> None:
        folder, _, bookie_id = notification.path.rpartition("/")
        if folder in (AVAILABLE_PATH, READ_ONLY_PATH) and notification.change is not NodeChange.DELETED:
            # Created, or after a reconnection: perhaps, and perhaps removed again.
            self._absent_since.pop(bookie_id, None)


def _cookie_path(bookie_id: str) -> str:
    return f"{COOKIES_PATH}/{bookie_id}"


async def _each(ledger_ids: Sequence[int]) -> AsyncIterator[int]:
    for ledger_id in ledger_ids:
        yield ledger_id
