"""Mistakes in managed ledgers and cursors: takeovers, lists of ledgers, receipts of acknowledgements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from magnetar.core.ids import Position
from magnetar.managed.append_path import AppendPath
from magnetar.managed.cursors import recovery as cursor_recovery
from magnetar.managed.cursors.storage import CursorStorage
from magnetar.managed.factory import ManagedLedgerFactory
from magnetar.managed.info_codec import POSITION_IN_NODE, LedgerInfo, decode_position
from magnetar.managed.info_node import InfoNode
from magnetar.managed.ledger_list import LedgerRecord
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.managed.shared import Shared
from magnetar.managed.trimming import trimming
from magnetar.managed.trimming.choice import ledgers_to_delete
from magnetar.metadata.store import ANY_VERSION
from magnetar.wire.pulsar.generated.ml_data_formats_pb2 import PositionInfo

from e2e.simulation.planting import Mistake, Patch, original


def receipt_at_once() -> list[Patch]:
    """A receipt is given when the write begins."""
    right = original(CursorStorage, "_write")

    def write(self: CursorStorage) -> None:
        told, self._waiting = self._waiting or [], []
        right(self)
        for done in told:
            done(None)

    return [(CursorStorage, "_write", write)]


def receipt_after_failure() -> list[Patch]:
    """A receipt is given although the write has failed."""
    right = original(CursorStorage, "_finished")

    def finished(self: CursorStorage, error: Any) -> None:
        told, self._in_flight = self._in_flight or [], None
        right(self, error)
        for done in told:
            done(None)

    return [(CursorStorage, "_finished", finished)]


def waiting_share_the_write_before() -> list[Patch]:
    """Who asks for a receipt while a write is under way is told when that one ends."""
    right = CursorStorage.persist

    def persist(self: CursorStorage, done: Any) -> None:
        if self._busy and self._in_flight is not None:
            self._in_flight.append(done)
        else:
            right(self, done)

    return [(CursorStorage, "persist", persist)]


def blind_cursor_node() -> list[Patch]:
    """A cursor's node is written without compare-and-set."""
    right = original(CursorStorage, "_put_node")

    async def put_node(self: CursorStorage, cursor_ledger_id: int | None, *, closing: bool = False) -> None:
        self.node._version = ANY_VERSION  # type: ignore[assignment]  # noqa: SLF001 - a mistake is no friend
        await right(self, cursor_ledger_id, closing=closing)

    return [(CursorStorage, "_put_node", put_node)]


def cursor_ledger_deleted_first() -> list[Patch]:
    """The ledger that a cursor's node names is deleted before the node names the next one."""
    right = original(CursorStorage, "_put_node")

    async def put_node(self: CursorStorage, cursor_ledger_id: int | None, *, closing: bool = False) -> None:
        if cursor_ledger_id is not None and self.ledger_id not in (-1, cursor_ledger_id):
            await self._shared.delete_ledger(self.ledger_id)
        await right(self, cursor_ledger_id, closing=closing)

    return [(CursorStorage, "_put_node", put_node)]


def node_before_the_state() -> list[Patch]:
    """A cursor's node names a new ledger before the state is in it."""
    right = original(CursorStorage, "_snapshot")

    def snapshot(self: CursorStorage) -> bytes:
        state: bytes = right(self)
        upcoming = self._next
        if upcoming is not None and upcoming.writer.last_add_pushed < 0:
            self._shared.start(self._put_node(upcoming.writer.ledger_id))
        return state

    async def once(self: CursorStorage, cursor_ledger_id: int | None, *, closing: bool = False) -> None:
        if self.ledger_id != cursor_ledger_id:
            self.ledger_id = self.ledger_id if cursor_ledger_id is None else cursor_ledger_id
            await put_node(self, cursor_ledger_id, closing=closing)

    put_node = original(CursorStorage, "_put_node")
    return [(CursorStorage, "_snapshot", snapshot), (CursorStorage, "_put_node", once)]


