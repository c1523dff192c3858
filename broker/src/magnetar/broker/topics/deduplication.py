"""Messages that a producer sends twice are stored once.

For each producer the highest sequence id that was taken and the highest that is stored are kept in memory; the latter
also in the properties of the cursor `pulsar.dedup`, whose mark says up to which entry they hold. What lies behind it is
read again when the topic is loaded. (Pulsar: `MessageDeduplication`)

As many producers are known as a snapshot holds, and those that are connected: of more, those that are gone and sent
longest ago are forgotten (`deduplicated_names.py`).

Replicators of other clusters send what other producers have published. They are gone by positions at the source where
the replicator can (`source_position.py`), else by name and sequence id of the first producer.
"""

from __future__ import annotations

import logging
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol

from magnetar.broker.deduplicated_names import (
    SNAPSHOT_BYTES_MAX,
    SOURCES_BYTES_MAX,
    is_too_long,
    most_recent,
    refusal_of_name,
)
from magnetar.broker.source_position import SourcePositions
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import LATEST, signed64
from magnetar.core.limits import MIB
from magnetar.managed.info_codec import size_of_properties
from magnetar.wire.pulsar.errors import BadMetadata
from magnetar.wire.pulsar.metadata import skim

if TYPE_CHECKING:
    from collections.abc import Container

    from magnetar.broker.policies.model import EffectivePolicies
    from magnetar.broker.replicated_message import ReplicatedMessage
    from magnetar.broker.settings.policies import PolicySettings
    from magnetar.broker.subscriptions.entry_reader import SubscriptionRuntime
    from magnetar.broker.topics.producer import Producer, PublishBatch
    from magnetar.broker.topics.producers import Producers
    from magnetar.core.clock import Clock
    from magnetar.core.ids import Position
    from magnetar.core.topic_name import TopicName
    from magnetar.managed.cursors.cursor import Cursor
    from magnetar.managed.entry import Entry
    from magnetar.managed.managed_ledger import ManagedLedger

logger: Final = logging.getLogger(__name__)

CURSOR_NAME: Final = "pulsar.dedup"
REPLAY_ENTRIES: Final = 500
REPLAY_BYTES: Final = 5 * MIB
NEVER: Final = -(1 << 63) - 1
"""Below every sequence id. These are signed, as Apache's broker counts them and snapshots hold them; the wire has them
unsigned."""

NONE_KNOWN: Final = -1
"""The last sequence id of a producer that is not known."""


class DuplicateStatus(Enum):
    """What a message is."""

    NEW = 0
    STORED = 1
    UNKNOWN = 2
    """One like it is on its way to be stored: nobody can tell yet whether it will be."""


