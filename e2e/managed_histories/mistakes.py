"""Known mistakes, planted in the real code for a run: the histories must find each of them.

Each is a patch of methods or functions of modules that are never compiled, undone afterwards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Any, Final

from magnetar.broker.topics.deduplication import Deduplication
from magnetar.core.ids import Position
from magnetar.ledger.api import LedgerNotFound, LedgerUnavailable
from magnetar.managed import managed_ledger
from magnetar.managed.cursors import recovery as cursor_recovery
from magnetar.managed.cursors.opening import CursorOpening
from magnetar.managed.cursors.storage import CursorStorage
from magnetar.managed.factory import ManagedLedgerFactory
from magnetar.managed.info_codec import POSITION_IN_NODE, LedgerInfo
from magnetar.managed.info_node import InfoNode
from magnetar.managed.owned_node import OwnedNode
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.metadata.store import NodeNotFound

from e2e.managed_histories.mistakes_of_tiered import TIERED_MISTAKES
from e2e.simulation.planting import Mistake, Patch


def ledger_in_doubt_deleted() -> list[Patch]:
    """A write of a cursor's node without an answer counts as failed: the new ledger goes."""

    async def give_up(self: CursorStorage) -> None:
        upcoming, self._next = self._next, None
        if upcoming is not None:
            await self._shared.delete_ledger(upcoming.writer.ledger_id)

    return [(CursorStorage, "_give_up_next", give_up)]


def old_ledger_deleted_first() -> list[Patch]:
    """A cursor's old ledger is deleted before the node names the new one."""
    right = CursorStorage.__dict__["_put_node"]

    async def put(self: CursorStorage, cursor_ledger_id: int | None, *, closing: bool = False) -> None:
        if cursor_ledger_id not in (None, self.ledger_id) and self.ledger_id != POSITION_IN_NODE:
            await self._shared.delete_ledger(self.ledger_id)
        await right(self, cursor_ledger_id, closing=closing)

    return [(CursorStorage, "_put_node", put)]


def fall_back_without_bookies() -> list[Patch]:
    """A moment without bookies makes a cursor fall back to the position of its node."""
    right = cursor_recovery.__dict__["_stored_position"]

    async def stored(*arguments: Any) -> Any:
        try:
            return await right(*arguments)
        except LedgerUnavailable as error:
            raise LedgerNotFound(str(error)) from error

    return [(cursor_recovery, "_stored_position", stored)]


def last_unsure_write_only() -> list[Patch]:
    """Of several writes without an answer only the last one is known as one's own."""

    async def put(self: OwnedNode, value: bytes) -> None:
        self._unsure = None
        await right(self, value)

    right = OwnedNode.__dict__["_put"]
    return [(OwnedNode, "_put", put)]


def no_compare_and_set() -> list[Patch]:
    """Whoever writes a node last is right."""

    async def put(self: OwnedNode, value: bytes, named: Collection[int]) -> list[int]:
        del named
        self._settled((await self._store.put(self.path, value)).version)
        return []

    async def delete(self: OwnedNode) -> list[int]:
        with contextlib.suppress(NodeNotFound):
            await self._store.delete(self.path)
        self._settled(-1)
        return []

    return [(OwnedNode, "put", put), (OwnedNode, "delete", delete)]


def forgotten_creation() -> list[Patch]:
    """Who comes again after a creation of a cursor without an answer finds another owner's node."""
    return [(CursorOpening, "_remember", lambda self, name, node: None)]


def ledgers_in_doubt_kept() -> list[Patch]:
    """What only a write without an answer named is never deleted, and nobody tells."""
    return [
        (InfoNode, "_tell", lambda self, unnamed: None),
        (OwnedNode, "ledgers_in_doubt", property(lambda self: frozenset())),
    ]


def takeover_without_fence() -> list[Patch]:
    """The next owner looks at the last ledger, and lets the former one write on."""

    async def look(self: ManagedLedgerFactory, info: LedgerInfo, settings: ManagedLedgerSettings) -> None:
        if info.records:
            last = info.records[-1]
            reader = await self._shared.ledgers.open(last.ledger_id, password=settings.password, recover=False)
            last.entries, last.closed_ms = reader.last_add_confirmed + 1, self._shared.clock.now_ms()

    return [(ManagedLedgerFactory, "_recover_last", look)]


def trim_of_the_fastest() -> list[Patch]:
    """Trimming follows whoever has acknowledged most."""

    def fastest(self: managed_ledger.ManagedLedger) -> Position | None:
        return max((cursor.mark_delete for cursor in self.cursors.values()), default=None)

    return [(managed_ledger.ManagedLedger, "slowest_mark", fastest)]


def snapshot_of_what_was_taken() -> list[Patch]:
    """A deduplication snapshot holds what was taken, and not what is stored."""
    right = Deduplication.snapshot

    def snapshot(self: Deduplication, position: Position) -> None:
        stored, self.stored = self.stored, self.pushed
        right(self, position)
        self.stored = stored

    return [(Deduplication, "snapshot", snapshot)]


def no_replay() -> list[Patch]:
    """What was stored after the last snapshot is not read again when the topic is opened."""

    async def replay(self: Deduplication) -> None:
        return None

    return [(Deduplication, "replay", replay)]


def failed_counts_as_taken() -> list[Patch]:
    """What could not be stored is still taken for being on its way."""
    return [(Deduplication, "append_failed", lambda self: None)]


MISTAKES: Final[dict[str, Mistake]] = {
    **TIERED_MISTAKES,
    "failed-counts-as-taken": failed_counts_as_taken,
    "fall-back-without-bookies": fall_back_without_bookies,
    "forgotten-creation": forgotten_creation,
    "last-unsure-write-only": last_unsure_write_only,
    "ledger-in-doubt-deleted": ledger_in_doubt_deleted,
    "ledgers-in-doubt-kept": ledgers_in_doubt_kept,
    "no-compare-and-set": no_compare_and_set,
    "no-replay": no_replay,
    "old-ledger-deleted-first": old_ledger_deleted_first,
    "snapshot-of-what-was-taken": snapshot_of_what_was_taken,
    "takeover-without-fence": takeover_without_fence,
    "trim-of-the-fastest": trim_of_the_fastest,
}
