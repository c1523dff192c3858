"""Topics and their replicators: loaded by the first topic that has to do with other clusters."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

from magnetar.broker.policies.system_topics import belongs_to_brokers
from magnetar.broker.replicator_names import REPLICATOR_PREFIX
from magnetar.broker.subscriptions.entry_reader import SubscriptionRuntime
from magnetar.broker.topics.non_persistent_topic import NonPersistentTopic
from magnetar.broker.topics.topic import PersistentTopic, Topic
from magnetar.core.topic_name import TopicName

if TYPE_CHECKING:
    from magnetar.broker.policies.model import EffectivePolicies
    from magnetar.broker.replicated_subscriptions.figures import SnapshotFigures
    from magnetar.broker.replicated_subscriptions.topic_subscriptions import SnapshotWorld
    from magnetar.broker.replication.topic_replicators import TopicReplicators
    from magnetar.broker.replication.world import ReplicationWorld
    from magnetar.broker.resources import Resources
    from magnetar.broker.schema.registry import SchemaRegistry
    from magnetar.broker.settings.broker import BrokerSettings
    from magnetar.broker.subscriptions.visibility import Visibility
    from magnetar.core.clock import CallLater, Clock


class Replicating(Protocol):
    """What replicators need of a broker: `BrokerService` has it."""

    @property
    def settings(self) -> BrokerSettings: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def resources(self) -> Resources: ...
    @property
    def schemas(self) -> SchemaRegistry: ...
    def spawn(self, work: Coroutine[Any, Any, None]) -> None: ...


class Replication:
    """Gives topics their replicators, and has them follow the policies."""

    def __init__(self, service: Replicating, call_later: CallLater, rng: Random | None = None) -> None:
        self._service = service
        self._call_later = call_later
        self._rng = rng if rng is not None else Random()  # noqa: S311 - Pauses, no secrets.
        self._world: ReplicationWorld | None = None
        self._snapshots: SnapshotWorld | None = None

    async def prepare(self, topic: PersistentTopic) -> None:
        """Before anybody may publish to a topic that is being loaded: cursors that are new begin before what comes.
        Raises what the ledger raises."""
        self._equip(topic, topic.policies)
        self._follow_shadows(topic, topic.policies)
        if topic.replicators is not None:
            await topic.replicators.begin(topic.policies, topic.dispatch_limiters)
        if topic.replicated_subscriptions is not None:
            topic.replicated_subscriptions.settle()

    def follow(self, topic: Topic, policies: EffectivePolicies) -> None:
        """These policies hold for a topic from now on."""
        if not isinstance(topic, PersistentTopic):
            self._follow_unstored(topic, policies)
            return
        self._equip(topic, policies)
        self._follow_shadows(topic, policies)
        if topic.replicators is not None and not topic.closing:
            topic.replicators.follow(policies, topic.dispatch_limiters)
            if topic.replicated_subscriptions is not None:
                topic.replicated_subscriptions.settle()

    @property
    def snapshots(self) -> SnapshotFigures | None:
        """What is counted of snapshots for replicated subscriptions; None: no topic has to do with them."""
        return None if self._snapshots is None else self._snapshots.figures

    def _equip(self, topic: PersistentTopic, policies: EffectivePolicies) -> None:
        if topic.closing or topic.source is not None:
            return  # The entries of a shadow are its source's, which has them replicated.
        if topic.replicators is None and not policies.remote_clusters and not _was_replicated(topic):
            return
        from magnetar.broker.replication.topic_replicators import TopicReplicators, is_replicated

        if not is_replicated(topic.name):
            return
        if topic.replicators is None:
            topic.replicators = TopicReplicators(self._opened(), topic.name, topic.ledger, _visibility_of(topic))
            if self._service.settings.policies.replicated_subscriptions:
                self._equip_subscriptions(topic, topic.replicators)

    def _follow_unstored(self, topic: NonPersistentTopic, policies: EffectivePolicies) -> None:
        if (topic.replicators is None and not policies.remote_clusters) or topic.closing or topic.of_broker:
            return
        if topic.replicators is None:
            from magnetar.broker.replication.non_persistent_replicators import NonPersistentReplicators

            topic.replicators = NonPersistentReplicators(self._opened(), topic.name)
        topic.replicators.follow(policies)

    def _follow_shadows(self, topic: PersistentTopic, policies: EffectivePolicies) -> None:
        if topic.closing or topic.of_broker or topic.source is not None:
            return
        if topic.shadow_replicators is None and not policies.shadow_topics:
            return
        if topic.shadow_replicators is None:
            from magnetar.broker.replication.shadow_replicators import ShadowReplicators

            one = ShadowReplicators(self._opened(), topic.name, topic.ledger, _visibility_of(topic))
            topic.shadow_replicators = one
        topic.shadow_replicators.follow(policies, topic.dispatch_limiters)

    def _equip_subscriptions(self, topic: PersistentTopic, replicators: TopicReplicators) -> None:
        from magnetar.broker.replicated_subscriptions.controller import SnapshotSettings
        from magnetar.broker.replicated_subscriptions.topic_subscriptions import ReplicatedSubscriptions, SnapshotWorld

        service = self._service
        if self._snapshots is None:
            policies = service.settings.policies
            settings = SnapshotSettings(
                policies.snapshot_interval_ms, policies.snapshot_timeout_seconds, policies.snapshots_kept_max
            )
            self._snapshots = SnapshotWorld(settings, service.clock, self._call_later, service.spawn, self._rng)
        cluster = service.settings.cluster_name
        topic.replicated_subscriptions = one = ReplicatedSubscriptions(topic, replicators, cluster, self._snapshots)
        replicators.tell_markers(one.marker_received)

    def _opened(self) -> ReplicationWorld:
        """What replicators share; made for the first one."""
        from magnetar.broker.replication.world import ReplicationWorld

        if self._world is None:
            service = self._service
            runtime = SubscriptionRuntime(service.clock, service.spawn, self._call_later)
            self._world = ReplicationWorld(
                lambda: service.settings, service.resources, service.schemas, runtime, self._rng
            )
        return self._world

    def partitions_changed(self, name: TopicName, partitions: int, policies: EffectivePolicies | None) -> None:
        """A partitioned topic was made or enlarged here: other clusters are to have it, too."""
        clusters = () if policies is None else policies.remote_clusters
        if clusters and not belongs_to_brokers(name):
            self._service.spawn(self._opened().partitions.bring_to(name, partitions, clusters))

    def stop(self) -> None:
        """Close the connections to other clusters."""
        if self._world is not None:
            self._world.partitions.stop()
            self._service.spawn(self._world.remotes.close())


def _visibility_of(topic: PersistentTopic) -> Callable[[], Visibility | None]:
    return lambda: topic.visibility


def _was_replicated(topic: PersistentTopic) -> bool:
    return any(name.startswith(f"{REPLICATOR_PREFIX}.") for name in topic.ledger.cursors)
