"""Mistakes in what consumers are sent: each type's chooser, permits, what is held, what is sent again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from magnetar.broker.dispatch.consumer import Consumer
from magnetar.broker.dispatch.entry_batch import Assignment, EntryBatch
from magnetar.broker.dispatch.exclusive import ExclusiveDispatcher
from magnetar.broker.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.dispatch.pending_acknowledgements import PendingAcknowledgements
from magnetar.broker.dispatch.shared import SharedDispatcher
from magnetar.broker.dispatch.single_active import SingleActive
from magnetar.broker.subscriptions import filtering
from magnetar.broker.subscriptions.acknowledgement import Acknowledger
from magnetar.broker.subscriptions.pump import Pump
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.managed.cursors.cursor import Cursor
from magnetar.managed.redelivery_counts import RedeliveryCounts

from e2e.simulation.planting import Mistake, Patch, original


def exclusive_lets_a_second_one_in() -> list[Patch]:
    """A second Exclusive consumer takes the first one's place, which stays connected."""

    def add(self: ExclusiveDispatcher, consumer: Consumer) -> None:
        self.consumers[consumer] = 0
        self._active = consumer

    return [(ExclusiveDispatcher, "add", add)]


def failover_goes_on_where_it_is() -> list[Patch]:
    """Another consumer becomes active, and what the former one held is not read again."""

    def hand_over(self: Pump, *, wait: bool) -> None:
        del wait
        self.run()

    return [(Pump, "hand_over", hand_over)]


def standby_gets_its_share() -> list[Patch]:
    """Of several Failover consumers each gets a part."""
    right = original(SingleActive, "assign")

    def assign(self: SingleActive, batch: EntryBatch, *, replayed: bool) -> tuple[list[Assignment], EntryBatch]:
        assignments, left = right(self, batch, replayed=replayed)
        if assignments:
            position = batch.entries[0].entry_id
            consumers = list(self.consumers)
            assignments = [(consumers[position % len(consumers)], share) for _, share in assignments]
        return assignments, left

    return [(SingleActive, "assign", assign)]


def limit_for_one_receiver() -> list[Patch]:
    """The limit of unacknowledged messages bounds each read of the one receiver, and what is over it is not kept."""

    def limit(self: Consumer, unacked_messages_max: int) -> None:
        self.unacked_messages_max = unacked_messages_max

    def leave(self: Pump, dispatcher: Any, filtered: Any, left: EntryBatch, *, replayed: bool) -> None:
        if dispatcher.type.acknowledges_individually or dispatcher.room() <= 0:
            right(self, dispatcher, filtered, left, replayed=replayed)

    right = original(Pump, "_leave")
    return [(Consumer, "limit", limit), (Pump, "_leave", leave)]


def what_is_left_is_dropped() -> list[Patch]:
    """What was read and has no room is neither kept nor read again."""
    return [(Pump, "_leave", lambda self, dispatcher, filtered, left, *, replayed: None)]


def shared_sends_to_two() -> list[Patch]:
    """An entry goes to two Shared consumers where there are two with room."""
    right = original(SharedDispatcher, "assign")

    def assign(self: SharedDispatcher, batch: EntryBatch, *, replayed: bool) -> tuple[list[Assignment], EntryBatch]:
        assignments, left = right(self, batch, replayed=replayed)
        others = [each for each in self.consumers if each.room > 0 and each is not assignments[0][0]]
        if assignments and others:
            return [*assignments, (others[0], assignments[0][1].slice(0, 1))], left
        return assignments, left

    return [(SharedDispatcher, "assign", assign)]


def held_is_forgotten() -> list[Patch]:
    """What a consumer held that has left is nobody's: it stays so until the last one leaves."""
    right = original(Subscription, "remove_consumer")

    def remove_consumer(self: Subscription, consumer: Consumer) -> None:
        consumer.pending.take_all()
        right(self, consumer)

    return [(Subscription, "remove_consumer", remove_consumer)]


def turns_without_room() -> list[Patch]:
    """Consumers of a Shared subscription get their turn whether they have permits or not."""

    def rooms(self: SharedDispatcher) -> dict[Consumer, int]:
        return {consumer: max(1, consumer.room) for consumer in self.consumers}

    return [(SharedDispatcher, "_rooms", rooms)]


def no_draining() -> list[Patch]:
    """A key moves to another consumer while the former one holds entries of it."""
    right = original(KeySharedDispatcher, "_membership_changed")

    def membership_changed(self: KeySharedDispatcher) -> None:
        sticky, self.sticky = self.sticky, True
        right(self)
        self.sticky = sticky

    return [(KeySharedDispatcher, "_membership_changed", membership_changed)]


def keys_go_round() -> list[Patch]:
    """Key_Shared sends each entry to whoever has the most room."""
    right = original(KeySharedDispatcher, "assign")

    def assign(self: KeySharedDispatcher, batch: EntryBatch, *, replayed: bool) -> tuple[list[Assignment], EntryBatch]:
        best = max(self.consumers, key=lambda consumer: consumer.room)
        if best.room < sum(batch.message_counts):
            assignments, left = right(self, batch, replayed=replayed)
            return assignments, left
        return [(best, batch)], EntryBatch()

    return [(KeySharedDispatcher, "assign", assign)]


