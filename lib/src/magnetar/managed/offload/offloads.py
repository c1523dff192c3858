"""The offloads of one managed ledger: which run, by policy or because somebody asks, and how they fared.

One ledger at a time, as Pulsar does it. What follows from them, deletions above all, is looked after by `upkeep.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from magnetar.core.backoff import doubled
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.managed.errors import ManagedLedgerClosed, ManagedLedgerError, ManagedLedgerFenced
from magnetar.managed.ledger_list import LedgerRecord
from magnetar.managed.offload.choice import before, due_by_policy
from magnetar.managed.offload.copies import TieredAccess
from magnetar.managed.offload.counters import NOTHING_OFFLOADED, OffloadCounters
from magnetar.managed.offload.run import OffloadRun, OffloadSuperseded
from magnetar.managed.offload.upkeep import OffloadUpkeep, with_owed
from magnetar.managed.parts import ManagedLedgerParts
from magnetar.managed.states import ManagedLedgerState
from magnetar.tiered.api import OffloadRefused, OffloadUnavailable

logger: Final = logging.getLogger(__name__)

PAUSE_SECONDS: Final = 10.0
"""After a failure nothing is tried for so long, twice as long after each further one, up to an hour: as Pulsar pauses
between attempts to delete objects."""
PAUSE_SECONDS_MAX: Final = 3_600.0


class OffloadUnderWay(ManagedLedgerError):
    """An offload of this managed ledger runs already."""


class InvalidOffloadPosition(ManagedLedgerError):
    """There is no such entry, so that nothing can be offloaded up to it."""


@dataclass(frozen=True, slots=True)
class OffloadStatus:
    """How the last offload fared that somebody asked for, by Pulsar's names (`OffloadProcessStatus`)."""

    status: str = "NOT_RUN"
    """NOT_RUN, RUNNING, SUCCESS or ERROR."""
    last_error: str = ""
    first_unoffloaded: Position | None = None
    """Where the first entry is that was not to be offloaded."""


NEVER_ASKED: Final = OffloadStatus()
STOPPED: Final = OffloadStatus("ERROR", "the offload was stopped")

_NONE_UNWANTED: Final[frozenset[int]] = frozenset()
"""One for all managed ledgers: CPython makes a new empty set each time, of 216 bytes."""


