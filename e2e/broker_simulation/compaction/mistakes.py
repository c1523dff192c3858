"""Mistakes in compaction: what a run leaves, its ledgers, the cursor that names one, and who reads by it."""

from __future__ import annotations

from typing import Any, Final
from weakref import WeakSet

from magnetar.broker.compaction.compacted_cursor import CompactedCursor
from magnetar.broker.compaction.compacted_topic import Compaction, compaction_of
from magnetar.broker.compaction.latest import LatestKeys
from magnetar.broker.compaction.output import CompactedOutput
from magnetar.broker.compaction.run import CompactionRun
from magnetar.broker.compaction.topic_compaction import TopicCompaction
from magnetar.broker.session import consume
from magnetar.broker.states import CompactionState
from magnetar.broker.topics import seek
from magnetar.broker.topics.topic import PersistentTopic
from magnetar.core.ids import Position
from magnetar.managed.compaction import COMPACTION_CURSOR, LEDGER_PROPERTY
from magnetar.managed.cursors.cursor import Cursor
from magnetar.managed.managed_ledger import ManagedLedger

from e2e.simulation.planting import Mistake, Patch, original


def the_newest_is_dropped() -> list[Patch]:
    """Of a key that is there already the older value stays, unless both are in one batch."""
    right = original(LatestKeys, "note")

    def note(self: LatestKeys, position: Position, index: int, key: str | None, event_time_ms: int, **rest: Any) -> Any:
        if key is not None and rest["has_value"] and index < 0 and key in _keys_of(self):
            return False
        return right(self, position, index, key, event_time_ms, **rest)

    return [(LatestKeys, "note", note)]


def _keys_of(latest: LatestKeys) -> set[str]:
    return {key.decode() for shard in latest._places for key in shard}  # noqa: SLF001


def deleted_keys_stay() -> list[Patch]:
    """A tombstone is left out, and what it deletes is not."""
    right = original(LatestKeys, "note")

    def note(self: LatestKeys, position: Position, index: int, key: str | None, event_time_ms: int, **rest: Any) -> Any:
        if key is not None and not rest["has_value"]:
            return False
        return right(self, position, index, key, event_time_ms, **rest)

    return [(LatestKeys, "note", note)]


def horizon_one_too_far() -> list[Patch]:
    """One more entry counts as compacted, if there is one by now."""
    right = original(TopicCompaction, "_publish")

    async def publish(self: TopicCompaction, ledger_id: int, end: Position) -> None:
        following = self._topic.ledger.ledgers.next_position(end)
        await right(self, ledger_id, following if following <= self._topic.ledger.last_confirmed else end)

    return [(TopicCompaction, "_publish", publish)]


def named_before_it_is_whole() -> list[Patch]:
    """The cursor names the new ledger while the last entries are on their way to it."""
    right_run, right_finish = original(TopicCompaction, "_run"), original(CompactedOutput, "finish")
    right_copy = original(CompactionRun, "run")
    owners: dict[int, tuple[TopicCompaction, Position]] = {}

    async def run(self: TopicCompaction, run: CompactionRun) -> None:
        owners[id(run._parts.record)] = self, (-1, -1)  # noqa: SLF001
        await right_run(self, run)

    async def copy(self: CompactionRun, end: Position) -> int:
        owners[id(self._parts.record)] = owners[id(self._parts.record)][0], end
        found: int = await right_copy(self, end)
        return found

    async def finish(self: CompactedOutput) -> None:
        compaction, end = owners[id(self._record)]
        cursor = compaction._cursor()  # noqa: SLF001
        cursor.acknowledge_cumulative(end)
        assert self._writer is not None
        await cursor.set_properties({LEDGER_PROPERTY: self._writer.ledger_id})
        await right_finish(self)

    return [(TopicCompaction, "_run", run), (CompactionRun, "run", copy), (CompactedOutput, "finish", finish)]


def the_named_ledger_is_deleted() -> list[Patch]:
    """The ledger of the compaction before goes before the cursor names the new one."""
    right = original(TopicCompaction, "_publish")

    async def publish(self: TopicCompaction, ledger_id: int, end: Position) -> None:
        before = compaction_of(self._topic.ledger)
        if before is not None:
            await self._topic.ledger.delete_others({before.ledger_id})
        await right(self, ledger_id, end)

    return [(TopicCompaction, "_publish", publish)]


def old_ledgers_stay() -> list[Patch]:
    """The ledger of the compaction before is forgotten, and not deleted."""

    async def delete_others(self: ManagedLedger, ledger_ids: Any) -> None:
        del self, ledger_ids

    return [(ManagedLedger, "delete_others", delete_others)]


