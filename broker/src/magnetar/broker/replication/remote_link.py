"""One topic's way to one other cluster: a producer there, opened again whenever it is lost, until the way is ended.

What replicators of either kind have in common; each adds what it sends, and what becomes of what cannot be sent. Where
nobody uses a topic its ways rest, without producers: else two clusters would keep each other's topic for ever.

Facts: Pulsar `AbstractReplicator`, `PersistentTopic.closeReplProducersIfNoBacklog`.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

from magnetar.broker.replication.counters import Counters
from magnetar.broker.replication.states import REPLICATOR_TRANSITIONS, Reason, ReplicatorState, reason_of
from magnetar.core.backoff import Backoff
from magnetar.core.errors import MagnetarError
from magnetar.core.limits import MIB

if TYPE_CHECKING:
    from magnetar.broker.subscriptions.entry_reader import SubscriptionRuntime
    from magnetar.client.relay import RelayProducer, RelayReceiver
    from magnetar.core.clock import TimerHandle

logger: Final = logging.getLogger(__name__)

PAUSE_SECONDS_MIN: Final = 0.1
PAUSE_SECONDS_MAX: Final = 60.0
"""Between two attempts to connect, as Apache's replicators."""

SENT_ENTRIES_MAX: Final = 100
"""Entries that are sent in one go; Apache's default of `dispatcherMaxReadBatchSize`."""

WINDOW_BYTES_MAX: Final = 16 * MIB
"""Sent and without a receipt, of one replicator; the entries of one read may come on top."""

COSTS_AS_ENTRIES: Final = 3
"""What an entry counts for in a turn, beside one that is dispatched: its metadata is rewritten."""


class RemoteProducers(Protocol):
    """Where a topic's messages are to go."""

    async def producer(self, receiver: RelayReceiver) -> RelayProducer:
        """A producer, not open yet. `NoRemote`: nothing says where the cluster is."""
        ...


class RemoteLink(ABC):
    """Connects to one remote cluster until it is terminated."""

    keeps: ClassVar[bool] = True
    """Whether it brings everything in the end; else it drops what the other cluster cannot take."""

    def __init__(self, label: str, remote: RemoteProducers, runtime: SubscriptionRuntime) -> None:
        self.label = label
        self.state = ReplicatorState.DISCONNECTED
        self.reason = Reason.NONE
        self.detail = ""
        """What the error said that `reason` stands for."""
        self.counters = Counters()
        self.connected_since_ms = 0
        self._producers = remote
        self._runtime = runtime
        self._producer: RelayProducer | None = None
        self._resting = False
        """Nobody uses the topic: it does not connect before `rouse`."""
        self._retry_timer: TimerHandle | None = None
        self._pauses = Backoff(PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX)

    # --- for the topic

    @property
    def connected(self) -> bool:
        """Whether it has a producer at the remote cluster."""
        return self.state is ReplicatorState.STARTED

    @property
    def address(self) -> str:
        """Where it is connected to; empty when it is not."""
        return "" if self._producer is None else self._producer.remote_address

    @property
    @abstractmethod
    def backlog(self) -> int:
        """Entries that the remote cluster is still to get."""

    @abstractmethod
    def delay_seconds(self) -> float:
        """The age of the oldest message that is known to be on its way; 0 when nothing is."""

    def start(self) -> None:
        """Connect, and send what there is."""
        self._connect()

    async def rest(self) -> None:
        """Nobody uses the topic, and the remote cluster has everything: be without a producer there until `rouse`.

        One that is about to connect, or begins again, is left alone."""
        if self.backlog:
            return
        if self.state is ReplicatorState.STARTED:
            self._resting = True
            self._begin_to_disconnect(Reason.IDLE, "")
            await self._disconnect()
        elif self.state is ReplicatorState.DISCONNECTED:
            self._resting = True
            self._cancel_retry()
            self._stand_still(Reason.IDLE, "")

    def rouse(self) -> None:
        """Somebody uses the topic."""
        if self._resting:
            self._resting = False
            self._connect()  # While it disconnects, the end of that connects.

    def terminate(self) -> None:
        """Send nothing more."""
        if self.state in (ReplicatorState.TERMINATING, ReplicatorState.TERMINATED):
            return
        self._before_loss()
        self._become(ReplicatorState.TERMINATING)
        self._cancel_retry()
        self._let_go()
        self._runtime.spawn(self._end())

    async def _end(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.close()
        self._become(ReplicatorState.TERMINATED)

    # --- what each kind adds

    @abstractmethod
    def _opened(self) -> None:
        """There is a producer now."""

    @abstractmethod
    def _before_loss(self) -> None:
        """The producer goes, or is gone: whatever it has said counts."""

    @abstractmethod
    def _after_loss(self) -> None:
        """There is no producer any more: what was sent without a receipt may have arrived or not."""

    @abstractmethod
    def _let_go(self) -> None:
        """It ends: no timer calls it, and nothing waits for it."""

    # --- connecting

    def _connect(self) -> None:
        self._retry_timer = None
        if self.state is ReplicatorState.DISCONNECTED:
            self._become(ReplicatorState.STARTING)
            self._runtime.spawn(self._open())

    async def _open(self) -> None:
        producer: RelayProducer | None = None
        try:
            producer = await self._producers.producer(self)
            await producer.open()
        except MagnetarError as error:
            if self.state is ReplicatorState.STARTING:
                self._disconnected(error)
            return
        if self.state is not ReplicatorState.STARTING:
            await producer.close()
            return
        self._producer = producer
        self.connected_since_ms = self._runtime.clock.now_ms()
        self._become(ReplicatorState.STARTED)
        self._clear_reason()
        self._opened()

    @abstractmethod
    def relayed(self, positions: list[tuple[int, int]]) -> None:
        """Entries have their receipts."""

    def relay_ended(self, error: MagnetarError) -> None:
        """The producer is gone."""
        if self.state is ReplicatorState.STARTED:
            self._producer = None
            self._disconnected(error)

    def _disconnected(self, error: MagnetarError) -> None:
        """From now on without a producer; another attempt follows."""
        self._before_loss()
        self._become(ReplicatorState.DISCONNECTED)
        self._stand_still(reason_of(error), str(error))
        self._after_loss()
        self._retry_later()

    def _begin_again(self, reason: Reason, detail: str) -> None:
        """Close the producer, and open another one."""
        self._begin_to_disconnect(reason, detail)
        self._runtime.spawn(self._disconnect())

    def _begin_to_disconnect(self, reason: Reason, detail: str) -> None:
        self._before_loss()
        self._become(ReplicatorState.DISCONNECTING)
        self._stand_still(reason, detail)

    async def _disconnect(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.close()
        if self.state is ReplicatorState.DISCONNECTING:
            self._become(ReplicatorState.DISCONNECTED)
            self._after_loss()
            if not self._resting:
                self._retry_later()

    def _retry_later(self) -> None:
        self._retry_timer = self._runtime.call_later(self._pauses.next_seconds(), self._connect)

    def _cancel_retry(self) -> None:
        if self._retry_timer is not None:
            self._retry_timer.cancel()
            self._retry_timer = None

    # --- state

    def _stand_still(self, reason: Reason, detail: str) -> None:
        if (reason, detail) != (self.reason, self.detail) and detail:
            logger.warning("%s stands still, %s: %s", self.label, reason.value, detail)
        self.reason, self.detail = reason, detail

    def _clear_reason(self) -> None:
        self.reason, self.detail = Reason.NONE, ""

    def _become(self, state: ReplicatorState) -> None:
        self.state = REPLICATOR_TRANSITIONS.step(self.state, state)
