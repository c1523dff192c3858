"""Producers: messages go out in order, and again after a reconnection until each has its receipt."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, cast

from magnetar.client.connection import BrokerConnection
from magnetar.client.errors import MessageTooLarge, TimedOut
from magnetar.client.message import MessageId, OutgoingMessage, entry_of_batch, entry_of_message
from magnetar.client.topic_end import ClientParts, TopicEnd
from magnetar.core.errors import MagnetarError, Misuse
from magnetar.core.limits import FRAME_PADDING_BYTES
from magnetar.core.topic_name import TopicName
from magnetar.wire.pulsar import requests
from magnetar.wire.pulsar.compression_type import Compression
from magnetar.wire.pulsar.errors import PulsarError, ServerError
from magnetar.wire.pulsar.generated.pulsar_api_pb2 import (
    CommandProducerSuccess,
    MessageMetadata,
    ProducerAccessMode,
    Schema,
)
from magnetar.wire.pulsar.send_receipts import Receipt

logger: Final = logging.getLogger(__name__)

MESSAGE_CODES: Final = frozenset({ServerError.CHECKSUM_ERROR, ServerError.NOT_ALLOWED_ERROR})
"""Refusals of one message; what else a broker says of one concerns the topic, and sending again may help."""

ENDING_CODES: Final = frozenset({ServerError.TOPIC_TERMINATED_ERROR, ServerError.PRODUCER_FENCED})


class AccessMode(IntEnum):
    """Who else may produce to the topic; the wire's numbers."""

    SHARED = 0
    EXCLUSIVE = 1
    """Refused while there is another producer."""
    WAIT_FOR_EXCLUSIVE = 2
    """Opened once there is no other producer; `open` waits without a limit."""
    EXCLUSIVE_WITH_FENCING = 3
    """Every other producer is fenced out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """How a producer is opened."""

    name: str | None = None
    """None: the broker makes one."""
    access_mode: AccessMode = AccessMode.SHARED
    first_sequence_id: int | None = None
    """None: goes on after what the broker knows of this name."""
    compression: Compression = Compression.NONE
    """The codec that the payloads of batches are compressed with."""
    schema: Schema | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    ends_at_failure: bool = False
    """A message that fails ends the producer, so that nothing handed over after it is sent: whoever sends again under
    the same name and numbers needs that, as brokers drop what is numbered below what they have. So does a reconnection
    that finds something stored under the name which this producer has not sent (`PRODUCER_FENCED`)."""


class Pending:
    """An entry without a receipt."""

    __slots__ = ("count", "entry", "future", "highest_sequence_id", "sent_at_seconds", "sequence_id")

    def __init__(
        self, entry: bytes, sequence_ids: Sequence[int], future: asyncio.Future[MessageId], sent_at_seconds: float
    ) -> None:
        self.entry = entry
        self.sequence_id = sequence_ids[0]
        self.highest_sequence_id = sequence_ids[-1]
        self.count = len(sequence_ids)
        self.future = future
        self.sent_at_seconds = sent_at_seconds

    def frame(self, producer_id: int) -> bytes:
        """The SEND command of the entry, as a frame."""
        highest = self.highest_sequence_id if self.count > 1 else 0
        return requests.send(
            producer_id, self.sequence_id, self.entry, num_messages=self.count, highest_sequence_id=highest
        )


class ClientProducer(TopicEnd):
    """One producer of one topic (of one partition, if the topic has any). Made by `PulsarClient.producer`."""

    def __init__(self, parts: ClientParts, topic: TopicName, options: ProducerOptions) -> None:
        super().__init__(parts, topic)
        self.name = options.name or ""
        self.schema_version = b""
        self.last_sequence_id = -1
        """The sequence id of the newest message that was handed over; -1: none."""
        self._options = options
        if options.access_mode is AccessMode.WAIT_FOR_EXCLUSIVE:
            self._open_seconds_max = None
        self._stored_sequence_id = -1
        """The highest that is known to be the broker's."""
        self._epoch = 0
        self._topic_epoch: int | None = None
        self._pending: deque[Pending] = deque()
        self._pending_bytes = 0
        self._one_sender = asyncio.Lock()
        self._room = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    # --- for the user

    async def send(self, message: OutgoingMessage) -> MessageId:
        """Store one message; its id, (-1, -1) when the broker has it already. Raises why it is not stored:
        `PulsarError`, `TimedOut` (it may be stored), `MessageTooLarge`, or why the producer is over."""
        return (await self.send_all([message]))[0]

    async def send_all(self, messages: Sequence[OutgoingMessage]) -> list[MessageId]:
        """Store messages one by one, all on their way at once. Waits for room first; raises as `send` does."""
        async with self._one_sender:
            await self._wait_for_room()
            sequence_ids = self._numbers(messages)
            entries = [
                self._checked(entry_of_message(message, self._metadata(sequence_id)))
                for message, sequence_id in zip(messages, sequence_ids, strict=True)
            ]
            futures = [self._add(entry, (number,)) for entry, number in zip(entries, sequence_ids, strict=True)]
            self._write(len(futures))
        return await _all_of(futures)

    async def send_batch(self, messages: Sequence[OutgoingMessage]) -> list[MessageId]:
        """Store messages as one entry, all or none. Otherwise as `send_all`."""
        if not messages:
            return []
        (entry_id,) = await _all_of([await self.put_batch(messages)])
        return [entry_id._replace(batch_index=index, batch_size=len(messages)) for index in range(len(messages))]

    async def put_batch(self, messages: Sequence[OutgoingMessage]) -> asyncio.Future[MessageId]:
        """Send a batch of at least one message. Waits for room only: the future gets the entry's id, or the error.
        Entries go out in the order of the calls."""
        async with self._one_sender:
            await self._wait_for_room()
            sequence_ids = self._numbers(messages)
            metadata = self._metadata(sequence_ids[0])
            entry = self._checked(entry_of_batch(messages, metadata, sequence_ids, self._options.compression))
            future = self._add(entry, sequence_ids)
            self._write(1)
        return future

    async def put(self, message: OutgoingMessage) -> asyncio.Future[MessageId]:
        """Send one message that stands alone, as one that is delivered later has to. Waits for room only, as
        `put_batch`."""
        async with self._one_sender:
            await self._wait_for_room()
            (sequence_id,) = self._numbers([message])
            entry = self._checked(entry_of_message(message, self._metadata(sequence_id)))
            future = self._add(entry, (sequence_id,))
            self._write(1)
        return future

    async def flush(self) -> None:
        """Wait until everything that was sent so far is stored or has failed."""
        if self._pending:
            await asyncio.wait([self._pending[-1].future])

    # --- sending

    async def _wait_for_room(self) -> None:
        settings = self._parts.settings
        while True:
            self._check()
            if len(self._pending) < settings.pending_messages_max and self._pending_bytes < settings.pending_bytes_max:
                return
            self._room.clear()
            await self._room.wait()

    def _numbers(self, messages: Sequence[OutgoingMessage]) -> list[int]:
        last = self.last_sequence_id
        numbers: list[int] = []
        for message in messages:
            number = last + 1 if message.sequence_id is None else message.sequence_id
            if number <= last:
                raise Misuse(f"{self.topic}: sequence id {number} after {last}; they must grow")
            numbers.append(number)
            last = number
        self.last_sequence_id = last
        return numbers

    def _metadata(self, sequence_id: int) -> MessageMetadata:
        metadata = MessageMetadata(
            producer_name=self.name, sequence_id=sequence_id, publish_time=self._parts.clock.now_ms()
        )
        if self.schema_version:
            metadata.schema_version = self.schema_version
        return metadata

    def _checked(self, entry: bytes) -> bytes:
        connection = self._connection
        if connection is not None and len(entry) > connection.message_bytes_max + FRAME_PADDING_BYTES:
            raise MessageTooLarge(
                f"{self.topic}: a message of {len(entry)} bytes; {connection.message_bytes_max} are allowed"
            )
        return entry

    def _add(self, entry: bytes, sequence_ids: Sequence[int]) -> asyncio.Future[MessageId]:
        future: asyncio.Future[MessageId] = asyncio.get_running_loop().create_future()
        self._pending.append(Pending(entry, sequence_ids, future, self._parts.clock.monotonic_seconds()))
        self._pending_bytes += len(entry)
        self._arm_timer()
        return future

    def _write(self, count: int) -> None:
        """Send the newest entries, unless all are sent anyway once a connection is there."""
        if self._connection is not None and not self._connection.closed:
            newest = list(self._pending)[-count:] if count else []
            self._connection.write_parts([pending.frame(self._id) for pending in newest])

    # --- from the connection

    def receipts(self, receipts: list[Receipt]) -> None:
        """The oldest messages are stored."""
        connection = self._connection
        for receipt in receipts:
            if connection is not self._connection:
                return  # It was given up: what it still says is of no use.
            self._stored(receipt)

    def _stored(self, receipt: Receipt) -> None:
        sequence_id = receipt.sequence_id
        if not self._pending or sequence_id < self._pending[0].sequence_id:
            return  # Of a message that was given up, or was sent twice.
        if sequence_id > self._pending[0].sequence_id:
            logger.warning("%s: a receipt for %d while %d waits", self.topic, sequence_id, self._pending[0].sequence_id)
            self._start_again()
            return
        pending = self._forget_oldest()
        self._stored_sequence_id = max(self._stored_sequence_id, pending.highest_sequence_id)
        if not pending.future.done():
            pending.future.set_result(
                MessageId(receipt.ledger_id, receipt.entry_id, partition=self.topic.partition_index)
            )

    def send_failed(self, sequence_id: int, error: PulsarError) -> None:
        """A message is refused."""
        if error.code in ENDING_CODES:
            self._end(error)
            return
        head = self._pending[0] if self._pending else None
        if head is None or sequence_id < head.sequence_id:
            return
        if error.code in MESSAGE_CODES and sequence_id in (head.sequence_id, head.highest_sequence_id):
            pending = self._forget_oldest()
            if not pending.future.done():
                pending.future.set_exception(error)
            if self._options.ends_at_failure:
                self._end(error)
            return
        logger.warning("%s: message %d is sent again after a reconnection: %s", self.topic, sequence_id, error)
        self._start_again()

    def _start_again(self) -> None:
        # As Java's client does: only a new connection makes sure that nothing of the old one is still on its way.
        if self._connection is not None:
            self._connection.abort()

    def _forget_oldest(self) -> Pending:
        pending = self._pending.popleft()
        self._pending_bytes -= len(pending.entry)
        self._room.set()
        return pending

    # --- life

    async def _attach(self, connection: BrokerConnection) -> None:
        self._id = connection.attach_producer(self)
        request_id = -1
        try:
            request_id, answer = connection.start_request(
                lambda request_id: requests.producer(request_id, self._id, self._request())
            )
            async with asyncio.timeout(self._parts.settings.operation_timeout_seconds):
                success: CommandProducerSuccess = await answer
            if not success.producer_ready:
                self._turn = connection.next_answer(request_id)
                if self._lost_meanwhile:
                    self._give_up_turn()
                success = await self._turn
            self._check_name(success.last_sequence_id)
        except BaseException as error:
            self._abandon(connection, request_id)
            if isinstance(error, TimeoutError):
                raise TimedOut(f"{self.topic}: the broker does not answer PRODUCER") from None
            raise
        self._take_success(success)

    def _abandon(self, connection: BrokerConnection, request_id: int) -> None:
        """Leave nothing behind: the broker may still be at opening what nobody waits for any more."""
        connection.forget_request(request_id)
        connection.detach(self._id)
        if not connection.closed:
            connection.write(requests.close_producer(0, self._id))

    def _request(self) -> requests.ProducerRequest:
        options = self._options
        return requests.ProducerRequest(
            topic=str(self.topic),
            name=self.name or None,
            name_is_given=options.name is not None,
            epoch=self._epoch,
            access_mode=cast(ProducerAccessMode, int(options.access_mode)),
            topic_epoch=self._topic_epoch,
            schema=options.schema,
            metadata=options.metadata,
        )

    def _check_name(self, stored: int) -> None:
        """That nobody else sent under the name while this producer had no connection."""
        if not self._epoch or not self._options.ends_at_failure or stored <= self._stored_sequence_id:
            return
        if all(stored != pending.highest_sequence_id for pending in self._pending):
            raise PulsarError(
                ServerError.PRODUCER_FENCED,
                f"{self.topic}: another producer of this name stored number {stored} meanwhile",
            )

    def _take_success(self, success: CommandProducerSuccess) -> None:
        if not self._epoch:
            first = self._options.first_sequence_id
            self.last_sequence_id = success.last_sequence_id if first is None else first - 1
            self._stored_sequence_id = success.last_sequence_id
        self._epoch += 1
        self.name = success.producer_name
        self.schema_version = success.schema_version
        if success.HasField("topic_epoch"):
            self._topic_epoch = success.topic_epoch

    def _has_attached(self, connection: BrokerConnection) -> None:
        connection.write_parts([pending.frame(self._id) for pending in self._pending])

    def _has_ended(self, error: MagnetarError) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._fail_all(error)

    async def _take_leave(self, connection: BrokerConnection) -> None:
        await connection.request(lambda request_id: requests.close_producer(request_id, self._id))

    def _fail_all(self, error: MagnetarError) -> None:
        pending, self._pending = self._pending, deque()
        self._pending_bytes = 0
        self._room.set()
        for one in pending:
            if not one.future.done():
                one.future.set_exception(error)

    def _arm_timer(self) -> None:
        if self._timer is None and self._pending and self.failure is None:
            waited = self._parts.clock.monotonic_seconds() - self._pending[0].sent_at_seconds
            remaining = max(0.0, self._parts.settings.send_timeout_seconds - waited)
            self._timer = asyncio.get_running_loop().call_later(remaining, self._time_is_up)

    def _time_is_up(self) -> None:
        self._timer = None
        oldest_allowed = self._parts.clock.monotonic_seconds() - self._parts.settings.send_timeout_seconds
        if self._pending and self._pending[0].sent_at_seconds <= oldest_allowed:
            # All of them: what comes after a message that failed must not be stored before it is sent again.
            error = TimedOut(f"{self.topic}: no receipt in time")
            if self._options.ends_at_failure:
                self._end(error)
            else:
                self._fail_all(error)
        self._arm_timer()


async def _all_of(futures: Sequence[asyncio.Future[MessageId]]) -> list[MessageId]:
    """All results, or the first error once all are done."""
    results: list[Any] = await asyncio.gather(*futures, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
