"""SEND_RECEIPT, written and read by hand: it passes once per message that is sent on its own.

The reader knows the form in which brokers write it, and leaves every other one to `messages.decode_command`: unknown
fields, ids of partitions, and whatever is broken.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from magnetar.core.ids import signed64, unsigned64
from magnetar.wire.errors import BadProtobuf
from magnetar.wire.pulsar.varint import read_varint, varint
from mypy_extensions import mypyc_attr

_SIZES: Final = Struct(">II")
_U32: Final = Struct(">I")


@mypyc_attr(acyclic=True)
class Receipt:
    """SEND_RECEIPT: ids are signed. The message's id is 0:0 where there is none."""

    __slots__ = ("entry_id", "highest_sequence_id", "ledger_id", "producer_id", "sequence_id")

    def __init__(
        self, producer_id: int, sequence_id: int, highest_sequence_id: int, ledger_id: int = 0, entry_id: int = 0
    ) -> None:
        self.producer_id: int = producer_id
        self.sequence_id: int = sequence_id
        self.highest_sequence_id: int = highest_sequence_id
        self.ledger_id: int = ledger_id
        self.entry_id: int = entry_id


def read_receipts(buffer: bytes, bounds: list[int], index: int) -> list[Receipt]:
    """The receipts of one producer that follow each other from `bounds[index]` on: frames' starts and ends in turn, as
    `FrameSplitter` gives them. Empty where the first frame is none, or has another form."""
    found: list[Receipt] = []
    producer_id = -1
    while index + 1 < len(bounds):
        receipt = _read(buffer, bounds[index], bounds[index + 1])
        if receipt is None or (found and receipt.producer_id != producer_id):
            break
        producer_id = receipt.producer_id
        found.append(receipt)
        index += 2
    return found


def _read(buffer: bytes, start: int, end: int) -> Receipt | None:
    at = start + 8
    if end - at < 4 or buffer[start + 4] != 0x08 or buffer[start + 5] != 0x07 or buffer[start + 6] != 0x3A:
        return None
    size: int = _U32.unpack_from(buffer, start)[0]
    if size != end - start - 4 or buffer[start + 7] != end - at or buffer[start + 7] >= 0x80:
        return None
    try:
        return _read_fields(buffer, at, end)
    except BadProtobuf:
        return None


def _read_fields(buffer: bytes, at: int, end: int) -> Receipt | None:
    producer_id = sequence_id = -1
    highest_sequence_id = ledger_id = entry_id = 0
    while at < end:
        tag = buffer[at]
        value, at = read_varint(buffer, at + 1, end)
        if tag == 0x08:
            producer_id = value
        elif tag == 0x10:
            sequence_id = value
        elif tag == 0x20:
            highest_sequence_id = value
        elif tag == 0x1A:
            # The id's two numbers, in their order, and nothing else.
            inner_end = at + value
            if value < 4 or inner_end > end or buffer[at] != 0x08:
                return None
            ledger_id, at = read_varint(buffer, at + 1, inner_end)
            if at >= inner_end or buffer[at] != 0x10:
                return None
            entry_id, at = read_varint(buffer, at + 1, inner_end)
            if at != inner_end:
                return None
        else:
            return None
    if producer_id < 0 or sequence_id < 0:
        return None
    return Receipt(
        producer_id, signed64(sequence_id), signed64(highest_sequence_id), signed64(ledger_id), signed64(entry_id)
    )


def encode_send_receipt(
    producer_id: int, sequence_id: int, highest_sequence_id: int, ledger_id: int, entry_id: int
) -> bytes:
    """One SEND_RECEIPT frame; ids may be -1 (duplicate, or nothing stored)."""
    position = b"\x08" + varint(unsigned64(ledger_id)) + b"\x10" + varint(unsigned64(entry_id))
    receipt = (
        b"\x08"
        + varint(producer_id)
        + b"\x10"
        + varint(sequence_id)
        + b"\x1a"
        + varint(len(position))
        + position
        + b"\x20"
        + varint(highest_sequence_id)
    )
    size = 4 + len(receipt)  # A receipt has at most 68 bytes: its length takes one byte.
    return _SIZES.pack(size + 4, size) + b"\x08\x07\x3a" + varint(len(receipt)) + receipt


def encode_send_receipts(
    producer_id: int,
    ledger_id: int,
    first_entry_id: int,
    sequence_ids: list[int],
    highest_sequence_ids: list[int],
) -> bytes:
    """A SEND_RECEIPT frame for each message; their entry ids are consecutive, from `first_entry_id` ≥ 0.

    Neighbours differ in their numbers only, so what stands around these is kept until one takes another length.
    """
    before_sequence = b"\x08" + varint(producer_id) + b"\x10"
    before_entry = b"\x08" + varint(unsigned64(ledger_id)) + b"\x10"
    known_shape = -1
    head = b""
    middle = b""
    parts: list[bytes] = []
    entry_id = first_entry_id
    for index in range(len(sequence_ids)):
        sequence = varint(sequence_ids[index])
        highest = varint(highest_sequence_ids[index])
        entry = varint(entry_id)
        shape = len(sequence) << 8 | len(highest) << 4 | len(entry)
        if shape != known_shape:
            known_shape = shape
            middle = b"\x1a" + varint(len(before_entry) + len(entry)) + before_entry
            receipt_size = len(before_sequence) + len(sequence) + len(middle) + len(entry) + 1 + len(highest)
            head = _SIZES.pack(receipt_size + 8, receipt_size + 4) + b"\x08\x07\x3a" + varint(receipt_size)
            head += before_sequence
        parts += (head, sequence, middle, entry, b"\x20", highest)
        entry_id += 1
    return b"".join(parts)
