"""Follows the ledger that another process writes: looks at bookies, asks the owner, shows what is confirmed.

Its decisions are those of `tail.py`. What is shown is told as the append path of a writer tells it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from magnetar.core.errors import MagnetarError, Unavailable
from magnetar.core.ids import EARLIEST, NO_ENTRY, Position
from magnetar.ledger.api import LedgerNotFound, LedgerObserver, LedgerUnavailable
from magnetar.managed.append_path import AppendPath
from magnetar.managed.entry import Entry
from magnetar.managed.following.api import EndTeller
from magnetar.managed.following.settings import FollowSettings
from magnetar.managed.following.tail import NEVER, LedgerTail, TailStep
from magnetar.managed.following.trouble import Trouble
from magnetar.managed.shared import Shared

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


class TailFollower:
    """One ledger at a time. Its caller makes one call at a time."""

    def __init__(
        self,
        shared: Shared,
        appends: AppendPath,
        owner: EndTeller,
        settings: FollowSettings,
        wake: Callable[[], None],
        list_outdated: Callable[[], None],
    ) -> None:
        """`wake` is called when a `step` is due, `list_outdated` when the owner or the bookies know of a newer list."""
        self.owner: EndTeller = owner
        self.current: int | None = None
        """The ledger that is being written; None: there is none."""
        self._shared: Shared = shared
        self._appends: AppendPath = appends
        self._settings: FollowSettings = settings
        self._wake: Callable[[], None] = wake
        self._list_outdated: Callable[[], None] = list_outdated
        self._told: Position = EARLIEST
        """Up to where somebody says that entries are confirmed, without having been asked."""
        self._news: bool = False
        """Whether that was said since the last step."""
        self._observer: LedgerObserver | None = None
        self._tail: LedgerTail | None = None
        self._outdated: bool = False
        """Whether the ledger's own metadata may have changed."""
        self._paused: bool = True
        """Nobody has read for a while: bookies are asked how far it goes before the next look."""
        self._trouble: Trouble = Trouble(shared.loop, f"the end of {appends.name}", settings)
        self._refreshing: Trouble = Trouble(shared.loop, f"the last ledger's metadata of {appends.name}", settings)
        self._asking: asyncio.Task[None] | None = None

    async def follow(self, ledger_id: int | None) -> None:
        """This ledger is being written from now on."""
        if ledger_id != self.current:
            await self.let_go()
            self.current = ledger_id
            self._trouble.over()

    async def let_go(self) -> None:
        """Look at the ledger no more."""
        observer, self._observer = self._observer, None
        asking, self._asking = self._asking, None
        self._tail = None
        if asking is not None:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        if observer is not None:
            await observer.close()

    def tell(self, position: Position) -> None:
        """Somebody says that all up to this position are confirmed; the next step looks for them."""
        self._told = max(self._told, position)
        self._news = True

    def pause(self) -> None:
        """Nobody reads, so that no step is made until somebody does."""
        self._paused = True

    def counted(self, ledger_id: int) -> None:
        """The list says how many entries the ledger has, and holds that already."""
        tail = self._tail
        if tail is not None and tail.ledger_id == ledger_id:
            tail.end(self._appends.ledgers.entries_in(ledger_id) - 1)
            self._cache_seen(tail)

    def advance(self) -> None:
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

    def lag(self, *, list_known: bool) -> FollowerLag:
        """How far this is behind, given whether the list is known to be right."""
        tail, observer = self._tail, self._observer
        if tail is None or observer is None:
            return FollowerLag(0, 0, list_known and self.current is None)
        waiting = tail.waiting_entries
        since_ms = 0
        if waiting and tail.since_seconds < NEVER:
            since_ms = int((self._shared.loop.time() - tail.since_seconds) * 1000)
        looked = tail.ended or (not self._paused and tail.quiet_looks > 0 and observer.nothing_beyond)
        known = list_known and self._trouble.error is None and not self._outdated
        return FollowerLag(waiting, since_ms, known and looked and not waiting)

    async def step(self) -> float:
        """Do what is due; how long to wait for the next step unless something happens. Raises nothing."""
        pause_seconds = await self._trouble.attempt(self._step)
        return self._trouble.pause_seconds if pause_seconds is None else pause_seconds

    async def ask_bookies(self) -> None:
        """Show all that bookies vouch for, read or not. `LedgerNotFound`, `Unavailable`."""
        if self.current is None:
            return
        observer, tail = await self._opened()
        await observer.ask()
        self._take_confirmed(observer, tail)
        self._show(tail)
        self._show_unseen(observer, tail)

    async def show_up_to(self, position: Position) -> None:
        """The owner vouches for all up to this one: show it, read or not. `LedgerNotFound`, `Unavailable`."""
        if position[0] != self.current or position[1] < self._appends.ledgers.entries_in(position[0]):
            return
        observer, tail = await self._opened()
        tail.confirm(position[1])
        self._show(tail)
        self._show_unseen(observer, tail)

    async def owner_says(self) -> Position:
        """The last entry that the owner has confirmed. Raises what `TopicOwner.last_confirmed` raises."""
        try:
            async with asyncio.timeout(self._settings.ask_seconds_max):
                return await self.owner.last_confirmed()
        except TimeoutError as error:
            raise Unavailable(f"the owner of {self._appends.name} does not answer") from error

    # --- one step

    async def _opened(self) -> tuple[LedgerObserver, LedgerTail]:
        assert self.current is not None
        if self._observer is None or self._tail is None:
            password = self._appends.settings.password
            self._outdated = False
            observer = await self._shared.ledgers.observe(self.current, password=password, changed=self._changed)
            self._observer = observer
            tail = self._tail = LedgerTail(self.current, self._settings)
            tail.shown = tail.confirmed = self._appends.ledgers.entries_in(self.current) - 1
            self._take_confirmed(observer, tail)
        return self._observer, self._tail

    def _changed(self) -> None:
        self._outdated = True
        self._wake()

    async def _step(self) -> float:
        if self.current is None:
            return NEVER
        observer, tail = await self._opened()
        if self._outdated:
            await self._refreshing.attempt(self._refresh)
        if self._paused:
            await self.ask_bookies()
            self._paused = False
        now_seconds = self._shared.loop.time()
        if self._news and self._told[0] == tail.ledger_id:
            self._news = False
            tail.tell(self._told[1], now_seconds)
        self._show(tail)
        tail.use_notices(now_seconds, has_notices=self.owner.has_notices)
        step, pause_seconds = tail.next_step(now_seconds)
        if step is TailStep.ASK_OWNER:
            tail.asking(now_seconds)
            self._asking = self._shared.start(self._ask_owner(tail))
        elif step is TailStep.LOOK:
            await self._look(observer, tail)
        elif step is TailStep.ASK_BOOKIES:
            tail.asked_bookies(now_seconds)
            await self.ask_bookies()
        elif self._outdated:
            return min(pause_seconds, self._refreshing.pause_seconds)
        else:
            return pause_seconds
        return 0.0

    async def _refresh(self) -> bool:
        observer, tail = await self._opened()
        self._outdated = False
        try:
            await observer.refresh()
        except BaseException as error:
            self._outdated = True
            if isinstance(error, LedgerNotFound):
                self._list_outdated()  # Trimmed or deleted: the list says which.
            raise
        self._take_confirmed(observer, tail)
        return True

    async def _look(self, observer: LedgerObserver, tail: LedgerTail) -> None:
        observer.vouch(tail.confirmed)
        try:
            seen = await observer.look(tail.next_entry_id, self._settings.look_bytes_max, told=tail.is_sought)
        except LedgerUnavailable:
            self._show(tail)
            if not self._show_unseen(observer, tail):
                raise
            return
        tail.saw(seen.payloads, seen.length_bytes, self._shared.loop.time())
        self._take_confirmed(observer, tail)
        self._show(tail)
        if not seen.payloads:
            self._show_unseen(observer, tail)

    def _take_confirmed(self, observer: LedgerObserver, tail: LedgerTail) -> None:
        if observer.closed and not tail.ended:
            tail.end(observer.last_add_confirmed)
            self._show(tail)
            self._show_unseen(observer, tail)
        else:
            tail.confirm(observer.last_add_confirmed)

    async def _ask_owner(self, tail: LedgerTail) -> None:
        position: Position | None = None
        try:
            position = await self.owner_says()
        except MagnetarError as error:
            if not tail.owner_away:
                logger.warning("%s: its owner cannot be asked for its last entry: %r", self._appends.name, error)
        finally:
            now_seconds = self._shared.loop.time()
            if position is None:
                tail.not_answered(now_seconds)
            else:
                tail.answered(position[1] if position[0] == tail.ledger_id else NO_ENTRY, now_seconds)
                if position[0] > tail.ledger_id:
                    self._list_outdated()
            self._wake()

    # --- what is shown

    def _show(self, tail: LedgerTail) -> None:
        """Show what was seen and is confirmed."""
        length_bytes = self._cache_seen(tail)
        if length_bytes is not None:
            self._shown(tail, length_bytes)

    def _show_unseen(self, observer: LedgerObserver, tail: LedgerTail) -> bool:
        """Show what is confirmed and was not seen, if there is any: whoever wants it reads it."""
        if not tail.skip():
            return False
        self._shown(tail, max(observer.length_bytes, self._appends.ledgers.last().size_bytes))
        return True

    def _cache_seen(self, tail: LedgerTail) -> int | None:
        """One read from a bookie serves all cursors. The ledger's length up to the last entry; None: there is none."""
        shown = tail.take()
        if shown is None:
            return None
        ledger_id, first = tail.ledger_id, shown.first_entry_id
        if self._appends.cache_wanted and self._appends.ledgers.get(ledger_id) is not None:
            entries = [Entry(ledger_id, entry_id, data) for entry_id, data in enumerate(shown.payloads, first)]
            size_bytes = sum(map(len, shown.payloads))
            self._shared.cache.add(ledger_id, entries, size_bytes, self._shared.clock.monotonic_seconds())
        return shown.length_bytes

    def _shown(self, tail: LedgerTail, length_bytes: int) -> None:
        record = self._appends.ledgers.get(tail.ledger_id)
        if record is None or record.closed_ms:
            return  # The list knows better.
        record.entries = tail.shown + 1
        record.size_bytes = length_bytes
        self.advance()
