"""A managed ledger that another process writes: it is read, followed, and never changed from here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import ClassVar, Final

from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.ledger.api import LedgerListener, LedgerOptions, LedgerWriter
from magnetar.managed.ack_state import AckState
from magnetar.managed.append_path import AppendPath
from magnetar.managed.cursors.cursor import Cursor
from magnetar.managed.errors import CursorNotFound, ManagedLedgerReadOnly
from magnetar.managed.following.api import KeptCursor, TopicOwner
from magnetar.managed.following.follower import ManagedLedgerFollower
from magnetar.managed.following.following_ledger import FollowingLedger
from magnetar.managed.following.settings import FollowSettings
from magnetar.managed.info_node import InfoNode
from magnetar.managed.ledger_list import LedgerList
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.managed.shared import Shared
from magnetar.managed.states import ManagedLedgerState

logger: Final = logging.getLogger(__name__)

CLOSED_AT_ONCE: Final = 64
"""Cursors: enough to hide the round trips to the owner, few enough not to flood it."""

CLOSING_SECONDS_MAX: Final = 30.0
"""How long one that opens a cursor waits for the close of the former one of that name."""


class FollowedLedger(FollowingLedger):
    """Made by `ManagedLedgerFactory.follow`. Reading works as in any managed ledger; whatever would write raises
    `ManagedLedgerReadOnly`. Durable cursors are kept by the owner, and are open only while somebody uses them."""

    __slots__ = ("_closing", "_opening_cursors", "_owner")

    keeps_cursors: ClassVar[bool] = False

    def __init__(self, shared: Shared, appends: AppendPath, follower: ManagedLedgerFollower, owner: TopicOwner) -> None:
        super().__init__(shared, InfoNode(shared.store, appends.name, shared.delete_later), appends, follower)
        self._owner: TopicOwner = owner
        self._opening_cursors: dict[str, asyncio.Task[Cursor]] = {}
        self._closing: dict[str, asyncio.Event] = {}
        """Whoever waits for the close of a cursor, by its name."""

    @property
    def owner(self) -> TopicOwner:
        """The broker that writes it."""
        return self._owner

    # --- cursors

    async def open_cursor(
        self,
        name: str,
        initial: Position,
        properties: Mapping[str, int] | None = None,
        cursor_properties: Mapping[str, str] | None = None,
    ) -> Cursor:
        """The durable cursor of this name, as the owner keeps it. If there is none there, a new one that begins to read
        at `initial`, EARLIEST or LATEST; `properties` are those of the position, and are not kept.

        Raises what `TopicOwner.keep` raises, and `Unavailable` when its position cannot be reached here."""
        cursor = self.cursors.get(name)
        if cursor is not None and not cursor.closed:
            return cursor
        self._check_usable()
        task = self._opening_cursors.get(name)
        if task is None:
            opening = self._open_kept(name, initial, cursor_properties or {})
            task = self._opening_cursors[name] = self._shared.loop.create_task(opening)
            task.add_done_callback(lambda _: self._opening_cursors.pop(name, None))
        return await asyncio.shield(task)

    async def _open_kept(self, name: str, initial: Position, cursor_properties: Mapping[str, str]) -> Cursor:
        await self._closed_before(name)
        kept = await self.owner.keep(name, initial, cursor_properties)
        try:
            await self._follower.reach(max([kept.mark_delete, *(upper for _, upper in kept.acknowledged)]))
            self._check_usable()
        except BaseException:
            await kept.store(self._acks_of(kept)).abandon()
            raise
        acks = self._acks_of(kept)
        cursor = self._add_cursor(name, kept.store(acks))
        self._follower.cursors_changed()
        return cursor

    def _acks_of(self, kept: KeptCursor) -> AckState:
        acks = AckState(self.ledgers, self.ledgers.normalised_mark(kept.mark_delete))
        acks.load_ranges(kept.acknowledged)
        return acks

    async def _closed_before(self, name: str) -> None:
        """Until a former cursor of this name has given its subscription up. A deletion that began is finished."""
        former = self.cursors.get(name)
        if former is None:
            return
        if former.storage is not None and former.storage.deleting:
            await former.storage.delete()
            self.cursor_closed(former)
            return
        over = self._closing.setdefault(name, asyncio.Event())
        try:
            async with asyncio.timeout(CLOSING_SECONDS_MAX):
                await over.wait()
        except TimeoutError:
            logger.warning("%s: cursor %s has not closed within %d s", self.name, name, CLOSING_SECONDS_MAX)
            self.cursor_closed(former)

    async def delete_cursor(self, name: str) -> None:
        """Remove a durable cursor that is open here, and its subscription at the owner. `CursorNotFound`."""
        cursor = self.cursors.get(name)
        if cursor is None:
            self._check_usable()
            raise CursorNotFound(f"{name} of {self.name}")
        await cursor.delete_stored()
        self.cursor_closed(cursor)

    def cursor_closed(self, cursor: Cursor) -> None:
        """From the cursor: it is used no more."""
        if self.cursors.get(cursor.name) is cursor:
            del self.cursors[cursor.name]
            over = self._closing.pop(cursor.name, None)
            if over is not None:
                over.set()
        super().cursor_closed(cursor)

    # --- the end of it

    async def close(self) -> None:
        """Stop following, let go of cursors, whose positions the owner keeps, and of the owner. Raises nothing."""
        await self._end(with_cursors=self.state is not ManagedLedgerState.FENCED)

    async def abandon(self) -> None:
        """Stop at once, and store nothing more."""
        await self._end(with_cursors=False)

    async def _end(self, *, with_cursors: bool) -> None:
        if self.state is ManagedLedgerState.CLOSED:
            return
        self._shared.forget(self.name, self)
        self.appends.go(ManagedLedgerState.CLOSED)
        await self._follower.stop()
        for task in list(self._opening_cursors.values()):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        cursors = [*self.cursors.values(), *self._non_durable]
        for start in range(0, len(cursors), CLOSED_AT_ONCE):
            some = cursors[start : start + CLOSED_AT_ONCE]
            # Each of them may have something to tell the owner.
            await asyncio.gather(*(self._close_cursor(one) if with_cursors else one.abandon() for one in some))
        await self._let_go()
        try:
            await self.owner.close()
        except MagnetarError as error:
            logger.warning("%s: its owner is not closed: %r", self.name, error)

    # --- what a follower does not do

    async def check_writable(self) -> None:
        """Refuse, with `ManagedLedgerReadOnly`: the owner lets producers in."""
        raise ManagedLedgerReadOnly(self.name)

    async def check_owner(self) -> None:
        """Refuse, with `ManagedLedgerReadOnly`: nothing beside it may be changed either."""
        raise ManagedLedgerReadOnly(self.name)

    async def create_other(self, options: LedgerOptions, listener: LedgerListener) -> LedgerWriter:
        """Refuse, with `ManagedLedgerReadOnly`: the owner makes ledgers."""
        raise ManagedLedgerReadOnly(self.name)

    async def delete_others(self, ledger_ids: Iterable[int]) -> None:
        """Refuse, with `ManagedLedgerReadOnly`: the owner deletes ledgers."""
        raise ManagedLedgerReadOnly(self.name)

    async def set_properties(self, changes: Mapping[str, str | None]) -> None:
        """Refuse, with `ManagedLedgerReadOnly`: the owner stores properties."""
        raise ManagedLedgerReadOnly(self.name)

    def note_property(self, key: str, value: str) -> None:
        """Refuse, with `ManagedLedgerReadOnly`: the owner stores properties."""
        raise ManagedLedgerReadOnly(self.name)

    async def delete(self) -> None:
        """Refuse, with `ManagedLedgerReadOnly`: the owner deletes it."""
        raise ManagedLedgerReadOnly(self.name)


async def follow(
    shared: Shared, name: str, owner: TopicOwner, settings: ManagedLedgerSettings, following: FollowSettings | None
) -> FollowedLedger:
    """Follow a managed ledger, by default as `FollowSettings` has it. `ManagedLedgerNotFound`, `BrokenMetadata`,
    `Unavailable`; then the owner is still the caller's."""
    appends = AppendPath(shared, name, settings, LedgerList([]))
    appends.go(ManagedLedgerState.FOLLOWED)
    follower = ManagedLedgerFollower(shared, appends, owner, following or FollowSettings())
    await follower.load()
    ledger = FollowedLedger(shared, appends, follower, owner)
    follower.start(ledger)
    return ledger
