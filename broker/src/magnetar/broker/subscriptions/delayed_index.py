"""The delayed entries of one topic by the time when they are due, once for all of its subscriptions.

It costs the same however many subscriptions wait for an entry; each of those keeps a bit (`delayed.py`). Entries lie in
buckets of about a minute (`delay_bucket.py`).

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from magnetar.broker.subscriptions.delay_bucket import BUCKET_BITS, BUCKET_MS, DelayBucket
from magnetar.broker.subscriptions.position_set import PositionSet
from magnetar.broker.subscriptions.sorted_keys import SortedKeys

if TYPE_CHECKING:
    from collections.abc import Callable

    from magnetar.core.ids import Position

FORGOTTEN_AT_ONCE_MAX: Final = 1_000
"""Entries of buckets that are over, which are forgotten in one go: less than a millisecond."""

DELAYED_ENTRIES_MAX: Final = 4_000_000
"""Entries of a topic that may wait for their time before its subscriptions read no further; 40 MB of memory, or
100 MB where few are due in the same minute."""

BUCKETS_MAX: Final = 600_000
"""Minutes for which there may be some: those of a year, in 400 MB. Clients name any time, each time another one."""

LOOK_ENTRIES: Final = 128
"""After so many entries there is a look at what all subscriptions have put aside: a look asks each of them."""


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

    def add(self, deliver_at_ms: int, position: Position, key_hash: int) -> bool:
        """Keep an entry; one that is there already stays where it is (False). `key_hash`: Murmur3 of its key, 31
        bits."""
        key = deliver_at_ms >> BUCKET_BITS
        bucket = self._buckets.get(key)
        # Known without its bucket: the clock was put back after that was over.
        if not self._known.add(position) and bucket is not None:
            return False
        if bucket is None:
            bucket = self._buckets[key] = DelayBucket()
            self._keys.add(key)
        bucket.add(deliver_at_ms & (BUCKET_MS - 1), position, key_hash)
        self.count += 1
        return True

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

    def forget(self) -> int:
        """Let a part go of what is over, which may be a million. Returns how many that was."""
        left = FORGOTTEN_AT_ONCE_MAX
        while self._over and left > 0:
            bucket, known = self._over.pop()
            until = max(0, known - left)
            for number in range(until, known):
                self._known.discard(bucket.position(number))
            left -= known - until
            if until:
                self._over.append((bucket, until))
        return FORGOTTEN_AT_ONCE_MAX - left


class TopicDelays:
    """One topic's index of delayed entries, which is there while a subscription waits for one of them."""

    __slots__ = ("index", "let_go", "note_due", "unlooked")

    def __init__(
        self, note_due: Callable[[int, int], None] | None = None, let_go: Callable[[int], None] | None = None
    ) -> None:
        self.unlooked = 0
        """Entries that were added since `let_go` was last called."""
        self.let_go = let_go
        """Told the time in ms, now and then, when more entries were put aside."""
        self.index: DelayedIndex | None = None
        self.note_due = note_due
        """Told the ledger of each entry that is delivered later, and the time in ms: its retention counts from then."""

    def opened(self) -> DelayedIndex:
        """The index; made when nobody waited for anything."""
        if self.index is None:
            self.index = DelayedIndex()
        return self.index

    def look(self, now_ms: int) -> None:
        """A subscription has put entries aside."""
        if self.unlooked >= LOOK_ENTRIES:
            self.unlooked = 0
            if self.let_go is not None:
                self.let_go(now_ms)

    def leave(self, user: object) -> None:
        """A subscription waits for nothing any more."""
        if self.index is not None:
            self.index.leave(user)
            if not self.index.count:
                self.index = None
