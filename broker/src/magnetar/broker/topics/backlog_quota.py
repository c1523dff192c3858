"""What happens when subscriptions fall too far behind: producers are kept out, or the oldest entries are given up.

(Pulsar: `BacklogQuotaManager`, `PersistentTopic.checkBacklogQuotaExceeded`)
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from magnetar.broker.settings.policies import BacklogQuotaPolicy
from magnetar.broker.topics.backlog import (
    age_exceeded,
    age_exceeded_precisely,
    backlog_bytes,
    size_exceeded,
    slowest_cursor,
)
from magnetar.broker.topics.expiry import expire_messages
from magnetar.managed.compaction import COMPACTION_CURSOR

if TYPE_CHECKING:
    from magnetar.broker.policies.model import BacklogQuota
    from magnetar.broker.topics.sweep import Work
    from magnetar.broker.topics.topic import PersistentTopic
    from magnetar.core.ids import Position
    from magnetar.managed.cursors.cursor import Cursor

logger: Final = logging.getLogger(__name__)

EVICTION_TARGET: Final = 0.9
"""What is left of the limit after an eviction, so that it is not needed again at once."""


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
        _move_deduplication(topic)
        await expire_messages(topic, int(EVICTION_TARGET * quota.age_seconds_max))
    else:
        send_away(topic, quota)


def send_away(topic: PersistentTopic, quota: BacklogQuota) -> None:
    """Disconnect the producers; they are not let in again before the backlog is smaller."""
    _move_deduplication(topic)
    if topic.producers.by_name:
        logger.warning("the backlog of %s is over its quota (%s), its producers leave", topic.name, quota.policy.value)
    topic.disconnect_producers()


def _move_deduplication(topic: PersistentTopic) -> bool:
    """What only deduplication has not acknowledged is nobody's backlog: a snapshot tells of it. Whether it was so. To
    skip it would be to forget which messages producers have sent."""
    slowest, deduplication = slowest_cursor(topic), topic.deduplication
    if deduplication is None or slowest is None or not deduplication.keeps(slowest):
        return False
    deduplication.snapshot(topic.ledger.last_confirmed)
    return True


def held_by_compaction(topic: PersistentTopic) -> bool:
    """Whether a backlog is over its quota of which only compaction has not gone through all: it is time to compact."""
    if topic.of_broker or COMPACTION_CURSOR not in topic.ledger.cursors:
        return False
    slowest = slowest_cursor(topic)
    if slowest is None or slowest.name != COMPACTION_CURSOR or not slowest.backlog_entries:
        return False
    return size_exceeded(topic) or age_exceeded(topic, topic.clock.now_ms())


async def evict_by_size(topic: PersistentTopic) -> None:
    """Skip entries of the slowest cursors until the backlog is well below its limit."""
    target = EVICTION_TARGET * topic.policies.size_quota.size_bytes_max
    before: Cursor | None = None
    while (size := backlog_bytes(topic)) > target and not topic.closing:
        slowest = slowest_cursor(topic)
        if slowest is None or slowest is before or slowest.name == COMPACTION_CURSOR:
            return
        if not _move_deduplication(topic):
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
        if slowest.name == COMPACTION_CURSOR:
            return  # Whose values would be lost to who reads compacted: the topic is compacted instead.
        before = slowest.mark_delete
        if not _move_deduplication(topic):
            ledger_id = topic.ledger.ledgers.next_position(before)[0]
            last: Position = (ledger_id, topic.ledger.ledgers.entries_in(ledger_id) - 1)
            logger.warning("%s skips ledger %d of %s: over quota", topic.name, ledger_id, slowest.name)
            slowest.acknowledge_cumulative(last)
            _moved(topic, slowest)
        if slowest.mark_delete == before:
            return


def _moved(topic: PersistentTopic, cursor: Cursor) -> None:
    subscription = topic.subscriptions.get(cursor.name)
    if subscription is not None:
        subscription.acknowledged_by_broker()
