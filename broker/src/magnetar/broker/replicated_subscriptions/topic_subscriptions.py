"""The replicated subscriptions of one topic: what they read and acknowledge goes to the topic's `SnapshotController`,
and what that hears of other clusters comes back to them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from random import Random
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import UUID

from magnetar.broker.replicated_subscriptions.controller import SnapshotController, SnapshotSettings
from magnetar.broker.replicated_subscriptions.figures import SnapshotFigures
from magnetar.broker.replicated_subscriptions.followed_subscription import FollowedSubscription
from magnetar.broker.replicated_subscriptions.kept_snapshots import KeptSnapshots
from magnetar.broker.replicated_subscriptions.marked import MARKED, is_marked
from magnetar.broker.replicated_subscriptions.single_acknowledgements import (
    Acknowledged,
    SingleAcknowledgements,
    some_before,
)
from magnetar.core.clock import CallLater, Clock
from magnetar.core.errors import MagnetarError, PeerError
from magnetar.core.ids import EARLIEST, Position
from magnetar.managed.compaction import COMPACTION_CURSOR
from magnetar.managed.cursors.reading import durable
from magnetar.managed.errors import ManagedLedgerTerminated
from magnetar.wire.pulsar.errors import BadMetadata
from magnetar.wire.pulsar.metadata import skim

if TYPE_CHECKING:
    from magnetar.broker.subscriptions.subscription import Subscription
    from magnetar.core.topic_name import TopicName
    from magnetar.managed.managed_ledger import ManagedLedger

logger: Final = logging.getLogger(__name__)


class SubscribedTopic(Protocol):
    """What is needed of a topic: `PersistentTopic` has it."""

    name: TopicName
    ledger: ManagedLedger
    subscriptions: dict[str, Subscription]

    async def create_subscription(
        self, name: str, start: Position, properties: dict[str, str] | None = None, marks: dict[str, int] | None = None
    ) -> Subscription:
        """A durable subscription; the existing one when there is one. `marks` are the properties of a new cursor's
        position."""
        ...

    def storing_failed(self, error: MagnetarError) -> None:
        """The topic's ledger takes nothing."""
        ...


class ConnectedClusters(Protocol):
    """The replicators of a topic."""

    @property
    def wanted(self) -> bool:
        """Whether the topic is replicated to any cluster now."""
        ...

    @property
    def connected_clusters(self) -> frozenset[str] | None:
        """The clusters that the topic is replicated to; None while any of them is not connected."""
        ...


