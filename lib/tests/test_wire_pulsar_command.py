import contextlib
import random
import struct

import pytest
from google.protobuf.message import Message
from hypothesis import example, given
from hypothesis import strategies as st
from magnetar.core.ids import signed64, unsigned64
from magnetar.wire.pulsar import command, send_receipts
from magnetar.wire.pulsar.errors import BadCommand
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb
from magnetar.wire.pulsar.varint import read_varint, varint, varint_signed

U64 = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1), st.just(2**64 - 1))
I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
OPTIONAL_U64 = st.none() | U64


def frame(body: bytes, payload: bytes = b"", before: bytes = b"") -> tuple[bytes, int, int]:
    """A buffer that holds other bytes first, and the bounds of the frame."""
    start = len(before)
    buffer = before + struct.pack(">I", len(body)) + body + payload
    return buffer, start, len(buffer)


def fields_of(message: Message) -> list[bytes]:
    """The encodings of the fields one by one, to be put into another order."""
    parts: list[bytes] = []
    for descriptor, value in message.ListFields():
        for item in value if descriptor.is_repeated else [value]:
            single = type(message)()
            if descriptor.is_repeated and descriptor.message_type:
                getattr(single, descriptor.name).add().CopyFrom(item)
            elif descriptor.is_repeated:
                getattr(single, descriptor.name).append(item)
            elif descriptor.message_type:
                getattr(single, descriptor.name).CopyFrom(item)
            else:
                setattr(single, descriptor.name, item)
            parts.append(single.SerializePartialToString())
    return parts


UNKNOWN = [b"\xf8\x07\x05", b"\xfa\x07\x03abc", b"\xfd\x07\x01\x02\x03\x04", b"\xf9\x07" + bytes(8)]


def shuffled(kind: int, message: Message, seed: int) -> bytes:
    """A BaseCommand with the message's fields and unknown ones in any order; repeated ones keep theirs."""
    dice = random.Random(seed)
    inner = [*fields_of(message), dice.choice(UNKNOWN)]
    dice.shuffle(inner)
    body = b"".join(inner)
    outer = [b"\x08" + bytes([kind]), bytes([kind << 3 | 2]) + varint(len(body)) + body, dice.choice(UNKNOWN)]
    dice.shuffle(outer)
    return b"".join(outer)


@given(st.integers(0, 2**64 - 1))
def test_varint_round_trip(value: int) -> None:
    encoded = varint(value)
    assert read_varint(encoded, 0, len(encoded)) == (value, len(encoded))


@given(I64)
def test_signed_varint_is_protobufs(value: int) -> None:
    message = pb.CommandMessage(ack_set=[value])
    assert message.SerializePartialToString() == b"\x20" + varint_signed(value)


@st.composite
def sends(draw: st.DrawFn) -> pb.CommandSend:
    send = pb.CommandSend(producer_id=draw(U64), sequence_id=draw(U64))
    for name in ("highest_sequence_id", "txnid_least_bits", "txnid_most_bits"):
        if (value := draw(OPTIONAL_U64)) is not None:
            setattr(send, name, value)
    if (count := draw(st.none() | I32)) is not None:
        send.num_messages = count
    for name in ("is_chunk", "marker"):
        if (flag := draw(st.none() | st.booleans())) is not None:
            setattr(send, name, flag)
    if draw(st.booleans()):
        send.message_id.ledgerId = draw(U64)
        send.message_id.entryId = draw(U64)
    return send


@given(sends(), st.binary(max_size=30), st.integers(0, 100))
def test_send_is_read_as_protobuf_reads_it(expected: pb.CommandSend, payload: bytes, seed: int) -> None:
    base = pb.BaseCommand(type=pb.BaseCommand.SEND, send=expected)
    for body in (base.SerializeToString(), shuffled(6, expected, seed)):
        buffer, start, end = frame(body, payload, b"before")
        if body[0] == 8:
            assert command.command_type(buffer, start) == command.TYPE_SEND
        send = command.decode_send(buffer, start, end)
        assert send.producer_id == expected.producer_id
        assert send.sequence_id == expected.sequence_id
        assert send.highest_sequence_id == expected.highest_sequence_id
        assert send.num_messages == expected.num_messages
        assert (send.is_chunk, send.marker) == (expected.is_chunk, expected.marker)
        for name in ("txnid_least_bits", "txnid_most_bits"):
            assert getattr(send, name) == (getattr(expected, name) if expected.HasField(name) else -1)
        assert send.has_message_id == expected.HasField("message_id")
        if send.has_message_id:
            place = expected.message_id
            named = (send.message_ledger_id, send.message_entry_id)
            assert named == (signed64(place.ledgerId), signed64(place.entryId))
        assert buffer[send.payload_start : send.payload_end] == payload


