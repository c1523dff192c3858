"""Protobuf's numbers and fields by hand, for the few messages that pass by the hundred thousand.

Positions are offsets into a buffer; an `end` is never beyond the buffer (the caller's promise). Groups are refused:
Pulsar has none.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from typing import Final

from magnetar.wire.errors import BadProtobuf

MASK64: Final = 0xFFFF_FFFF_FFFF_FFFF

_LAST: Final[list[bytes]] = [bytes([byte]) for byte in range(128)]
_CONTINUED: Final[list[bytes]] = [bytes([byte | 0x80]) for byte in range(128)]


def varint(value: int) -> bytes:
    """The encoding of 0 ≤ value < 2**64."""
    if value < 0x80:
        return _LAST[value]
    if value < 0x4000:
        return _CONTINUED[value & 0x7F] + _LAST[value >> 7]
    if value < 0x20_0000:
        return _CONTINUED[value & 0x7F] + _CONTINUED[(value >> 7) & 0x7F] + _LAST[value >> 14]
    parts: list[bytes] = []
    while value >= 0x80:
        parts.append(_CONTINUED[value & 0x7F])
        value >>= 7
    parts.append(_LAST[value])
    return b"".join(parts)


def varint_signed(value: int) -> bytes:
    """An int32 or int64 field: a negative one takes ten bytes."""
    return varint(value & MASK64)


def read_varint(buffer: bytes, at: int, end: int) -> tuple[int, int]:
    """The number at `at`, cut to 64 bits, and the position after it."""
    value = 0
    shift = 0
    while at < end:
        byte = buffer[at]
        at += 1
        if byte < 0x80:
            return value | byte << shift if shift < 63 else (value | byte << shift) & MASK64, at
        if shift == 63:
            break
        value |= (byte & 0x7F) << shift
        shift += 7
    raise BadProtobuf("a number without an end")


def read_tag(buffer: bytes, at: int, end: int) -> tuple[int, int]:
    """A field's tag (number * 8 + wire type) and the position after it."""
    tag, at = read_varint(buffer, at, end)
    if tag > 0xFFFF_FFFF or tag < 8:
        raise BadProtobuf(f"{tag} is no field's tag")
    return tag, at


def read_length(buffer: bytes, at: int, end: int) -> tuple[int, int]:
    """Start and end of a length-delimited field whose length stands at `at`."""
    length, at = read_varint(buffer, at, end)
    if length > end - at:
        raise BadProtobuf("a field reaches over the end of its message")
    return at, at + length


def skip_value(buffer: bytes, at: int, end: int, tag: int) -> int:
    """The position after the value of a field that is not wanted."""
    wire_type = tag & 7
    if wire_type == 0:
        return read_varint(buffer, at, end)[1]
    if wire_type == 2:
        return read_length(buffer, at, end)[1]
    if wire_type == 1:
        at += 8
    elif wire_type == 5:
        at += 4
    else:
        raise BadProtobuf(f"wire type {wire_type} is not used")
    if at > end:
        raise BadProtobuf("a field reaches over the end of its message")
    return at


def signed32(value: int) -> int:
    """A varint as an int32 field means it: the lowest 32 bits."""
    value &= 0xFFFF_FFFF
    return value - 0x1_0000_0000 if value >= 0x8000_0000 else value
