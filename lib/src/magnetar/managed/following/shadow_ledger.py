"""A managed ledger that shows the entries of another one, its source, to cursors of its own.

The ledgers are the source's: they are followed as a read-only broker follows them, and neither fenced nor deleted. What
is this one's own are its node, by whose version another owner is noticed, and its cursors with their ledgers.

Its node lists no ledgers, unlike the one that Apache's broker writes. That one puts what it finds there over what it
has just read of the source's node (Pulsar `ManagedLedgerImpl.initialize`, after `ShadowManagedLedgerImpl.initialize`),
so that an old list would bring trimmed ledgers back, and cut off the one that was in use when it was written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final

from magnetar.core.errors import MagnetarError, Unavailable
from magnetar.core.ids import Position
from magnetar.managed.append_path import AppendPath
from magnetar.managed.cursors.cursor import Cursor
from magnetar.managed.cursors.recovery import recover_cursor
from magnetar.managed.cursors.storage import CursorStorage
from magnetar.managed.errors import ManagedLedgerFenced, ManagedLedgerNotFound
from magnetar.managed.following.api import EndTeller
from magnetar.managed.following.follower import ManagedLedgerFollower
from magnetar.managed.following.following_ledger import FollowingLedger
from magnetar.managed.following.settings import FollowSettings
from magnetar.managed.info_codec import POSITION_IN_NODE, SHADOW_SOURCE_PROPERTY, LedgerInfo
from magnetar.managed.info_node import InfoNode
from magnetar.managed.ledger_list import LedgerList
from magnetar.managed.managed_ledger import CURSORS_LOADED_AT_ONCE
from magnetar.managed.paths import decode, ledger_path
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.managed.shared import Shared
from magnetar.managed.states import ManagedLedgerState

logger: Final = logging.getLogger(__name__)


class ShadowNode(InfoNode):
    """The node of a shadow. Whatever ledgers another broker has listed there are the source's: a write without an
    answer leaves none of them to be deleted."""

    __slots__ = ()

    async def load(self) -> LedgerInfo | None:
        """The stored record, or None when there is no such managed ledger. What it lists counts as if it did not."""
        info = await super().load()
        self._named = ()
        return info


class ShadowLedger(FollowingLedger):
    """Made by `ManagedLedgerFactory.open_shadow`."""

    __slots__ = ("_ended", "_owner")

    def __init__(
        self,
        shared: Shared,
        node: ShadowNode,
        appends: AppendPath,
        follower: ManagedLedgerFollower,
        source: str,
        owner: EndTeller,
    ) -> None:
        super().__init__(shared, node, appends, follower, source)
        self._owner: EndTeller = owner
        self._ended: bool = False
        appends.on_fenced = self._fenced

    def told(self, position: Position) -> None:
        """The source's owner has confirmed all up to this position. Never waits."""
        self._follower.told(position)

    def lost(self, error: MagnetarError) -> None:
        """It can be followed no more."""
        self.appends.on_fenced = None  # Who is told is told once.
        super().lost(error)

    def _fenced(self, error: ManagedLedgerFenced) -> None:
        """Somebody else has written a cursor, or the node: nobody here appends anything, and finds out by that."""
        if not self._ended:
            self.lost(error)

    # --- cursors

    async def open_cursor(
        self,
        name: str,
        initial: Position,
        properties: Mapping[str, int] | None = None,
        cursor_properties: Mapping[str, str] | None = None,
    ) -> Cursor:
        """The durable cursor of this name; if there is none, a new one that begins to read at `initial`. LATEST is
        behind the last entry that is shown: `catch_up` first."""
        cursor = await super().open_cursor(name, initial, properties, cursor_properties)
        self._follower.cursors_changed()
        return cursor

    async def load_cursors(self, names: Sequence[str]) -> None:
        """While opening: bring back the durable cursors of these names. What they have acknowledged was confirmed, also
        if bookies do not say so yet."""
        for start in range(0, len(names), CURSORS_LOADED_AT_ONCE):
            some = names[start : start + CURSORS_LOADED_AT_ONCE]
            recovering = (recover_cursor(self._shared, self.appends, name, reach=self._reach) for name in some)
            for name, state in zip(some, await asyncio.gather(*recovering), strict=True):
                if state is not None:
                    self._add_cursor(name, CursorStorage(self._shared, self.appends, name, state))

    async def _reach(self, position: Position) -> None:
        try:
            await self._follower.reach(position)
        except Unavailable as error:
            if position[0] <= self.ledgers.ids[-1]:
                raise
            # The list of the source never named it, or its owner has dropped it: the cursor stands at the end then.
            logger.warning(
                "%s: a cursor stands at %d:%d, which the source does not have: %s", self.name, *position, error
            )

    # --- its node

    async def set_properties(self, changes: Mapping[str, str | None]) -> None:
        """Set several properties, in one write. Whose shadow this is cannot be changed."""
        assert SHADOW_SOURCE_PROPERTY not in changes
        self._check_usable()
        async with self._node.lock:
            changed = {**self.properties, **changes}
            await self._write_node({key: value for key, value in changed.items() if value is not None})
            for key, value in changes.items():
                if value is None:
                    self.properties.pop(key, None)
                else:
                    self.properties[key] = value

    async def take(self) -> None:
        """While opening: be the owner from now on. `ManagedLedgerFenced`: another one was quicker."""
        async with self._node.lock:
            await self._write_node(self.properties)

    async def _write_node(self, properties: Mapping[str, str]) -> None:
        try:
            await self._node.write((), None, properties)
        except ManagedLedgerFenced as error:
            self.appends.fence(error)
            raise

    async def _write_info(self) -> None:
        """The ledgers are the source's."""
        await self._write_node(self.properties)

    # --- the end of it

    async def close(self) -> None:
        """Stop following, and persist the cursors. Raises nothing."""
        await self._follow_no_more()
        await super().close()

    async def abandon(self) -> None:
        """Stop at once and write nothing: another process may be the owner by now."""
        await self._follow_no_more()
        await super().abandon()

    async def delete(self) -> None:
        """Remove cursors and node; nothing of the source. `ManagedLedgerFenced`: nothing, as another owner has it."""
        self._shared.forget(self.name, self)
        storages = [cursor.storage for cursor in self.cursors.values()]
        doomed = {storage.ledger_id for storage in storages if storage is not None} - {POSITION_IN_NODE}
        try:
            await self._check_owner()
            for name in list(self.cursors):
                await self.delete_cursor(name)
            await self._follow_no_more()
            await self._close(with_cursors=False)
            async with self._node.lock:
                await self._node.delete()
        except Unavailable:
            self._shared.left_over(self.name, doomed)
            await self.abandon()  # Or it would be followed for ever, by whoever has it no more.
            raise

    async def _follow_no_more(self) -> None:
        if self._ended:
            return
        self._ended = True
        await self._follower.stop()
        try:
            await self._owner.close()
        except MagnetarError as error:
            logger.warning("%s: the owner of its source is not let go of: %r", self.name, error)


