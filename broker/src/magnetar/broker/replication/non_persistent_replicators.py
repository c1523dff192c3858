"""Messages of topics that store nothing, on their way to other clusters: what cannot be sent now is dropped.

There is no cursor to begin again from. What waits for a receipt, and for its turn of the event loop, is bounded; what
comes on top, or while there is no connection, is dropped and counted.

Facts: Pulsar `NonPersistentReplicator`, `NonPersistentTopic.checkReplication`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from magnetar.broker import replicator_names as names
from magnetar.broker.replication.outgoing import Skipped, UnstoredOutgoing
from magnetar.broker.replication.remote_link import (
    COSTS_AS_ENTRIES,
    SENT_ENTRIES_MAX,
    WINDOW_BYTES_MAX,
    RemoteLink,
    RemoteProducers,
)
from magnetar.broker.replication.remote_links import RemoteLinks
from magnetar.broker.replication.states import Reason, ReplicatorState
from magnetar.broker.replication.topic_replicators import TopicRemote
from magnetar.broker.subscriptions.dispatch_turns import SLICE_BYTES
from magnetar.core.errors import Misuse

if TYPE_CHECKING:
    from magnetar.broker.policies.model import EffectivePolicies
    from magnetar.broker.replication.world import ReplicationWorld
    from magnetar.broker.subscriptions.entry_reader import SubscriptionRuntime
    from magnetar.client.unanswered import RelayedEntry
    from magnetar.core.ids import Position
    from magnetar.core.topic_name import TopicName

logger: Final = logging.getLogger(__name__)


class NonPersistentReplicator(RemoteLink):
    """Sends to one remote cluster what it takes at once. An entry counts as one message, as at Apache's."""

    keeps: ClassVar[bool] = False

    def __init__(
        self,
        label: str,
        outgoing: UnstoredOutgoing,
        remote: RemoteProducers,
        runtime: SubscriptionRuntime,
        window_entries_max: Callable[[], int],
    ) -> None:
        super().__init__(label, remote, runtime)
        self._outgoing = outgoing
        self._window_entries_max = window_entries_max
        self._waiting: deque[bytes] = deque()
        """Taken, and not sent before this replicator's turn; counts in the window."""
        self._waiting_bytes = 0
        self._waits_for_turn = False
        self._number = 0
        """Of the last entry: no other one says which of them a receipt is for."""

    @property
    def backlog(self) -> int:
        """None: what is not sent at once is dropped."""
        return 0

    def delay_seconds(self) -> float:
        """The age of the oldest message that has no receipt; 0 when nothing is under way."""
        oldest = None if self._producer is None else self._producer.oldest
        if oldest is None:
            return 0.0
        return max(0.0, (self._runtime.clock.now_ms() - oldest.publish_time_ms) / 1000)

    def publish(self, payloads: Sequence[bytes]) -> None:
        """Send what the window has room for; the rest is dropped."""
        producer = self._producer
        if self.state is not ReplicatorState.STARTED or producer is None:
            self.counters.dropped += len(payloads)
            return
        room = self._window_entries_max() - producer.unanswered - len(self._waiting)
        room_bytes = WINDOW_BYTES_MAX - producer.unanswered_bytes - self._waiting_bytes
        taken = 0
        for payload in payloads:
            if taken >= room or len(payload) > room_bytes:
                break
            taken += 1
            room_bytes -= len(payload)
            self._waiting_bytes += len(payload)
            self._waiting.append(payload)
        if taken < len(payloads):
            self.counters.dropped += len(payloads) - taken
            self._stand_still(Reason.FULL, "")
        elif self.reason is Reason.FULL:
            self._clear_reason()
        self._pump()

    def turn(self) -> None:
        """DispatchTurns: it is this replicator's turn."""
        self._waits_for_turn = False
        self._pump()

    def _pump(self) -> None:
        turns = self._runtime.turns
        spent_bytes = 0
        while self._waiting and not self._waits_for_turn:
            if turns.left_bytes <= 0 or (spent_bytes >= SLICE_BYTES and turns.waited_for):
                self._waits_for_turn = True
                turns.wait(self)
                return
            payloads = self._next_payloads()
            self._send(payloads)
            spent_bytes += turns.take(sum(map(len, payloads)), COSTS_AS_ENTRIES * len(payloads))

    def _next_payloads(self) -> list[bytes]:
        """What is sent in one go."""
        found: list[bytes] = []
        size_bytes = 0
        while self._waiting and len(found) < SENT_ENTRIES_MAX and size_bytes < SLICE_BYTES:
            found.append(self._waiting.popleft())
            size_bytes += len(found[-1])
        self._waiting_bytes -= size_bytes
        return found

    def _send(self, payloads: list[bytes]) -> None:
        producer = self._producer
        assert producer is not None
        sent: list[RelayedEntry] = []
        for payload in payloads:
            self._number += 1
            found = self._outgoing.decide(payload, (0, self._number))
            if not isinstance(found, Skipped):
                sent.append(found)
        if sent:
            self.counters.messages_out += len(sent)
            self.counters.bytes_out += sum([one.size_bytes for one in sent])
            producer.send(sent)

    # --- the producer comes and goes

    def relayed(self, positions: list[Position]) -> None:
        """Entries have their receipts, which makes room for others."""
        del positions
        self._pauses.reset()

    def _opened(self) -> None:
        """What was published before is gone."""

    def _before_loss(self) -> None:
        """Receipts count as they come."""
        self._drop_waiting()

    def _after_loss(self) -> None:
        """What was sent without a receipt is not sent again."""

    def _let_go(self) -> None:
        self._runtime.turns.leave(self)

    def _drop_waiting(self) -> None:
        self.counters.dropped += len(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0


class NonPersistentReplicators(RemoteLinks[NonPersistentReplicator]):
    """Those of one loaded topic, by the clusters that they lead to."""

    def __init__(self, world: ReplicationWorld, name: TopicName) -> None:
        super().__init__()
        self._world = world
        self._name = name

    def follow(self, policies: EffectivePolicies) -> None:
        """These policies hold from now on: begin with clusters that are new, and end with others."""
        wanted = policies.remote_clusters
        for cluster in [one for one in self.running if one not in wanted]:
            self.running.pop(cluster).terminate()
            logger.info("%s is not replicated to %s any more", self._name, cluster)
        for cluster in wanted:
            if cluster not in self.running:
                self._add(cluster)

    def publish(self, payloads: Sequence[bytes]) -> None:
        """What a client of this cluster has published."""
        for one in self.running.values():
            one.publish(payloads)

    def close(self) -> None:
        """The topic is going."""
        for one in self.running.values():
            one.terminate()

    def _add(self, cluster: str) -> None:
        world = self._world
        local = world.settings().cluster_name
        try:
            producer_name = names.producer_name(local, cluster)
        except Misuse as error:
            logger.warning("%s is not replicated: %s", self._name, error)
            return
        self.running[cluster] = replicator = NonPersistentReplicator(
            f"replicator of {self._name} to {cluster}",
            UnstoredOutgoing(local, cluster),
            TopicRemote(world, self._name, cluster, producer_name),
            world.runtime,
            lambda: world.settings().policies.replication_queue_entries,
        )
        replicator.start()