ACK_TYPES = [pb.CommandAck.Individual, pb.CommandAck.Cumulative]
VALIDATION_ERRORS = [
    pb.CommandAck.UncompressedSizeCorruption,
    pb.CommandAck.DecompressionError,
    pb.CommandAck.ChecksumMismatch,
    pb.CommandAck.BatchDeSerializeError,
    pb.CommandAck.DecryptionError,
]


@st.composite
def acks(draw: st.DrawFn) -> pb.CommandAck:
    ack = pb.CommandAck(consumer_id=draw(U64), ack_type=draw(st.sampled_from(ACK_TYPES)))
    for _ in range(draw(st.integers(0, 4))):
        added = ack.message_id.add(ledgerId=draw(U64), entryId=draw(U64))
        added.ack_set.extend(draw(st.lists(I64, max_size=3)))
        if (size := draw(st.none() | I32)) is not None:
            added.batch_size = size
        if draw(st.booleans()):
            added.partition, added.batch_index = draw(I32), draw(I32)
    for name in ("txnid_least_bits", "txnid_most_bits", "request_id"):
        if (value := draw(OPTIONAL_U64)) is not None:
            setattr(ack, name, value)
    if draw(st.booleans()):
        ack.validation_error = draw(st.sampled_from(VALIDATION_ERRORS))
    if draw(st.booleans()):
        ack.properties.add(key="CompactedTopicLedger", value=7)
    return ack


def check_ack(ack: command.Ack, expected: pb.CommandAck) -> None:
    ids = expected.message_id
    assert ack.consumer_id == expected.consumer_id
    assert ack.cumulative == (expected.ack_type == 1)
    assert ack.positions == [(signed64(one.ledgerId), signed64(one.entryId)) for one in ids]
    words = [list(one.ack_set) for one in ids]
    assert ack.ack_sets == (words if any(words) else None)
    sizes = [one.batch_size for one in ids]
    assert ack.batch_sizes == (sizes if any(sizes) else None)
    for name in ("txnid_least_bits", "txnid_most_bits", "request_id", "validation_error"):
        assert getattr(ack, name) == (getattr(expected, name) if expected.HasField(name) else -1)
    assert ack.has_properties == bool(expected.properties)


@given(acks(), st.randoms(use_true_random=False))
def test_ack_is_read_as_protobuf_reads_it(expected: pb.CommandAck, dice: random.Random) -> None:
    base = pb.BaseCommand(type=pb.BaseCommand.ACK, ack=expected)
    buffer, start, end = frame(base.SerializeToString(), before=b"xy")
    check_ack(command.decode_ack(buffer, start, end), expected)

    body = shuffled(10, expected, dice.randrange(100))
    check_ack(command.decode_ack(*frame(body)), pb.BaseCommand.FromString(body).ack)


def test_packed_ack_set_is_read() -> None:
    packed = varint_signed(-1) + varint(5)
    inner = b"\x08\x01\x10\x02\x2a" + varint(len(packed)) + packed
    ack = b"\x08\x03\x10\x00\x1a" + varint(len(inner)) + inner
    read = command.decode_ack(*frame(b"\x08\x0a\x52" + varint(len(ack)) + ack))
    assert (read.positions, read.ack_sets) == ([(1, 2)], [[-1, 5]])


@given(U64, st.integers(0, 2**32 - 1), st.integers(0, 100))
def test_flow_is_read_as_protobuf_reads_it(consumer_id: int, permits: int, seed: int) -> None:
    expected = pb.CommandFlow(consumer_id=consumer_id, messagePermits=permits)
    flow = command.decode_flow(*frame(shuffled(11, expected, seed)))
    assert (flow.consumer_id, flow.permits) == (consumer_id, permits)


MANGLED = st.builds(
    lambda base, at, byte: base[: at % len(base)] + bytes([byte]) + base[at % len(base) + 1 :],
    st.one_of(
        sends().map(lambda send: pb.BaseCommand(type=pb.BaseCommand.SEND, send=send).SerializeToString()),
        acks().map(lambda ack: pb.BaseCommand(type=pb.BaseCommand.ACK, ack=ack).SerializeToString()),
    ),
    st.integers(0, 1000),
    st.integers(0, 255),
)


@given(st.binary(max_size=60) | MANGLED.map(lambda body: frame(body)[0]))
def test_garbage_is_a_command_or_refused(buffer: bytes) -> None:
    command.command_type(buffer, 0)
    for decode in (command.decode_send, command.decode_ack, command.decode_flow):
        with contextlib.suppress(BadCommand):
            decode(buffer, 0, len(buffer))


