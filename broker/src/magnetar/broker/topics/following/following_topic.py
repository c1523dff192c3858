"""A topic whose entries are written elsewhere: by the owner that a read-only broker follows, or at a shadow's source.

What its transactions hide is learnt from what is stored there. Deduplication, compaction and transactions' snapshots
are the writer's work.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from magnetar.broker.topics.topic import PersistentTopic
from magnetar.broker.transactions.buffers.followed_transactions import FollowedTransactions
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import EARLIEST, LATEST

if TYPE_CHECKING:
    from collections.abc import Callable

    from magnetar.broker.policies.model import EffectivePolicies
    from magnetar.broker.subscriptions.entry_reader import SubscriptionRuntime
    from magnetar.broker.transactions.buffers.snapshot_store import SnapshotStore
    from magnetar.core.ids import Position
    from magnetar.core.topic_name import TopicName
    from magnetar.managed.following.following_ledger import FollowingLedger

logger: Final = logging.getLogger(__name__)


class FollowingTopic(PersistentTopic):
    """Its ledger is a `FollowingLedger`."""

    __slots__ = ("transactions",)

    def __init__(
        self,
        name: TopicName,
        ledger: FollowingLedger,
        policies: EffectivePolicies,
        runtime: SubscriptionRuntime,
        on_lost: Callable[[PersistentTopic, MagnetarError], None],
    ) -> None:
        self.transactions: FollowedTransactions | None = None
        """What those of the writer hide; None: the cluster has no transactions."""
        super().__init__(name, ledger, policies, runtime, on_lost)
        ledger.on_lost = self._ledger_lost
        ledger.on_terminated = self._ledger_terminated

    async def prepare(self) -> None:
        """Know which messages transactions hide."""
        if self.transactions is not None:
            await self.transactions.recover()

    def follow_transactions(self, snapshots: SnapshotStore) -> None:
        """There are transactions in the cluster; before `prepare`. What follows an entry that cannot be looked at is
        shown to nobody: the topic is let go of, and loaded again."""
        self.transactions = FollowedTransactions(
            self.source or self.name, self.ledger, snapshots, self._spawn, super()._entries_available, self._ledger_lost
        )
        self._show_by(self.transactions.visibility)

    @property
    def max_read_position(self) -> Position:
        """Everything up to here may be sent to consumers."""
        return self.ledger.last_confirmed if self.transactions is None else self.transactions.max_read_position

    async def learn_end(self, wanted: Position = EARLIEST) -> bool:
        """Know everything that the writer has confirmed by now, if it answers. Else (False) what is known stays the
        end, and is told as that: a consumer that waits hears of the rest later."""
        try:
            knows = await self.ledger.catch_up()
            if knows and self.ledger.last_confirmed < wanted < LATEST:
                # It tells of its last message first. What open transactions hold, and markers, may come behind that.
                knows = await self.ledger.catch_up()
            if self.transactions is not None:
                await self.transactions.look_to_the_end()
        except MagnetarError as error:
            logger.info("%s: nobody says where it ends now: %s", self.name, error)
            return False
        return knows

    def maintain_deduplication(self) -> None:
        """Nothing: the writer deduplicates."""

    @property
    def compacts_by_itself(self) -> bool:
        """Never: ledgers and their retention are the writer's."""
        return False

    async def close(self) -> None:
        """Disconnect everybody, persist the positions, follow the writer no more."""
        await self._end_transactions()
        await super().close()

    async def abandon(self) -> None:
        """Disconnect everybody and write nothing: another broker may serve the topic by now."""
        await self._end_transactions()
        await super().abandon()

    async def delete(self) -> None:
        """Remove the subscriptions with their positions; nothing of the writer's."""
        await self._end_transactions()
        await super().delete()

    async def _end_transactions(self) -> None:
        transactions, self.transactions = self.transactions, None
        if transactions is not None:
            await transactions.close()

    def _entries_available(self) -> None:
        if self.transactions is not None:
            self.transactions.look()
        super()._entries_available()

    def _ledger_lost(self, error: MagnetarError) -> None:
        self._on_lost(self, error)

    def _ledger_terminated(self) -> None:
        for subscription in self.subscriptions.values():
            subscription.topic_terminated()
