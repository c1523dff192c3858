"""What Exclusive and Failover share: one consumer receives everything, and nothing is read ahead of its permits.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar.broker.dispatch.entry_batch import Assignment, EntryBatch

if TYPE_CHECKING:
    from magnetar.broker.dispatch.consumer import Consumer
    from magnetar.core.ids import Position


class SingleActive:
    """The sending half of a dispatcher with one receiver.

    It never keeps entries: what does not fit is the end of the batch, and the cursor goes back to it.
    """

    def __init__(self) -> None:
        self.consumers: dict[Consumer, int] = {}
        self._active: Consumer | None = None

    @property
    def unsettled(self) -> bool:
        """Nothing is owned."""
        return False

    @property
    def active(self) -> Consumer | None:
        """The consumer that receives messages; None while nobody is connected."""
        return self._active

    @property
    def waiting(self) -> int:
        """Nothing ever waits here."""
        return 0

    def room(self) -> int:
        """What the receiver may be sent."""
        return max(0, self._active.room) if self._active is not None else 0

    def assign(self, batch: EntryBatch, *, replayed: bool) -> tuple[list[Assignment], EntryBatch]:
        """Entries up to the one that uses up the permits; that one may overdraw them."""
        del replayed
        active = self._active
        budget = self.room()
        if active is None or budget <= 0:
            return [], batch
        counts = batch.message_counts
        if sum(counts) <= budget:
            return [(active, batch)], EntryBatch()
        end = 0
        while end < len(counts) and budget > 0:
            budget -= counts[end]
            end += 1
        return [(active, batch.slice(0, end))], batch.slice(end, len(counts))

    def keep(self, batch: EntryBatch) -> None:
        """Not needed: the cursor goes back instead."""

    def redeliver(self, items: list[tuple[Position, int]]) -> None:
        """Not needed: the cursor goes back instead."""

    def take_replay(self, count_max: int) -> list[Position]:
        """No entries: what is to be sent again is read again."""
        del count_max
        return []

    def replay_finished(self, *, failed: bool) -> None:
        """Nothing follows, as no entry is replayed."""

    def acknowledged(self, consumer: Consumer | None, position: Position, key_hash: int) -> bool:
        """False: an acknowledgement frees no other consumer."""
        del consumer, position, key_hash
        return False

    def wake(self) -> None:
        """Nothing was put aside."""

    def clear_waiting(self) -> None:
        """Nothing follows, as no entry waits."""


def tell_active(before: Consumer | None, active: Consumer | None, joining: Consumer | None) -> None:
    """Another consumer receives: the two hear of it for whom it is otherwise than before. One that is joining is told
    once its client knows that it is subscribed. The others know: to tell ten thousand of them at each of ten thousand
    changes would take minutes."""
    for consumer in (before, active):
        if consumer is not None and consumer is not joining and not consumer.closed:
            consumer.connection.active_consumer_changed(consumer, active=consumer is active)
