"""An ACK in parts is the ACK as a whole."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from magnetar.wire.pulsar import ack_parts
from magnetar.wire.pulsar.ack_parts import ACK_BYTES_AT_ONCE, FIELDS_AT_ONCE, AckParts
from magnetar.wire.pulsar.command import Ack, decode_ack
from magnetar.wire.pulsar.errors import BadCommand
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb
from magnetar.wire.pulsar.varint import varint

U64 = st.integers(0, 2**64 - 1)
WORDS = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4)

ids = st.builds(
    lambda ledger, entry, words: pb.MessageIdData(ledgerId=ledger, entryId=entry, ack_set=words), U64, U64, WORDS
)
acks = st.builds(
    lambda consumer, kind, found, request, transaction: pb.CommandAck(
        consumer_id=consumer,
        ack_type=kind,
        message_id=found,
        request_id=request,
        txnid_least_bits=transaction,
        txnid_most_bits=transaction,
    ),
    st.integers(0, 1000),
    st.sampled_from([0, 1]),
    st.lists(ids, max_size=30),
    st.one_of(st.none(), st.integers(0, 1000)),
    st.one_of(st.none(), st.integers(0, 1000)),
)


def framed(*bodies: bytes, before: bytes = b"\x08\x0a") -> bytes:
    """A command, in which an ACK may come in several pieces."""
    command = before + b"".join(b"\x52" + varint(len(body)) + body for body in bodies)
    return struct.pack(">I", len(command)) + command


def parts_of(frame: bytes) -> list[Ack]:
    parts = AckParts(frame, 0, len(frame))
    found: list[Ack] = []
    while not parts.over:
        part = parts.next()
        if part is not None:
            found.append(part)
    return found


@given(acks, st.integers(1, 60), st.integers(1, 7), st.booleans())
def test_the_parts_are_the_whole(ack: pb.CommandAck, bytes_at_once: int, fields_at_once: int, swapped: bool) -> None:
    body = ack.SerializeToString()
    numbers, messages = pb.CommandAck(), pb.CommandAck()
    numbers.CopyFrom(ack)
    numbers.ClearField("message_id")
    messages.message_id.extend(ack.message_id)
    pieces = [messages.SerializePartialToString(), numbers.SerializeToString()]
    frame = framed(*pieces, before=b"") if swapped else framed(body)
    whole = decode_ack(frame, 0, len(frame))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ack_parts, "ACK_BYTES_AT_ONCE", bytes_at_once)
        patch.setattr(ack_parts, "FIELDS_AT_ONCE", fields_at_once)
        parts = parts_of(frame)
    assert [position for part in parts for position in part.positions] == whole.positions
    words = [each for part in parts for each in part.ack_sets or [[]] * len(part.positions)]
    assert words == (whole.ack_sets or [[]] * len(whole.positions))
    assert {(part.consumer_id, part.cumulative) for part in parts} == {(whole.consumer_id, whole.cumulative)}
    assert {part.txnid_most_bits for part in parts} == {whole.txnid_most_bits}
    assert [part.request_id for part in parts] == [-1] * (len(parts) - 1) + [whole.request_id]


def test_each_part_is_small() -> None:
    some = [pb.MessageIdData(ledgerId=5, entryId=number % 100) for number in range(100_000)]
    frame = framed(
        pb.CommandAck(
            consumer_id=1, ack_type=pb.CommandAck.Individual, message_id=some, request_id=7
        ).SerializeToString()
    )
    parts = AckParts(frame, 0, len(frame))
    steps = taken = 0
    while not parts.over:
        part = parts.next()
        steps += 1
        if part is not None:
            assert len(part.positions) <= ACK_BYTES_AT_ONCE // 6 + 1
            taken += len(part.positions)
    assert taken == 100_000
    assert steps <= 100_000 // FIELDS_AT_ONCE + len(frame) // ACK_BYTES_AT_ONCE + 4


@pytest.mark.parametrize(
    "frame",
    [
        b"\x00\x00",
        struct.pack(">I", 9) + b"\x08\x0a",
        framed(b"\x08\x01"),
        framed(b"\x08\x01\x10\x00\x1a\x02\x08\x01"),
        framed(b"\x08\x01\x10\x00\x1a\x05\x08\x01"),
        framed(b"\x08\x01\x10\x00\x00"),
        framed(b"\x08\x01\x10\x00\x1a\x09\x08\x01\x10\x01"),
        struct.pack(">I", 4) + b"\x08\x0a\x52\x7f",
    ],
)
def test_what_cannot_be_read(frame: bytes) -> None:
    with pytest.raises(BadCommand):
        decode_ack(frame, 0, len(frame))
    with pytest.raises(BadCommand):
        parts_of(frame)
