"""The head of a journal file, and the note beside the files of which is the newest: what tells that one is missing.

Pure. BookKeeper writes a magic word and a version and zeros up to 512 bytes. Behind these two, where it does not look,
our files say that their groups have marks, which file came before and up to where that was acknowledged, in which
steps the file grows, and a checksum of all this.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import google_crc32c

EXPLICIT_LAC_VERSION: Final = 6
"""The first version that has records for explicit LACs."""
VERSIONS_READ: Final = (4, 5, 6)
HEADER_BYTES: Final = 512
SHORT_HEADER_BYTES: Final = 8
"""Version 4 had only the magic word and the version."""

GROUP_MARK: Final = b"MGTRgrp1"

_MAGIC: Final = b"BKLG"
_HEADER: Final = struct.Struct(">4sI")
_CHAIN: Final = struct.Struct(">QQI")
_CHECKSUM: Final = struct.Struct(">I")
_CHECKED_BYTES: Final = 8 + 8 + 20
"""Bytes of the header that its checksum covers."""

NEWEST_FILE: Final = "newestJournal"
"""Stands beside the files and names the newest one that was begun, so that it is missed when it is gone."""


def encode_newest(file_id: int) -> bytes:
    """What `NEWEST_FILE` holds."""
    text = b"%x" % file_id
    return b"%b %08x\n" % (text, google_crc32c.value(text))


def decode_newest(content: bytes) -> int:
    """The id in `NEWEST_FILE`. `ValueError` when it is damaged."""
    file_id = int(content.partition(b" ")[0] or b"-", 16)
    if file_id < 0 or encode_newest(file_id) != content:
        raise ValueError("it does not match its checksum")
    return file_id


class NotAJournal(ValueError):
    """The file does not start as a journal of a version that we read."""


class JournalHeader(NamedTuple):
    """What the head of a file says."""

    version: int
    has_marks: bool
    previous_file_id: int
    """The file before this one that anything was written to; 0: none, or nobody has said so."""
    previous_end_offset: int
    """Behind the last group of that one which was acknowledged."""
    preallocate_bytes: int
    """The file's size is a multiple; 0 when nobody has said so."""

    @property
    def first_offset(self) -> int:
        """Where the first group begins."""
        return HEADER_BYTES if self.version >= 5 else SHORT_HEADER_BYTES


LOST_HEADER: Final = JournalHeader(EXPLICIT_LAC_VERSION, True, 0, 0, 0)
"""The header taken for a file of ours whose head is damaged: the groups are read all the same."""


def encode_header(version: int, previous: tuple[int, int] = (0, 0), preallocate_bytes: int = 0) -> bytes:
    """The first 512 bytes of a file with group marks; `previous`: id and end of the file before."""
    assert version >= 5
    head = _HEADER.pack(_MAGIC, version) + GROUP_MARK + _CHAIN.pack(previous[0], previous[1], preallocate_bytes)
    return (head + _CHECKSUM.pack(google_crc32c.value(head))).ljust(HEADER_BYTES, b"\0")


def decode_header(head: bytes) -> JournalHeader:
    """The fields, from a file's first `HEADER_BYTES`. `NotAJournal` also when any of them is damaged."""
    if len(head) < SHORT_HEADER_BYTES:
        raise NotAJournal(f"the header has {len(head)} bytes")
    magic, version = _HEADER.unpack_from(head)
    if magic != _MAGIC or version not in VERSIONS_READ:
        raise NotAJournal(f"the header starts with {head[:8].hex()}")
    ours = head[SHORT_HEADER_BYTES : SHORT_HEADER_BYTES + len(GROUP_MARK)] == GROUP_MARK
    if version < 5 and not ours:
        return JournalHeader(version, False, 0, 0, 0)
    rest = head[SHORT_HEADER_BYTES:]
    if not any(rest):
        return JournalHeader(version, False, 0, 0, 0)
    if version < 5 or not ours or len(head) < HEADER_BYTES or any(head[_CHECKED_BYTES + 4 :]):
        raise NotAJournal("the header is damaged")
    if not any(rest[len(GROUP_MARK) :]):
        # As we wrote them before headers had more.
        return JournalHeader(version, True, 0, 0, 0)
    if _CHECKSUM.unpack_from(head, _CHECKED_BYTES)[0] != google_crc32c.value(head[:_CHECKED_BYTES]):
        raise NotAJournal("the header does not match its checksum")
    previous_file_id, previous_end_offset, preallocate_bytes = _CHAIN.unpack_from(head, 8 + len(GROUP_MARK))
    return JournalHeader(version, True, previous_file_id, previous_end_offset, preallocate_bytes)
