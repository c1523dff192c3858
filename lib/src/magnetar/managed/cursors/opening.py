"""How a managed ledger comes by the storage of a durable cursor that is not open: made anew, or opened again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from magnetar.core.ids import Position
from magnetar.managed.append_path import AppendPath
from magnetar.managed.cursors.recovery import new_cursor_state, recover_cursor
from magnetar.managed.cursors.storage import CursorStorage
from magnetar.managed.info_codec import POSITION_IN_NODE
from magnetar.managed.owned_node import OwnedNode
from magnetar.managed.shared import Shared

UNSURE_CREATIONS_MAX: Final = 1_000
"""Creations remembered in one managed ledger. Who comes back to the oldest one after so many others hears that it has
another owner."""


class CursorOpening:
    """Opens the cursors of one managed ledger. Its owner calls one method at a time."""

    __slots__ = ("_appends", "_creations", "_shared")

    def __init__(self, shared: Shared, appends: AppendPath) -> None:
        self._shared: Shared = shared
        self._appends: AppendPath = appends
        self._creations: dict[str, OwnedNode] | None = None
        """Nodes of cursors whose creation had no answer."""

    async def create(
        self, name: str, mark: Position, properties: Mapping[str, int], cursor_properties: Mapping[str, str]
    ) -> CursorStorage:
        """Write the node of a new cursor. `ManagedLedgerFenced` when somebody else has made it; after any other error
        it may be there or not, and whoever tries again finds it or makes it."""
        creations = self._creations
        node = creations.pop(name, None) if creations is not None else None
        if node is None:
            node = OwnedNode(self._shared.store, self._appends.name, name)
        state = new_cursor_state(self._appends.ledgers, mark, dict(properties), dict(cursor_properties), node)
        storage = CursorStorage(self._shared, self._appends, name, state)
        try:
            await storage.create_node()
        except BaseException:
            if node.unsure:
                self._remember(name, node)
            raise
        return storage

    async def open_again(self, closed: CursorStorage) -> CursorStorage | None:
        """Open a cursor that was closed. A deletion that began before is finished first, as nobody knows how far it
        came; then the answer is None, as for one that is not there."""
        if closed.deleting:
            await closed.delete()
            return None
        recovered = await recover_cursor(self._shared, self._appends, closed.name, closed.node)
        if recovered is None:
            return None
        if closed.ledger_id not in (POSITION_IN_NODE, recovered.cursor_ledger_id):
            recovered.node.doubt([closed.ledger_id])  # Its last write had no answer, but was done.
        return CursorStorage(self._shared, self._appends, closed.name, recovered)

    def unsure(self, name: str) -> bool:
        """Whether a creation of this cursor had no answer."""
        return self._creations is not None and name in self._creations

    async def undo_creation(self, name: str) -> None:
        """Remove what a creation without an answer may have left; it may be repeated."""
        assert self._creations is not None
        node = self._creations[name]
        state = new_cursor_state(self._appends.ledgers, self._appends.last_confirmed, {}, {}, node)
        await CursorStorage(self._shared, self._appends, name, state).delete()
        self._creations.pop(name, None)

    def _remember(self, name: str, node: OwnedNode) -> None:
        creations = self._creations
        if creations is None:
            creations = self._creations = {}
        if len(creations) >= UNSURE_CREATIONS_MAX:
            del creations[next(iter(creations))]
        creations[name] = node