class Deduplication:
    """What is stored of each producer of one topic, while deduplication is enabled there."""

    __slots__ = (
        "_clock",
        "_cursor",
        "_entries",
        "_idle_since",
        "_ledger",
        "_replayed",
        "_settings",
        "_snapshot_seconds",
        "_sources",
        "_told_of_too_many",
        "pushed",
        "stored",
    )

    def __init__(
        self, ledger: ManagedLedger, cursor: Cursor, settings: PolicySettings, clock: Clock, local_cluster: str
    ) -> None:
        """Made by `open_deduplication`."""
        self._ledger = ledger
        self._cursor = cursor
        self._settings = settings
        self._clock = clock
        self._sources = SourcePositions(local_cluster)
        self.pushed: dict[str, int] = self._sources.load(cursor.properties)
        """The highest sequence id of each producer that was taken to be stored."""
        self.stored: dict[str, int] = dict(self.pushed)
        """The highest one that is stored; the producer that sent last comes last."""
        self._replayed: dict[str, int] = {}
        """The highest sequence id of producers of other clusters, of what was stored with a position after the
        snapshot. It counts for replicators that cannot go by positions, and not for a local producer of that name."""
        now = clock.monotonic_seconds()
        self._idle_since: dict[str, float] = dict.fromkeys(self.pushed, now)
        """Since when each producer is not connected, by its name, in seconds of the monotonic clock."""
        self._entries = 0
        """Entries that were stored since the last snapshot."""
        self._snapshot_seconds = now
        self._told_of_too_many = False

    async def replay(self) -> None:
        """Read what was stored after the snapshot."""
        cursor = self._cursor
        cursor.rewind()
        while entries := await cursor.read(REPLAY_ENTRIES, REPLAY_BYTES):
            for entry in entries:
                self._replay(entry)
            self._entries += len(entries)
            self._bounded()
            count_max = self._settings.deduplication_producers_max
            self._replayed = most_recent(self._replayed, (), count_max, SNAPSHOT_BYTES_MAX)
        self.append_failed()

    def _replay(self, entry: Entry) -> None:
        try:
            metadata = entry.metadata()
        except BadMetadata:
            return
        if metadata.num_chunks > 1 and metadata.chunk_id != metadata.num_chunks - 1:
            return
        if metadata.marker_type >= 0:
            return  # Of a broker, whose sequence ids mean nothing: that of a transaction's end is -1.
        name = metadata.producer_name
        highest = _highest(metadata.sequence_id, max(0, metadata.highest_sequence_id))  # Absent: below 0.
        source = metadata.replicated_from
        if source and not is_too_long(source) and self._sources.replay(source, entry.data):
            if self._takes(name):
                self._replayed[name] = max(highest, self._replayed.pop(name, NEVER))
            return
        if not self._takes(name):
            return  # Nobody is let in with that name: a client has put it into the message only.
        if name not in self.stored:
            self._idle_since[name] = self._clock.monotonic_seconds()
        self._store(name, max(highest, self.stored.get(name, NEVER)))

    def _takes(self, name: str) -> bool:
        """Whether the name of a message's producer is one to keep."""
        return name in self.stored or not is_too_long(name)

    def _store(self, name: str, sequence_id: int) -> None:
        self.stored.pop(name, None)  # So that it comes last.
        self.stored[name] = sequence_id

    def check(
        self, batch: PublishBatch, refused: Container[int], unstorable: Container[int] = ()
    ) -> list[DuplicateStatus] | None:
        """What each SEND of a batch is; None when all are new, as mostly. Those refused already are not looked at.

        Those `unstorable` are refused if they are new. They do not count as pushed: whoever did not hear the refusal
        sends them again, and would else be told for ever that it is not known whether they are stored."""
        if batch.replicated is not None:
            return self._check_replicated(batch, batch.replicated, refused, unstorable)
        name = batch.producer.name
        stored = self.stored.get(name, NEVER)
        # What was on its way when something else failed may have been stored since, and is not pushed any more.
        last = max(self.pushed.get(name, NEVER), stored)
        sequence_ids, highest_ids = batch.sequence_ids, batch.highest_sequence_ids
        statuses: list[DuplicateStatus] | None = None
        for index in range(len(sequence_ids)):
            sequence_id = signed64(sequence_ids[index])
            if index in refused or (batch.has_chunks and not _ends_message(batch.payloads[index])):
                continue
            if sequence_id <= last:
                if statuses is None:
                    statuses = [DuplicateStatus.NEW] * len(sequence_ids)
                statuses[index] = DuplicateStatus.STORED if sequence_id <= stored else DuplicateStatus.UNKNOWN
                continue
            if index in unstorable:
                continue
            last = _highest(sequence_ids[index], highest_ids[index])
        if last != NEVER:
            self.pushed[name] = last
        return statuses

    def _check_replicated(
        self,
        batch: PublishBatch,
        messages: list[ReplicatedMessage | None],
        refused: Container[int],
        unstorable: Container[int],
    ) -> list[DuplicateStatus] | None:
        statuses = [DuplicateStatus.NEW] * len(messages)
        by_position = batch.producer.identity.source_positions
        for index, message in enumerate(messages):
            if message is None or message.is_marker:
                continue
            if index in refused or index in unstorable:
                if by_position and message.position is not None:
                    _note_refused(batch.producer, message.position)
            elif by_position:
                statuses[index] = self._check_position(batch.producer, message)
            elif not message.is_chunk_before_last:
                highest = _highest(batch.sequence_ids[index], batch.highest_sequence_ids[index])
                sequence_id = signed64(batch.sequence_ids[index])
                statuses[index] = self._check_original(message.producer_name, sequence_id, highest)
        return None if all(status is DuplicateStatus.NEW for status in statuses) else statuses

    def _check_position(self, replicator: Producer, message: ReplicatedMessage) -> DuplicateStatus:
        position = message.position
        assert position is not None  # Those without are refused.
        refused = replicator.refused_position
        if refused is not None and position > refused:
            return DuplicateStatus.UNKNOWN
        key = self._sources.key_of(replicator.name)
        if not self._sources.take(key, position) and not self._sources.is_stored(key, position):
            _note_refused(replicator, position)
            return DuplicateStatus.UNKNOWN
        if position == refused:
            replicator.refused_position = None
        return DuplicateStatus.STORED if self._sources.is_stored(key, position) else DuplicateStatus.NEW

    def _check_original(self, name: str, sequence_id: int, highest: int) -> DuplicateStatus:
        replayed = self._replayed.get(name, NEVER)
        if sequence_id <= max(replayed, self.stored.get(name, NEVER)):
            return DuplicateStatus.STORED
        if sequence_id <= self.pushed.get(name, NEVER):
            return DuplicateStatus.UNKNOWN
        if self._takes(name):
            self.pushed[name] = highest
        return DuplicateStatus.NEW

    def _replicated_stored(self, batch: PublishBatch, messages: list[ReplicatedMessage | None]) -> None:
        now = self._clock.monotonic_seconds()
        key = self._sources.key_of(batch.producer.name)
        for index, message in enumerate(messages):
            if message is None or message.is_marker:
                continue
            if batch.producer.identity.source_positions:
                assert message.position is not None
                self._sources.store(key, message.position)
            elif not message.is_chunk_before_last:
                name = message.producer_name
                if not self._takes(name):
                    continue
                if name not in self.stored or name in self._idle_since:
                    self._idle_since[name] = now  # Nobody says when a producer elsewhere is gone.
                self._store(name, _highest(batch.sequence_ids[index], batch.highest_sequence_ids[index]))

    def batch_stored(self, batch: PublishBatch, position: Position) -> None:
        """What `check` found new is durable; `position` is of its last entry."""
        if batch.replicated is not None:
            self._replicated_stored(batch, batch.replicated)
        else:
            self._stored_of_one(batch)
        self._entries += len(batch.sequence_ids)
        if self._entries >= self._settings.deduplication_snapshot_entries:
            self.snapshot(position)

    def _stored_of_one(self, batch: PublishBatch) -> None:
        last = len(batch.sequence_ids) - 1
        if batch.has_chunks:
            while last >= 0 and not _ends_message(batch.payloads[last]):
                last -= 1
        if last >= 0:
            self._store(batch.producer.name, _highest(batch.sequence_ids[last], batch.highest_sequence_ids[last]))

    def append_failed(self) -> None:
        """Batches were not stored: their producers send them again."""
        self.pushed = dict(self.stored)
        self._sources.forget_taken()

    def last_sequence_id(self, producer_name: str) -> int:
        """The highest one that the producer need not send again; -1 when nothing is known of it."""
        last = max(self.pushed.get(producer_name, NEVER), self.stored.get(producer_name, NEVER))
        return NONE_KNOWN if last == NEVER else last

    def check_name(self, name: str) -> None:
        """Raises PulsarError for a new producer with a name that is too long to be kept."""
        if not self._takes(name):
            raise refusal_of_name()

    def producer_added(self, name: str) -> None:
        """It is connected: what is known of it is kept."""
        self._idle_since.pop(name, None)

    def producer_removed(self, name: str) -> None:
        """It is gone; some time later it is forgotten."""
        if name in self.pushed or name in self.stored:
            self._idle_since[name] = self._clock.monotonic_seconds()

    def maintain(self, snapshot_seconds: int) -> None:
        """Called now and then: forget producers that are long gone, take a snapshot that is due by time."""
        now = self._clock.monotonic_seconds()
        idle_seconds_max = self._settings.deduplication_forget_seconds
        gone = [name for name, since in self._idle_since.items() if now - since > idle_seconds_max]
        for name in gone:
            self._forget(name)
        # Also for what only brokers have stored since: ledgers are kept until a snapshot covers them.
        behind = snapshot_seconds > 0 and self._cursor.backlog_entries > 0
        if gone or (behind and now - self._snapshot_seconds >= snapshot_seconds):
            self.snapshot(self._ledger.last_confirmed)

    def keeps(self, cursor: Cursor) -> bool:
        """Whether a cursor of the topic is the snapshot's."""
        return cursor is self._cursor

    def clearing(self, cursor: Cursor) -> None:
        """A cursor acknowledges all that there is: if that is the snapshot's, what its entries tell goes with them."""
        if self.keeps(cursor):
            self.snapshot(self._ledger.last_confirmed)

    def snapshot(self, position: Position) -> None:
        """What is stored up to the position is known without reading it again."""
        self._entries = 0
        self._snapshot_seconds = self._clock.monotonic_seconds()
        members = self._bounded()
        properties = self._cursor.properties
        properties.clear()
        properties.update(members)
        # In one step with the properties: whichever write comes next has both.
        self._cursor.acknowledge_cumulative(position)
        self._cursor.persist(self._persisted)

    def _bounded(self) -> dict[str, int]:
        """The members of a snapshot. Who is gone and is not among them is forgotten."""
        count_max = self._settings.deduplication_producers_max
        members = self._sources.snapshot(count_max, SOURCES_BYTES_MAX)
        left = count_max - len(members), SNAPSHOT_BYTES_MAX - size_of_properties(members)
        kept = most_recent(self.stored, self._idle_since, *left)
        if len(kept) < len(self.stored):
            self._too_many(kept)
        members.update(kept)
        return members

    def _too_many(self, kept: dict[str, int]) -> None:
        if not self._told_of_too_many:
            self._told_of_too_many = True
            logger.warning(
                "%s: deduplication knows %d producers, and %d have room in a snapshot (at most %d, at most %d bytes "
                "with their names). The others, which sent longest ago, are forgotten when they are gone, or when the "
                "topic changes its broker: what they send again after that may be stored twice",
                self._ledger.name,
                len(self.stored),
                len(kept),
                self._settings.deduplication_producers_max,
                SNAPSHOT_BYTES_MAX,
            )
        for name in list(self._idle_since):
            # What is on its way to be stored will be its last message.
            if name not in kept and self.pushed.get(name, NEVER) <= self.stored.get(name, NEVER):
                self._forget(name)

    def _forget(self, name: str) -> None:
        del self._idle_since[name]
        self.pushed.pop(name, None)
        self.stored.pop(name, None)

    def _persisted(self, error: MagnetarError | None) -> None:
        if error is not None:
            logger.warning("%s: no deduplication snapshot now, the next one may be: %s", self._ledger.name, error)
        else:
            self._ledger.trim_later()  # What the snapshot tells of was kept until now.


