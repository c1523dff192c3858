"""The parts that a topic needs to take part in transactions."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol

from magnetar.broker.settings.transactions import TransactionSettings
from magnetar.broker.subscriptions.entry_reader import SubscriptionRuntime
from magnetar.broker.transactions.batched_writes import log_limits, pending_ack_limits
from magnetar.broker.transactions.buffers.buffer import TransactionBuffer
from magnetar.broker.transactions.buffers.snapshot_store import SnapshotStore
from magnetar.broker.transactions.inquiry import Doubt, Inquiries
from magnetar.broker.transactions.names import TransactionId
from magnetar.broker.transactions.pending_log import PendingAckLogs
from magnetar.broker.transactions.pending_topic import TopicPendingAcks
from magnetar.broker.transactions.standings import TransactionStandings
from magnetar.core.topic_name import TopicName
from magnetar.managed.factory import ManagedLedgerFactory
from magnetar.managed.managed_ledger import ManagedLedger


class PartakingTopic(Protocol):
    """A topic before it is loaded."""

    pending_acks: TopicPendingAcks | None
    buffer: TransactionBuffer | None

    @property
    def name(self) -> TopicName: ...
    @property
    def ledger(self) -> ManagedLedger: ...
    @property
    def of_broker(self) -> bool: ...

    def use_buffer(self, buffer: TransactionBuffer) -> None: ...


class UnloadedShadow(Protocol):
    """A shadow topic before it is loaded."""

    pending_acks: TopicPendingAcks | None

    @property
    def name(self) -> TopicName: ...
    @property
    def ledger(self) -> ManagedLedger: ...

    def follow_transactions(self, snapshots: SnapshotStore) -> None: ...


class TopicParts:
    """One for a broker. Topics of brokers take no part, and none does where transactions are off."""

    def __init__(
        self, ledgers: ManagedLedgerFactory, settings: TransactionSettings, runtime: SubscriptionRuntime
    ) -> None:
        self._settings = settings
        self._runtime = runtime
        self.log_limits = log_limits(settings)
        """Of the logs of coordinators."""
        limits = pending_ack_limits(settings)
        self._logs = PendingAckLogs(ledgers=ledgers, settings=settings, runtime=runtime, limits=limits)
        self._snapshots: SnapshotStore | None = None
        self._followed: SnapshotStore | None = None
        """Snapshots of topics that other topics are shadows of; opened for the first of them."""
        self._open_followed: Callable[[], SnapshotStore] | None = None
        self._inquiries: Inquiries | None = None
        self._standings: TransactionStandings | None = None

    def use_settings(self, settings: TransactionSettings) -> None:
        """Go on with other settings, of which only those differ that may change while a broker runs."""
        self.log_limits.enabled = settings.log_batched
        self._logs.limits.enabled = settings.pending_ack_batched

    def use_snapshots(self, snapshots: SnapshotStore, open_followed: Callable[[], SnapshotStore] | None = None) -> None:
        """Topics take transactional messages; before any is loaded. `open_followed` opens a store that is only read."""
        self._snapshots = snapshots
        self._open_followed = open_followed

    def use_inquiries(self, inquiries: Inquiries, standings: TransactionStandings | None) -> None:
        """Coordinators can be asked; before any topic is loaded."""
        self._inquiries = inquiries
        self._standings = standings

    def look_after(self, topic: PartakingTopic) -> Callable[[], Coroutine[Any, Any, None]] | None:
        """For the periodic check: what is to be done about transactions that stay open on a topic; None: nothing."""
        inquiries = self._inquiries
        if inquiries is None:
            return None
        doubts = []
        if (buffer := topic.buffer) is not None and (oldest := buffer.table.still_open()) is not None:
            doubts.append(Doubt(TransactionId(*oldest), str(topic.name), partial(buffer.abort, oldest)))
        if topic.pending_acks is not None:
            for handle, one in topic.pending_acks.still_open():
                where = f"{topic.name} / {handle.subscription.name}"
                doubts.append(Doubt(TransactionId(*one), where, partial(handle.abort, one)))
        return partial(inquiries.settle, doubts) if doubts else None

    def equip(self, topic: PartakingTopic) -> None:
        """Before the topic is prepared."""
        if not self._settings.enabled or topic.of_broker:
            return
        topic.pending_acks = TopicPendingAcks(topic.name, topic.ledger, self._logs, self._standings)
        if self._snapshots is not None:
            topic.use_buffer(
                TransactionBuffer(
                    topic.name, topic.ledger, self._snapshots, self._runtime, self._settings, self._standings
                )
            )

    def follow(self, topic: UnloadedShadow) -> None:
        """Before a shadow is prepared: it has subscriptions of its own, and its source's transactions."""
        if not self._settings.enabled:
            return
        topic.pending_acks = TopicPendingAcks(topic.name, topic.ledger, self._logs, self._standings)
        if self._open_followed is not None:
            if self._followed is None:
                self._followed = self._open_followed()
            topic.follow_transactions(self._followed)

    async def close(self) -> None:
        """Read and write no snapshots any more; before the broker's own client is closed."""
        for snapshots in (self._snapshots, self._followed):
            if snapshots is not None:
                await snapshots.close()
