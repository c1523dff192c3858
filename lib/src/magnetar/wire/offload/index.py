"""Index objects: where the blocks of a data object are, and of which ledgers (Pulsar: OffloadIndexBlockImpl,
OffloadIndexBlockV2Impl).

V1 is over one ledger and holds BookKeeper's metadata of it, without the password. V2, of the streaming form, is over
several and holds the managed ledger's LedgerInfo of each. The magic tells which. All numbers are big-endian.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError
from magnetar.core.errors import PeerError
from magnetar.wire.bookkeeper.ledger_metadata import (
    LedgerMetadata,
    LedgerState,
    decode_ledger_metadata_message,
    encode_offloaded_ledger_metadata,
)
from magnetar.wire.offload.errors import BadOffload
from magnetar.wire.pulsar.generated.ml_data_formats_pb2 import ManagedLedgerInfo

INDEX_MAGIC: Final = 0xDE47DE47
STREAMING_INDEX_MAGIC: Final = 0x3D1FB0BC
INDEX_BYTES_MAX: Final = 4 << 20
"""Of one index object: 200 000 blocks, 30 MB once they are decoded. A ledger of 2 GiB has 400 of the smallest."""

_HEAD: Final = struct.Struct(">IIqq")
_LEDGER_HEAD: Final = struct.Struct(">ii")
_LEDGER_ID: Final = struct.Struct(">q")
_ENTRY: Final = struct.Struct(">qiq")
_BLOCK_BYTES_MIN: Final = 36


class IndexEntry(NamedTuple):
    """One block."""

    first_entry_id: int
    part_id: int
    """Of the multi-part upload, from 1; nothing is read by it."""
    offset: int
    """Where the block's header begins in the data object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerBlocks:
    """One ledger in an index: its blocks in the order of their entries, one at least."""

    ledger_id: int | None
    """None in V1: the name of the object has it."""
    last_entry_id: int
    length_bytes: int
    blocks: Sequence[IndexEntry]

    @property
    def first_entry_id(self) -> int:
        """The first entry in this object; not 0 where an earlier streaming object has the ledger's beginning."""
        return self.blocks[0].first_entry_id

    def block_of(self, entry_id: int) -> int:
        """Which of `blocks` has this entry, first_entry_id..last_entry_id."""
        return bisect_right(self.blocks, entry_id, key=_first_entry_id) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadIndex:
    """A whole index object."""

    data_bytes: int
    """Of the data object."""
    header_bytes: int
    """Of each block."""
    ledgers: Mapping[int | None, LedgerBlocks]
    """By id; V1 has one, under None."""


def _first_entry_id(entry: IndexEntry) -> int:
    return entry.first_entry_id


def encode_index(described: LedgerMetadata, data_bytes: int, header_bytes: int, blocks: Sequence[IndexEntry]) -> bytes:
    """An index over one ledger (V1)."""
    metadata = encode_offloaded_ledger_metadata(described)
    size_bytes = _HEAD.size + _LEDGER_HEAD.size + len(metadata) + _ENTRY.size * len(blocks)
    return b"".join(
        (
            _HEAD.pack(INDEX_MAGIC, size_bytes, data_bytes, header_bytes),
            _LEDGER_HEAD.pack(len(blocks), len(metadata)),
            metadata,
            *(_ENTRY.pack(*block) for block in blocks),
        )
    )


def encode_streaming_index(
    data_bytes: int, header_bytes: int, ledgers: Sequence[tuple[ManagedLedgerInfo.LedgerInfo, Sequence[IndexEntry]]]
) -> bytes:
    """An index over several ledgers (V2)."""
    parts: list[bytes] = []
    for info, blocks in ledgers:
        metadata = info.SerializeToString()
        parts += (_LEDGER_ID.pack(info.ledgerId), _LEDGER_HEAD.pack(len(blocks), len(metadata)), metadata)
        parts += (_ENTRY.pack(*block) for block in blocks)
    size_bytes = _HEAD.size + sum(map(len, parts))
    return b"".join((_HEAD.pack(STREAMING_INDEX_MAGIC, size_bytes, data_bytes, header_bytes), *parts))


