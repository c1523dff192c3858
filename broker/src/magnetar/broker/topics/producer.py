"""A producer as the broker sees it: what one client connection may publish to one topic, and what it is owed.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, Protocol

from magnetar.broker.replicated_message import ReplicatedMessage
from magnetar.broker.replicator_names import is_replicator
from magnetar.broker.states import PRODUCER_TRANSITIONS, ProducerState
from magnetar.core.errors import MagnetarError
from magnetar.wire.pulsar import messages
from magnetar.wire.pulsar.errors import ServerError
from magnetar.wire.pulsar.send_receipts import encode_send_receipt, encode_send_receipts

if TYPE_CHECKING:
    from magnetar.core.ids import Position

_CLOSED: Final = ProducerState.CLOSED


class ProducerConnection(Protocol):
    """What a producer needs from the session that it came in on."""

    def write(self, data: bytes) -> None:
        """Send bytes to the client."""
        ...

    def publish_finished(self, size_bytes: int) -> None:
        """These bytes are no longer held for this connection."""
        ...

    def producer_disconnected(self, producer: Producer) -> None:
        """The broker dropped the producer; the client has to be told to open it again."""
        ...

    def alive(self) -> Coroutine[Any, Any, bool]:
        """Whether the client still answers. When not, its connection is closed."""
        ...


class PublishBatch:
    """The messages of one producer that came in one read: they are stored by one append and answered by one write."""

    __slots__ = (
        "has_chunks",
        "highest_sequence_ids",
        "message_count",
        "payloads",
        "positions",
        "producer",
        "replicated",
        "sequence_ids",
        "size_bytes",
        "transactions",
    )

    def __init__(self, producer: Producer) -> None:
        self.producer = producer
        self.payloads: list[bytes] = []
        self.sequence_ids: list[int] = []
        self.highest_sequence_ids: list[int] = []
        self.message_count = 0
        self.size_bytes = 0
        self.has_chunks = False
        """Whether any SEND says that it is a part of a larger message."""
        self.positions: list[Position] | None = None
        """Where each SEND says that an entry stands at the source, for a shadow topic; None of any other producer."""
        self.replicated: list[ReplicatedMessage | None] | None = None
        """What each SEND of another cluster's replicator says of itself; None of any other producer."""
        self.transactions: list[tuple[int, int] | None] | None = None
        """The transaction of each SEND, None for one without; None when none has one."""

    @property
    def looked_at(self) -> bool:
        """Whether its messages are looked at one by one whatever the topic's policies are."""
        return self.transactions is not None or self.producer.is_replicator

    def part(self, start: int, end: int, message_count: int) -> PublishBatch:
        """The SENDs from the one to before the other, which hold so many messages."""
        part = PublishBatch(self.producer)
        part.payloads = self.payloads[start:end]
        part.sequence_ids = self.sequence_ids[start:end]
        part.highest_sequence_ids = self.highest_sequence_ids[start:end]
        part.message_count = message_count
        part.size_bytes = sum(map(len, part.payloads))
        part.has_chunks = self.has_chunks
        if self.positions is not None:
            part.positions = self.positions[start:end]
        if self.replicated is not None:
            part.replicated = self.replicated[start:end]
        if self.transactions is not None:
            part.transactions = self.transactions[start:end]
        return part

    def add(self, payload: bytes, sequence_id: int, highest_sequence_id: int, message_count: int) -> None:
        """One SEND: `payload` is its headersAndPayload, stored as it is."""
        self.payloads.append(payload)
        self.sequence_ids.append(sequence_id)
        self.highest_sequence_ids.append(highest_sequence_id)
        self.message_count += message_count
        self.size_bytes += len(payload)

    def at(self, position: Position) -> None:
        """The SEND that was added last tells of the entry that stands there. Called for each, or for none."""
        if self.positions is None:
            self.positions = []
        self.positions.append(position)

    def in_transaction(self, most_bits: int, least_bits: int) -> None:
        """The SEND that was added last is of this transaction; below 0 of none. Called for each that follows, too."""
        if self.transactions is None:
            self.transactions = [None] * (len(self.payloads) - 1)
        self.transactions.append((most_bits, least_bits) if most_bits >= 0 and least_bits >= 0 else None)


