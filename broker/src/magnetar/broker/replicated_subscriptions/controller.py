"""Takes snapshots of a topic across clusters, and has its subscriptions follow what other clusters tell.

A snapshot says which positions of the topic belong together in all clusters. A subscription that has acknowledged
everything up to a snapshot tells the others so, and each moves its own subscription to its own position. Facts:
geo-replication section 6; Pulsar `ReplicatedSubscriptionsController`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from magnetar.broker.replicated_subscriptions.covered_data import CoveredData
from magnetar.broker.replicated_subscriptions.figures import SnapshotFigures
from magnetar.broker.replicated_subscriptions.snapshot_round import NextStep, SnapshotRound
from magnetar.core.clock import CallLater, Clock, TimerHandle
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import EARLIEST, Position
from magnetar.wire.pulsar.errors import BadMetadata
from magnetar.wire.pulsar.subscription_markers import (
    ClusterSnapshot,
    SnapshotRequest,
    SnapshotResponse,
    Stretch,
    SubscriptionUpdate,
    read_marker,
    snapshot_entry,
    snapshot_request,
    snapshot_response,
    subscription_update,
)

logger: Final = logging.getLogger(__name__)

LOOKS_OF_PATIENCE: Final = 10
"""With several remote clusters, looks for which snapshots go on after the last message. A message of a third cluster
may be here before the question and arrive there after the answer; Apache's brokers do not ask again, and subscriptions
there stay behind until somebody publishes."""


UPDATES_MAX: Final = 100_000
"""Subscriptions of one topic of which was told something that is not done yet: some 50 MB. Others do not follow."""

SINGLES_MAX: Final = 1_000
"""Those of which single entries were told: beyond, these are dropped, and told with the next acknowledgement again."""


@dataclass(frozen=True, slots=True)
class SnapshotSettings:
    """How often snapshots are taken, how long one may take, and how many a subscription keeps."""

    interval_ms: int = 1_000
    timeout_seconds: int = 30
    """After so long without all answers a snapshot is given up."""
    kept_max: int = 30


class ReplicatedTopic(Protocol):
    """What is needed of the topic."""

    @property
    def name(self) -> object:
        """The topic's name, for the log."""
        ...

    @property
    def last_position(self) -> Position:
        """The last entry that is stored; the entry id is -1 where there is none."""
        ...

    @property
    def connected_clusters(self) -> frozenset[str] | None:
        """The clusters that the topic is replicated to; None while any of them is not connected."""
        ...

    def write_marker(self, entry: bytes, stored: Callable[[MagnetarError | None, Position], None]) -> None:
        """Store an entry; `stored` hears where it stands, or why it does not."""
        ...

    async def follow_subscription(self, name: str, position: Position) -> None:
        """Acknowledge everything up to a position; make the subscription, replicated, if it is not there. Raises
        `MagnetarError`."""
        ...

    async def follow_single_entries(self, name: str, acknowledged: Mapping[str, Sequence[Stretch]]) -> None:
        """Acknowledge these entries; otherwise as `follow_subscription`."""
        ...