def decode_index(data: bytes) -> OffloadIndex:
    """An index object of either form. Raises `BadOffload`."""
    if len(data) > INDEX_BYTES_MAX:
        raise BadOffload(f"an index of {len(data)} bytes, where {INDEX_BYTES_MAX} are the most")
    if len(data) < _HEAD.size:
        raise BadOffload(f"an index of {len(data)} bytes")
    magic, told_bytes, data_bytes, header_bytes = _HEAD.unpack_from(data)
    if magic not in (INDEX_MAGIC, STREAMING_INDEX_MAGIC):
        raise BadOffload(f"no index: magic {magic:#010x}")
    # Apache's reader does not look at it. But in the form that has no count of ledgers nothing else tells of a cut.
    if magic == STREAMING_INDEX_MAGIC and told_bytes > len(data):
        raise BadOffload(f"an index of {len(data)} bytes that should have {told_bytes}")
    if not _BLOCK_BYTES_MIN <= header_bytes <= data_bytes:
        raise BadOffload(f"an index over {data_bytes} bytes whose block headers have {header_bytes}")
    ledgers: dict[int | None, LedgerBlocks] = {}
    position = _HEAD.size
    while position < len(data):
        ledger, position = _decode_ledger(data, position, data_bytes, streaming=magic == STREAMING_INDEX_MAGIC)
        if ledger.ledger_id in ledgers:
            raise BadOffload(f"an index that has ledger {ledger.ledger_id} twice")
        ledgers[ledger.ledger_id] = ledger
        if magic == INDEX_MAGIC:
            break
    if not ledgers:
        raise BadOffload("an index without a ledger")
    return OffloadIndex(data_bytes=data_bytes, header_bytes=header_bytes, ledgers=ledgers)


def _decode_ledger(data: bytes, position: int, data_bytes: int, *, streaming: bool) -> tuple[LedgerBlocks, int]:
    ledger_id: int | None = None
    head_bytes = _LEDGER_HEAD.size + (_LEDGER_ID.size if streaming else 0)
    if position + head_bytes > len(data):
        raise BadOffload("an index that is cut short")
    if streaming:
        ledger_id = _LEDGER_ID.unpack_from(data, position)[0]
    position += head_bytes
    block_count, metadata_bytes = _LEDGER_HEAD.unpack_from(data, position - _LEDGER_HEAD.size)
    if block_count < 1 or metadata_bytes < 0:
        raise BadOffload(f"an index of {block_count} blocks with {metadata_bytes} bytes of metadata")
    blocks_at = position + metadata_bytes
    end = blocks_at + block_count * _ENTRY.size
    if end > len(data):
        raise BadOffload(f"an index of {len(data)} bytes that should have {end} at least")
    last_entry_id, length_bytes = (_of_managed_ledger if streaming else _of_bookkeeper)(data[position:blocks_at])
    blocks = [IndexEntry(*fields) for fields in _ENTRY.iter_unpack(data[blocks_at:end])]
    _check_blocks(blocks, last_entry_id, data_bytes)
    ledger = LedgerBlocks(
        ledger_id=ledger_id, last_entry_id=last_entry_id, length_bytes=length_bytes, blocks=tuple(blocks)
    )
    return ledger, end


def _of_bookkeeper(metadata: bytes) -> tuple[int, int]:
    try:
        described = decode_ledger_metadata_message(metadata)
    except PeerError as error:
        raise BadOffload(f"an index with {error}") from None
    if described.state is not LedgerState.CLOSED or described.last_entry_id < 0 or described.length_bytes < 0:
        raise BadOffload(
            f"an index over a ledger that is {described.state.name}, up to entry {described.last_entry_id}"
        )
    return described.last_entry_id, described.length_bytes


def _of_managed_ledger(metadata: bytes) -> tuple[int, int]:
    try:
        info = ManagedLedgerInfo.LedgerInfo.FromString(metadata)
    except DecodeError as error:
        raise BadOffload(f"an index with a damaged LedgerInfo: {error}") from None
    if info.entries < 1 or info.size < 0:
        raise BadOffload(f"an index over a ledger of {info.entries} entries and {info.size} bytes")
    return info.entries - 1, info.size


def _check_blocks(blocks: Sequence[IndexEntry], last_entry_id: int, data_bytes: int) -> None:
    """Both numbers grow from block to block, and stay within the object."""
    entry_id, offset = -1, -_BLOCK_BYTES_MIN
    for block in blocks:
        if block.first_entry_id <= entry_id or block.offset < offset + _BLOCK_BYTES_MIN:
            raise BadOffload(
                f"an index with a block of entry {block.first_entry_id} at {block.offset}"
                f" behind one of entry {entry_id} at {offset}"
            )
        entry_id, offset = block.first_entry_id, block.offset
    if entry_id > last_entry_id or offset + _BLOCK_BYTES_MIN > data_bytes:
        raise BadOffload(
            f"an index with a block of entry {entry_id} at {offset}, where the ledger ends with entry {last_entry_id}"
            f" and the object at {data_bytes}"
        )
