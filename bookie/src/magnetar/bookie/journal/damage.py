"""Tells a journal's torn end, which nobody was ever told is safe, from damage to what was acknowledged. Pure.

A file is preallocated with zeros and its groups are written one after the other. So a write that a power failure cut
leaves sectors of zeros in its group, and nothing behind it. Whoever finds a wrong group with no more sectors of zeros
than its mark tells of, or a whole group behind it, looks at bytes that were right once.

What the bytes cannot tell: a last group of which a disk has turned whole sectors into zeros, and whole groups at the
very end, however many, that became zeros. Both look as a power failure leaves them. The note of the durable end tells
(`note`), as far as it had reached the disk.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

import google_crc32c
from magnetar.bookie.journal.format import (
    GROUP_BYTES_MAX,
    GROUP_MARK,
    HEADER_BYTES,
    MARK,
    PADDING_LENGTH,
    READ_WINDOW_BYTES,
    RECORD_BYTES_MAX,
    SECTOR_BYTES,
    ReadAt,
    zero_sectors,
)

ALIGNMENT_BYTES_MAX: Final = 4096
"""The largest journalAlignmentSize: how much padding may follow a mark."""
SHIFT_BYTES_MAX: Final = 64 * 1024
"""How far back the beginning of a group is looked for that does not stand where its mark says."""

_TWO_WORDS: Final = struct.Struct(">II")


class FoundMark(NamedTuple):
    """The end of a group, as found somewhere in a file."""

    offset: int
    """The offset of the mark itself, eight bytes behind its padding record."""
    position: int
    """The offset where the mark's group began when it was written."""
    checksum: int
    end_offset: int
    """The offset in the file where the next record begins: behind the mark's padding."""


def marks_behind(read_at: ReadAt, offset: int) -> Iterator[FoundMark]:
    """Everything from an offset on that looks like a mark in its padding record."""
    while True:
        chunk = read_at(offset, READ_WINDOW_BYTES)
        at = chunk.find(GROUP_MARK, 8)
        while at >= 0 and at + MARK.size <= len(chunk):
            length, size = _TWO_WORDS.unpack_from(chunk, at - 8)
            if length == PADDING_LENGTH and MARK.size <= size < MARK.size + ALIGNMENT_BYTES_MAX:
                _, position, _, checksum = MARK.unpack_from(chunk, at)
                yield FoundMark(offset + at, position, checksum, offset + at + size)
            at = chunk.find(GROUP_MARK, at + 1)
        if len(chunk) < READ_WINDOW_BYTES:
            return
        offset += READ_WINDOW_BYTES - MARK.size - 8


def next_whole_group(read_at: ReadAt, offset: int) -> int | None:
    """Where the first whole group from an offset on begins that stands where it was written."""
    for mark in marks_behind(read_at, offset):
        if mark.position >= offset and _is_group(read_at, mark.position, mark):
            return mark.position
    return None


def whole_group_behind(read_at: ReadAt, offset: int) -> bool:
    """Whether a whole group stands anywhere behind an offset where none was to be read, also one that was moved."""
    previous_end = offset
    for mark in marks_behind(read_at, offset):
        if offset <= mark.position and _is_group(read_at, mark.position, mark):
            return True
        if mark.position != previous_end and _is_group(read_at, previous_end, mark):
            return True
        last = mark.offset - 8
        moved = range(last - last % SECTOR_BYTES, max(offset, last - SHIFT_BYTES_MAX) - 1, -SECTOR_BYTES)
        if mark.position != offset and any(_is_group(read_at, begin, mark) for begin in moved):
            return True
        previous_end = mark.end_offset
    return False


def was_written_whole(read_at: ReadAt, group_offset: int) -> bool:
    """Whether a group that is wrong was whole once: its end is there, and no more sectors are zeros than its mark
    tells of."""
    chunk = read_at(group_offset, GROUP_BYTES_MAX)
    end = _end_by_records(chunk) or _end_by_mark(chunk, group_offset)
    last_sector = chunk[end - end % SECTOR_BYTES : end]
    if not end or (last_sector and not last_sector.strip(b"\0")):
        return False
    sent_as_zeros: int = MARK.unpack_from(chunk, end - MARK.size)[2]
    return zero_sectors([chunk[:end]]) <= sent_as_zeros


def is_group_end(read_at: ReadAt, offset: int) -> bool:
    """Whether a group ends at an offset, going by its padding alone."""
    if offset <= HEADER_BYTES:
        return True
    begin = max(HEADER_BYTES, offset - ALIGNMENT_BYTES_MAX - MARK.size - 8)
    return any(mark.end_offset == offset for mark in marks_behind(_up_to(read_at, offset), begin))


def is_record_end(read_at: ReadAt, offset: int, first_record_offset: int) -> bool:
    """Whether the records of a file without marks, followed from the first one, lead to an offset."""
    window, window_offset, at = b"", 0, first_record_offset
    while at < offset:
        if at - window_offset + 8 > len(window):
            window, window_offset = read_at(at, READ_WINDOW_BYTES), at
        head = window[at - window_offset : at - window_offset + 8]
        if len(head) < 8:
            return False
        length, padding = _TWO_WORDS.unpack(head)
        if length == PADDING_LENGTH:
            at += 8 + padding
        elif 0 < length <= RECORD_BYTES_MAX:
            at += 4 + length
        else:
            return False
    return at == offset


def _is_group(read_at: ReadAt, begin: int, mark: FoundMark) -> bool:
    size = mark.offset - 8 - begin
    if begin < HEADER_BYTES or not 0 < size <= GROUP_BYTES_MAX:
        return False
    return bool(google_crc32c.value(read_at(begin, size)) == mark.checksum)


def _end_by_records(chunk: bytes) -> int:
    """Behind the mark to which the records lead; 0 when they lead nowhere."""
    at = 0
    while at + 8 <= len(chunk):
        length, size = _TWO_WORDS.unpack_from(chunk, at)
        if length == PADDING_LENGTH:
            end = at + 8 + MARK.size
            fits = size >= MARK.size and (at + 8 + size) % SECTOR_BYTES == 0
            return end if at > 0 and fits and end <= len(chunk) else 0
        if not 16 <= length <= RECORD_BYTES_MAX:
            return 0
        at += 4 + length
    return 0


def _end_by_mark(chunk: bytes, group_offset: int) -> int:
    """Behind the mark that names this group as its own; 0 when there is none."""
    at = chunk.find(GROUP_MARK + struct.pack(">Q", group_offset))
    return at + MARK.size if at >= 0 and at + MARK.size <= len(chunk) else 0


def _up_to(read_at: ReadAt, end: int) -> ReadAt:
    return lambda at, size: read_at(at, max(0, min(size, end - at)))
