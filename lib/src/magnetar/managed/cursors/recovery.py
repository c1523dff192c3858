"""Recovery of a durable cursor's state: from its node, and from the last entry of the ledger that the node names."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from magnetar.core.ids import EARLIEST, Position
from magnetar.ledger.api import EntryNotFound, EntryUnreadable, LedgerNotFound, LedgerUnavailable, NotEnoughBookies
from magnetar.managed.ack_state import AckState
from magnetar.managed.append_path import AppendPath
from magnetar.managed.errors import ManagedLedgerFenced
from magnetar.managed.info_codec import (
    POSITION_IN_NODE,
    BrokenMetadata,
    decode_cursor_info,
    decode_position,
    last_acknowledged,
    restore_acks,
)
from magnetar.managed.ledger_list import LedgerList
from magnetar.managed.owned_node import NodeTaken, OwnedNode
from magnetar.managed.shared import Shared
from magnetar.metadata.store import Node
from magnetar.wire.pulsar.generated.ml_data_formats_pb2 import ManagedCursorInfo, PositionInfo

logger: Final = logging.getLogger(__name__)

ATTEMPTS_MAX: Final = 5
"""How often a cursor is read again because a former owner, still at work, has given it another ledger meanwhile."""

LOST: Final = (LedgerNotFound, EntryNotFound, BrokenMetadata)
"""The metadata store has no such ledger, every bookie denies the entry, or it makes no sense: it will not come back."""


@dataclass(slots=True)
class RecoveredCursor:
    """The state of a cursor, as it was stored."""

    acks: AckState
    properties: dict[str, int]
    cursor_properties: dict[str, str]
    node: OwnedNode
    cursor_ledger_id: int


def new_cursor_state(
    ledgers: LedgerList,
    mark: Position,
    properties: dict[str, int],
    cursor_properties: dict[str, str],
    node: OwnedNode,
) -> RecoveredCursor:
    """The state of a cursor that is not stored yet."""
    return RecoveredCursor(AckState(ledgers, mark), properties, cursor_properties, node, POSITION_IN_NODE)


async def recover_cursor(
    shared: Shared,
    appends: AppendPath,
    name: str,
    owned: OwnedNode | None = None,
    reach: Callable[[Position], Awaitable[None]] | None = None,
) -> RecoveredCursor | None:
    """Read a cursor's node, and the last entry of its ledger if it has one; None when there is no such cursor.

    A ledger that is lost for certain leaves the position of the node (Pulsar does the same). One that cannot be read
    now does so by force only (the setting), else `LedgerUnavailable`: try again. `owned` is the node of a cursor that
    this process had open before: `ManagedLedgerFenced` when somebody else has changed it. `reach` is told the last
    position that it has acknowledged, before it counts by the list of ledgers."""
    known = owned is not None
    if owned is None:
        owned = OwnedNode(shared.store, appends.name, name)
    for _ in range(ATTEMPTS_MAX):
        node = await (_look(appends, owned) if known else owned.load())
        if node is None:
            return None
        info = decode_cursor_info(node.value)
        try:
            position = await _stored_position(shared, appends, name, info.cursorsLedgerId)
        except LOST as error:
            again = await shared.store.get(owned.path, watch=False)
            if again is None or again.stat.version != node.stat.version:
                continue
            logger.warning("%s: the ledger of cursor %s is lost: %r", appends.name, name, error)
            position = None
        if reach is not None:
            await reach(last_acknowledged(info if position is None else position))
        return _restored(appends, owned, info, position)
    raise LedgerUnavailable(f"cursor {name} of {appends.name} changed under {ATTEMPTS_MAX} attempts to read it")


async def _look(appends: AppendPath, owned: OwnedNode) -> Node | None:
    try:
        return await owned.look()
    except NodeTaken as taken:
        fenced = ManagedLedgerFenced(str(taken))
        appends.fence(fenced)
        raise fenced from taken


async def _stored_position(shared: Shared, appends: AppendPath, name: str, ledger_id: int) -> PositionInfo | None:
    """The last entry of the cursor's ledger; None without a ledger or an entry. Raises one of `LOST`, `Unavailable`."""
    if ledger_id == POSITION_IN_NODE:
        return None
    try:
        reader = await shared.ledgers.open(ledger_id, password=appends.settings.password, recover=True)
        try:
            last = reader.last_add_confirmed
            return decode_position((await reader.read(last, last))[0]) if last >= 0 else None
        finally:
            await reader.close()
    except (LedgerUnavailable, NotEnoughBookies) as error:
        if appends.settings.cursors_recovered_by_force:
            raise EntryNotFound(f"managedLedgerForceRecovery gives up what cannot be read now: {error}") from error
        if isinstance(error, NotEnoughBookies):
            raise
        if isinstance(error, EntryUnreadable) and appends.settings.skip_lost_data:
            raise EntryNotFound(f"the position is damaged on every bookie: {error}") from error
        raise LedgerUnavailable(
            f"ledger {ledger_id} of cursor {name} of {appends.name} cannot be read now: {error}"
        ) from error


def _restored(
    appends: AppendPath, owned: OwnedNode, info: ManagedCursorInfo, position: PositionInfo | None
) -> RecoveredCursor:
    stored: PositionInfo | ManagedCursorInfo = info
    mark = (info.markDeleteLedgerId, info.markDeleteEntryId) if info.HasField("markDeleteLedgerId") else EARLIEST
    if position is not None:
        stored = position
        mark = (position.ledgerId, position.entryId)
    acks = AckState(appends.ledgers, appends.ledgers.normalised_mark(mark))
    restore_acks(acks, stored)
    return RecoveredCursor(
        acks,
        {each.name: each.value for each in stored.properties},
        {each.name: each.value for each in info.cursorProperties},
        owned,
        info.cursorsLedgerId,
    )
