"""Messages and subscriptions that are too old to be kept."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from magnetar.broker.slices import Turn
from magnetar.core.errors import MagnetarError
from magnetar.wire.pulsar.errors import BadMetadata, PulsarError

if TYPE_CHECKING:
    from collections.abc import Callable

    from magnetar.broker.subscriptions.subscription import Subscription
    from magnetar.broker.topics.sweep import Work
    from magnetar.broker.topics.topic import PersistentTopic
    from magnetar.core.ids import Position
    from magnetar.managed.entry import Entry
    from magnetar.managed.managed_ledger import ManagedLedger

logger = logging.getLogger(__name__)

COMPACTION: Final = "__compaction"
"""The subscription of the compactor; what it has not seen must not expire."""

FAILED_READS_MAX: Final = 5
"""Of one search: each may last as long as a bookie may take to answer, and other topics wait for their turn."""


def published_since(since_ms: int, *, unreadable: bool = False) -> Callable[[Entry], bool]:
    """Whether an entry was published at or after a time (ms since 1970); `unreadable`, when nobody can tell."""

    def is_fresh(entry: Entry) -> bool:
        try:
            return entry.metadata().publish_time_ms >= since_ms
        except BadMetadata:
            return unreadable

    return is_fresh


class ExpirySearch:
    """Finds how far the entries of a topic are older than a time, also past those that nobody can read.

    An unreadable one is too old when its ledger was closed before that time (Pulsar expires whole ledgers by that:
    PersistentMessageExpiryMonitor.checkExpiryByLedgerClosureTime), or when one behind it is."""

    def __init__(self, ledger: ManagedLedger, since_ms: int) -> None:
        self._ledger = ledger
        self._since_ms = since_ms
        self._is_fresh = published_since(since_ms)
        self._failed_reads = 0
        self._error: MagnetarError | None = None
        self.stands_at: Position | None = None
        """The entry that keeps all behind it: nobody can tell how old it is."""

    async def is_fresh(self, position: Position) -> bool | None:
        """Of a confirmed entry; None when nobody can tell."""
        ledger = self._ledger
        if self._failed_reads < FAILED_READS_MAX:
            try:
                return self._is_fresh(await ledger.read_entry(position))
            except MagnetarError as error:
                self._failed_reads += 1
                self._error = error
        record = ledger.ledgers.get(position[0])
        return False if record is not None and 0 < record.closed_ms < self._since_ms else None

    async def last_expired(self) -> Position | None:
        """The last entry that is too old, by binary search: publish times are taken to grow. None: there is none."""
        ledger = self._ledger
        low, high = 0, ledger.number_of_entries
        first_ledger = ledger.ledgers.ids[0]
        unknown = -1
        while low < high:
            middle = at = (low + high) // 2
            fresh = await self.is_fresh(ledger.ledgers.entry_at(at))
            while fresh is None and at + 1 < high and first_ledger == ledger.ledgers.ids[0]:
                if self._failed_reads >= FAILED_READS_MAX:
                    break
                at += 1
                fresh = await self.is_fresh(ledger.ledgers.entry_at(at))
            if first_ledger != ledger.ledgers.ids[0]:
                # Trimmed while we waited: the indexes count anew.
                low, high, first_ledger, unknown = 0, ledger.number_of_entries, ledger.ledgers.ids[0], -1
            elif fresh is False:
                low = at + 1
            else:
                high = middle
                unknown = middle if fresh is None else -1
        self.stands_at = ledger.ledgers.entry_at(low) if low == unknown else None
        if low == 0:
            return None
        if low >= ledger.number_of_entries:
            return ledger.last_confirmed
        return ledger.previous_position(ledger.ledgers.entry_at(low))

    @property
    def problem(self) -> str:
        """What the last read met that failed."""
        return str(self._error)


async def last_expired(topic: PersistentTopic, ttl_seconds: int) -> Position | None:
    """The newest entry that is older than this; None when there is none that anybody waits for.

    Mostly one look at the oldest entry of the slowest subscription tells."""
    ledger = topic.ledger
    behind = [one.cursor.mark_delete for name, one in topic.subscriptions.items() if one.backlog and name != COMPACTION]
    if not behind:
        return None
    oldest = ledger.next_position(min(behind))
    search = ExpirySearch(ledger, topic.clock.now_ms() - ttl_seconds * 1000)
    if not ledger.contains(oldest) or await search.is_fresh(oldest):
        return None
    position = await search.last_expired()
    if search.stands_at is not None:
        what = "messages of %s expire no further than to entry %d:%d, whose age nobody can tell: %s"
        logger.warning(what, topic.name, *search.stands_at, search.problem)
    return position


async def expire_messages(topic: PersistentTopic, ttl_seconds: int) -> int:
    """Acknowledge what is older on every subscription. Returns how many entries that were, over all of them."""
    position = await last_expired(topic, ttl_seconds)
    if position is None:
        return 0
    expired = 0
    turn = Turn()
    for name, subscription in list(topic.subscriptions.items()):
        if turn.over:
            await turn.pause()
        if name != COMPACTION and subscription.cursor.mark_delete < position and not topic.closing:
            expired += subscription.expire_up_to(position)
    return expired


def check_messages(topic: PersistentTopic) -> Work | None:
    """For the periodic check."""
    ttl_seconds = topic.policies.message_ttl_seconds
    if ttl_seconds <= 0 or topic.of_broker or topic.closing or not topic.subscriptions:
        return None
    if not any(one.backlog for one in topic.subscriptions.values()):
        return None
    return lambda: _expire(topic)


async def _expire(topic: PersistentTopic) -> None:
    ttl_seconds = topic.policies.message_ttl_seconds
    if ttl_seconds > 0 and not topic.closing:
        await expire_messages(topic, ttl_seconds)


def check_subscriptions(topic: PersistentTopic) -> Work | None:
    """For the periodic check: subscriptions that nobody used for long are deleted."""
    minutes = topic.policies.subscription_expiration_minutes
    if minutes <= 0 or topic.of_broker or topic.closing:
        return None
    unused = [name for name, one in topic.subscriptions.items() if _unused(topic, name, one, minutes)]
    return (lambda: _delete_unused(topic, unused)) if unused else None


def _unused(topic: PersistentTopic, name: str, subscription: Subscription, minutes: int) -> bool:
    idle_seconds = topic.clock.monotonic_seconds() - subscription.last_active_seconds
    return subscription.durable and subscription.is_idle and name != COMPACTION and idle_seconds > minutes * 60


async def _delete_unused(topic: PersistentTopic, names: list[str]) -> None:
    for name in names:
        subscription = topic.subscriptions.get(name)
        minutes = topic.policies.subscription_expiration_minutes
        if subscription is None or minutes <= 0 or topic.closing or not _unused(topic, name, subscription, minutes):
            continue
        try:
            await topic.delete_subscription(name)
        except PulsarError as error:
            logger.info("subscription %s of %s is used again: %s", name, topic.name, error.message)
        else:
            logger.info("subscription %s of %s is deleted, nobody used it for long", name, topic.name)
