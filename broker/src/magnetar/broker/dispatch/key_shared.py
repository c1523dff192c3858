"""Key_Shared: the entries of one key go to one consumer, in order, also while consumers come and go.

Each key falls into a slot ("key hash"), each slot has an owner. Order is kept by three rules, unless the client allowed
otherwise:

* While an entry of a slot waits (its owner has no room, or it is to be sent again) later ones wait behind it.
* When a slot moves to another consumer while the former one holds entries of it unacknowledged, the slot is draining:
  nothing of it is sent until those are acknowledged or their holder leaves (Pulsar's PIP-379).
* Entries that wait are asked for again in their order.

Reading on past waiting entries lets the other consumers work; how far is bounded.

What waits is kept by slot, whoever owns it; each consumer has a queue of the first ones only, of the slots that it owns
and that do not drain. So consumers that come and go move the slots, however many entries wait.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
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

SLOTS_ASKED_MAX: Final = 1_000
"""So many slots are asked for one by one when consumers came or went, a microsecond or two each. For more the owners of
all 65 536 are listed: up to 15 ms, and half a megabyte for that time."""


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

    def owners(self) -> list[Consumer | None]:
        """The owner of each slot, by slot: for those who would ask for thousands."""
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
        self._slots: dict[int, list[Position]] = {}
        """The entries of each slot that wait, as a heap, whoever owns the slot; the first one waits for certain, others
        may be acknowledged."""
        self._ready: dict[Consumer, RedeliveryQueue] = {}
        """The first entry of each slot that can be sent once its owner has room."""
        self._waiting_per_hash: dict[int, int] = {}
        self._queued: dict[Position, int] = {}
        """The slot of each entry that waits; without those that are read just now."""
        self._waiting = 0
        self._in_flight: list[tuple[Position, int]] = []
        self._stale = False
        """Consumers came or went: who owns what is looked at when it is needed next, once for all of them. Until then
        nothing is ready."""

    @property
    def unsettled(self) -> bool:
        """Whether consumers came or went since it was last seen who owns what."""
        return self._stale

    @property
    def draining(self) -> dict[int, Consumer]:
        """The slots that drain, each with the consumer that holds entries of it."""
        self.settle()
        return self._draining

    @property
    def active(self) -> Consumer | None:
        """None: several consumers receive at a time."""
        return None

    @property
    def waiting(self) -> int:
        """Entries that wait to be sent (again)."""
        return self._waiting

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
        if self._waiting >= waiting_max:
            return 0
        total = 0
        for consumer in self.consumers:
            room = consumer.room
            if room > 0:
                total += room
        return total

    def assign(self, batch: EntryBatch, *, replayed: bool) -> tuple[list[Assignment], EntryBatch]:
        """Each entry to the owner of its slot, if it has room and nothing of the slot has to go first."""
        self.settle()
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
        heap = self._slots.get(key_hash)
        if heap is None:
            return False
        entry = batch.entries[index]
        return heap[0] < (entry.ledger_id, entry.entry_id)

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
        queued, slots = self._queued, self._slots
        for position, key_hash in items:
            before = len(queued)
            queued.setdefault(position, key_hash)
            if len(queued) == before:
                continue
            self._count(key_hash)
            heap = slots.get(key_hash)
            if heap is None:
                slots[key_hash] = [position]
                self._first_changed(key_hash, None, position)
                continue
            first = heap[0]
            heappush(heap, position)
            if position < first:
                self._first_changed(key_hash, first, position)

    def take_replay(self, count_max: int) -> list[Position]:
        """The oldest ones of each consumer that has room."""
        self.settle()
        taken: list[tuple[Position, int]] = []
        for consumer in self.consumers:
            room = consumer.room
            if room <= 0:
                continue
            queue = self._ready.get(consumer)
            if queue is not None and len(taken) < count_max:
                self._take(queue, min(room, count_max - len(taken)), taken)
        taken.sort()
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
        """It need not be sent again; a slot whose last entry this was ends its draining. True when somebody may be sent
        more than before, also because less waits."""
        if consumer is None:
            return self._discard(position)
        if self._stale:
            return True  # Its slot may have been about to drain: who owns what is looked at first.
        if self._draining.get(key_hash) is not consumer or consumer.pending.holds_hash(key_hash):
            return False
        del self._draining[key_hash]
        waiting = self._slots.get(key_hash)
        if waiting is not None:
            self._first_changed(key_hash, None, waiting[0])
        return True

    def wake(self) -> None:
        """Nothing is put aside for lack of room: each owner has its own queue."""

    def clear_waiting(self) -> None:
        """Forget what waits."""
        self._slots.clear()
        self._ready.clear()
        self._waiting_per_hash.clear()
        self._queued.clear()
        self._waiting = 0
        self._in_flight = []

    def settle(self) -> None:
        """See who owns what, after consumers came or went; each use does so that needs to know."""
        if self._stale:
            self._stale = False
            self._membership_changed()

    def _membership_changed(self) -> None:
        self._draining.clear()
        drains = not self.sticky and not self.allow_out_of_order
        slots = len(self._slots)
        if drains:
            for consumer in self.consumers:
                slots += len(consumer.pending.per_hash)
        selector = self.selector
        owners = selector.owners() if slots > SLOTS_ASKED_MAX else None
        if drains:
            for consumer in self.consumers:
                for key_hash in consumer.pending.per_hash:
                    owner = selector.owner(key_hash) if owners is None else owners[key_hash]
                    if owner is not consumer:
                        self._draining[key_hash] = consumer
        self._ready = {}
        for key_hash, heap in self._slots.items():
            if key_hash not in self._draining:
                owner = selector.owner(key_hash) if owners is None else owners[key_hash]
                if owner is not None:
                    self._queue_of(owner).add(heap[0], key_hash)

    def _first_changed(self, key_hash: int, before: Position | None, first: Position | None) -> None:
        """Another entry is the first one of its slot that waits, or none: so it is in the queue of the owner."""
        if self._stale or key_hash in self._draining:
            return
        owner = self.selector.owner(key_hash)
        if owner is None:
            return
        queue = self._queue_of(owner)
        if before is not None:
            queue.discard(before)
        if first is not None:
            queue.add(first, key_hash)

    def _queue_of(self, owner: Consumer) -> RedeliveryQueue:
        queue = self._ready.get(owner)
        if queue is None:
            queue = self._ready[owner] = RedeliveryQueue()
        return queue

    def _take(self, queue: RedeliveryQueue, count: int, taken: list[tuple[Position, int]]) -> None:
        """The smallest ones of a consumer's slots. The next one of a slot comes in the place of the one before it."""
        queued, slots = self._queued, self._slots
        for _ in range(count):
            item = queue.take_first()
            if item is None:
                return
            taken.append(item)
            position, key_hash = item
            del queued[position]
            heap = slots[key_hash]
            if len(heap) == 1:
                del slots[key_hash]
            elif self._skip_to_waiting(heap, key_hash):
                queue.add(heap[0], key_hash)

    def _skip_to_waiting(self, heap: list[Position], key_hash: int) -> bool:
        """The first one waits no more: whether another one of the slot does, which is first then."""
        queued = self._queued
        heappop(heap)
        while heap and queued.get(heap[0]) != key_hash:
            heappop(heap)
        if heap:
            return True
        del self._slots[key_hash]
        return False

    def _discard(self, position: Position) -> bool:
        """True when it did wait."""
        # By the hash that it waits under: whoever acknowledges it knows none.
        key_hash = self._queued.pop(position, None)
        if key_hash is None:
            return False
        self._uncount(key_hash)
        heap = self._slots[key_hash]
        if heap[0] == position:
            more = self._skip_to_waiting(heap, key_hash)
            self._first_changed(key_hash, position, heap[0] if more else None)
            return True
        # Places of others are given up lazily, but not so many that to skip them takes long.
        waiting = self._waiting_per_hash[key_hash]
        if len(heap) > 2 + waiting + waiting // 8:
            queued = self._queued
            heap = [one for one in dict.fromkeys(heap) if queued.get(one) == key_hash]
            heapify(heap)
            self._slots[key_hash] = heap
        return True

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