class Offloads:
    """One per managed ledger. All calls on the event loop's thread."""

    __slots__ = (
        "_current",
        "_deleting",
        "_failures",
        "_looking_after",
        "_not_before_seconds",
        "_parts",
        "_running",
        "_tiered",
        "_timer",
        "_unwanted",
        "status",
    )

    def __init__(self, parts: ManagedLedgerParts, tiered: TieredAccess) -> None:
        self._parts: ManagedLedgerParts = parts
        self._tiered: TieredAccess = tiered
        self._running: asyncio.Task[None] | None = None
        self._looking_after: asyncio.Task[None] | None = None
        self._current: tuple[OffloadRun, asyncio.Task[None]] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deleting: bool = False
        self._unwanted: frozenset[int] = _NONE_UNWANTED
        """Ledgers that a trim is about to remove."""
        self._failures: int = 0
        self._not_before_seconds: float = 0.0
        self.status: OffloadStatus = NEVER_ASKED

    @property
    def counters(self) -> OffloadCounters:
        """The counters of offloads, to be read."""
        return self._tiered.counters

    def end_period(self, seconds: float) -> None:
        """A period of statistics is over."""
        if self._tiered.counters is not NOTHING_OFFLOADED:
            self._tiered.counters.end_period(seconds)

    @property
    def under_way(self) -> OffloadRun | None:
        """The offload that runs now."""
        return None if self._current is None else self._current[0]

    @property
    def due(self) -> bool:
        """Whether there is something to offload, or to delete after an offload."""
        if self._parts.appends.settings.offload.store is None or not self._allowed():
            return False
        if self._parts.shared.clock.monotonic_seconds() < self._not_before_seconds:
            return False
        return (self._running is None and bool(self._chosen())) or (
            self._looking_after is None and self._upkeep.due(self._current_ids())
        )

    def later(self) -> None:
        """Do in the background what is due."""
        if not self.due:
            return
        if self._looking_after is None and self._upkeep.due(self._current_ids()):
            self._looking_after = self._parts.shared.start(self._look_after())
        if self._running is None and self._chosen():
            self._running = self._parts.shared.start(self._by_policy())

    def loaded(self) -> None:
        """The managed ledger was opened: do what an earlier owner owes, and what is due if that is wanted."""
        if self._parts.appends.settings.offload.on_load:
            self.later()
        elif self._parts.appends.settings.offload.store is not None and self._upkeep.due(()):
            self._looking_after = self._parts.shared.start(self._look_after())

    async def until_idle(self) -> None:
        """Until nothing of it runs in the background."""
        while tasks := self._tasks():
            await asyncio.wait(tasks)

    async def offload_before(self, position: Position) -> None:
        """Start to offload what lies wholly before the ledger of an entry; `status` tells how it fares.

        `OffloadUnderWay`, `InvalidOffloadPosition`, `LedgerUnavailable` when there is no store to offload to."""
        if self._running is not None:
            raise OffloadUnderWay(f"an offload of {self._parts.appends.name} runs already")
        if not self._allowed():
            raise ManagedLedgerClosed(self._parts.appends.name)
        await self._tiered.lease()
        ledgers = self._parts.appends.ledgers
        ledger_id, entry_id = position
        if not ledgers.contains(position) and not (ledger_id == ledgers.ids[-1] and entry_id <= 0):
            raise InvalidOffloadPosition(f"there is no entry {ledger_id}:{entry_id} to offload up to")
        if self._running is not None:
            raise OffloadUnderWay(f"an offload of {self._parts.appends.name} runs already")
        chosen, first_kept = before(ledgers.records(), position)
        self.status = OffloadStatus("RUNNING")
        self._running = self._parts.shared.start(self._as_asked(chosen, first_kept))

    # --- for trimming and deletion

    async def end(self, ledger_ids: Collection[int]) -> None:
        """Stop the offload of one of these, and wait until it has stopped. What it wrote stays in its record. None of
        them is begun before `ended`."""
        self._unwanted = frozenset(ledger_ids)
        if self._current is not None and self._current[0].ledger_id in ledger_ids:
            task = self._current[1]
            task.cancel()
            await asyncio.wait((task,))

    def ended(self) -> None:
        """Ends a trimming: the ledgers that it has not deleted may be offloaded again."""
        unwanted, self._unwanted = self._unwanted, _NONE_UNWANTED
        if unwanted:
            self.later()

    def removable(self, records: Iterable[LedgerRecord]) -> list[LedgerRecord]:
        """The first of these that may leave the list now: none in the middle of its offload, and no more than objects
        can be remembered."""
        return self._upkeep.removable(records, self._current_ids())

    def owed_for(self, records: Iterable[LedgerRecord]) -> dict[str, str]:
        """The properties that are to be stored with a list which lacks these: they remember what is in tiered
        storage."""
        return with_owed({}, records)

    @property
    def has_objects(self) -> bool:
        """Whether anything of it may be in tiered storage."""
        return self._current is not None or self._upkeep.has_objects

    async def delete_all(self) -> None:
        """Before the managed ledger is deleted: remove every object, as nobody would know of it afterwards.

        Raises what the store does; then it may be tried again. From here on nothing is offloaded."""
        self._deleting = True
        await self.stop()
        try:
            await self._upkeep.delete_all()
        except BaseException:
            self._deleting = False
            raise

    async def stop(self) -> None:
        """Stop what runs. What it has begun is in the records, for the next owner. Raises nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in self._tasks():
            task.cancel()
        await self.until_idle()
        # Who was cancelled before the first step has said nothing of it.
        self._running = self._looking_after = None
        if self.status.status == "RUNNING":
            self.status = STOPPED

    async def close(self) -> None:
        """Let go of the store, once nothing runs and nothing is read from it."""
        await self._tiered.close()

    # --- the work in the background

    async def _by_policy(self) -> None:
        try:
            failure = await self._run_all(self._chosen())
        except ManagedLedgerFenced as error:
            logger.info("%s: no more offloads: %s", self._name, error)
            return
        finally:
            self._running = None
        self._pause_after(failure)

    async def _as_asked(self, chosen: Sequence[int], first_kept: Position) -> None:
        self.status = OffloadStatus("RUNNING")
        status = STOPPED
        try:
            failure = await self._run_all(chosen)
            if failure is None:
                status = OffloadStatus("SUCCESS", first_unoffloaded=first_kept)
            else:
                status = OffloadStatus("ERROR", str(failure) or repr(failure))
        except ManagedLedgerFenced as error:
            status = OffloadStatus("ERROR", str(error))
        finally:
            self._running = None
            self.status = status

    async def _run_all(self, ledger_ids: Sequence[int]) -> MagnetarError | None:
        """Offload one after the other; the first failure. A store that fails is not asked for the next one."""
        first: MagnetarError | None = None
        for ledger_id in ledger_ids:
            if ledger_id in self._unwanted:
                continue
            try:
                await self._offload(ledger_id)
            except OffloadSuperseded as error:
                logger.info("%s: %s", self._name, error)
            except ManagedLedgerFenced:
                raise
            except MagnetarError as error:
                by_store = isinstance(error, OffloadRefused | OffloadUnavailable)
                self._tiered.counted().failed(error, self._parts.shared.clock.now_ms(), by_store=by_store)
                logger.warning("%s: ledger %d is not offloaded: %r", self._name, ledger_id, error)
                first = first or error
                if by_store:
                    break
        return first

    async def _offload(self, ledger_id: int) -> None:
        run = OffloadRun(self._parts, self._tiered, ledger_id)
        task = self._parts.shared.loop.create_task(run.run())
        self._current = run, task
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait((task,))
            if not task.cancelled():
                task.exception()  # It is heard; nobody asks for it any more.
            raise
        finally:
            self._current = None
        if task.cancelled():
            raise OffloadSuperseded(f"the offload of ledger {ledger_id} was stopped, as the ledger is trimmed")
        task.result()

    async def _look_after(self) -> None:
        failure = None
        try:
            failure = await self._upkeep.run(self._current_ids)
        finally:
            self._looking_after = None
        self._pause_after(failure)

    def _pause_after(self, failure: MagnetarError | None) -> None:
        if failure is None:
            self._failures = 0
            self.later()  # What has come meanwhile is not left until somebody looks again.
            return
        pause_seconds = doubled(PAUSE_SECONDS, PAUSE_SECONDS_MAX, self._failures)
        self._failures += 1
        shared = self._parts.shared
        self._not_before_seconds = shared.clock.monotonic_seconds() + pause_seconds
        if self._timer is not None:
            self._timer.cancel()
        self._timer = shared.loop.call_later(pause_seconds, self._pause_over) if self._allowed() else None

    def _pause_over(self) -> None:
        self._timer = None
        self._not_before_seconds = 0.0
        self.later()

    def _chosen(self) -> list[int]:
        appends = self._parts.appends
        policy = appends.settings.offload
        if not policy.by_itself:
            return []
        due = due_by_policy(appends.ledgers.records(), policy, self._parts.shared.clock.now_ms())
        return [each for each in due if each not in self._unwanted] if self._unwanted else due

    def _current_ids(self) -> tuple[int, ...]:
        return () if self._current is None else (self._current[0].ledger_id,)

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [task for task in (self._running, self._looking_after) if task is not None and not task.done()]

    def _allowed(self) -> bool:
        ended = self._parts.appends.state in (ManagedLedgerState.FENCED, ManagedLedgerState.CLOSED)
        return not ended and not self._deleting

    @property
    def _upkeep(self) -> OffloadUpkeep:
        """Made when it is wanted: most managed ledgers never offload, and there are many."""
        return OffloadUpkeep(self._parts, self._tiered)

    @property
    def _name(self) -> str:
        return self._parts.appends.name
