"""The drain of one bookie: read-only → its replicas moved → verified → its cookie removed → done.

The steps are not a script that could be cut off: every round looks at what is and does what is missing, so that
whoever holds the drain's lock can go on after a kill at any point. What must hold for the cookie to go is found anew
in one round: the bookie has not taken writes for a while, and after that no ledger's metadata names it.

Our clients give it no place any more, however old their lists are: they write such metadata only while the bookie is
registered as writable (docs/adr/0028). Apache's may, until they hear of it; that is what the while is for. It refuses
the entries of such a ledger, and the writer replaces it.

(BookKeeper has no drain of a live bookie; `bookkeeper shell decommissionbookie` demands that it is down.)
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from dataclasses import dataclass
from typing import Final, Protocol

from magnetar.bookie.autorecovery.replication.replicator import LedgerReplicator
from magnetar.bookie.autorecovery.underreplication import UnderreplicatedLedgers
from magnetar.bookie.cookie import COOKIES_PATH
from magnetar.bookie.drain.moves import LedgerMover
from magnetar.bookie.drain.paths import intention_path, lock_path
from magnetar.bookie.drain.scan import ledgers_naming
from magnetar.bookie.drain.state import STEP_TRANSITIONS, Capacity, Intention, Phase, decode_intention, encode_intention
from magnetar.bookie.operations import BookieDrainState, BookieDrainStep, OperationRefused
from magnetar.core.backoff import doubled
from magnetar.core.clock import Clock, SystemClock
from magnetar.core.errors import PeerError
from magnetar.ledger.bookie_client.bookie_connection import BookieConnections
from magnetar.ledger.client import BookKeeperClient
from magnetar.ledger.ledger_paths import AVAILABLE_PATH
from magnetar.metadata.coordination import LockState, LockTaken, ResourceLock
from magnetar.metadata.store import (
    MUST_NOT_EXIST,
    MetadataStore,
    Node,
    NodeChange,
    NodeNotFound,
    Notification,
    VersionConflict,
)

logger: Final = logging.getLogger(__name__)

THE_BOOKIE: Final = -1
"""In the place of a ledger: the bookie itself holds the drain up."""

BLOCKERS_NAMED_MAX: Final = 100
"""Ledgers that the progress names; the count of those left tells how many there are."""

HOW_TO_MEND: Final = "take the drain back (`magnetar bookie drain --cancel`), and ask for it again if it is wanted"
"""What to do about an intention that nobody can read."""

_SYSTEM_CLOCK: Final = SystemClock()


async def is_leaving(store: MetadataStore, bookie_id: str) -> bool:
    """Whether a bookie is to leave, and has not left yet. An intention that nobody can read counts: a bookie that takes
    no writes does no harm. `Unavailable`."""
    node = await store.get(intention_path(bookie_id))
    if node is None:
        return False
    try:
        return decode_intention(node.value).phase is not Phase.DONE
    except PeerError as error:
        logger.error("bookie %s stays read-only: %s; %s", bookie_id, error, HOW_TO_MEND)  # noqa: TRY400
        return True


def _may_be_cancelled(node: Node) -> bool:
    try:
        return decode_intention(node.value).phase is Phase.DRAINING
    except PeerError:
        return True


class BookieSwitch(Protocol):
    """The bookie of this process."""

    def set_draining(self, draining: bool) -> None:
        """Turn read-only because of a drain, or take that reason back. It registers accordingly, soon."""
        ...


@dataclass(slots=True, kw_only=True)
class DrainParts:
    """What drains work with; the replicator's settings bound them."""

    store: MetadataStore
    client: BookKeeperClient
    connections: BookieConnections
    underreplicated: UnderreplicatedLedgers
    """The one of the store's session, such as `AutoRecoveryDaemon.underreplicated`."""
    replicator: LedgerReplicator
    holder: str
    """Names this process in the drain's lock; no other process's name, nor that of an earlier run."""
    clock: Clock = _SYSTEM_CLOCK
    settle_seconds: float = 5.0
    """How long the bookie must be known as read-only before the last look at the ledgers: longer than Apache's clients
    take to hear of it."""
    retry_seconds: float = 5.0
    """Between attempts on what holds the drain up; doubled while nothing moves, up to ten times this."""


