"""Follows a managed ledger that another process writes: its list in the metadata store, and its end at the bookies.

One task for each followed managed ledger, whatever the number of its cursors. It sleeps while nobody reads, but for
changes of the list. Its decisions are those of `tail.py` and `list_changes.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from magnetar.core.errors import MagnetarError, Unavailable
from magnetar.core.ids import NO_ENTRY, Position
from magnetar.ledger.api import LedgerNotFound, LedgerObserver, LedgerUnavailable
from magnetar.managed.append_path import AppendPath
from magnetar.managed.entry import Entry
from magnetar.managed.errors import ManagedLedgerError, ManagedLedgerNotFound
from magnetar.managed.following.api import TopicOwner
from magnetar.managed.following.list_changes import ListChanges, current_of, take_over
from magnetar.managed.following.settings import FollowSettings
from magnetar.managed.following.tail import NEVER, LedgerTail, TailStep
from magnetar.managed.following.trouble import Trouble
from magnetar.managed.info_codec import BrokenMetadata, LedgerInfo, decode_ledger_info
from magnetar.managed.paths import ledger_path
from magnetar.managed.shared import Shared
from magnetar.managed.states import ManagedLedgerState

T = TypeVar("T")

logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FollowerLag:
    """How far a follower is behind the writer, as far as it knows."""

    entries: int
    """Entries that it knows to be there and does not show."""
    milliseconds: int
    """For how long the oldest of them has been waiting; 0: there is none."""
    sure: bool
    """Whether nothing else can be there: False while store, bookies or owner cannot tell, or nobody reads."""


class FollowedCursors(Protocol):
    """The managed ledger, as its follower knows it."""

    def ledgers_removed(self) -> None:
        """The list of ledgers has changed: cursors stand on those that there are."""
        ...

    def forget_readers(self, ledger_id: int) -> None:
        """The ledger is gone, or is to be read from another copy."""
        ...

    def lost(self, error: MagnetarError) -> None:
        """The managed ledger is no more, or cannot be followed any more."""
        ...

    def was_terminated(self) -> None:
        """The writer has terminated it; all of it is shown."""
        ...


class ManagedLedgerFollower:
    """Keeps the list, the last confirmed position and the cache of one managed ledger up to date."""

    def __init__(
        self,
        shared: Shared,
        appends: AppendPath,
        owner: TopicOwner,
        settings: FollowSettings,
    ) -> None:
        self.owner: TopicOwner = owner
        self.settings: FollowSettings = settings
        self._shared: Shared = shared
        self._appends: AppendPath = appends
        self._path: str = ledger_path(appends.name)
        self._cursors: FollowedCursors | None = None
        self._made: int = 0
        """Tells the node from one that was made in its place later."""
        self._current: int | None = None
        """The ledger that is being written."""
        self._observer: LedgerObserver | None = None
        self._tail: LedgerTail | None = None
        self._list_stale: bool = False
        self._ledger_stale: bool = False
        self._paused: bool = True
        """Nobody has read for a while: bookies are asked how far it goes before the next look."""
        self._list_trouble: Trouble = Trouble(settings)
        self._tail_trouble: Trouble = Trouble(settings)
        self._ledger_trouble: Trouble = Trouble(settings)
        """Of reading the ledger's own metadata: entries are looked for all the same."""
        self._lost: MagnetarError | None = None
        self._lock: asyncio.Lock = asyncio.Lock()
        """Whoever holds it changes what is shown."""
        self._wake: asyncio.Event = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._unwatch: Callable[[], None] = shared.watches.add(self._path, self._list_changed)

    # --- from the managed ledger

    async def load(self) -> None:
        """Read the list for the first time, and how far its last ledger goes.

        `ManagedLedgerNotFound`, `BrokenMetadata`, `Unavailable`; then it was stopped."""
        try:
            async with self._lock:
                await self._read_list()
                if self._current is not None:
                    await self._open_ledger()
                    await self._ask_bookies()
        except LedgerNotFound as error:
            # Its owner drops such a ledger when it goes on, and the list says so then.
            logger.warning("%s: its last ledger is gone: %s", self._appends.name, error)
        except BaseException:
            await self.stop()
            raise

    def start(self, cursors: FollowedCursors) -> None:
        """After `load`: follow from now on, until `stop`."""
        self._cursors = cursors
        self._task = self._shared.loop.create_task(self._run(), name=f"follow {self._appends.name}")

    def cursors_changed(self) -> None:
        """A cursor has come or gone; `cache_wanted` says whether there is any."""
        if not self._appends.cache_wanted:
            self._paused = True
        self._wake.set()

    async def stop(self) -> None:
        """Follow no more."""
        self._unwatch()
        tasks = [task for task in (self._task, self._asking) if task is not None]
        self._task = self._asking = None
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)
        await self._let_go_of_ledger()
        self._cursors = None

    @property
    def lag(self) -> FollowerLag:
        """How far this is behind, as far as it knows."""
        tail, observer = self._tail, self._observer
        known = self._tail_trouble.error is None and not self._list_stale and self._shared.watches.connected
        if tail is None or observer is None:
            return FollowerLag(0, 0, known and self._current is None)
        waiting = tail.waiting_entries
        since_ms = int((self._now() - tail.since_seconds) * 1000) if waiting and tail.since_seconds < NEVER else 0
        looked = tail.ended or (not self._paused and tail.quiet_looks >= observer.denials_needed)
        return FollowerLag(waiting, since_ms, known and looked and not waiting and not self._ledger_stale)

    async def catch_up(self) -> bool:
        """Until everything is shown that was confirmed when this was called. False: the owner is away, and what is
        shown is only what bookies vouch for. `Unavailable`: nobody tells."""
        try:
            position = await self._owner_says()
        except MagnetarError as error:
            logger.warning("%s: its owner cannot be asked: %r", self._appends.name, error)
            async with self._lock:
                self._check_there()
                if self._list_stale:
                    await self._read_list()
                await self._ask_bookies()
            return False
        await self.reach(position)
        return True

    async def reach(self, position: Position) -> None:
        """The owner vouches for all up to this position: until it is shown, or is not of this list any more.

        `Unavailable`: it cannot be reached now."""
        deadline_seconds = self._now() + self.settings.catch_up_seconds_max
        while True:
            async with self._lock:
                self._check_there()
                if position[0] > self._appends.ledgers.ids[-1]:
                    await self._read_list()
                if position[1] == NO_ENTRY or position[0] <= self._appends.ledgers.ids[-1]:
                    await self._show_up_to(position)
                    return
            if self._now() >= deadline_seconds:
                raise Unavailable(f"{self._appends.name}: the store does not name ledger {position[0]} of its owner")
            # A store of several servers may tell of it a moment later.
            await asyncio.sleep(self.settings.look_pause_seconds_max)

    async def reload(self) -> None:
        """Read the list now: a ledger that it names was not there. Raises nothing."""
        try:
            async with self._lock:
                if self._lost is None:
                    await self._read_list()
        except MagnetarError as error:
            logger.warning("%s: its list of ledgers cannot be read now: %r", self._appends.name, error)

    # --- the task

    async def _run(self) -> None:
        try:
            while self._lost is None:
                await self._sleep(await self._turn())
            self._tell_lost(self._lost)
        except Exception as error:
            # One that has died must not look like a topic to which nobody publishes.
            logger.exception("%s: the follower failed", self._appends.name)
            self._tell_lost(ManagedLedgerError(f"{self._appends.name} is not followed any more: {error!r}"))

    def _tell_lost(self, error: MagnetarError) -> None:
        self._lost = error
        if self._cursors is not None:
            self._cursors.lost(error)

    async def _turn(self) -> float:
        """One step; returns how long to wait for the next one unless something happens."""
        async with self._lock:
            now_seconds = self._now()
            pause_seconds = NEVER
            if self._list_stale:
                read = await self._try(self._list_trouble, "its list of ledgers cannot be read", self._read_list)
                if read is None:
                    pause_seconds = self._list_trouble.until_seconds - now_seconds
            if self._lost is not None or not self._appends.cache_wanted:
                return 0.0 if self._lost is not None else pause_seconds
            wait_seconds = await self._try(self._tail_trouble, "its end cannot be read", self._step)
            if wait_seconds is None:
                wait_seconds = self._tail_trouble.until_seconds - now_seconds
            return min(pause_seconds, wait_seconds)

    async def _try(self, trouble: Trouble, what: str, attempt: Callable[[], Awaitable[T]]) -> T | None:
        """Do it, unless it failed just now; None: it failed."""
        if self._now() < trouble.until_seconds:
            return None
        try:
            result = await attempt()
        except MagnetarError as error:
            if trouble.failed(error, self._now()):
                logger.warning("%s: %s now: %r", self._appends.name, what, error)
            return None
        if trouble.over():
            logger.info("%s is followed again", self._appends.name)
        return result

    async def _sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        timer = None if seconds == NEVER else self._shared.loop.call_later(seconds, self._wake.set)
        await self._wake.wait()
        self._wake.clear()
        if timer is not None:
            timer.cancel()

    def _list_changed(self) -> None:
        self._list_stale = True
        self._wake.set()

    def _ledger_changed(self) -> None:
        self._ledger_stale = True
        self._wake.set()

    def _now(self) -> float:
        return self._shared.loop.time()

    def _check_there(self) -> None:
        if self._lost is not None:
            raise self._lost

    # --- the list

    async def _read_list(self) -> bool:
        self._list_stale = False
        try:
            info = await self._stored()
            try:
                changes = take_over(self._appends.ledgers, info)
            except BrokenMetadata as error:
                raise self._broken(error) from error
        except BaseException:
            self._list_stale = True
            raise
        self._appends.properties = info.properties
        self._apply(changes, info)
        current = current_of(info)
        if current != self._current:
            await self._let_go_of_ledger()
            self._current = current
            self._tail_trouble.over()
        return True

    async def _stored(self) -> LedgerInfo:
        node = await self._shared.store.get(self._path, watch=True)
        if node is None or self._made not in (0, node.stat.made):
            self._lost = ManagedLedgerNotFound(f"{self._appends.name} is gone")
            self._wake.set()
            raise self._lost
        self._made = node.stat.made
        try:
            return decode_ledger_info(node.value)
        except BrokenMetadata as error:
            raise self._broken(error) from error

    def _broken(self, error: BrokenMetadata) -> BrokenMetadata:
        return BrokenMetadata(f"{self._path} cannot be understood: {error}")

    def _apply(self, changes: ListChanges, info: LedgerInfo) -> None:
        """The list has changed; tell of it."""
        ledgers, tail = self._appends.ledgers, self._tail
        if tail is not None and tail.ledger_id in changes.counted:
            tail.end(ledgers.entries_in(tail.ledger_id) - 1)
            self._cache_seen(tail)
        for ledger_id in changes.removed:
            self._shared.cache.remove_ledger(ledger_id)
        if self._cursors is not None:
            for ledger_id in (*changes.removed, *changes.moved):
                self._cursors.forget_readers(ledger_id)
            if changes:
                self._cursors.ledgers_removed()
        terminated = info.terminated_at is not None and self._appends.state is ManagedLedgerState.FOLLOWED
        if terminated:
            assert info.terminated_at is not None
            self._appends.terminated(info.terminated_at)
        self._advance()
        if terminated and self._cursors is not None:
            self._cursors.was_terminated()

    def _advance(self) -> None:
        """What is shown has changed, perhaps: tell of it as a writer does."""
        appends = self._appends
        before, now = appends.last_confirmed, appends.ledgers.last_position()
        if now == before:
            return
        appends.last_confirmed = now
        if now > before:
            appends.entries_added += appends.ledgers.entries_between(before, now)
            for told in appends.on_appended:
                told()

    # --- the ledger that is being written

    async def _open_ledger(self) -> None:
        assert self._current is not None
        password = self._appends.settings.password
        self._ledger_stale = False
        observer = await self._shared.ledgers.observe(self._current, password=password, changed=self._ledger_changed)
        record = self._appends.ledgers.get(self._current)
        assert record is not None
        self._observer = observer
        tail = self._tail = LedgerTail(self._current, self.settings)
        tail.shown = tail.confirmed = record.entries - 1
        self._take_confirmed(observer)

    async def _let_go_of_ledger(self) -> None:
        observer, self._observer = self._observer, None
        self._tail = None
        if observer is not None:
            await observer.close()

    async def _step(self) -> float:
        if self._current is None:
            return NEVER
        if self._observer is None:
            await self._open_ledger()
        observer, tail = self._observer, self._tail
        assert observer is not None
        assert tail is not None
        if self._ledger_stale:
            await self._try(self._ledger_trouble, "its last ledger's metadata cannot be read", self._refresh)
        if self._paused:
            await self._ask_bookies()
            self._paused = False
        self._show(tail)
        step, pause_seconds = tail.next_step(self._now())
        if step is TailStep.ASK_OWNER:
            tail.asking(self._now())
            self._asking = self._shared.start(self._ask_owner(tail))
        elif step is TailStep.LOOK:
            await self._look(observer, tail)
        elif step is TailStep.ASK_BOOKIES:
            tail.asked_bookies(self._now())
            await self._ask_bookies()
        elif self._ledger_stale:
            return min(pause_seconds, self._ledger_trouble.until_seconds - self._now())
        else:
            return pause_seconds
        self._show(tail)
        return 0.0

    async def _refresh(self) -> bool:
        assert self._observer is not None
        self._ledger_stale = False
        try:
            await self._observer.refresh()
        except LedgerNotFound:
            self._ledger_stale = self._list_stale = True  # Trimmed or deleted: the list says which.
            raise
        except BaseException:
            self._ledger_stale = True
            raise
        self._take_confirmed(self._observer)
        return True

    async def _look(self, observer: LedgerObserver, tail: LedgerTail) -> None:
        try:
            seen = await observer.look(tail.next_entry_id, self.settings.look_bytes_max)
        except LedgerUnavailable:
            self._show(tail)
            if not self._show_unseen(tail):
                raise
            return
        tail.saw(seen.payloads, seen.length_bytes, self._now())
        self._take_confirmed(observer)
        self._show(tail)
        if not seen.payloads:
            self._show_unseen(tail)

    async def _ask_bookies(self) -> None:
        """Show all that bookies vouch for, read or not."""
        if self._current is None:
            return
        if self._observer is None:
            await self._open_ledger()
        observer, tail = self._observer, self._tail
        assert observer is not None
        assert tail is not None
        await observer.ask()
        self._take_confirmed(observer)
        self._show(tail)
        self._show_unseen(tail)

    def _take_confirmed(self, observer: LedgerObserver) -> None:
        tail = self._tail
        assert tail is not None
        if observer.closed and not tail.ended:
            tail.end(observer.last_add_confirmed)
            self._show(tail)
            self._show_unseen(tail)
        else:
            tail.confirm(observer.last_add_confirmed)

    async def _show_up_to(self, position: Position) -> None:
        if position[0] != self._current or position[1] < self._appends.ledgers.entries_in(position[0]):
            return
        if self._observer is None:
            await self._open_ledger()
        assert self._observer is not None
        tail = self._tail
        assert tail is not None
        self._observer.vouch(position[1])
        tail.confirm(position[1])
        self._show(tail)
        self._show_unseen(tail)

    def _show(self, tail: LedgerTail) -> None:
        """Show what was seen and is confirmed."""
        length_bytes = self._cache_seen(tail)
        if length_bytes is not None:
            self._shown(tail, length_bytes)

    def _show_unseen(self, tail: LedgerTail) -> bool:
        """Show what is confirmed and was not seen: whoever wants it reads it."""
        if not tail.skip():
            return False
        assert self._observer is not None
        self._shown(tail, self._observer.length_bytes)
        return True

    def _cache_seen(self, tail: LedgerTail) -> int | None:
        """One read from a bookie serves all cursors. The ledger's length up to the last entry; None: there is none."""
        shown = tail.take()
        if shown is None:
            return None
        if self._appends.cache_wanted and self._appends.ledgers.get(tail.ledger_id) is not None:
            entries = [
                Entry(tail.ledger_id, each, data) for each, data in enumerate(shown.payloads, shown.first_entry_id)
            ]
            size_bytes = sum(map(len, shown.payloads))
            self._shared.cache.add(tail.ledger_id, entries, size_bytes, self._shared.clock.monotonic_seconds())
        return shown.length_bytes

    def _shown(self, tail: LedgerTail, length_bytes: int) -> None:
        record = self._appends.ledgers.get(tail.ledger_id)
        if record is None or record.closed_ms:
            return  # The list knows better.
        record.entries = tail.shown + 1
        record.size_bytes = max(record.size_bytes, length_bytes)
        self._advance()

    # --- the owner

    async def _owner_says(self) -> Position:
        try:
            async with asyncio.timeout(self.settings.ask_seconds_max):
                return await self.owner.last_confirmed()
        except TimeoutError as error:
            raise Unavailable(f"the owner of {self._appends.name} does not answer") from error

    async def _ask_owner(self, tail: LedgerTail) -> None:
        position: Position | None = None
        try:
            position = await self._owner_says()
        except MagnetarError as error:
            if not tail.owner_away:
                logger.warning("%s: its owner cannot be asked for its last entry: %r", self._appends.name, error)
        finally:
            if position is None:
                tail.not_answered(self._now())
            else:
                tail.answered(position[1] if position[0] == tail.ledger_id else NO_ENTRY, self._now())
                if position[0] > tail.ledger_id:
                    self._list_stale = True
            self._wake.set()
