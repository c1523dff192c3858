"""A managed ledger whose entries another process writes, or another managed ledger of this one: what is read of it is
followed, and never changed from here."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.managed.append_path import AppendPath
from magnetar.managed.cursors.cursor import Cursor
from magnetar.managed.errors import ManagedLedgerFenced, ManagedLedgerReadOnly
from magnetar.managed.following.copies import FollowedCopies
from magnetar.managed.following.follower import ManagedLedgerFollower
from magnetar.managed.following.list_changes import NO_LEDGER
from magnetar.managed.following.no_offloads import NoOffloads
from magnetar.managed.following.tail_follower import FollowerLag
from magnetar.managed.info_node import InfoNode
from magnetar.managed.ledger_rollover import LedgerRollover
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.managed.parts import ManagedLedgerParts
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.managed.shared import Shared
from magnetar.managed.stats import ManagedLedgerStats

logger: Final = logging.getLogger(__name__)


class FollowingLedger(ManagedLedger):
    """Reading works as in any managed ledger; whatever would write entries or ledgers raises `ManagedLedgerReadOnly`.
    Where its cursors are kept its subclasses say."""

    __slots__ = ("_follower", "on_lost", "on_terminated")

    def __init__(
        self,
        shared: Shared,
        node: InfoNode,
        appends: AppendPath,
        follower: ManagedLedgerFollower,
        source: str | None = None,
    ) -> None:
        """`source` is whose ledgers these are, if they are another's."""
        copies = FollowedCopies(shared, appends, follower.reload, source)
        rollover = LedgerRollover(shared, node, appends)
        super().__init__(shared, node, appends, rollover, copies)
        self.offloads = NoOffloads(ManagedLedgerParts(shared, node, appends, rollover, self.readers), copies)
        self._follower: ManagedLedgerFollower = follower
        self.on_lost: Callable[[MagnetarError], None] | None = None
        """Told once that this can be followed no more: its node is gone, as a rule. It is to be closed then."""
        self.on_terminated: Callable[[], None] | None = None
        """Told once that the writer has terminated it, after all of it is shown."""

    @property
    def terminated(self) -> bool:
        """Whether no entry will ever be added."""
        return self.appends.terminated_at is not None

    @property
    def lag(self) -> FollowerLag:
        """How far this is behind the writer, as far as it knows."""
        return self._follower.lag

    async def catch_up(self) -> bool:
        """Until everything is shown that was confirmed when this was called; see `ManagedLedger.catch_up`."""
        self._check_usable()
        return await self._follower.catch_up()

    async def confirmed_at_least(self, position: Position) -> None:
        """The owner vouches for all up to this position: until it is shown, or is not of this list any more.

        `Unavailable`: it cannot be reached now."""
        await self._follower.reach(position)

    def new_non_durable_cursor(self, name: str, start: Position) -> Cursor:
        """A cursor in memory only; `start` is what it reads first. LATEST is behind the last entry that is shown:
        `catch_up` first."""
        cursor = super().new_non_durable_cursor(name, start)
        self._follower.cursors_changed()
        return cursor

    def cursor_closed(self, cursor: Cursor) -> None:
        """From the cursor: it is used no more."""
        super().cursor_closed(cursor)
        self._follower.cursors_changed()

    def internal_stats(self, *, with_cursors: bool = True) -> ManagedLedgerStats:
        """Statistics for administrators. `with_cursors=False` is for callers that ask the cursors one by one."""
        stats = super().internal_stats(with_cursors=with_cursors)
        return replace(stats, ledgers=[each for each in stats.ledgers if each.ledger_id != NO_LEDGER])

    # --- from the follower

    def forget_readers(self, ledger_id: int) -> None:
        """The ledger is gone, or is to be read from another copy."""
        self._shared.start(self.readers.forget(ledger_id))

    def lost(self, error: MagnetarError) -> None:
        """It can be followed no more."""
        logger.warning("%s is lost: %s", self.name, error)
        self.appends.fence(ManagedLedgerFenced(str(error)))
        self._shared.forget(self.name, self)
        if self.on_lost is not None:
            self.on_lost(error)

    def was_terminated(self) -> None:
        """The writer has terminated it."""
        if self.on_terminated is not None:
            self.on_terminated()

    # --- what a follower does not do

    def use(self, settings: ManagedLedgerSettings) -> None:
        """Another policy holds from now on, as far as it concerns reading."""
        self.settings = settings

    async def roll(self) -> None:
        """Refuse, with `ManagedLedgerReadOnly`: the owner goes on to other ledgers."""
        raise ManagedLedgerReadOnly(self.name)

    async def terminate(self) -> Position:
        """Refuse, with `ManagedLedgerReadOnly`: the owner terminates."""
        raise ManagedLedgerReadOnly(self.name)

    async def truncate(self, clearing: Callable[[Cursor], None] = lambda _: None) -> None:
        """Refuse, with `ManagedLedgerReadOnly`: the owner deletes ledgers."""
        raise ManagedLedgerReadOnly(self.name)

    async def trim(self, *, retain: bool = True) -> None:
        """Refuse, with `ManagedLedgerReadOnly`: the owner trims."""
        raise ManagedLedgerReadOnly(self.name)

    def trim_later(self) -> None:
        """The owner trims."""

    async def trim_if_due(self) -> None:
        """The owner trims."""

    @property
    def due_for_trimming(self) -> bool:
        """The owner trims."""
        return False

    async def roll_if_due(self) -> None:
        """The owner goes on to other ledgers."""

    @property
    def due_for_rollover(self) -> bool:
        """The owner goes on to other ledgers."""
        return False
