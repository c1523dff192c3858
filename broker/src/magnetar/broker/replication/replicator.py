"""One topic's messages on their way to one other cluster.

It reads by a cursor, sends lists of entries, and acknowledges each entry that has its receipt. When the connection ends
it goes back to the mark-delete position and sends again, in order. A read that is under way then is dropped when it
comes (`subscriptions/entry_reader.py`), and another one follows: no read can be lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final, Protocol

from magnetar.broker.policies.limiter import NO_LIMIT, NO_LIMITERS, RateLimiter
from magnetar.broker.replication.outgoing import Outgoing, ShadowOutgoing, Skipped, sent_totals, stored_bytes
from magnetar.broker.replication.remote_link import (
    COSTS_AS_ENTRIES,
    PAUSE_SECONDS_MAX,
    PAUSE_SECONDS_MIN,
    SENT_ENTRIES_MAX,
    WINDOW_BYTES_MAX,
    RemoteLink,
    RemoteProducers,
)
from magnetar.broker.replication.states import Reason, ReplicatorState, SchemaUnknown, reason_of
from magnetar.broker.subscriptions.dispatch_turns import SLICE_BYTES
from magnetar.broker.subscriptions.entry_reader import EntryReader, ReadState, SubscriptionRuntime
from magnetar.core.backoff import Backoff
from magnetar.core.errors import MagnetarError
from magnetar.core.limits import KIB, MIB
from magnetar.wire.pulsar.errors import PulsarError

if TYPE_CHECKING:
    from magnetar.broker.subscriptions.cursor import SubscriptionCursor
    from magnetar.broker.subscriptions.visibility import Visibility
    from magnetar.client.relay import RelayProducer
    from magnetar.client.unanswered import RelayedEntry
    from magnetar.core.clock import TimerHandle
    from magnetar.core.ids import Position
    from magnetar.managed.entry import Entry
    from magnetar.wire.pulsar.generated.pulsar_api_pb2 import Schema

logger: Final = logging.getLogger(__name__)

READ_BYTES_MAX: Final = 5 * MIB
"""Apache's default of `dispatcherMaxReadSizeBytes`."""

TURN_MARKERS_BYTES_MAX: Final = 64 * KIB
"""Markers of the remote cluster that are read in one turn, and one more: reading these costs some 10 ms."""

MARKER_BYTES: Final = 256
"""What each marker counts for beside its size."""

WATCHDOG_SECONDS: Final = 30.0
"""Without any progress for this long, though there is a backlog and nothing says why, it begins again."""

SCHEMAS_MAX: Final = 1_000
"""Versions of schemas whose number at the remote is remembered; topics with more ask again."""


class Remote(RemoteProducers, Protocol):
    """The other cluster, as one replicator needs it."""

    async def schema(self, version: bytes) -> Schema:
        """A version of the topic's schema in this cluster. `SchemaUnknown` when it is gone, or never was."""
        ...


