"""The compactions of one topic: one at a time, how the last one went, and what one that did not end has left.

A run notes its ledger in the cursor `__compaction`, beside the ledger that it is to replace, before it is made.
The note goes when one of the two is deleted. So whoever has the topic after a crash, at whatever step, knows which
ledger nobody reads (`settle`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from magnetar.broker.compaction.compacted_topic import compaction_of
from magnetar.broker.compaction.entries import TopicEntries
from magnetar.broker.compaction.latest import KeyRules, LatestKeys
from magnetar.broker.compaction.record import CompactionRecord
from magnetar.broker.compaction.run import CompactionRun, RunParts
from magnetar.broker.settings.policies import CompactionOrder, PolicySettings
from magnetar.broker.slices import TimeSlice
from magnetar.broker.states import COMPACTION_TRANSITIONS, CompactionState
from magnetar.broker.subscriptions.entry_reader import Spawn
from magnetar.core.backoff import Backoff
from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import EARLIEST, NO_ENTRY, Position
from magnetar.core.topic_name import TopicName
from magnetar.ledger.api import LedgerOptions
from magnetar.managed.compaction import (
    COMPACTION_CURSOR,
    LEDGER_PROPERTY,
    RUN_PROPERTY,
    compacted_ledger_options,
    run_ledgers,
)
from magnetar.managed.cursors.cursor import Cursor
from magnetar.managed.managed_ledger import ManagedLedger
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.wire.pulsar.compacted import message_id_bytes

logger: Final = logging.getLogger(__name__)

RUNS_AT_ONCE: Final = 2
"""Compactions of one broker that run at once: each takes the keys of its topic in memory, and its share of the loop."""

RETRY_SECONDS_FIRST: Final = 60.0
"""How long the threshold starts nothing after a run that failed: as often as it is looked at."""

RETRY_SECONDS_MAX: Final = 3_600.0
"""Each attempt reads the whole topic, so that one which always fails is tried once an hour."""


class CompactionFailed(MagnetarError):
    """A compaction cannot go on for what others do with the topic."""


class AlreadyCompacting(MagnetarError):
    """The topic is being compacted."""


class CompactableTopic(Protocol):
    """A stored topic, as its compaction needs it."""

    @property
    def name(self) -> TopicName: ...
    @property
    def ledger(self) -> ManagedLedger: ...
    @property
    def closing(self) -> bool: ...
    @property
    def visible_entries(self) -> TopicEntries: ...
    async def create_subscription(self, name: str, start: Position, /) -> object: ...


class CompactionWorld:
    """The parts that the compactions of one broker share."""

    __slots__ = ("clock", "ledger_settings", "settings", "slots", "spawn")

    def __init__(
        self,
        clock: Clock,
        spawn: Spawn,
        slots: asyncio.Semaphore,
        settings: Callable[[], PolicySettings],
        ledger_settings: ManagedLedgerSettings,
    ) -> None:
        self.clock = clock
        self.spawn = spawn
        self.slots = slots
        """Of as many as run at once; the others wait, one of each topic at most."""
        self.settings = settings
        self.ledger_settings = ledger_settings
        """The broker's own, by which compacted ledgers are spread."""


