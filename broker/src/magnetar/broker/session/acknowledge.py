"""ACK and FLOW (pulsar-protocol section 6).

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from typing import Final

from magnetar.broker.dispatch.consumer import Consumer
from magnetar.broker.server_errors import server_error_of
from magnetar.broker.subscriptions.non_persistent_subscription import NonPersistentSubscription
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.topic import PersistentTopic, Topic
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import LATEST, NO_ENTRY
from magnetar.net.connection import Connection
from magnetar.wire.pulsar import messages
from magnetar.wire.pulsar.ack_parts import ACK_BYTES_AT_ONCE, AckParts
from magnetar.wire.pulsar.command import Ack, decode_ack, decode_flow
from magnetar.wire.pulsar.errors import PulsarError, ServerError

KNOWN: Final = 0.0
"""Who asks for messages, or for another place to read from, has read that its consumer is open: its end is told at
once. Later, acknowledgements would go to a consumer that is gone, and a seek would end before its consumer does."""


ACK_BYTES_PER_TURN: Final = 2 * ACK_BYTES_AT_ONCE
"""ACKs of one connection that are taken before others have their turn: a read may bring very many."""

HOLD_KEY: Final = "magnetar.read-only-broker"
"""In the metadata of a consumer by which a broker that only reads holds a subscription; the value is that broker's id.
Apache's brokers show it in their statistics, and nothing else."""

UNKNOWN: Final = "This broker has not confirmed such an entry: the topic may have another owner"


class Attachment:
    """A consumer with what it is attached to."""

    __slots__ = ("consumer", "opened_seconds", "subscription", "topic")

    def __init__(
        self,
        consumer: Consumer,
        subscription: Subscription | NonPersistentSubscription,
        topic: Topic,
        opened_seconds: float,
    ) -> None:
        self.consumer = consumer
        self.subscription = subscription
        self.topic = topic
        self.opened_seconds = opened_seconds
        """When the client was told of its success, by the monotonic clock; `KNOWN` once it has asked for anything."""


class AckReceipt:
    """Tells the client how its acknowledgement fared."""

    __slots__ = ("_connection", "_consumer_id", "_request_id")

    def __init__(self, connection: Connection, ack: Ack) -> None:
        self._connection: Connection = connection
        self._consumer_id: int = ack.consumer_id
        self._request_id: int = ack.request_id

    def __call__(self, error: MagnetarError | None) -> None:
        code = None if error is None else server_error_of(error)
        self._connection.write(
            messages.ack_response(self._consumer_id, self._request_id, code, str(error) if error else "")
        )


def _is_unknown(topic: PersistentTopic, consumer: Consumer, ack: Ack) -> bool:
    """Whether a broker that only reads acknowledges an entry that this one has not confirmed: it has seen what another
    owner wrote, of whom this one has not heard yet. Of clients' own consumers such an entry is passed over, as at
    Apache's broker."""
    if not ack.positions or HOLD_KEY not in consumer.identity.metadata:
        return False
    position = max(ack.positions)
    if position[1] == NO_ENTRY:
        # All before this ledger, of which the topic may have nothing any more: its last entry may be trimmed, too.
        return position[0] > topic.ledger.ledgers.last().ledger_id
    return topic.ledger.last_confirmed < position < LATEST


class TransactionReceipt:
    """Tells the client how an acknowledgement in a transaction fared, once all of its parts are durable or one of them
    is refused: a long ACK is taken in parts, of which only the last one has the request id."""

    __slots__ = ("_connection", "_consumer_id", "_error", "_request_id", "_waiting")

    def __init__(self, connection: Connection, consumer_id: int) -> None:
        self._connection: Connection = connection
        self._consumer_id: int = consumer_id
        self._request_id: int = -1
        self._waiting: int = 0
        self._error: MagnetarError | None = None

    def expect(self, request_id: int) -> None:
        """One more part; the last one has a request id, if the client wants an answer."""
        self._waiting += 1
        if request_id >= 0:
            self._request_id = request_id

    def __call__(self, error: MagnetarError | None) -> None:
        self._waiting -= 1
        if error is not None and self._error is None:
            self._error = error
        if self._waiting or self._request_id < 0:
            return
        known = self._error
        code = None if known is None else server_error_of(known)
        self._connection.write(
            messages.ack_response(self._consumer_id, self._request_id, code, str(known) if known is not None else "")
        )


