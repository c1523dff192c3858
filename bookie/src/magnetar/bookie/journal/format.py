"""The journal's bytes: header, records, padding, and how to read them back to the last whole group.

Decides what a journal file means; touches no file itself (reading comes in as a function).

File (BookKeeper: bookie/Journal, bookie/JournalChannel): header, then records `length u32, bytes`. A record is an
entry (`magnetar.wire.bookkeeper.entry`) or a meta record, which looks like an entry with a negative entry id. From
version 5 on the header has 512 bytes and a padding record `-256, size u32, size bytes` fills up to the alignment. A
length of 0 is the end: the file is preallocated with zeros.

BookKeeper's journal has no checksum, so a write that was cut by a power failure can leave a record with holes in it.
We put one where BookKeeper's readers do not look: every group ends with a padding record whose first bytes hold a
mark, the position of the group's first byte, the CRC32C of the group, and how many of its sectors are zeros as they
were sent: more than that were never written. The header says, behind BookKeeper's
fields, that a file has marks, which file came before and where that ended, in which steps the file grows, and its own
CRC32C. A group without a right mark was never acknowledged, or is damaged (`damage` tells which).

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable
from itertools import chain
from typing import Final

import google_crc32c
from magnetar.bookie.journal.header import EXPLICIT_LAC_VERSION as EXPLICIT_LAC_VERSION
from magnetar.bookie.journal.header import GROUP_MARK as GROUP_MARK
from magnetar.bookie.journal.header import HEADER_BYTES as HEADER_BYTES
from magnetar.bookie.journal.header import JournalHeader, decode_header
from magnetar.core.limits import BOOKKEEPER_FRAME_BYTES_MAX, MIB
from magnetar.wire.bookkeeper.entry import HEADER_BYTES as ENTRY_HEADER_BYTES

MASTER_KEY_RECORD: Final = -0x1000
FENCE_RECORD: Final = -0x2000
FORCE_LEDGER_RECORD: Final = -0x4000
EXPLICIT_LAC_RECORD: Final = -0x8000
META_RECORDS: Final = (MASTER_KEY_RECORD, FENCE_RECORD, FORCE_LEDGER_RECORD, EXPLICIT_LAC_RECORD)
META_RECORD_BYTES_MIN: Final = 16

PADDING_LENGTH: Final = 0xFFFF_FF00
"""-256 as the length word of a padding record."""

RECORD_BYTES_MAX: Final = BOOKKEEPER_FRAME_BYTES_MAX
"""No record is larger than the frame it came in."""

READ_WINDOW_BYTES: Final = 8 * MIB
"""How much is read at once; larger than any record, small enough for the smallest bookie."""

GROUP_BYTES_MAX: Final = 16 * MIB
"""No group is larger: the journal takes 4 MiB at a time, and the last list of records comes on top."""

assert READ_WINDOW_BYTES > RECORD_BYTES_MAX + 8

_LENGTH: Final = struct.Struct(">I")
_TWO_WORDS: Final = struct.Struct(">II")
_TWO_LONGS: Final = struct.Struct(">qq")
PIECE_BYTES_MIN: Final = 8 * 1024
"""Records of this size on average are written as they are."""
GROUP_RECORDS_MAX: Final = 500
"""Records of a group that is written in pieces: two pieces each, and the padding, in one `pwritev` of at most 1024."""

MARK: Final = struct.Struct(">8sQII")
"""The mark's word, the group's position, its sectors of zeros, its CRC32C. That comes last: it is hardly
ever 0, so that a sector that begins with it is seen to be written."""
SECTOR_BYTES: Final = 512
"""What a disk writes whole or not at all; groups begin at a multiple."""
_SECTOR_OF_ZEROS: Final = bytes(SECTOR_BYTES)
_KEYED_RECORD: Final = struct.Struct(">qqI")
_crc32c_extend: Final = google_crc32c.extend

ReadAt = Callable[[int, int], bytes]
"""(offset, size) → bytes; fewer only at the end of the file."""


class Ending(enum.Enum):
    """How a journal file ends."""

    CLEAN = enum.auto()
    """Zeros or the end of the file after the last group."""
    TORN = enum.auto()
    """A group that was being written when the power went; nothing of it was acknowledged."""
    DAMAGED = enum.auto()
    """Bytes that were good once are wrong: whole groups stand behind the bad ones."""


def file_name(file_id: int) -> str:
    """The name of a journal file: its id in hexadecimal (BookKeeper: Long.toHexString)."""
    return f"{file_id:x}.txn"


def file_id_of(name: str) -> int | None:
    """The id in a journal file's name, or None when it is no journal file."""
    stem, dot, extension = name.partition(".")
    if not dot or extension != "txn" or not stem:
        return None
    try:
        return int(stem, 16)
    except ValueError:
        return None


