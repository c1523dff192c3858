"""Deletes the ledgers of one directory that nobody has any more, or that others have instead."""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, TypeVar

from magnetar.bookie.gc.background import step
from magnetar.bookie.gc.live_ledgers import LedgerLocks, LiveLedgers
from magnetar.bookie.gc.plan import MissingLedgers
from magnetar.bookie.gc.settings import GarbageCollectionSettings
from magnetar.bookie.gc.status import CollectionReport
from magnetar.bookie.storage.directory_storage import DirectoryStorage
from magnetar.core.clock import Clock

logger: Final = logging.getLogger(__name__)

LEDGERS_PER_LOOK: Final = 64
"""Ledgers read from the index at once: two milliseconds where many were deleted before, less elsewhere."""

LEDGERS_PER_STEP: Final = 256
"""Ledgers that are deleted from the index in one step."""

LIVE_PER_TURN: Final = 1_000
"""Live ledgers compared without a look at the event loop: half a millisecond."""

REQUESTS_MAX: Final = 64
"""Reads of the metadata store in flight; more would not be answered sooner."""

SUSPECTS_MAX: Final = 10_000
"""Over-replicated ledgers of one look; more are found by the next one."""

_T = TypeVar("_T")


class LedgerCollection:
    """Steps of a collection; on the event loop."""

    def __init__(
        self,
        storage: DirectoryStorage,
        live_ledgers: LiveLedgers,
        settings: GarbageCollectionSettings,
        clock: Clock,
        states_removed: Callable[[Sequence[int]], None],
    ) -> None:
        """`states_removed` is told of ledgers that are no longer in the index, so that memory forgets them too."""
        self._storage = storage
        self._live = live_ledgers
        self._settings = settings
        self._clock = clock
        self._states_removed = states_removed
        self._looked_at = clock.monotonic_seconds()
        self._suspects: dict[int, int] = {}
        self._suspected_at = 0.0
        self._deletions_unsure = False

    async def local_ledgers(self) -> array[int]:
        """The directory's ledgers that the index knows, ascending. OSError."""
        found = array("q")
        some: list[int] = []
        while True:
            first = some[-1] + 1 if some else 0
            some = await step(self._storage, partial(self._storage.index.stored_ledger_ids, first, LEDGERS_PER_LOOK))
            found.extend(some)
            if len(some) < LEDGERS_PER_LOOK:
                return found

    async def delete_missing(self, local: Sequence[int], report: CollectionReport) -> list[int]:
        """Delete the local ledgers that have no metadata. They are returned, also those that the index could not
        delete now: what entry logs have of them is garbage all the same. `MagnetarError`: then nothing was deleted."""
        await self._live.catch_up()
        comparison = MissingLedgers(local)
        some: list[int] = []
        async for ledger_id in self._live.ledger_ids():
            some.append(ledger_id)
            if len(some) == LIVE_PER_TURN:
                comparison.take(some)
                some.clear()
                await asyncio.sleep(0)
        comparison.take(some)
        missing = comparison.finish()
        if missing and self._settings.verify_metadata:
            there = await self._ask(self._live.exists, missing)
            for ledger_id, exists in zip(missing, there, strict=True):
                if exists:
                    logger.warning("ledger %d is not in the listing but has metadata; it stays", ledger_id)
            missing = [ledger_id for ledger_id, exists in zip(missing, there, strict=True) if not exists]
        for ledger_ids in _parts(missing, LEDGERS_PER_STEP):
            try:
                await self._delete(ledger_ids, report)
            except OSError as error:
                # On a full disk the index may have no room to say so; logs are emptied, and then it will have.
                report.problems.append(f"{len(ledger_ids)} deleted ledgers stay in the index: {error}")
        return missing

    async def delete_over_replicated(
        self, local: Sequence[int], bookie_id: str, locks: LedgerLocks, report: CollectionReport
    ) -> list[int]:
        """Delete closed ledgers of which no segment names this bookie; they are returned. `MagnetarError`, OSError.

        Looked for once in a while; deleted by a later collection, not sooner than the usual wait, if nothing was
        added to them since: whoever copies a ledger to this bookie writes entries first and metadata last. And under
        the lock that keeps replication workers away, after one more look at the metadata."""
        now = self._clock.monotonic_seconds()
        deleted: list[int] = []
        if self._suspects and now - self._suspected_at >= self._settings.wait_seconds:
            suspects, self._suspects = self._suspects, {}
            await self._live.catch_up()
            for ledger_id, last_entry_id in suspects.items():
                if await self._unchanged(ledger_id, last_entry_id) and await self._delete_locked(
                    ledger_id, bookie_id, locks, report
                ):
                    deleted.append(ledger_id)
        interval = self._settings.over_replicated_wait_seconds
        if interval > 0 and now - self._looked_at > interval and not self._suspects:
            self._looked_at = self._suspected_at = now
            belongs = await self._ask(partial(self._belongs_to, bookie_id), local)
            suspects_found = [ledger_id for ledger_id, here in zip(local, belongs, strict=True) if here is False]
            for ledger_id in suspects_found[:SUSPECTS_MAX]:
                last = await step(self._storage, partial(self._storage.index.last_entry_id, ledger_id))
                self._suspects[ledger_id] = last
        return deleted

    async def _belongs_to(self, bookie_id: str, ledger_id: int) -> bool | None:
        return await self._live.belongs_to(ledger_id, bookie_id)

    async def _unchanged(self, ledger_id: int, last_entry_id: int) -> bool:
        if self._storage.cache.last_entry_id(ledger_id) >= 0:
            return False
        last: int = await step(self._storage, partial(self._storage.index.last_entry_id, ledger_id))
        return last == last_entry_id

    async def _delete_locked(
        self, ledger_id: int, bookie_id: str, locks: LedgerLocks, report: CollectionReport
    ) -> bool:
        lock = await locks.lock(ledger_id)
        if lock is None:
            return False
        try:
            if await self._live.belongs_to(ledger_id, bookie_id) is not False or lock.lost:
                return False
            if self._storage.cache.last_entry_id(ledger_id) >= 0:
                return False
            logger.info("deleting ledger %d, which other bookies have", ledger_id)
            await self._delete([ledger_id], report)
            report.over_replicated_deleted += 1
            return True
        finally:
            await lock.release()

    async def settle_deletions(self) -> None:
        """Before the index is asked for its ledgers: it may be opened again for this, and have ledgers again that an
        earlier collection has deleted. OSError: what that one deleted may not be durable now, either."""
        if self._deletions_unsure:
            await step(self._storage, self._storage.index.sync)
            self._deletions_unsure = False

    @property
    def deletions_unsure(self) -> bool:
        """Whether the index on the disk may still name entries of ledgers that were deleted."""
        return self._deletions_unsure

    async def _delete(self, ledger_ids: Sequence[int], report: CollectionReport) -> None:
        try:
            await step(self._storage, partial(self._storage.index.delete_ledgers, ledger_ids))
        except OSError:
            self._deletions_unsure = True
            raise
        report.ledgers_deleted += len(ledger_ids)
        self._states_removed(ledger_ids)

    async def _ask(self, question: Callable[[int], Awaitable[_T]], ledger_ids: Sequence[int]) -> list[_T]:
        """The answers in order, asked for at the rate that is allowed. The first error, once all others are there."""
        begun = self._clock.monotonic_seconds()
        answers: list[_T] = []
        width = min(REQUESTS_MAX, self._settings.over_replicated_requests_max)
        for some in _parts(ledger_ids, width):
            results = await asyncio.gather(*map(question, some), return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    raise result
                answers.append(result)
            earned = len(answers) / self._settings.metadata_reads_per_second
            await asyncio.sleep(max(0.0, begun + earned - self._clock.monotonic_seconds()))
        return answers


def without(ledger_ids: Sequence[int], removed: Iterable[int]) -> array[int]:
    """`ledger_ids` (ascending) but for the removed ones."""
    gone = set(removed)
    return array("q", [ledger_id for ledger_id in ledger_ids if ledger_id not in gone] if gone else ledger_ids)


def _parts(ledger_ids: Sequence[int], count: int) -> Iterator[Sequence[int]]:
    for at in range(0, len(ledger_ids), count):
        yield list(ledger_ids[at : at + count])
