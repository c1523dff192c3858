"""The commands that pass per message, read and written by hand; the others are in `messages`.

`start` and `end` are a frame's bounds as `FrameSplitter` gives them: `start` is at the size of the command. Readers
accept any order of fields, unknown fields and repeated ones (the last counts), as protobuf does; what they cannot read
is a `BadCommand`.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from magnetar.core.ids import signed64, unsigned64
from magnetar.core.limits import ACK_SET_WORDS_MAX
from magnetar.wire.errors import BadProtobuf
from magnetar.wire.pulsar.errors import BadCommand
from magnetar.wire.pulsar.varint import (
    read_length,
    read_tag,
    read_varint,
    signed32,
    skip_value,
    varint,
    varint_signed,
)

TYPE_SEND: Final = 6
TYPE_MESSAGE: Final = 9
TYPE_ACK: Final = 10
TYPE_FLOW: Final = 11
TYPE_PING: Final = 18

PING_FRAME: Final = b"\x00\x00\x00\x09\x00\x00\x00\x05\x08\x12\x92\x01\x00"
PONG_FRAME: Final = b"\x00\x00\x00\x09\x00\x00\x00\x05\x08\x13\x9a\x01\x00"

ABSENT: Final = -1
"""Stands for an optional unsigned number that was not there."""

TOO_MANY_WORDS: Final = f"an ack set of more than {ACK_SET_WORDS_MAX} words: no batch has so many messages"

_TAG_SEND: Final = TYPE_SEND << 3 | 2
TAG_ACK: Final = TYPE_ACK << 3 | 2
TAG_ACK_MESSAGE_ID: Final = 0x1A
_TAG_FLOW: Final = TYPE_FLOW << 3 | 2

_LOW_LAST: Final[list[bytes]] = [bytes([byte]) for byte in range(128)]
_LOW_CONTINUED: Final[list[bytes]] = [bytes([byte | 0x80]) for byte in range(128)]

_U32: Final = Struct(">I")
_SIZES: Final = Struct(">II")


class Send:
    """SEND: the command, and where the message (headers and payload) lies in the buffer."""

    __slots__ = (
        "has_message_id",
        "highest_sequence_id",
        "is_chunk",
        "marker",
        "message_entry_id",
        "message_ledger_id",
        "num_messages",
        "payload_end",
        "payload_start",
        "producer_id",
        "sequence_id",
        "txnid_least_bits",
        "txnid_most_bits",
    )

    def __init__(self) -> None:
        self.producer_id: int = ABSENT
        self.sequence_id: int = ABSENT
        self.highest_sequence_id: int = 0
        self.num_messages: int = 1
        self.is_chunk: bool = False
        self.marker: bool = False
        self.txnid_least_bits: int = ABSENT
        self.txnid_most_bits: int = ABSENT
        self.has_message_id: bool = False
        self.message_ledger_id: int = ABSENT
        self.message_entry_id: int = ABSENT
        self.payload_start: int = 0
        self.payload_end: int = 0


class Ack:
    """ACK: `positions` are signed (ledger id, entry id).

    `ack_sets` and `batch_sizes` run parallel to `positions` and are None when no id has one; an id without has an empty
    list and 0. `validation_error` and `request_id` are -1 when absent. The properties are left to `messages`.
    """

    __slots__ = (
        "ack_sets",
        "batch_sizes",
        "consumer_id",
        "cumulative",
        "has_properties",
        "positions",
        "request_id",
        "txnid_least_bits",
        "txnid_most_bits",
        "validation_error",
    )

    def __init__(self) -> None:
        self.consumer_id: int = ABSENT
        self.cumulative: bool = False
        self.positions: list[tuple[int, int]] = []
        self.ack_sets: list[list[int]] | None = None
        self.batch_sizes: list[int] | None = None
        self.request_id: int = ABSENT
        self.txnid_least_bits: int = ABSENT
        self.txnid_most_bits: int = ABSENT
        self.validation_error: int = ABSENT
        self.has_properties: bool = False


class Flow:
    """FLOW: so many more messages may be sent to the consumer."""

    __slots__ = ("consumer_id", "permits")

    def __init__(self) -> None:
        self.consumer_id: int = ABSENT
        self.permits: int = ABSENT


def command_type(buffer: bytes, start: int) -> int:
    """The type when it is the command's first field, as every known client writes it; 0 when a look inside is needed.

    Only a hint: a frame that is too short for a command is refused by whatever reads the command.
    """
    at = start + 4
    if len(buffer) < at + 2 or buffer[at] != 8:
        return 0
    kind = buffer[at + 1]
    return kind if kind < 0x80 else 0


def decode_send(buffer: bytes, start: int, end: int) -> Send:
    """Read a SEND."""
    send = Send()
    try:
        at = start + 4
        stop = send.payload_start = command_end(buffer, start, end)
        send.payload_end = end
        if stop - at > 4 and _starts_with_send(buffer, at) and buffer[at + 3] == stop - at - 4 < 0x80:
            at += 4  # The type, then the SEND to the end: what every known client writes.
            _read_send(send, buffer, at, stop)
            at = stop
        while at < stop:
            tag, at = read_tag(buffer, at, stop)
            if tag == _TAG_SEND:
                at, inner_end = read_length(buffer, at, stop)
                _read_send(send, buffer, at, inner_end)
                at = inner_end
            else:
                at = skip_value(buffer, at, stop, tag)
    except BadProtobuf as error:
        raise BadCommand(f"SEND: {error}") from None
    if send.producer_id < 0 or send.sequence_id < 0:
        raise BadCommand("SEND without producer id or sequence id")
    return send


def _starts_with_send(buffer: bytes, at: int) -> bool:
    return buffer[at] == 8 and buffer[at + 1] == TYPE_SEND and buffer[at + 2] == _TAG_SEND


def _read_send(send: Send, buffer: bytes, at: int, end: int) -> None:
    while at < end:
        tag = buffer[at]
        if tag & 0x87:  # Not a number, or a field above 15: of no use here.
            at = _skip_send_field(send, buffer, at, end)
            continue
        at += 1
        value = buffer[at] if at < end else 0x80
        if value < 0x80:
            at += 1
        else:
            value, at = read_varint(buffer, at, end)
        if tag == 0x10:
            send.sequence_id = value
        elif tag == 0x08:
            send.producer_id = value
        elif tag == 0x18:
            send.num_messages = signed32(value)
        elif tag == 0x30:
            send.highest_sequence_id = value
        else:
            _set_rare_send_field(send, tag, value)


def _set_rare_send_field(send: Send, tag: int, value: int) -> None:
    if tag == 0x38:
        send.is_chunk = value != 0
    elif tag == 0x40:
        send.marker = value != 0
    elif tag == 0x20:
        send.txnid_least_bits = value
    elif tag == 0x28:
        send.txnid_most_bits = value
    elif tag == 0:
        raise BadProtobuf("0 is no field's tag")


def _skip_send_field(send: Send, buffer: bytes, at: int, end: int) -> int:
    tag, at = read_tag(buffer, at, end)
    if tag != 0x4A:
        return skip_value(buffer, at, end, tag)
    at, inner_end = read_length(buffer, at, end)
    named = Ack()
    read_ack_message_id(named, buffer, at, inner_end)
    send.has_message_id = True
    send.message_ledger_id, send.message_entry_id = named.positions[0]
    return inner_end


def decode_ack(buffer: bytes, start: int, end: int) -> Ack:
    """Read an ACK."""
    ack = Ack()
    seen = False
    try:
        at = start + 4
        stop = command_end(buffer, start, end)
        while at < stop:
            tag, at = read_tag(buffer, at, stop)
            if tag == TAG_ACK:
                at, inner_end = read_length(buffer, at, stop)
                seen = _read_ack(ack, buffer, at, inner_end) or seen
                at = inner_end
            else:
                at = skip_value(buffer, at, stop, tag)
    except BadProtobuf as error:
        raise BadCommand(f"ACK: {error}") from None
    if ack.consumer_id < 0 or not seen:
        raise BadCommand("ACK without consumer id or type")
    return ack


def _read_ack(ack: Ack, buffer: bytes, at: int, end: int) -> bool:
    """Read the fields; true when a known ack type was among them."""
    seen = False
    while at < end:
        tag = buffer[at]
        if tag & 0x80 or tag < 8:
            tag, at = read_tag(buffer, at, end)
        else:
            at += 1
        if tag == TAG_ACK_MESSAGE_ID:
            at, inner_end = read_length(buffer, at, end)
            read_ack_message_id(ack, buffer, at, inner_end)
            at = inner_end
        elif tag & 7:
            ack.has_properties = ack.has_properties or tag == 0x2A
            at = skip_value(buffer, at, end, tag)
        else:
            value, at = read_varint(buffer, at, end)
            seen = set_ack_number(ack, tag, value) or seen
    return seen


def set_ack_number(ack: Ack, tag: int, value: int) -> bool:
    """Keep a number; true for a known type. Protobuf takes an unknown enum value for an unknown field."""
    if tag == 0x08:
        ack.consumer_id = value
    elif tag == 0x10 and value <= 1:
        ack.cumulative = value == 1
        return True
    elif tag == 0x40:
        ack.request_id = value
    elif tag == 0x20 and value <= 4:
        ack.validation_error = value
    elif tag == 0x30:
        ack.txnid_least_bits = value
    elif tag == 0x38:
        ack.txnid_most_bits = value
    return False


def read_ack_message_id(ack: Ack, buffer: bytes, at: int, end: int) -> None:
    """Add one id of an ACK, which lies in `buffer[at:end]`. Raises `BadProtobuf`."""
    ledger_id = ABSENT
    entry_id = ABSENT
    batch_size = 0
    words: list[int] | None = None
    while at < end:
        tag = buffer[at]
        if tag & 0x80 or tag < 8:
            tag, at = read_tag(buffer, at, end)
        else:
            at += 1
        if tag == 0x08:
            ledger_id, at = read_varint(buffer, at, end)
        elif tag == 0x10:
            entry_id, at = read_varint(buffer, at, end)
        elif tag in (0x28, 0x2A):
            words = [] if words is None else words
            at = _read_words(words, buffer, at, end, tag)
        elif tag == 0x30:
            value, at = read_varint(buffer, at, end)
            batch_size = signed32(value)
        else:
            at = skip_value(buffer, at, end, tag)
    if ledger_id < 0 or entry_id < 0:
        raise BadProtobuf("a message id without ledger id or entry id")
    _add_message_id(ack, (signed64(ledger_id), signed64(entry_id)), words, batch_size)


def _read_words(words: list[int], buffer: bytes, at: int, end: int, tag: int) -> int:
    """One word of an ack set, or all of them packed: both are legal encodings of a repeated field."""
    if tag == 0x28:
        value, at = read_varint(buffer, at, end)
        words.append(signed64(value))
        if len(words) > ACK_SET_WORDS_MAX:
            raise BadProtobuf(TOO_MANY_WORDS)
        return at
    at, inner_end = read_length(buffer, at, end)
    while at < inner_end:
        value, at = read_varint(buffer, at, inner_end)
        words.append(signed64(value))
        if len(words) > ACK_SET_WORDS_MAX:
            raise BadProtobuf(TOO_MANY_WORDS)
    return inner_end


def _add_message_id(ack: Ack, position: tuple[int, int], words: list[int] | None, batch_size: int) -> None:
    count = len(ack.positions)
    ack.positions.append(position)
    if words and ack.ack_sets is None:
        ack.ack_sets = [[] for _ in range(count)]
    if ack.ack_sets is not None:
        ack.ack_sets.append(words if words is not None else [])
    if batch_size and ack.batch_sizes is None:
        ack.batch_sizes = [0] * count
    if ack.batch_sizes is not None:
        ack.batch_sizes.append(batch_size)


def decode_flow(buffer: bytes, start: int, end: int) -> Flow:
    """Read a FLOW."""
    flow = Flow()
    try:
        at = start + 4
        stop = command_end(buffer, start, end)
        while at < stop:
            tag, at = read_tag(buffer, at, stop)
            if tag == _TAG_FLOW:
                at, inner_end = read_length(buffer, at, stop)
                _read_flow(flow, buffer, at, inner_end)
                at = inner_end
            else:
                at = skip_value(buffer, at, stop, tag)
    except BadProtobuf as error:
        raise BadCommand(f"FLOW: {error}") from None
    if flow.consumer_id < 0 or flow.permits < 0:
        raise BadCommand("FLOW without consumer id or permits")
    return flow


def _read_flow(flow: Flow, buffer: bytes, at: int, end: int) -> None:
    while at < end:
        tag, at = read_tag(buffer, at, end)
        if tag == 0x08:
            flow.consumer_id, at = read_varint(buffer, at, end)
        elif tag == 0x10:
            value, at = read_varint(buffer, at, end)
            flow.permits = value & 0xFFFF_FFFF
        else:
            at = skip_value(buffer, at, end, tag)


def command_end(buffer: bytes, start: int, end: int) -> int:
    """The position after the command of the frame."""
    if end - start < 4:
        raise BadProtobuf("the frame is too short for a command")
    size: int = _U32.unpack_from(buffer, start)[0]
    if size > end - start - 4:
        raise BadProtobuf(f"a command of {size} bytes in a frame of {end - start}")
    return start + 4 + size


def encode_relayed_send(
    producer_id: int,
    sequence_id: int,
    message_bytes: int,
    num_messages: int,
    *,
    chunked: bool,
    marker: bool,
    message_id: tuple[int, int] | None = None,
) -> bytes:
    """What stands before the message (of so many bytes) in the SEND of one that another topic has stored; `sequence_id`
    is its original one. `message_id` is where it stands there: told to shadow topics only."""
    body = b"\x08" + varint(producer_id) + b"\x10" + varint(unsigned64(sequence_id))
    if num_messages != 1:
        body += b"\x18" + varint(num_messages)
    if chunked:
        body += b"\x38\x01"
    if marker:
        body += b"\x40\x01"
    if message_id is not None:
        place = b"\x08" + varint(message_id[0]) + b"\x10" + varint(message_id[1])
        body += b"\x4a" + varint(len(place)) + place
    command = b"\x08\x06\x32" + varint(len(body)) + body
    sizes: bytes = _SIZES.pack(4 + len(command) + message_bytes, len(command))
    return sizes + command


class MessageHeaderEncoder:
    """Writes what stands before the message in a MESSAGE frame, for one consumer on one partition.

    The parts that stay the same for 128 entries of a ledger are kept, so the usual message costs one concatenation.
    `partition` is -1 for a topic without partitions; `consumer_epoch` is None unless the consumer gave one.
    """

    def __init__(self, consumer_id: int, partition: int, consumer_epoch: int | None) -> None:
        self._consumer: bytes = b"\x08" + varint(consumer_id)
        self._partition: bytes = b"\x18" + varint_signed(partition) if partition >= 0 else b""
        self._epoch: bytes = b"" if consumer_epoch is None else b"\x28" + varint(unsigned64(consumer_epoch))
        self._ledger_id: int = -2
        self._block: int = -2
        self._head: bytes = b""
        self._tail: bytes = b""
        self._size_before_payload: int = 0

    def encode(
        self, ledger_id: int, entry_id: int, redelivery_count: int, ack_set: list[int] | None, payload_size: int
    ) -> bytes:
        """Sizes and command for a message of `payload_size` bytes (its headers included)."""
        if redelivery_count or ack_set:
            return self._encode_rare(ledger_id, entry_id, redelivery_count, ack_set, payload_size)
        block = entry_id >> 7
        if block != self._block or ledger_id != self._ledger_id:
            self._remember(ledger_id, entry_id)
        low = _LOW_LAST[entry_id & 0x7F] if block == 0 else _LOW_CONTINUED[entry_id & 0x7F]
        total: bytes = _U32.pack(self._size_before_payload + payload_size)
        return total + self._head + low + self._tail

    def _remember(self, ledger_id: int, entry_id: int) -> None:
        """Everything around the lowest byte of the entry id: `head`, that byte, `tail`."""
        command = self._command(ledger_id, entry_id, b"")
        entry = varint(unsigned64(entry_id))
        after_low = len(entry) - 1 + len(self._partition) + len(self._epoch)
        self._head = _U32.pack(len(command)) + command[: len(command) - after_low - 1]
        self._tail = command[len(command) - after_low :]
        self._size_before_payload = 4 + len(command)
        self._ledger_id = ledger_id
        self._block = entry_id >> 7

    def _encode_rare(
        self, ledger_id: int, entry_id: int, redelivery_count: int, ack_set: list[int] | None, payload_size: int
    ) -> bytes:
        parts: list[bytes] = []
        if redelivery_count:
            parts.append(b"\x18" + varint(redelivery_count))
        if ack_set is not None:
            parts.extend([b"\x20" + varint(unsigned64(word)) for word in ack_set])
        command = self._command(ledger_id, entry_id, b"".join(parts))
        sizes: bytes = _SIZES.pack(4 + len(command) + payload_size, len(command))
        return sizes + command

    def _command(self, ledger_id: int, entry_id: int, optional_fields: bytes) -> bytes:
        position = b"\x08" + varint(unsigned64(ledger_id)) + b"\x10" + varint(unsigned64(entry_id)) + self._partition
        message = self._consumer + b"\x12" + varint(len(position)) + position + optional_fields + self._epoch
        return b"\x08\x09\x4a" + varint(len(message)) + message
