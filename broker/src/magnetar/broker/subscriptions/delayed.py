"""Entries that are to be delivered later, as one Shared or Key_Shared subscription sees them.

The topic's index (`delayed_index.py`) tells when each is due. A subscription keeps a bit for each that it waits for,
and how far in time it is. Both are in memory only: after a restart or a change of owner the backlog is read again,
which finds them again.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from magnetar.broker.subscriptions.delay_bucket import BUCKET_BITS, BUCKET_MS, NO_ENTRY
from magnetar.broker.subscriptions.delayed_index import DelayedIndex, TopicDelays
from magnetar.broker.subscriptions.position_set import PositionSet

if TYPE_CHECKING:
    from collections.abc import Callable

    from magnetar.core.clock import CallLater, Clock, TimerHandle
    from magnetar.core.ids import Position

FAR_FUTURE_MS: Final = 1 << 63

DELAY_SECONDS_MAX: Final = 10.0
"""A timer is set no further ahead than this: entries come so much too late at most after a clock has jumped forward, or
was put right again. A look costs microseconds."""

AT_ONCE_MAX: Final = 500
"""Entries that are taken out, or ordered, in one go; a million may be due at the same time."""

NO_LOOK: Final = -1


class DelayedEntries:
    """What waits for its time, and one timer for the first of it."""

    __slots__ = (
        "_at",
        "_call_later",
        "_clock",
        "_delays",
        "_due",
        "_held_back",
        "_hurried_from",
        "_key",
        "_offset",
        "_timer",
        "_timer_ms",
        "_waiting",
        "looks",
    )

    def __init__(self, clock: Clock, call_later: CallLater, due: Callable[[], None], delays: TopicDelays) -> None:
        self._clock = clock
        self._call_later = call_later
        self._due = due
        self._delays = delays
        self._waiting = PositionSet()
        self._key = 0
        self._offset = 0
        """Where in time the subscription is: the bucket, and the first of its milliseconds that is still to come."""
        self._at = NO_ENTRY
        """The entry of that millisecond that comes next, if some were taken."""
        self._hurried_from = NO_LOOK
        """Everything is due: the bucket that comes next, and in `_at` the entry."""
        self._held_back = False
        """Reading on waited for memory when that was last asked."""
        self._timer: TimerHandle | None = None
        self._timer_ms = 0
        self.looks = 0
        """How many entries the last `take_due` has ordered, passed or forgotten."""

    def __len__(self) -> int:
        return self._waiting.count

    def __contains__(self, position: Position) -> bool:
        return position in self._waiting

    def must_wait(self) -> bool:
        """Whether there is no memory for more, so that reading on has to wait. Then the timer looks again: the other
        subscriptions of the topic make room, and tell nobody."""
        self._held_back = self._is_full()
        if self._held_back and self._timer is None:
            # Not `arm`: what is due may wait as well until others are sent, and would be looked at in every turn.
            self._timer_ms = FAR_FUTURE_MS
            self._timer = self._call_later(DELAY_SECONDS_MAX, self._fired)
        return self._held_back

    def _is_full(self) -> bool:
        index = self._delays.index
        return index is not None and index.full

    def passed_ms(self, now_ms: int) -> int:
        """The time up to which entries are delivered at once; what is due later has to be added. It is now, or earlier
        while entries that are due by now wait to be taken out: later ones must not overtake them."""
        if not self._waiting.count or self._first_ms(now_ms) > now_ms:
            self._stand(now_ms + 1)
        return (self._key << BUCKET_BITS) + self._offset - 1

    def add(self, deliver_at_ms: int, position: Position, key_hash: int) -> None:
        """Keep an entry until its time; call `put_aside` when all of a batch are added.

        `key_hash`: the Murmur3 hash of its key, 31 bits."""
        if self._waiting.add(position):
            if self._hurried_from == NO_LOOK and deliver_at_ms < (self._key << BUCKET_BITS) + self._offset:
                # The clock was put back: this time was looked at already.
                self._stand(deliver_at_ms)
            index = self._delays.opened()
            index.stand_at(self, self._key)
            if index.add(deliver_at_ms, position, key_hash):
                self._delays.unlooked += 1
            if self._delays.note_due is not None:
                self._delays.note_due(position[0], deliver_at_ms)

    def put_aside(self, now_ms: int) -> None:
        """All delayed ones of a batch are added."""
        self._delays.look(now_ms)
        self.arm(now_ms)

    def take_due(self, now_ms: int) -> list[tuple[Position, int]]:
        """Take out what is to be delivered by now, with the hashes of the keys; of very many those that come first, and
        `arm` sets the timer for the others at once."""
        taken: list[tuple[Position, int]] = []
        index = self._delays.index
        left = AT_ONCE_MAX
        if index is not None and self._hurried_from != NO_LOOK:
            left = self._take_hurried(index, taken)
        elif index is not None and self._waiting.count:
            if now_ms + 1 < (self._key << BUCKET_BITS) + self._offset:
                # The clock was put back. What waits is found by its time again.
                self._stand(now_ms + 1)
            while left > 0 and self._waiting.count:
                key = index.first_from(self._key)
                if key < 0 or key << BUCKET_BITS > now_ms:
                    self._stand(now_ms + 1)
                    break
                if key > self._key:
                    self._stand(key << BUCKET_BITS)
                left = self._take_from_bucket(index, now_ms, left, taken)
        self.looks = AT_ONCE_MAX - left + (index.forget() if index is not None else 0)
        if not self._waiting.count:
            self._rest(now_ms)
        return taken

    def _take_from_bucket(self, index: DelayedIndex, now_ms: int, left: int, taken: list[tuple[Position, int]]) -> int:
        """What is due of the bucket that the subscription stands at. Returns how many may still be looked at."""
        bucket = index.bucket(self._key)
        if not bucket.chain(left):
            return 0
        if self._at == NO_ENTRY:
            offset = bucket.next_occupied(self._offset)
            if offset == BUCKET_MS:
                self._stand(min((self._key + 1) << BUCKET_BITS, now_ms + 1))
                return left - 1 if self._offset == 0 else 0
            if (self._key << BUCKET_BITS) + offset > now_ms:
                self._stand(now_ms + 1)
                return 0
            self._offset = offset
            self._at = bucket.head(offset)
        number = self._at
        while number != NO_ENTRY and left > 0:
            position = bucket.position(number)
            if self._waiting.discard(position):
                taken.append((position, bucket.key_hash(number)))
            number = bucket.following(number)
            left -= 1
        self._at = number
        if number == NO_ENTRY:
            self._stand((self._key << BUCKET_BITS) + self._offset + 1)
        return left

    def hurry(self) -> None:
        """All that is here now is due."""
        if self._waiting.count:
            self._hurried_from = self._key
            self._at = 0

    def end_hurry(self) -> None:
        """What is still here waits for its time again."""
        if self._hurried_from != NO_LOOK:
            self._hurried_from = NO_LOOK
            self._at = NO_ENTRY

    def _take_hurried(self, index: DelayedIndex, taken: list[tuple[Position, int]]) -> int:
        """Returns how many may still be looked at."""
        left = AT_ONCE_MAX
        while left > 0 and self._waiting.count:
            key = index.first_from(self._hurried_from)
            if key < 0:
                # What was added behind this look waits for its time.
                self.end_hurry()
                return left
            if key != self._hurried_from:
                self._hurried_from, self._at = key, 0
            bucket = index.bucket(key)
            until = min(len(bucket), self._at + left)
            for number in range(self._at, until):
                position = bucket.position(number)
                if self._waiting.discard(position):
                    taken.append((position, bucket.key_hash(number)))
            left -= until - self._at
            self._at = until
            if until == len(bucket):
                self._hurried_from, self._at = key + 1, 0
        return left

    def discard_up_to(self, mark_delete: Position) -> None:
        """A mark was moved on (entries expired, or were skipped): forget what is acknowledged up to it."""
        self._waiting.discard_up_to(mark_delete)
        if not self._waiting.count:
            now_ms = self._clock.now_ms()
            self._rest(now_ms)
            self.arm(now_ms)

    def arm(self, now_ms: int) -> None:
        """Have the timer stand at the first entry's time, or at the next look for memory."""
        if not self._waiting.count and not self._held_back:
            self._disarm()
            return
        first_ms = self._first_ms(now_ms) if self._waiting.count else FAR_FUTURE_MS
        if self._timer is not None:
            if self._timer_ms <= first_ms:
                return
            self._disarm()
        self._timer_ms = first_ms
        delay = min(max(0, first_ms - now_ms) / 1000, DELAY_SECONDS_MAX)
        self._timer = self._call_later(delay, self._fired)

    def clear(self) -> None:
        """Forget everything and set no timer."""
        self._waiting.clear()
        self._held_back = False
        self._rest(self._clock.now_ms())
        self._disarm()

    def let_go(self) -> None:
        """Whoever is told what is due is gone: it refers to this object, and would wait for the collector of cycles."""
        self.clear()
        self._due = _nothing

    def _first_ms(self, now_ms: int) -> int:
        """When something is due, or a look is needed that tells when."""
        index = self._delays.index
        if index is None or self._hurried_from != NO_LOOK or self._at != NO_ENTRY:
            return now_ms
        passed = (self._key << BUCKET_BITS) + self._offset
        key = index.first_from(self._key)
        if key == self._key:
            offset = index.bucket(key).next_known(self._offset)
            if offset < BUCKET_MS:
                return (key << BUCKET_BITS) + offset
            key = index.first_from(key + 1)
        if key < 0:
            return FAR_FUTURE_MS
        return max(passed, (key << BUCKET_BITS) + index.bucket(key).first_offset)

    def _stand(self, next_ms: int) -> None:
        """Everything before a time was taken out."""
        key = next_ms >> BUCKET_BITS
        self._offset = next_ms & (BUCKET_MS - 1)
        self._at = NO_ENTRY
        if key != self._key:
            self._key = key
            index = self._delays.index
            if index is not None and self._waiting.count:
                index.stand_at(self, key)

    def _rest(self, now_ms: int) -> None:
        """Nothing waits."""
        self.end_hurry()
        self._stand(now_ms + 1)
        self._delays.leave(self)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fired(self) -> None:
        self._timer = None
        # A timer may fire a little before the clock reads its time; then it is set again.
        now_ms = self._clock.now_ms()
        if self._held_back and not self._is_full():
            self._held_back = False
            self._due()
        elif self._waiting.count and self._first_ms(now_ms) <= now_ms:
            self._due()
        else:
            self.arm(now_ms)


def _nothing() -> None:
    """Nobody is left to be told."""