def encode_group(record_lists: list[list[bytes]], position: int, alignment: int) -> tuple[list[bytes], int]:
    """(pieces, size) of one group that starts at `position`: its records, and the padding record with the mark.

    Large records stay pieces of their own: joining them would fetch and copy every byte once more. Small ones are
    joined, as each piece costs the kernel more than a copy of a few hundred bytes does."""
    records = record_lists[0] if len(record_lists) == 1 else list(chain.from_iterable(record_lists))
    parts: list[bytes] = [b""] * (2 * len(records))
    sizes = list(map(len, records))
    parts[0::2] = map(_LENGTH.pack, sizes)
    parts[1::2] = records
    size = sum(sizes) + 4 * len(sizes)
    checksum = 0
    if size < PIECE_BYTES_MIN * len(records) or len(records) > GROUP_RECORDS_MAX:
        body = b"".join(parts)
        parts = [body]
        checksum = _crc32c_extend(0, body)
    else:
        for part in parts:
            checksum = _crc32c_extend(checksum, part)
    unpadded = 8 + MARK.size
    padding_bytes = -(position + size + unpadded) % alignment
    mark = MARK.pack(GROUP_MARK, position, zero_sectors(parts), checksum)
    parts.append(_TWO_WORDS.pack(PADDING_LENGTH, MARK.size + padding_bytes) + mark + bytes(padding_bytes))
    return parts, size + unpadded + padding_bytes


def zero_sectors(parts: list[bytes]) -> int:
    """How many whole sectors of a group's bytes are zeros."""
    count = at = 0
    # Whether the sector that began in a part before is zeros so far: a length between two parts may begin or end so.
    zeros_so_far = False
    for part in parts:
        size = len(part)
        begin = -at % SECTOR_BYTES
        if zeros_so_far:
            zeros_so_far = part.startswith(_SECTOR_OF_ZEROS[: min(begin, size)])
            if begin <= size:
                count += zeros_so_far
                zeros_so_far = False
        while begin + SECTOR_BYTES <= size:
            if part[begin] == 0 and part.startswith(_SECTOR_OF_ZEROS, begin):
                count += 1
            begin += SECTOR_BYTES
        if begin < size:
            zeros_so_far = part[begin] == 0 and part.endswith(_SECTOR_OF_ZEROS[: size - begin])
        at += size
    return count


def encode_master_key_record(ledger_id: int, master_key: bytes) -> bytes:
    """Who owns a ledger; stands before the ledger's first entry after a start."""
    return _KEYED_RECORD.pack(ledger_id, MASTER_KEY_RECORD, len(master_key)) + master_key


def encode_fence_record(ledger_id: int) -> bytes:
    """The ledger takes no more adds from its writer."""
    return _TWO_LONGS.pack(ledger_id, FENCE_RECORD)


def encode_explicit_lac_record(ledger_id: int, packet: bytes) -> bytes:
    """The packet of an explicit LAC write."""
    return _KEYED_RECORD.pack(ledger_id, EXPLICIT_LAC_RECORD, len(packet)) + packet


def record_ids(record: bytes) -> tuple[int, int]:
    """(ledger id, entry id); a negative entry id says which meta record it is."""
    ids: tuple[int, int] = _TWO_LONGS.unpack_from(record)
    return ids


def record_value(record: bytes) -> bytes:
    """The master key or the explicit LAC packet of a meta record. `ValueError` if it is cut short."""
    if len(record) < _KEYED_RECORD.size:
        raise ValueError(f"a meta record of {len(record)} bytes")
    size: int = _KEYED_RECORD.unpack_from(record)[2]
    value = record[_KEYED_RECORD.size : _KEYED_RECORD.size + size]
    if len(value) != size:
        raise ValueError(f"a meta record of {len(record)} bytes that announces {size}")
    return value


ZEROS_LOOKED_AT_BYTES: Final = 16 * 1024
"""Behind a length of 0; a group that lost its first length shows its mark or its bytes within this."""


