"""The periodic work of a broker that only reads: what it counts. What changes topics is their owners' work."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from magnetar.broker.read_only.followed_topic import FollowedTopic
from magnetar.broker.topics.replication import Replication
from magnetar.broker.topics.sweep import Job, Work
from magnetar.broker.topics.upkeep import STORAGE_STATISTICS, Upkeep
from magnetar.core.errors import MagnetarError

if TYPE_CHECKING:
    from magnetar.broker.policies.model import EffectivePolicies
    from magnetar.broker.topics.topic import PersistentTopic, Topic
    from magnetar.broker.topics.upkeep import LoadedTopics
    from magnetar.core.clock import CallLater
    from magnetar.managed.managed_ledger import ManagedLedger

logger: Final = logging.getLogger(__name__)

IDLE_TOPICS: Final = "idle topics"

IDLE_SECONDS: Final = 60.0
"""How long a topic that nobody reads stays loaded: its list is watched in the metadata store so long."""

COMPACTIONS: Final = "compactions"

COMPACTION_SECONDS: Final = 15.0
"""How late a newer compaction may be noticed: the owner deletes the ledger of the one before, so that its readers wait
until then."""

DONE_HERE: Final = frozenset({"rates", STORAGE_STATISTICS, "unacknowledged"})
"""Of the periodic work on topics."""


class NoReplication(Replication):
    """The owner sends messages to other clusters."""

    async def prepare(self, topic: PersistentTopic) -> None:
        """No cursor of a replicator is opened: the owner has it."""

    def follow(self, topic: Topic, policies: EffectivePolicies) -> None:
        """No replicator follows the policies here."""


class ReadOnlyUpkeep(Upkeep):
    """Rates and sums; nothing expires, is compacted, trimmed or deleted. Topics that nobody reads are let go of."""

    def __init__(self, service: LoadedTopics, call_later: CallLater) -> None:
        super().__init__(service, call_later)
        self.replication = NoReplication(service, call_later)

    def _topic_jobs(self) -> list[Job[Topic]]:
        jobs = [job for job in super()._topic_jobs() if job.name in DONE_HERE]
        return [
            *jobs,
            Job(IDLE_TOPICS, IDLE_SECONDS / 2, self._check_idle),
            Job(COMPACTIONS, COMPACTION_SECONDS, self._check_compaction),
        ]

    def _check_compaction(self, topic: Topic) -> Work | None:
        if isinstance(topic, FollowedTopic) and topic.reads_compacted:
            return lambda: self._learn_compaction(topic)
        return None

    async def _learn_compaction(self, topic: FollowedTopic) -> None:
        try:
            await topic.learn_compaction()
        except MagnetarError as error:
            logger.info("%s: its owner does not tell of its compaction now: %s", topic.name, error)

    def _check_idle(self, topic: Topic) -> Work | None:
        return (lambda: self._let_go(topic)) if self._is_idle(topic) else None

    def _is_idle(self, topic: Topic) -> bool:
        if topic.closing or topic.subscriptions:
            return False
        return self._service.clock.monotonic_seconds() - topic.last_active_seconds >= IDLE_SECONDS

    async def _let_go(self, topic: Topic) -> None:
        if self._is_idle(topic):
            await self._service.close_topic(topic)

    def _ledger_jobs(self) -> list[Job[ManagedLedger]]:
        return []
