"""What has to be done with topics now and then, and whenever policies change."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from magnetar.broker.compaction.threshold import over_threshold
from magnetar.broker.compaction.topic_compaction import TopicCompaction, is_unsettled
from magnetar.broker.migration.migration import Migration
from magnetar.broker.subscriptions.unsticking import unstick
from magnetar.broker.topics import backlog_quota, expiry, inactivity
from magnetar.broker.topics.replication import Replication
from magnetar.broker.topics.sweep import Item, Job, Sweeper, Work
from magnetar.broker.topics.topic import PersistentTopic
from magnetar.broker.transactions.inquiry import LOOK_SECONDS
from magnetar.core.errors import MagnetarError
from magnetar.wire.pulsar.errors import PulsarError

if TYPE_CHECKING:
    from magnetar.broker.bundles.loaded_topic import LoadedTopic
    from magnetar.broker.policies.policies import Policies
    from magnetar.broker.resources import Resources
    from magnetar.broker.schema.registry import SchemaRegistry
    from magnetar.broker.settings.broker import BrokerSettings
    from magnetar.broker.settings.policies import PolicySettings
    from magnetar.broker.topics.topic import Topic
    from magnetar.broker.transactions.topic_parts import TopicParts
    from magnetar.core.clock import CallLater, Clock
    from magnetar.core.topic_name import NamespaceName, TopicName
    from magnetar.managed.factory import ManagedLedgerFactory
    from magnetar.managed.managed_ledger import ManagedLedger

logger: Final = logging.getLogger(__name__)

RATE_UPDATE_SECONDS: Final = 10.0
"""How often counters become rates. Apache's `statsUpdateFrequencyInSecs` is 60; people who watch want it sooner."""

ROLLOVER_CHECK_SECONDS: Final = 60.0
"""By how much a ledger may outlive its age on a topic to which nobody publishes: ages are set in minutes."""

OFFLOAD_CHECK_SECONDS: Final = 60.0
"""By how much the offload of a ledger, or the deletion of its other copy, may be late; ages and lags are hours."""

READERS_CHECK_SECONDS: Final = 60.0
"""By how much the subscription of a reader that does not come back may go late; it is kept for two minutes."""

INACTIVE_TOPICS: Final = "inactive topics"

STORAGE_STATISTICS: Final = "storage statistics"

UNACKED_CHECK_SECONDS: Final = 3.0
"""How often what all consumers hold is added up, if there is a limit; what comes on top between two looks is bounded by
the subscriptions' own limits."""

TOPICS_AT_ONCE: Final = 1_000
"""So few topics are gone through at once when policies change: half a millisecond."""


class RecordedTopics(Protocol):
    """Who deletes partitioned topics: `PartitionedTopics`."""

    async def delete(self, name: TopicName, *, force: bool) -> None: ...


class LoadedTopics(Protocol):
    """The topics of a broker, and what holds for them: `BrokerService`."""

    @property
    def settings(self) -> BrokerSettings: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def resources(self) -> Resources: ...
    @property
    def policies(self) -> Policies: ...
    @property
    def transactions(self) -> TopicParts: ...
    @property
    def schemas(self) -> SchemaRegistry: ...
    @property
    def topics(self) -> Mapping[str, Topic]: ...
    @property
    def ledgers(self) -> ManagedLedgerFactory: ...
    def spawn(self, work: Coroutine[Any, Any, None]) -> None: ...
    def compaction(self, topic: PersistentTopic) -> TopicCompaction: ...
    async def exists(self, name: TopicName) -> bool: ...
    async def delete(self, name: TopicName, *, force: bool) -> None: ...
    async def close_topic(self, topic: LoadedTopic) -> None: ...


