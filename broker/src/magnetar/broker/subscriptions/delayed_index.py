"""The delayed entries of one topic by the time when they are due, once for all of its subscriptions.

An entry costs 22 bytes here (26 in the minute in which it is due), however many subscriptions wait for it; each of
those keeps a bit (`delayed.py`).
Entries lie in buckets of about a minute, in the order in which they were read. A bucket is ordered to the millisecond
only when its time comes: each millisecond has a chain through the bucket, so that a million entries need no sorting.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

from magnetar.broker.subscriptions.position_set import PositionSet
from magnetar.broker.subscriptions.sorted_keys import SortedKeys

if TYPE_CHECKING:
    from collections.abc import Callable

    from magnetar.core.ids import Position

BUCKET_BITS: Final = 16
"""A bucket is 2**16 ms long: an offset in it takes two bytes."""

BUCKET_MS: Final = 1 << BUCKET_BITS

NO_ENTRY: Final = -1
"""The end of a chain."""

FORGOTTEN_AT_ONCE_MAX: Final = 1_000
"""Entries of buckets that are over, which are forgotten in one go: less than a millisecond."""

DELAYED_ENTRIES_MAX: Final = 4_000_000
"""Entries of a topic that may wait for their time before its subscriptions read no further; some 100 MB of memory."""

BUCKETS_MAX: Final = 600_000
"""Minutes for which there may be some: those of a year, in 400 MB. Clients name any time, each time another one."""

NOT_ORDERED: Final = array("i")
NONE_OCCUPIED: Final = bytearray()
"""Of buckets whose time has not come, which are many; never changed."""


class DelayBucket:
    """The entries that are due within one span of `BUCKET_MS`, by their numbers in it."""

    __slots__ = (
        "_chained",
        "_entries",
        "_hashes",
        "_heads",
        "_ledgers",
        "_next",
        "_occupied",
        "_offsets",
        "_tails",
        "first_offset",
    )

    def __init__(self) -> None:
        self.first_offset = BUCKET_MS
        """The earliest one, in ms from the start of the span."""
        self._offsets = array("H")
        self._ledgers = array("q")
        self._entries = array("q")
        self._hashes = array("I")
        self._chained = 0
        """Entries that are in their millisecond's chain; the others come when the bucket's time does."""
        self._next = NOT_ORDERED
        self._heads = NOT_ORDERED
        self._tails = NOT_ORDERED
        self._occupied = NONE_OCCUPIED

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, offset: int, position: Position, key_hash: int) -> None:
        """Put an entry in, `offset` ms after the start of the span."""
        self._offsets.append(offset)
        self._ledgers.append(position[0])
        self._entries.append(position[1])
        self._hashes.append(key_hash)
        self.first_offset = min(self.first_offset, offset)

    def chain(self, count_max: int) -> bool:
        """Order more entries by time; True when all are."""
        if not self._occupied:
            self._next = array("i")
            self._occupied = bytearray(BUCKET_MS)
            self._heads = array("i", [NO_ENTRY]) * BUCKET_MS
            self._tails = array("i", [NO_ENTRY]) * BUCKET_MS
        offsets, heads, tails, followers, occupied = (
            self._offsets,
            self._heads,
            self._tails,
            self._next,
            self._occupied,
        )
        until = min(len(offsets), self._chained + count_max)
        for number in range(self._chained, until):
            offset: int = offsets[number]
            last: int = tails[offset]
            if last == NO_ENTRY:
                heads[offset] = number
                occupied[offset] = 1
            else:
                followers[last] = number
            tails[offset] = number
            followers.append(NO_ENTRY)
        self._chained = until
        return until == len(offsets)

    def next_occupied(self, offset: int) -> int:
        """The first millisecond from an offset on that has entries; `BUCKET_MS` when there is none. All are chained."""
        found = self._occupied.find(1, offset)
        return found if found >= 0 else BUCKET_MS

    def next_known(self, offset: int) -> int:
        """The first millisecond from an offset on that may have entries, while not all are chained."""
        if self._chained == len(self._offsets):
            return self.next_occupied(offset)
        return max(offset, self.first_offset)

    def head(self, offset: int) -> int:
        """The number of the first entry of a millisecond, or `NO_ENTRY`. All are chained."""
        number: int = self._heads[offset]
        return number

    def following(self, number: int) -> int:
        """The entry that comes after one in the same millisecond, or `NO_ENTRY`."""
        follower: int = self._next[number]
        return follower

    def position(self, number: int) -> Position:
        """The position of an entry."""
        ledger_id: int = self._ledgers[number]
        entry_id: int = self._entries[number]
        return ledger_id, entry_id

    def key_hash(self, number: int) -> int:
        """The Murmur3 hash of an entry's key."""
        key_hash: int = self._hashes[number]
        return key_hash


