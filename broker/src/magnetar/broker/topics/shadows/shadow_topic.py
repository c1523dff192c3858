"""A topic that shows the entries of another one, its source, to subscriptions of its own.

Nothing is published to it: the source's replicator tells it where entries stand that are confirmed, and they are read
from the source's ledgers. (Pulsar: PIP-180, `ShadowManagedLedgerImpl`, `Producer.checkAndStartPublish`)
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from magnetar.broker.source_position import MARKER_RECEIPT, read_replicated
from magnetar.broker.states import LoadedTopicState
from magnetar.broker.topics.topic import PersistentTopic
from magnetar.broker.transactions.buffers.followed_transactions import FollowedTransactions
from magnetar.core.errors import MagnetarError
from magnetar.wire.pulsar.errors import PulsarError, ServerError

if TYPE_CHECKING:
    from collections.abc import Callable

    from magnetar.broker.policies.model import EffectivePolicies
    from magnetar.broker.subscriptions.cursor import SubscriptionCursor
    from magnetar.broker.subscriptions.entry_reader import SubscriptionRuntime
    from magnetar.broker.subscriptions.subscription import Subscription
    from magnetar.broker.topics.producer import Producer, PublishBatch
    from magnetar.broker.transactions.buffers.snapshot_store import SnapshotStore
    from magnetar.core.ids import Position
    from magnetar.core.topic_name import TopicName
    from magnetar.managed.following.shadow_ledger import ShadowLedger

logger: Final = logging.getLogger(__name__)


class ShadowTopic(PersistentTopic):
    """Its ledger is a `ShadowLedger`, its subscriptions and policies are its own."""

    __slots__ = ("_source", "shadow", "transactions")

    def __init__(
        self,
        name: TopicName,
        ledger: ShadowLedger,
        policies: EffectivePolicies,
        runtime: SubscriptionRuntime,
        on_lost: Callable[[PersistentTopic, MagnetarError], None],
        source: TopicName,
    ) -> None:
        self.transactions: FollowedTransactions | None = None
        """What those of the source hide; None: the broker has no transactions."""
        super().__init__(name, ledger, policies, runtime, on_lost)
        self.shadow = ledger
        self._source = source
        ledger.on_lost = self._ledger_lost
        ledger.on_terminated = self._ledger_terminated

    @property
    def source(self) -> TopicName:
        """The topic whose entries it shows."""
        return self._source

    async def prepare(self) -> None:
        """Know which messages transactions hide. Deduplication is the source's."""
        if self.transactions is not None:
            await self.transactions.recover()

    def follow_transactions(self, snapshots: SnapshotStore) -> None:
        """There are transactions in the cluster; before `prepare`."""
        self.transactions = FollowedTransactions(
            self._source, self.ledger, snapshots, self._spawn, super()._entries_available, self._ledger_lost
        )
        for subscription in self.subscriptions.values():
            subscription.visibility = self.transactions.visibility

    def _ledger_lost(self, error: MagnetarError) -> None:
        self._on_lost(self, error)

    def _ledger_terminated(self) -> None:
        self.disconnect_producers()
        for subscription in self.subscriptions.values():
            subscription.topic_terminated()

    @property
    def max_read_position(self) -> Position:
        """Everything up to here may be sent to consumers."""
        return self.ledger.last_confirmed if self.transactions is None else self.transactions.max_read_position

    def _entries_available(self) -> None:
        if self.transactions is not None:
            self.transactions.look()
        super()._entries_available()

    def _subscription(self, name: str, cursor: SubscriptionCursor) -> Subscription:
        subscription = super()._subscription(name, cursor)
        if self.transactions is not None:
            subscription.visibility = self.transactions.visibility
        return subscription

    async def learn_end(self) -> None:
        """Know everything that the source's owner has confirmed by now, if it answers. Else what bookies vouch for and
        what was told is the end: a consumer that waits hears of the rest later."""
        try:
            await self.shadow.catch_up()
            if self.transactions is not None:
                await self.transactions.look_to_the_end()
        except MagnetarError as error:
            logger.info("%s: nobody says where its source ends now: %s", self.name, error)

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

    def maintain_deduplication(self) -> None:
        """Nothing: positions only ever go forward, and the source deduplicates."""

    @property
    def compacts_by_itself(self) -> bool:
        """Never: its ledgers and their retention are the source's."""
        return False

    async def terminate(self) -> Position:
        """Refused: `NOT_ALLOWED_ERROR`."""
        raise PulsarError(
            ServerError.NOT_ALLOWED_ERROR, f"Terminate is not allowed on shadow topic: terminate {self._source}"
        )

    # --- the end

    async def close(self) -> None:
        """Disconnect everybody, persist the positions, follow the source no more."""
        await self._end_transactions()
        await super().close()

    async def abandon(self) -> None:
        """Disconnect everybody and write nothing: another broker may own the topic by now."""
        await self._end_transactions()
        await super().abandon()

    async def delete(self) -> None:
        """Remove the subscriptions with their positions; nothing of the source."""
        await self._end_transactions()
        await super().delete()

    async def _end_transactions(self) -> None:
        transactions, self.transactions = self.transactions, None
        if transactions is not None:
            await transactions.close()
