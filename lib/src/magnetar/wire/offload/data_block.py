"""Blocks of entries: the header, the entries, the padding (Pulsar: DataBlockHeaderImpl, StreamingDataBlockHeaderImpl,
BlockAwareSegmentInputStreamImpl).

A data object is a row of blocks. Each has a header of 128 bytes, whole entries, and padding up to its length. An entry
is its length in 4 bytes, its id in 8, and its payload as the broker wrote it. All numbers are big-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from magnetar.core.errors import Misuse
from magnetar.wire.offload.errors import BadOffload

BLOCK_MAGIC: Final = 0xFBDBABCB
STREAMING_BLOCK_MAGIC: Final = 0x26A66D32
HEADER_BYTES: Final = 128
ENTRY_HEADER_BYTES: Final = 12
PADDING: Final = b"\xfe\xdc\xde\xad"
"""Read as the length of an entry it is negative, wherever a block ends: so is the magic of the next block."""

_HEADER: Final = struct.Struct(">Iqqq")
_STREAMING_HEADER: Final = struct.Struct(">Iqqqq")
_ENTRY_HEADER: Final = struct.Struct(">iq")
_HEADER_BYTES_MAX: Final = 64 << 10
"""More than any version could want: what is beyond is a number that lies."""


class BlockHeader(NamedTuple):
    """The fields of a block's header."""

    header_bytes: int
    block_bytes: int
    first_entry_id: int
    ledger_id: int | None
    """Only blocks of the streaming form tell it."""


def encode_block_header(block_bytes: int, first_entry_id: int, ledger_id: int | None = None) -> bytes:
    """The header of a block of this length; with a ledger id, that of the streaming form."""
    if ledger_id is None:
        fields = _HEADER.pack(BLOCK_MAGIC, HEADER_BYTES, block_bytes, first_entry_id)
    else:
        fields = _STREAMING_HEADER.pack(STREAMING_BLOCK_MAGIC, HEADER_BYTES, block_bytes, first_entry_id, ledger_id)
    return fields.ljust(HEADER_BYTES, b"\0")


def decode_block_header(data: bytes) -> BlockHeader:
    """The header of either form, from at least 128 bytes. Raises `BadOffload`."""
    if len(data) < HEADER_BYTES:
        raise BadOffload(f"a block header of {len(data)} bytes, where {HEADER_BYTES} are")
    magic, header_bytes, block_bytes, first_entry_id = _HEADER.unpack_from(data)
    ledger_id: int | None = None
    if magic == STREAMING_BLOCK_MAGIC:
        ledger_id = _STREAMING_HEADER.unpack_from(data)[4]
    elif magic != BLOCK_MAGIC:
        raise BadOffload(f"no block begins here: magic {magic:#010x}")
    if not _STREAMING_HEADER.size <= header_bytes <= min(_HEADER_BYTES_MAX, block_bytes):
        raise BadOffload(f"a block of {block_bytes} bytes with a header of {header_bytes}")
    if first_entry_id < 0:
        raise BadOffload(f"a block that begins with entry {first_entry_id}")
    return BlockHeader(header_bytes, block_bytes, first_entry_id, ledger_id)


def streaming_block_bytes(block_bytes_min: int, payloads: Sequence[bytes]) -> int:
    """The length of a streaming block with these entries (Pulsar: BufferedOffloadStream.calculateBlockSize)."""
    held = len(payloads) * ENTRY_HEADER_BYTES + sum(map(len, payloads)) + HEADER_BYTES
    return max(block_bytes_min, held)


def encode_entry_header(entry_id: int, size_bytes: int) -> bytes:
    """The header of an entry: its size in bytes and its id."""
    return _ENTRY_HEADER.pack(size_bytes, entry_id)


def padding(size_bytes: int) -> bytes:
    """The padding of `size_bytes` that fills a block behind its last entry."""
    return (PADDING * (size_bytes // len(PADDING) + 1))[:size_bytes]


def encode_streaming_block(block_bytes: int, ledger_id: int, first_entry_id: int, payloads: Sequence[bytes]) -> bytes:
    """A whole block of the streaming form."""
    entries = b"".join(
        encode_entry_header(entry_id, len(payload)) + payload
        for entry_id, payload in enumerate(payloads, first_entry_id)
    )
    header = encode_block_header(block_bytes, first_entry_id, ledger_id)
    missing_bytes = block_bytes - len(header) - len(entries)
    if missing_bytes < 0:
        raise Misuse(f"{len(entries)} bytes of entries do not fit into a block of {block_bytes}")
    return header + entries + padding(missing_bytes)


class Scan(NamedTuple):
    """The entries that were found in one stretch of a block."""

    payloads: list[bytes]
    """Of the wanted entries, in order."""
    next_entry_id: int
    """The entry that is expected next."""
    used_bytes: int
    """Of the stretch: the next entry, or its beginning, is behind them."""
    ended: bool
    """No further entry is in this block."""


def scan_entries(data: memoryview, next_entry_id: int, first_entry_id: int, last_entry_id: int) -> Scan:
    """The entries first..last as far as they are in a stretch of one block that begins with entry `next_entry_id`.

    `data` is what is at hand, up to the block's end at most; an entry that is not whole is left. Raises `BadOffload`
    for an entry with another id than the one that is its turn."""
    payloads: list[bytes] = []
    position = 0
    end = len(data)
    while next_entry_id <= last_entry_id:
        if position + ENTRY_HEADER_BYTES > end:
            # A length that is negative needs no more than its first byte.
            ended = position < end and data[position] >= 0x80
            return Scan(payloads, next_entry_id, position, ended)
        size_bytes, entry_id = _ENTRY_HEADER.unpack_from(data, position)
        if size_bytes < 0:
            return Scan(payloads, next_entry_id, position, ended=True)
        if entry_id != next_entry_id:
            raise BadOffload(f"entry {entry_id} stands where entry {next_entry_id} should")
        after = position + ENTRY_HEADER_BYTES + size_bytes
        if after > end:
            break
        if entry_id >= first_entry_id:
            payloads.append(bytes(data[position + ENTRY_HEADER_BYTES : after]))
        position = after
        next_entry_id += 1
    return Scan(payloads, next_entry_id, position, ended=False)


def wanted_bytes(data: memoryview) -> int:
    """How many bytes the entry needs that begins here; what is at hand is less than that. At least its header's."""
    if len(data) < ENTRY_HEADER_BYTES:
        return ENTRY_HEADER_BYTES
    size_bytes: int = _ENTRY_HEADER.unpack_from(data)[0]
    return ENTRY_HEADER_BYTES + size_bytes
