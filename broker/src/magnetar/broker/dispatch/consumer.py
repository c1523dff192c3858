"""A consumer as the broker sees it: what one client may be sent, what it holds unacknowledged, what it was sent.

The subscription decides what goes to which consumer; this file turns a list of entries into one write.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from magnetar.broker.dispatch.pending_acknowledgements import PendingAcknowledgements
from magnetar.broker.dispatch.rates import ConsumerRates
from magnetar.broker.states import CONSUMER_TRANSITIONS, ConsumerState
from magnetar.wire.pulsar.command import MessageHeaderEncoder
from magnetar.wire.pulsar.enums import SubscriptionType

if TYPE_CHECKING:
    from magnetar.core.ids import Position
    from magnetar.managed.entry import Entry

BROKER_ENTRY_MAGIC: Final = b"\x0e\x02"
"""How a stored entry starts when the broker put its own metadata before the client's (pulsar-protocol §1)."""

BROKER_ENTRY_HEADER_BYTES: Final = 6
"""Bytes of the magic and of the length that stand before the broker's own metadata."""

PERMITS_MAX: Final = 0x7FFF_FFFF
"""Messages that a consumer can be owed: clients and tools read the number with 32 bits."""

NO_EPOCH: Final = -1
"""A consumer that named no epoch: MESSAGE then carries none."""


_OPEN: Final = ConsumerState.OPEN
_BLOCKED: Final = ConsumerState.BLOCKED


class ConsumerOutput(Protocol):
    """Where a consumer's messages go."""

    @property
    def writable(self) -> bool:
        """Whether the peer keeps up with what it is sent."""
        ...

    def write_parts(self, parts: list[bytes]) -> None:
        """Send these bytes, in order."""
        ...


class ConsumerConnection(Protocol):
    """What a consumer needs from the session that it came in on."""

    @property
    def output(self) -> ConsumerOutput:
        """Where messages are written: the same object as long as the connection lasts."""
        ...

    @property
    def ended(self) -> bool:
        """Whether the client is gone; its consumers are let go of."""
        ...

    def active_consumer_changed(self, consumer: Consumer, *, active: bool) -> None:
        """Failover: this consumer is now the one that receives, or no longer."""
        ...

    def reached_end_of_topic(self, consumer: Consumer) -> None:
        """The topic is terminated and the subscription has acknowledged everything. Once per consumer."""
        ...

    def consumer_disconnected(self, consumer: Consumer) -> None:
        """The broker dropped the consumer; the client has to be told to subscribe again."""
        ...


class KeySharedPolicy:
    """`KeySharedMeta`: how keys are spread over consumers."""

    __slots__ = ("allow_out_of_order", "ranges", "sticky")

    def __init__(
        self, *, sticky: bool = False, ranges: list[tuple[int, int]] | None = None, allow_out_of_order: bool = False
    ) -> None:
        self.sticky = sticky
        self.ranges: list[tuple[int, int]] = ranges or []
        self.allow_out_of_order = allow_out_of_order


class ConsumerIdentity:
    """What the client said in SUBSCRIBE, and who it is."""

    __slots__ = (
        "address",
        "app_id",
        "client_version",
        "consumer_epoch",
        "consumer_id",
        "durable",
        "key_shared",
        "metadata",
        "name",
        "priority_level",
        "read_compacted",
        "subscription_type",
    )

    def __init__(self, consumer_id: int, name: str, subscription_type: SubscriptionType) -> None:
        self.consumer_id = consumer_id
        self.name = name
        self.subscription_type = subscription_type
        self.priority_level = 0
        self.durable = True
        self.consumer_epoch = NO_EPOCH
        self.key_shared: KeySharedPolicy | None = None
        self.metadata: dict[str, str] = {}
        self.address = ""
        self.client_version = ""
        self.app_id = ""
        self.read_compacted = False


