"""Which replicators a topic has, and that they follow its policies."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from magnetar.broker import replicator_names as names
from magnetar.broker.policies.system_topics import belongs_to_brokers
from magnetar.broker.replication.outgoing import Outgoing
from magnetar.broker.replication.running_replicators import RunningReplicators
from magnetar.broker.replication.states import SchemaUnknown
from magnetar.broker.schema.errors import SchemaRefused
from magnetar.broker.schema.wire import to_wire, version_from_bytes
from magnetar.core.errors import MagnetarError, Misuse
from magnetar.core.ids import EARLIEST, LATEST

if TYPE_CHECKING:
    from collections.abc import Callable

    from magnetar.broker.policies.limiter import RateLimiter
    from magnetar.broker.policies.model import EffectivePolicies
    from magnetar.broker.replication.world import ReplicationWorld
    from magnetar.broker.subscriptions.visibility import Visibility
    from magnetar.client.relay import RelayProducer, RelayReceiver
    from magnetar.core.clock import TimerHandle
    from magnetar.core.ids import Position
    from magnetar.core.topic_name import TopicName
    from magnetar.managed.managed_ledger import ManagedLedger
    from magnetar.wire.pulsar.generated.pulsar_api_pb2 import Schema

logger: Final = logging.getLogger(__name__)

RETRY_SECONDS: Final = 10.0
"""Until a cursor that could not be made or deleted is tried again."""

CHANGE_EVENTS: Final = "__change_events"
"""The one topic of brokers that is replicated: policies of topics."""


def is_replicated(name: TopicName) -> bool:
    """Whether messages of a topic may go to other clusters at all."""
    return not belongs_to_brokers(name) or name.partitioned_name().local_name == CHANGE_EVENTS


class TopicRemote:
    """A `Remote`: one topic at one other cluster."""

    def __init__(self, world: ReplicationWorld, topic: TopicName, cluster: str, producer_name: str) -> None:
        self._world = world
        self._topic = topic
        self._cluster = cluster
        self._producer_name = producer_name

    async def producer(self, receiver: RelayReceiver) -> RelayProducer:
        await self._world.partitions.ensure(self._topic, self._cluster)
        client = await self._world.remotes.client(self._cluster)
        return client.relay(self._topic, self._producer_name, receiver)

    async def schema(self, version: bytes) -> Schema:
        name = self._topic.schema_name
        try:
            number = version_from_bytes(version)
        except SchemaRefused as error:
            raise SchemaUnknown(f"{self._topic}: a message names no version of a schema: {error}") from None
        stored = await self._world.schemas.get(name, number)
        if stored is None:
            raise SchemaUnknown(f"{self._topic}: a message names version {version.hex()} of a schema that is not there")
        return to_wire(stored.schema, name)


class TopicReplicators(RunningReplicators):
    """The replicators of one loaded topic, by the clusters that they lead to."""

    def __init__(
        self,
        world: ReplicationWorld,
        name: TopicName,
        ledger: ManagedLedger,
        visibility: Callable[[], Visibility | None],
    ) -> None:
        super().__init__(world, name, ledger, visibility)
        self._policies: EffectivePolicies | None = None
        self._group_limiters: tuple[RateLimiter, ...] = ()
        self._settling = False
        self._changed = False
        self._closed = False
        self._retry_timer: TimerHandle | None = None
        self._on_marker: Callable[[Position, bytes], None] | None = None

    @property
    def wanted(self) -> bool:
        """Whether the topic is replicated to any cluster now."""
        return bool(self._wanted())

    @property
    def connected_clusters(self) -> frozenset[str] | None:
        """The clusters that the topic is replicated to; None while any of them is not connected."""
        wanted = self._wanted()
        if not wanted or any(cluster not in self.running or not self.running[cluster].connected for cluster in wanted):
            return None
        return frozenset(wanted)

    def tell_markers(self, on_marker: Callable[[Position, bytes], None]) -> None:
        """Who hears when a replicator comes to a marker that its remote cluster wrote, and where it stands."""
        self._on_marker = on_marker
        for one in self.running.values():
            one.on_marker = on_marker

    async def begin(self, policies: EffectivePolicies, group_limiters: tuple[RateLimiter, ...]) -> None:
        """While the topic is loaded: make and delete cursors before anybody publishes. Raises what the ledger
        raises."""
        self._policies, self._group_limiters = policies, group_limiters
        self._settling = True
        try:
            await self._settle_once()
        finally:
            self._settling = False

    def follow(self, policies: EffectivePolicies, group_limiters: tuple[RateLimiter, ...]) -> None:
        """These policies hold from now on; cursors are made and deleted in the background."""
        self._policies, self._group_limiters = policies, group_limiters
        for cluster in self.running:
            self._follow_one(cluster, policies, group_limiters)
        self._changed = True
        self._settle_later()

    def close(self) -> None:
        """The topic is going: touch its cursors no more."""
        self._closed = True
        if self._retry_timer is not None:
            self._retry_timer.cancel()
            self._retry_timer = None
        self._on_marker = None
        for one in self.running.values():
            one.on_marker = None
            one.terminate()
        self._leave()

    def _settle_later(self) -> None:
        self._retry_timer = None
        if not self._settling and not self._closed:
            self._settling = True
            self._world.runtime.spawn(self._settle())

    async def _settle(self) -> None:
        """Until what runs is what the policies say."""
        try:
            while self._changed and not self._closed:
                self._changed = False
                await self._settle_once()
        except MagnetarError as error:
            self._changed = True
            if not self._closed:
                logger.warning("replicators of %s are not as its policies say, tried again: %s", self._name, error)
                self._retry_timer = self._world.runtime.call_later(RETRY_SECONDS, self._settle_later)
        finally:
            self._settling = False

    async def _settle_once(self) -> None:
        wanted = self._wanted()
        for cursor in [one for one in self._ledger.cursors if names.remote_of_cursor(one) not in (None, *wanted)]:
            await self._remove(cursor)
        for cluster in wanted:
            if cluster not in self.running and not self._closed:
                await self._add(cluster)

    def _wanted(self) -> tuple[str, ...]:
        policies = self._policies
        if policies is None:
            return ()
        only = policies.only_cluster
        return (only,) if only and names.CLUSTER_PREFIX + only in self._ledger.cursors else policies.remote_clusters

    async def _remove(self, cursor: str) -> None:
        cluster = names.remote_of_cursor(cursor)
        assert cluster is not None
        replicator = self._end(cluster)
        if replicator is not None:
            await replicator.wait_until_idle()
        if self._closed or cluster in self._wanted():
            return  # Whoever took the cluster out of the list has put it back: its place stays.
        await self._ledger.delete_cursor(cursor)
        logger.info("%s is not replicated to %s any more: its cursor is deleted", self._name, cluster)

    async def _add(self, cluster: str) -> None:
        world = self._world
        local = world.settings().cluster_name
        try:
            cursor_name, producer_name = names.cursor_name(cluster), names.producer_name(local, cluster)
        except Misuse as error:
            logger.warning("%s is not replicated: %s", self._name, error)
            return
        settings = self._world.settings().policies
        start = EARLIEST if settings.replication_start_at == "earliest" else LATEST
        cursor = await self._ledger.open_cursor(cursor_name, start)
        if self._closed:
            return
        remote = TopicRemote(world, self._name, cluster, producer_name)
        self.running[cluster] = replicator = self._made(cluster, cursor, Outgoing(local, cluster), remote)
        replicator.on_marker = self._on_marker
        assert self._policies is not None
        self._follow_one(cluster, self._policies, self._group_limiters)
        replicator.start()
