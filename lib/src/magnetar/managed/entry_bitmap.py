"""A set of entry ids of one ledger, kept as bits: small when dense, and already in the form that is persisted.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack, unpack
from typing import Final

WORD_BITS: Final = 64
WORD_MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
RUN_BYTES: Final = 4096
"""How much of a long run is looked at in one call, instead of byte by byte."""
SEARCH_BITS: Final = 1 << 16
"""A piece in which set bits are counted, before a search halves it."""
COMPACT_BYTES: Final = 1024
"""The dead head is cut once it is so long: seldom enough to be free, small enough not to matter."""


class EntryBitmap:
    """Entry ids from `base` (a multiple of 64) on."""

    __slots__ = ("base", "bits")

    def __init__(self, first_entry_id: int = 0) -> None:
        self.base: int = max(0, first_entry_id) // WORD_BITS * WORD_BITS
        self.bits: bytearray = bytearray()

    def add(self, entry_id: int) -> bool:
        """Whether the entry was not in the set; it is now. Ids below `base` are not allowed."""
        index = entry_id - self.base
        assert index >= 0
        bits = self.bits
        byte = index >> 3
        mask = 1 << (index & 7)
        if byte >= len(bits):
            bits.extend(bytes((byte // 64 + 1) * 64 - len(bits)))
        if bits[byte] & mask:
            return False
        bits[byte] |= mask
        return True

    def add_range(self, first: int, last: int) -> None:
        """Put first..last (both inside, first at or above `base`) into the set."""
        start = first - self.base
        stop = last + 1 - self.base
        assert start >= 0
        if start >= stop:
            return
        bits = self.bits
        if stop > len(bits) << 3:
            bits.extend(bytes((stop // 512 + 1) * 64 - len(bits)))
        low, high = start >> 3, (stop + 7) >> 3
        value = int.from_bytes(bits[low:high], "little") | ((1 << (stop - start)) - 1) << (start & 7)
        bits[low:high] = value.to_bytes(high - low, "little")

    def add_all(self, value: int) -> None:
        """Put the ids of the bits of a number into the set, bit 0 for id 0; none of them is below `base`."""
        value >>= self.base
        size = max(len(self.bits), (value.bit_length() // 512 + 1) * 64)
        self.bits = bytearray((int.from_bytes(self.bits, "little") | value).to_bytes(size, "little"))

    def contains(self, entry_id: int) -> bool:
        """Whether the entry is in the set."""
        index = entry_id - self.base
        byte = index >> 3
        return index >= 0 and byte < len(self.bits) and self.bits[byte] >> (index & 7) & 1 == 1

    def end_of_run(self, entry_id: int) -> int:
        """The first id at or after this one that is not in the set."""
        bits = self.bits
        index = entry_id - self.base
        if index < 0:
            return entry_id
        length = len(bits) << 3
        while index < length:
            byte = bits[index >> 3]
            if byte == 0xFF and not index & 7:
                piece = bits[index >> 3 : (index >> 3) + RUN_BYTES]
                index += (len(piece) - len(piece.lstrip(b"\xff"))) << 3
            elif byte >> (index & 7) & 1:
                index += 1
            else:
                break
        return index + self.base

    def count(self, first: int, last: int) -> int:
        """How many ids of first..last are in the set."""
        start = max(0, first - self.base)
        stop = min(len(self.bits) << 3, last + 1 - self.base)
        if start >= stop:
            return 0
        value = int.from_bytes(self.bits[start >> 3 : (stop + 7) >> 3], "little")
        value >>= start & 7
        return (value & ((1 << (stop - start)) - 1)).bit_count()

    def missing_at(self, first: int, count: int) -> int:
        """The `count`-th id, from 1, of those from `first` on (at or above `base`) that are not in the set."""
        start = first
        step = SEARCH_BITS
        end = self.base + (len(self.bits) << 3)
        while start < end:
            stop = min(start + step, end)
            missing = stop - start - self.count(start, stop - 1)
            if missing < count:
                count -= missing
                start = stop
            elif stop - start > 1:
                step = (stop - start) >> 1
            else:
                return start
        return start + count - 1

    def runs(self, above: int) -> int:
        """How many runs of ids greater than `above` there are; as `len(ranges(above))`, in no time."""
        value = int.from_bytes(self.bits, "little") >> max(0, above + 1 - self.base)
        return (value & ~(value << 1)).bit_count()

    def forget_below(self, entry_id: int) -> None:
        """Ids below this one matter no more; gives memory back now and then."""
        dead = (entry_id - self.base) >> 3
        if dead >= COMPACT_BYTES:
            dead -= dead % 8
            del self.bits[:dead]
            self.base += dead << 3

    def ranges(self, above: int, count_max: int = 1 << 62) -> list[tuple[int, int]]:
        """Runs of ids greater than `above`, as (first, last) with both ends inside; so many at most."""
        found: list[tuple[int, int]] = []
        bits = self.bits
        index = max(0, above + 1 - self.base)
        length = len(bits) << 3
        while index < length and len(found) < count_max:
            byte = bits[index >> 3]
            if byte >> (index & 7) == 0:
                index = (index | 7) + 1
                piece = bits[index >> 3 : (index >> 3) + RUN_BYTES] if index < length and not bits[index >> 3] else b""
                index += (len(piece) - len(piece.lstrip(b"\0"))) << 3
            elif byte >> (index & 7) & 1:
                stop = self.end_of_run(index + self.base) - self.base
                found.append((index + self.base, stop - 1 + self.base))
                index = stop
            else:
                index += 1
        return found

    def words(self, above: int) -> list[int]:
        """The ids greater than `above` as the signed 64-bit words of a bit set that begins at entry 0."""
        value = int.from_bytes(self.bits, "little") << self.base
        if above >= 0:
            value = value >> (above + 1) << (above + 1)
        return words_of(value)


def words_of(value: int) -> list[int]:
    """A bit set as signed 64-bit words, lowest first, without zero words at the end."""
    count = (value.bit_length() + WORD_BITS - 1) // WORD_BITS
    return list(unpack(f"<{count}q", value.to_bytes(count * 8, "little")))


def value_of(words: Sequence[int]) -> int:
    """The inverse of `words_of`; words may be signed or unsigned. A thousand words take a thousand times one."""
    if len(words) == 1:
        return words[0] & WORD_MASK
    return int.from_bytes(pack(f"<{len(words)}Q", *[word & WORD_MASK for word in words]), "little")
