"""What an ACK does to a cursor and to what consumers hold.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from magnetar.broker.dispatch.pending_acknowledgements import PendingAcknowledgements
from magnetar.broker.subscriptions.filtering import FilteredEntries, unacknowledged
from magnetar.managed.entry_bitmap import value_of, words_of

if TYPE_CHECKING:
    from magnetar.broker.dispatch.consumer import Consumer
    from magnetar.broker.dispatch.entry_batch import Dispatcher, EntryBatch
    from magnetar.broker.subscriptions.cursor import SnapshotReceiver, SubscriptionCursor
    from magnetar.core.ids import Position
    from magnetar.wire.pulsar.command import Ack

SEARCHED_CONSUMERS_MAX: Final = 20
"""Of more consumers it is kept who holds each entry: an ACK may name any number of entries that others hold, and a turn
takes four thousand ids. To look at so many for each takes 10 milliseconds; to keep it, 0.2 microseconds an entry."""


class Acknowledger:
    """Applies individual acks for one subscription. `unacked_messages` is what all its consumers hold together."""

    __slots__ = (
        "_before",
        "_cursor",
        "_holders",
        "held_slots",
        "hidden",
        "snapshots",
        "unacked_messages",
    )

    def __init__(self, cursor: SubscriptionCursor) -> None:
        self._cursor = cursor
        self._holders: dict[Position, Consumer] | None = None
        """Who holds each entry that was sent while there were many consumers; None while there are few."""
        self._before: list[Consumer] = []
        """Who held entries when that began: few, and those entries are not in it."""
        self.unacked_messages = 0
        self.held_slots: dict[Position, int] = {}
        """Key_Shared: under which slots entries were sent that transactions hold, as far as that is known. The next
        dispatcher may cut keys into others."""
        self.hidden: dict[Position, int] | None = None
        """What open transactions hold: of that consumers have nothing to acknowledge."""
        self.snapshots: SnapshotReceiver | None = None
        """Who wants the snapshots that are met; None: the subscription is not replicated."""

    def hold(self, consumer: Consumer, share: EntryBatch, dispatcher: Dispatcher) -> int:
        """A consumer is about to be sent these. Returns how many messages all consumers hold together."""
        holders = self._kept(dispatcher)
        added = consumer.hold(share.entries, share.message_counts, share.key_hashes or None, holders)
        self.unacked_messages += added
        return self.unacked_messages

    def holder(self, position: Position, dispatcher: Dispatcher) -> Consumer | None:
        """Who was sent the entry, of all consumers. Ask the one that acknowledges it before: mostly it is that one."""
        holders = self._kept(dispatcher)
        if holders is None:
            for other in dispatcher.consumers:
                if position in other.pending:
                    return other
            return None
        found = holders.get(position)
        if found is None or position not in found.pending:  # Who left holds nothing, though it may still stand there.
            found = None
            for other in self._before:
                if position in other.pending:
                    return other
        return found

    def _kept(self, dispatcher: Dispatcher) -> dict[Position, Consumer] | None:
        """Who holds what, if there are many consumers by now."""
        consumers = dispatcher.consumers
        if len(consumers) <= SEARCHED_CONSUMERS_MAX:
            if self._holders is not None:
                self._holders = None
                self._before = []
        elif self._holders is None:
            self._holders = {}
            # Those to whom something was sent while there were few.
            self._before = [consumer for consumer in consumers if consumer.pending.messages]
        return self._holders

    def give_up(self, holder: Consumer, position: Position) -> int:
        """A consumer holds an entry no more. Returns how many messages that were, for the caller to count."""
        if self._holders is not None:
            self._holders.pop(position, None)
        return holder.pending.remove(position)

    def markers(self, filtered: FilteredEntries) -> None:
        """Entries that are of no concern to clients."""
        if filtered.snapshots is not None and self.snapshots is not None:
            # Before the mark passes them.
            self.snapshots.read(filtered.snapshots)
        self._cursor.acknowledge(filtered.markers)

    def cumulative(self, consumer: Consumer, ack: Ack) -> None:
        """Everything up to a position; an ack set leaves a part of that position's batch."""
        if not ack.positions:
            return
        # The furthest says it all. Clients send one.
        position = max(ack.positions)
        remaining = ack.ack_sets[ack.positions.index(position)] if ack.ack_sets is not None else None
        self._cursor.acknowledge_cumulative(position, remaining or None)
        consumer.messages_acknowledged += 1

    def individual(self, consumer: Consumer, ack: Ack) -> None:
        """Single positions where nobody keeps account of them (Exclusive, Failover)."""
        whole, parts = _split(ack)
        if whole:
            self._cursor.acknowledge(whole)
        for position, remaining, batch_size in parts:
            self._cursor.acknowledge_batch_indexes(position, remaining, batch_size)
        consumer.messages_acknowledged += len(ack.positions)

    def individual_shared(self, consumer: Consumer, ack: Ack, dispatcher: Dispatcher) -> bool:
        """Single positions of a Shared or Key_Shared subscription. True when somebody can be sent more than before."""
        whole, parts = _split(ack)
        freed = False
        for position, remaining, batch_size in parts:
            holder = consumer if position in consumer.pending else self.holder(position, dispatcher)
            held = self.hidden.get(position, 0) if self.hidden else 0
            if holder is not None and not held and self._cursor.remaining_ack_set(position) is None:
                # The first part of it: it was sent as a whole, and has no more messages than that.
                batch_size = holder.pending.messages[position]
            if self._cursor.acknowledge_batch_indexes(position, remaining, batch_size):
                freed |= self._release(consumer, position, dispatcher)
                continue
            left = self._cursor.remaining_ack_set(position)
            if holder is None or left is None:
                continue
            remaining_messages = unacknowledged(words_of(value_of(left) & ~held) if held else left)
            if not remaining_messages:
                freed |= self._release_from(holder, consumer, position, dispatcher)
                continue
            count = holder.pending.shrink(position, remaining_messages)
            self.unacked_messages -= count
            consumer.messages_acknowledged += count
            freed |= holder.released(count)
        if whole:
            pending = consumer.pending
            others = [position for position in whole if position not in pending]
            if others:
                others = self._of_others(others)
            self._cursor.acknowledge(whole)
            for position in whole:
                if position in pending:
                    freed |= self._release_from(consumer, consumer, position, dispatcher)
            for position in others:
                freed |= self._release(consumer, position, dispatcher)
        return freed

    def _of_others(self, positions: list[Position]) -> list[Position]:
        """Those that another consumer may have been sent: its holder is looked for. What nobody was sent, or is
        acknowledged already, would cost as much, and a client may name any number of these."""
        cursor = self._cursor
        read_position = cursor.read_position
        return [
            position
            for position in dict.fromkeys(positions)
            if position < read_position and not cursor.is_acknowledged(position)
        ]

    def take_back(self, consumer: Consumer, positions: list[Position] | None) -> tuple[list[tuple[Position, int]], int]:
        """Have a consumer hold these no more (None = anything).

        Returns those that it did hold, each with its key hash, and their messages.
        """
        pending = consumer.pending
        if positions is None:
            taken = pending.take_all()
            if self._holders is not None:
                for position, _ in taken:
                    self._holders.pop(position, None)
                if consumer in self._before:
                    self._before.remove(consumer)
            messages = consumer.unacked_messages
        else:
            taken = []
            messages = 0
            held = [position for position in positions if position in pending]
            for position in sorted(set(held)):
                taken.append((position, pending.hash_of(position)))
                messages += self.give_up(consumer, position)
        self.unacked_messages -= messages
        consumer.released(messages)
        return taken, messages

    def leave(self, consumer: Consumer) -> PendingAcknowledgements:
        """A consumer has left, and others stay. Returns what it held; call `given_back` for that."""
        held, consumer.pending = consumer.pending, PendingAcknowledgements()
        self.unacked_messages -= consumer.unacked_messages
        consumer.released(consumer.unacked_messages)
        if consumer in self._before:
            self._before.remove(consumer)
        return held

    def given_back(self, positions: list[Position]) -> None:
        """Who held them has left, and they are about to wait for another consumer."""
        holders = self._holders
        if holders is not None:
            for position in positions:
                holders.pop(position, None)

    def forget(self, consumer: Consumer) -> None:
        """Have a consumer hold nothing any more when the last one leaves, or all do: nobody else gets it."""
        self._holders = None
        self._before = []
        self.held_slots = {}
        self.unacked_messages -= consumer.unacked_messages
        consumer.released(consumer.unacked_messages)
        consumer.pending.clear()

    def take_acknowledged(self, consumers: list[Consumer], dispatcher: Dispatcher, entries_max: int) -> bool:
        """Entries were acknowledged by others than consumers: nobody holds those up to the mark any more.

        Lets go of so many at most. True when there were so many, and may be more."""
        mark_delete = self._cursor.mark_delete
        for consumer in consumers:
            held = [one for one in consumer.pending.messages if one <= mark_delete]
            for position in held[:entries_max]:
                self._release(consumer, position, dispatcher)
            entries_max -= len(held)
            if entries_max <= 0:
                return True
        return False

    def _release(self, consumer: Consumer, position: Position, dispatcher: Dispatcher) -> bool:
        """An entry is wholly acknowledged."""
        holder = consumer if position in consumer.pending else self.holder(position, dispatcher)
        if holder is None:
            return dispatcher.acknowledged(None, position, 0)
        return self._release_from(holder, consumer, position, dispatcher)

    def _release_from(self, holder: Consumer, consumer: Consumer, position: Position, dispatcher: Dispatcher) -> bool:
        key_hash = holder.pending.hash_of(position)
        messages = self.give_up(holder, position)
        self.unacked_messages -= messages
        consumer.messages_acknowledged += messages
        freed = holder.released(messages)
        return dispatcher.acknowledged(holder, position, key_hash) or freed


def _split(ack: Ack) -> tuple[list[Position], list[tuple[Position, list[int], int]]]:
    """Whole entries, and parts of batches (position, what remains, batch size)."""
    ack_sets = ack.ack_sets
    if ack_sets is None:
        return ack.positions, []
    sizes = ack.batch_sizes
    whole: list[Position] = []
    parts: list[tuple[Position, list[int], int]] = []
    for index, position in enumerate(ack.positions):
        if any(ack_sets[index]):
            parts.append((position, ack_sets[index], sizes[index] if sizes is not None else 0))
        else:
            whole.append(position)
    return whole, parts
