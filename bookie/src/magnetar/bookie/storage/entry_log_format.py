"""The entry log's bytes (BookKeeper: bookie/DefaultEntryLogger). Touches no file.

Header of 1024 bytes: "BKLO", version u32, offset of the ledgers map i64, number of ledgers u32, then zeros; where the
first four of these are, which BookKeeper does not read, ours has a checksum of what stands before and of the map. Then
entries, each `size u32, entry`; an entry's location is `log id << 32 | position of its first byte` (behind the size). A
log that was closed well ends with the ledgers map: records that look like entries of ledger -1. A log that garbage
collection has emptied is a header that points to an empty map behind it (`is_emptied`).

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import google_crc32c
from magnetar.core.limits import BOOKKEEPER_FRAME_BYTES_MAX
from magnetar.wire.bookkeeper.entry import HEADER_BYTES as ENTRY_HEADER_BYTES

LOG_SUFFIX: Final = ".log"
HEADER_BYTES: Final = 1024
VERSION: Final = 1
SIZE_BYTES: Final = 4
MAP_LEDGER_ID: Final = -1
MAP_ENTRY_ID: Final = -2
MAP_BATCH_LEDGERS_MAX: Final = 10_000
"""Ledgers in one record of an entry log's map of ledgers."""

_MAGIC: Final = b"BKLO"
_HEADER: Final = struct.Struct(">4sIqI")
_SIZE: Final = struct.Struct(">I")
_MAP_HEAD: Final = struct.Struct(">IqqI")
_MAP_PAIR: Final = struct.Struct(">qq")
_IDS: Final = struct.Struct(">qq")
_SIZE_AND_IDS: Final = struct.Struct(">Iqq")
_CRC32C: Final = struct.Struct(">I")
_CRC32: Final = struct.Struct(">q")

LEDGER_IN_MAP_BYTES_MAX: Final = _MAP_HEAD.size + _MAP_PAIR.size
"""What one ledger takes of a map at most: a record of its own."""

DIGEST_UNKNOWN: Final = 0
DIGEST_CRC32C: Final = 1
DIGEST_CRC32: Final = 2


class EntryDamaged(ValueError):
    """What stands at an entry's place is not that entry."""


class NotAnEntryLog(ValueError):
    """The file does not start as an entry log."""


def file_name(log_id: int) -> str:
    """The name of a log: its id in hexadecimal."""
    return f"{log_id:x}{LOG_SUFFIX}"


def log_id_of(name: str) -> int | None:
    """The id in a log's name, or None when it is no log."""
    stem, dot, extension = name.partition(".")
    if not dot or extension != "log" or not stem:
        return None
    try:
        return int(stem, 16)
    except ValueError:
        return None


def encode_header(ledgers_map_offset: int = 0, ledgers_count: int = 0, ledgers_map: bytes = b"") -> bytes:
    """The first 1024 bytes; both numbers are 0 until the log is closed."""
    head = _HEADER.pack(_MAGIC, VERSION, ledgers_map_offset, ledgers_count)
    checksum = _CRC32C.pack(_map_checksum(head, ledgers_map)) if ledgers_map else b""
    return (head + checksum).ljust(HEADER_BYTES, b"\0")


def decode_header(head: bytes) -> tuple[int, int]:
    """(offset of the ledgers map, number of ledgers); 0, 0 for a log that was not closed. `NotAnEntryLog`."""
    if len(head) < _HEADER.size:
        raise NotAnEntryLog(f"the header has {len(head)} bytes")
    magic, version, offset, count = _HEADER.unpack_from(head)
    if magic != _MAGIC or version > VERSION:
        raise NotAnEntryLog(f"the header starts with {head[:8].hex()}")
    return offset, count


def check_ledgers_map(head: bytes, ledgers_map: bytes) -> None:
    """`EntryDamaged` when a header has a checksum of another map. BookKeeper's have none."""
    expected: int = _CRC32C.unpack_from(head, _HEADER.size)[0]
    if expected and expected != _map_checksum(head, ledgers_map):
        raise EntryDamaged("the checksum of the ledgers map is wrong")


def _map_checksum(head: bytes, ledgers_map: bytes) -> int:
    checksum: int = google_crc32c.extend(google_crc32c.value(head[: _HEADER.size]), ledgers_map)
    return checksum


EMPTIED_LOG: Final = encode_header(HEADER_BYTES)
"""All of a log that was emptied on purpose. The header alone would be what a damaged file system may leave."""


def is_emptied(head: bytes, size_bytes: int) -> bool:
    """Whether a log of this size, with these first bytes, was emptied on purpose."""
    return size_bytes == HEADER_BYTES and head == EMPTIED_LOG


