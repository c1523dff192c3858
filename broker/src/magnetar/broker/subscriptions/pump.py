"""The pump: moves entries from a subscription's cursor to the consumers that its dispatcher chooses.

It works on a list of entries at a time and never waits: it reads what the cache has, and when the next entries have to
come from bookies it has one read run in the background and goes on when that is over.

Hot: compiled by mypyc (see CONTRIBUTING).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from magnetar.broker.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.dispatch.shared import SharedDispatcher
from magnetar.broker.policies.limiter import NO_LIMITERS, RateLimiter, allowance
from magnetar.broker.subscriptions.acknowledgement import Acknowledger
from magnetar.broker.subscriptions.delayed import DelayedEntries
from magnetar.broker.subscriptions.delayed_index import TopicDelays
from magnetar.broker.subscriptions.dispatch_turns import SLICE_BYTES
from magnetar.broker.subscriptions.entry_reader import EntryReader, ReadState, SubscriptionRuntime
from magnetar.broker.subscriptions.filtering import BatchesLeft, FilteredEntries, Slots, filter_entries
from magnetar.broker.subscriptions.hidden import without_held
from magnetar.wire.pulsar.enums import SubscriptionType

if TYPE_CHECKING:
    from collections.abc import Callable

    from magnetar.broker.dispatch.consumer import Consumer
    from magnetar.broker.dispatch.entry_batch import Dispatcher, EntryBatch
    from magnetar.broker.settings.broker import DispatchSettings
    from magnetar.broker.subscriptions.cursor import SubscriptionCursor
    from magnetar.broker.subscriptions.visibility import Visibility
    from magnetar.core.clock import TimerHandle
    from magnetar.core.ids import Position
    from magnetar.managed.entry import Entry

logger: Final = logging.getLogger(__name__)

UNREADABLE_MAX: Final = 1_000
"""Damaged entries that are put aside; with more, reading waits at the next one: then more than one disk page is bad."""

UNREADABLE_RETRY_SECONDS: Final = 15.0
"""When they are tried again, for a copy may be restored; as long as reads pause at most."""

_IDLE: Final = ReadState.IDLE

UNLIMITED: Final = 1 << 62

DUE_WAITING_MAX: Final = 10_000
"""Entries that wait to be sent (again) beside which no delayed ones are taken out, though they are due: some 2 MB."""

NOT_DELAYED: Final = -1
"""The time that `filter_entries` takes for "deliver everything now"."""

CAUGHT_UP_ENTRIES: Final = 1_000
"""A backlog below this is none to dispatch rates that leave tail readers alone
(`managedLedgerCursorBackloggedThreshold`)."""


class Pump:
    """One subscription's dispatch. `start` gives it a dispatcher, `stop` takes it away with all that it remembers.

    `acknowledger.unacked_messages` is what consumers hold; at the subscription's limit the pump is `blocked`.
    """

    __slots__ = (
        "_bytes_per_entry",
        "_caught_up",
        "_cursor",
        "_delays",
        "_dispatcher",
        "_due",
        "_handover",
        "_key_shared",
        "_limiters",
        "_messages_per_entry",
        "_overfull",
        "_pumping",
        "_runtime",
        "_settings",
        "_turns",
        "_unreadable_retry",
        "_waits",
        "acknowledger",
        "blocked",
        "damaged",
        "delayed",
        "held",
        "hidden",
        "reader",
        "stopped",
        "visibility",
    )

    def __init__(
        self,
        cursor: SubscriptionCursor,
        runtime: SubscriptionRuntime,
        settings: DispatchSettings,
        label: str,
        caught_up: Callable[[], None],
        delays: TopicDelays,
    ) -> None:
        self.blocked = False
        self.damaged: list[Position] | None = None  # Put aside, and tried again later.
        self.held = False
        """The broker's consumers hold so much, and this subscription's so much of it, that nothing more is sent."""
        self.hidden: dict[Position, int] | None = None
        """What open transactions have acknowledged: not sent, and not acknowledged either."""
        self.stopped = False
        self.visibility: Visibility | None = None
        """What the topic's transactions hide; None: nothing."""
        self.acknowledger = Acknowledger(cursor)
        self.delayed = DelayedEntries(runtime.clock, runtime.call_later, self._delayed_due, delays)
        self.reader = EntryReader(cursor, runtime, self, label)
        self._cursor = cursor
        self._runtime = runtime
        self._settings = settings
        self._limiters: tuple[RateLimiter, ...] = NO_LIMITERS
        self._delays = True
        self._caught_up = caught_up
        self._dispatcher: Dispatcher | None = None
        self._key_shared: KeySharedDispatcher | None = None
        self._pumping = False
        self._due = False
        """Delayed entries are due, and wait until fewer others do."""
        self._overfull = False
        """Nothing new is read until all that is acknowledged can be stored again."""
        self._turns = runtime.turns
        self._waits = False
        """For its turn; until then nothing is sent."""
        self._handover: TimerHandle | None = None
        self._unreadable_retry: TimerHandle | None = None
        self._messages_per_entry = 1.0
        self._bytes_per_entry = 1024.0

    @property
    def idle(self) -> bool:
        """Nothing of it goes on: without a dispatcher it may be forgotten."""
        return not self._pumping and self.reader.state is _IDLE

    def hide(self, hidden: dict[Position, int] | None) -> None:
        """What stands in here is held by open transactions, from now on."""
        self.hidden = hidden
        self.acknowledger.hidden = hidden

    @property
    def slots(self) -> Slots | None:
        """Key_Shared: how keys become slots."""
        return self._key_shared.selector if self._key_shared is not None else None

    def follow(self, settings: DispatchSettings, limiters: tuple[RateLimiter, ...], *, delays: bool) -> None:
        """Other policies hold from now on; without `delays` everything is delivered at once."""
        self.reader.follow(settings)
        self._settings = settings
        if isinstance(self._dispatcher, SharedDispatcher):
            self._dispatcher.round_robin_messages_max = settings.round_robin_messages_max
        if self._key_shared is not None:
            self._key_shared.limit(settings.look_ahead_per_consumer_max, settings.look_ahead_max)
        if limiters != self._limiters:
            for limiter in self._limiters:
                limiter.forget(self.run)
            self._limiters = limiters
        self._delays = delays
        if delays:
            self.delayed.end_hurry()
        elif len(self.delayed) and self._dispatcher is not None:
            self.delayed.hurry()
            self._delayed_due()
        # Also when the limit is lower than what is held: `unblock` tells when there is less.
        self.blocked = 0 < settings.unacked_messages_per_subscription_max <= self.acknowledger.unacked_messages
        self.wake()

    def start(self, dispatcher: Dispatcher) -> None:
        """Send by this dispatcher, from the first unacknowledged entry on."""
        self._dispatcher = dispatcher
        self._key_shared = dispatcher if isinstance(dispatcher, KeySharedDispatcher) else None
        self.reader.rewind()

    def stop(self) -> None:
        """Nobody is left to send to."""
        if self._dispatcher is not None:
            self._dispatcher.clear_waiting()
        self._dispatcher = self._key_shared = None
        self.blocked = self.held = False
        for limiter in self._limiters:
            limiter.forget(self.run)
        self.delayed.clear()
        self._due = False
        self.reader.drop()
        for timer in (self._handover, self._unreadable_retry):
            if timer is not None:
                timer.cancel()
        self.damaged = self._unreadable_retry = self._handover = None
        self._waits = False
        self._turns.leave(self)

    def let_go(self) -> None:
        """Stop for good. What refers to each other here, and to the subscription with its cursor, would else wait for
        the collector of cycles."""
        self.stop()
        self.reader.let_go()
        self.delayed.let_go()
        self._caught_up = _nothing

    def hand_over(self, *, wait: bool) -> None:
        """Another consumer receives: begin at the first unacknowledged entry.

        With `wait`, the former one may still acknowledge; some patience saves duplicates.
        """
        self.reader.rewind()
        if self._handover is not None:
            wait = True
            self._handover.cancel()
            self._handover = None
        if wait and self._settings.failover_delay_ms > 0:
            self._handover = self._runtime.call_later(self._settings.failover_delay_ms / 1000, self._handed_over)

    def unblock(self) -> bool:
        """True when dispatch may go on that waited for acknowledgements."""
        ends = False
        if self._overfull and self._cursor.state_fits:
            self._overfull = False
            ends = True
        limit = self._settings.unacked_messages_per_subscription_max
        if self.blocked and self.acknowledger.unacked_messages <= limit // 2:
            self.blocked = False
            ends = True
        return ends

    def wake(self) -> None:
        """Consumers may have got room."""
        if self._dispatcher is not None:
            self._dispatcher.wake()
            self.run()

    def run(self) -> None:
        """Send what can be sent: there are new entries, or somebody has room again."""
        dispatcher = self._dispatcher
        if dispatcher is None or self.stopped or self._pumping or self._waits or self.reader.state is not _IDLE:
            return
        self._pumping = True
        try:
            more = self._run(dispatcher)
        finally:
            self._pumping = False
        if more and self._dispatcher is not None:
            self._waits = True
            self._turns.wait(self)

    def turn(self) -> None:
        """DispatchTurns: it is this subscription's turn."""
        self._waits = False
        self.run()

    def _run(self, dispatcher: Dispatcher) -> bool:
        """Dispatch until something is missing. True when only the slice or the turn is over."""
        settings, turns = self._settings, self._turns
        spent_bytes = 0
        while turns.left_bytes > 0 and (spent_bytes < SLICE_BYTES or not turns.waited_for):
            if self.blocked or self.held or self._handover is not None or self._dispatcher is not dispatcher:
                return False
            if self._due and dispatcher.waiting < DUE_WAITING_MAX:
                spent_bytes += turns.take_due(self._take_due(dispatcher), self.delayed.looks)
            may_wait = dispatcher.waiting and not self.reader.replay_backoff.pausing
            spent_bytes += turns.look(len(dispatcher.consumers))
            room = dispatcher.room()
            if not may_wait and room <= 0:
                return False
            read_bytes_max = settings.read_bytes_max
            if self._limiters:
                allowed, allowed_bytes = self._allowance()
                if allowed <= 0:
                    return False
                room = min(room, allowed)
                read_bytes_max = min(read_bytes_max, allowed_bytes)
            else:
                allowed = UNLIMITED
            if may_wait:
                positions = dispatcher.take_replay(self._replay_entries_max(allowed, read_bytes_max))
                if positions:
                    turns.take(0, len(positions))
                    self.reader.replay(positions)
                    return False
            room = min(room, self._headroom())
            if room <= 0 or self._held_up(dispatcher):
                return False
            count = min(settings.read_entries_max, max(1, int(room / self._messages_per_entry)))
            entries = self._cursor.read_cached(count, read_bytes_max)
            if entries is None:
                turns.take(0, count)
                self.reader.read(count, read_bytes_max)
                return False
            if not entries:
                self._caught_up()
                return False
            spent_bytes += self._dispatch(dispatcher, self._visible(entries), replayed=False)
        return True

    def entries_read(self, entries: list[Entry]) -> None:
        """EntryReader: read ahead."""
        if self._dispatcher is not None:
            self._dispatch(self._dispatcher, self._visible(entries), replayed=False)

    def entries_replayed(self, entries: list[Entry]) -> None:
        """EntryReader: read again."""
        if self._dispatcher is not None:
            self._dispatcher.replay_finished(failed=False)
            self._dispatch(self._dispatcher, entries, replayed=True)

    def replay_failed(self) -> None:
        """EntryReader: not read; they go on waiting."""
        if self._dispatcher is not None:
            self._dispatcher.replay_finished(failed=True)

    def unreadable(self, position: Position, *, replayed: bool) -> bool:
        """EntryReader: a damaged entry. Shared consumers are promised no order, so it is put aside and tried again
        later; where order is promised, by subscription or by key, everything waits for it."""
        dispatcher = self._dispatcher
        aside = self.damaged or []
        if dispatcher is None or dispatcher.type is not SubscriptionType.SHARED or len(aside) >= UNREADABLE_MAX:
            return False
        if replayed:
            dispatcher.acknowledged(None, position, 0)
        else:
            self._cursor.skip_to((position[0], position[1] + 1))
        self.damaged = [*aside, position]
        if self._unreadable_retry is None:
            self._unreadable_retry = self._runtime.call_later(UNREADABLE_RETRY_SECONDS, self._try_unreadable)
        return True

    def read_ended(self) -> None:
        """EntryReader: free again."""
        self.run()

    def _held_up(self, dispatcher: Dispatcher) -> bool:
        """Whether nothing new is read now, be it that all of it comes after the beginning of an open transaction."""
        paused = self._settings.pauses_on_ack_state and dispatcher.type.acknowledges_individually
        self._overfull = paused and not self._cursor.state_fits
        if self._overfull or self.delayed.must_wait() or self.reader.read_backoff.pausing:
            return True
        return self.visibility is not None and self._cursor.read_position >= self.visibility.hidden_from

    def _visible(self, entries: list[Entry]) -> list[Entry]:
        """Those before the oldest open transaction; the others are read when it has ended."""
        if self.visibility is None or not entries or not self.visibility.hides(entries[-1].position):
            return entries
        self._cursor.skip_to(self.visibility.hidden_from)
        return self.visibility.cut(entries)

    def _dispatch(self, dispatcher: Dispatcher, entries: list[Entry], *, replayed: bool) -> int:
        """Send entries to whom the dispatcher chooses. Returns what this counts for, in bytes."""
        return self._turns.take(self._send_chosen(dispatcher, entries, replayed=replayed), len(entries))

    def _send_chosen(self, dispatcher: Dispatcher, entries: list[Entry], *, replayed: bool) -> int:
        """Returns the bytes."""
        batches: BatchesLeft = self._cursor
        if self.hidden:
            entries, batches = without_held(entries, self._cursor, self.hidden)
        if not entries:
            return 0
        shared = dispatcher.type.acknowledges_individually
        slots = self._key_shared.selector if self._key_shared is not None else None
        now_ms = self._runtime.clock.now_ms()
        delays_at_ms = NOT_DELAYED
        if shared and self._delays:
            delays_at_ms = now_ms if replayed else self.delayed.passed_ms(now_ms)
        filtered = filter_entries(
            entries,
            batches,
            delays_at_ms,
            slots,
            self._runtime.limits.settings.delay_clamped_ms,
            None if self.visibility is None else self.visibility.aborted,
        )
        for (ledger_id, entry_id), error in filtered.unreadable:
            logger.warning("skipping entry %d:%d: %s", ledger_id, entry_id, error)
        if filtered.markers:
            self.acknowledger.markers(filtered)
        if filtered.delayed:
            for deliver_at_ms, position, key_hash in filtered.delayed:
                self.delayed.add(deliver_at_ms, position, key_hash)
            self.delayed.put_aside(now_ms)
        batch = filtered.batch
        if not batch.entries:
            return 0
        self._measure(filtered)
        assignments, left = dispatcher.assign(batch, replayed=replayed)
        for consumer, share in assignments:
            self._send(consumer, share, filtered, dispatcher if shared else None)
            consumer.last_consumed_ms = now_ms
        if self._limiters:
            self._spend(assignments)
        if left.entries:
            self._leave(dispatcher, filtered, left, replayed=replayed)
        return filtered.size_bytes

    def _send(
        self, consumer: Consumer, share: EntryBatch, filtered: FilteredEntries, holding: Dispatcher | None
    ) -> None:
        entries = share.entries
        ack_sets: list[list[int] | None] | None = None
        if filtered.ack_sets:
            known = filtered.ack_sets
            ack_sets = [known.get((entry.ledger_id, entry.entry_id)) for entry in entries]
        if filtered.batch.has_chunks:
            consumer.chunks_out += sum([entry.metadata().num_chunks > 1 for entry in entries])
        if holding is None:
            consumer.send_entries(entries, share.message_counts, None, ack_sets)
            return
        # Before it is written: whoever hears of the write must find it accounted for.
        total = self.acknowledger.hold(consumer, share, holding)
        if 0 < self._settings.unacked_messages_per_subscription_max <= total:
            self.blocked = True
        counts = self._cursor.redelivery_counts(entries) if self._settings.redeliveries_told else None
        consumer.send_entries(entries, share.message_counts, counts, ack_sets)

    def _leave(self, dispatcher: Dispatcher, filtered: FilteredEntries, left: EntryBatch, *, replayed: bool) -> None:
        """Entries without a consumer. Those at the end of what was read ahead need not be kept when nobody has room, or
        there is one receiver: the cursor goes back to the first of them."""
        batch = filtered.batch
        unsent = 0
        one_receiver = not dispatcher.type.acknowledges_individually
        if not replayed and not filtered.delayed and (one_receiver or dispatcher.room() <= 0):
            while unsent < len(left.entries) and left.entries[-1 - unsent] is batch.entries[-1 - unsent]:
                unsent += 1
        if unsent:
            first = left.entries[-unsent]
            self._cursor.skip_to((first.ledger_id, first.entry_id))
        if unsent < len(left.entries):
            dispatcher.keep(left.slice(0, len(left.entries) - unsent))

    def _measure(self, filtered: FilteredEntries) -> None:
        """Keep the averages that reads are planned by."""
        count = len(filtered.batch.entries)
        messages = sum(filtered.batch.message_counts)
        self._messages_per_entry = 0.8 * self._messages_per_entry + 0.2 * max(1.0, messages / count)
        self._bytes_per_entry = 0.8 * self._bytes_per_entry + 0.2 * (filtered.size_bytes / count)

    def _allowance(self) -> tuple[int, int]:
        """Messages and bytes that dispatch rates let pass now. Without any, `run` is called when there are some."""
        tail_readers_too = self._runtime.limits.settings.dispatch_limits_caught_up
        if not tail_readers_too and self._cursor.backlog_entries < CAUGHT_UP_ENTRIES:
            return UNLIMITED, UNLIMITED
        return allowance(self._limiters, self.run)

    def _spend(self, assignments: list[tuple[Consumer, EntryBatch]]) -> None:
        """Take what was sent off the dispatch rates."""
        messages = 0
        size_bytes = 0
        as_batches = self._runtime.limits.settings.dispatch_counts_batches
        for _, share in assignments:
            messages += len(share.entries) if as_batches else sum(share.message_counts)
            size_bytes += sum([len(entry.data) for entry in share.entries])
        for limiter in self._limiters:
            limiter.take(messages, size_bytes)

    def _headroom(self) -> int:
        """Messages that consumers may hold before the pump is blocked."""
        limit = self._settings.unacked_messages_per_subscription_max
        return limit - self.acknowledger.unacked_messages if limit > 0 else UNLIMITED

    def _replay_entries_max(self, messages_max: int, size_bytes_max: int) -> int:
        by_size = int(size_bytes_max / max(1.0, self._bytes_per_entry))
        by_rate = int(messages_max / self._messages_per_entry)
        return max(1, min(self._settings.read_entries_max, by_size, by_rate, self._headroom()))

    def _handed_over(self) -> None:
        self._handover = None
        self.reader.rewind()
        self.run()

    def _try_unreadable(self) -> None:
        aside, self.damaged = self.damaged or [], None
        self._unreadable_retry = None
        if self._dispatcher is not None:
            self._dispatcher.redeliver([(position, 0) for position in aside])
            self.run()

    def _delayed_due(self) -> None:
        self._due = self._dispatcher is not None
        self.run()

    def _take_due(self, dispatcher: Dispatcher) -> int:
        """Have some entries sent whose time has come; the timer stands at the next ones. Returns how many."""
        self._due = False
        now_ms = self._runtime.clock.now_ms()
        items = self.delayed.take_due(now_ms)
        self.delayed.arm(now_ms)
        if items and self._key_shared is not None:
            slot_of_hash = self._key_shared.selector.slot_of_hash
            items = [(position, slot_of_hash(key_hash)) for position, key_hash in items]
        dispatcher.redeliver(items)
        return len(items)


def _nothing() -> None:
    """The subscription has let go of its pump."""
