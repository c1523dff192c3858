"""What tells shadow topics of the entries of their source, which they read where these stand.

A shadow topic is one of the same cluster, with subscriptions of its own. The cursors of these replicators are in memory
only, and begin at the end: what a shadow topic was not told of, it finds by itself when it is loaded.

Facts: Pulsar `ShadowReplicator`, `PersistentTopic.checkShadowReplication`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from magnetar.broker import replicator_names as names
from magnetar.broker.policies.limiter import RateLimiter, limiter_for
from magnetar.broker.replication.outgoing import ShadowOutgoing
from magnetar.broker.replication.replicator import Replicator
from magnetar.broker.replication.states import SchemaUnknown
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import LATEST
from magnetar.core.topic_name import PERSISTENT, InvalidTopicName, TopicName

if TYPE_CHECKING:
    from collections.abc import Callable

    from magnetar.broker.policies.model import EffectivePolicies
    from magnetar.broker.replication.topic_replicators import ReplicationWorld
    from magnetar.broker.subscriptions.visibility import Visibility
    from magnetar.client.relay import RelayProducer, RelayReceiver
    from magnetar.managed.managed_ledger import ManagedLedger
    from magnetar.wire.pulsar.generated.pulsar_api_pb2 import Schema

logger: Final = logging.getLogger(__name__)


class _ShadowRemote:
    """A `Remote`: a shadow topic in this cluster, wherever it is served."""

    def __init__(self, world: ReplicationWorld, source: TopicName, shadow: TopicName) -> None:
        self._world = world
        self._source = source
        self._shadow = shadow

    async def producer(self, receiver: RelayReceiver) -> RelayProducer:
        client = await self._world.remotes.client(self._world.settings().cluster_name)
        name = names.shadow_producer_name(str(self._source), str(self._shadow))
        return client.relay(self._shadow, name, receiver)

    async def schema(self, version: bytes) -> Schema:
        raise SchemaUnknown(f"{self._shadow} has the schemas of {self._source}: version {version.hex()}")


class ShadowReplicators:
    """Those of one loaded topic."""

    def __init__(
        self,
        world: ReplicationWorld,
        name: TopicName,
        ledger: ManagedLedger,
        visibility: Callable[[], Visibility | None],
    ) -> None:
        self.running: dict[str, Replicator] = {}
        self._world = world
        self._name = name
        self._ledger = ledger
        self._visibility: Callable[[], Visibility | None] | None = visibility
        self._limiters: dict[str, RateLimiter | None] = {}
        ledger.appends.on_appended.append(self._wake)

    def follow(self, policies: EffectivePolicies, group_limiters: tuple[RateLimiter, ...]) -> None:
        """These policies hold from now on: begin with shadow topics that are new, and end with others."""
        wanted = self._wanted(policies)
        for text in [one for one in self.running if one not in wanted]:
            self._remove(text)
        runtime = self._world.runtime
        for text, shadow in wanted.items():
            if text not in self.running:
                self._add(text, shadow)
            what = f"replicator dispatch rate of {self._name} to {text}"
            own = limiter_for(
                policies.replicator_dispatch_rate, self._limiters.get(text), runtime.clock, runtime.call_later, what
            )
            self._limiters[text] = own
            self.running[text].follow(policies.message_ttl_seconds, own, *group_limiters)

    def close(self) -> None:
        """The topic is going."""
        if self._wake in self._ledger.appends.on_appended:
            self._ledger.appends.on_appended.remove(self._wake)
        for text in list(self.running):
            self._remove(text)
        self._visibility = None  # It refers to the topic, which would wait for the collector of cycles.

    def _wanted(self, policies: EffectivePolicies) -> dict[str, TopicName]:
        """By name. Partitions go to the partitions of the same number."""
        found: dict[str, TopicName] = {}
        for text in policies.shadow_topics:
            try:
                shadow = TopicName.parse(text)
            except InvalidTopicName as error:
                logger.warning("%s has a shadow topic without a name: %s", self._name, error)
                continue
            if self._name.partition_index >= 0:
                shadow = shadow.partition(self._name.partition_index)
            if shadow.domain == PERSISTENT and shadow != self._name:
                found[str(shadow)] = shadow
        return found

    def _add(self, text: str, shadow: TopicName) -> None:
        world = self._world
        cursor = self._ledger.new_non_durable_cursor(names.shadow_cursor_name(text), LATEST)
        self.running[text] = replicator = Replicator(
            f"replicator of {self._name} to its shadow {text}",
            cursor,
            ShadowOutgoing(world.settings().cluster_name),
            _ShadowRemote(world, self._name, shadow),
            world.runtime,
            self._see,
            lambda: world.settings().policies.replication_queue_entries,
        )
        replicator.start()

    def _see(self) -> Visibility | None:
        return None if self._visibility is None else self._visibility()

    def _remove(self, text: str) -> None:
        replicator = self.running.pop(text)
        self._limiters.pop(text, None)
        replicator.terminate()
        self._world.runtime.spawn(self._let_go(text, replicator))

    async def _let_go(self, text: str, replicator: Replicator) -> None:
        await replicator.wait_until_idle()
        try:
            await replicator.cursor.close()
        except MagnetarError as error:
            logger.debug("the cursor of %s for %s was closed with its ledger: %s", self._name, text, error)

    def _wake(self) -> None:
        for one in self.running.values():
            one.wake()
