"""A subscription on a stage, for tests: a cursor in memory, connections that keep what they are sent, time by hand.

Nothing runs by itself: timers fire in `Timers.advance`, reads in the background end in `Reads.finish`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from magnetar.broker.dispatch.consumer import Consumer, ConsumerIdentity, KeySharedPolicy
from magnetar.broker.settings.broker import DispatchSettings
from magnetar.broker.subscriptions.delayed_index import TopicDelays
from magnetar.broker.subscriptions.entry_reader import SubscriptionRuntime
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.core.limits import SINGLE_MESSAGE_BYTES_MIN
from magnetar.managed.entry import Entry
from magnetar.managed.redelivery_counts import RedeliveryCounts
from magnetar.wire.pulsar.command import Ack
from magnetar.wire.pulsar.enums import SubscriptionType
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import BaseCommand, MessageMetadata

LEDGER = 7
"""The ledger that staged entries are in, so that an entry id says it all."""


def stored_message(payload: bytes = b"x", **fields: Any) -> bytes:
    """headersAndPayload of a message without a checksum; `fields` are those of MessageMetadata. A batch has room for
    the messages that it says."""
    payload = payload.ljust(SINGLE_MESSAGE_BYTES_MIN * fields.get("num_messages_in_batch", 0), b"x")
    metadata = MessageMetadata(**{"producer_name": "p", "sequence_id": 0, "publish_time": 1, **fields})
    raw: bytes = metadata.SerializeToString()
    return len(raw).to_bytes(4, "big") + raw + payload


class MemoryCursor:
    """A cursor over a list of entries, by the contract of the `Cursor` of managed ledgers as dispatch uses it."""

    def __init__(self) -> None:
        self.name = "s"
        self.durable = True
        self.entries: list[Entry] = []
        self.acknowledged: set[int] = set()
        self.partial: dict[int, int] = {}
        self.redeliveries = RedeliveryCounts()
        self.cursor_properties: dict[str, str] = {}
        self.next_entry = 0
        self.cached_from = 0
        """Entries before it have to be read in the background."""
        self.failures = 0
        """So many more reads in the background fail."""
        self.background_reads = 0
        self.ranges_max = 10_000
        """So many stretches that are acknowledged can be stored."""
        self.persisted: list[Callable[[MagnetarError | None], None]] = []

    @property
    def read_position(self) -> Position:
        return (LEDGER, self.next_entry)

    @property
    def mark_delete(self) -> Position:
        mark = -1
        while mark + 1 in self.acknowledged:
            mark += 1
        return (LEDGER, mark)

    @property
    def backlog_entries(self) -> int:
        return len(self.entries) - len(self.acknowledged)

    def append(self, data: bytes) -> None:
        self.entries.append(Entry(LEDGER, len(self.entries), data))

    def read_cached(self, count_max: int, size_bytes_max: int) -> list[Entry] | None:
        while self.next_entry in self.acknowledged:
            self.next_entry += 1
        if self.next_entry < min(self.cached_from, len(self.entries)):
            return None
        return self._take(count_max, size_bytes_max)

    async def read(self, count_max: int, size_bytes_max: int) -> list[Entry]:
        self._background()
        return self._take(count_max, size_bytes_max)

    async def read_positions(self, positions: Sequence[Position]) -> list[Entry]:
        self._background()
        return [self.entries[entry_id] for _, entry_id in positions if entry_id not in self.acknowledged]

    def acknowledge(self, positions: Sequence[Position]) -> None:
        for _, entry_id in positions:
            self.acknowledged.add(entry_id)
            self.redeliveries.forget((LEDGER, entry_id))
            self.partial.pop(entry_id, None)

    def acknowledge_batch_indexes(self, position: Position, remaining: list[int], batch_size: int) -> bool:
        del batch_size
        left = self.partial.get(position[1], -1) & remaining[0]
        if left:
            self.partial[position[1]] = left
            return False
        self.acknowledge([position])
        return True

    def acknowledge_cumulative(self, position: Position, remaining: list[int] | None = None) -> None:
        last = position[1] if remaining is None else position[1] - 1
        self.acknowledge([(LEDGER, entry_id) for entry_id in range(last + 1)])
        if remaining is not None:
            self.partial[position[1]] = remaining[0]

    def is_acknowledged(self, position: Position) -> bool:
        return position[1] in self.acknowledged

    def remaining_ack_set(self, position: Position) -> list[int] | None:
        left = self.partial.get(position[1])
        return None if left is None else [left]

    def redelivered(self, positions: Sequence[Position]) -> None:
        self.redeliveries.increment(list(positions))

    def redelivery_counts(self, entries: list[Entry]) -> list[int] | None:
        return self.redeliveries.of(entries)

    def unacknowledged_at(self, number: int) -> Position:
        return (LEDGER, [each for each in range(len(self.entries)) if each not in self.acknowledged][number - 1])

    @property
    def individual_ranges(self) -> int:
        mark = self.mark_delete[1]
        return len([each for each in self.acknowledged if each > mark and each - 1 not in self.acknowledged])

    @property
    def state_fits(self) -> bool:
        return self.individual_ranges <= self.ranges_max

    def rewind(self) -> None:
        self.next_entry = self.mark_delete[1] + 1

    def skip_to(self, position: Position) -> None:
        self.next_entry = position[1]

    async def reset(self, position: Position) -> None:
        self.acknowledged = set(range(position[1]))
        self.partial = {}
        self.redeliveries = RedeliveryCounts()
        self.next_entry = position[1]

    def persist(self, done: Callable[[MagnetarError | None], None]) -> None:
        self.persisted.append(done)

    def _background(self) -> None:
        self.background_reads += 1
        if self.failures:
            self.failures -= 1
            raise MagnetarError("staged failure")

    def _take(self, count_max: int, size_bytes_max: int) -> list[Entry]:
        taken: list[Entry] = []
        size_bytes = 0
        while self.next_entry < len(self.entries) and len(taken) < count_max and size_bytes < size_bytes_max:
            if self.next_entry not in self.acknowledged:
                taken.append(self.entries[self.next_entry])
                size_bytes += len(taken[-1].data)
            self.next_entry += 1
        return taken


class Timer:
    """One timer of `Timers`."""

    def __init__(self, at_ms: float, callback: Callable[[], None]) -> None:
        self.at_ms = at_ms
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Timers:
    """A clock that stands still and the timers that wait for it to be moved."""

    def __init__(self) -> None:
        self.time_ms = 1_000_000.0
        self._timers: list[Timer] = []

    def now_ms(self) -> int:
        return int(self.time_ms)

    def monotonic_seconds(self) -> float:
        return self.time_ms / 1000

    def call_later(self, delay: float, callback: Callable[[], None], /) -> Timer:
        timer = Timer(self.time_ms + delay * 1000, callback)
        self._timers.append(timer)
        return timer

    def advance(self, milliseconds: float) -> None:
        """Move the clock and fire what is due, in order."""
        end_ms = self.time_ms + milliseconds
        while due := [timer for timer in self._timers if not timer.cancelled and timer.at_ms <= end_ms]:
            timer = min(due, key=lambda one: one.at_ms)
            self._timers.remove(timer)
            self.time_ms = max(self.time_ms, timer.at_ms)
            timer.callback()
        self.time_ms = end_ms

    def due(self) -> list[Timer]:
        """What fires now, taken out; whoever asks fires it."""
        due = [timer for timer in self._timers if not timer.cancelled and timer.at_ms <= self.time_ms]
        self._timers = [timer for timer in self._timers if timer not in due]
        return due

    @property
    def pending(self) -> int:
        """Timers that wait for the clock; the next turn of the loop needs no waiting."""
        return sum(not timer.cancelled and timer.at_ms > self.time_ms for timer in self._timers)


class Reads:
    """Background reads that end when told to."""

    def __init__(self) -> None:
        self._waiting: list[Coroutine[Any, Any, None]] = []

    def spawn(self, coroutine: Coroutine[Any, Any, None], /) -> None:
        self._waiting.append(coroutine)

    def __len__(self) -> int:
        return len(self._waiting)

    def finish(self) -> None:
        """End every read, and those that they lead to."""
        while self._waiting:
            self.finish_one()

    def finish_those_under_way(self) -> None:
        """In one turn of the loop: what they lead to ends in another one."""
        for _ in range(len(self._waiting)):
            self.finish_one()

    def finish_one(self) -> None:
        try:
            self._waiting.pop(0).send(None)
        except StopIteration:
            return
        raise AssertionError("a staged read never waits")


class StagedConnection:
    """Keeps what it is sent, and what happens to its consumers."""

    ended = False

    def __init__(self) -> None:
        self.writable = True
        self.writes = 0
        self.messages: list[Any] = []
        self.payloads: list[bytes] = []
        self.events: list[str] = []

    @property
    def output(self) -> StagedConnection:
        return self

    def write_parts(self, parts: list[bytes]) -> None:
        self.writes += 1
        for header, data in zip(parts[::2], parts[1::2], strict=True):
            assert int.from_bytes(header[:4], "big") == len(header) - 4 + len(data)
            command = BaseCommand.FromString(header[8:])
            assert command.type == BaseCommand.MESSAGE
            self.messages.append(command.message)
            self.payloads.append(data)

    def active_consumer_changed(self, consumer: Consumer, *, active: bool) -> None:
        self.events.append(f"{consumer.name} {'active' if active else 'passive'}")

    def reached_end_of_topic(self, consumer: Consumer) -> None:
        self.events.append(f"{consumer.name} end")

    def consumer_disconnected(self, consumer: Consumer) -> None:
        self.events.append(f"{consumer.name} disconnected")


class Stage:
    """One subscription with its surroundings. Consumers have their own connection and are spoken of by name."""

    def __init__(
        self,
        kind: SubscriptionType,
        settings: DispatchSettings | None = None,
        beside: Stage | None = None,
        *,
        same_topic: bool = False,
    ) -> None:
        """`beside`: another subscription of the same broker, or even of the same topic."""
        self.kind = kind
        self.settings = settings if settings is not None else DispatchSettings(failover_delay_ms=1_000)
        self.cursor = MemoryCursor()
        self.timers: Timers = Timers() if beside is None else beside.timers
        self.reads: Reads = Reads() if beside is None else beside.reads
        self.runtime: SubscriptionRuntime = (
            SubscriptionRuntime(self.timers, self.reads.spawn, self.timers.call_later)
            if beside is None
            else beside.runtime
        )
        cursor: Any = self.cursor
        self.delays: TopicDelays = beside.delays if beside is not None and same_topic else TopicDelays()
        self.subscription = Subscription(
            "persistent://t/n/topic", "s", cursor, self.runtime, self.settings, delayed_of_topic=self.delays
        )
        self.consumers: dict[str, Consumer] = {}
        self.connections: dict[str, StagedConnection] = {}
        self._seen: dict[str, int] = {}

    def join(
        self,
        name: str,
        permits: int = 1000,
        *,
        priority: int = 0,
        partition: int = -1,
        key_shared: KeySharedPolicy | None = None,
        kind: SubscriptionType | None = None,
    ) -> Consumer:
        """A consumer subscribes and sends its first FLOW."""
        identity = ConsumerIdentity(len(self.connections) + 1, name, self.kind if kind is None else kind)
        identity.priority_level = priority
        identity.key_shared = key_shared
        connection = StagedConnection()
        consumer = Consumer(
            identity,
            connection,
            partition_index=partition,
            unacked_messages_max=self.settings.unacked_messages_per_consumer_max,
        )
        self.subscription.add_consumer(consumer)
        self.consumers[name] = consumer
        self.connections[name] = connection
        self._seen[name] = 0
        self.subscription.consumer_ready(consumer)
        if permits:
            self.subscription.flow(consumer, permits)
        return consumer

    def leave(self, name: str) -> None:
        """A consumer closes, and the turn of the loop is over: when others came in it, it is sent on only then."""
        self.subscription.remove_consumer(self.consumers[name])
        self.timers.advance(0)

    def publish(self, count: int = 1, **fields: Any) -> None:
        """Entries with these fields of MessageMetadata are confirmed."""
        for _ in range(count):
            self.cursor.append(stored_message(**{"sequence_id": len(self.cursor.entries), **fields}))
        self.subscription.entries_available()

    def publish_keys(self, keys: str) -> None:
        """One entry for each letter, which is its key."""
        for key in keys:
            self.cursor.append(stored_message(sequence_id=len(self.cursor.entries), partition_key=key))
        self.subscription.entries_available()

    def flow(self, name: str, permits: int) -> None:
        """A consumer asks for more."""
        self.subscription.flow(self.consumers[name], permits)

    def ack(self, name: str, *entry_ids: int, left: int | None = None, size: int = 0, cumulative: bool = False) -> None:
        """A consumer acknowledges; `left` are the bits of what remains of a batch of `size`."""
        ack = Ack()
        ack.positions = [(LEDGER, entry_id) for entry_id in entry_ids]
        ack.cumulative = cumulative
        if left is not None:
            ack.ack_sets = [[left] for _ in entry_ids]
            ack.batch_sizes = [size for _ in entry_ids]
        self.subscription.acknowledge(self.consumers[name], ack, None)

    def redeliver(self, name: str, *entry_ids: int, epoch: int = -1) -> None:
        """A consumer wants these again, or everything."""
        positions = [(LEDGER, entry_id) for entry_id in entry_ids]
        self.subscription.redeliver(self.consumers[name], positions or None, epoch)

    def received(self, name: str) -> list[int]:
        """The entry ids that a consumer was sent since this was last asked; background reads are ended before."""
        self.reads.finish()
        messages = self.connections[name].messages
        start, self._seen[name] = self._seen[name], len(messages)
        return [message.message_id.entryId for message in messages[start:]]

    def last_message(self, name: str) -> Any:
        """The last MESSAGE that a consumer was sent."""
        return self.connections[name].messages[-1]

    def validate(self) -> None:
        """What must hold at any time."""
        held = sum(consumer.unacked_messages for consumer in self.subscription.consumers)
        assert held == self.subscription.unacked_messages
        for consumer in self.subscription.consumers:
            assert consumer.unacked_messages == sum(consumer.pending.messages.values())
            assert sum(consumer.pending.per_hash.values()) == len(consumer.pending.hashes)
