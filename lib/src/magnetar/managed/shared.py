"""The parts that all managed ledgers of a process share: stores, cache, clock, tasks and the one timer for cursors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Final, Protocol

from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError
from magnetar.ledger.api import LedgerClient, LedgerOptions
from magnetar.ledger.placement import POLICY_METADATA_KEY, isolation_metadata
from magnetar.managed.entry_cache import EntryCache
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.metadata.listeners import PathWatches
from magnetar.metadata.store import MetadataStore
from magnetar.tiered.offloaders import Offloaders

logger: Final = logging.getLogger(__name__)

FLUSH_INTERVAL_SECONDS: Final = 0.25
"""How often changed cursors are looked at; each is written at its own rate. Armed only while there are some."""

LEDGER_CREATION_SECONDS_MAX: Final = 120.0
"""Twice Pulsar's metadata operation timeout: a creation that takes longer counts as failed."""

UNSETTLED_MAX: Final = 1_000
"""Managed ledgers whose last write had no answer, of which the ledgers in doubt are remembered."""


class Flushable(Protocol):
    """A cursor's storage, as the timer sees it."""

    def flush_if_due(self, now_seconds: float) -> bool:
        """Start a write if the rate allows it; whether there is nothing left to look after."""
        ...


class TieredReaders(Protocol):
    """The readers of a managed ledger, as whoever closes unused ones sees them."""

    async def close_unused(self, since_seconds: float) -> None:
        """Close readers of offloaded ledgers that were not used since then."""
        ...


class Shared:
    """One per process, made by the factory."""

    def __init__(
        self,
        store: MetadataStore,
        ledgers: LedgerClient,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        cache: EntryCache,
        offloaders: Offloaders,
    ) -> None:
        self.store: MetadataStore = store
        self.ledgers: LedgerClient = ledgers
        self.clock: Clock = clock
        self.loop: asyncio.AbstractEventLoop = loop
        self.cache: EntryCache = cache
        self.offloaders: Offloaders = offloaders
        self.tiered_readers: dict[TieredReaders, None] = {}
        """Those that may have offloaded ledgers open, in the order in which they opened the first one."""
        self.forget: Callable[[str, object], None] = _forget_nothing
        """Told the name and the object when a managed ledger is closed."""
        self.unsettled: dict[str, set[int]] = {}
        """Ledgers that managed ledgers which are not open any more may have or not, by their names."""
        self.watches: PathWatches = PathWatches(store)
        """For the nodes of managed ledgers that other processes write."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed: dict[Flushable, None] = {}
        """In the order in which they changed, so that a run in simulated time can be repeated."""
        self._timer: asyncio.TimerHandle | None = None

    def start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run something in the background; `wait_for_tasks` waits for it. What it raises is logged."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    async def wait_for_tasks(self) -> None:
        """Until no background work is left."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def flush_later(self, storage: Flushable) -> None:
        """Have a changed cursor written by the timer."""
        self._changed[storage] = None
        if self._timer is None:
            self._timer = self.loop.call_later(FLUSH_INTERVAL_SECONDS, self._flush)

    def flushed(self, storage: Flushable) -> None:
        """The cursor is gone: look after it no more."""
        self._changed.pop(storage, None)

    def close(self) -> None:
        """Stop the timer, and watch nothing any more."""
        self.watches.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def delete_ledger(self, ledger_id: int) -> None:
        """Delete a ledger that nothing points to any more; if that fails it is lost space, which is logged."""
        self.cache.remove_ledger(ledger_id)
        try:
            await self.ledgers.delete(ledger_id)
        except MagnetarError as error:
            logger.warning("ledger %d is not deleted, its space is lost: %r", ledger_id, error)

    def left_over(self, name: str, ledger_ids: Iterable[int]) -> None:
        """Nobody knows whether the nodes of this managed ledger name these: whoever opens or deletes it next in this
        process finds out, and else they take space for ever, which is told."""
        doubtful = self.unsettled.pop(name, set()).union(ledger_ids)
        for ledger_id in sorted(ledger_ids):
            logger.warning("%s: ledger %d may be left over, and its space lost", name, ledger_id)
        if doubtful:
            self.unsettled[name] = doubtful
        if len(self.unsettled) > UNSETTLED_MAX:
            del self.unsettled[next(iter(self.unsettled))]

    def delete_later(self, ledger_id: int) -> None:
        """Delete a ledger in the background."""
        self.start(self.delete_ledger(ledger_id))

    def _flush(self) -> None:
        self._timer = None
        now = self.clock.monotonic_seconds()
        for storage in list(self._changed):
            if storage.flush_if_due(now):
                self._changed.pop(storage, None)
        if self._changed and self._timer is None:
            self._timer = self.loop.call_later(FLUSH_INTERVAL_SECONDS, self._flush)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("background work failed", exc_info=error)


def ledger_options(settings: ManagedLedgerSettings, name: str, cursor: str | None = None) -> LedgerOptions:
    """How Pulsar spreads and labels a ledger of a topic, or of one of its cursors."""
    labels = {"application": b"pulsar", "component": b"managed-ledger", "pulsar/managed-ledger": name.encode()}
    if cursor is not None:
        labels["pulsar/cursor"] = cursor.encode()
    if settings.bookie_groups is not None:
        labels[POLICY_METADATA_KEY] = isolation_metadata(*settings.bookie_groups)
    return LedgerOptions(
        ensemble_size=settings.ensemble_size,
        write_quorum=settings.write_quorum,
        ack_quorum=settings.ack_quorum,
        digest_type=settings.digest_type,
        password=settings.password,
        custom_metadata=labels,
    )


def _forget_nothing(name: str, ledger: object) -> None:
    """Before the factory says otherwise."""