class SnapshotController:
    """Of one topic, while any of its subscriptions is replicated, or another cluster asks."""

    __slots__ = (
        "_call_later",
        "_clock",
        "_covered",
        "_figures",
        "_local_cluster",
        "_new_id",
        "_rounds",
        "_seen",
        "_spawn",
        "_started",
        "_succeeded",
        "_timer",
        "_topic",
        "_updates",
        "settings",
    )

    def __init__(
        self,
        topic: ReplicatedTopic,
        local_cluster: str,
        settings: SnapshotSettings,
        clock: Clock,
        call_later: CallLater,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        new_id: Callable[[], str],
        figures: SnapshotFigures,
    ) -> None:
        """`new_id` gives ids that no other snapshot of any cluster has."""
        self._topic = topic
        self._local_cluster = local_cluster
        self.settings = settings
        self._clock = clock
        self._call_later = call_later
        self._spawn = spawn
        self._new_id = new_id
        self._figures = figures
        self._covered = CoveredData()
        self._rounds: dict[str, SnapshotRound] = {}
        """Snapshots that are not complete, by id; as many as begin within the time that one may take."""
        self._seen: deque[Position] = deque(maxlen=LOOKS_OF_PATIENCE)
        """The topic's last entry at each of the last looks, the oldest first."""
        self._started = False
        self._succeeded = False
        self._timer: TimerHandle | None = None
        """Until the next look; None while there is nothing to look at, so that an idle topic costs nothing."""
        self._updates: dict[str, SubscriptionUpdate | None] = {}
        """What was told of each subscription and comes next; None: nothing after what is being done."""

    def start(self) -> None:
        """Begin to take snapshots, the first one at once."""
        if not self._started:
            self._started = True
            self._look()

    def close(self) -> None:
        """Take no more snapshots."""
        self._started = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._figures.pending -= len(self._rounds)
        self._rounds.clear()

    def cover_anew(self) -> None:
        """Take another snapshot though nothing is published: somebody has missed those before."""
        self._covered = CoveredData()
        self.appended()

    # --- snapshots of this cluster

    def appended(self) -> None:
        """Something is stored in the topic: a look follows."""
        if self._started and self._timer is None:
            self._timer = self._call_later(self.settings.interval_ms / 1000, self._look)

    def _look(self) -> None:
        self._timer = None
        now_ms = self._now_ms()
        long_ago = self._seen[0] if len(self._seen) == LOOKS_OF_PATIENCE else EARLIEST
        self._seen.append(self._topic.last_position)
        self._give_up(now_ms - self.settings.timeout_seconds * 1000)
        if self._rounds or self._covered.has_messages(self._topic.last_position):
            self._timer = self._call_later(self.settings.interval_ms / 1000, self._look)
            self._begin_round(now_ms, long_ago)

    def _give_up(self, oldest_ms: int) -> None:
        """Wait no more for the answers to what began before a time of the monotonic clock."""
        late = [each.snapshot_id for each in self._rounds.values() if each.started_ms < oldest_ms]
        for snapshot_id in late:
            del self._rounds[snapshot_id]
            self._figures.pending -= 1
            self._figures.timed_out += 1

    def _begin_round(self, now_ms: int, long_ago: Position) -> None:
        if self._rounds and not self._succeeded:
            return  # Perhaps nobody there answers such questions: one at a time is enough to find out.
        remotes = self._topic.connected_clusters
        if not remotes or not self._covered.has_messages(self._topic.last_position):
            return
        attempt = SnapshotRound(self._new_id(), remotes, now_ms)
        if len(remotes) > 1:
            attempt.covers_until = long_ago
        self._rounds[attempt.snapshot_id] = attempt
        self._figures.pending += 1
        self._ask(attempt)

    def _ask(self, attempt: SnapshotRound) -> None:
        entry = snapshot_request(attempt.snapshot_id, self._local_cluster, self._clock.now_ms())
        self._topic.write_marker(entry, partial(self._asked, attempt))

    def _asked(self, attempt: SnapshotRound, error: MagnetarError | None, position: Position) -> None:
        self._written(error, position)
        if error is None and attempt.covers_until is None:
            attempt.covers_until = position

    def _store(self, attempt: SnapshotRound, last_response: Position) -> None:
        snapshot = attempt.snapshot(last_response)
        entry = snapshot_entry(snapshot, self._local_cluster, self._clock.now_ms())
        self._topic.write_marker(entry, partial(self._snapshot_stored, attempt, snapshot))

    def _snapshot_stored(
        self, attempt: SnapshotRound, snapshot: ClusterSnapshot, error: MagnetarError | None, position: Position
    ) -> None:
        if error is not None:
            attempt.not_stored()
            self._not_written(error)
            return
        if self._rounds.pop(attempt.snapshot_id, None) is not None:
            self._figures.pending -= 1
            self._figures.finished += 1
            self._figures.finished_ms += self._now_ms() - attempt.started_ms
        self._succeeded = True
        if attempt.covers_until is not None:
            self._covered.completed(attempt.covers_until)
        self._covered.marker(position)

    # --- what subscriptions of this cluster acknowledge

    def acknowledged(self, subscription: str, snapshot: ClusterSnapshot) -> None:
        """A replicated subscription has acknowledged everything up to a snapshot: the others hear of it."""
        update = SubscriptionUpdate(subscription, snapshot.clusters)
        self._write(subscription_update(update, self._clock.now_ms()))

    def acknowledged_singly(self, subscription: str, acknowledged: Mapping[str, Sequence[Stretch]]) -> None:
        """A replicated subscription has acknowledged single entries: the others hear of it."""
        update = SubscriptionUpdate(subscription, {}, acknowledged)
        self._write(subscription_update(update, self._clock.now_ms()))

    # --- what other clusters ask and tell

    def marker_received(self, position: Position, marker_type: int, payload: bytes) -> None:
        """A marker of another cluster stands at this position. Called by the replicator to that cluster, when it comes
        to the entry: then everything before it has been read, and what it answers stands behind it."""
        self._covered.marker(position)
        try:
            marker = read_marker(marker_type, payload)
        except BadMetadata as error:
            logger.warning("%s: passing over the marker at %d:%d: %s", self._topic.name, *position, error)
            return
        if isinstance(marker, SnapshotRequest):
            now_ms = self._clock.now_ms()
            self._write(snapshot_response(marker, self._local_cluster, self._topic.last_position, now_ms))
        elif isinstance(marker, SnapshotResponse):
            self._responded(position, marker)
        elif isinstance(marker, SubscriptionUpdate):
            self._updated(marker)

    def _responded(self, position: Position, response: SnapshotResponse) -> None:
        attempt = self._rounds.get(response.snapshot_id)
        if attempt is None:
            return  # It was given up.
        step = attempt.responded(response)
        if step is NextStep.ASK_AGAIN:
            self._ask(attempt)
        elif step is NextStep.STORE:
            self._store(attempt, position)

    def _updated(self, update: SubscriptionUpdate) -> None:
        """What is told while something of the subscription is being done waits: the furthest of it is enough."""
        name, local, before = update.subscription, self._local_cluster, self._updates.get(update.subscription)
        told = [each.clusters[local] for each in (before, update) if each is not None and local in each.clusters]
        newest = update.acknowledged or (before.acknowledged if before is not None else {})
        singles = newest if len(self._updates) < SINGLES_MAX else {}
        waiting = SubscriptionUpdate(name, {local: max(told)} if told else {}, singles)
        if name in self._updates:
            self._updates[name] = waiting
        elif len(self._updates) < UPDATES_MAX:
            self._updates[name] = waiting
            self._spawn(self._follow_all(name))
        else:
            logger.warning("%s: subscription %s does not follow, too many do already", self._topic.name, name)

    async def _follow_all(self, name: str) -> None:
        try:
            while (update := self._updates[name]) is not None:
                self._updates[name] = None
                await self._follow(update)
        finally:
            del self._updates[name]

    async def _follow(self, update: SubscriptionUpdate) -> None:
        name, position = update.subscription, update.clusters.get(self._local_cluster)
        try:
            if position is not None:
                await self._topic.follow_subscription(name, position)
            if update.acknowledged:
                await self._topic.follow_single_entries(name, update.acknowledged)
        except MagnetarError as error:
            # The next update has a later position.
            logger.warning("%s: subscription %s does not follow now: %s", self._topic.name, name, error)

    # --- writing

    def _write(self, entry: bytes) -> None:
        self._topic.write_marker(entry, self._written)

    def _written(self, error: MagnetarError | None, position: Position) -> None:
        if error is None:
            self._covered.marker(position)
        else:
            self._not_written(error)

    def _not_written(self, error: MagnetarError) -> None:
        # A round without its marker ends by its time.
        logger.warning("%s: a marker of replicated subscriptions is not stored: %s", self._topic.name, error)

    def _now_ms(self) -> int:
        return int(self._clock.monotonic_seconds() * 1000)