def new_ones_overtake() -> list[Patch]:
    """Key_Shared sends new entries of a key while earlier ones wait for their consumer."""

    def has_to_wait(self: KeySharedDispatcher, batch: EntryBatch, index: int, *, replayed: bool) -> bool:
        del replayed
        return batch.key_hashes[index] in self.draining

    return [(KeySharedDispatcher, "_has_to_wait", has_to_wait)]


def draining_ends_too_early() -> list[Patch]:
    """A key's draining ends with the first acknowledgement."""
    return [(PendingAcknowledgements, "holds_hash", lambda self, key_hash: False)]


def permits_are_not_counted() -> list[Patch]:
    """What is sent is not taken off the permits."""
    right = original(Consumer, "send_entries")

    def send_entries(self: Consumer, *arguments: Any, **named: Any) -> int:
        before = self.permits
        sent: int = right(self, *arguments, **named)
        self.permits = max(before, 1)
        return sent

    return [(Consumer, "send_entries", send_entries)]


def permits_wake_nobody() -> list[Patch]:
    """FLOW is noted, and nothing is sent before something else happens."""

    def flow(self: Subscription, consumer: Consumer, permits: int) -> None:
        before = consumer.permits
        consumer.allow(permits)
        if not before and not consumer.entries_out and self._pump is not None:
            self._pump.wake()

    return [(Subscription, "flow", flow)]


def blocked_for_good() -> list[Patch]:
    """A consumer that holds too much stays blocked."""

    def released(self: Consumer, messages: int) -> bool:
        self.unacked_messages -= messages
        return False

    return [(Consumer, "released", released)]


def asked_for_again_and_dropped() -> list[Patch]:
    """What a consumer asks for again is taken from it, and not sent."""
    return [
        (SharedDispatcher, "redeliver", lambda self, items: None),
        (KeySharedDispatcher, "redeliver", lambda self, items: None),
    ]


def redelivery_is_not_counted() -> list[Patch]:
    """The count stays 0."""
    return [(RedeliveryCounts, "increment", lambda self, positions: None)]


def deliveries_are_counted() -> list[Patch]:
    """The count grows with each delivery."""
    right = original(Cursor, "redelivery_counts")

    def redelivery_counts(self: Cursor, entries: Sequence[Any]) -> list[int] | None:
        counts: list[int] | None = right(self, entries)
        self.redelivered([entry.position for entry in entries])
        return counts

    return [(Cursor, "redelivery_counts", redelivery_counts)]


def counts_go_with_any_consumer() -> list[Patch]:
    """Counts are forgotten when anybody acknowledges anything."""
    return [(RedeliveryCounts, "forget", lambda self, position: self._counts.clear())]


def parts_of_batches_come_again() -> list[Patch]:
    """A batch is always sent as if nothing of it was acknowledged."""
    right = original(filtering, "filter_entries")

    def filter_entries(*arguments: Any) -> Any:
        filtered = right(*arguments)
        filtered.ack_sets.clear()
        return filtered

    from magnetar.broker.subscriptions import pump

    return [(pump, "filter_entries", filter_entries)]


def others_acknowledgements_free_nobody() -> list[Patch]:
    """A consumer's acknowledgement of what another one holds is not taken."""
    right = original(Acknowledger, "individual_shared")

    def individual_shared(self: Acknowledger, consumer: Consumer, ack: Any, dispatcher: Any) -> bool:
        if any(position not in consumer.pending for position in ack.positions):
            return False
        return bool(right(self, consumer, ack, dispatcher))

    return [(Acknowledger, "individual_shared", individual_shared)]


DISPATCH_MISTAKES: Final[dict[str, Mistake]] = {
    "asked-for-again-and-dropped": asked_for_again_and_dropped,
    "blocked-for-good": blocked_for_good,
    "counts-are-forgotten": counts_go_with_any_consumer,
    "deliveries-are-counted": deliveries_are_counted,
    "draining-ends-too-early": draining_ends_too_early,
    "exclusive-lets-a-second-one-in": exclusive_lets_a_second_one_in,
    "failover-goes-on-where-it-is": failover_goes_on_where_it_is,
    "held-is-forgotten": held_is_forgotten,
    "keys-go-round": keys_go_round,
    "limit-for-one-receiver": limit_for_one_receiver,
    "new-ones-overtake": new_ones_overtake,
    "no-draining": no_draining,
    "others-acknowledgements-are-lost": others_acknowledgements_free_nobody,
    "parts-of-batches-come-again": parts_of_batches_come_again,
    "permits-are-not-counted": permits_are_not_counted,
    "permits-wake-nobody": permits_wake_nobody,
    "redelivery-is-not-counted": redelivery_is_not_counted,
    "shared-sends-to-two": shared_sends_to_two,
    "standby-gets-its-share": standby_gets_its_share,
    "turns-without-room": turns_without_room,
    "what-is-left-is-dropped": what_is_left_is_dropped,
}