class DeduplicatedTopic(Protocol):
    """A topic whose policies switch deduplication on and off."""

    deduplication: Deduplication | None

    @property
    def name(self) -> TopicName: ...
    @property
    def ledger(self) -> ManagedLedger: ...
    @property
    def policies(self) -> EffectivePolicies: ...
    @property
    def producers(self) -> Producers: ...
    @property
    def closing(self) -> bool: ...


class DeduplicationSwitch:
    """Has the deduplication of one topic be as its policies say; one switch at a time."""

    __slots__ = ("_runtime", "_switching")

    def __init__(self, runtime: SubscriptionRuntime) -> None:
        self._runtime = runtime
        self._switching = False

    async def follow(self, topic: DeduplicatedTopic) -> None:
        """Switch it until policies say nothing else. Raises what the ledger raises."""
        if self._switching:
            return
        self._switching = True
        try:
            while not topic.closing and _differs(topic):
                if topic.policies.deduplication:
                    runtime = self._runtime
                    topic.deduplication = await open_deduplication(
                        topic.ledger, runtime.limits.settings, runtime.clock, runtime.cluster_name
                    )
                    for producer in (*topic.producers.by_name.values(), *topic.producers.waiting):
                        topic.deduplication.producer_added(producer.name)  # Who sent meanwhile is not gone.
                else:
                    topic.deduplication = None
                    await topic.ledger.delete_cursor(CURSOR_NAME)
        finally:
            self._switching = False

    def maintain(self, topic: DeduplicatedTopic) -> None:
        """Called now and then, and when policies change."""
        if _differs(topic):
            self._runtime.spawn(self._follow_later(topic))
        elif topic.deduplication is not None:
            topic.deduplication.maintain(topic.policies.deduplication_snapshot_seconds)

    async def _follow_later(self, topic: DeduplicatedTopic) -> None:
        try:
            await self.follow(topic)
        except MagnetarError as error:
            # The periodic check tries again.
            logger.warning("deduplication of %s is not switched now: %s", topic.name, error)