class DelayedIndex:
    """All buckets of a topic. A bucket goes when no subscription has any more to take from it."""

    __slots__ = ("_buckets", "_keys", "_known", "_over", "_users", "count")

    def __init__(self) -> None:
        self.count = 0
        """Entries that somebody may wait for."""
        self._buckets: dict[int, DelayBucket] = {}
        self._keys = SortedKeys()
        """Of the buckets, in order: the ms at which each begins, without the last `BUCKET_BITS`."""
        self._known = PositionSet()
        self._over: list[tuple[DelayBucket, int]] = []
        """Buckets that are over, and how many of their entries are still known."""
        self._users: dict[object, int] = {}
        """The bucket that each subscription stands at."""

    def add(self, deliver_at_ms: int, position: Position, key_hash: int) -> None:
        """Keep an entry; one that is there already stays where it is. `key_hash`: Murmur3 of its key, 31 bits."""
        key = deliver_at_ms >> BUCKET_BITS
        bucket = self._buckets.get(key)
        # Known without its bucket: the clock was put back after that was over.
        if not self._known.add(position) and bucket is not None:
            return
        if bucket is None:
            bucket = self._buckets[key] = DelayBucket()
            self._keys.add(key)
        bucket.add(deliver_at_ms & (BUCKET_MS - 1), position, key_hash)
        self.count += 1

    def first_from(self, key: int) -> int:
        """The key of the first bucket at or behind one; -1 when there is none."""
        return self._keys.first_from(key)

    @property
    def full(self) -> bool:
        """Whether there is no memory for more."""
        return self.count >= DELAYED_ENTRIES_MAX or self._keys.count >= BUCKETS_MAX

    def bucket(self, key: int) -> DelayBucket:
        """A bucket that is there."""
        return self._buckets[key]

    def stand_at(self, user: object, key: int) -> None:
        """A subscription takes nothing from buckets before this one any more."""
        if self._users.get(user) != key:
            self._users[user] = key
            self._drop(min(self._users.values()))

    def leave(self, user: object) -> None:
        """A subscription waits for nothing any more. The last one that leaves takes everything with it."""
        if self._users.pop(user, None) is None:
            return
        if self._users:
            self._drop(min(self._users.values()))
            return
        self.count = 0
        self._buckets = {}
        self._keys = SortedKeys()
        self._known.clear()
        self._over = []

    def _drop(self, needed: int) -> None:
        for key in self._keys.take_before(needed):
            bucket = self._buckets.pop(key)
            self._over.append((bucket, len(bucket)))
            self.count -= len(bucket)

    def forget(self) -> None:
        """Let a part go of what is over, which may be a million."""
        left = FORGOTTEN_AT_ONCE_MAX
        while self._over and left > 0:
            bucket, known = self._over.pop()
            until = max(0, known - left)
            for number in range(until, known):
                self._known.discard(bucket.position(number))
            left -= known - until
            if until:
                self._over.append((bucket, until))


class TopicDelays:
    """One topic's index of delayed entries, which is there while a subscription waits for one of them."""

    __slots__ = ("index", "note_due")

    def __init__(self, note_due: Callable[[int, int], None] | None = None) -> None:
        self.index: DelayedIndex | None = None
        self.note_due = note_due
        """Told the ledger of each entry that is delivered later, and the time in ms: its retention counts from then."""

    def opened(self) -> DelayedIndex:
        """The index; made when nobody waited for anything."""
        if self.index is None:
            self.index = DelayedIndex()
        return self.index

    def leave(self, user: object) -> None:
        """A subscription waits for nothing any more."""
        if self.index is not None:
            self.index.leave(user)
            if not self.index.count:
                self.index = None
