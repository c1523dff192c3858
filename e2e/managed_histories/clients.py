"""Producers and subscribers, and what they are promised."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from magnetar.broker.topics.deduplication import DuplicateStatus
from magnetar.broker.topics.producer import Producer, ProducerIdentity, PublishBatch
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.managed.cursors.cursor import Cursor
from magnetar.managed.errors import ManagedLedgerFenced

from e2e.managed_histories.promises import WHOLE_BATCH, Message, SubscriptionPromises
from e2e.managed_histories.world import Owner, World, payload_of

LOOKS_AFTER_PUBLISH: Final = 0.1
LOOKS_AFTER_ACKNOWLEDGEMENT: Final = 0.4
LOOKS_AFTER_CHANGE: Final = 0.7
"""Shares of receipts after which a fresh owner looks. Each look sees all promises, also older ones."""

UNANSWERED_MAX: Final = 12
"""Messages of a producer without a receipt, before it sends no new ones."""


class Nobody:
    """A `ProducerConnection`: what is written goes nowhere, as these producers are answered by calls."""

    def write(self, data: bytes) -> None:
        """See `ProducerConnection.write`."""

    def publish_finished(self, size_bytes: int) -> None:
        """See `ProducerConnection.publish_finished`."""

    def producer_disconnected(self, producer: Producer) -> None:
        """See `ProducerConnection.producer_disconnected`."""

    async def alive(self) -> bool:
        """See `ProducerConnection.alive`."""
        return True


class PublishingClient:
    """A producer that sends again, in order, what has no receipt, each time that it has to connect anew."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self._world = world
        self._next = 0
        self._unanswered: list[Message] = []
        self._owner: Owner | None = None
        self._connection = 0
        """Counts connections: what was sent on one of before has no answer any more."""

    @property
    def answered(self) -> bool:
        """Whether everything has its receipt."""
        return not self._unanswered

    def send(self, owner: Owner, count: int) -> None:
        """Send so many new messages to an owner, after what it has to send again."""
        again: list[Message] = []
        if self._owner is not owner or not owner.usable:
            self.disconnect()
            self._owner = owner
            again = list(self._unanswered)
        new = []
        if len(self._unanswered) < UNANSWERED_MAX:
            new = [(self.name, self._next + index) for index in range(count)]
        self._next += len(new)
        self._unanswered += new
        if again or new:
            self._world.note(self.name, f"sends {len(again)} again and {len(new)} new ones to {owner.name}")
            self._publish(owner, [*again, *new])

    def disconnect(self) -> None:
        """Hear nothing more of what was sent."""
        self._owner = None
        self._connection += 1

    def _publish(self, owner: Owner, messages: list[Message]) -> None:
        """As the broker: `publish_checked` and `Topic.publish`."""
        batch = self._batch(messages)
        statuses: list[DuplicateStatus] | None = None
        if owner.deduplication is not None:
            statuses = owner.deduplication.check(batch, ())
        connection = self._connection
        if statuses is None:
            self._append(owner, batch, connection)
            return
        start = 0
        while start < len(messages):
            status, end = statuses[start], start + 1
            while end < len(messages) and statuses[end] is status:
                end += 1
            if status is DuplicateStatus.NEW:
                self._append(owner, batch.part(start, end, end - start), connection)
            elif status is DuplicateStatus.STORED:
                self._world.note(self.name, f"hears that {messages[start:end]} are stored already")
                self._world.promises.stored.update(messages[start:end])
                if connection == self._connection:
                    self._receipt(messages[start:end])
                self._maybe_look(f"the receipt for the duplicates {messages[start:end]}")
            else:
                self._world.note(self.name, f"hears nothing certain of {messages[start:end]}")
                self.disconnect()
            start = end

    def _batch(self, messages: list[Message]) -> PublishBatch:
        batch = PublishBatch(Producer(ProducerIdentity(1, self.name), Nobody(), 0))
        for message in messages:
            batch.add(payload_of(message), message[1], 0, 1)
        return batch

    def _append(self, owner: Owner, batch: PublishBatch, connection: int) -> None:
        def done(error: MagnetarError | None, ledger_id: int, first_entry_id: int, context: object) -> None:
            assert isinstance(context, PublishBatch)
            self._appended(owner, error, (ledger_id, first_entry_id), context, connection)

        assert owner.ledger is not None
        owner.ledger.appends.append(batch.payloads, done, batch)

    def _appended(
        self, owner: Owner, error: MagnetarError | None, first: Position, batch: PublishBatch, connection: int
    ) -> None:
        """As `Topic._appended`."""
        messages = [(self.name, sequence_id) for sequence_id in batch.sequence_ids]
        assert owner.ledger is not None
        if owner in self._world.dead:
            return
        if error is not None:
            self._world.note(self.name, f"has no receipt for {messages}: {type(error).__name__}")
            if owner.deduplication is not None:
                owner.deduplication.append_failed()
            self.disconnect()
            if isinstance(error, ManagedLedgerFenced):
                owner.check_fence(error)
            else:
                owner.ledger.appends.ready_to_create_ledger()
            return
        if owner.deduplication is not None:
            owner.deduplication.batch_stored(batch, (first[0], first[1] + len(messages) - 1))
        for index, message in enumerate(messages):
            self._world.promises.published[first[0], first[1] + index] = message
        self._world.promises.stored.update(messages)
        if connection == self._connection:
            self._receipt(messages)
        self._world.note(self.name, f"has {messages} stored from {first}")
        self._maybe_look(f"the receipt for {messages}")

    def _receipt(self, messages: list[Message]) -> None:
        told = set(messages)
        self._unanswered = [message for message in self._unanswered if message not in told]

    def _maybe_look(self, why: str) -> None:
        if self._world.rng.random() < LOOKS_AFTER_PUBLISH:
            self._world.look_later(why)


