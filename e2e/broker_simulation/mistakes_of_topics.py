"""Mistakes in what producers are told, in acknowledgements and cursors, and in deduplication."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from magnetar.broker.subscriptions.acknowledgement import Acknowledger
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics import seek
from magnetar.broker.topics.deduplication import Deduplication
from magnetar.broker.topics.producer import PublishBatch
from magnetar.broker.topics.topic import PersistentTopic
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.managed.ack_state import AckState
from magnetar.managed.cursors import reading
from magnetar.managed.cursors.cursor import Cursor
from magnetar.managed.entry import Entry
from magnetar.managed.entry_bitmap import value_of

from e2e.simulation.planting import Mistake, Patch, original


def failure_is_confirmed() -> list[Patch]:
    """A batch whose append has failed is confirmed."""

    def append_failed(self: PersistentTopic, error: MagnetarError, batch: PublishBatch) -> None:
        del error
        ledger_id, entry_id = self.ledger.last_confirmed
        batch.producer.stored(batch, ledger_id, entry_id + 1)

    return [(PersistentTopic, "_append_failed", append_failed)]


def confirmed_as_it_comes() -> list[Patch]:
    """A batch is confirmed when it is sent to the bookies."""

    def append(self: PersistentTopic, batch: PublishBatch) -> None:
        ledger_id, entry_id = self.ledger.last_confirmed
        self.ledger.appends.append(batch.payloads, lambda *_: None, batch)
        batch.producer.stored(batch, ledger_id, entry_id + 1)

    def publish(self: PersistentTopic, batch: PublishBatch) -> None:
        if self.closing:
            batch.producer.dropped(batch, MagnetarError("the topic is closing"))
        else:
            append(self, batch)

    return [(PersistentTopic, "publish", publish)]


def failed_batches_are_passed_over() -> list[Patch]:
    """After a failure the producer goes on with its next batch, and the failed one is stored behind it."""

    def append_failed(self: PersistentTopic, error: MagnetarError, batch: PublishBatch) -> None:
        self.ledger.appends.ready_to_create_ledger()
        if self.closing:
            batch.producer.dropped(batch, error)
        else:
            self._runtime.call_later(0.05, lambda: self._append(batch))

    return [(PersistentTopic, "_append_failed", append_failed)]


def receipt_of_acknowledgement_at_once() -> list[Patch]:
    """A consumer has its receipt before the acknowledgement is stored."""
    right = original(Cursor, "persist")

    def persist(self: Cursor, done: Callable[[MagnetarError | None], None]) -> None:
        right(self, lambda error: None)
        done(None)

    return [(Cursor, "persist", persist)]


def holes_are_not_stored() -> list[Patch]:
    """Only the mark is stored, and no acknowledgement beyond it."""
    return [
        (AckState, "ranges", lambda self, count_max=0: []),
        (AckState, "long_arrays", lambda self: []),
    ]


def mark_passes_holes() -> list[Patch]:
    """A single acknowledgement moves the mark to its entry."""

    def acknowledge(self: AckState, positions: Iterable[Position]) -> bool:
        furthest = max(positions)
        return self.acknowledge_cumulative(furthest)

    return [(AckState, "acknowledge", acknowledge)]


def acknowledged_up_to_but_one() -> list[Patch]:
    """A cumulative acknowledgement leaves out its entry."""
    right = original(Acknowledger, "cumulative")

    def cumulative(self: Acknowledger, consumer: Any, ack: Any) -> None:
        ack.positions = [(ledger_id, entry_id - 1) for ledger_id, entry_id in ack.positions]
        right(self, consumer, ack)

    return [(Acknowledger, "cumulative", cumulative)]


def a_part_is_the_whole() -> list[Patch]:
    """A batch counts as acknowledged with the first of its parts."""

    def acknowledge_batch_indexes(
        self: AckState, position: Position, remaining: Sequence[int], batch_size: int
    ) -> bool:
        del remaining, batch_size
        return self.acknowledge((position,))

    return [(AckState, "acknowledge_batch_indexes", acknowledge_batch_indexes)]


def parts_are_not_stored() -> list[Patch]:
    """The next owner knows nothing of batches that are acknowledged in parts."""
    return [(AckState, "load_partial", lambda self, position, words: None)]


def the_last_part_counts() -> list[Patch]:
    """A further part of a batch replaces the parts before it."""
    right = original(AckState, "acknowledge_batch_indexes")

    def acknowledge_batch_indexes(
        self: AckState, position: Position, remaining: Sequence[int], batch_size: int
    ) -> bool:
        if self.partial:
            self.partial.pop(position, None)
        return bool(right(self, position, remaining, batch_size))

    return [(AckState, "acknowledge_batch_indexes", acknowledge_batch_indexes)]


def nothing_left_is_a_part() -> list[Patch]:
    """A batch of which a cumulative acknowledgement leaves nothing counts as one that is acknowledged in part."""
    right = original(AckState, "acknowledge_cumulative")

    def acknowledge_cumulative(self: AckState, position: Position, remaining: Sequence[int] | None = None) -> bool:
        left = value_of(remaining or ())
        if left and self.partial and position in self.partial and not left & self.partial[position]:
            right(self, self._ledgers.previous_position(position))
            self._note_partial(position, 0)
            return True
        return bool(right(self, position, remaining))

    return [(AckState, "acknowledge_cumulative", acknowledge_cumulative)]


def rewinding_passes_one_over() -> list[Patch]:
    """Who reads again begins behind the first entry that is not acknowledged."""
    right = original(Cursor, "rewind")

    def rewind(self: Cursor) -> None:
        right(self)
        if self._ledger.ledgers.contains(self.read_position) and self.acks.individual_count:
            self.read_position = self._ledger.ledgers.next_position(self.read_position)

    return [(Cursor, "rewind", rewind)]


def acknowledged_comes_again() -> list[Patch]:
    """Reading does not leave out what is acknowledged beyond the mark."""
    return [(Cursor, "unacknowledged", lambda self, entries: entries)]


def read_again_though_acknowledged() -> list[Patch]:
    """What was asked for again is sent although somebody has acknowledged it meanwhile."""
    right = original(reading, "read_positions")

    class Forgetful:
        """Nothing is acknowledged."""

        def is_acknowledged(self, position: Position) -> bool:
            return False

    async def read_positions(acks: AckState, ledger: Any, positions: Sequence[Position]) -> list[Entry]:
        del acks
        found: list[Entry] = await right(Forgetful(), ledger, positions)
        return found

    def acknowledged(self: Any, consumer: Any, position: Position, key_hash: int) -> bool:
        return False

    from magnetar.broker.dispatch.shared import SharedDispatcher
    from magnetar.managed.cursors import cursor

    return [(cursor, "read_positions", read_positions), (SharedDispatcher, "acknowledged", acknowledged)]


def seeking_one_too_far() -> list[Patch]:
    """A seek leaves out the entry that it names."""
    right = original(seek, "position_of_seek")

    def position_of_seek(
        topic: PersistentTopic, message_id: Any, *, knows_end: bool
    ) -> tuple[Position, list[int] | None]:
        position, remaining = right(topic, message_id, knows_end=knows_end)
        if topic.ledger.ledgers.contains(position):
            position = topic.ledger.ledgers.next_position(position)
        return position, remaining

    from magnetar.broker.session import consume

    return [(consume, "position_of_seek", position_of_seek)]


def readers_begin_one_too_late() -> list[Patch]:
    """A reader that comes back begins behind the entry behind its last one."""
    right = original(seek, "reader_start")

    def reader_start(topic: PersistentTopic, wanted: Position, **known: bool) -> Position:
        position: Position = right(topic, wanted, **known)
        if topic.ledger.ledgers.contains(position):
            position = topic.ledger.ledgers.next_position(topic.ledger.ledgers.next_position(position))
        return position

    from magnetar.broker.session import consume

    return [(consume, "reader_start", reader_start)]


def duplicates_are_stored() -> list[Patch]:
    """Deduplication finds nothing."""
    return [(Deduplication, "check", lambda self, batch, refused: None)]


def taken_counts_as_stored() -> list[Patch]:
    """A message that is on its way to be stored is confirmed as a duplicate."""
    right = original(Deduplication, "check")

    def check(self: Deduplication, batch: PublishBatch, refused: Any) -> Any:
        stored, self.stored = self.stored, self.pushed
        try:
            return right(self, batch, refused)
        finally:
            self.stored = stored

    return [(Deduplication, "check", check)]


def failed_stays_taken() -> list[Patch]:
    """What could not be stored counts as taken, and as stored when it comes again."""

    def append_failed(self: Deduplication) -> None:
        self.stored = dict(self.pushed)

    return [(Deduplication, "append_failed", append_failed)]


def deduplication_without_replay() -> list[Patch]:
    """A new owner knows what the snapshot says, and nothing of what came after it."""

    async def replay(self: Deduplication) -> None:
        self.pushed = dict(self.stored)

    return [(Deduplication, "replay", replay)]


def batches_by_their_first_id() -> list[Patch]:
    """Deduplication knows a batch by the id of its first message only."""
    right = original(Deduplication, "check")

    def check(self: Deduplication, batch: PublishBatch, refused: Any) -> Any:
        highest, batch.highest_sequence_ids = batch.highest_sequence_ids, [0] * len(batch.sequence_ids)
        try:
            return right(self, batch, refused)
        finally:
            batch.highest_sequence_ids = [one + 1 for one in highest]

    return [(Deduplication, "check", check)]


def acknowledgements_of_the_closed_are_lost() -> list[Patch]:
    """An acknowledgement that has a receipt is not taken, one time in five."""
    right = original(Subscription, "acknowledge")

    def acknowledge(self: Subscription, consumer: Any, ack: Any, done: Any) -> None:
        if done is not None and ack.positions and sum(ack.positions[0]) % 5 == 4:
            done(None)
            return
        right(self, consumer, ack, done)

    return [(Subscription, "acknowledge", acknowledge)]


TOPIC_MISTAKES: Final[dict[str, Mistake]] = {
    "a-part-is-the-whole": a_part_is_the_whole,
    "acknowledged-comes-again": acknowledged_comes_again,
    "acknowledged-up-to-but-one": acknowledged_up_to_but_one,
    "confirmed-as-it-comes": confirmed_as_it_comes,
    "deduplication-without-replay": deduplication_without_replay,
    "duplicates-are-stored": duplicates_are_stored,
    "failed-batches-are-passed-over": failed_batches_are_passed_over,
    "failed-stays-taken": failed_stays_taken,
    "failure-is-confirmed": failure_is_confirmed,
    "holes-are-not-stored": holes_are_not_stored,
    "lost-with-a-receipt": acknowledgements_of_the_closed_are_lost,
    "mark-passes-holes": mark_passes_holes,
    "nothing-left-is-a-part": nothing_left_is_a_part,
    "parts-are-not-stored": parts_are_not_stored,
    "read-again-though-acknowledged": read_again_though_acknowledged,
    "readers-begin-too-late": readers_begin_one_too_late,
    "receipt-of-acknowledgement-at-once": receipt_of_acknowledgement_at_once,
    "rewinding-passes-one-over": rewinding_passes_one_over,
    "seeking-one-too-far": seeking_one_too_far,
    "taken-counts-as-stored": taken_counts_as_stored,
    "the-last-part-counts": the_last_part_counts,
}