async def open_shadow(
    shared: Shared,
    name: str,
    source: str,
    owner: EndTeller,
    settings: ManagedLedgerSettings,
    following: FollowSettings,
    properties: Mapping[str, str],
) -> ShadowLedger:
    """Open a shadow of a managed ledger, made if it is not there; `properties` are stored beside those that it has.

    `ManagedLedgerNotFound`: there is no such source. `ManagedLedgerFenced`, `BrokenMetadata`, `Unavailable`. After an
    error the owner is still the caller's."""
    node = ShadowNode(shared.store, name, shared.delete_later)
    info = await node.load()
    appends = AppendPath(shared, name, settings, LedgerList([]))
    appends.go(ManagedLedgerState.FOLLOWED)
    appends.properties = {**({} if info is None else info.properties), **properties}
    follower = ManagedLedgerFollower(shared, appends, owner, following, source)
    try:
        await follower.load()
    except ManagedLedgerNotFound as error:
        raise ManagedLedgerNotFound(f"{name} is a shadow of {source}, which is not there") from error
    ledger = ShadowLedger(shared, node, appends, follower, source, owner)
    try:
        await ledger.take()
        cursors = await shared.store.children(ledger_path(name), watch=False)
        await ledger.load_cursors([decode(each) for each in cursors])
        await ledger.check_loaded_cursors()
    except BaseException:
        await ledger.abandon()  # It may have another owner: nothing of what it has loaded may be written.
        raise
    follower.start(ledger)
    return ledger
