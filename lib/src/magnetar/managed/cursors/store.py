"""What a durable cursor needs from whatever keeps its position.

A Protocol and not a class, because there are two: `CursorStorage` writes a node and a ledger of the cursor's own;
a broker that only reads keeps the position of each subscription at the topic's owner (`following/`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.managed.ack_state import AckState


class CursorStore(Protocol):
    """Keeps one cursor's acknowledgements so that whoever opens the cursor next finds them."""

    acks: AckState
    properties: dict[str, int]
    cursor_properties: dict[str, str]
    ledger_id: int
    """The ledger that holds the position; -1 when none does."""
    switched_ms: int
    """When that ledger came into use, in milliseconds since 1970; 0: there was none."""
    dirty: bool
    """Whether the state differs from what is kept."""

    @property
    def durable_mark(self) -> Position:
        """Up to where everything is acknowledged in what is kept."""
        ...

    @property
    def last_entry_id(self) -> int:
        """The last entry of that ledger; -1 without one."""
        ...

    @property
    def deleting(self) -> bool:
        """Whether the cursor's deletion has begun."""
        ...

    def changed(self) -> None:
        """The state differs from what is kept: have it kept at the cursor's rate. Never waits."""
        ...

    def persist(self, done: Callable[[MagnetarError | None], None]) -> None:
        """Call `done`, later, once everything acknowledged so far is durable; with the error if that failed. Calls
        made while a write is in flight share the next one."""
        ...

    async def flush(self) -> None:
        """Wait until the state of now is durable; raises what made that fail."""
        ...

    async def rewrite_node(self) -> None:
        """Keep the cursor's own properties, which have changed. Durable on return."""
        ...

    async def close(self) -> None:
        """Keep the state once more and let go of it."""
        ...

    async def abandon(self) -> None:
        """Let go and write nothing."""
        ...

    async def delete(self) -> None:
        """Remove what is kept."""
        ...

    def ledgers_in_doubt(self) -> set[int]:
        """Ledgers of the cursor of which nobody knows whether they are named anywhere."""
        ...
