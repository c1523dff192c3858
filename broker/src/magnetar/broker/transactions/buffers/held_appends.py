"""Publishes that wait: of a topic while its first snapshot is written, of a producer while a coordinator is asked."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from magnetar.broker.slices import TimeSlice
from magnetar.broker.subscriptions.entry_reader import Spawn
from magnetar.broker.subscriptions.visibility import TransactionBits
from magnetar.broker.transactions.buffers.buffer import TransactionBuffer
from magnetar.core.errors import MagnetarError

logger: Final = logging.getLogger(__name__)


class WaitingProducer(Protocol):
    """A producer, as far as its batches wait."""

    batches_waiting: int

    def dropped(self, batch: Any, error: MagnetarError) -> None:
        """The batch is not stored; the client sends it again."""
        ...


class TransactionalBatch(Protocol):
    """What one producer sends at once."""

    @property
    def producer(self) -> WaitingProducer: ...
    @property
    def transactions(self) -> Sequence[TransactionBits | None] | None: ...


Batch = TypeVar("Batch", bound=TransactionalBatch)


class DoubtedBatches(Generic[Batch]):
    """Batches of which it is not known whether their transactions are open, with what their producers send behind.

    Nobody looks at them before that, for duplicates either: what counts then is their place among the others. Bounded
    by the bytes that connections may have unanswered."""

    __slots__ = ("_buffer", "_disconnect", "_passing", "_publish", "_spawn", "_waiting")

    def __init__(
        self,
        buffer: TransactionBuffer,
        spawn: Spawn,
        publish: Callable[[Batch], None],
        disconnect: Callable[[Any], None],
    ) -> None:
        """A batch is published once that is known; else its producer is disconnected."""
        self._buffer = buffer
        self._spawn = spawn
        self._publish = publish
        self._disconnect = disconnect
        self._waiting: dict[WaitingProducer, deque[Batch]] = {}
        self._passing: Batch | None = None
        """The one that is published now, as it has waited."""

    def take(self, batch: Batch) -> bool:
        """True when the batch has to wait: it is published later. False: it is the caller's to publish."""
        if batch is self._passing:
            return False
        producer = batch.producer
        waiting = self._waiting.get(producer)
        if waiting is None:
            if not self._buffer.doubts(batch.transactions or ()):
                return False
            waiting = self._waiting[producer] = deque()
            self._spawn(self._work_off(producer, waiting))
        producer.batches_waiting += 1
        waiting.append(batch)
        return True

    def drop_all(self, error: MagnetarError) -> None:
        """Nothing of it is stored: clients send again what waits."""
        for producer in list(self._waiting):
            self._drop(producer, error)

    async def _work_off(self, producer: WaitingProducer, waiting: deque[Batch]) -> None:
        problem = MagnetarError("it is not known whether a transaction is open")
        try:
            while waiting and self._waiting.get(producer) is waiting:
                await self._pass(producer, waiting)
        except (MagnetarError, TimeoutError) as error:
            logger.warning("%s: a producer reconnects as nobody tells what is open: %r", self._buffer.topic, error)
        finally:
            if self._waiting.get(producer) is waiting:
                left = bool(waiting)
                # Clients keep what has no receipt: they come back and send it again, in order.
                self._drop(producer, problem)
                if left:
                    self._disconnect(producer)

    async def _pass(self, producer: WaitingProducer, waiting: deque[Batch]) -> None:
        """As many as one turn allows, once it is known what the first one needs."""
        turn = TimeSlice()
        if doubts := self._buffer.doubts(waiting[0].transactions or ()):
            await self._buffer.settle(doubts)
            turn = TimeSlice()
            if waiting and self._buffer.doubts(waiting[0].transactions or ()):
                raise MagnetarError("more transactions in one read than are remembered")
        while waiting:
            batch = self._passing = waiting.popleft()
            producer.batches_waiting -= 1
            try:
                self._publish(batch)
            finally:
                self._passing = None
            if turn.over:
                await turn.pause()
                return
            if waiting and self._buffer.doubts(waiting[0].transactions or ()):
                return

    def _drop(self, producer: WaitingProducer, error: MagnetarError) -> None:
        batches = self._waiting.pop(producer)
        producer.batches_waiting -= len(batches)
        dropped = list(batches)
        batches.clear()  # Whoever works them off may be in the middle.
        for batch in dropped:
            producer.dropped(batch, error)


class HeldAppends(Generic[Batch]):
    """The batches of one topic that wait for its first snapshot: they are appended after it, in order. Bounded by the
    bytes that connections may have unanswered.

    Those without transactions wait, too: a producer's receipts come in the order of its SENDs."""

    __slots__ = ("_append", "_buffer", "_doubted", "_drop", "_failed", "_held", "_spawn")

    def __init__(
        self,
        buffer: TransactionBuffer,
        spawn: Spawn,
        append: Callable[[Batch], None],
        drop: Callable[[Batch, MagnetarError], None],
        failed: Callable[[MagnetarError], None],
        doubted: DoubtedBatches[Batch],
    ) -> None:
        """A batch is appended or dropped; then `failed` hears once why. `doubted` come before."""
        self._buffer = buffer
        self._spawn = spawn
        self._append = append
        self._drop = drop
        self._failed = failed
        self._held: list[Batch] | None = None
        self._doubted = doubted

    def doubts(self, batch: Batch) -> bool:
        """True when the batch is not to be looked at yet: it is not known whether its transactions are open, or what
        its producer sent before waits for that. It is published later."""
        return (batch.transactions is not None or batch.producer.batches_waiting > 0) and self._doubted.take(batch)

    @property
    def holding(self) -> bool:
        """Whether everything has to wait."""
        return self._held is not None

    def take(self, batch: Batch, *, transactional: bool) -> bool:
        """True when the batch has to wait; false: it is the caller's to append."""
        if transactional:
            self._buffer.unstored += 1
        if self._held is not None:
            self._held.append(batch)
            return True
        if not transactional or not self._buffer.lacks_snapshot:
            return False
        self._held = [batch]
        self._spawn(self._begin())
        return True

    def drop_waiting(self, error: MagnetarError) -> None:
        """What was appended before them is not stored, so they may not be either: clients send all again, in order.
        What comes from now on waits as they did."""
        if self._held:
            held, self._held = self._held, []
            for batch in held:
                self._drop(batch, error)
        self._doubted.drop_all(error)

    def drop_all(self, error: MagnetarError) -> None:
        """Nothing of it is stored: clients send again what waits."""
        held, self._held = self._held or [], None
        for batch in held:
            self._drop(batch, error)

    def close(self, error: MagnetarError) -> None:
        """The topic is let go of, and its buffer with it."""
        self._buffer.close()
        self.drop_all(error)
        self._doubted.drop_all(error)

    async def _begin(self) -> None:
        try:
            await self._buffer.first_snapshot()
        except MagnetarError as error:
            self._give_up(error)
            return
        except BaseException:
            # Nothing may wait for ever, whatever went wrong.
            self._give_up(MagnetarError("the first snapshot was cut short"))
            raise
        held, self._held = self._held or [], None
        for batch in held:
            self._append(batch)

    def _give_up(self, error: MagnetarError) -> None:
        self.drop_all(error)
        self._failed(error)
