"""Shared: entries go round over the consumers that have permits, a few messages to each in turn.

Consumers of a lower priority number come first; others get something only while no better one has room. The chunks of
one message all go to one consumer, because only it can put them together.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from bisect import bisect_left
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

    def __init__(self) -> None:
        self.consumers: list[Consumer] = []
        self._numbers: list[int] = []
        """Of each, in the order in which they came."""
        self.turn = 0

    def add(self, consumer: Consumer, number: int) -> None:
        """Let the last one in."""
        self.consumers.append(consumer)
        self._numbers.append(number)

    def remove(self, number: int) -> None:
        """Take one out."""
        at = bisect_left(self._numbers, number)
        del self.consumers[at]
        del self._numbers[at]


class BatchTurns:
    """Whose turn it is while one batch is given out. Who has no room then gets none before the next batch: however many
    entries there are, each such consumer is looked at three times at most."""

    __slots__ = ("_at", "_levels", "_next", "_passed_over", "_ready", "_remaining")

    def __init__(self, levels: list[PriorityLevel], remaining: dict[Consumer, int]) -> None:
        self._levels = levels
        self._remaining = remaining
        self._at = 0
        """The best level with room."""
        self._passed_over = 0
        """Consumers of this level that had no room in their turn."""
        self._ready: list[int] | None = None
        """The places of the others in their order, once as many as are in the level were passed over."""
        self._next = 0

    def next_ready(self) -> Consumer | None:
        """The next in turn that has room left; the turn moves on behind it."""
        levels = self._levels
        while self._at < len(levels):
            level = levels[self._at]
            index = self._walk(level) if self._ready is None else self._go_round(level.consumers, self._ready)
            if index >= 0:
                level.turn = (index + 1) % len(level.consumers)
                return level.consumers[index]
            self._at += 1
            self._passed_over = 0
            self._ready = None
        return None

    def _walk(self, level: PriorityLevel) -> int:
        consumers, remaining, turn = level.consumers, self._remaining, level.turn
        count = len(consumers)
        if self._passed_over > count:
            places = [(turn + offset) % count for offset in range(count)]
            self._ready = [place for place in places if remaining.get(consumers[place], 0) > 0]
            self._next = 0
            return self._go_round(consumers, self._ready)
        for offset in range(count):
            index = (turn + offset) % count
            if remaining.get(consumers[index], 0) > 0:
                self._passed_over += offset
                return index
        return -1

    def _go_round(self, consumers: list[Consumer], ready: list[int]) -> int:
        remaining = self._remaining
        while ready:
            while self._next < len(ready):
                index = ready[self._next]
                self._next += 1
                if remaining.get(consumers[index], 0) > 0:
                    return index
            ready = self._ready = [index for index in ready if remaining.get(consumers[index], 0) > 0]
            self._next = 0
        return -1


class SharedDispatcher:
    """Round robin by priority."""

    def __init__(self, round_robin_messages_max: int) -> None:
        self.type = SubscriptionType.SHARED
        self.consumers: dict[Consumer, int] = {}
        self.round_robin_messages_max = round_robin_messages_max
        """Messages to one consumer before the next one's turn."""
        self._came = 0
        self._priorities: list[int] = []
        self._levels: list[PriorityLevel] = []
        """Of each of the priorities."""
        self._queue = RedeliveryQueue()
        self._parked: dict[Position, None] = {}
        self._in_flight: list[Position] = []
        self._chunk_consumers: dict[str, Consumer] = {}
        self._chunked_by: dict[Consumer, dict[str, None]] = {}
        """Whose each of the former is, the other way round."""

    @property
    def unsettled(self) -> bool:
        """Nothing is owned."""
        return False

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
        number = self._came
        self._came += 1
        self.consumers[consumer] = number
        priority = consumer.priority_level
        at = bisect_left(self._priorities, priority)
        if at == len(self._priorities) or self._priorities[at] != priority:
            self._priorities.insert(at, priority)
            self._levels.insert(at, PriorityLevel())
        self._levels[at].add(consumer, number)
        self.wake()

    def remove(self, consumer: Consumer) -> None:
        """Take a consumer out; the chunked messages that it began may begin again elsewhere."""
        at = bisect_left(self._priorities, consumer.priority_level)
        level = self._levels[at]
        level.remove(self.consumers.pop(consumer))
        if not level.consumers:
            del self._levels[at]
            del self._priorities[at]
        for uuid in self._chunked_by.pop(consumer, {}):
            del self._chunk_consumers[uuid]
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
        turns = BatchTurns(self._levels, remaining)
        shares: dict[Consumer, EntryBatch] = {}
        left = EntryBatch()
        at = 0
        while at < len(batch.entries):
            consumer = turns.next_ready()
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
            self._parked.update(dict.fromkeys(positions))
            return
        for position in positions:
            self._queue.add(position, 0)

    def redeliver(self, items: list[tuple[Position, int]]) -> None:
        """Send these again, to whomever."""
        for position, _ in items:
            self._parked.pop(position, None)
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
            self._parked = {}

    def clear_waiting(self) -> None:
        """Forget what waits."""
        self._queue.clear()
        self._parked = {}
        self._in_flight = []
        self._chunk_consumers.clear()
        self._chunked_by.clear()

    def _rooms(self) -> dict[Consumer, int]:
        rooms: dict[Consumer, int] = {}
        for consumer in self.consumers:
            room = consumer.room
            if room > 0:
                rooms[consumer] = room
        return rooms

    def _total_room(self) -> int:
        return sum(self._rooms().values())

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
                self._forget_chunked(next(iter(self._chunk_consumers)))
            self._chunk_consumers[metadata.uuid] = owner
            self._chunked_by.setdefault(owner, {})[metadata.uuid] = None
        return owner

    def _finish_chunk(self, batch: EntryBatch, at: int) -> None:
        metadata = batch.entries[at].metadata()
        if metadata.num_chunks > 1 and metadata.chunk_id == metadata.num_chunks - 1:
            self._forget_chunked(metadata.uuid)

    def _forget_chunked(self, uuid: str) -> None:
        owner = self._chunk_consumers.pop(uuid, None)
        if owner is not None:
            uuids = self._chunked_by[owner]
            del uuids[uuid]
            if not uuids:
                del self._chunked_by[owner]


def _share(shares: dict[Consumer, EntryBatch], consumer: Consumer) -> EntryBatch:
    share = shares.get(consumer)
    if share is None:
        share = shares[consumer] = EntryBatch()
    return share