class HeldAnswer:
    """The answer to what was not stored, which waits for the receipts of what was sent before it.

    `after` counts the batches that the topic must have answered; `code` is None for a duplicate."""

    __slots__ = ("after", "batch", "code", "message")

    def __init__(self, after: int, batch: PublishBatch, code: ServerError | None, message: str) -> None:
        self.after = after
        self.batch = batch
        self.code = code
        self.message = message


class ProducerIdentity:
    """What the client said in PRODUCER."""

    __slots__ = (
        "access_mode",
        "address",
        "client_version",
        "encrypted",
        "epoch",
        "metadata",
        "name",
        "producer_id",
        "schema_version",
        "source_positions",
        "topic_epoch",
        "user_provided_name",
    )

    def __init__(self, producer_id: int, name: str) -> None:
        self.producer_id = producer_id
        self.name = name
        self.epoch = 0
        self.user_provided_name = True
        self.access_mode = 0
        self.topic_epoch: int | None = None
        self.encrypted = False
        self.metadata: dict[str, str] = {}
        self.schema_version: bytes = b""
        self.address = ""
        self.client_version = ""
        self.source_positions = False
        """Whether the client can match receipts by positions at their source (`supports_repl_dedup_by_lid_and_eid`)."""


class Producer:
    """One producer of one topic. The topic owns it; the session feeds it."""

    def __init__(self, identity: ProducerIdentity, connection: ProducerConnection, connected_since_ms: int) -> None:
        self.identity = identity
        self.name = identity.name
        self.producer_id = identity.producer_id
        self.connection = connection
        self.connected_since_ms = connected_since_ms
        self.state = ProducerState.OPENING
        self.is_replicator = is_replicator(identity.name)
        """Of another cluster: no client, and what it sends has producers of its own."""
        self.of_shadow = False
        """Whether the topic shows the entries of another one, and is only told where these stand."""
        self.refused_position: Position | None = None
        """Of a replicator that goes by positions: the first message that it was refused and has not sent again. What
        comes after it is refused, too: once that were stored, the first one would count as stored as well."""
        self.batches_pending = 0
        """Batches that the topic was given and has not answered."""
        self.batches_waiting = 0
        """The last ones of these: until it is known whether their transactions are open."""
        self._on_drained: list[Callable[[], None]] = []
        self._answered = 0
        self._held_answers: list[HeldAnswer] | None = None
        """Bounded by the bytes that a connection may have unanswered."""
        self.messages_in = 0
        self.bytes_in = 0
        self.chunked_messages_in = 0
        self.message_rate_in = 0.0
        self.byte_rate_in = 0.0
        self._messages_in_at_update = 0
        self._bytes_in_at_update = 0

    def stored(self, batch: PublishBatch, ledger_id: int, first_entry_id: int) -> None:
        """The batch is durable: send its receipts, in order, in one write."""
        self.messages_in += batch.message_count
        self.bytes_in += batch.size_bytes
        if self.state is not _CLOSED:
            self.connection.write(
                encode_send_receipts(
                    self.producer_id, ledger_id, first_entry_id, batch.sequence_ids, batch.highest_sequence_ids
                )
            )
        self._stored_or_not(batch)

    def not_stored(self, batch: PublishBatch) -> None:
        """A non-persistent topic took the batch: receipts with 0:0, as Apache's broker sends them."""
        self.messages_in += batch.message_count
        self.bytes_in += batch.size_bytes
        if self.state is not _CLOSED:
            self.connection.write(
                b"".join(
                    [
                        encode_send_receipt(self.producer_id, sequence_id, highest, 0, 0)
                        for sequence_id, highest in zip(batch.sequence_ids, batch.highest_sequence_ids, strict=True)
                    ]
                )
            )
        self._stored_or_not(batch)

    def told(self, batch: PublishBatch, positions: list[Position]) -> None:
        """The shadow topic knows where these entries stand: receipts with their positions at the source."""
        self.messages_in += batch.message_count
        self.bytes_in += batch.size_bytes
        if self.state is not _CLOSED:
            receipts: list[bytes] = []
            for index, position in enumerate(positions):
                first, highest = batch.sequence_ids[index], batch.highest_sequence_ids[index]
                receipts.append(encode_send_receipt(self.producer_id, first, highest, position[0], position[1]))
            self.connection.write(b"".join(receipts))
        self._stored_or_not(batch)

    def dropped(self, batch: PublishBatch, error: MagnetarError) -> None:
        """The batch is not stored and the client is about to reconnect and send it again: say nothing."""
        del error
        self._stored_or_not(batch)

    def answer_in_order(self, batch: PublishBatch, code: ServerError | None, message: str = "") -> None:
        """The batch, of which the topic stores nothing, is answered once all before it is: with an error, or (None) as
        one that is stored already."""
        held = self._held_answers
        unanswered = self.batches_pending - self.batches_waiting - 1 - (len(held) if held is not None else 0)
        if unanswered <= 0:
            self._write_answer(batch, code, message)
            self._finished(batch)
            return
        if held is None:
            held = self._held_answers = []
        held.append(HeldAnswer(self._answered + unanswered, batch, code, message))

    def _write_answer(self, batch: PublishBatch, code: ServerError | None, message: str) -> None:
        if self.state is _CLOSED:
            return
        for sequence_id, highest in zip(batch.sequence_ids, batch.highest_sequence_ids, strict=True):
            if code is None:
                self.connection.write(encode_send_receipt(self.producer_id, sequence_id, highest, -1, -1))
            else:
                self.connection.write(messages.send_error(self.producer_id, max(sequence_id, highest), code, message))

    def _stored_or_not(self, batch: PublishBatch) -> None:
        """The topic is done with a batch: the answers that waited for this are next."""
        self._answered += 1
        self._finished(batch)
        while self._held_answers is not None and self._held_answers[0].after <= self._answered:
            held = self._held_answers.pop(0)
            if not self._held_answers:
                self._held_answers = None
            self._write_answer(held.batch, held.code, held.message)
            self._finished(held.batch)

    def _finished(self, batch: PublishBatch) -> None:
        self.connection.publish_finished(batch.size_bytes)
        self.batches_pending -= 1
        if self.batches_pending == 0 and self._on_drained:
            waiting, self._on_drained = self._on_drained, []
            for drained in waiting:
                drained()

    def when_drained(self, drained: Callable[[], None]) -> None:
        """Call this once nothing is pending, at once if so."""
        if self.batches_pending:
            self._on_drained.append(drained)
        else:
            drained()

    @property
    def closed(self) -> bool:
        """Whether its client is sent nothing more."""
        return self.state is _CLOSED

    def become(self, state: ProducerState) -> None:
        """Change the state, as `states.py` allows it."""
        self.state = PRODUCER_TRANSITIONS.step(self.state, state)

    def disconnect(self) -> None:
        """Tell the client to look the topic up again."""
        if self.state is not _CLOSED:
            self.become(_CLOSED)
            self.connection.producer_disconnected(self)

    def update_rates(self, seconds: float) -> None:
        """Turn counters into rates over the time since the last call."""
        self.message_rate_in = (self.messages_in - self._messages_in_at_update) / seconds
        self.byte_rate_in = (self.bytes_in - self._bytes_in_at_update) / seconds
        self._messages_in_at_update = self.messages_in
        self._bytes_in_at_update = self.bytes_in