class JournalScan:
    """Reads one file from an offset: whole groups, then how it ended.

    `ending`, `end_offset` (behind the last whole group) and `problem` (for people) are set once `next_group`
    has answered None."""

    def __init__(self, read_at: ReadAt, start_offset: int = 0, header: JournalHeader | None = None) -> None:
        """`header`: instead of the file's own. `NotAJournal`."""
        self._read_at = read_at
        self._window = b""
        self._window_offset = 0
        self.header = header if header is not None else decode_header(read_at(0, HEADER_BYTES))
        self.version = self.header.version
        self.has_marks = self.header.has_marks
        self.end_offset = max(start_offset, self.header.first_offset)
        self.group_offset = self.end_offset
        """Where the group begins that `next_group` gave last."""
        self.ending: Ending | None = None
        self.problem = ""

    def next_group(self) -> list[bytes] | None:
        """The records of the next whole group; None behind the last. Files without marks: each record is a group."""
        if self.ending is not None:
            return None
        records: list[bytes] = []
        group_start = offset = self.end_offset
        checksum = 0
        while True:
            head = self._take(offset, 8)
            length: int = _LENGTH.unpack_from(head)[0] if len(head) >= 4 else 0
            if length == 0:
                self._finish(group_start, self._problem_at_zero(offset, records))
                return None
            if length == PADDING_LENGTH and self.version >= 5:
                size: int = _TWO_WORDS.unpack(head)[1] if len(head) == 8 else RECORD_BYTES_MAX + 1
                problem = self._check_mark(offset, size, group_start, checksum) if self.has_marks else ""
                if problem:
                    self._finish(group_start, problem)
                    return None
                offset += 8 + size
                self.end_offset = offset
                if records:
                    self.group_offset = group_start
                    return records
                group_start = offset
                checksum = 0
                continue
            framed = self._take(offset, 4 + length) if length <= RECORD_BYTES_MAX else b""
            if length < 16 or len(framed) != 4 + length:
                self._finish(group_start, f"a record of {length} bytes at {offset} is not whole")
                return None
            checksum = _crc32c_extend(checksum, framed) if self.has_marks else 0
            offset += 4 + length
            records.append(framed[4:])
            if not self.has_marks:
                self.group_offset = group_start
                self.end_offset = offset
                return records

    def _problem_at_zero(self, offset: int, records: list[bytes]) -> str:
        """Why a length of 0 is not simply the end: behind that a file holds nothing but zeros."""
        if records:
            return "a group stops without its mark"
        if self._take(offset, ZEROS_LOOKED_AT_BYTES).strip(b"\0"):
            return f"a record at {offset} says that it has no bytes, and bytes follow"
        return ""

    def _check_mark(self, offset: int, size: int, group_start: int, checksum: int) -> str:
        mark = self._take(offset + 8, MARK.size)
        if size < MARK.size or size > RECORD_BYTES_MAX or len(mark) != MARK.size:
            return f"the padding at {offset} holds no mark"
        word, start, _, expected = MARK.unpack(mark)
        if word != GROUP_MARK or start != group_start or expected != checksum:
            return f"the group from {group_start} to {offset} does not match its checksum"
        return ""

    def _finish(self, group_start: int, problem: str) -> None:
        self.end_offset = group_start
        self.problem = problem
        if not problem:
            self.ending = Ending.CLEAN
        elif self.has_marks and self._later_mark(group_start):
            self.ending = Ending.DAMAGED
        else:
            self.ending = Ending.TORN
        self._window = b""

    def _later_mark(self, group_start: int) -> bool:
        # Groups are written one after the other, so a mark of a later group proves that this one was whole once.
        offset = group_start
        while True:
            chunk = self._read_at(offset, READ_WINDOW_BYTES)
            at = chunk.find(GROUP_MARK)
            while at >= 0 and at + MARK.size <= len(chunk):
                if self._is_later_group(chunk, at, offset + at, group_start):
                    return True
                at = chunk.find(GROUP_MARK, at + 1)
            if len(chunk) < READ_WINDOW_BYTES:
                return False
            offset += READ_WINDOW_BYTES - MARK.size

    def _is_later_group(self, chunk: bytes, at: int, mark_offset: int, group_start: int) -> bool:
        # The checksum too must be right: a payload may hold the mark's letters.
        _, position, _, expected = MARK.unpack_from(chunk, at)
        end = mark_offset - 8
        if not group_start < position <= end or end - position > GROUP_BYTES_MAX:
            return False
        return bool(_crc32c_extend(0, self._read_at(position, end - position)) == expected)

    def _take(self, offset: int, size: int) -> bytes:
        at = offset - self._window_offset
        if at < 0 or at + size > len(self._window):
            self._window = self._read_at(offset, READ_WINDOW_BYTES)
            self._window_offset = offset
            at = 0
        return self._window[at : at + size]


def is_entry(record: bytes) -> bool:
    """Whether a record is an entry that has a whole header (meta records have negative entry ids)."""
    return len(record) >= ENTRY_HEADER_BYTES and record_ids(record)[1] >= 0
