"""Moves the replicas of one bookie to others, ledger by ledger, and checks what it has moved."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from magnetar.bookie.autorecovery.fragments import FragmentState
from magnetar.bookie.autorecovery.parallel import for_each
from magnetar.bookie.autorecovery.replication.replicator import LedgerReplicator
from magnetar.bookie.autorecovery.replication.result import ProblemKind, ReplicationResult, ReplicationScope
from magnetar.bookie.autorecovery.replication.throttle import RateMeter
from magnetar.bookie.autorecovery.replication.worker import unless_lost
from magnetar.bookie.autorecovery.replication_lock import ReplicationLock
from magnetar.bookie.autorecovery.underreplication import UnderreplicatedLedgers
from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError
from magnetar.ledger.api import LedgerNotFound
from magnetar.ledger.bookie_client.bookie_connection import BookieConnections
from magnetar.ledger.client import BookKeeperClient

logger: Final = logging.getLogger(__name__)

SAMPLES_MAX: Final = 100
"""Moved fragments that are looked at once more before the cookie goes, chosen at random from all of them."""

LOCKED: Final = "another replicates it now"
FAILED_BEFORE: Final = "it is tried again, after it has failed at"
"""Who, and why, follow. A worker keeps the lock of a ledger for a while after a failure."""


class LedgerMover:
    """Moves the ledgers of one bookie."""

    def __init__(
        self,
        bookie_id: str,
        client: BookKeeperClient,
        connections: BookieConnections,
        underreplicated: UnderreplicatedLedgers,
        replicator: LedgerReplicator,
        clock: Clock,
    ) -> None:
        self.blockers: dict[int, str] = {}
        """Ledger → why it could not be moved yet. One entry per ledger that names the bookie at most."""
        self.meter = RateMeter(clock)
        self._bookie_id = bookie_id
        self._client = client
        self._connections = connections
        self._underreplicated = underreplicated
        self._replicator = replicator
        self._clock = clock
        self._open_since: dict[int, float] = {}
        self._samples: list[tuple[int, int, str]] = []
        self._moves_seen = 0
        self._rng = random.Random(0)  # noqa: S311  (which fragments are looked at twice is no secret)

    async def move(self, ledger_ids: Sequence[int], on_moved: Callable[[], None]) -> None:
        """Try every ledger once; `on_moved` is called for each that does not name the bookie any more, `blockers` says
        what is with the others."""

        async def one(ledger_id: int) -> None:
            problem = await self._move_locked(ledger_id)
            if problem is None:
                on_moved()
                self.blockers.pop(ledger_id, None)
                self._open_since.pop(ledger_id, None)
            else:
                self.blockers[ledger_id] = problem

        await for_each(_each(ledger_ids), one, self._replicator.settings.ledgers_at_a_time)

    async def verify(self) -> list[tuple[int, str]]:
        """(ledger, problem) of samples of what was moved that do not have their first and last entries, and could not
        be repaired. Each sample is looked at until it was found good."""
        problems: list[tuple[int, str]] = []
        for sample in list(self._samples):
            ledger_id, first_entry_id, bookie_id = sample
            problem = await self._check(ledger_id, first_entry_id, bookie_id)
            if problem is not None:
                await self._repair(ledger_id)
                problem = await self._check(ledger_id, first_entry_id, bookie_id)
            if problem is None:
                self._samples.remove(sample)
            else:
                problems.append((ledger_id, problem))
        return problems

    async def _move_locked(self, ledger_id: int) -> str | None:
        """None when it is done, else why not."""
        lock: ReplicationLock | None = None
        try:
            lock = await self._underreplicated.lock(ledger_id)
            if lock is not None:
                return await self._move(ledger_id, lock)
            problem = await self._underreplicated.problem(ledger_id)
            return f"{FAILED_BEFORE} {problem}" if problem else LOCKED
        except MagnetarError as error:
            # A quorum or the store is away, or the metadata is damaged: named, and tried again.
            logger.warning("ledger %d cannot leave bookie %s now: %s", ledger_id, self._bookie_id, error)
            return str(error)
        finally:
            if lock is not None:
                await lock.release()

    async def _move(self, ledger_id: int, lock: ReplicationLock) -> str | None:
        result = await unless_lost(lock, self._replicate(ledger_id, ReplicationScope.AVOIDED))
        if result is None:
            return LOCKED
        if result.has(ProblemKind.OPEN) and self._has_been_open(ledger_id):
            await unless_lost(lock, self._close(ledger_id))
            result = await unless_lost(lock, self._replicate(ledger_id, ReplicationScope.AVOIDED))
            if result is None:
                return LOCKED
        return None if result.complete else result.reason

    async def _replicate(self, ledger_id: int, scope: ReplicationScope) -> ReplicationResult:
        result = await self._replicator.replicate(
            ledger_id, avoid=(self._bookie_id,), on_progress=self._copied, scope=scope
        )
        for first_entry_id, bookie_id in result.moves:
            self._remember((ledger_id, first_entry_id, bookie_id))
        return result

    async def _close(self, ledger_id: int) -> bool:
        await self._replicator.close_open_ledger(ledger_id, avoid=(self._bookie_id,))
        return True

    def _has_been_open(self, ledger_id: int) -> bool:
        """Whether its writer had time to replace the bookie, which refuses its entries."""
        now = self._clock.monotonic_seconds()
        since = self._open_since.setdefault(ledger_id, now)
        return now - since >= self._replicator.settings.open_ledger_grace_seconds

    def _copied(self, entries: int, size_bytes: int) -> None:
        self.meter.add(size_bytes)

    def _remember(self, move: tuple[int, int, str]) -> None:
        self._moves_seen += 1
        if len(self._samples) < SAMPLES_MAX:
            self._samples.append(move)
            return
        place = self._rng.randrange(self._moves_seen)
        if place < SAMPLES_MAX:
            self._samples[place] = move

    async def _check(self, ledger_id: int, first_entry_id: int, bookie_id: str) -> str | None:
        try:
            metadata, _ = await self._client.metadata.read(ledger_id)
        except LedgerNotFound:
            return None
        verdict = await self._replicator.check_bookie(ledger_id, metadata, first_entry_id, bookie_id)
        if verdict is FragmentState.LOST or verdict is FragmentState.PRESENT:
            # That another bookie has died meanwhile is for the auditor to see.
            return None
        return f"its copy on {bookie_id} from entry {first_entry_id} on is {verdict.name.lower()}"

    async def _repair(self, ledger_id: int) -> None:
        lock = await self._underreplicated.lock(ledger_id)
        if lock is None:
            return
        try:
            await unless_lost(lock, self._replicate(ledger_id, ReplicationScope.WHOLE))
        finally:
            await lock.release()


async def _each(ledger_ids: Sequence[int]) -> AsyncIterator[int]:
    for ledger_id in ledger_ids:
        # Other tasks have their turn although nothing is waited for here.
        await asyncio.sleep(0)
        yield ledger_id
