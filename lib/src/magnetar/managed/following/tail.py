"""The decisions of following one ledger's end: when to look at bookies, when to ask the owner, what to show. Pure.

1. A look brings entries from the first unseen one on. Each says in its header what was confirmed when it was sent, the
   LAC: all up to the highest one is shown.
2. While looks bring entries, the next look follows at once. One that brings none is followed by a pause, twice as long
   each time, up to a maximum.
3. Entries beyond the LAC wait. They may never be confirmed: a recovery may drop them. If the next look brings nothing
   new, the owner is asked how far it has confirmed; what it vouches for is shown. An answer that does not cover all
   that was seen makes the next question later, as does an owner that is away.
4. Who tells of an entry without being asked makes the next look follow at once. What it brings is shown up to there.
   While the owner does so by itself, looks that bring nothing are rare, and it is asked only about what it did not tell
   of for long. If it should have told of that, or does not answer, it is not relied on until it tells again.
5. The ledger's end, from the node of the managed ledger or from the ledger's own metadata, is final.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final

from magnetar.core.backoff import doubled
from magnetar.core.ids import NO_ENTRY
from magnetar.managed.following.settings import FollowSettings

NEVER: Final = float("inf")


class TailStep(enum.Enum):
    """What is to be done next."""

    LOOK = "look"
    """Look at a bookie for entries from `next_entry_id` on."""
    ASK_BOOKIES = "ask bookies"
    """Ask them for the last confirmed entry: there is no room for more entries that nobody vouches for."""
    ASK_OWNER = "ask owner"
    PAUSE = "pause"


class ShownEntries:
    """Entries that may be shown now."""

    __slots__ = ("first_entry_id", "length_bytes", "payloads")

    def __init__(self, first_entry_id: int, payloads: list[bytes], length_bytes: int) -> None:
        self.first_entry_id: int = first_entry_id
        self.payloads: list[bytes] = payloads
        self.length_bytes: int = length_bytes
        """Payload bytes of the ledger up to and including the last of them."""


class LedgerTail:
    """What is known of one ledger that another process writes. Times are in seconds of the monotonic clock."""

    __slots__ = (
        "_ask_seconds",
        "_asked_seconds",
        "_asking",
        "_failures",
        "_fruitless",
        "_look_seconds",
        "_newest_count",
        "_newest_seconds",
        "_quiet",
        "_seen",
        "_seen_bytes",
        "_seen_length_bytes",
        "_settings",
        "_told",
        "_told_seconds",
        "_unreliable",
        "_wants_notices",
        "confirmed",
        "ended",
        "has_notices",
        "ledger_id",
        "owner_away",
        "shown",
        "since_seconds",
    )

    def __init__(self, ledger_id: int, settings: FollowSettings) -> None:
        self.ledger_id: int = ledger_id
        self.shown: int = NO_ENTRY
        """The last entry that was shown."""
        self.confirmed: int = NO_ENTRY
        """The last entry that somebody vouches for."""
        self.ended: bool = False
        """Whether `confirmed` is the ledger's last entry, for ever."""
        self.has_notices: bool = False
        """Whether the owner tells of its end without being asked."""
        self.owner_away: bool = False
        """Whether the owner could not answer the last question."""
        self.since_seconds: float = NEVER
        """Since when there is something that was seen and not shown."""
        self._settings: FollowSettings = settings
        self._seen: list[bytes] = []
        """Payloads of the entries behind `shown`."""
        self._seen_bytes: int = 0
        self._seen_length_bytes: int = 0
        """Payload bytes of the ledger before the first of them."""
        self._newest_count: int = 0
        """Entries that the last look brought that brought any."""
        self._newest_seconds: float = 0.0
        """When that was."""
        self._quiet: int = 0
        """Looks in a row that brought nothing."""
        self._look_seconds: float = 0.0
        self._asking: bool = False
        self._asked_seconds: float = -NEVER
        self._ask_seconds: float = -NEVER
        self._fruitless: int = 0
        self._failures: int = 0
        self._wants_notices: bool = settings.wants_notices
        """Whether the owner is still to be asked for the first time."""
        self._told_seconds: float = -NEVER
        self._told: int = NO_ENTRY
        """Up to here somebody said that entries are there and confirmed. It counts for those that are seen."""
        self._unreliable: bool = False
        """Whether the owner, which gives notices, gave none when it should have, and has given none since: its
        connection may be dead, or it may own the topic no more."""

    @property
    def is_sought(self) -> bool:
        """Whether the first entry that was not seen is said to be there."""
        return self._told >= self.next_entry_id

    @property
    def next_entry_id(self) -> int:
        """The first entry that was not seen."""
        return self.shown + 1 + len(self._seen)

    @property
    def waiting_entries(self) -> int:
        """Entries that are known to be there, and not shown: nobody vouches for them, or nobody has read them yet."""
        return max(len(self._seen), self.confirmed - self.shown)

    @property
    def quiet_looks(self) -> int:
        """Looks in a row that brought nothing."""
        return self._quiet

    @property
    def _relies_on_notices(self) -> bool:
        return self.has_notices and not self._unreliable

    @property
    def _has_room(self) -> bool:
        return self._seen_bytes < self._settings.unconfirmed_bytes_max

    def saw(self, payloads: Sequence[bytes], length_bytes: int, now_seconds: float) -> None:
        """A look brought these, from `next_entry_id` on, before which the ledger has so many payload bytes."""
        if not payloads:
            self._look_seconds = now_seconds + self._look_pause_seconds()
            self._quiet += 1
            return
        if not self._seen:
            self._seen_length_bytes = length_bytes
            self.since_seconds = now_seconds
        self._newest_count = len(payloads)
        self._newest_seconds = now_seconds
        self._seen += payloads
        self._seen_bytes += sum(map(len, payloads))
        self._quiet = 0
        self._fruitless = 0
        self._look_seconds = now_seconds
        self._confirm_told()
        if not self.owner_away:
            self._ask_seconds = self._asked_seconds + self._settings.ask_pause_seconds_min

    def asked_bookies(self, now_seconds: float) -> None:
        """They were asked for the last confirmed entry."""
        self._look_seconds = now_seconds + self._look_pause_seconds()
        self._quiet += 1

    def confirm(self, entry_id: int) -> None:
        """Somebody vouches for all up to this entry. If it was not seen yet it is looked for at once."""
        if not self.ended and entry_id > self.confirmed:
            self.confirmed = entry_id
            if entry_id >= self.next_entry_id:
                self._look_seconds = -NEVER

    def tell(self, entry_id: int, now_seconds: float) -> None:
        """Somebody who was not asked says that all up to this entry are confirmed. They are looked for at once, and
        whoever is wrong shows nothing that is not there."""
        self._told = max(self._told, entry_id)
        self._told_seconds = now_seconds
        self._unreliable = False
        if self.is_sought:
            self._look_seconds = -NEVER
        self._confirm_told()

    def _confirm_told(self) -> None:
        self.confirm(min(self._told, self.next_entry_id - 1))

    def end(self, last_entry_id: int) -> None:
        """This is the ledger's last entry, for ever. What was seen beyond it has never been."""
        self.ended = True
        self.confirmed = last_entry_id
        del self._seen[max(0, last_entry_id - self.shown) :]
        self._count_seen()

    def asking(self, now_seconds: float) -> None:
        """The owner is being asked."""
        self._asking = True
        self._asked_seconds = now_seconds
        if self._relies_on_notices and self._has_room:
            self._unreliable = True  # A notice is overdue, unless the answer says that there was none to give.
            self._look_soon(now_seconds)

    def answered(self, entry_id: int, now_seconds: float) -> None:
        """The owner vouches for all up to this entry, -1: for none of this ledger."""
        self._asking = self.owner_away = self._wants_notices = False
        self._failures = 0
        if entry_id <= self.confirmed:
            self._unreliable = False
        self.confirm(entry_id)
        settings = self._settings
        pause_seconds = doubled(settings.ask_pause_seconds_min, settings.ask_pause_seconds_max, self._fruitless)
        self._ask_seconds = now_seconds + pause_seconds
        self._fruitless += 1

    def not_answered(self, now_seconds: float) -> None:
        """The owner is away."""
        self._asking = False
        self.owner_away = True
        if self._relies_on_notices:
            self._unreliable = True
            self._look_soon(now_seconds)
        settings = self._settings
        pause_seconds = doubled(settings.retry_seconds_min, settings.retry_seconds_max, self._failures)
        self._ask_seconds = now_seconds + pause_seconds
        self._failures += 1

    def take(self) -> ShownEntries | None:
        """What was seen and may be shown; it counts as shown from now on."""
        count = min(len(self._seen), self.confirmed - self.shown)
        if count <= 0:
            return None
        payloads = self._seen[:count]
        del self._seen[:count]
        first = self.shown + 1
        self.shown += count
        self._seen_length_bytes += sum(map(len, payloads))
        self._count_seen()
        return ShownEntries(first, payloads, self._seen_length_bytes)

    def skip(self) -> bool:
        """After `take`: what is confirmed and was not seen counts as shown, to be read by whoever wants it. Whether
        there is any."""
        assert self.confirmed <= self.shown or not self._seen
        if self.confirmed <= self.shown:
            return False
        self.shown = self.confirmed
        return True

    def use_notices(self, now_seconds: float, *, has_notices: bool) -> None:
        """Whether the owner tells of its end by itself now. If it does no more, there may be news that nobody told."""
        if self.has_notices == has_notices:
            return
        self.has_notices = has_notices
        self._unreliable = False
        if not has_notices:
            self._wants_notices = self._settings.wants_notices
            self._look_soon(now_seconds)

    def _look_soon(self, now_seconds: float) -> None:
        self._quiet = 0
        self._look_seconds = min(self._look_seconds, now_seconds)

    def next_step(self, now_seconds: float) -> tuple[TailStep, float]:
        """What to do now; with `PAUSE`, for how many seconds unless something happens."""
        if self.ended:
            return TailStep.PAUSE, NEVER
        ask_seconds = self._due_seconds()
        if now_seconds >= ask_seconds:
            return TailStep.ASK_OWNER, 0.0
        if now_seconds >= self._look_seconds:
            return TailStep.LOOK if self._has_room else TailStep.ASK_BOOKIES, 0.0
        return TailStep.PAUSE, min(self._look_seconds, ask_seconds) - now_seconds

    def _due_seconds(self) -> float:
        """When the owner is to be asked; `NEVER`: there is nothing to ask about."""
        if self._asking:
            return NEVER
        if self._seen and not self._has_room:
            return self._ask_seconds
        if self._seen and self._relies_on_notices:
            quiet_since_seconds = max(self.since_seconds, self._told_seconds)
            return max(self._ask_seconds, quiet_since_seconds + self._settings.notice_seconds_max)
        if (self._seen and self._quiet > 0) or (self._wants_notices and not self.has_notices):
            return self._ask_seconds
        return NEVER

    def _look_pause_seconds(self) -> float:
        settings = self._settings
        longest = settings.longest_pause_seconds
        most = settings.look_pause_seconds_max if longest is None else longest()
        if self._relies_on_notices and not self.is_sought:
            return max(most, min(most * settings.rarer_with_notices, settings.look_pause_seconds_with_notices_max))
        return doubled(settings.look_pause_seconds_min, most, self._quiet)

    def _count_seen(self) -> None:
        self._seen_bytes = sum(map(len, self._seen))
        if not self._seen:
            self.since_seconds = NEVER
        elif len(self._seen) <= self._newest_count:
            self.since_seconds = self._newest_seconds