class Subscriber:
    """All consumers of one subscription, at whichever owner they are."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self._world = world

    @property
    def promised(self) -> SubscriptionPromises:
        """What the subscription was promised."""
        return self._world.promises.subscriptions.setdefault(self.name, SubscriptionPromises())

    def cursor(self, owner: Owner) -> Cursor | None:
        """At this owner, if it is open there."""
        cursor = owner.ledger.cursors.get(self.name) if owner.ledger is not None and owner.usable else None
        return cursor if cursor is not None and not cursor.closed else None

    def acknowledge(self, owner: Owner) -> None:
        """Something, in one of the ways there are."""
        cursor, rng, promised = self.cursor(owner), self._world.rng, self.promised
        known = sorted(self._world.promises.published)[-40:]
        if cursor is None or promised.busy or not known:
            return
        assert owner.ledger is not None
        kind = rng.choice(("single", "single", "cumulative", "part"))
        position = rng.choice(known)
        if kind == "single":
            chosen = rng.sample(known, min(len(known), rng.randint(1, 4)))
            promised.requested(chosen)
            cursor.acknowledge(chosen)
            missing = [
                each for each in chosen if owner.ledger.ledgers.contains(each) and not cursor.is_acknowledged(each)
            ]
            if missing:
                self._world.violated(f"{owner.name}: {self.name} ignores the acknowledgement of {missing}")
        elif kind == "cumulative":
            promised.requested([each for each in self._world.promises.published if each <= position])
            cursor.acknowledge_cumulative(position)
        else:
            remaining = rng.randint(0, WHOLE_BATCH)
            promised.part_requested(position, remaining)
            cursor.acknowledge_batch_indexes(position, [remaining], 8)
        self._world.note(self.name, f"acknowledges {kind} at {owner.name}")

    def persist(self, owner: Owner) -> None:
        """Ask for a receipt."""
        cursor, promised = self.cursor(owner), self.promised
        if cursor is None or promised.busy:
            return
        view, epoch = owner.cursor_view(cursor), promised.epoch

        def done(error: MagnetarError | None) -> None:
            if owner in self._world.dead:
                return
            if error is not None:
                self._world.note(self.name, f"has no receipt of {owner.name}: {type(error).__name__}")
                owner.check_fence(error)
                self._maybe_look(LOOKS_AFTER_ACKNOWLEDGEMENT, f"no receipt of {self.name}")
            elif promised.epoch == epoch and not promised.busy and owner.number >= promised.trusted_from:
                promised.receipt(view)
                self._world.note(self.name, f"has a receipt of {owner.name} for {sorted(view.acknowledged)}")
                self._maybe_look(LOOKS_AFTER_ACKNOWLEDGEMENT, f"the receipt of {self.name}")

        cursor.persist(done)

    async def reset(self, owner: Owner) -> None:
        """Seek."""
        cursor, promises, rng = self.cursor(owner), self._world.promises, self._world.rng
        known = sorted(promises.published)
        if cursor is None or not known:
            return
        assert owner.ledger is not None
        target = rng.choice([EARLIEST, LATEST, rng.choice(known), rng.choice(known)])
        start = owner.ledger.start_of_reading(target)
        before = frozenset(each for each in known if each < start)
        await self._set(owner, "reset", before, lambda: cursor.reset(target))

    async def skip(self, owner: Owner) -> None:
        """Skip some messages, or all; counts as asked for by somebody."""
        cursor = self.cursor(owner)
        if cursor is None:
            return
        count = self._world.rng.choice((1, 3, 1_000))
        promised, epoch = self.promised, self.promised.epoch
        promised.busy = True
        try:
            coroutine = cursor.skip_entries(count) if count < 1_000 else cursor.clear_backlog()
            task = asyncio.ensure_future(coroutine)
            await asyncio.sleep(0)
            view = owner.cursor_view(cursor)
            promised.requested(sorted(view.acknowledged))
            await task
        except MagnetarError as error:
            self._failed(owner, "skip", error)
            return
        finally:
            promised.busy = False
        if promised.epoch == epoch and owner not in self._world.dead and owner.number >= promised.trusted_from:
            promised.receipt(view)
            self._world.note(self.name, f"has skipped {count} at {owner.name}")
            self._maybe_look(LOOKS_AFTER_CHANGE, f"{self.name} skipping")

    async def set_properties(self, owner: Owner) -> None:
        """Of the cursor's own."""
        cursor, promised = self.cursor(owner), self.promised
        if cursor is None:
            return
        wanted = {"number": str(self._world.rng.randint(0, 999))}
        if promised.properties:  # Else nobody knows what they are.
            promised.properties.append(wanted)
        promised.busy = True
        try:
            await cursor.set_cursor_properties(wanted)
        except MagnetarError as error:
            self._failed(owner, "properties", error)
        else:
            if owner not in self._world.dead:
                promised.properties = [wanted]
                self._world.note(self.name, f"has the properties {wanted}")
        finally:
            promised.busy = False

    async def subscribe(self, owner: Owner) -> None:
        """Open the cursor, or make it."""
        promised, world = self.promised, self._world
        assert owner.ledger is not None
        if promised.busy:
            return
        initial = world.rng.choice((EARLIEST, LATEST))
        before = promised.exists
        if before is not True:
            promised.exists = None
        promised.busy = True
        try:
            cursor = await owner.ledger.open_cursor(self.name, initial, cursor_properties={"number": "new"})
            view = owner.cursor_view(cursor)
        except MagnetarError as error:
            self._failed(owner, "subscribe", error)
            return
        finally:
            promised.busy = False
        if owner in world.dead:
            return
        world.note(self.name, f"is subscribed at {owner.name}, {len(view.acknowledged)} acknowledged")
        if before is not True:
            there = sorted(each for each in view.acknowledged if owner.ledger.ledgers.contains(each))
            if before is False and initial == EARLIEST and there:
                world.violated(f"{owner.name}: the new {self.name} has acknowledged {there}")
            # What an attempt before this one has made may be older than what is published now.
            world.promises.release()
            parts = dict(promised.possible_parts) if before is None else {}
            promised.set_done(view.acknowledged)
            promised.possible_parts = parts
            promised.properties = [view.properties]
            self._maybe_look(LOOKS_AFTER_CHANGE, f"{self.name} being subscribed")

    async def delete(self, owner: Owner) -> None:
        """Unsubscribe."""
        promised, world = self.promised, self._world
        if promised.busy or owner.ledger is None or self.name not in owner.ledger.cursors:
            return
        world.promises.release()
        promised.busy = True
        promised.epoch += 1
        promised.exists = None
        promised.sure, promised.sure_parts, promised.properties = frozenset(), {}, []
        try:
            await owner.ledger.delete_cursor(self.name)
        except MagnetarError as error:
            self._failed(owner, "delete", error)
        else:
            if owner not in world.dead:
                promised.exists = False
                world.note(self.name, f"is deleted at {owner.name}")
                self._maybe_look(LOOKS_AFTER_CHANGE, f"{self.name} being deleted")
        finally:
            promised.busy = False

    async def _set(
        self, owner: Owner, what: str, acknowledged: frozenset[Position], change: Callable[[], Awaitable[None]]
    ) -> None:
        promised = self.promised
        if promised.busy:
            return
        self._world.promises.release()
        promised.set_begun(acknowledged)
        epoch = promised.epoch
        promised.busy = True
        try:
            await change()
        except MagnetarError as error:
            self._failed(owner, what, error)
        else:
            if promised.epoch == epoch and owner not in self._world.dead:
                promised.set_done(acknowledged)
                self._world.note(self.name, f"has its {what} to {len(acknowledged)} acknowledged at {owner.name}")
        finally:
            promised.busy = False
            newest = self._world.owners[-1] if self._world.owners else owner
            promised.trusted_from = newest.number + (owner is not newest)
        self._maybe_look(LOOKS_AFTER_CHANGE, f"{what} of {self.name}")

    def _failed(self, owner: Owner, what: str, error: MagnetarError) -> None:
        self._world.note(self.name, f"has no {what} at {owner.name}: {type(error).__name__}")
        if owner not in self._world.dead:
            owner.check_fence(error)

    def _maybe_look(self, share: float, why: str) -> None:
        if self._world.rng.random() < share:
            self._world.look_later(why)