def _differs(topic: DeduplicatedTopic) -> bool:
    """Whether a topic's deduplication is not as its policies say."""
    if topic.policies.deduplication:
        return topic.deduplication is None
    return topic.deduplication is not None or CURSOR_NAME in topic.ledger.cursors


async def open_deduplication(
    ledger: ManagedLedger, settings: PolicySettings, clock: Clock, local_cluster: str = ""
) -> Deduplication:
    """Begin, or go on where a former owner of the topic was. Raises what the ledger raises."""
    cursor = await ledger.open_cursor(CURSOR_NAME, LATEST)
    deduplication = Deduplication(ledger, cursor, settings, clock, local_cluster)
    await deduplication.replay()
    return deduplication


def _note_refused(replicator: Producer, position: Position) -> None:
    """A message with this position is not stored: what comes after it has to wait for it."""
    refused = replicator.refused_position
    if refused is None or position < refused:
        replicator.refused_position = position


def _highest(sequence_id: int, highest_sequence_id: int) -> int:
    """The last sequence id of a batch, or that of a single message, which says 0 for it, or nothing."""
    last = signed64(sequence_id)
    return max(last, signed64(highest_sequence_id)) if highest_sequence_id else last


def _ends_message(payload: bytes) -> bool:
    """Whether it is a whole message, or the last chunk of one."""
    try:
        metadata = skim(payload)
    except BadMetadata:
        return True
    return metadata.num_chunks <= 1 or metadata.chunk_id == metadata.num_chunks - 1
