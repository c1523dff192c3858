"""A topic that shows the entries of another one, its source, to subscriptions of its own.

Nothing is published to it: the source's replicator tells it where entries stand that are confirmed, and they are read
from the source's ledgers. (Pulsar: PIP-180, `ShadowManagedLedgerImpl`, `Producer.checkAndStartPublish`)
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from magnetar.broker.replicated_message import read_replicated
from magnetar.broker.source_position import MARKER_RECEIPT
from magnetar.broker.states import LoadedTopicState
from magnetar.broker.topics.following.following_topic import FollowingTopic
from magnetar.core.errors import MagnetarError
from magnetar.wire.pulsar.errors import PulsarError, ServerError

if TYPE_CHECKING:
    from collections.abc import Callable

    from magnetar.broker.policies.model import EffectivePolicies
    from magnetar.broker.subscriptions.entry_reader import SubscriptionRuntime
    from magnetar.broker.topics.producer import Producer, PublishBatch
    from magnetar.broker.topics.topic import PersistentTopic
    from magnetar.core.ids import Position
    from magnetar.core.topic_name import TopicName
    from magnetar.managed.following.shadow_ledger import ShadowLedger

logger: Final = logging.getLogger(__name__)


class ShadowTopic(FollowingTopic):
    """Its ledger is a `ShadowLedger`, its subscriptions and policies are its own."""

    __slots__ = ("_source", "shadow")

    def __init__(
        self,
        name: TopicName,
        ledger: ShadowLedger,
        policies: EffectivePolicies,
        runtime: SubscriptionRuntime,
        on_lost: Callable[[PersistentTopic, MagnetarError], None],
        source: TopicName,
    ) -> None:
        super().__init__(name, ledger, policies, runtime, on_lost)
        self.shadow = ledger
        self._source = source

    @property
    def source(self) -> TopicName:
        """The topic whose entries it shows."""
        return self._source

    def _ledger_terminated(self) -> None:
        self.disconnect_producers()
        super()._ledger_terminated()

    # --- what is told

    async def check_producer(self, producer: Producer) -> None:
        """Raises PulsarError when limits keep a client out. The source's replicator is let in: nothing is stored that a
        quota could forbid. Others are let in as well, as Apache's broker does, and each of their SENDs is refused."""
        if not producer.is_replicator:
            await super().check_producer(producer)

    def publish(self, batch: PublishBatch) -> None:
        """The source's replicator tells where entries stand. Each has its receipt at once: whoever loads the topic
        after this owner finds them at the bookies. Never waits."""
        producer = batch.producer
        if self.state is not LoadedTopicState.OPEN:
            producer.dropped(batch, MagnetarError("the topic is closing"))
            return
        positions = batch.positions
        assert positions is not None
        assert len(positions) == len(batch.payloads)
        self.messages_in += batch.message_count
        self.bytes_in += batch.size_bytes
        self.shadow.told(max(positions))
        if producer.identity.source_positions:
            for index, (position, payload) in enumerate(zip(positions, batch.payloads, strict=True)):
                message = read_replicated(payload)
                if message is not None and message.is_marker:
                    batch.highest_sequence_ids[index] = MARKER_RECEIPT
                else:
                    batch.sequence_ids[index], batch.highest_sequence_ids[index] = position
        producer.told(batch, positions)

    async def terminate(self) -> Position:
        """Refused: `NOT_ALLOWED_ERROR`."""
        raise PulsarError(
            ServerError.NOT_ALLOWED_ERROR, f"Terminate is not allowed on shadow topic: terminate {self._source}"
        )