class ConsumerRequests:
    """What the consumers of one connection ask for and are done with."""

    def __init__(self, connection: Connection) -> None:
        self._connection: Connection = connection
        self.consumers: dict[int, Attachment] = {}
        self._parts: AckParts | None = None
        self._receipt: TransactionReceipt | None = None
        """Of the transaction's ACK whose parts are being taken."""
        self._bytes: int = 0

    def acknowledge(self, buffer: bytes, start: int, end: int) -> bool:
        """Take one ACK frame. False: not all of it, since others have their turn first; then call this again.

        One of a consumer that is gone is dropped, and whoever waits for its receipt is told: Apache's broker says
        nothing, and such a client stands still until its operation times out."""
        if end - start > ACK_BYTES_AT_ONCE:
            return self._acknowledge_part(buffer, start, end)
        self._bytes += end - start
        if self._bytes > ACK_BYTES_PER_TURN:
            self._bytes = 0
            return False
        self._take(decode_ack(buffer, start, end))
        self._receipt = None
        return True

    def _acknowledge_part(self, buffer: bytes, start: int, end: int) -> bool:
        parts = self._parts
        if parts is None:
            parts = self._parts = AckParts(buffer, start, end)
        ack = parts.next()
        if ack is None:
            return False
        self._take(ack)
        if not parts.over:
            return False
        self._parts = None
        self._receipt = None
        return True

    def _take(self, ack: Ack) -> None:
        attachment = self.consumers.get(ack.consumer_id)
        if attachment is None or attachment.consumer.closed:
            if ack.request_id >= 0:
                gone = messages.ack_response(
                    ack.consumer_id, ack.request_id, ServerError.CONSUMER_NOT_FOUND, "The consumer is closed"
                )
                self._connection.write(gone)
            return
        subscription = attachment.subscription
        if not isinstance(subscription, Subscription):
            # Nothing is stored, so there is nothing to acknowledge.
            if ack.request_id >= 0:
                self._connection.write(messages.ack_response(ack.consumer_id, ack.request_id))
            return
        topic = attachment.topic
        if ack.txnid_most_bits >= 0 and ack.txnid_least_bits >= 0 and isinstance(topic, PersistentTopic):
            pending_acks = topic.pending_acks
            if pending_acks is not None:
                receipt = self._receipt
                if receipt is None:
                    receipt = self._receipt = TransactionReceipt(self._connection, ack.consumer_id)
                receipt.expect(ack.request_id)
                pending_acks.acknowledge(subscription, attachment.consumer, ack, receipt)
                return
        if ack.request_id < 0:
            subscription.acknowledge(attachment.consumer, ack, None)
            return
        if isinstance(topic, PersistentTopic) and _is_unknown(topic, attachment.consumer, ack):
            self._connection.write(
                messages.ack_response(ack.consumer_id, ack.request_id, ServerError.SERVICE_NOT_READY, UNKNOWN)
            )
            return
        try:
            subscription.acknowledge(attachment.consumer, ack, AckReceipt(self._connection, ack))
        except PulsarError as error:
            self._connection.write(messages.ack_response(ack.consumer_id, ack.request_id, error.code, error.message))

    def flow(self, buffer: bytes, start: int, end: int) -> None:
        """Take one FLOW frame: the consumer may be sent so many more messages."""
        flow = decode_flow(buffer, start, end)
        attachment = self.consumers.get(flow.consumer_id)
        if attachment is not None:
            attachment.opened_seconds = KNOWN
            attachment.subscription.flow(attachment.consumer, flow.permits)
