"""Has topics move to another cluster once their cluster or their namespace has.

A check now and then marks what is loaded. Producers leave at once, or when the other clusters have all that is to be
replicated; consumers leave when their subscription has nothing left here; then the subscription is deleted. So nothing
is lost, and nothing is read in the wrong order.

Facts: Pulsar `PersistentTopic.checkClusterMigration`, `BrokerService.checkTopicAlreadyMigrated`, settings
`clusterMigrationCheckDurationSeconds` and `clusterMigrationAutoResourceCreation`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, Protocol

from magnetar.broker.migrated_topics import MIGRATED_PROPERTY, Destination, TopicMigrated
from magnetar.broker.migration.destinations import Destinations
from magnetar.broker.policies.system_topics import belongs_to_brokers
from magnetar.core.errors import MagnetarError
from magnetar.managed.compaction import COMPACTION_CURSOR

if TYPE_CHECKING:
    from magnetar.broker.migration.green_cluster import GreenCluster
    from magnetar.broker.policies.model import EffectivePolicies
    from magnetar.broker.replication.topic_replicators import TopicReplicators
    from magnetar.broker.resources import Resources
    from magnetar.broker.settings.broker import BrokerSettings
    from magnetar.broker.settings.policies import PolicySettings
    from magnetar.broker.subscriptions.non_persistent_subscription import NonPersistentSubscription
    from magnetar.broker.subscriptions.subscription import Subscription
    from magnetar.broker.transactions.buffers.buffer import TransactionBuffer
    from magnetar.core.topic_name import TopicName
    from magnetar.managed.factory import ManagedLedgerFactory
    from magnetar.managed.managed_ledger import ManagedLedger

logger: Final = logging.getLogger(__name__)


def tell_if_unchecked(policies: PolicySettings, what: str) -> None:
    """Say so in the log where something was marked as moved and this broker has no check that would move it. It is no
    error, as at Apache's: other brokers may have the check, or this one after its next start."""
    if policies.migration_check_seconds > 0:
        return
    logger.warning(
        "%s is marked as migrated, but topics that are loaded at this broker do not move: "
        "clusterMigrationCheckDurationSeconds is 0, so it never looks. Set it, such as to 10, at all brokers of the "
        "cluster and start them again",
        what,
    )


class Moving(Protocol):
    """What it needs of a broker: `BrokerService` has it."""

    @property
    def settings(self) -> BrokerSettings: ...
    @property
    def resources(self) -> Resources: ...
    @property
    def ledgers(self) -> ManagedLedgerFactory: ...


class MovingTopic(Protocol):
    """A loaded topic of either kind."""

    name: TopicName
    policies: EffectivePolicies
    destination: Destination | None
    redirects: bool
    of_broker: bool

    @property
    def closing(self) -> bool: ...
    def disconnect_producers(self) -> None: ...


class MovingStoredTopic(MovingTopic, Protocol):
    """A persistent topic."""

    ledger: ManagedLedger
    buffer: TransactionBuffer | None
    replicators: TopicReplicators | None
    subscriptions: dict[str, Subscription]

    async def delete_subscription(self, name: str, *, force: bool = False) -> None: ...


class MovingUnstoredTopic(MovingTopic, Protocol):
    """A topic that stores nothing: its subscriptions have no backlog."""

    subscriptions: dict[str, NonPersistentSubscription]


