"""The offloads of a followed managed ledger: none. What the owner has offloaded is read all the same."""

from __future__ import annotations

from magnetar.core.ids import Position
from magnetar.managed.errors import ManagedLedgerReadOnly
from magnetar.managed.offload.offloads import Offloads


class NoOffloads(Offloads):
    """Nothing of it copies or deletes."""

    __slots__ = ()

    @property
    def due(self) -> bool:
        """The owner offloads."""
        return False

    def loaded(self) -> None:
        """The owner offloads."""

    async def offload_before(self, position: Position) -> None:
        """Refuse, with `ManagedLedgerReadOnly`: the owner offloads."""
        raise ManagedLedgerReadOnly(self._name)

    async def delete_all(self) -> None:
        """Refuse, with `ManagedLedgerReadOnly`: the owner deletes objects."""
        raise ManagedLedgerReadOnly(self._name)
