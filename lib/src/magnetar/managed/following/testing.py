"""For tests of what follows: an owner that is a managed ledger of the same process, and clients that count writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence

from magnetar.core.errors import MagnetarError, Unavailable
from magnetar.core.ids import Position
from magnetar.managed.ack_state import AckState
from magnetar.managed.cursors.cursor import Cursor
from magnetar.managed.managed_ledger import ManagedLedger


class WriterAsOwner:
    """A `TopicOwner`: asks whichever managed ledger `writer` is now; None: the topic has no owner."""

    def __init__(self, writer: ManagedLedger | None) -> None:
        self.writer: ManagedLedger | None = writer
        self.away: bool = False
        """Nothing is answered while this is set."""
        self.asked: int = 0
        """How often it was asked for the last confirmed entry."""
        self.held: set[str] = set()
        """Subscriptions that are held."""
        self.closed: bool = False
        self.has_notices: bool = False
        """Whether it gives end notices; a test sends them through `heard`."""
        self.heard: Callable[[Position | None], None] = lambda _: None

    def listen(self, heard: Callable[[Position | None], None]) -> None:
        """Remember who is to be told."""
        self.heard = heard

    async def last_confirmed(self) -> Position:
        """Ask the writer for its last confirmed entry."""
        self.asked += 1
        await asyncio.sleep(0)
        if self.away or self.writer is None:
            raise Unavailable("the owner is away")
        return self.writer.last_confirmed

    async def keep(self, subscription: str, start: Position, properties: Mapping[str, str]) -> KeptByWriter:
        """Hold the writer's cursor of this name, unless it is held."""
        await asyncio.sleep(0)
        if self.away or self.writer is None:
            raise Unavailable("the owner is away")
        if subscription in self.held:
            raise Unavailable(f"{subscription} is held already")
        self.held.add(subscription)
        return KeptByWriter(self, await self.writer.open_cursor(subscription, start, None, properties))

    async def close(self) -> None:
        """Note that nobody needs the owner any more."""
        self.closed = True


class KeptByWriter:
    """A `KeptCursor` that is a cursor of the owner."""

    def __init__(self, owner: WriterAsOwner, cursor: Cursor) -> None:
        self.mark_delete: Position = cursor.mark_delete
        self.acknowledged: Sequence[tuple[Position, Position]] = cursor.individually_acknowledged()
        self.cursor_properties: dict[str, str] = dict(cursor.cursor_properties)
        self._owner: WriterAsOwner = owner
        self._cursor: Cursor = cursor

    def store(self, acks: AckState) -> StoredByWriter:
        """Keep the position at the writer's cursor."""
        return StoredByWriter(self._owner, self._cursor, acks)


class StoredByWriter:
    """A `CursorStore` that acknowledges at the owner."""

    def __init__(self, owner: WriterAsOwner, cursor: Cursor, acks: AckState) -> None:
        self.acks: AckState = acks
        self.properties: dict[str, int] = dict(cursor.properties)
        self.cursor_properties: dict[str, str] = dict(cursor.cursor_properties)
        self.ledger_id: int = -1
        self.switched_ms: int = 0
        self.dirty: bool = False
        self.deleting: bool = False
        self._owner: WriterAsOwner = owner
        self._cursor: Cursor = cursor

    @property
    def durable_mark(self) -> Position:
        """Nothing is deleted by it."""
        return self.acks.mark_delete

    @property
    def last_entry_id(self) -> int:
        """No ledger, no entry."""
        return -1

    def changed(self) -> None:
        """Only note it: a test persists by itself."""
        self.dirty = True

    def persist(self, done: Callable[[MagnetarError | None], None]) -> None:
        """Acknowledge at the writer, and persist there."""
        self._acknowledge()
        self._cursor.persist(done)

    async def flush(self) -> None:
        """Acknowledge at the writer."""
        self._acknowledge()

    async def rewrite_node(self) -> None:
        """Give the writer's cursor the properties."""
        await self._cursor.set_cursor_properties(self.cursor_properties)

    async def close(self) -> None:
        """Acknowledge at the writer, and hold the cursor no more."""
        self._acknowledge()
        await self.abandon()

    async def abandon(self) -> None:
        """Hold the writer's cursor no more."""
        await asyncio.sleep(0)
        self._owner.held.discard(self._cursor.name)

    async def delete(self) -> None:
        """Delete the writer's cursor."""
        self.deleting = True
        assert self._owner.writer is not None
        await self._owner.writer.delete_cursor(self._cursor.name)
        self._owner.held.discard(self._cursor.name)

    def ledgers_in_doubt(self) -> set[int]:
        """Never any: nothing is made here."""
        return set()

    def _acknowledge(self) -> None:
        self.dirty = False
        self._cursor.acknowledge_cumulative(self.acks.mark_delete)
        for lower, upper in self.acks.ranges():
            if lower[0] == upper[0]:
                self._cursor.acknowledge([(upper[0], each) for each in range(lower[1] + 1, upper[1] + 1)])


READS: Collection[str] = frozenset({"get", "exists", "children", "watch", "watch_session", "limit_waiting", "close"})
"""What may be asked of a store without changing it."""
