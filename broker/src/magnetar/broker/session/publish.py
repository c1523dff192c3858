"""SEND (pulsar-protocol section 5): a read at a time, a batch per producer.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from typing import Final

from magnetar.broker.policies.broker_limits import BrokerLimits
from magnetar.broker.policies.send_turns import SEND_BYTES, SendTurns
from magnetar.broker.source_position import BEFORE_ALL
from magnetar.broker.states import ProducerState
from magnetar.broker.topics.producer import Producer, PublishBatch
from magnetar.broker.topics.topic import Topic
from magnetar.core.errors import PeerError
from magnetar.core.limits import SINGLE_MESSAGE_BYTES_MIN
from magnetar.net.connection import Connection
from magnetar.wire.pulsar import messages
from magnetar.wire.pulsar.command import Send, decode_send
from magnetar.wire.pulsar.errors import BadMetadata, ServerError
from magnetar.wire.pulsar.metadata import checksum_ok, count_messages

RECENTLY_CLOSED_MAX: Final = 10_000
"""Producer ids remembered after their end: SENDs that were under way then are dropped instead of closing the
connection. More ids than clients ever have open at once."""

PAUSED_FOR_PUBLISHES: Final = "publish buffer full"

FOR_SHADOWS_ONLY: Final = "Only shadow topic supports sending messages with messageId"
NOT_TO_SHADOWS: Final = "Cannot send messages to a shadow topic"
"""Apache's words, both."""


