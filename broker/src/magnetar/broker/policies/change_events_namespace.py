"""One namespace's `__change_events`, read to its end and then followed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final, TypeAlias

from magnetar.broker.policies.change_events_parts import ChangeEventsParts
from magnetar.broker.policies.change_state import POLICIES_BYTES_MAX, ChangeState, PreviousPolicies, differing
from magnetar.broker.policies.event_codec import (
    BadEvent,
    Change,
    decode_change,
    decode_removal,
    own_schema,
    read_schema,
)
from magnetar.broker.policies.event_shape import schema_text
from magnetar.broker.policies.events_topic import (
    PoliciesCrowded,
    PoliciesUnavailable,
    events_topic,
    existing_events_topics,
)
from magnetar.broker.policies.system_topics import SYSTEM_READER
from magnetar.broker.slices import TimeSlice
from magnetar.client.errors import ClientClosed
from magnetar.client.message import EntryBounds, Message, MessageId
from magnetar.client.reader import Reader, ReaderOptions
from magnetar.core.errors import MagnetarError
from magnetar.core.limits import KIB
from magnetar.core.topic_name import NamespaceName, TopicName
from magnetar.wire.avro import AvroDecoder
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import Schema

logger: Final = logging.getLogger(__name__)

LOOK_AGAIN_SECONDS: Final = 0.1
"""How often a wait for the readers looks by itself: an entry that cannot be read moves them on without a word."""

SCHEMAS_MAX: Final = 100
"""Schema versions kept parsed; each version of Pulsar registers one at most."""

ENTRY_BOUNDS: Final = EntryBounds(messages_max=1000, size_bytes_max=64 * KIB)
"""What a stored change may become when it is unpacked: brokers write each by itself and without compression. Some
hundred of them may wait to be read."""

VERSION_BYTES: Final = 8
"""Of a schema version: a number, big-endian, not below 0 (Pulsar: `LongSchemaVersion`)."""

ChangeId: TypeAlias = tuple[int, int, int]
"""(index of the partition, ledger id, entry id)."""


class NamespaceChanges:
    """Reads one namespace's changes for as long as it lives."""

    def __init__(
        self,
        namespace: NamespaceName,
        parts: ChangeEventsParts,
        tell: Callable[[TopicName], None],
        require_room: Callable[[], None],
    ) -> None:
        """`require_room` raises `PoliciesCrowded` when there is no memory for a namespace that was not read before."""
        self.namespace = namespace
        self.system_topic = events_topic(namespace)
        self.topics: list[TopicName] = []
        """The system topic or its partitions, as it is read now; none while it is not there."""
        self.state = ChangeState()
        self._parts = parts
        self._tell = tell
        self._require_room = require_room
        self._being_read: ChangeState | None = None
        self._decided = asyncio.Event()
        """Set when it is ready, or was not read for want of memory."""
        self._ready = asyncio.Event()
        """Set when `state` holds all that there was, or there is no system topic."""
        self._following = asyncio.Event()
        """Set while the system topic is read as it grows."""
        self._look_again = asyncio.Event()
        self._gone = False
        self._times_gone = 0
        self._progress = asyncio.Event()
        self._applying = 0
        self._failure = ""
        self._readers: list[Reader] = []
        self._schemas: dict[bytes, AvroDecoder | BadEvent] = {}
        """By version; an error for what is known to be of no use, as versions do not change."""
        self._remembers = False
        # What the changes found that were read while one of ours is on its way: a few.
        self._found: dict[ChangeId, PreviousPolicies] = {}
        name = f"topic policies of {namespace}"
        self._task = asyncio.get_running_loop().create_task(self._run(), name=name)

    async def close(self) -> None:
        """Stop reading the namespace's topic policies; whoever waits for them waits no more."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if not self._ready.is_set():
            self._failure = self._failure or f"the topic policies of {self.namespace} are read no more"
            self._decided.set()

    def look_again(self, *, gone: bool = False) -> None:
        """The system topic may have come or gone; with `gone` it has, and what it held counts no more: whoever asks
        waits until that is known. A namespace may be made again at once, with topics of the same names."""
        if gone:
            self._gone = True
            self._times_gone += 1
            self._ready.clear()
            self._decided.clear()
        self._look_again.set()

    async def wait_until_read(self) -> None:
        """Return once all policies are known. Raises `PoliciesUnavailable` when that takes too long."""
        if self._ready.is_set():
            return
        try:
            async with asyncio.timeout(self._parts.settings.read_timeout_seconds):
                await self._decided.wait()
        except TimeoutError:
            raise PoliciesUnavailable(
                f"the topic policies of {self.namespace} are not read yet: {self._failure or 'no answer'}"
            ) from None
        if not self._ready.is_set():
            raise PoliciesUnavailable(self._failure)

    @property
    def held_bytes(self) -> int:
        """About what it takes of memory."""
        return self.state.held_bytes + (0 if self._being_read is None else self._being_read.held_bytes)

    # --- reading

    async def _run(self) -> None:
        while True:
            try:
                await self._read_once()
                continue
            except PoliciesCrowded as error:
                self._failure = f"the topic policies of {self.namespace} are not read: {error}"
                self._decided.set()
                logger.warning("%s", self._failure)
                await asyncio.sleep(self._parts.settings.crowded_retry_seconds)
                continue
            except MagnetarError as error:
                self._failure = str(error)
                logger.warning("the topic policies of %s cannot be read now: %s", self.namespace, error)
            except Exception as error:
                self._failure = str(error)
                logger.exception("the topic policies of %s cannot be read now", self.namespace)
            await asyncio.sleep(self._parts.settings.retry_seconds)

    async def _read_once(self) -> None:
        """Until the system topic comes, goes, or cannot be read. What was read before stays in force meanwhile."""
        self._look_again.clear()
        self._gone = False
        self.topics = await self._existing_topics()
        if not self.topics:
            await self._become(ChangeState())
            await self._look_again.wait()
            return
        client = self._parts.client()
        try:
            for topic in self.topics:
                # Each is kept as soon as it is open: the next may fail.
                self._readers.append(await client.reader(topic, _reader_options(topic)))
            await self._read_all()
            await self._follow()
        finally:
            self._following.clear()
            readers, self._readers = self._readers, []
            await asyncio.shield(_close_all(readers))

    async def _existing_topics(self) -> list[TopicName]:
        return await existing_events_topics(self._parts.store, self._parts.resources, self.namespace)

    async def _read_all(self) -> None:
        state = self._being_read = ChangeState()
        turn = TimeSlice()
        try:
            self._require_room_at_first()
            for index, reader in enumerate(self._readers):
                while (message := await reader.next_or_end()) is not None:
                    await self._apply(state, index, message)
                    if turn.over:
                        self._require_room_at_first()
                        await turn.pause()
            self._require_room_at_first()
        finally:
            self._being_read = None
        await self._become(state)

    def _require_room_at_first(self) -> None:
        # What was in force once stays so: topics are loaded by it.
        if not self._ready.is_set():
            self._require_room()

    async def _become(self, state: ChangeState) -> None:
        before, self.state = self.state, state
        self._failure = ""
        if not self._gone:
            # Else it was deleted while it was read, and is read anew.
            self._ready.set()
            self._decided.set()
        turn = TimeSlice()
        for topic in differing(before, state):
            if topic is not None:
                self._tell(topic)
            if turn.over:
                await turn.pause()

    async def _follow(self) -> None:
        self._following.set()
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self._follow_one(index, reader)) for index, reader in enumerate(self._readers)]
        tasks.append(loop.create_task(self._watch_existence()))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _watch_existence(self) -> None:
        while True:
            await self._look_again.wait()
            self._look_again.clear()
            if self._gone or await self._existing_topics() != self.topics:
                return

    async def _follow_one(self, index: int, reader: Reader) -> None:
        turn = TimeSlice()
        while True:
            if turn.over:
                await turn.pause()
            message = await reader.receive()
            self._applying += 1
            try:
                change = await self._apply(self.state, index, message)
            finally:
                self._applying -= 1
                self._progress.set()
            if change is not None:
                self._tell(change.topic)

    async def _apply(self, state: ChangeState, index: int, message: Message) -> Change | None:
        try:
            change = await self._decoded(message)
        except BadEvent as error:
            # One change that nobody can read must not keep the namespace's topics from being loaded.
            logger.warning("change %s of %s is passed over: %s", message.id, self.system_topic, error)
            return None
        if change is None:
            return None
        if not state.has_room(change.topic, change.policies, is_global=change.is_global):
            logger.warning(
                "change %s of %s is passed over: its policies take too much memory, %s keeps what it has",
                message.id,
                self.system_topic,
                change.topic,
            )
            return None
        before = state.apply(change, (index, *message.id.position))
        if self._remembers:
            self._found[index, *message.id.position] = before
            self._progress.set()
        return change

    async def _decoded(self, message: Message) -> Change | None:
        """None for what is no change of topic policies. Raises `BadEvent`, or else what stands in the way just now."""
        if message.has_no_value or not message.payload:
            change: Change | None = decode_removal(message.key)
        else:
            if len(message.payload) > POLICIES_BYTES_MAX:
                raise BadEvent(f"it has {len(message.payload)} bytes, at most {POLICIES_BYTES_MAX} are read")
            schema = await self._schema(message.schema_version)
            change = decode_change(message.payload, schema, message.properties)
        if change is not None and change.topic.namespace_name != self.namespace:
            raise BadEvent(f"it is about {change.topic}, of another namespace")
        return change

    async def _schema(self, version: bytes) -> AvroDecoder:
        """The schema that a change was written by: those of other versions of Pulsar have other fields.

        Raises `BadEvent` where there is no such schema, or none to read by; others when it is not known now."""
        known = self._schemas.get(version)
        if known is None:
            known = await self._find_schema(version)
            if len(self._schemas) >= SCHEMAS_MAX:
                self._schemas.clear()
            self._schemas[version] = known
        if isinstance(known, BadEvent):
            raise BadEvent(str(known))
        return known

    async def _find_schema(self, version: bytes) -> AvroDecoder | BadEvent:
        if not version:
            return own_schema()
        number = int.from_bytes(version, "big", signed=True)
        if len(version) != VERSION_BYTES or number < 0:
            return BadEvent(f"{version[:VERSION_BYTES].hex()} is no schema version")
        try:
            found = await self._parts.client().schema(self.system_topic, version)
        except PulsarError as error:
            if error.code != ServerError.TOPIC_NOT_FOUND:
                raise
            # Whoever writes by a schema registers it first. One that comes later gets this number, so it is not kept.
            raise BadEvent(f"schema version {number} is not there: {error}") from error
        if found.type != Schema.Avro:
            return BadEvent(f"schema version {number} is not Avro")
        if found.schema_data == schema_text().encode():
            return own_schema()
        try:
            return read_schema(found.schema_data)
        except BadEvent as error:
            return error

    # --- for whoever makes a change

    @contextmanager
    def remembering(self) -> Iterator[None]:
        """Until the end of this, `found_by` knows of each change that is read; one at a time."""
        self._remembers = True
        try:
            yield
        finally:
            self._remembers = False
            self._found.clear()

    async def found_by(self, change_id: ChangeId) -> PreviousPolicies:
        """What a change found that was sent; returns once it is read back and in force here."""
        await self._until(lambda: change_id in self._found)
        await self.until_followed()
        return self._found[change_id]

    async def until_followed(self) -> None:
        """Return once the system topic is there, read to its end, and followed."""
        await self._following.wait()

    async def catch_up(self) -> None:
        """Return once everything is read that is written by now. There may be no system topic."""
        await self.wait_until_read()
        readers = self._readers if self._following.is_set() else []
        for reader in readers:
            try:
                last = await reader.last_message_id()
            except ClientClosed:
                raise PoliciesUnavailable(f"the topic policies of {self.namespace} are being read anew") from None
            await self._until(partial(self._has_applied, reader, last))

    def _has_applied(self, reader: Reader, last: MessageId) -> bool:
        return not self._applying and not reader.is_behind(last)

    async def _until(self, condition: Callable[[], bool]) -> None:
        times_gone = self._times_gone
        while True:
            if self._times_gone != times_gone:
                raise PoliciesUnavailable(f"{self.system_topic} was deleted meanwhile")
            self._progress.clear()
            if condition():
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_AGAIN_SECONDS):
                    await self._progress.wait()


def _reader_options(topic: TopicName) -> ReaderOptions:
    # A partition comes to be by being read, as the others are there.
    return ReaderOptions(
        read_compacted=True,
        create_topic=topic.partition_index >= 0,
        subscription_prefix=SYSTEM_READER,
        bounds=ENTRY_BOUNDS,
    )


async def _close_all(readers: list[Reader]) -> None:
    await asyncio.gather(*(reader.close() for reader in readers))