def nobody_settles() -> list[Patch]:
    """What a run has left that did not end is left to the next compaction."""
    return [(TopicCompaction, "settle_later", lambda self: None)]


def one_message_of_a_batch() -> list[Patch]:
    """A batch keeps the first of its messages that are left, and loses the others."""
    right = original(CompactionRun, "_kept")

    class First:
        """Of one entry."""

        def __init__(self, latest: LatestKeys) -> None:
            self._latest = latest
            self._found = False

        def is_latest(self, *arguments: Any) -> bool:
            found = not self._found and self._latest.is_latest(*arguments)
            self._found = self._found or found
            return found

    async def kept(self: CompactionRun, entry: Any) -> Any:
        latest: Any = self.latest
        self.latest = First(latest)  # type: ignore[assignment]  # It is asked for no more.
        try:
            return await right(self, entry)
        finally:
            self.latest = latest

    return [(CompactionRun, "_kept", kept)]


def behind_the_horizon_but_one() -> list[Patch]:
    """Who has read what compaction left goes on with the second entry behind its horizon."""

    def behind_horizon(self: CompactedCursor) -> Cursor:
        if self.inner.read_position < self._from:
            self.inner.skip_to((self._from[0], self._from[1] + 1))
        return self.inner

    return [(CompactedCursor, "_behind_horizon", behind_horizon)]


def two_compactions_at_once() -> list[Patch]:
    """Nobody looks whether the topic is being compacted."""

    def start(self: TopicCompaction) -> None:
        self._become(CompactionState.RUNNING)
        self._world.spawn(self._run_in_background())

    def become(self: TopicCompaction, state: CompactionState) -> None:
        self.state = state

    return [(TopicCompaction, "start", start), (TopicCompaction, "_become", become)]


def trimmed_before_it_is_durable() -> list[Patch]:
    """What a compaction is acknowledged to have covered is trimmed, though its cursor is not stored yet."""
    return [(Cursor, "needless_up_to", property(lambda self: self.mark_delete))]


def trimmed_past_the_horizon() -> list[Patch]:
    """What all subscriptions have acknowledged is trimmed, whether it is compacted or not."""

    def slowest_mark(self: ManagedLedger) -> Position | None:
        marks = (cursor.mark_delete for name, cursor in self.cursors.items() if name != COMPACTION_CURSOR)
        return min(marks, default=None)

    return [(ManagedLedger, "slowest_mark", slowest_mark)]


def the_last_message_is_what_compaction_kept() -> list[Patch]:
    """Readers of the topic itself are told of a last message that only readers of the compacted one get."""
    right = original(seek, "last_message_id")

    async def last_message_id(topic: PersistentTopic, *, compacted: bool = False) -> tuple[Position, int]:
        found: tuple[Position, int] = await right(topic, compacted=compacted)
        return found if found[0] >= (0, 0) else await right(topic, compacted=True)

    return [(consume, "last_message_id", last_message_id)]


def the_horizon_is_passed_once() -> list[Patch]:
    """Who has read beyond one horizon goes on in the topic, wherever a later compaction ends."""
    right = original(CompactedCursor, "_before_horizon")
    beyond: WeakSet[CompactedCursor] = WeakSet()

    def before_horizon(self: CompactedCursor) -> Compaction | None:
        found: Compaction | None = None if self in beyond else right(self)
        if found is None:
            beyond.add(self)
        return found

    return [(CompactedCursor, "_before_horizon", before_horizon)]


COMPACTION_MISTAKES: Final[dict[str, Mistake]] = {
    "behind-the-horizon-but-one": behind_the_horizon_but_one,
    "deleted-keys-stay": deleted_keys_stay,
    "horizon-one-too-far": horizon_one_too_far,
    "named-before-it-is-whole": named_before_it_is_whole,
    "nobody-settles": nobody_settles,
    "old-ledgers-stay": old_ledgers_stay,
    "one-message-of-a-batch": one_message_of_a_batch,
    "the-named-ledger-is-deleted": the_named_ledger_is_deleted,
    "the-newest-is-dropped": the_newest_is_dropped,
    "the-horizon-is-passed-once": the_horizon_is_passed_once,
    "the-last-message-is-what-compaction-kept": the_last_message_is_what_compaction_kept,
    "trimmed-before-it-is-durable": trimmed_before_it_is_durable,
    "trimmed-past-the-horizon": trimmed_past_the_horizon,
    "two-compactions-at-once": two_compactions_at_once,
}
