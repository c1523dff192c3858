"""What happens when subscriptions fall too far behind: producers are kept out, or the oldest entries are given up.

(Pulsar: `BacklogQuotaManager`, `PersistentTopic.checkBacklogQuotaExceeded`)
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from magnetar.broker.policies.model import BacklogQuotaPolicy
from magnetar.broker.topics.expiry import expire_messages
from magnetar.wire.pulsar.errors import BadMetadata, PulsarError, ServerError

if TYPE_CHECKING:
    from magnetar.broker.policies.model import BacklogQuota
    from magnetar.broker.topics.sweep import Work
    from magnetar.broker.topics.topic import PersistentTopic
    from magnetar.core.ids import Position
    from magnetar.managed.cursor import Cursor

logger = logging.getLogger(__name__)

EVICTION_TARGET: Final = 0.9
"""What is left of the limit after an eviction, so that it is not needed again at once."""

CODES: Final = {
    BacklogQuotaPolicy.HOLD: ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR,
    BacklogQuotaPolicy.REFUSE: ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION,
}


def slowest_cursor(topic: PersistentTopic) -> Cursor | None:
    """The durable cursor that is furthest behind."""
    return min(topic.ledger.cursors.values(), key=lambda cursor: cursor.mark_delete, default=None)


def backlog_bytes(topic: PersistentTopic) -> int:
    """What the slowest durable cursor has not acknowledged, estimated."""
    slowest = slowest_cursor(topic)
    return 0 if slowest is None else topic.ledger.size_bytes_after(slowest.mark_delete)


def size_exceeded(topic: PersistentTopic) -> bool:
    """Whether the backlog has reached its size."""
    limit = topic.policies.size_quota.size_bytes_max
    return limit >= 0 and backlog_bytes(topic) >= limit


def age_exceeded(topic: PersistentTopic, now_ms: int) -> bool:
    """Whether the ledger of the oldest unacknowledged entry was closed too long ago; the ledger in use never was."""
    limit_seconds = topic.policies.age_quota.age_seconds_max
    slowest = slowest_cursor(topic)
    if limit_seconds <= 0 or slowest is None or slowest.backlog_entries == 0:
        return False
    record = topic.ledger.ledgers.get(topic.ledger.next_position(slowest.mark_delete)[0])
    return record is not None and record.closed_ms > 0 and now_ms - record.closed_ms > limit_seconds * 1000


async def age_exceeded_precisely(topic: PersistentTopic, now_ms: int) -> bool:
    """Whether the oldest unacknowledged entry was published too long ago. Raises what reading raises."""
    limit_seconds = topic.policies.age_quota.age_seconds_max
    slowest = slowest_cursor(topic)
    if limit_seconds <= 0 or slowest is None or slowest.backlog_entries == 0:
        return False
    oldest = await topic.ledger.read_entry(topic.ledger.next_position(slowest.mark_delete))
    try:
        return now_ms - oldest.metadata().publish_time_ms > limit_seconds * 1000
    except BadMetadata:
        return False


async def check_quotas(topic: PersistentTopic) -> None:
    """Raises PulsarError when a producer may not come in because of the backlog."""
    policies = topic.policies
    size_code = CODES.get(policies.size_quota.policy)
    age_code = CODES.get(policies.age_quota.policy)
    text = "Cannot create producer on topic with backlog quota exceeded"
    if size_code is not None and size_exceeded(topic):
        raise PulsarError(size_code, text)
    if age_code is not None and policies.age_quota.age_seconds_max > 0 and await _too_old(topic):
        raise PulsarError(age_code, text)


async def _too_old(topic: PersistentTopic) -> bool:
    now_ms = topic.clock.now_ms()
    if topic.limits.settings.backlog_quota_age_precise:
        return await age_exceeded_precisely(topic, now_ms)
    return age_exceeded(topic, now_ms)


def enforce(topic: PersistentTopic) -> Work | None:
    """For the periodic check: send producers away now, or say what is to be done."""
    if topic.of_broker or topic.closing:
        return None
    policies = topic.policies
    if size_exceeded(topic):
        if policies.size_quota.policy is BacklogQuotaPolicy.EVICT:
            return lambda: evict_by_size(topic)
        send_away(topic, policies.size_quota)
        return None
    if policies.age_quota.age_seconds_max <= 0:
        return None
    if topic.limits.settings.backlog_quota_age_precise:
        return lambda: _enforce_age_precisely(topic)
    if age_exceeded(topic, topic.clock.now_ms()):
        if policies.age_quota.policy is BacklogQuotaPolicy.EVICT:
            return lambda: evict_by_age(topic)
        send_away(topic, policies.age_quota)
    return None


async def _enforce_age_precisely(topic: PersistentTopic) -> None:
    quota = topic.policies.age_quota
    if not await age_exceeded_precisely(topic, topic.clock.now_ms()):
        return
    if quota.policy is BacklogQuotaPolicy.EVICT:
        await expire_messages(topic, int(EVICTION_TARGET * quota.age_seconds_max))
    else:
        send_away(topic, quota)


def send_away(topic: PersistentTopic, quota: BacklogQuota) -> None:
    """Disconnect the producers; they are not let in again before the backlog is smaller."""
    slowest = slowest_cursor(topic)
    deduplication = topic.deduplication
    if deduplication is not None and slowest is not None and slowest.name not in topic.subscriptions:
        # What only deduplication has not acknowledged is nobody's backlog.
        deduplication.snapshot(topic.ledger.last_confirmed)
    if topic.producers.by_name:
        logger.warning("the backlog of %s is over its quota (%s), its producers leave", topic.name, quota.policy.value)
    topic.disconnect_producers()


async def evict_by_size(topic: PersistentTopic) -> None:
    """Skip entries of the slowest cursors until the backlog is well below its limit."""
    target = EVICTION_TARGET * topic.policies.size_quota.size_bytes_max
    before: Cursor | None = None
    while (size := backlog_bytes(topic)) > target and not topic.closing:
        slowest = slowest_cursor(topic)
        if slowest is None or slowest is before:
            return
        entries = slowest.backlog_entries
        skipped = int((size - target) / size * entries)
        if skipped == 0:
            return
        logger.warning("%s skips %d of %d entries of %s: over quota", topic.name, skipped, entries, slowest.name)
        await slowest.skip_entries(skipped)
        _moved(topic, slowest)
        before = slowest


async def evict_by_age(topic: PersistentTopic) -> None:
    """Skip whole ledgers that were closed too long ago."""
    while not topic.closing and age_exceeded(topic, topic.clock.now_ms()):
        slowest = slowest_cursor(topic)
        assert slowest is not None
        before = slowest.mark_delete
        ledger_id = topic.ledger.next_position(before)[0]
        last: Position = (ledger_id, topic.ledger.entries_in(ledger_id) - 1)
        logger.warning("%s skips ledger %d of %s: over quota", topic.name, ledger_id, slowest.name)
        slowest.acknowledge_cumulative(last)
        _moved(topic, slowest)
        if slowest.mark_delete == before:
            return


def _moved(topic: PersistentTopic, cursor: Cursor) -> None:
    subscription = topic.subscriptions.get(cursor.name)
    if subscription is not None:
        subscription.acknowledged_by_broker()
