"""Shared: entries go round over the consumers that have permits, a few messages to each in turn.

Consumers of a lower priority number come first; others get something only while no better one has room. The chunks of
one message all go to one consumer, because only it can put them together.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from magnetar.broker.dispatch.entry_batch import Assignment, EntryBatch
from magnetar.broker.dispatch.redelivery import RedeliveryQueue
from magnetar.wire.pulsar.enums import SubscriptionType

if TYPE_CHECKING:
    from magnetar.broker.dispatch.consumer import Consumer
    from magnetar.core.ids import Position

CHUNKED_MESSAGES_MAX: Final = 10_000
"""Chunked messages that may be half sent; beyond it the oldest loses its place and may end at two consumers, where the
client times it out and asks again. Far above what clients keep (100 by default)."""

WAITING_ENTRIES_MAX: Final = 20_000
"""Entries put aside before reading on stops; as the look-ahead of Key_Shared."""


class PriorityLevel:
    """The consumers of one priority, and whose turn it is."""

    def __init__(self, priority_level: int) -> None:
        self.priority_level = priority_level
        self.consumers: list[Consumer] = []
        self.turn = 0

    def next_ready(self, remaining: dict[Consumer, int]) -> Consumer | None:
        """The next in turn that has room left; the turn moves on behind it."""
        consumers = self.consumers
        count = len(consumers)
        for offset in range(count):
            index = (self.turn + offset) % count
            if remaining.get(consumers[index], 0) > 0:
                self.turn = (index + 1) % count
                return consumers[index]
        return None


class SharedDispatcher:
    """Round robin by priority."""

    def __init__(self, round_robin_messages_max: int) -> None:
        self.type = SubscriptionType.SHARED
        self.consumers: list[Consumer] = []
        self.round_robin_messages_max = round_robin_messages_max
        """Messages to one consumer before the next one's turn."""
        self._levels: list[PriorityLevel] = []
        self._queue = RedeliveryQueue()
        self._parked: list[Position] = []
        self._in_flight: list[Position] = []
        self._chunk_consumers: dict[str, Consumer] = {}

    @property
    def active(self) -> Consumer | None:
        """None: several consumers receive at a time."""
        return None

    @property
    def waiting(self) -> int:
        """Entries that wait to be sent (again)."""
        return len(self._queue) + len(self._parked) + len(self._in_flight)

    def add(self, consumer: Consumer) -> None:
        """Let a consumer in."""
        self.consumers.append(consumer)
        for level in self._levels:
            if level.priority_level == consumer.priority_level:
                level.consumers.append(consumer)
                break
        else:
            level = PriorityLevel(consumer.priority_level)
            level.consumers.append(consumer)
            self._levels.append(level)
            self._levels.sort(key=_priority)
        self.wake()

    def remove(self, consumer: Consumer) -> None:
        """Take a consumer out; the chunked messages that it began may begin again elsewhere."""
        self.consumers.remove(consumer)
        for level in self._levels:
            if consumer in level.consumers:
                level.consumers.remove(consumer)
        self._levels = [level for level in self._levels if level.consumers]
        self._chunk_consumers = {uuid: owner for uuid, owner in self._chunk_consumers.items() if owner is not consumer}
        self.wake()

    def room(self) -> int:
        """The sum of what the consumers may be sent."""
        if self.waiting >= WAITING_ENTRIES_MAX:
            return 0
        return self._total_room()

    def assign(self, batch: EntryBatch, *, replayed: bool) -> tuple[list[Assignment], EntryBatch]:
        """Turns of `round_robin_messages_max` messages; each consumer's entries come together, in order."""
        del replayed
        remaining = self._rooms()
        shares: dict[Consumer, EntryBatch] = {}
        left = EntryBatch()
        at = 0
        while at < len(batch.entries):
            consumer = self._next_ready(remaining)
            if consumer is None:
                left.copy_range(batch, at, len(batch.entries))
                break
            budget = remaining[consumer]
            if len(remaining) > 1:
                budget = min(budget, self.round_robin_messages_max)
            if batch.has_chunks:
                at = self._give_chunked_turn(batch, at, (consumer, budget), remaining, shares, left)
                continue
            start = at
            used = 0
            while at < len(batch.entries) and used < budget:
                used += batch.message_counts[at]
                at += 1
            remaining[consumer] -= used
            _share(shares, consumer).copy_range(batch, start, at)
        return list(shares.items()), left

    def keep(self, batch: EntryBatch) -> None:
        """Wait. When there is room, only the chunks' own consumer lacks it: then until it has some."""
        positions = [(entry.ledger_id, entry.entry_id) for entry in batch.entries]
        if self._total_room() > 0:
            self._parked += positions
            return
        for position in positions:
            self._queue.add(position, 0)

    def redeliver(self, items: list[tuple[Position, int]]) -> None:
        """Send these again, to whomever."""
        for position, _ in items:
            self._queue.add(position, 0)

    def take_replay(self, count_max: int) -> list[Position]:
        """The oldest waiting ones, if anybody has room."""
        if not len(self._queue):
            return []
        count = min(count_max, self._total_room())
        if count <= 0:
            return []
        positions = [position for position, _ in self._queue.take(count)]
        self._in_flight = positions
        return positions

    def replay_finished(self, *, failed: bool) -> None:
        """They are read, or wait again."""
        if failed:
            for position in self._in_flight:
                self._queue.add(position, 0)
        self._in_flight = []

    def acknowledged(self, consumer: Consumer | None, position: Position, key_hash: int) -> bool:
        """It need not be sent again."""
        del key_hash
        if consumer is None and len(self._queue):
            self._queue.discard(position)
        return False

    def wake(self) -> None:
        """Try again what waits for a certain consumer."""
        if self._parked:
            for position in self._parked:
                self._queue.add(position, 0)
            self._parked = []

    def clear_waiting(self) -> None:
        """Forget what waits."""
        self._queue.clear()
        self._parked = []
        self._in_flight = []
        self._chunk_consumers.clear()

    def _rooms(self) -> dict[Consumer, int]:
        rooms: dict[Consumer, int] = {}
        for consumer in self.consumers:
            room = consumer.room
            if room > 0:
                rooms[consumer] = room
        return rooms

    def _total_room(self) -> int:
        return sum(self._rooms().values())

    def _next_ready(self, remaining: dict[Consumer, int]) -> Consumer | None:
        for level in self._levels:
            consumer = level.next_ready(remaining)
            if consumer is not None:
                return consumer
        return None

    def _give_chunked_turn(
        self,
        batch: EntryBatch,
        at: int,
        turn: tuple[Consumer, int],
        remaining: dict[Consumer, int],
        shares: dict[Consumer, EntryBatch],
        left: EntryBatch,
    ) -> int:
        """One consumer's turn, in which chunks of messages that others began go to those, if they have room."""
        candidate, budget = turn
        used = 0
        while at < len(batch.entries) and used < budget:
            owner = self._chunk_owner(batch, at, candidate)
            count = batch.message_counts[at]
            if remaining.get(owner, 0) > 0:
                _share(shares, owner).copy_one(batch, at)
                remaining[owner] -= count
                self._finish_chunk(batch, at)
            else:
                left.copy_one(batch, at)
            if owner is candidate:
                used += count
            at += 1
        return at

    def _chunk_owner(self, batch: EntryBatch, at: int, candidate: Consumer) -> Consumer:
        metadata = batch.entries[at].metadata()
        if metadata.num_chunks <= 1 or not metadata.uuid:
            return candidate
        owner = self._chunk_consumers.get(metadata.uuid)
        if owner is None:
            owner = candidate
            if len(self._chunk_consumers) >= CHUNKED_MESSAGES_MAX:
                del self._chunk_consumers[next(iter(self._chunk_consumers))]
            self._chunk_consumers[metadata.uuid] = owner
        return owner

    def _finish_chunk(self, batch: EntryBatch, at: int) -> None:
        metadata = batch.entries[at].metadata()
        if metadata.num_chunks > 1 and metadata.chunk_id == metadata.num_chunks - 1:
            self._chunk_consumers.pop(metadata.uuid, None)


def _share(shares: dict[Consumer, EntryBatch], consumer: Consumer) -> EntryBatch:
    share = shares.get(consumer)
    if share is None:
        share = shares[consumer] = EntryBatch()
    return share


def _priority(level: PriorityLevel) -> int:
    return level.priority_level