class Consumer:
    """One consumer of one subscription. The subscription owns it; the session hands it over and takes it back."""

    def __init__(
        self,
        identity: ConsumerIdentity,
        connection: ConsumerConnection,
        *,
        partition_index: int = -1,
        unacked_messages_max: int = 50_000,
        connected_since_ms: int = 0,
    ) -> None:
        self.identity = identity
        self.connection = connection
        self._output: ConsumerOutput = connection.output
        self.consumer_id = identity.consumer_id
        self.name = identity.name
        self.priority_level = identity.priority_level
        self.partition_index = partition_index
        self.unacked_messages_max = 0
        self.connected_since_ms = connected_since_ms
        self.state = ConsumerState.OPEN
        self.end_announced = False
        self.permits = 0
        self.unacked_messages = 0
        self.consumer_epoch = identity.consumer_epoch
        self.pending = PendingAcknowledgements()
        self.durable = identity.durable
        self.read_position_when_joining: Position | None = None
        self.messages_out = 0
        self.bytes_out = 0
        self.entries_out = 0
        self.messages_redelivered = 0
        self.messages_acknowledged = 0
        self.chunks_out = 0
        self.last_flow_ms = 0
        self.last_consumed_ms = 0
        self.last_acknowledged_ms = 0
        self.rates = ConsumerRates()
        self._encoder = self._new_encoder()
        self.limit(unacked_messages_max)

    @property
    def closed(self) -> bool:
        """Whether it has left its subscription."""
        return self.state is ConsumerState.CLOSED

    @property
    def blocked(self) -> bool:
        """Whether it holds as many unacknowledged messages as it may."""
        return self.state is _BLOCKED

    def become(self, state: ConsumerState) -> None:
        """Change the state, as `states.py` allows it."""
        self.state = CONSUMER_TRANSITIONS.step(self.state, state)

    def allow(self, messages: int) -> None:
        """It takes so many more messages."""
        self.permits = min(self.permits + messages, PERMITS_MAX)

    @property
    def room(self) -> int:
        """Messages that it may be sent now; 0 or less when it has to wait."""
        if self.state is not _OPEN or not self._output.writable:
            return 0
        if self.unacked_messages_max > 0:
            return min(self.permits, self.unacked_messages_max - self.unacked_messages)
        return self.permits

    def set_epoch(self, epoch: int) -> None:
        """Tag what is sent from now on, so that the client can drop what was on its way before."""
        self.consumer_epoch = epoch
        self._encoder = self._new_encoder()

    def send_entries(
        self,
        entries: list[Entry],
        message_counts: list[int],
        redelivery_counts: list[int] | None = None,
        ack_sets: list[list[int] | None] | None = None,
    ) -> int:
        """Send entries in one write and take their messages off the permits. Returns how many messages that were.

        `message_counts` has each entry's messages that are still unacknowledged; the two other lists, where given, run
        parallel to it. What the broker itself put before an entry is left out.
        """
        encode = self._encoder.encode
        parts: list[bytes] = []
        size_bytes = 0
        for index, entry in enumerate(entries):
            data = entry.data
            if data[:2] == BROKER_ENTRY_MAGIC:
                data = data[BROKER_ENTRY_HEADER_BYTES + int.from_bytes(data[2:BROKER_ENTRY_HEADER_BYTES], "big") :]
            redelivery_count = 0 if redelivery_counts is None else redelivery_counts[index]
            ack_set = None if ack_sets is None else ack_sets[index]
            size = len(data)
            parts.append(encode(entry.ledger_id, entry.entry_id, redelivery_count, ack_set, size))
            parts.append(data)
            size_bytes += size
        messages = sum(message_counts)
        self.permits -= messages
        self.messages_out += messages
        self.bytes_out += size_bytes
        self.entries_out += len(entries)
        self._output.write_parts(parts)
        return messages

    def hold(
        self,
        entries: list[Entry],
        message_counts: list[int],
        key_hashes: list[int] | None,
        holders: dict[Position, Consumer] | None = None,
    ) -> int:
        """Remember what was sent until it is acknowledged; at the limit the consumer is blocked. Shared types only.

        In `holders` it is written down beside each entry. Returns by how many messages what it holds has grown.
        """
        added = self.pending.add(entries, message_counts, key_hashes, holders, self)
        self.unacked_messages += added
        if 0 < self.unacked_messages_max <= self.unacked_messages and self.state is _OPEN:
            self.become(_BLOCKED)
        return added

    def limit(self, unacked_messages_max: int) -> None:
        """It may hold so many unacknowledged messages from now on; 0 is no limit. For the shared types only: what one
        receiver holds is not counted."""
        if not self.identity.subscription_type.acknowledges_individually:
            unacked_messages_max = 0
        self.unacked_messages_max = unacked_messages_max
        if self.blocked and (unacked_messages_max <= 0 or self.unacked_messages < unacked_messages_max):
            self.become(_OPEN)
        if 0 < unacked_messages_max <= self.unacked_messages and self.state is _OPEN:
            # Or nobody would hear of it when it holds less.
            self.become(_BLOCKED)

    def released(self, messages: int) -> bool:
        """So many held messages are acknowledged or taken back. True when this ends its being blocked (at half)."""
        self.unacked_messages -= messages
        if self.state is _BLOCKED and self.unacked_messages <= self.unacked_messages_max // 2:
            self.become(_OPEN)
            return True
        return False

    def announce_end(self) -> bool:
        """Tell the client once that nothing more will come; whether it was told now."""
        if self.end_announced:
            return False
        self.end_announced = True
        self.connection.reached_end_of_topic(self)
        return True

    def update_rates(self, seconds: float) -> None:
        """Turn counters into rates over the time since the last call."""
        rates = self.rates
        rates.messages_out.update(self.messages_out, seconds)
        rates.bytes_out.update(self.bytes_out, seconds)
        rates.messages_redelivered.update(self.messages_redelivered, seconds)
        rates.messages_acknowledged.update(self.messages_acknowledged, seconds)
        rates.chunks_out.update(self.chunks_out, seconds)

    def _new_encoder(self) -> MessageHeaderEncoder:
        epoch = None if self.consumer_epoch == NO_EPOCH else self.consumer_epoch
        return MessageHeaderEncoder(self.consumer_id, self.partition_index, epoch)
