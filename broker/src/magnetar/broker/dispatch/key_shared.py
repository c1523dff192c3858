"""Key_Shared: the entries of one key go to one consumer, in order, also while consumers come and go.

Each key falls into a slot ("key hash"), each slot has an owner. Order is kept by three rules, unless the client allowed
otherwise:

* While an entry of a slot waits (its owner has no room, or it is to be sent again) later ones wait behind it.
* When a slot moves to another consumer while the former one holds entries of it unacknowledged, the slot is draining:
  nothing of it is sent until those are acknowledged or their holder leaves (Pulsar's PIP-379).
* Entries that wait are asked for again in their order.

Reading on past waiting entries lets the other consumers work; how far is bounded.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from magnetar.broker.dispatch.entry_batch import Assignment, EntryBatch
from magnetar.broker.dispatch.redelivery import RedeliveryQueue
from magnetar.wire.pulsar.enums import SubscriptionType
from magnetar.wire.pulsar.errors import PulsarError, ServerError

if TYPE_CHECKING:
    from magnetar.broker.dispatch.consumer import Consumer, KeySharedPolicy
    from magnetar.core.ids import Position

WAITING_ENTRIES_MAX: Final = 200_000
"""Entries of a subscription that may wait where no setting says less, before reading on stops: some 40 MB."""


class Selector(Protocol):
    """Slots and their owners."""

    def slot(self, key: bytes) -> int:
        """The slot of a key, at least 1."""
        ...

    def slot_of_hash(self, key_hash: int) -> int:
        """The slot of a key, by its Murmur3 hash."""
        ...

    def add(self, consumer: Consumer) -> None:
        """Let a consumer own slots. Raises PulsarError(CONSUMER_ASSIGN_ERROR)."""
        ...

    def remove(self, consumer: Consumer) -> None:
        """Its slots go to others, or to nobody."""
        ...

    def owner(self, slot: int) -> Consumer | None:
        """Who gets the keys of the slot."""
        ...

    def ranges(self, consumer: Consumer) -> list[tuple[int, int]]:
        """The slots of a consumer, as inclusive ranges."""
        ...


class KeySharedDispatcher:
    """Owners of slots, slots that drain, and entries that wait."""

    def __init__(self, policy: KeySharedPolicy, selector: Selector) -> None:
        self.type = SubscriptionType.KEY_SHARED
        self.consumers: dict[Consumer, int] = {}
        self.sticky = policy.sticky
        self.allow_out_of_order = policy.allow_out_of_order
        self.selector: Selector = selector
        self._look_ahead_per_consumer_max = 0
        self._look_ahead_max = WAITING_ENTRIES_MAX
        self._came = 0
        self._draining: dict[int, Consumer] = {}
        self._ready: dict[Consumer, RedeliveryQueue] = {}
        self._unowned = RedeliveryQueue()
        self._behind_draining: dict[int, RedeliveryQueue] = {}
        self._waiting_per_hash: dict[int, int] = {}
        self._queued: dict[Position, int] = {}
        """The key hash of each entry in a queue, by which that queue is found."""
        self._waiting = 0
        self._in_flight: list[tuple[Position, int]] = []
        self._stale = False
        """Consumers came or went: who owns what is looked at when it is needed next, once for all of them."""
        self._unplaced: list[tuple[Position, int]] = []
        """What is to be sent again, and came meanwhile."""
        self._discarded: dict[Position, None] = {}
        """What was acknowledged meanwhile, though nobody held it."""

    @property
    def unsettled(self) -> bool:
        """Whether consumers came or went since it was last seen who owns what."""
        return self._stale

    @property
    def draining(self) -> dict[int, Consumer]:
        """The slots that drain, each with the consumer that holds entries of it."""
        self._settle()
        return self._draining

    @property
    def active(self) -> Consumer | None:
        """None: several consumers receive at a time."""
        return None

    @property
    def waiting(self) -> int:
        """Entries that wait to be sent (again)."""
        return self._waiting + len(self._unplaced)

    def limit(self, look_ahead_per_consumer_max: int, look_ahead_max: int) -> None:
        """How many entries may wait, for each consumer and in all, before reading on stops; 0: not limited so."""
        self._look_ahead_per_consumer_max = look_ahead_per_consumer_max
        self._look_ahead_max = min(look_ahead_max or WAITING_ENTRIES_MAX, WAITING_ENTRIES_MAX)

    def accepts(self, policy: KeySharedPolicy) -> bool:
        """Whether a consumer of this policy may join those that are connected."""
        return policy.sticky == self.sticky and policy.allow_out_of_order == self.allow_out_of_order

    def add(self, consumer: Consumer) -> None:
        """Let a consumer in; slots that move to it may have to drain first."""
        policy = consumer.identity.key_shared
        if policy is not None and not self.accepts(policy):
            raise PulsarError(
                ServerError.CONSUMER_BUSY, "Subscription is of different type: another Key_Shared mode is in use"
            )
        self.selector.add(consumer)
        self.consumers[consumer] = self._came
        self._came += 1
        self._stale = True

    def remove(self, consumer: Consumer) -> None:
        """Take a consumer out. The caller hands back what it held, before anything else is sent."""
        self.selector.remove(consumer)
        del self.consumers[consumer]
        self._stale = True

    def room(self) -> int:
        """What consumers may be sent, unless too much waits already."""
        waiting_max = self._look_ahead_max
        if self._look_ahead_per_consumer_max:
            waiting_max = min(waiting_max, self._look_ahead_per_consumer_max * len(self.consumers))
        if self.waiting >= waiting_max:
            return 0
        total = 0
        for consumer in self.consumers:
            room = consumer.room
            if room > 0:
                total += room
        return total

    def assign(self, batch: EntryBatch, *, replayed: bool) -> tuple[list[Assignment], EntryBatch]:
        """Each entry to the owner of its slot, if it has room and nothing of the slot has to go first."""
        self._settle()
        remaining: dict[Consumer, int] = {}
        shares: dict[Consumer, EntryBatch] = {}
        left = EntryBatch()
        held_back: set[int] = set()
        ordered = not self.allow_out_of_order
        owner_of = self.selector.owner
        for index, key_hash in enumerate(batch.key_hashes):
            owner = owner_of(key_hash)
            if owner is not None and owner not in remaining:
                remaining[owner] = owner.room
            if (
                owner is None
                or remaining[owner] <= 0
                or (ordered and (key_hash in held_back or self._has_to_wait(batch, index, replayed=replayed)))
            ):
                left.copy_one(batch, index)
                held_back.add(key_hash)
                continue
            share = shares.get(owner)
            if share is None:
                share = shares[owner] = EntryBatch()
            share.copy_one(batch, index)
            remaining[owner] -= batch.message_counts[index]
        return list(shares.items()), left

    def _has_to_wait(self, batch: EntryBatch, index: int, *, replayed: bool) -> bool:
        """Whether something of its key goes before an entry. What is read again has been first in its order, but its
        former consumer may have left meanwhile, and what that one held goes before it."""
        key_hash = batch.key_hashes[index]
        if key_hash in self._draining:
            return True
        if key_hash not in self._waiting_per_hash:
            return False
        if not replayed:
            return True
        entry = batch.entries[index]
        return self._queue_of(key_hash).holds_before((entry.ledger_id, entry.entry_id), key_hash)

    def keep(self, batch: EntryBatch) -> None:
        """Wait for the owner."""
        self.redeliver(
            [
                ((entry.ledger_id, entry.entry_id), key_hash)
                for entry, key_hash in zip(batch.entries, batch.key_hashes, strict=True)
            ]
        )

    def redeliver(self, items: list[tuple[Position, int]]) -> None:
        """Wait for the owner of the slot."""
        if self._stale:
            self._unplaced += items
            if self._discarded:
                # A transaction acknowledged them, and is aborted.
                for position, _ in items:
                    self._discarded.pop(position, None)
            return
        for position, key_hash in items:
            if self._queue_of(key_hash).add(position, key_hash):
                self._queued[position] = key_hash
                self._count(key_hash)

    def take_replay(self, count_max: int) -> list[Position]:
        """The oldest ones of each consumer that has room."""
        self._settle()
        taken: list[tuple[Position, int]] = []
        for consumer in self.consumers:
            room = consumer.room
            if room <= 0:
                continue
            queue = self._ready.get(consumer)
            if queue is not None and len(taken) < count_max:
                taken += queue.take(min(room, count_max - len(taken)))
        taken.sort()
        for position, _ in taken:
            self._queued.pop(position, None)
        self._in_flight = taken
        return [position for position, _ in taken]

    def replay_finished(self, *, failed: bool) -> None:
        """They are read: their slots are free for what comes next in order, which is them. Or they wait again."""
        in_flight, self._in_flight = self._in_flight, []
        for _, key_hash in in_flight:
            self._uncount(key_hash)
        if failed:
            self.redeliver(in_flight)

    def acknowledged(self, consumer: Consumer | None, position: Position, key_hash: int) -> bool:
        """It need not be sent again; a slot whose last entry this was ends its draining."""
        if consumer is None:
            if not self._stale:
                self._discard(position)
            elif self._unplaced or position in self._queued:
                self._discarded[position] = None
                if len(self._discarded) > WAITING_ENTRIES_MAX:
                    self._settle()
            return False
        if self._stale:
            return True  # Its slot may have been about to drain: who owns what is looked at first.
        if self._draining.get(key_hash) is not consumer or consumer.pending.holds_hash(key_hash):
            return False
        del self._draining[key_hash]
        waiting = self._behind_draining.pop(key_hash, None)
        if waiting is not None:
            self._move(waiting)
        return True

    def wake(self) -> None:
        """Nothing is put aside for lack of room: each owner has its own queue."""

    def clear_waiting(self) -> None:
        """Forget what waits."""
        self._ready.clear()
        self._unowned.clear()
        self._behind_draining.clear()
        self._waiting_per_hash.clear()
        self._queued.clear()
        self._waiting = 0
        self._in_flight = []
        self._unplaced = []
        self._discarded = {}

    def _settle(self) -> None:
        """See who owns what, after consumers came or went."""
        if not self._stale:
            return
        self._stale = False
        self._membership_changed()
        unplaced, self._unplaced = self._unplaced, []
        self.redeliver(unplaced)
        discarded, self._discarded = self._discarded, {}
        for position in discarded:
            self._discard(position)

    def _membership_changed(self) -> None:
        self._draining.clear()
        if not self.sticky and not self.allow_out_of_order:
            for consumer in self.consumers:
                for key_hash in consumer.pending.per_hash:
                    if self.selector.owner(key_hash) is not consumer:
                        self._draining[key_hash] = consumer
        queues = [*self._ready.values(), self._unowned, *self._behind_draining.values()]
        self._ready = {}
        self._unowned = RedeliveryQueue()
        self._behind_draining = {}
        for queue in queues:
            self._move(queue)

    def _move(self, queue: RedeliveryQueue) -> None:
        for position, key_hash in queue.take_all():
            self._queue_of(key_hash).add(position, key_hash)

    def _queue_of(self, key_hash: int) -> RedeliveryQueue:
        if key_hash in self._draining:
            return self._behind_draining.setdefault(key_hash, RedeliveryQueue())
        owner = self.selector.owner(key_hash)
        if owner is None:
            return self._unowned
        queue = self._ready.get(owner)
        if queue is None:
            queue = self._ready[owner] = RedeliveryQueue()
        return queue

    def _discard(self, position: Position) -> None:
        # By the hash that it waits under: whoever acknowledges it knows none.
        key_hash = self._queued.pop(position, None)
        if key_hash is not None and self._queue_of(key_hash).discard(position) is not None:
            self._uncount(key_hash)

    def _count(self, key_hash: int) -> None:
        self._waiting += 1
        self._waiting_per_hash[key_hash] = self._waiting_per_hash.get(key_hash, 0) + 1

    def _uncount(self, key_hash: int) -> None:
        self._waiting -= 1
        left = self._waiting_per_hash[key_hash] - 1
        if left:
            self._waiting_per_hash[key_hash] = left
        else:
            del self._waiting_per_hash[key_hash]