class SnapshotWorld:
    """What the replicated subscriptions of all topics of a broker share."""

    def __init__(
        self,
        settings: SnapshotSettings,
        clock: Clock,
        call_later: CallLater,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        rng: Random,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.call_later = call_later
        self.spawn = spawn
        self.figures = SnapshotFigures()
        self.one_at_a_time = asyncio.Semaphore(1)
        """For whoever looks at many entries of a topic."""
        self._rng = rng

    def new_id(self) -> str:
        """An id that no other snapshot has."""
        return str(UUID(int=self._rng.getrandbits(128), version=4))


class ReplicatedSubscriptions:
    """Those of one topic that is replicated. It is what `SnapshotController` calls the topic."""

    __slots__ = ("_controller", "_followed", "_replicators", "_singles", "_topic", "_world", "name")

    def __init__(
        self, topic: SubscribedTopic, replicators: ConnectedClusters, local: str, world: SnapshotWorld
    ) -> None:
        self.name: object = topic.name
        self._topic = topic
        self._replicators = replicators
        self._world = world
        self._followed: dict[str, FollowedSubscription] = {}
        self._controller: SnapshotController | None = SnapshotController(
            self, local, world.settings, world.clock, world.call_later, world.spawn, world.new_id, world.figures
        )
        """None: the topic is going."""
        interval_seconds = world.settings.interval_ms / 1000
        self._singles = SingleAcknowledgements(
            topic.ledger,
            local,
            interval_seconds,
            world.call_later,
            world.spawn,
            world.one_at_a_time,
            self._controller.acknowledged_singly,
        )
        topic.ledger.appends.on_appended.append(self._controller.appended)

    # --- which subscriptions they are

    def settle(self) -> None:
        """Look at all subscriptions of the topic."""
        for name in list(dict.fromkeys((*self._followed, *self._topic.subscriptions))):
            self._settle_one(name)
        self._pace()

    def changed(self, name: str) -> None:
        """A subscription is made, gone, replicated since now or not any more."""
        self._settle_one(name)
        self._pace()

    def _settle_one(self, name: str) -> None:
        controller = self._controller
        if controller is None:
            return
        topic, followed = self._topic, self._followed.get(name)
        subscription = topic.subscriptions.get(name)
        cursor = topic.ledger.cursors.get(name) if subscription is not None else None
        if subscription is None or cursor is None or not is_marked(cursor):
            if followed is not None:
                del self._followed[name]
                followed.let_go()
                self._singles.forget(name)
            return
        if followed is not None:
            if followed.subscription is subscription and followed.cursor is cursor:
                return
            followed.let_go()
        kept = KeptSnapshots(self._world.settings.kept_max, topic.ledger.ledgers.entries_between)
        self._followed[name] = new = FollowedSubscription(
            subscription,
            cursor,
            kept,
            controller.acknowledged,
            self._singles.acknowledged,
            some_before(topic.ledger.ledgers, cursor.mark_delete),
        )
        # The topic's former owner may not have told all.
        self._singles.acknowledged(new)
        # What it has read before, it has read without the snapshots in it.
        controller.cover_anew()

    def _pace(self) -> None:
        """Take snapshots while anybody goes by them."""
        if self._controller is None:
            return
        if self._followed and self._replicators.wanted:
            self._controller.start()
        else:
            self._controller.close()

    def close(self) -> None:
        """The topic is going: touch neither it nor its cursors any more."""
        controller, self._controller = self._controller, None
        if controller is not None:
            controller.close()
            self._singles.close()
            if controller.appended in self._topic.ledger.appends.on_appended:
                self._topic.ledger.appends.on_appended.remove(controller.appended)
        followed, self._followed = self._followed, {}
        for one in followed.values():
            one.let_go()

    # --- from replicators

    def marker_received(self, position: Position, data: bytes) -> None:
        """The replicator to the cluster that wrote a marker has come to it, which stands at this position."""
        if self._controller is None:
            return
        try:
            metadata = skim(data)
        except BadMetadata as error:
            logger.warning("%s: passing over the marker at %d:%d: %s", self.name, *position, error)
            return
        self._controller.marker_received(position, metadata.marker_type, data[metadata.payload_start :])

    # --- for the controller

    @property
    def last_position(self) -> Position:
        """The last entry that is stored; the entry id is -1 where there is none."""
        return self._topic.ledger.last_confirmed

    @property
    def connected_clusters(self) -> frozenset[str] | None:
        """The clusters that the topic is replicated to; None while any of them is not connected, or the topic takes no
        markers."""
        return None if self._topic.ledger.terminated else self._replicators.connected_clusters

    def write_marker(self, entry: bytes, stored: Callable[[MagnetarError | None, Position], None]) -> None:
        """Store an entry; `stored` hears where it stands, or why it does not. A terminated topic takes no more of them,
        and so its subscriptions stay where the others know them to be."""
        if self._topic.ledger.terminated:
            return
        self._topic.ledger.appends.append([entry], self._marker_stored, stored)

    def _marker_stored(self, error: MagnetarError | None, ledger_id: int, first_entry_id: int, context: object) -> None:
        assert callable(context)
        if self._controller is None:
            return
        if error is not None and not isinstance(error, ManagedLedgerTerminated):
            self._topic.storing_failed(error)
        context(error, (ledger_id, first_entry_id))

    async def follow_subscription(self, name: str, position: Position) -> None:
        """Acknowledge everything up to a position; make the subscription, replicated, if it is not there. A reader's,
        which is not stored, stays where it is. Raises `MagnetarError`."""
        subscription = await self._made(name)
        if self._controller is None or subscription is None:
            return
        if position > subscription.cursor.mark_delete:
            subscription.cursor.acknowledge_cumulative(position)
            subscription.acknowledged_by_broker()
            cursor = self._topic.ledger.cursors.get(name)
            if cursor is not None:
                # At once: the marker is behind the replicator, and nobody tells this again after a crash.
                await durable(cursor.storage, None)

    async def follow_single_entries(self, name: str, acknowledged: Acknowledged) -> None:
        """Acknowledge entries one by one, in the background. Otherwise as `follow_subscription`."""
        await self._made(name)
        followed = self._followed.get(name)
        if followed is not None and self._controller is not None:
            self._singles.told(followed, acknowledged)

    async def _made(self, name: str) -> Subscription | None:
        """The subscription; a new one, replicated, when it is not there. None for what is not stored."""
        if name == COMPACTION_CURSOR:
            raise PeerError(f"{name} goes by what is compacted, and by no other cluster")
        subscription = self._topic.subscriptions.get(name)
        if subscription is None and self._controller is not None:
            subscription = await self._topic.create_subscription(name, EARLIEST, None, dict(MARKED))
            self.changed(name)
        return subscription if subscription is not None and subscription.durable else None
