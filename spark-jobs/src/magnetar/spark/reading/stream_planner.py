"""How far a stream goes, micro-batch by micro-batch: what the driver keeps in mind of a query between Spark's calls.

Everything that has to outlive it stands in offsets, which Spark keeps: this may be killed at any moment."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from magnetar.core.backoff import Backoff
from magnetar.spark.errors import ClusterUnreachable, TopicMissing
from magnetar.spark.options.offsets import (
    LATEST,
    Earliest,
    Latest,
    advance,
    begins_at_end,
    decode_offset,
    encode_offset,
)
from magnetar.spark.options.reading import SourceOptions, stream_start
from magnetar.spark.planning.admission import admit
from magnetar.spark.planning.loss import deleted_topic, goes_on_from, losses
from magnetar.spark.planning.plan import ends_before, normalised
from magnetar.spark.planning.planner import ReadPlanner, TopicRange, open_planner
from magnetar.spark.planning.rows_per_entry import RowsPerEntry
from magnetar.spark.positions import BEGINNING, MessagePosition
from magnetar.spark.reading.durable_cursor import DurableCursor
from magnetar.spark.reading.table import Table, find_table
from magnetar.spark.reading.tasks import tasks_of
from magnetar.spark.topics import TopicState

if TYPE_CHECKING:
    from magnetar.spark.reading.task import ReadTask
    from pyspark.sql.types import StructType

T = TypeVar("T")

logger: Final = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 300.0
"""How long a cluster may be away before the query fails: a whole cluster's restart. Spark ends a query at the first
error of its source."""

PAUSE_SECONDS_MIN: Final = 0.1
PAUSE_SECONDS_MAX: Final = 5.0
"""Seconds between two attempts to reach the cluster, at most."""

NEW_LOOK_WAIT_SECONDS_MAX: Final = 5.0
"""How long Spark's call may wait for the next poll: `query.stop()` waits as long."""

MISSING: Final = "missing"
"""Beside the topics in where a query begins: what is named and not there. Only a new query goes on from that, and fails
of it. Those that have a checkpoint are asked where they begin, too, and may have read a topic before it was deleted.
Checkpoints never have it."""

Offset = dict[str, str]


