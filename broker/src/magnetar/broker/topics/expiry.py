"""Messages and subscriptions that are too old to be kept."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from magnetar.broker.replicated_subscriptions.marked import is_marked
from magnetar.broker.slices import TimeSlice
from magnetar.broker.topics.backlog import ExpirySearch
from magnetar.managed.compaction import COMPACTION_CURSOR
from magnetar.wire.pulsar.errors import PulsarError

if TYPE_CHECKING:
    from magnetar.broker.subscriptions.subscription import Subscription
    from magnetar.broker.topics.sweep import Work
    from magnetar.broker.topics.topic import PersistentTopic
    from magnetar.core.ids import Position

logger: Final = logging.getLogger(__name__)

READER_AWAY_SECONDS: Final = 120.0
"""How long a subscription that is not durable is kept without a consumer. A seek disconnects its reader, which comes
back at once, or when it finds the broker: clients try again each minute at the latest, and wait half a minute for an
answer. One that comes later says itself where it begins. Pulsar keeps it (`removeConsumer` with `isResetCursor`)."""


async def last_expired(topic: PersistentTopic, ttl_seconds: int) -> Position | None:
    """The newest entry that is older than this; None when there is none that anybody waits for.

    Mostly one look at the oldest entry of the slowest subscription tells."""
    ledger = topic.ledger
    behind = [
        one.cursor.mark_delete for name, one in topic.subscriptions.items() if one.backlog and name != COMPACTION_CURSOR
    ]
    if not behind:
        return None
    oldest = ledger.ledgers.next_position(min(behind))
    search = ExpirySearch(ledger, topic.clock.now_ms() - ttl_seconds * 1000)
    if not ledger.ledgers.contains(oldest) or await search.is_fresh(oldest):
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
    turn = TimeSlice()
    for name, subscription in list(topic.subscriptions.items()):
        if turn.over:
            await turn.pause()
        if name != COMPACTION_CURSOR and subscription.cursor.mark_delete < position and not topic.closing:
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
    """One that is replicated may have its consumers in another cluster (Pulsar `PersistentTopic`)."""
    idle_seconds = topic.clock.monotonic_seconds() - subscription.last_active_seconds
    if name == COMPACTION_CURSOR or is_marked(topic.ledger.cursors.get(name)):
        return False
    return subscription.durable and subscription.is_idle and idle_seconds > minutes * 60


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


def check_readers(topic: PersistentTopic) -> Work | None:
    """For the periodic check: readers that a seek, or an error, has disconnected, and that did not come back."""
    now_seconds = topic.clock.monotonic_seconds()
    for name, one in list(topic.subscriptions.items()):
        if one.is_idle and now_seconds - one.last_active_seconds > READER_AWAY_SECONDS:
            topic.let_go_of_unused(name)
    return None