class TopicCompaction:
    """Made when a topic is compacted for the first time, or has something to be settled."""

    __slots__ = ("_error", "_retries", "_retry_at_seconds", "_settling", "_task", "_topic", "_world", "record", "state")

    def __init__(self, topic: CompactableTopic, world: CompactionWorld) -> None:
        self._topic = topic
        self._world = world
        self._task: asyncio.Task[None] | None = None
        self._error = ""
        self._retries = Backoff(RETRY_SECONDS_FIRST, RETRY_SECONDS_MAX)
        self._retry_at_seconds = float("-inf")
        self._settling = asyncio.Lock()
        """One at a time: who deletes slowly would take a note away that a later run has made."""
        self.state = CompactionState.NOT_RUN
        self.record = CompactionRecord()

    @property
    def status(self) -> dict[str, str]:
        """How it stands, in the shape of the admin API (Pulsar: `LongRunningProcessStatus`)."""
        return {"status": self.state.name, "lastError": self._error}

    @property
    def may_start_by_itself(self) -> bool:
        """Whether none runs and none has failed lately."""
        return (
            self.state is not CompactionState.RUNNING
            and self._world.clock.monotonic_seconds() >= self._retry_at_seconds
        )

    def start(self) -> None:
        """Compact the topic in the background. Raises `AlreadyCompacting`."""
        if self.state is CompactionState.RUNNING:
            raise AlreadyCompacting("Compaction already in progress")
        self._become(CompactionState.RUNNING)
        self._error = ""
        self._world.spawn(self._run_in_background())

    async def close(self) -> None:
        """End what runs. What it has written is settled by whoever loads the topic next."""
        task = self._task
        if task is not None and not task.done() and task is not asyncio.current_task():
            task.cancel()
            await asyncio.wait((task,))

    async def settle(self) -> None:
        """Delete the ledger that a run has noted and that is not the compaction's. May be repeated.

        Raises what the ledger raises: then nothing is lost, and the note stays."""
        async with self._settling:
            await self._settle()

    async def _settle(self) -> None:
        cursor = self._topic.ledger.cursors.get(COMPACTION_CURSOR)
        if cursor is None or RUN_PROPERTY not in cursor.cursor_properties:
            return
        noted = run_ledgers(cursor.cursor_properties)
        await _durable(cursor)
        # By compare-and-set: had another owner come meanwhile, one of these could be its compaction's ledger.
        await cursor.set_cursor_properties(dict(cursor.cursor_properties))
        await self._topic.ledger.delete_others(noted - {cursor.properties.get(LEDGER_PROPERTY)})
        kept = {name: value for name, value in cursor.cursor_properties.items() if name != RUN_PROPERTY}
        await cursor.set_cursor_properties(kept)

    async def discard(self) -> None:
        """The topic was emptied: delete what compaction has left of it, and end what runs. May be repeated. Raises what
        the ledger raises: then what was left may still be read."""
        await self.close()
        async with self._settling:
            cursor, found = self._topic.ledger.cursors.get(COMPACTION_CURSOR), compaction_of(self._topic.ledger)
            if cursor is not None and found is not None:
                noted = sorted(run_ledgers(cursor.cursor_properties) | {found.ledger_id})
                await self._note(cursor, noted)
                kept = {name: value for name, value in cursor.properties.items() if name != LEDGER_PROPERTY}
                await cursor.set_properties(kept)
            await self._settle()

    @staticmethod
    async def _note(cursor: Cursor, ledger_ids: Iterable[int]) -> None:
        """Which ledgers are to be looked after, by whoever has the topic then."""
        note = ",".join(str(one) for one in ledger_ids)
        await cursor.set_cursor_properties({**cursor.cursor_properties, RUN_PROPERTY: note})

    def settle_later(self) -> None:
        """Settle in the background what an earlier owner's run may have left."""
        self._world.spawn(self._settle_quietly())

    async def _settle_quietly(self) -> None:
        if self._settling.locked():
            return  # Somebody is at it.
        try:
            async with self._settling:
                if self.state is not CompactionState.RUNNING:  # It begins with that.
                    await self._settle()
        except MagnetarError as error:
            logger.warning("what a compaction of %s has left is deleted later: %s", self._topic.name, error)

    # --- a run

    async def _run_in_background(self) -> None:
        self._task = asyncio.current_task()
        clock, record = self._world.clock, self.record
        record.started(clock.now_ms())
        run: CompactionRun | None = None
        failure = "The compaction was interrupted"
        try:
            async with self._world.slots:
                run = CompactionRun(self._parts())
                await self._run(run)
            failure = ""
        except MagnetarError as error:
            failure = str(error) or repr(error)
            logger.warning("%s is not compacted: %s", self._topic.name, failure)
            await self._settle_failed()
        finally:
            removed = 0
            if run is not None:
                removed = run.latest.removed
                self._world.spawn(_forget(run.latest))
            record.ended(clock.now_ms(), removed, well=not failure)
            self._error = failure
            self._task = None
            self._become(CompactionState.ERROR if failure else CompactionState.SUCCESS)
            self._plan_retry(failed=bool(failure))

    async def _run(self, run: CompactionRun) -> None:
        topic = self._topic
        self._check()
        await topic.create_subscription(COMPACTION_CURSOR, EARLIEST)
        await self.settle()
        before = compaction_of(topic.ledger)
        end = topic.visible_entries.end()
        if before is not None:
            end = max(end, before.horizon)
        elif end[1] == NO_ENTRY:
            return  # There is nothing in it, and was nothing before.
        logger.info("compacting %s up to %d:%d", topic.name, *end)
        ledger_id = await run.run(end)
        await self._publish(ledger_id, end)
        what = "%s is compacted up to %d:%d: ledger %d, %d messages left out"
        logger.info(what, topic.name, *end, ledger_id, run.latest.removed)

    async def _announce(self, ledger_id: int) -> None:
        cursor, before = self._cursor(), compaction_of(self._topic.ledger)
        await self._note(cursor, [ledger_id] if before is None else [ledger_id, before.ledger_id])

    async def _publish(self, ledger_id: int, end: Position) -> None:
        """From here on readers get the new ledger, and the one before is deleted."""
        opened = await self._topic.ledger.open_other(ledger_id)
        await opened.close()
        self.record.entries, self.record.size_bytes = opened.last_add_confirmed + 1, opened.length_bytes
        self._check()
        cursor = self._cursor()
        # In one step: whichever write comes next has both.
        cursor.acknowledge_cumulative(end)
        await cursor.set_properties({LEDGER_PROPERTY: ledger_id})
        try:
            await self.settle()
        except MagnetarError as error:
            logger.warning("the compacted ledger of %s before is deleted later: %s", self._topic.name, error)

    async def _settle_failed(self) -> None:
        if not self._topic.closing:
            try:
                await self.settle()
            except MagnetarError as error:
                logger.warning("what a compaction of %s wrote is deleted later: %s", self._topic.name, error)

    def _check(self) -> None:
        if self._topic.closing:
            raise CompactionFailed(f"Topic {self._topic.name} is being unloaded")

    def _cursor(self) -> Cursor:
        cursor = self._topic.ledger.cursors.get(COMPACTION_CURSOR)
        if cursor is None or cursor.closed:
            raise CompactionFailed(f"The subscription {COMPACTION_CURSOR} of {self._topic.name} was removed")
        return cursor

    def _parts(self) -> RunParts:
        topic, world, settings = self._topic, self._world, self._world.settings()
        partition = topic.name.partition_index

        def options(last_left: Position) -> LedgerOptions:
            return compacted_ledger_options(
                world.ledger_settings, str(topic.name), message_id_bytes(last_left, partition), self._announce
            )

        return RunParts(
            ledger=topic.ledger,
            entries=topic.visible_entries,
            rules=KeyRules(
                keep_without_key=settings.compaction_keeps_null_keys,
                by_event_time=settings.compaction_order is CompactionOrder.EVENT_TIME,
                keys_max=settings.compaction_keys_max,
            ),
            partition=partition,
            read_seconds_max=settings.compaction_read_seconds_max,
            clock=world.clock,
            options=options,
            record=self.record,
        )

    def _plan_retry(self, *, failed: bool) -> None:
        if failed:
            self._retry_at_seconds = self._world.clock.monotonic_seconds() + self._retries.next_seconds()
        else:
            self._retries.reset()

    def _become(self, state: CompactionState) -> None:
        self.state = COMPACTION_TRANSITIONS.step(self.state, state)


async def _forget(latest: LatestKeys) -> None:
    """Let go of the keys of a run, a part of them in each turn of the loop."""
    turn = TimeSlice()
    while latest.forget_some():
        if turn.over:
            await turn.pause()


def is_unsettled(ledger: ManagedLedger) -> bool:
    """Whether a run has left a note."""
    cursor = ledger.cursors.get(COMPACTION_CURSOR)
    return cursor is not None and RUN_PROPERTY in cursor.cursor_properties


async def _durable(cursor: Cursor) -> None:
    """Wait until the state of now is stored; raises what made that fail."""
    outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def stored(error: MagnetarError | None) -> None:
        if not outcome.done():
            if error is None:
                outcome.set_result(None)
            else:
                outcome.set_exception(error)

    cursor.persist(stored)
    await outcome
