"""One system topic that snapshots are kept in: read as a table of the last message of each key, and written.

Each namespace has its own. It is read when a topic of the namespace is loaded, to its end, and then kept for a while:
as a rule, other topics of the namespace follow (Pulsar: `TableView`, `SystemTopicTxnBufferSnapshotService`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final

from magnetar.broker.policies.system_topics import SYSTEM_READER
from magnetar.broker.slices import TimeSlice
from magnetar.broker.subscriptions.entry_reader import Spawn
from magnetar.client.client import PulsarClient
from magnetar.client.message import EntryBounds, Message, MessageId, OutgoingMessage
from magnetar.client.producer import ClientProducer, ProducerOptions
from magnetar.client.reader import Reader, ReaderOptions
from magnetar.core.clock import CallLater, Clock, TimerHandle
from magnetar.core.errors import MagnetarError, Unavailable
from magnetar.core.hashing import java_string_hash
from magnetar.core.ids import Position
from magnetar.core.limits import MESSAGE_SIZE_BYTES_MAX, MIB
from magnetar.core.topic_name import TopicName
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import Schema

logger: Final = logging.getLogger(__name__)

KEPT_SECONDS: Final = 60.0
"""How long a table and a producer stay without being used (Apache's reader: as long)."""

READ_SECONDS_MAX: Final = 60.0
"""For reading to the end: within it a topic is loaded, or its client is told to come back."""

WRITE_SECONDS_MAX: Final = 30.0
"""For one snapshot, its producer included. Transactional messages may wait for it."""

HELD_BYTES_MAX: Final = 64 * MIB
"""Of one table: snapshots of half a million topics that have few transactions. What takes more is read again for each
topic that is loaded."""

ENTRY_BOUNDS: Final = EntryBounds(messages_max=1_000, size_bytes_max=MESSAGE_SIZE_BYTES_MAX)
"""Bounds of a stored snapshot when it is unpacked: brokers write each by itself and without compression."""


class SnapshotsUnavailable(Unavailable):
    """Snapshots cannot be read or written now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotParts:
    """The collaborators of snapshots."""

    client: Callable[[], PulsarClient]
    """Asked for when the first system topic is to be read or written."""
    existing: Callable[[TopicName], Awaitable[list[TopicName]]]
    """A topic or its partitions, as far as it is there; none is no error."""
    spawn: Spawn
    call_later: CallLater
    clock: Clock


class SnapshotTopic:
    """One such topic, as long as anybody uses it."""

    def __init__(self, name: TopicName, schema: Schema, parts: SnapshotParts) -> None:
        self.name = name
        self._schema = schema
        self._parts = parts
        self._latest: dict[str, Message] = {}
        self._held_bytes = 0
        self._partial = False
        """Too large to be kept: it has what somebody waits for and nothing else."""
        self._wanted: Counter[str] = Counter()
        self._readers: list[Reader] = []
        self._reading: asyncio.Task[dict[str, Message]] | None = None
        """Reads to the end that there was when it began."""
        self._next_reading: asyncio.Task[dict[str, Message]] | None = None
        """Begins when that one is over; whoever asks meanwhile shares it."""
        self._producers: dict[TopicName, ClientProducer] = {}
        self._writing = asyncio.Lock()
        self._uses = 0
        self._timer: TimerHandle | None = None

    # --- reading

    async def latest(self, key: str) -> Message | None:
        """The last message with this key that is there by now; None when there is none, or it says that there is none.

        Raises what the client raises, `SnapshotsUnavailable` when it takes too long."""
        self._uses += 1
        self._wanted[key] += 1
        try:
            table = await asyncio.shield(self._reading_from_now())
            return table.get(key)
        finally:
            self._wanted[key] -= 1
            if not self._wanted[key]:
                del self._wanted[key]
            self._unused()

    def _reading_from_now(self) -> asyncio.Task[dict[str, Message]]:
        reading = self._next_reading
        if reading is None:
            reading = asyncio.get_running_loop().create_task(self._read_after(self._reading))
            self._next_reading = reading
            reading.add_done_callback(_looked_at)
        return reading

    async def _read_after(self, former: asyncio.Task[dict[str, Message]] | None) -> dict[str, Message]:
        """The table; a dict of its own once the topic is read anew."""
        if former is not None:
            await asyncio.wait([former])
        self._reading, self._next_reading = self._next_reading, None
        try:
            async with asyncio.timeout(READ_SECONDS_MAX):
                await self._catch_up()
            return self._latest
        except TimeoutError:
            await self._drop_table()
            raise SnapshotsUnavailable(f"{self.name} is not read in {READ_SECONDS_MAX:.0f} seconds") from None
        except BaseException:
            await asyncio.shield(self._drop_table())
            raise

    async def _catch_up(self) -> None:
        topics = await self._parts.existing(self.name)
        if self._partial or [reader.topic for reader in self._readers] != topics:
            await self._drop_table()
            for topic in topics:
                # Each is kept as soon as it is open: the next may fail.
                self._readers.append(await self._parts.client().reader(topic, READER_OPTIONS))
        turn = TimeSlice()
        for reader in self._readers:
            while (message := await reader.next_or_end()) is not None:
                self._apply(message)
                if turn.over:
                    await turn.pause()

    def _apply(self, message: Message) -> None:
        key = message.key
        if key is None or (self._partial and key not in self._wanted):
            return
        former = self._latest.pop(key, None)
        if former is not None:
            self._held_bytes -= len(former.payload)
        if message.has_no_value or not message.payload:
            return
        self._latest[key] = message
        self._held_bytes += len(message.payload)
        if self._held_bytes > HELD_BYTES_MAX and not self._partial:
            logger.warning("%s holds more than %d bytes: it is read for each topic", self.name, HELD_BYTES_MAX)
            self._partial = True
            self._latest = {key: kept for key, kept in self._latest.items() if key in self._wanted}

    async def _drop_table(self) -> None:
        readers, self._readers = self._readers, []
        self._latest = {}
        self._held_bytes = 0
        self._partial = False
        await asyncio.gather(*(reader.close() for reader in readers))

    async def at(self, position: Position) -> Message | None:
        """The message of an id that `write` returned; None: it is there no more. Raises as `latest` does."""
        topics = await self._parts.existing(self.name)
        self._uses += 1
        try:
            async with asyncio.timeout(READ_SECONDS_MAX):
                for topic in topics:
                    message = await self._first_from(topic, position)
                    if message is not None and message.id.position == position:
                        return message
            return None
        except TimeoutError:
            raise SnapshotsUnavailable(f"{self.name} is not read in {READ_SECONDS_MAX:.0f} seconds") from None
        finally:
            self._unused()

    async def _first_from(self, topic: TopicName, position: Position) -> Message | None:
        start = MessageId(*position)
        reader = await self._parts.client().reader(topic, replace(READER_OPTIONS, start=start, inclusive=True))
        try:
            return await reader.next_or_end()
        finally:
            await asyncio.shield(reader.close())

    # --- writing

    async def write(self, key: str, payload: bytes | None) -> MessageId:
        """Store a message, or one that says that there is none; durable on return. One after the other, so that the
        last call of a caller that waits for each is the last message. Raises as `latest` does."""
        self._uses += 1
        try:
            async with asyncio.timeout(WRITE_SECONDS_MAX):
                async with self._writing:
                    producer = await self._producer(key)
                sent = producer.send(OutgoingMessage(payload, key=key))
                return await sent
        except TimeoutError:
            raise SnapshotsUnavailable(f"{self.name} is not written in {WRITE_SECONDS_MAX:.0f} seconds") from None
        finally:
            self._unused()

    async def _producer(self, key: str) -> ClientProducer:
        topics = list(self._producers) or await self._parts.existing(self.name) or [self.name]
        topic = topics[java_string_hash(key) % len(topics)]
        for each in topics:
            producer = self._producers.get(each)
            if producer is None or producer.failure is not None:
                options = ProducerOptions(schema=self._schema)
                self._producers[each] = await self._parts.client().producer(each, options)
        return self._producers[topic]

    # --- the end

    @property
    def idle(self) -> bool:
        """Whether it has nothing to close and nobody waits for it."""
        return not (self._uses or self._readers or self._producers)

    def _unused(self) -> None:
        self._uses -= 1
        if self._uses:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._parts.call_later(KEPT_SECONDS, self._let_go)

    def _let_go(self) -> None:
        self._timer = None
        self._parts.spawn(self._close_idle())

    async def _close_idle(self) -> None:
        if self._uses:
            return
        producers, self._producers = self._producers, {}
        await self._drop_table()
        await asyncio.gather(*(producer.close() for producer in producers.values()))

    async def close(self) -> None:
        """For good: nobody waits for it any more."""
        if self._timer is not None:
            self._timer.cancel()
        tasks = [task for task in (self._reading, self._next_reading) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._uses = 0
        await self._close_idle()


READER_OPTIONS: Final = ReaderOptions(
    read_compacted=True, create_topic=True, subscription_prefix=SYSTEM_READER, bounds=ENTRY_BOUNDS
)
"""It makes a partition that nobody has used yet; what is not partitioned is there."""


def _looked_at(task: asyncio.Task[dict[str, Message]]) -> None:
    """Nobody may be left to wait for it."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, MagnetarError):
        logger.error("reading snapshots failed", exc_info=error)
