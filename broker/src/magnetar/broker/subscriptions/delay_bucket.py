"""The delayed entries of a topic that are due within one minute or so.

They lie in the order in which they were read. They are ordered to the millisecond only when their time comes: each
millisecond has a chain through the bucket, so that a million entries need no sorting.

An entry costs 22 bytes, of thousands in one minute 10, and 4 more in the minute in which it is due. What is full is
never moved: one array for a million would be copied each time that it grows, which takes 20 ms, and leaves holes as
large as itself in the memory of the process.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from magnetar.core.ids import Position

BUCKET_BITS: Final = 16
"""A bucket is 2**16 ms long: an offset in it takes two bytes."""

BUCKET_MS: Final = 1 << BUCKET_BITS

SEGMENT_BITS: Final = 12

SEGMENT_ENTRIES: Final = 1 << SEGMENT_BITS
"""Entries that lie together, in 40 KiB: setting them aside takes half a millisecond."""

NO_ENTRY: Final = -1
"""The end of a chain."""

NEAR_MAX: Final = 0xFFFF_FFFF
"""So far from the first one an entry may lie to take four bytes."""

NOT_ORDERED: Final = array("i")
NONE_OCCUPIED: Final = bytearray()
"""Of buckets whose time has not come, which are many; never changed."""


class DelaySegment:
    """`SEGMENT_ENTRIES` of a bucket, with as few bytes for each as they allow."""

    __slots__ = ("_entries", "_first", "_hashes", "_ledgers", "followers", "offsets")

    def __init__(
        self, offsets: array[int], ledgers: array[int], entries: array[int], hashes: array[int], followers: array[int]
    ) -> None:
        self.offsets = offsets
        self.followers = followers
        """Of each that is in its millisecond's chain, the number of the next one."""
        self._hashes = hashes
        self._ledgers = ledgers
        """One, if it is that of all."""
        self._entries = entries
        self._first = 0
        if min(ledgers) == max(ledgers):
            self._ledgers = ledgers[:1]
        first = min(entries)
        if max(entries) - first <= NEAR_MAX:
            self._first = first
            self._entries = array("I", [entry_id - first for entry_id in entries])

    def position(self, at: int) -> Position:
        """The position of an entry."""
        ledgers = self._ledgers
        ledger_id: int = ledgers[at] if len(ledgers) > 1 else ledgers[0]
        entry_id: int = self._entries[at]
        return ledger_id, self._first + entry_id

    def key_hash(self, at: int) -> int:
        """The Murmur3 hash of an entry's key."""
        key_hash: int = self._hashes[at]
        return key_hash


NO_SEGMENTS: Final[list[DelaySegment]] = []
"""Of buckets with few entries, which are many; never changed."""


class DelayBucket:
    """The entries that are due within one span of `BUCKET_MS`, by their numbers in it."""

    __slots__ = (
        "_chained",
        "_entries",
        "_followers",
        "_full",
        "_hashes",
        "_heads",
        "_ledgers",
        "_occupied",
        "_offsets",
        "_tails",
        "first_offset",
    )

    def __init__(self) -> None:
        self.first_offset = BUCKET_MS
        """The earliest one, in ms from the start of the span."""
        self._full = NO_SEGMENTS
        """The first ones; the others are here."""
        self._offsets = array("H")
        self._ledgers = array("q")
        self._entries = array("q")
        self._hashes = array("I")
        self._followers = NOT_ORDERED
        self._chained = 0
        """Entries that are in their millisecond's chain; the others come when the bucket's time does."""
        self._heads = NOT_ORDERED
        self._tails = NOT_ORDERED
        self._occupied = NONE_OCCUPIED

    def __len__(self) -> int:
        return (len(self._full) << SEGMENT_BITS) + len(self._offsets)

    def add(self, offset: int, position: Position, key_hash: int) -> None:
        """Put an entry in, `offset` ms after the start of the span."""
        self._offsets.append(offset)
        self._ledgers.append(position[0])
        self._entries.append(position[1])
        self._hashes.append(key_hash)
        self.first_offset = min(self.first_offset, offset)
        if len(self._offsets) == SEGMENT_ENTRIES:
            self._set_aside()

    def chain(self, count_max: int) -> bool:
        """Order more entries by time; True when all are."""
        if not self._occupied:
            self._occupied = bytearray(BUCKET_MS)
            self._heads = array("i", [NO_ENTRY]) * BUCKET_MS
            self._tails = array("i", [NO_ENTRY]) * BUCKET_MS
        heads, tails, occupied = self._heads, self._tails, self._occupied
        until = min(len(self), self._chained + count_max)
        while self._chained < until:
            first = self._chained
            offsets, followers = self._offsets_and_followers(first >> SEGMENT_BITS)
            end = min(until, (first | SEGMENT_ENTRIES - 1) + 1)
            for number in range(first, end):
                offset: int = offsets[number & SEGMENT_ENTRIES - 1]
                last: int = tails[offset]
                if last == NO_ENTRY:
                    heads[offset] = number
                    occupied[offset] = 1
                else:
                    self._followers_of(last)[last & SEGMENT_ENTRIES - 1] = number
                tails[offset] = number
                followers.append(NO_ENTRY)
            self._chained = end
        return until == len(self)

    def next_occupied(self, offset: int) -> int:
        """The first millisecond from an offset on that has entries; `BUCKET_MS` when there is none. All are chained."""
        found = self._occupied.find(1, offset)
        return found if found >= 0 else BUCKET_MS

    def next_known(self, offset: int) -> int:
        """The first millisecond from an offset on that may have entries, while not all are chained."""
        if self._chained == len(self):
            return self.next_occupied(offset)
        return max(offset, self.first_offset)

    def head(self, offset: int) -> int:
        """The number of the first entry of a millisecond, or `NO_ENTRY`. All are chained."""
        number: int = self._heads[offset]
        return number

    def following(self, number: int) -> int:
        """The entry that comes after one in the same millisecond, or `NO_ENTRY`."""
        follower: int = self._followers_of(number)[number & SEGMENT_ENTRIES - 1]
        return follower

    def position(self, number: int) -> Position:
        """The position of an entry."""
        segment = number >> SEGMENT_BITS
        at = number & SEGMENT_ENTRIES - 1
        if segment < len(self._full):
            return self._full[segment].position(at)
        ledger_id: int = self._ledgers[at]
        entry_id: int = self._entries[at]
        return ledger_id, entry_id

    def key_hash(self, number: int) -> int:
        """The Murmur3 hash of an entry's key."""
        segment = number >> SEGMENT_BITS
        at = number & SEGMENT_ENTRIES - 1
        if segment < len(self._full):
            return self._full[segment].key_hash(at)
        key_hash: int = self._hashes[at]
        return key_hash

    def _followers_of(self, number: int) -> array[int]:
        segment = number >> SEGMENT_BITS
        return self._full[segment].followers if segment < len(self._full) else self._followers

    def _offsets_and_followers(self, segment: int) -> tuple[array[int], array[int]]:
        """To go on with the chains of a segment; those of its followers may be the first."""
        if segment < len(self._full):
            full = self._full[segment]
            if not full.followers:
                full.followers = array("i")
            return full.offsets, full.followers
        if not self._followers:
            self._followers = array("i")
        return self._offsets, self._followers

    def _set_aside(self) -> None:
        segment = DelaySegment(self._offsets, self._ledgers, self._entries, self._hashes, self._followers)
        if not self._full:
            self._full = []
        self._full.append(segment)
        self._offsets = array("H")
        self._ledgers = array("q")
        self._entries = array("q")
        self._hashes = array("I")
        self._followers = NOT_ORDERED