def test_missing_fields_are_refused() -> None:
    for decode, body in (
        (command.decode_send, b"\x08\x06\x32\x02\x08\x01"),
        (command.decode_send, b"\x08\x06"),
        (command.decode_ack, b"\x08\x0a\x52\x02\x08\x01"),
        (command.decode_ack, b"\x08\x0a\x52\x08\x08\x01\x10\x00\x1a\x02\x08\x01"),
        (command.decode_flow, b"\x08\x0b\x5a\x02\x08\x01"),
    ):
        with pytest.raises(BadCommand):
            decode(*frame(body))


def split_frames(data: bytes) -> list[pb.BaseCommand]:
    found: list[pb.BaseCommand] = []
    while data:
        total, size = struct.unpack_from(">II", data)
        assert total == size + 4
        found.append(pb.BaseCommand.FromString(data[8 : 8 + size]))
        data = data[8 + size :]
    return found


def receipt(producer_id: int, sequence_id: int, highest: int, ledger_id: int, entry_id: int) -> pb.BaseCommand:
    base = pb.BaseCommand(type=pb.BaseCommand.SEND_RECEIPT)
    base.send_receipt.producer_id = producer_id
    base.send_receipt.sequence_id = sequence_id
    base.send_receipt.highest_sequence_id = highest
    base.send_receipt.message_id.ledgerId = unsigned64(ledger_id)
    base.send_receipt.message_id.entryId = unsigned64(entry_id)
    return base


@given(U64, U64, U64, st.integers(-1, 2**63 - 1), st.integers(-1, 2**63 - 1))
def test_one_receipt(producer_id: int, sequence_id: int, highest: int, ledger_id: int, entry_id: int) -> None:
    data = send_receipts.encode_send_receipt(producer_id, sequence_id, highest, ledger_id, entry_id)
    expected = receipt(producer_id, sequence_id, highest, ledger_id, entry_id)
    assert split_frames(data) == [expected]
    assert data[8:] == expected.SerializeToString()


@given(U64, st.integers(0, 2**62), st.integers(0, 2**62), st.lists(st.tuples(U64, U64), max_size=5))
@example(1, 2, 126, [(126, 0), (127, 0), (128, 0), (129, 16383), (2**14, 2**14)])
def test_many_receipts(producer_id: int, ledger_id: int, first: int, ids: list[tuple[int, int]]) -> None:
    sequence_ids, highest = [one[0] for one in ids], [one[1] for one in ids]
    data = send_receipts.encode_send_receipts(producer_id, ledger_id, first, sequence_ids, highest)
    singles = [
        send_receipts.encode_send_receipt(producer_id, sequence, high, ledger_id, first + index)
        for index, (sequence, high) in enumerate(ids)
    ]
    assert data == b"".join(singles)


MESSAGES = st.tuples(
    st.sampled_from([0, 1, 2**40]),
    st.integers(-1, 400) | st.integers(0, 2**63 - 1),
    st.sampled_from([0, 0, 0, 1, 200]),
    st.none() | st.lists(I64, max_size=2),
    st.integers(0, 2000),
)


@given(U64, st.integers(-1, 300), st.none() | st.integers(0, 2**40), st.lists(MESSAGES, max_size=8))
def test_message_header(
    consumer_id: int, partition: int, epoch: int | None, messages: list[tuple[int, int, int, list[int] | None, int]]
) -> None:
    encoder = command.MessageHeaderEncoder(consumer_id, partition, epoch)
    for ledger_id, entry_id, redelivery_count, ack_set, payload_size in messages:
        data = encoder.encode(ledger_id, entry_id, redelivery_count, ack_set, payload_size)
        base = pb.BaseCommand(type=pb.BaseCommand.MESSAGE)
        base.message.consumer_id = consumer_id
        base.message.message_id.ledgerId = ledger_id
        base.message.message_id.entryId = unsigned64(entry_id)
        if partition >= 0:
            base.message.message_id.partition = partition
        if redelivery_count:
            base.message.redelivery_count = redelivery_count
        base.message.ack_set.extend(ack_set or [])
        if epoch is not None:
            base.message.consumer_epoch = epoch
        body = base.SerializeToString()
        assert data == struct.pack(">II", 4 + len(body) + payload_size, len(body)) + body


def test_ping_and_pong() -> None:
    ping = pb.BaseCommand(type=pb.BaseCommand.PING, ping=pb.CommandPing())
    pong = pb.BaseCommand(type=pb.BaseCommand.PONG, pong=pb.CommandPong())
    assert split_frames(command.PING_FRAME) == [ping]
    assert split_frames(command.PONG_FRAME) == [pong]
    assert command.command_type(command.PING_FRAME, 4) == command.TYPE_PING
