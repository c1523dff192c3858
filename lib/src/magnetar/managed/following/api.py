"""What a followed managed ledger needs of the broker that writes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from magnetar.core.ids import Position
from magnetar.managed.ack_state import AckState
from magnetar.managed.cursors.store import CursorStore


class KeptCursor(Protocol):
    """Where a durable subscription stood when it was taken, and what keeps its position from now on."""

    @property
    def mark_delete(self) -> Position:
        """Everything up to here is acknowledged, and so confirmed; (ledger, -1) before a ledger's first entry."""
        ...

    @property
    def acknowledged(self) -> Sequence[tuple[Position, Position]]:
        """Stretches beyond the mark that are acknowledged: lower end excluded, upper end included."""
        ...

    @property
    def cursor_properties(self) -> dict[str, str]:
        """The subscription's own properties, as the owner has them."""
        ...

    def store(self, acks: AckState) -> CursorStore:
        """What keeps the position from now on. Called once, with the state that the cursor goes on with; whoever has
        called it closes, abandons or deletes what it returned."""
        ...


class EndTeller(Protocol):
    """The broker that writes the topic, asked for nothing but its end. One for each followed ledger, which closes
    it."""

    async def last_confirmed(self) -> Position:
        """The last entry that the owner has confirmed, asked for anew with each call; (ledger, -1) when there is none.

        It is never beyond what is confirmed, so that all up to it may be shown, whoever owns the topic by then. Raises
        `Unavailable`, or `PeerError` when the answer makes no sense."""
        ...

    def listen(self, heard: Callable[[Position | None], None]) -> None:
        """From the first question on, tell `heard` of the last confirmed entry whenever it moves, if the owner can do
        that; None: it does so no more. As with an answer, all up to there may be shown. Never waits."""
        ...

    @property
    def has_notices(self) -> bool:
        """Whether the owner does that now: a follower that hears of nothing has nothing to look for."""
        ...

    async def close(self) -> None:
        """Let go of the owner. Subscriptions that are still held are given up."""
        ...


class TopicOwner(EndTeller, Protocol):
    """The broker that writes the topic, as a follower knows it that keeps its subscriptions there."""

    async def keep(self, subscription: str, start: Position, properties: Mapping[str, str]) -> KeptCursor:
        """Hold a durable subscription at the owner, so that nobody else can consume it. One that is not there is made:
        it begins at `start`, EARLIEST or LATEST, and has these properties.

        Raises the `MagnetarError` that says why not: the owner refuses, or cannot be reached."""
        ...