class Upkeep:
    """The periodic work of one broker on its topics."""

    def __init__(self, service: LoadedTopics, call_later: CallLater) -> None:
        self._service = service
        self._settings = service.settings.policies
        self.replication = Replication(service, call_later)
        self.migration = Migration(service)
        self._partitioned: RecordedTopics | None = None
        self._sweeper: Sweeper[Topic] = Sweeper(self._loaded, service.clock, call_later, service.spawn)
        self._ledgers: Sweeper[ManagedLedger] = Sweeper(self._opened, service.clock, call_later, service.spawn)
        """Also those of transactions, which belong to no topic. Its work is apart: what waits for bookies or for the
        metadata store must not keep topics from expiring."""
        self._changed: set[NamespaceName] = set()
        self._applying: set[NamespaceName] = set()
        self._apply: Job[Topic] = Job("policies", 0.0, self._apply_to, self._applied)
        self._regroup: Job[Topic] = Job("resource groups", 0.0, _follow_groups)
        self._unacked_total = 0
        self._over_unacked_limit = False
        self._stop_watching = service.policies.watch(self._policies_changed)

    def _loaded(self) -> list[Topic]:
        return list(self._service.topics.values())

    def _opened(self) -> list[ManagedLedger]:
        return self._service.ledgers.opened()

    async def prepare(self, topic: PersistentTopic) -> None:
        """Before anybody may use a topic that is being loaded. Raises what the ledger and the stores raise."""
        await self.replication.prepare(topic)
        await self.migration.prepare(topic)

    def use_partitioned_topics(self, partitioned: RecordedTopics) -> None:
        """Who deletes partitioned topics that nobody uses, at whichever brokers their partitions are."""
        self._partitioned = partitioned

    def use_settings(self, settings: PolicySettings) -> None:
        """Go on with other settings, of which only those differ that may change while a broker runs."""
        self._settings = settings
        for job in self._sweeper.jobs:
            if job.name == INACTIVE_TOPICS:
                self._sweeper.retime(job, settings.delete_inactive_topics_check_seconds)

    def start(self) -> None:
        """Begin the periodic work on topics: rates, expiry, inactive topics, deduplication, backlog quotas."""
        for job in self._topic_jobs():
            if job.interval_seconds > 0:
                self._sweeper.add(job)
        self._sweeper.start()
        for each in self._ledger_jobs():
            if each.interval_seconds > 0:
                self._ledgers.add(each)
        self._ledgers.start()

    def _topic_jobs(self) -> list[Job[Topic]]:
        settings = self._settings
        jobs: list[Job[Topic]] = [
            Job("rates", RATE_UPDATE_SECONDS, self._update_rates, self._service.policies.retry),
            Job(
                STORAGE_STATISTICS,
                self._service.settings.storage_statistics_seconds,
                self._end_storage_period,
                self._end_cache_period,
            ),
            Job("message expiry", settings.message_expiry_check_seconds, _persistent(expiry.check_messages)),
            Job(
                "idle subscriptions",
                settings.subscription_expiry_check_seconds,
                _persistent(expiry.check_subscriptions),
            ),
            Job("absent readers", READERS_CHECK_SECONDS, _persistent(expiry.check_readers)),
            Job(INACTIVE_TOPICS, settings.delete_inactive_topics_check_seconds, self._check_activity),
            Job("compaction", settings.compaction_check_seconds, _persistent(self._compact)),
            Job("deduplication", settings.deduplication_snapshot_check_seconds, _maintain_deduplication),
            Job("migration", settings.migration_check_seconds, self._migrate),
        ]
        if self._service.settings.transactions.enabled:
            jobs.append(Job("transactions", LOOK_SECONDS, _persistent(self._service.transactions.look_after)))
        if settings.backlog_quota_check:
            jobs.append(Job("backlog quotas", settings.backlog_quota_check_seconds, _persistent(backlog_quota.enforce)))
        if settings.unacked_messages_per_broker_max > 0:
            jobs.append(Job("unacknowledged", UNACKED_CHECK_SECONDS, self._add_up, self._added_up))
        return jobs

    def _ledger_jobs(self) -> list[Job[ManagedLedger]]:
        # The bound on work at once is what keeps a hundred thousand topics that fell silent together from filling the
        # metadata store: each roll is some four writes.
        return [
            Job("rollover", ROLLOVER_CHECK_SECONDS, _roll),
            Job("retention", self._settings.retention_check_seconds, _trim),
            Job("offload", OFFLOAD_CHECK_SECONDS, _offload),
        ]

    async def check_now(self, name: str) -> None:
        """Do one of the checks at once, to its end: `message expiry`, `backlog quotas`, `rollover`, `retention` …"""
        of_topics = [job for job in self._sweeper.jobs if job.name == name]
        of_ledgers = [job for job in self._ledgers.jobs if job.name == name]
        assert of_topics or of_ledgers, name
        for job in of_topics:
            await _to_the_end(job, self._loaded())
        for each in of_ledgers:
            await _to_the_end(each, self._opened())

    def stop(self) -> None:
        """Begin nothing more."""
        self._stop_watching()
        self.replication.stop()
        self.migration.stop()
        self._sweeper.stop()
        self._ledgers.stop()

    # --- policies that changed

    def _policies_changed(self, namespace: NamespaceName, topic: TopicName | None) -> None:
        loaded = self._service.topics
        if topic is not None and (one := loaded.get(str(topic))) is not None:
            self._follow(one)
        elif len(loaded) <= TOPICS_AT_ONCE:
            self._applying = {namespace}
            for one in list(loaded.values()):
                self._apply_to(one)
            self._applying = set()
        else:
            self._changed.add(namespace)
            self._sweeper.run_once(self._apply)

    def _apply_to(self, topic: Topic) -> Work | None:
        # A sweep may have begun before the last change: it takes what is new along, and another one follows.
        namespace = topic.name.namespace_name
        if namespace in self._applying or namespace in self._changed:
            self._follow(topic)
        return None

    def _follow(self, topic: Topic) -> None:
        policies = self._service.policies.of(topic.name)
        topic.follow(policies)
        self.replication.follow(topic, policies)

    def _applied(self) -> None:
        if not self._apply.queued:
            self._changed = set()

    def groups_changed(self) -> None:
        """There are other resource groups than before: topics go by those that they are in now."""
        if len(self._service.topics) <= TOPICS_AT_ONCE:
            for topic in self._loaded():
                topic.follow_groups()
        else:
            self._sweeper.run_once(self._regroup)

    # --- periodic

    def _update_rates(self, topic: Topic) -> Work | None:
        topic.update_rates(RATE_UPDATE_SECONDS)
        for some in (topic.replicators, topic.shadow_replicators):
            if some is not None:
                some.update_rates(RATE_UPDATE_SECONDS)
        if self._settings.stuck_subscriptions_unblocked and isinstance(topic, PersistentTopic):
            for subscription in list(topic.subscriptions.values()):
                if unstick(subscription):
                    logger.warning(
                        "%s / %s could send something and did not; it goes on", topic.name, subscription.name
                    )
        return None

    def _end_storage_period(self, topic: Topic) -> Work | None:
        if isinstance(topic, PersistentTopic):
            seconds = self._service.settings.storage_statistics_seconds
            if topic.ledger.appends.periods is not None:
                topic.ledger.appends.periods.end(seconds)
            topic.ledger.offloads.end_period(seconds)
        return None

    def _end_cache_period(self) -> None:
        self._service.ledgers.cache_rates.end_period(self._service.settings.storage_statistics_seconds)

    def _check_activity(self, topic: Topic) -> Work | None:
        return (lambda: self._let_idle_go(topic)) if self._is_idle(topic) else None

    def _is_idle(self, topic: Topic) -> bool:
        return inactivity.is_idle(topic, self._service.clock.monotonic_seconds())

    async def _let_idle_go(self, topic: Topic) -> None:
        """Have its replicators rest, and delete it once no replicator of another cluster is connected."""
        service, name = self._service, topic.name
        if service.topics.get(str(name)) is not topic or not self._is_idle(topic):
            return
        if topic.replicators is not None and inactivity.may_rest(topic):
            await topic.replicators.rest()
        # Looked at after the wait: from here to the deletion nobody comes in between.
        if topic.producers.by_name or service.topics.get(str(name)) is not topic or not self._is_idle(topic):
            return
        try:
            await service.delete(name, force=False)
        except PulsarError as error:
            logger.info("topic %s is not deleted though nobody used it: %s", name, error.message)
            return
        logger.info("topic %s is deleted, nobody used it", name)
        if name.partition_index < 0:
            await service.policies.delete_own(name)
        elif self._settings.delete_inactive_partitioned_metadata:
            await self._delete_partitioned(name.partitioned_name())

    async def _delete_partitioned(self, name: TopicName) -> None:
        """Remove the record of a partitioned topic without partitions. Each is asked for at its owner once more: those
        that are not stored are known to nobody else, and others may have been made meanwhile."""
        partitioned = self._partitioned
        if partitioned is None:
            return
        count = await self._service.resources.partitions(name)
        for index in range(count or 0):
            if await self._service.exists(name.partition(index)):
                return
        if count is None:
            return
        try:
            await partitioned.delete(name, force=False)
        except MagnetarError as error:
            logger.info("partitioned topic %s is not deleted though nobody used this partition: %s", name, error)
            return
        logger.info("partitioned topic %s is deleted, nobody used it", name)
        await self._service.policies.delete_own(name)

    def _compact(self, topic: PersistentTopic) -> Work | None:
        """Start what a threshold asks for; a run goes on by itself, and what an earlier one has left is tried again."""
        if topic.closing:
            return None
        threshold_bytes, end = topic.policies.compaction_threshold_bytes, topic.visible_entries.end()
        if backlog_quota.held_by_compaction(topic) or (
            topic.compacts_by_itself and over_threshold(topic.ledger, threshold_bytes, end)
        ):
            compaction = self._service.compaction(topic)
            if compaction.may_start_by_itself:
                compaction.start()
        elif is_unsettled(topic.ledger):
            self._service.compaction(topic).settle_later()
        return None

    def _migrate(self, topic: Topic) -> Work | None:
        if isinstance(topic, PersistentTopic):
            return self.migration.visit(topic)
        return self.migration.visit_unstored(topic)

    def _add_up(self, topic: Topic) -> Work | None:
        if not isinstance(topic, PersistentTopic):
            return None
        share = self._settings.unacked_share_when_broker_blocked * self._settings.unacked_messages_per_broker_max
        for subscription in topic.subscriptions.values():
            unacked = subscription.unacked_messages
            self._unacked_total += unacked
            subscription.hold(held=self._over_unacked_limit and unacked > share)
        return None

    def _added_up(self) -> None:
        limit = self._settings.unacked_messages_per_broker_max
        total, self._unacked_total = self._unacked_total, 0
        if total > limit and not self._over_unacked_limit:
            logger.warning("consumers hold %d unacknowledged messages, more than %d: the largest wait", total, limit)
            self._over_unacked_limit = True
        elif total <= limit // 2:
            self._over_unacked_limit = False


def _persistent(visit: Callable[[PersistentTopic], Work | None]) -> Callable[[Topic], Work | None]:
    """A visit of persistent topics only."""
    return lambda topic: visit(topic) if isinstance(topic, PersistentTopic) else None


def _roll(ledger: ManagedLedger) -> Work | None:
    return ledger.roll_if_due if ledger.due_for_rollover else None


def _trim(ledger: ManagedLedger) -> Work | None:
    return ledger.trim_if_due if ledger.due_for_trimming else None


def _offload(ledger: ManagedLedger) -> Work | None:
    """Start what is due; the store says how many are at it at a time."""
    ledger.offloads.later()
    return None


async def _to_the_end(job: Job[Item], items: Iterable[Item]) -> None:
    for item in items:
        work = job.visit(item)
        if work is not None:
            await work()
    if job.finished is not None:
        job.finished()


def _follow_groups(topic: Topic) -> Work | None:
    topic.follow_groups()
    return None


def _maintain_deduplication(topic: Topic) -> Work | None:
    if isinstance(topic, PersistentTopic) and not topic.closing:
        topic.maintain_deduplication()
    return None