class Publishes:
    """What the producers of one connection send, and the bytes of it that are not stored yet."""

    def __init__(self, connection: Connection, limits: BrokerLimits, buffer_bytes_max: int) -> None:
        self._connection: Connection = connection
        self._limits: BrokerLimits = limits
        self._turns: SendTurns = limits.send_turns
        self._buffer_bytes_max: int = buffer_bytes_max
        self.producers: dict[int, Producer] = {}
        self.topics: dict[int, Topic] = {}
        self._recently_closed: dict[int, None] = {}
        self._batches: dict[int, PublishBatch] = {}
        self._waiting: list[PublishBatch] = []
        """What came when a group was at its limit, or this turn had no room left, in its order; bounded by what one
        read brings."""
        self._held_for: dict[str, None] = {}
        self._buffered_bytes: int = 0
        self.paused: bool = False
        """The connection is not read because too much of what came is not stored yet."""

    def opened(self, producer: Producer, topic: Topic) -> None:
        """SENDs of this producer may come."""
        producer_id = producer.producer_id
        producer.become(ProducerState.OPEN)
        producer.of_shadow = topic.source is not None
        self._turns.joined(self)
        self.producers[producer_id] = producer
        self.topics[producer_id] = topic
        self._recently_closed.pop(producer_id, None)

    def closed(self, producer_id: int) -> None:
        """SENDs of this producer that are under way are dropped; what came before is stored, whatever the limits."""
        if self._waiting:
            waiting = self._waiting
            self._waiting = [batch for batch in waiting if batch.producer.producer_id != producer_id]
            for batch in waiting:
                if batch.producer.producer_id == producer_id:
                    self._publish(self.topics[producer_id], batch)
        del self.producers[producer_id]
        del self.topics[producer_id]
        if not self.producers:
            self._turns.left(self)
        self._recently_closed[producer_id] = None
        while len(self._recently_closed) > RECENTLY_CLOSED_MAX:
            del self._recently_closed[next(iter(self._recently_closed))]

    def send(self, buffer: bytes, start: int, end: int) -> None:
        """Take one SEND frame; `flush` stores what a read brought."""
        send = decode_send(buffer, start, end)
        producer_id = send.producer_id
        batch = self._batches.get(producer_id)
        if batch is None:
            producer = self.producers.get(producer_id)
            if producer is None:
                self._send_to_unknown(producer_id)
                return
            batch = self._batches[producer_id] = PublishBatch(producer)
        payload_start = send.payload_start
        if not checksum_ok(buffer, payload_start, end):
            # What a damaged message says of its position counts for nothing: a replicator has to begin anew.
            batch.producer.refused_position = BEFORE_ALL
            self._connection.write(
                messages.send_error(
                    producer_id,
                    max(send.sequence_id, send.highest_sequence_id),
                    ServerError.CHECKSUM_ERROR,
                    "Checksum failed on the broker",
                )
            )
            return
        by_position = send.has_message_id or batch.producer.of_shadow
        if by_position and (refusal := _refusal_by_position(send, batch.producer)):
            self._connection.write(
                messages.send_error(producer_id, send.sequence_id, ServerError.NOT_ALLOWED_ERROR, refusal)
            )
            return
        payload = buffer[payload_start:end]
        num_messages = send.num_messages
        if num_messages != 1 and not 0 < num_messages * SINGLE_MESSAGE_BYTES_MIN <= end - payload_start:
            num_messages = _messages_in(payload)
        batch.add(payload, send.sequence_id, send.highest_sequence_id, num_messages)
        if by_position:
            batch.at((send.message_ledger_id, send.message_entry_id))
        if send.is_chunk:
            batch.has_chunks = True
        if send.txnid_least_bits >= 0 or batch.transactions is not None:
            batch.in_transaction(send.txnid_most_bits, send.txnid_least_bits)

    def flush(self) -> None:
        """Hand what was read to the topics, a batch per producer."""
        if not self._batches:
            return
        batches = self._batches
        self._batches = {}
        limits, connection, turns = self._limits, self._connection, self._turns
        for producer_id, batch in batches.items():
            if not batch.payloads:
                continue
            size_bytes = batch.size_bytes
            self._buffered_bytes += size_bytes
            topic = self.topics[producer_id]
            limits.publish_buffer.add(size_bytes, connection)
            cost_bytes = size_bytes + len(batch.payloads) * SEND_BYTES
            if topic.publish_limiters or self._waiting or turns.left_bytes < cost_bytes:
                self._waiting.append(batch)
            else:
                self._publish(topic, batch)
        if self._waiting:
            self._publish_waiting()
        if self._buffered_bytes > self._buffer_bytes_max and not self.paused:
            self.paused = True
            self._connection.pause_reading(PAUSED_FOR_PUBLISHES)

    def _publish(self, topic: Topic, batch: PublishBatch) -> None:
        """Hand a batch to its topic, and take it off all limits."""
        connection = self._connection
        size_bytes = batch.size_bytes
        message_count = batch.message_count
        self._turns.take(size_bytes, len(batch.payloads))
        batch.producer.batches_pending += 1
        topic.publish(batch)
        limiter = topic.publish_limiter
        if limiter is not None and limiter.take(message_count, size_bytes):
            limiter.hold(connection)
        limiter = self._limits.publish
        if limiter is not None and limiter.take(message_count, size_bytes):
            limiter.hold(connection)
        for limiter in topic.publish_limiters:
            if limiter.take(message_count, size_bytes):
                limiter.hold(self)

    def _publish_waiting(self) -> None:
        """As much as this turn and groups let pass now. While something waits, the turns or one of the groups' limiters
        hold this connection."""
        while self._waiting:
            left_bytes = self._turns.left_bytes
            if left_bytes <= 0:
                self._turns.hold(self, sum([batch.size_bytes for batch in self._waiting]))
                return
            batch = self._waiting[0]
            topic = self.topics[batch.producer.producer_id]
            count = len(batch.payloads)
            cost_bytes = batch.size_bytes + count * SEND_BYTES
            if cost_bytes > left_bytes:
                count = max(1, left_bytes * count // cost_bytes)
            for limiter in topic.publish_limiters:
                room_messages, room_bytes = limiter.room()
                if room_messages < 1 or room_bytes < 1:
                    limiter.hold(self)
                    return
                by_messages = room_messages * len(batch.payloads) // max(1, batch.message_count)
                by_size = room_bytes * len(batch.payloads) // max(1, batch.size_bytes)
                count = min(count, max(1, by_messages), max(1, by_size))
            if count == len(batch.payloads):
                del self._waiting[0]
                self._publish(topic, batch)
            else:
                # Which SEND holds how many messages is not kept: each counts for as many as the next.
                total = len(batch.payloads)
                message_count = batch.message_count * count // total
                self._waiting[0] = batch.part(count, total, batch.message_count - message_count)
                self._publish(topic, batch.part(0, count, message_count))

    def pause_reading(self, reason: str) -> None:
        """The turns, or a group's limiter, hold the connection."""
        self._held_for[reason] = None
        self._connection.pause_reading(reason)

    def resume_reading(self, reason: str) -> None:
        """Who held it lets it go on: what waits comes first."""
        self._held_for.pop(reason, None)
        self._publish_waiting()
        if reason not in self._held_for:
            self._connection.resume_reading(reason)

    def publish_finished(self, size_bytes: int) -> None:
        """Producer: these bytes are stored (or refused)."""
        self._buffered_bytes -= size_bytes
        self._limits.publish_buffer.remove(size_bytes)
        if self.paused and self._buffered_bytes <= self._buffer_bytes_max // 2:
            self.paused = False
            self._connection.resume_reading(PAUSED_FOR_PUBLISHES)

    def write(self, data: bytes) -> None:
        """Producer: send bytes to the client."""
        self._connection.write(data)

    def _send_to_unknown(self, producer_id: int) -> None:
        if producer_id not in self._recently_closed:
            raise PeerError(f"SEND of producer {producer_id}, which this connection does not have")


def _refusal_by_position(send: Send, producer: Producer) -> str:
    """Why a SEND is refused that names a position, or that goes to a shadow topic. Only the source's replicator tells a
    shadow where entries stand; Apache's broker believes anybody."""
    if not producer.of_shadow:
        return FOR_SHADOWS_ONLY
    if not send.has_message_id or not producer.is_replicator:
        return NOT_TO_SHADOWS
    return ""


def _messages_in(payload: bytes) -> int:
    """How many messages a SEND counts for whose command says what it cannot hold uncompressed, or none."""
    try:
        return count_messages(payload)
    except BadMetadata:
        return 1