class Replicator(RemoteLink):
    """Sends what is stored to one remote cluster until it is terminated."""

    def __init__(
        self,
        label: str,
        cursor: SubscriptionCursor,
        outgoing: Outgoing | ShadowOutgoing,
        remote: Remote,
        runtime: SubscriptionRuntime,
        visibility: Callable[[], Visibility | None],
        window_entries_max: Callable[[], int],
    ) -> None:
        super().__init__(label, remote, runtime)
        self.cursor = cursor
        self.ttl_seconds = 0
        self.on_marker: Callable[[Position, bytes], None] | None = None
        """Told of the markers by which the remote cluster asks or tells something, as stored; None: nobody is."""
        self._outgoing = outgoing
        self._remote = remote
        self._visibility = visibility
        self._window_entries_max = window_entries_max
        self._limiters: tuple[RateLimiter, ...] = NO_LIMITERS
        self._reader = EntryReader(cursor, runtime, self, label)
        self._schemas: dict[bytes, bytes] = {}
        self._registering = False
        self._markers_bytes = 0
        self._stored: list[Position] = []
        self._flush_timer: TimerHandle | None = None
        self._waits_for_turn = False
        self._watchdog_timer: TimerHandle | None = None
        self._schema_pauses = Backoff(PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX)
        self._progress = 0
        self._progress_seen = -1
        self._behind_since_ms = 0

    # --- for the topic

    @property
    def receipts_by_position(self) -> bool:
        """Whether both sides name entries by their source positions in receipts."""
        return self._producer is not None and self._producer.by_position

    @property
    def backlog(self) -> int:
        """Entries that the remote cluster has not confirmed."""
        return self.cursor.backlog_entries

    def delay_seconds(self) -> float:
        """The age of the oldest message that is known to be on its way; 0 without a backlog."""
        if not self.backlog:
            return 0.0
        now_ms = self._runtime.clock.now_ms()
        oldest = None if self._producer is None else self._producer.oldest
        since_ms = self._behind_since_ms if oldest is None else oldest.publish_time_ms
        return max(0.0, (now_ms - since_ms) / 1000) if since_ms else 0.0

    def start(self) -> None:
        """Connect, and send what there is."""
        self._arm_watchdog()
        super().start()

    def wake(self) -> None:
        """There may be entries to send."""
        if not self._behind_since_ms:
            self._behind_since_ms = self._runtime.clock.now_ms()
        self.rouse()
        self._pump()

    def follow(self, ttl_seconds: int, *limiters: RateLimiter | None) -> None:
        """Other policies hold from now on."""
        self.ttl_seconds = ttl_seconds
        for limiter in self._limiters:
            limiter.forget(self._pump)
        self._limiters = tuple([one for one in limiters if one is not None])
        self._pump()

    def _let_go(self) -> None:
        """It touches the cursor no more; a read under way is dropped when it comes."""
        self._runtime.turns.leave(self)
        for timer in (self._flush_timer, self._watchdog_timer):
            if timer is not None:
                timer.cancel()
        self._flush_timer = self._watchdog_timer = None
        for limiter in self._limiters:
            limiter.forget(self._pump)
        self._limiters = NO_LIMITERS
        self._reader.let_go()

    async def wait_until_idle(self) -> None:
        """Wait for the read under way, if there is one."""
        await self._reader.wait_until_idle()

    # --- the producer comes and goes

    def _opened(self) -> None:
        self._schemas.clear()
        self._pump()

    def _before_loss(self) -> None:
        self._flush()

    def _after_loss(self) -> None:
        """What has no receipt is sent again."""
        self._reader.rewind()

    # --- sending

    def _pump(self) -> None:
        """Read and send until the window is full, the backlog is empty, or the event loop has to have its turn."""
        turns = self._runtime.turns
        spent_bytes = 0
        while not self._waits_for_turn and self._may_read():
            if turns.left_bytes <= 0 or (spent_bytes >= SLICE_BYTES and turns.waited_for):
                self._waits_for_turn = True
                turns.wait(self)
                return
            count, size_bytes = self._allowance()
            if count <= 0:
                return
            entries = self.cursor.read_cached(count, size_bytes)
            if entries is None:
                self._reader.read(count, size_bytes)
                return
            if not entries:
                self._clear_reason()
                return
            self._send(entries)
            spent_bytes += turns.take(stored_bytes(entries), COSTS_AS_ENTRIES * len(entries))

    def _wait_for_turn(self) -> None:
        """The next turn of the loop, not of dispatch alone: markers are slow to read."""
        if not self._waits_for_turn:
            self._waits_for_turn = True
            self._runtime.call_later(0.0, self.turn)

    def turn(self) -> None:
        """DispatchTurns: it is this replicator's turn."""
        self._waits_for_turn = False
        self._markers_bytes = 0
        self._pump()

    def _may_read(self) -> bool:
        producer = self._producer
        waits = self._registering or self._markers_bytes > TURN_MARKERS_BYTES_MAX
        if self.state is not ReplicatorState.STARTED or producer is None or waits:
            return False
        if self._reader.state is not ReadState.IDLE or self._reader.read_backoff.pausing:
            return False
        visibility = self._visibility()
        if visibility is not None and self.cursor.read_position >= visibility.hidden_from:
            self._stand_still(Reason.TRANSACTION, "")
            return False
        room = self._window_entries_max() - producer.unanswered
        return room * 10 >= self._window_entries_max() and producer.unanswered_bytes < WINDOW_BYTES_MAX

    def _allowance(self) -> tuple[int, int]:
        """Entries and bytes that may be read now; 0: `_pump` is called when there are some again."""
        producer = self._producer
        assert producer is not None
        count, size_bytes = min(SENT_ENTRIES_MAX, self._window_entries_max() - producer.unanswered), READ_BYTES_MAX
        for limiter in self._limiters:
            messages, bytes_left = limiter.room()
            if messages <= 0 or bytes_left <= 0:
                self._stand_still(Reason.RATE, "")
                limiter.wait(self._pump)
                return 0, 0
            count = min(count, messages) if messages != NO_LIMIT else count
            size_bytes = min(size_bytes, bytes_left) if bytes_left != NO_LIMIT else size_bytes
        return count, size_bytes

    def _send(self, entries: list[Entry]) -> None:
        visibility = self._visibility()
        aborted: Collection[tuple[int, int]] = ()
        if visibility is not None:
            aborted = visibility.aborted
            if visibility.hides(entries[-1].position):
                self.cursor.skip_to(visibility.hidden_from)
                entries = visibility.cut(entries)
        now_ms = self._runtime.clock.now_ms()
        sent: list[RelayedEntry] = []
        skipped: list[Position] = []
        index = 0
        while index < len(entries):
            index, found = self._outgoing.decide_run(
                entries, index, now_ms, self.ttl_seconds, aborted, self._schemas, sent
            )
            if found is None:
                break
            position = entries[index].position
            if not isinstance(found, Skipped):
                self._register(found, position)
                break
            skipped.append(position)
            self.counters.expired += found is Skipped.EXPIRED
            if found is Skipped.REMOTE_MARKER and self.on_marker is not None and self._told(entries[index]):
                break
            index += 1
        if skipped:
            self._progress += 1
            self.cursor.acknowledge(skipped)
        if sent:
            self._send_all(sent)

    def _told(self, marker: Entry) -> bool:
        """A marker of the remote cluster is passed on. True: the next entry has to wait for the next turn."""
        assert self.on_marker is not None
        self.on_marker(marker.position, marker.data)
        self._markers_bytes += MARKER_BYTES + len(marker.data)
        if self._markers_bytes <= TURN_MARKERS_BYTES_MAX:
            return False
        self.cursor.skip_to((marker.ledger_id, marker.entry_id + 1))
        self._wait_for_turn()
        return True

    def _send_all(self, sent: list[RelayedEntry]) -> None:
        producer, counters = self._producer, self.counters
        assert producer is not None
        messages, size_bytes = sent_totals(sent)
        for limiter in self._limiters:
            limiter.take(len(sent), size_bytes)
        counters.messages_out += messages
        counters.bytes_out += size_bytes
        self._progress += 1
        if not self._registering:
            self._clear_reason()
        producer.send(sent)

    def relayed(self, positions: list[Position]) -> None:
        """Entries have their receipts; those of one read of the socket are acknowledged together."""
        if self.state is not ReplicatorState.STARTED:
            return
        self._stored += positions
        if self._flush_timer is None:
            self._flush_timer = self._runtime.call_later(0.0, self._flushed)

    def _flushed(self) -> None:
        self._flush_timer = None
        self._flush()
        self._pump()

    def _flush(self) -> None:
        stored, self._stored = self._stored, []
        if stored:
            self._progress += 1
            self._pauses.reset()
            self.cursor.acknowledge(stored)
            self._behind_since_ms = self._runtime.clock.now_ms() if self.cursor.backlog_entries else 0

    # --- schemas

    def _register(self, version: bytes, position: Position) -> None:
        """Have the remote cluster know a schema; reading stops before the entry that needs it."""
        self.cursor.skip_to(position)
        self._registering = True
        if self.reason is not Reason.SCHEMA_REFUSED:
            self._stand_still(Reason.SCHEMA, "")
        self._runtime.spawn(self._registered(version))

    async def _registered(self, version: bytes) -> None:
        producer = self._producer
        pause_seconds = PAUSE_SECONDS_MAX
        try:
            if producer is not None:
                remote_version = await self._version_there(version, producer)
                if producer is self._producer:
                    # After a reconnection it may be another cluster, where that version is of another schema.
                    self._remember_schema(version, remote_version)
                self._schema_pauses.reset()
            pause_seconds = 0.0
        except MagnetarError as error:
            pause_seconds = self._schema_pauses.next_seconds()
            if self.state is ReplicatorState.STARTED:
                refused = isinstance(error, PulsarError)
                self._stand_still(Reason.SCHEMA_REFUSED if refused else reason_of(error), str(error))
        finally:
            if self.state not in (ReplicatorState.TERMINATING, ReplicatorState.TERMINATED):
                self._runtime.call_later(pause_seconds, self._schema_over)

    async def _version_there(self, version: bytes, producer: RelayProducer) -> bytes:
        """The remote cluster's version of a schema; none for one that is gone here. Nobody can register that any more,
        and who reads the message gets no schema for it here either: it goes without, not never."""
        try:
            schema = await self._remote.schema(version)
        except SchemaUnknown as error:
            logger.warning("%s: %s; messages of that version are sent without a schema", self.label, error)
            return b""
        return await producer.schema_version(schema)

    def _remember_schema(self, version: bytes, remote_version: bytes) -> None:
        if len(self._schemas) >= SCHEMAS_MAX:
            del self._schemas[next(iter(self._schemas))]
        self._schemas[version] = remote_version

    def _schema_over(self) -> None:
        self._registering = False
        self._pump()

    # --- the reader's receiver

    @property
    def stopped(self) -> bool:
        """What is read is taken at any time."""
        return False

    def entries_read(self, entries: list[Entry]) -> None:
        """EntryReader: read ahead."""
        if self.state is ReplicatorState.STARTED:
            self._send(entries)
        else:
            self._reader.rewind()

    def entries_replayed(self, entries: list[Entry]) -> None:
        """EntryReader: nothing is read twice but after a rewind."""

    def replay_failed(self) -> None:
        """EntryReader: as above."""

    def unreadable(self, position: Position, *, replayed: bool) -> bool:
        """EntryReader: it is tried again; to go on without it would change what the other cluster has."""
        del replayed
        self._stand_still(Reason.UNREACHABLE, f"entry {position[0]}:{position[1]} cannot be read")
        return False

    def read_ended(self) -> None:
        """EntryReader: free again."""
        self._pump()

    # --- watchdog

    def _arm_watchdog(self) -> None:
        self._watchdog_timer = self._runtime.call_later(WATCHDOG_SECONDS, self._look_after)

    def _look_after(self) -> None:
        self._arm_watchdog()
        unanswered = self._producer is not None and self._producer.unanswered > 0
        # What was sent has its receipts soon, whatever holds back the rest.
        waits = self._registering or (self.reason in (Reason.RATE, Reason.TRANSACTION) and not unanswered)
        stuck = self._progress == self._progress_seen and self.backlog > 0 and not waits
        self._progress_seen = self._progress
        if stuck and self.state is ReplicatorState.STARTED and self._reader.state is ReadState.IDLE:
            self.counters.watchdog_restarts += 1
            logger.warning("%s: nothing went on for %g s, it begins again", self.label, WATCHDOG_SECONDS)
            self._begin_again(Reason.SILENT, f"nothing went on for {WATCHDOG_SECONDS:g} s")
        elif self.state is ReplicatorState.STARTED:
            self._pump()
