"""What tells shadow topics of the entries of their source, which they read where these stand.

A shadow topic is one of the same cluster, with subscriptions of its own. The cursors of these replicators are in memory
only, and begin at the end: what a shadow topic was not told of, it finds by itself when it is loaded.

Facts: Pulsar `ShadowReplicator`, `PersistentTopic.checkShadowReplication`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from magnetar.broker import replicator_names as names
from magnetar.broker.replication.outgoing import ShadowOutgoing
from magnetar.broker.replication.running_replicators import RunningReplicators
from magnetar.broker.replication.states import SchemaUnknown
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import LATEST
from magnetar.core.topic_name import PERSISTENT, InvalidTopicName, TopicName

if TYPE_CHECKING:
    from magnetar.broker.policies.limiter import RateLimiter
    from magnetar.broker.policies.model import EffectivePolicies
    from magnetar.broker.replication.replicator import Replicator
    from magnetar.broker.replication.world import ReplicationWorld
    from magnetar.client.relay import RelayProducer, RelayReceiver
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


class ShadowReplicators(RunningReplicators):
    """Those of one loaded topic, by the names of its shadow topics."""

    def follow(self, policies: EffectivePolicies, group_limiters: tuple[RateLimiter, ...]) -> None:
        """These policies hold from now on: begin with shadow topics that are new, and end with others."""
        wanted = self._wanted(policies)
        for text in [one for one in self.running if one not in wanted]:
            self._remove(text)
        for text, shadow in wanted.items():
            if text not in self.running:
                self._add(text, shadow)
            self._follow_one(text, policies, group_limiters)

    def close(self) -> None:
        """The topic is going."""
        for text in list(self.running):
            self._remove(text)
        self._leave()

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
        outgoing = ShadowOutgoing(world.settings().cluster_name)
        remote = _ShadowRemote(world, self._name, shadow)
        self.running[text] = replicator = self._made(f"its shadow {text}", cursor, outgoing, remote)
        replicator.start()

    def _remove(self, text: str) -> None:
        replicator = self._end(text)
        assert replicator is not None
        self._world.runtime.spawn(self._let_go(text, replicator))

    async def _let_go(self, text: str, replicator: Replicator) -> None:
        await replicator.wait_until_idle()
        try:
            await replicator.cursor.close()
        except MagnetarError as error:
            logger.debug("the cursor of %s for %s was closed with its ledger: %s", self._name, text, error)