class StreamPlanner:
    """One query's. Used on the process's event loop."""

    def __init__(self, options: SourceOptions, schema: StructType, table: Table | None) -> None:
        self._starting = stream_start(options)
        self._options = options
        self._schema = schema
        self._table = table
        self._planner: ReadPlanner | None = None
        self._rows_per_entry: RowsPerEntry | None = None
        self._cursor: DurableCursor | None = None
        self._followed: dict[str, MessagePosition] = {}
        """Where the durable cursor was told to be."""
        self._initial: dict[str, MessagePosition] | None = None
        self._begins_empty = begins_at_end(self._starting)
        self._begins_without = ""
        """What was missing then; empty: nothing."""
        self._has_tasks = False
        """Whether Spark has asked for tasks: a query with a checkpoint, or one that has begun."""
        self._planned: dict[str, MessagePosition] = {}
        """Where the newest micro-batch ends, for Sparks that do not say where the next one begins."""
        self._topics: list[str] = []
        self._missing = ""
        """What is selected and not there, as it was last looked for."""
        self._missing_told = ""
        self._unseen_told = False
        """That retention may take what was not read unnoticed."""
        self._topics_at_seconds = float("-inf")
        self._states: dict[str, TopicState] = {}
        self._states_at_seconds = float("-inf")
        self._look_seconds = 0.0
        """How long the last look at the topics took: so long there is none after it, as thousands of topics keep
        brokers busy."""
        self._known_entries: dict[str, dict[int, int]] = {}
        """By topic: how many entries ledgers had when they were closed, so that what retention takes after it was read
        is not taken for a loss."""
        self._stop_at: dict[str, MessagePosition] | None = None

    async def initial(self) -> Offset:
        """Where a new query begins."""
        if self._initial is None:
            self._initial = await self._patiently(self._begin)
            self._begins_without = self._missing
            self._planned = dict(self._initial)
        offset = encode_offset(self._initial)
        return {**offset, MISSING: self._begins_without} if self._begins_without else offset

    async def latest(self, start: Mapping[str, Any] | None) -> Offset:
        """How far the next micro-batch goes from `start`, or from the last one. Raises `TopicMissing` for a new query.

        A query that begins at the end has an empty first micro-batch: where it began is in the checkpoint then. If a
        driver dies in the first one, Spark asks where to begin again, and the end is another place by then."""
        if start is None and not self._planned:
            # Before 4.2 Spark asks this of a new query first, and where it begins thereafter.
            await self.initial()
        missing = self._begins_without if start is None and not self._has_tasks else (start or {}).get(MISSING)
        if missing:
            raise TopicMissing(str(missing))
        begin = decode_offset(start) if start is not None else dict(self._planned)
        if start is not None:
            # Spark asks when the last micro-batch is committed, and tells so only when there is another one.
            await self._follow(begin)
        begins_empty, self._begins_empty = self._begins_empty, False
        if begins_empty and begin == self._initial:
            self._planned = begin
        else:
            self._planned = await self._patiently(lambda: self._latest(begin))
        return encode_offset(self._planned)

    def seen_ends(self) -> Offset | None:
        """Where topics ended when they were last looked at."""
        return encode_offset(self._ends()) if self._states else None

    async def stop_at_present(self) -> None:
        """Nothing is read that comes later than now."""
        await self._patiently(self._refresh_all)
        self._stop_at = self._ends()

    async def tasks(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[ReadTask]:
        """The tasks of a micro-batch."""
        self._has_tasks = True
        # The first micro-batch of a query that is started again begins where it is said to begin now.
        firsts = decode_offset({topic: place for topic, place in start.items() if topic != MISSING})
        ends = decode_offset(end)
        self._planned = advance(self._planned, ends)
        return await self._patiently(lambda: self._tasks(firsts, ends))

    async def processed(self, end: Mapping[str, Any]) -> None:
        """Everything before `end` is: the durable cursor follows."""
        await self._follow(decode_offset(end))

    async def close(self) -> None:
        """Let go of the subscription's consumers; what else is open belongs to the process."""
        cursor, self._cursor = self._cursor, None
        if cursor is not None:
            await cursor.close()

    # --- what topics there are, and how far they go

    async def _begin(self) -> dict[str, MessagePosition]:
        planner = await self._plan()
        await self._refresh_all()
        if self._options.predefined_subscription:
            # It is not moved: this is asked of queries that have a checkpoint, too, and have to read what is before.
            await (await self._durable_cursor()).start(self._states)
            await self._refresh_all()
        return await planner.positions(self._starting, self._states.values(), "startingOffsets")

    async def _refresh_all(self) -> None:
        self._topics_at_seconds = self._states_at_seconds = float("-inf")
        await self._refresh()

    async def _refresh(self) -> None:
        """Look at the cluster again, if the last look is old enough."""
        planner, now = await self._plan(), _now_seconds()
        if now - self._topics_at_seconds >= self._options.topic_discovery_seconds:
            self._topics, self._missing = await planner.selected(self._options.filters)
            self._topics_at_seconds = now
            self._states_at_seconds = float("-inf")
        now = _now_seconds()
        if now >= self._next_poll_seconds():
            self._states = await planner.states(self._topics)
            self._states_at_seconds = _now_seconds()
            self._look_seconds = self._states_at_seconds - now
            self._tell_unseen()
            for topic, state in self._states.items():
                known = self._known_entries.get(topic, {})
                # What is older than the topic and what was read of it is of no use any more.
                oldest = min(state.ledgers[0].ledger_id if state.ledgers else 0, self._planned.get(topic, BEGINNING)[0])
                kept = {ledger_id: entries for ledger_id, entries in known.items() if ledger_id >= oldest}
                kept |= {ledger.ledger_id: ledger.entries for ledger in state.ledgers if ledger.closed_ms}
                self._known_entries[topic] = kept

    def _next_poll_seconds(self) -> float:
        return self._states_at_seconds + max(self._options.poll_seconds, self._look_seconds)

    async def _refresh_unless_more(self, begin: Mapping[str, MessagePosition]) -> None:
        """Refresh what is known of the topics; "nothing new" is an answer of a poll that began after Spark asked. What
        was published before `processAllAvailable()` is read before that returns."""
        known = self._states
        await self._refresh()
        has_more = any(topic not in begin or begin[topic] < end for topic, end in self._ends().items())
        if has_more or self._stop_at is not None or self._states is not known:
            return
        wait_seconds = self._next_poll_seconds() - _now_seconds()
        if wait_seconds <= NEW_LOOK_WAIT_SECONDS_MAX:
            await asyncio.sleep(wait_seconds)
            self._states_at_seconds = float("-inf")  # Timers may end a little too early: uvloop's count milliseconds.
            await self._refresh()

    def _ends(self) -> dict[str, MessagePosition]:
        """Where topics end now. At a ledger's end that is the next one's beginning: the ledger may be trimmed then,
        and nobody could say later whether all of it was read."""
        stop_at = self._stop_at
        return {
            topic: normalised(state, state.end if stop_at is None else min(state.end, stop_at[topic]))
            for topic, state in self._states.items()
            if stop_at is None or topic in stop_at
        }

    async def _latest(self, begin: dict[str, MessagePosition]) -> dict[str, MessagePosition]:
        await self._refresh_unless_more(begin)
        planner = await self._plan()
        deleted = await self._not_there(begin)
        self._tell_missing()
        if self._cursor is not None:
            await asyncio.gather(*map(self._cursor.forget, deleted))
        restarted = await self._cut_off(begin)
        begin = {**begin, **restarted}
        ends = self._ends()
        states = {topic: self._states[topic] for topic in ends}
        new = {topic: state for topic, state in states.items() if topic not in begin}
        # What came to be after the query began is read from its beginning.
        begin = {**await planner.positions(Earliest(), new.values(), "startingOffsets"), **begin}
        rows, size = self._options.max_rows_per_trigger, self._options.max_bytes_per_trigger
        if rows is not None or size is not None:
            estimates = await self._rows_estimates(states, begin) if rows is not None else {}
            ends = {**ends, **admit(states, begin, ends, rows, size, estimates)}
        return advance(begin, ends, deleted, restarted=restarted)

    async def _not_there(self, begin: Mapping[str, MessagePosition]) -> list[str]:
        """Topics of the offset that are read no further: deleted ones, and those that options leave out now."""
        planner = await self._plan()
        strangers = [topic for topic in begin if topic not in self._states]
        there = await planner.states(strangers) if strangers else {}
        for topic in there:
            logger.warning("%s is in the checkpoint and is not selected any more: it is left out", topic)
        planner.judge([deleted_topic(topic, begin[topic]) for topic in strangers if topic not in there])
        return strangers

    def _tell_missing(self) -> None:
        """What is named, is not there, and is not a loss either: it was one before, or is named anew."""
        if self._missing and self._missing != self._missing_told:
            if self._options.fail_on_data_loss:
                raise TopicMissing(self._missing)
            logger.warning(
                "failOnDataLoss is false, so reading goes on: %s; once it is there, it is read from its beginning",
                self._missing,
            )
        self._missing_told = self._missing

    def _tell_unseen(self) -> None:
        """Once: where ledgers are not known, one that was trimmed looks like one that was read to its end."""
        if self._unseen_told or not self._options.fail_on_data_loss:
            return
        unseen = [topic for topic, state in self._states.items() if not state.ledgers_known]
        if unseen:
            logger.warning(
                "failOnDataLoss is true, and it would not be noticed if retention took messages of %s before they are "
                "read: set admin.url, with a role that may see internal stats, or metadata.url",
                unseen[0] if len(unseen) == 1 else f"{unseen[0]} and {len(unseen) - 1} others",
            )
        self._unseen_told = bool(unseen)

    async def _cut_off(self, begin: Mapping[str, MessagePosition]) -> dict[str, MessagePosition]:
        """Where to go on in topics that now end before the place at which the query is."""

        def beyond() -> list[str]:
            there = self._states.items()
            return [topic for topic, state in there if topic in begin and ends_before(state, begin[topic])]

        if not beyond():
            return {}
        await self._refresh_all()  # What was seen may be older than the place.
        planner = await self._plan()
        states = {topic: self._states[topic] for topic in beyond()}
        planner.judge([loss for topic, state in states.items() for loss in losses(state, begin[topic], LATEST, {})])
        return {topic: goes_on_from(state, begin[topic]) for topic, state in states.items()}

    async def _rows_estimates(
        self, states: Mapping[str, TopicState], begin: Mapping[str, MessagePosition]
    ) -> dict[str, float]:
        if self._rows_per_entry is None:
            self._rows_per_entry = RowsPerEntry(await self._plan())
        rows_per_entry = self._rows_per_entry
        return await (await self._plan()).failover.ask(lambda: rows_per_entry.estimates(states, begin))

    async def _tasks(
        self, firsts: Mapping[str, MessagePosition], ends: Mapping[str, MessagePosition]
    ) -> list[ReadTask]:
        planner = await self._plan()
        if any(topic not in self._states or self._states[topic].end < end for topic, end in ends.items()):
            # After a restart the first thing that Spark asks for.
            self._states = {**self._states, **await planner.states(list(ends))}
        new = {topic: self._states[topic] for topic in ends if topic not in firsts and topic in self._states}
        firsts = {**await planner.positions(Earliest(), new.values(), "startingOffsets"), **firsts}
        for topic in ends.keys() & self._states.keys():
            state, first = self._states[topic], firsts[topic]
            if ends[topic] < first and ends_before(state, first):
                # Planned as `_cut_off` says.
                firsts[topic] = goes_on_from(state, first)
        gone = {topic: firsts.get(topic, BEGINNING) for topic in ends if topic not in self._states}
        reaches = [
            TopicRange(self._states[topic], firsts[topic], end)
            for topic, end in ends.items()
            if topic in self._states and firsts[topic] < end
        ]
        slices = await planner.slices(
            reaches,
            self._known_entries,
            [deleted_topic(topic, first) for topic, first in gone.items() if first < ends[topic]],
        )
        if not slices:
            return []  # The topics that are there may say nothing of those to come.
        if self._table is None:
            self._table = await find_table(planner.cluster, self._options, list(self._states))
        return await tasks_of(slices, planner, self._table, self._options.filters, self._schema)

    # --- how

    async def _plan(self) -> ReadPlanner:
        if self._planner is None:
            self._planner = await open_planner(self._options)
        return self._planner

    async def _follow(self, position: dict[str, MessagePosition]) -> None:
        if self._options.predefined_subscription and position != self._followed:
            await (await self._durable_cursor()).move(position)
            self._followed = position

    async def _durable_cursor(self) -> DurableCursor:
        if self._cursor is None:
            planner = await self._plan()
            self._cursor = DurableCursor(
                planner.cluster.client,
                self._options.predefined_subscription,
                from_earliest=not isinstance(self._starting, Latest),
            )
        return self._cursor

    async def _patiently(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Ask again while the cluster is away, for a bounded time."""
        give_up_at_seconds = _now_seconds() + PATIENCE_SECONDS
        pauses = Backoff(PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX)
        while True:
            pause_seconds = pauses.next_seconds()
            try:
                return await ask()
            except ClusterUnreachable as error:
                if _now_seconds() + pause_seconds > give_up_at_seconds:
                    raise
                logger.warning("asked again in %.1f s: %s", pause_seconds, error)
            await asyncio.sleep(pause_seconds)


def _now_seconds() -> float:
    return asyncio.get_running_loop().time()
