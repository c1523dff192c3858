"""Deletes the ledgers of one managed ledger that nobody needs any more, from the oldest on."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Final, Protocol

from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.managed.append_path import AppendPath
from magnetar.managed.info_node import InfoNode
from magnetar.managed.ledger_list import LedgerRecord
from magnetar.managed.ledger_readers import LedgerReaders
from magnetar.managed.ledger_rollover import LedgerRollover
from magnetar.managed.offload.context import at_bookies
from magnetar.managed.offload.offloads import Offloads
from magnetar.managed.parts import ManagedLedgerParts
from magnetar.managed.shared import Shared
from magnetar.managed.states import ManagedLedgerState
from magnetar.managed.trimming.choice import ledgers_to_delete

logger: Final = logging.getLogger(__name__)


class Cursors(Protocol):
    """All cursors of a managed ledger."""

    def slowest_mark(self) -> Position | None:
        """Up to where no durable cursor needs anything; None: there is none."""
        ...

    def ledgers_removed(self) -> None:
        """Ledgers have left the list."""
        ...


class _NoCursors:
    """Of a managed ledger that is let go of."""

    def slowest_mark(self) -> Position | None:
        return None

    def ledgers_removed(self) -> None:
        """Nobody is there to be told."""


_NO_CURSORS: Final = _NoCursors()


class Trimming:
    """When to trim, and the trim itself; one per managed ledger."""

    __slots__ = ("_appends", "_cursors", "_node", "_offloads", "_readers", "_rollover", "_shared", "_task")

    def __init__(self, parts: ManagedLedgerParts, offloads: Offloads, cursors: Cursors) -> None:
        self._shared: Shared = parts.shared
        self._node: InfoNode = parts.node
        self._appends: AppendPath = parts.appends
        self._rollover: LedgerRollover = parts.rollover
        self._readers: LedgerReaders = parts.readers
        self._offloads: Offloads = offloads
        self._cursors: Cursors = cursors
        self._task: asyncio.Task[None] | None = None

    def later(self) -> None:
        """Trim in the background if there is something to delete."""
        if self._task is None and self.due:
            self._task = self._shared.start(self._in_background())

    def let_go(self) -> None:
        """Closed or fenced, and so for good: what tells of cursors refers to them."""
        self._cursors = _NO_CURSORS

    async def wait(self) -> None:
        """Until the trim that runs in the background is over."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    async def run(self, *, retain: bool = True) -> bool:
        """Delete the oldest ledgers as far as cursors and (unless told not to) retention allow. Whether there were any.

        What is in tiered storage is remembered with the very write that names the ledgers no more, and then deleted."""
        try:
            if self._allowed():
                await self._offloads.end(self._trimmable(retain=retain))
            removed = await self._remove(retain=retain)
        finally:
            self._offloads.ended()
        for record in removed:
            await self._readers.forget(record.ledger_id)
            if at_bookies(record):
                await self._shared.delete_ledger(record.ledger_id)
            else:
                self._shared.cache.remove_ledger(record.ledger_id)
        if removed:
            self._offloads.later()
        return bool(removed)

    async def _remove(self, *, retain: bool) -> list[LedgerRecord]:
        ledgers = self._appends.ledgers
        async with self._node.lock:
            chosen = set(self._trimmable(retain=retain)) if self._allowed() else set()
            removed = self._offloads.removable(each for each in ledgers.records() if each.ledger_id in chosen)
            if not removed:
                return []
            gone = {record.ledger_id for record in removed}
            kept = [each for each in ledgers.records() if each.ledger_id not in gone]
            await self._rollover.write_list(kept, self._offloads.owed_for(removed))
            ledgers.remove(gone)
            self._cursors.ledgers_removed()
            return removed

    @property
    def due(self) -> bool:
        """Whether there is something to delete, or to store about when it may be deleted."""
        return self._allowed() and (self._due_times_unstored() or bool(self._trimmable()))

    @property
    def unstored_at_the_end(self) -> bool:
        """Whether a due time would be forgotten if nothing were written any more."""
        last_due = self._due_times_count() and self._appends.ledgers.last().due_ms > 0
        return self._due_times_unstored() or last_due

    async def _in_background(self) -> None:
        again = False
        try:
            if self._due_times_unstored():
                await self._store_due_times()
            # What cannot leave the list now stays due, and waits until somebody looks again.
            again = await self.run() or self._due_times_unstored()
        except MagnetarError as error:
            logger.warning("%s: not trimmed: %r", self._appends.name, error)
        finally:
            self._task = None
        if again:
            self.later()  # What was acknowledged meanwhile does not wait so long.

    def _trimmable(self, *, retain: bool = True) -> list[int]:
        ledgers = self._appends.ledgers
        if len(ledgers) < 2:
            return []  # As nearly all topics, which need not ask their cursors then.
        settings = self._appends.settings
        if not retain:
            settings = replace(settings, retention_time_ms=0, retention_size_bytes=0)
        slowest = self._cursors.slowest_mark()
        return ledgers_to_delete(ledgers.records(), slowest, settings, self._shared.clock.now_ms())

    def _due_times_count(self) -> bool:
        return self._appends.settings.retention_time_ms > 0

    def _due_times_unstored(self) -> bool:
        return self._appends.ledgers.due_unstored and self._due_times_count()

    async def _store_due_times(self) -> None:
        """Or the next owner would count retention from when the ledgers were closed."""
        ledgers = self._appends.ledgers
        async with self._node.lock:
            if not self._allowed():
                return
            ledgers.due_unstored = False  # What is noted from here on may come too late for this write.
            try:
                await self._rollover.write_list(ledgers.records())
            except BaseException:
                ledgers.due_unstored = True
                raise

    def _allowed(self) -> bool:
        return self._appends.state not in (ManagedLedgerState.FENCED, ManagedLedgerState.CLOSED)
