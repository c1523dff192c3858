"""Follows a managed ledger that another process writes: its list in the metadata store, and its end at the bookies.

One task for each followed managed ledger, whatever the number of its cursors. It sleeps while nobody reads, but for
changes of the list.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from magnetar.core.errors import MagnetarError, Unavailable
from magnetar.core.ids import EARLIEST, NO_ENTRY, Position
from magnetar.ledger.api import LedgerNotFound
from magnetar.managed.append_path import AppendPath
from magnetar.managed.errors import ManagedLedgerError, ManagedLedgerIsShadow, ManagedLedgerNotFound
from magnetar.managed.following.api import EndTeller
from magnetar.managed.following.list_changes import ListChanges, current_of, take_over
from magnetar.managed.following.settings import FollowSettings
from magnetar.managed.following.tail import NEVER
from magnetar.managed.following.tail_follower import FollowerLag, TailFollower
from magnetar.managed.following.trouble import Trouble
from magnetar.managed.info_codec import SHADOW_SOURCE_PROPERTY, BrokenMetadata, LedgerInfo, decode_ledger_info
from magnetar.managed.paths import ledger_path
from magnetar.managed.shared import Shared
from magnetar.managed.states import ManagedLedgerState

logger: Final = logging.getLogger(__name__)


PAUSE_SECONDS_MIN: Final = 0.0005
"""A timer may fire a moment early: what is left of its pause is not worth a turn of the loop of its own."""


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
        owner: EndTeller,
        settings: FollowSettings,
        source: str | None = None,
    ) -> None:
        """`source` is the managed ledger that is followed, if that is another one than the one that is read."""
        self._settings: FollowSettings = settings
        self._shared: Shared = shared
        self._appends: AppendPath = appends
        self._path: str = ledger_path(source or appends.name)
        self._has_properties: bool = source is None
        """Whether what is noted on the one that is followed is noted on the one that is read."""
        self._cursors: FollowedCursors | None = None
        self._tail: TailFollower = TailFollower(
            shared, appends, owner, settings, wake=self._wake_up, list_outdated=self._list_changed
        )
        self._ahead: Position = EARLIEST
        """What was told last of a ledger that the list does not name yet."""
        self._made: int = 0
        """Tells the node from one that was made in its place later."""
        self._outdated: bool = False
        """Whether the list may have changed."""
        self._trouble: Trouble = Trouble(shared.loop, f"the list of ledgers of {appends.name}", settings)
        self._lost: MagnetarError | None = None
        self._lock: asyncio.Lock = asyncio.Lock()
        """Whoever holds it changes what is shown."""
        self._wake: asyncio.Event = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        owner.listen(self._heard)
        self._unwatch: Callable[[], None] = shared.watches.add(self._path, self._list_changed)

    async def load(self) -> None:
        """Read the list for the first time, and how far its last ledger goes.

        `ManagedLedgerNotFound`, `ManagedLedgerIsShadow`, `BrokenMetadata`, `Unavailable`; then it was stopped."""
        try:
            async with self._lock:
                await self._read_list()
                await self._tail.ask_bookies()
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
            self._tail.pause()
        self._wake_up()

    async def stop(self) -> None:
        """Follow no more."""
        self._unwatch()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self._tail.let_go()
        self._cursors = None

    @property
    def lag(self) -> FollowerLag:
        """How far this is behind, as far as it knows."""
        list_known = self._lost is None and not self._outdated and self._shared.watches.connected
        return self._tail.lag(list_known=list_known)

    async def catch_up(self) -> bool:
        """Until everything is shown that was confirmed when this was called. False: the owner is away, and what is
        shown is only what bookies vouch for, of a list that does not end. `Unavailable`: nobody tells."""
        try:
            position = await self._tail.owner_says()
        except MagnetarError as error:
            logger.warning("%s: its owner cannot be asked: %r", self._appends.name, error)
            async with self._lock:
                self._check_there()
                await self._read_list()
                await self._tail.ask_bookies()
            return self._appends.terminated_at is not None
        await self.reach(position)
        return True

    async def reach(self, position: Position) -> None:
        """The owner vouches for all up to this position: until it is shown, or is not of this list any more.

        `Unavailable`: it cannot be reached now."""
        loop = self._shared.loop
        deadline_seconds = loop.time() + self._settings.catch_up_seconds_max
        while True:
            async with self._lock:
                self._check_there()
                if position[0] > self._appends.ledgers.ids[-1]:
                    await self._read_list()
                if position[1] == NO_ENTRY or position[0] <= self._appends.ledgers.ids[-1]:
                    await self._tail.show_up_to(position)
                    return
            if loop.time() >= deadline_seconds:
                raise Unavailable(f"{self._appends.name}: the store does not name ledger {position[0]} of its owner")
            # A store of several servers may tell of it a moment later.
            await asyncio.sleep(self._settings.look_pause_seconds_max)

    def told(self, position: Position) -> None:
        """Somebody says that all up to this position are confirmed. It is shown as soon as it is seen, unless nobody
        reads. Never waits."""
        if position[0] > self._appends.ledgers.ids[-1]:
            if position[0] != self._ahead[0]:
                self._list_changed()  # Or there is no such ledger: then it is looked for this once.
            self._ahead = position
        elif position > self._appends.last_confirmed:
            self._tail.tell(position)
            self._wake_up()

    def _heard(self, position: Position | None) -> None:
        if position is None:
            self._wake_up()  # From now on it has to be looked for.
        else:
            self.told(position)

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
            pause_seconds = NEVER
            if self._outdated and await self._trouble.attempt(self._read_list) is None:
                pause_seconds = self._trouble.pause_seconds
            if self._lost is not None:
                return 0.0
            if self._appends.cache_wanted:
                pause_seconds = min(pause_seconds, await self._tail.step())
            return pause_seconds

    async def _sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        delay_seconds = max(seconds, PAUSE_SECONDS_MIN)
        timer = None if seconds == NEVER else self._shared.loop.call_later(delay_seconds, self._wake_up)
        try:
            await self._wake.wait()
        finally:
            if timer is not None:
                timer.cancel()
        self._wake.clear()

    def _wake_up(self) -> None:
        self._wake.set()

    def _list_changed(self) -> None:
        self._outdated = True
        self._wake.set()

    def _check_there(self) -> None:
        if self._lost is not None:
            raise self._lost

    # --- the list

    async def _read_list(self) -> bool:
        self._outdated = False
        try:
            info = await self._stored()
            try:
                changes = take_over(self._appends.ledgers, info)
            except BrokenMetadata as error:
                raise self._broken(error) from error
        except BaseException:
            self._outdated = True
            raise
        if self._has_properties:
            self._appends.properties = info.properties
        self._apply(changes, info)
        await self._tail.follow(current_of(info))
        if self._ahead[0] <= self._appends.ledgers.ids[-1]:
            self._tail.tell(self._ahead)
        return True

    async def _stored(self) -> LedgerInfo:
        node = await self._shared.store.get(self._path, watch=True)
        if node is None or self._made not in (0, node.stat.made):
            self._lost = ManagedLedgerNotFound(f"{self._appends.name} is gone")
            self._wake.set()
            raise self._lost
        self._made = node.stat.made
        try:
            info = decode_ledger_info(node.value)
        except BrokenMetadata as error:
            raise self._broken(error) from error
        if SHADOW_SOURCE_PROPERTY in info.properties:
            # What it lists are the ledgers of yet another one, or none.
            self._lost = ManagedLedgerIsShadow(self._path, info.properties[SHADOW_SOURCE_PROPERTY])
            raise self._lost
        return info

    def _broken(self, error: BrokenMetadata) -> BrokenMetadata:
        return BrokenMetadata(f"{self._path} cannot be understood: {error}")

    def _apply(self, changes: ListChanges, info: LedgerInfo) -> None:
        """The list has changed; tell of it."""
        for ledger_id in changes.counted:
            self._tail.counted(ledger_id)
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
        self._tail.advance()
        if terminated and self._cursors is not None:
            self._cursors.was_terminated()
