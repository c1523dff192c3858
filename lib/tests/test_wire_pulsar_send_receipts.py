"""SEND_RECEIPT read by hand says what protobuf reads, or nothing."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from magnetar.core.ids import signed64, unsigned64
from magnetar.wire.pulsar import messages, requests
from magnetar.wire.pulsar.errors import BadCommand
from magnetar.wire.pulsar.frame import command_splitter
from magnetar.wire.pulsar.generated import pulsar_api_pb2 as pb
from magnetar.wire.pulsar.send_receipts import Receipt, encode_send_receipt, read_receipts

U64 = st.sampled_from([0, 1, 127, 128, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1)


def fields(receipt: Receipt) -> tuple[int, ...]:
    return (
        receipt.producer_id,
        receipt.sequence_id,
        receipt.highest_sequence_id,
        receipt.ledger_id,
        receipt.entry_id,
    )


def told(producer_id: int, sequence_id: int, **others: object) -> bytes:
    body = pb.CommandSendReceipt(producer_id=producer_id, sequence_id=sequence_id, **others)  # type: ignore[arg-type]
    return messages.encode_command(pb.BaseCommand(type=pb.BaseCommand.SEND_RECEIPT, send_receipt=body))


def bounds_of(data: bytes) -> tuple[bytes, list[int]]:
    return command_splitter(1 << 20).feed(data)


@given(st.lists(st.tuples(U64, U64, U64, U64, U64), min_size=1, max_size=4))
def test_what_brokers_write_is_read(numbers: list[tuple[int, int, int, int, int]]) -> None:
    numbers = [(7, *one[1:]) for one in numbers]
    data = b"".join(encode_send_receipt(one[0], one[1], one[2], signed64(one[3]), signed64(one[4])) for one in numbers)
    found = read_receipts(*bounds_of(data), 0)
    assert [fields(one) for one in found] == [(one[0], *(signed64(each) for each in one[1:])) for one in numbers]


def test_those_of_one_producer_are_read_together() -> None:
    ping = messages.encode_command(pb.BaseCommand(type=pb.BaseCommand.PING, ping=pb.CommandPing()))
    data = told(1, 5) + told(1, 6) + told(2, 7) + ping + told(2, 8)
    buffer, bounds = bounds_of(data)
    at = [[one.sequence_id for one in read_receipts(buffer, bounds, 2 * index)] for index in range(5)]
    assert at == [[5, 6], [6], [7], [], [8]]


def test_other_forms_are_left_to_protobuf() -> None:
    named = pb.MessageIdData(ledgerId=3, entryId=4, partition=2)
    assert read_receipts(*bounds_of(told(1, 5, message_id=named)), 0) == []
    receipt = requests.receipt_of(pb.CommandSendReceipt(producer_id=1, sequence_id=unsigned64(-1), message_id=named))
    assert fields(receipt) == (1, -1, 0, 3, 4)


@given(st.binary(max_size=24), st.integers(0, 30), st.integers(0, 255))
@example(b"", 12, 0x80)
def test_whatever_is_damaged_is_read_as_protobuf_does_or_not_at_all(end: bytes, at: int, byte: int) -> None:
    body = bytearray(encode_send_receipt(1, 2, 3, 4, 5)[8:])
    if at < len(body):
        body[at] = byte
    body += end
    data = (len(body) + 4).to_bytes(4, "big") + len(body).to_bytes(4, "big") + bytes(body)
    buffer, bounds = bounds_of(data)
    found = read_receipts(buffer, bounds, 0)
    if not found:
        return
    try:
        command = messages.decode_command(buffer, *bounds)
    except BadCommand:
        raise AssertionError(f"read what protobuf does not: {body.hex()}") from None
    assert command.type == pb.BaseCommand.SEND_RECEIPT
    assert fields(found[0]) == fields(requests.receipt_of(command.send_receipt))


def test_an_id_that_ends_after_its_ledger_is_left_to_protobuf() -> None:
    """Also where the buffer ends there, too."""
    body = b"\x08\x07\x3a\x0a\x08\x01\x10\x02\x1a\x04\x08\xff\xff\x03"
    data = (len(body) + 4).to_bytes(4, "big") + len(body).to_bytes(4, "big") + body
    assert read_receipts(*bounds_of(data), 0) == []


def framed(body: bytes, more: bytes = b"") -> bytes:
    """A frame of this command, and what else it holds."""
    return (len(body) + len(more) + 4).to_bytes(4, "big") + len(body).to_bytes(4, "big") + body + more


def receipt_frame(fields_of_it: bytes) -> bytes:
    return framed(b"\x08\x07\x3a" + bytes([len(fields_of_it)]) + fields_of_it)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(receipt_frame(b"\x08\x81\x80\x01"), id="no sequence id"),
        pytest.param(receipt_frame(b"\x10\x81\x80\x01"), id="no producer id"),
        pytest.param(receipt_frame(b"\x08\x01\x10\x02\x1a\x00"), id="an id that is empty"),
        pytest.param(receipt_frame(b"\x08\x01\x10\x02\x1a\x04\x18\x03\x10\x04"), id="an id without ledger"),
        pytest.param(
            receipt_frame(b"\x08\x01\x10\x02\x1a\x05\x08\x03\x10\xff") + told(1, 6), id="an id into the next frame"
        ),
        pytest.param(framed(b"\x08\x07"), id="a type and nothing else"),
        pytest.param(framed(b"\x08\x07\x3a\x80" + b"\x08\x01\x10\x02" * 32), id="a length of several bytes"),
        pytest.param(framed(b"\x08\x07\x3a\x04\x08\x01", b"\x10\x02"), id="a command that ends in the receipt"),
    ],
)
def test_what_protobuf_refuses_is_no_receipt(data: bytes) -> None:
    buffer, bounds = bounds_of(data)
    assert read_receipts(buffer, bounds, 0) == []
    with pytest.raises(BadCommand):
        messages.decode_command(buffer, *bounds[:2])


def test_a_field_behind_the_receipt_is_none_of_it() -> None:
    receipt = encode_send_receipt(1, 2, 3, 4, 5)[8:]
    assert read_receipts(*bounds_of(framed(receipt + b"\x08\x07")), 0) == []


def test_the_number_in_a_batch_is_not_taken_for_the_highest_sequence_id() -> None:
    """Both have the same tag, one in the message's id and one behind it."""
    named = pb.MessageIdData(ledgerId=3, entryId=4, partition=-1, batch_index=7)
    named.ClearField("partition")
    assert read_receipts(*bounds_of(told(1, 5, message_id=named)), 0) == []