def encode_entries(entries: Sequence[bytes], position: int) -> tuple[list[bytes], list[int]]:
    """The pieces of entries in a row from `position` on, and the position of each entry's first byte.

    Pieces, because entries come here long after anybody looked at them: a copy would have to fetch all of them from
    memory once more."""
    sizes = list(map(len, entries))
    parts: list[bytes] = [b""] * (2 * len(entries))
    parts[0::2] = map(_SIZE.pack, sizes)
    parts[1::2] = entries
    starts = list(accumulate([size + SIZE_BYTES for size in sizes], initial=position + SIZE_BYTES))
    starts.pop()
    return parts, starts


def encode_ledgers_map(sizes_bytes: dict[int, int]) -> bytes:
    """The map at the end of a log: how many bytes (size words included) each ledger has in it."""
    pairs = list(sizes_bytes.items())
    parts: list[bytes] = []
    for at in range(0, len(pairs), MAP_BATCH_LEDGERS_MAX):
        batch = pairs[at : at + MAP_BATCH_LEDGERS_MAX]
        size = _MAP_HEAD.size - SIZE_BYTES + _MAP_PAIR.size * len(batch)
        parts.append(_MAP_HEAD.pack(size, MAP_LEDGER_ID, MAP_ENTRY_ID, len(batch)))
        parts += [_MAP_PAIR.pack(*pair) for pair in batch]
    return b"".join(parts)


def decode_ledgers_map(data: bytes) -> dict[int, int]:
    """The map from the bytes at its offset. `EntryDamaged` when they are no map."""
    sizes_bytes: dict[int, int] = {}
    at = 0
    while at < len(data):
        if len(data) - at < _MAP_HEAD.size:
            raise EntryDamaged("the ledgers map is cut short")
        size, ledger_id, entry_id, count = _MAP_HEAD.unpack_from(data, at)
        pairs_at = at + _MAP_HEAD.size
        expected = _MAP_HEAD.size - SIZE_BYTES + _MAP_PAIR.size * count
        if (ledger_id, entry_id, size) != (MAP_LEDGER_ID, MAP_ENTRY_ID, expected):
            raise EntryDamaged("what stands in the ledgers map's place is no map")
        at += SIZE_BYTES + size
        if at > len(data):
            raise EntryDamaged("the ledgers map is cut short")
        sizes_bytes.update(_MAP_PAIR.iter_unpack(data[pairs_at:at]))
    return sizes_bytes


def cut_entry(data: bytes, at: int, ledger_id: int, entry_id: int) -> tuple[bytes, int]:
    """(entry, size) from bytes whose `at` is an entry's size word. The entry is short when the data is.

    `EntryDamaged` when size or ids are not those of the entry that should be here."""
    if len(data) - at < SIZE_BYTES + 16:
        raise EntryDamaged("the log ends before the entry")
    size: int = _SIZE.unpack_from(data, at)[0]
    found = _IDS.unpack_from(data, at + SIZE_BYTES)
    if not ENTRY_HEADER_BYTES <= size <= BOOKKEEPER_FRAME_BYTES_MAX or found != (ledger_id, entry_id):
        raise EntryDamaged(f"found {size} bytes of entry {found[0]}:{found[1]}")
    return data[at + SIZE_BYTES : at + SIZE_BYTES + size], size


def next_entry(data: bytes, at: int, ledger_id: int) -> tuple[int, bytes] | None:
    """(entry id, entry) from bytes whose `at` may be an entry's size word; None when no whole entry of the ledger
    stands there."""
    if len(data) - at < SIZE_BYTES + ENTRY_HEADER_BYTES:
        return None
    size, found_ledger_id, entry_id = _SIZE_AND_IDS.unpack_from(data, at)
    begin = at + SIZE_BYTES
    if found_ledger_id != ledger_id or not ENTRY_HEADER_BYTES <= size <= len(data) - begin:
        return None
    return entry_id, data[begin : begin + size]


def digest_kind(entry: bytes) -> int:
    """Which digest an entry carries, told by trying: 1 CRC32C, 2 CRC32, 0 another one, none, or a damaged entry."""
    head = entry[:ENTRY_HEADER_BYTES]
    if len(entry) >= 36:
        crc32c = google_crc32c.extend(google_crc32c.extend(0, head), entry[36:])
        if _CRC32C.unpack_from(entry, ENTRY_HEADER_BYTES)[0] == crc32c:
            return DIGEST_CRC32C
    if len(entry) >= 40:
        crc32 = zlib.crc32(entry[40:], zlib.crc32(head))
        if _CRC32.unpack_from(entry, ENTRY_HEADER_BYTES)[0] == crc32:
            return DIGEST_CRC32
    return DIGEST_UNKNOWN