class Migration:
    """The topics of one broker on their way to another cluster."""

    def __init__(self, service: Moving) -> None:
        self._service = service
        self._known: Destinations | None = None
        self._green: GreenCluster | None = None

    async def check_load(self, name: TopicName, policies: EffectivePolicies) -> None:
        """Before a topic is loaded: one that is not stored here is not made here any more. Raises `TopicMigrated`.

        Apache's broker loads none at all, so that what is left of a backlog is never read after a restart."""
        destination = await self._destination(name, policies)
        if destination is None:
            return
        if name.domain != "persistent" or not await self._service.ledgers.exists(name.persistence_name):
            raise TopicMigrated(str(name), destination)

    async def prepare(self, topic: MovingStoredTopic) -> None:
        """While a topic is loaded: its clients hear where to go on."""
        topic.destination = await self._destination(topic.name, topic.policies)
        if topic.destination is not None:
            topic.redirects = not self._prepares
            self._announce(topic)

    def visit(self, topic: MovingStoredTopic) -> Callable[[], Coroutine[Any, Any, None]] | None:
        """What there is to do about a loaded topic now."""
        return (lambda: self._check(topic)) if self._may_move(topic) else None

    def visit_unstored(self, topic: MovingUnstoredTopic) -> Callable[[], Coroutine[Any, Any, None]] | None:
        """What there is to do about a loaded topic that stores nothing."""
        return (lambda: self._check_unstored(topic)) if self._may_move(topic) else None

    def stop(self) -> None:
        """Listen to the store no more."""
        if self._known is not None:
            self._known.close()

    @property
    def _destinations(self) -> Destinations:
        if self._known is None:
            self._known = Destinations(self._service.resources, self._service.settings.cluster_name)
        return self._known

    @property
    def _prepares(self) -> bool:
        """Whether the other cluster is given what it lacks before clients are sent there."""
        policies = self._service.settings.policies
        return policies.migration_creates_resources and policies.migration_check_seconds > 0

    async def _destination(self, name: TopicName, policies: EffectivePolicies) -> Destination | None:
        return None if belongs_to_brokers(name) else await self._destinations.of(policies)

    def _may_move(self, topic: MovingTopic) -> bool:
        known = topic.destination is None and self._destinations.nothing_moves
        return not (topic.closing or topic.of_broker or known)

    async def _check_unstored(self, topic: MovingUnstoredTopic) -> None:
        topic.destination = await self._destination(topic.name, topic.policies)
        topic.redirects = True
        if topic.destination is not None and not topic.closing:
            topic.disconnect_producers()
            for subscription in list(topic.subscriptions.values()):
                subscription.disconnect_all()

    async def _check(self, topic: MovingStoredTopic) -> None:
        """Have a topic's clients leave, as far as they may. Raises what the stores and the other cluster raise; then
        the next check goes on."""
        destination = await self._destination(topic.name, topic.policies)
        if destination is None or topic.closing:
            topic.destination = None
            return
        if topic.replicators is not None and topic.replicators.behind:
            topic.destination = destination
            await self._mark(topic)
            return
        if not topic.redirects:
            if self._prepares:
                await self._opened_green().prepare(topic.name, _kept(topic), destination)
            topic.redirects = True
        topic.destination = destination
        await self._mark(topic)
        self._announce(topic)
        if topic.replicators is not None:
            topic.replicators.end_drained()
        for name, subscription in list(topic.subscriptions.items()):
            if name in _kept(topic) and not subscription.consumers and subscription.cursor.backlog_entries <= 0:
                await topic.delete_subscription(name)
        topic.disconnect_producers()

    def _opened_green(self) -> GreenCluster:
        from magnetar.broker.migration.green_cluster import GreenCluster

        if self._green is None:
            self._green = GreenCluster(self._service.resources, lambda: self._service.settings)
        return self._green

    @staticmethod
    async def _mark(topic: MovingStoredTopic) -> None:
        """Nothing is stored in it any more, for ever, and whoever loads it next knows why."""
        if topic.ledger.properties.get(MIGRATED_PROPERTY) and topic.ledger.terminated:
            return
        logger.info("%s has moved to another cluster and takes nothing more", topic.name)
        if topic.ledger.terminated:
            await topic.ledger.set_property(MIGRATED_PROPERTY, "true")
            return
        # With the very write that terminates it.
        topic.ledger.note_property(MIGRATED_PROPERTY, "true")
        try:
            await (topic.ledger if topic.buffer is None else topic.buffer).terminate()
        except MagnetarError:
            if not topic.ledger.terminated:  # It waits for transactions to end.
                topic.ledger.properties.pop(MIGRATED_PROPERTY, None)
            raise
        topic.disconnect_producers()

    @staticmethod
    def _announce(topic: MovingStoredTopic) -> None:
        for subscription in list(topic.subscriptions.values()):
            subscription.topic_terminated()


def _kept(topic: MovingStoredTopic) -> list[str]:
    """The subscriptions that clients come back to."""
    return [name for name, one in topic.subscriptions.items() if one.durable and name != COMPACTION_CURSOR]