def cursor_from_its_first_entry() -> list[Patch]:
    """A takeover takes the cursor's state from the first entry of its ledger."""

    async def position(shared: Shared, appends: AppendPath, _name: str, ledger_id: int) -> PositionInfo | None:
        if ledger_id == POSITION_IN_NODE:
            return None
        reader = await shared.ledgers.open(ledger_id, password=appends.settings.password, recover=True)
        return decode_position((await reader.read(0, 0))[0]) if reader.last_add_confirmed >= 0 else None

    return [(cursor_recovery, "_stored_position", position)]


def cursor_ledger_not_fenced() -> list[Patch]:
    """A takeover looks into the cursor's ledger without fencing its writer."""

    async def position(shared: Shared, appends: AppendPath, _name: str, ledger_id: int) -> PositionInfo | None:
        if ledger_id == POSITION_IN_NODE:
            return None
        reader = await shared.ledgers.open(ledger_id, password=appends.settings.password, recover=False)
        last = reader.last_add_confirmed
        return decode_position((await reader.read(last, last))[0]) if last >= 0 else None

    return [(cursor_recovery, "_stored_position", position)]


def takeover_without_recovery() -> list[Patch]:
    """A new owner looks into the last ledger without fencing its writer."""

    async def recover_last(self: ManagedLedgerFactory, info: LedgerInfo, settings: ManagedLedgerSettings) -> None:
        if info.records:
            last = info.records[-1]
            reader = await self._shared.ledgers.open(last.ledger_id, password=settings.password, recover=False)
            last.entries, last.size_bytes = reader.last_add_confirmed + 1, reader.length_bytes
            last.closed_ms = self._shared.clock.now_ms()

    return [(ManagedLedgerFactory, "_recover_last", recover_last)]


def blind_list() -> list[Patch]:
    """The list of ledgers is written without compare-and-set."""
    right = InfoNode.write

    async def write(
        self: InfoNode, records: Sequence[LedgerRecord], terminated_at: Position | None, properties: Any
    ) -> None:
        self._node._version = ANY_VERSION  # type: ignore[assignment]  # noqa: SLF001 - a mistake is no friend
        await right(self, records, terminated_at, properties)

    return [(InfoNode, "write", write)]


def unlisted_ledger() -> list[Patch]:
    """Entries go to a new ledger that the list does not name yet."""
    right = InfoNode.write

    async def write(
        self: InfoNode, records: Sequence[LedgerRecord], terminated_at: Position | None, properties: Any
    ) -> None:
        named = list(records)
        await right(self, named[:-1] if len(named) > 1 and not named[-1].entries else named, terminated_at, properties)

    return [(InfoNode, "write", write)]


def trims_for_nobody() -> list[Patch]:
    """Ledgers are deleted whatever the cursor has acknowledged."""

    def trim(records: Any, slowest_mark: Position | None, settings: ManagedLedgerSettings, now_ms: int) -> list[int]:
        return ledgers_to_delete(records, None, settings, now_ms)

    return [(trimming, "ledgers_to_delete", trim)]


def confirmed_when_sent() -> list[Patch]:
    """An append is told to be stored when the ledger has taken it to send it."""
    right = original(AppendPath, "_send")

    def send(self: AppendPath, batch: Any) -> None:
        right(self, batch)
        if batch.first_entry_id >= 0 and self._writer is not None:
            self._shared.loop.call_soon(self.confirmed, self._writer.ledger_id, self._writer.last_add_pushed)

    return [(AppendPath, "_send", send)]


TOPIC_MISTAKES: Final[dict[str, Mistake]] = {
    "blind-cursor-node": blind_cursor_node,
    "blind-list": blind_list,
    "confirmed-when-sent": confirmed_when_sent,
    "cursor-from-its-first-entry": cursor_from_its_first_entry,
    "cursor-ledger-deleted-first": cursor_ledger_deleted_first,
    "cursor-ledger-not-fenced": cursor_ledger_not_fenced,
    "node-before-the-state": node_before_the_state,
    "receipt-after-failure": receipt_after_failure,
    "receipt-at-once": receipt_at_once,
    "takeover-without-recovery": takeover_without_recovery,
    "trims-for-nobody": trims_for_nobody,
    "unlisted-ledger": unlisted_ledger,
    "waiting-share-the-write-before": waiting_share_the_write_before,
}