class Drain:
    """One bookie's way out. `start` it once in its life, then `run` it until it is done, here or anywhere."""

    def __init__(self, parts: DrainParts, bookie_id: str, own: BookieSwitch | None = None) -> None:
        """`own`: the switch of the bookie if it runs in this process; None for any other one."""
        self._parts = parts
        self._store = parts.store
        self._bookie_id = bookie_id
        self._own = own
        self._mover = self._new_mover()
        self._step = BookieDrainStep.NONE
        self._total = 0
        self._left = 0
        self._bookie_problem: str | None = None
        self._unmoved = 0
        """Attempts in a row that moved no ledger."""
        self._refuses_since: float | None = None
        self._known: tuple[bytes, int] | None = None
        self._news = asyncio.Event()

    async def start(self, *, remove_cookie: bool = True) -> None:
        """Write the intention down, unless it is there already. From then on the bookie is to leave; with its cookie if
        any start has asked for that.

        Raises `OperationRefused` when it takes writes and is not ours, or when the others could not take its place;
        `Unavailable`."""
        intention = await self._intention()
        cookie = await self._store.get(self._cookie_path)
        if intention is not None and (intention.phase is not Phase.DONE or cookie is None):
            if remove_cookie and not intention.remove_cookie and intention.phase is Phase.DRAINING:
                # Asked for more than before; whoever drains it hears of that.
                wanted = dataclasses.replace(intention, remove_cookie=True)
                if not await self._write(wanted, Phase.DRAINING):
                    await self.start(remove_cookie=True)
            return
        if self._own is None and await self._takes_writes():
            raise OperationRefused(f"bookie {self._bookie_id} runs and takes writes: stop it, or have it drain itself")
        capacity = Capacity(self._bookie_id, self._parts.connections.writable_bookies())
        await ledgers_naming(self._parts.client.metadata, self._bookie_id, capacity.add)
        if capacity.refusal is not None:
            raise OperationRefused(capacity.refusal)
        intention = Intention(
            bookie_id=self._bookie_id,
            phase=Phase.DRAINING,
            started_ms=self._parts.clock.now_ms(),
            remove_cookie=remove_cookie,
            cookie_created_ms=None if cookie is None else cookie.stat.made,
        )
        path = intention_path(self._bookie_id)
        try:
            await self._store.put(path, encode_intention(intention), self._known[1] if self._known else MUST_NOT_EXIST)
        except VersionConflict:
            logger.info("another has begun to drain bookie %s just now", self._bookie_id)

    async def wanted(self) -> bool:
        """Whether the bookie is to leave, and has not left yet."""
        return await is_leaving(self._store, self._bookie_id)

    async def cancel(self) -> None:
        """The bookie stays after all. What was moved stays moved. No error if it is not drained, or if nobody can read
        what is noted of its drain.

        Raises `OperationRefused` once its cookie is being removed; `Unavailable`."""
        while (node := await self._store.get(intention_path(self._bookie_id))) is not None:
            if not _may_be_cancelled(node):
                raise OperationRefused(
                    f"no ledger names bookie {self._bookie_id} any more and its cookie is removed: too late to cancel"
                )
            with contextlib.suppress(VersionConflict, NodeNotFound):
                await self._store.delete(node.stat.path, node.stat.version)
                break
        self._switch(draining=False)

    def show_begun(self) -> None:
        """Before its first look, which may be half a minute away while the lock of an earlier run stands: whoever
        watches would take it for one that was cancelled."""
        if self._step is BookieDrainStep.NONE:
            self._become(BookieDrainStep.READ_ONLY)

    def forget(self) -> None:
        """Show nothing of a drain that was cancelled."""
        self._mover = self._new_mover()
        self._become(BookieDrainStep.NONE)
        self._total = self._left = 0
        self._bookie_problem = self._refuses_since = None

    async def run(self) -> BookieDrainState:
        """Drain until nothing is left to do: DONE, or NONE when somebody has cancelled it.

        Raises `OperationRefused` when another process drains the bookie; `Unavailable` when the metadata store fails.
        It may be cancelled at any time and run again, here or elsewhere."""
        lock = ResourceLock(
            self._store, lock_path(self._bookie_id), self._parts.holder.encode(), lambda _: self._news.set()
        )
        try:
            await lock.acquire()
        except LockTaken as error:
            raise OperationRefused(f"bookie {self._bookie_id} is drained by another process: {error}") from None
        stop_watching = self._store.watch(self._take_notification)
        try:
            while not await self._round_under(lock):
                if lock.state is LockState.LOST:
                    raise OperationRefused(f"another process has taken over the drain of bookie {self._bookie_id}")
        finally:
            stop_watching()
            await lock.release()
        return self.progress()

    def progress(self) -> BookieDrainState:
        """How far the drain has come."""
        blockers = sorted(self._mover.blockers.items())[:BLOCKERS_NAMED_MAX]
        if self._bookie_problem is not None:
            blockers.insert(0, (THE_BOOKIE, self._bookie_problem))
        return BookieDrainState(
            bookie_id=self._bookie_id,
            step=self._step,
            ledgers_total=self._total,
            ledgers_left=self._left,
            bytes_copied=self._mover.meter.total_bytes,
            bytes_per_second=self._mover.meter.bytes_per_second(),
            blockers=tuple(blockers),
        )

    async def _round_under(self, lock: ResourceLock) -> bool:
        """Work until it is done (True), or until the lock or the intention is not what it was."""
        self._news.clear()
        work = asyncio.ensure_future(self._work())
        try:
            while not work.done():
                news = asyncio.ensure_future(self._news.wait())
                await asyncio.wait([work, news], return_when=asyncio.FIRST_COMPLETED)
                news.cancel()
                self._news.clear()
                if lock.state is LockState.LOST:
                    return False
                if lock.state is not LockState.HELD or (not work.done() and await self._has_changed()):
                    break
            else:
                return work.result()
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
        while lock.state is LockState.IN_DOUBT:
            await self._news.wait()
            self._news.clear()
        return False

    async def _work(self) -> bool:
        """Rounds until there is nothing left to do."""
        while True:
            intention = await self._intention()
            if intention is None:
                self._become(BookieDrainStep.NONE)
                self._switch(draining=False)
                return True
            if intention.phase is Phase.DONE:
                self._become(BookieDrainStep.DONE)
                return True
            if intention.phase is Phase.REMOVING:
                cookie = await self._store.get(self._cookie_path)
                if intention.has_removed(cookie):
                    # All was verified before it went.
                    await self._write(intention, Phase.DONE)
                    continue
            self._switch(draining=True)
            if await self._takes_writes():
                self._become(BookieDrainStep.READ_ONLY)
                self._refuses_since = None
                if self._own is None:
                    self._bookie_problem = "it runs and takes writes: stop it, or have it drain itself"
                await asyncio.sleep(min(self._parts.retry_seconds, 0.2))
                continue
            self._bookie_problem = None
            await self._leave(intention)

    async def _leave(self, intention: Intention) -> None:
        """One look at all ledgers, and what follows from it. The bookie refuses writes."""
        now = self._parts.clock.monotonic_seconds()
        if self._refuses_since is None:
            self._refuses_since = now
        unsettled_seconds = self._refuses_since + self._parts.settle_seconds - now
        naming = await self._ledgers_naming_it()
        if naming:
            self._become(BookieDrainStep.REPLICATE)
            await self._replicate(naming)
            return
        self._become(BookieDrainStep.VERIFY)
        if unsettled_seconds > 0:
            await asyncio.sleep(unsettled_seconds)
            return
        problems = await self._mover.verify()
        if problems:
            self._mover.blockers.update(problems)
            await asyncio.sleep(self._parts.retry_seconds)
            return
        self._mover.blockers.clear()
        # What was seen holds only if the bookie has refused writes all the while.
        if self._has_refused_since(now) and not await self._takes_writes():
            await self._remove_cookie(intention)

    async def _ledgers_naming_it(self) -> list[int]:
        naming = await ledgers_naming(self._parts.client.metadata, self._bookie_id)
        left = set(naming.ledger_ids)
        for ledger_id in [ledger_id for ledger_id in self._mover.blockers if ledger_id not in left]:
            del self._mover.blockers[ledger_id]
        self._mover.blockers.update(naming.unreadable)
        self._total += max(0, len(naming.ledger_ids) - self._left)
        self._left = len(naming.ledger_ids)
        return naming.ledger_ids

    async def _replicate(self, naming: list[int]) -> None:
        """Try these ledgers; a pause follows when some are left, longer when none has moved."""
        await self._mover.move(naming, self._count_down)
        if self._left:
            self._unmoved = self._unmoved + 1 if self._left == len(naming) else 0
            retry_seconds = self._parts.retry_seconds
            await asyncio.sleep(doubled(retry_seconds, 10 * retry_seconds, self._unmoved))

    def _count_down(self) -> None:
        self._left -= 1

    async def _remove_cookie(self, intention: Intention) -> None:
        self._become(BookieDrainStep.REMOVE_COOKIE)
        if not intention.remove_cookie:
            await self._write(intention, Phase.DONE)
            return
        cookie = await self._store.get(self._cookie_path)
        if cookie is not None and intention.is_another(cookie):
            self._bookie_problem = "its cookie was made after the drain began: it has been set up anew"
            await asyncio.sleep(self._parts.retry_seconds)
            return
        if intention.phase is not Phase.REMOVING and not await self._write(intention, Phase.REMOVING):
            return
        if cookie is not None:
            try:
                await self._store.delete(self._cookie_path, cookie.stat.version)
            except (VersionConflict, NodeNotFound) as error:
                logger.info("the cookie of bookie %s is looked at again: %s", self._bookie_id, error)
                return
            logger.warning("bookie %s has left the cluster: its cookie is removed", self._bookie_id)

    async def _write(self, intention: Intention, phase: Phase) -> bool:
        """Take the intention further; False when somebody has changed it, which the next round sees to."""
        value = encode_intention(intention.moved_to(phase, self._parts.clock.now_ms()))
        assert self._known is not None
        version = self._known[1]
        # Known before it is written, or the news of it would look like somebody else's.
        self._known = value, version + 1
        try:
            await self._store.put(intention_path(self._bookie_id), value, version)
        except VersionConflict:
            return False
        return True

    async def _intention(self) -> Intention | None:
        node = await self._store.get(intention_path(self._bookie_id))
        if node is None:
            self._known = None
            return None
        self._known = node.value, node.stat.version
        try:
            return decode_intention(node.value)
        except PeerError as error:
            self._bookie_problem = f"{error}; {HOW_TO_MEND}"
            raise

    async def _has_changed(self) -> bool:
        known = self._known
        node = await self._store.get(intention_path(self._bookie_id))
        return known != (None if node is None else (node.value, node.stat.version))

    async def _takes_writes(self) -> bool:
        return await self._store.exists(self._writable_path)

    def _has_refused_since(self, moment_seconds: float) -> bool:
        return self._refuses_since is not None and self._refuses_since <= moment_seconds

    def _become(self, step: BookieDrainStep) -> None:
        self._step = STEP_TRANSITIONS.step(self._step, step)

    def _switch(self, *, draining: bool) -> None:
        if self._own is not None:
            self._own.set_draining(draining)

    def _take_notification(self, notification: Notification) -> None:
        if notification.path == intention_path(self._bookie_id):
            self._news.set()
        elif notification.path == self._writable_path and notification.change is not NodeChange.DELETED:
            # Created, or after a reconnection: perhaps, and perhaps removed again.
            self._refuses_since = None

    def _new_mover(self) -> LedgerMover:
        parts = self._parts
        return LedgerMover(
            self._bookie_id, parts.client, parts.connections, parts.underreplicated, parts.replicator, parts.clock
        )

    @property
    def _writable_path(self) -> str:
        return f"{AVAILABLE_PATH}/{self._bookie_id}"

    @property
    def _cookie_path(self) -> str:
        return f"{COOKIES_PATH}/{self._bookie_id}"
