"""Which entries a bookie has, packed (BookKeeper: util/AvailabilityOfEntriesOfLedger).

Header of 64 bytes: version u32 0, number of groups u32, zeros. A group is a run of entries that repeats at a fixed
distance, as striping makes them: first start i64, last start i64, run length u32, distance u32 (0 for one run).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

HEADER_BYTES: Final = 64
_HEADER: Final = struct.Struct(">II")
_GROUP: Final = struct.Struct(">qqII")


def encode_availability(entry_ids: Sequence[int]) -> bytes:
    """The packed form of ascending, distinct entry ids."""
    groups: list[list[int]] = []
    for start, length in _runs(entry_ids):
        group = groups[-1] if groups else None
        if group is not None and group[2] == length and group[3] in (0, start - group[1]):
            group[3] = start - group[1]
            group[1] = start
        else:
            groups.append([start, start, length, 0])
    header = _HEADER.pack(0, len(groups)).ljust(HEADER_BYTES, b"\0")
    return header + b"".join(_GROUP.pack(*group) for group in groups)


def decode_availability(packed: bytes) -> list[int]:
    """The entry ids. `ValueError` when it is cut short."""
    if len(packed) < HEADER_BYTES:
        raise ValueError(f"{len(packed)} bytes are no header")
    _, count = _HEADER.unpack_from(packed)
    if len(packed) < HEADER_BYTES + count * _GROUP.size:
        raise ValueError(f"{len(packed)} bytes cannot hold {count} groups")
    entry_ids: list[int] = []
    for index in range(count):
        first, last, length, distance = _GROUP.unpack_from(packed, HEADER_BYTES + index * _GROUP.size)
        for start in range(first, last + 1, distance or 1):
            entry_ids.extend(range(start, start + length))
    return entry_ids


def _runs(entry_ids: Sequence[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    start = length = 0
    for entry_id in entry_ids:
        if length and entry_id == start + length:
            length += 1
            continue
        if length:
            runs.append((start, length))
        start, length = entry_id, 1
    if length:
        runs.append((start, length))
    return runs
