"""The garbage collectors of one bookie, one for each ledger directory, at work until closed."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Protocol

from magnetar.bookie.gc.collector import GarbageCollector
from magnetar.bookie.gc.live_ledgers import LedgerLocks, StoredLiveLedgers
from magnetar.bookie.gc.settings import GarbageCollectionSettings
from magnetar.bookie.storage.ledger_storage import LedgerStorage
from magnetar.core.clock import Clock
from magnetar.metadata.store import MetadataStore


class CollectedParts(Protocol):
    """What stands behind it: `BookieParts`."""

    @property
    def storage(self) -> LedgerStorage: ...
    def forget_ledgers(self, ledger_ids: Collection[int]) -> None: ...


class CollectedBookie(Protocol):
    """A bookie whose garbage is collected: `RunningBookie`."""

    @property
    def bookie_id(self) -> str: ...
    @property
    def parts(self) -> CollectedParts: ...


class Collectors:
    """The collectors of one bookie. To be closed before the bookie."""

    def __init__(
        self,
        bookie: CollectedBookie,
        store: MetadataStore,
        settings: GarbageCollectionSettings,
        clock: Clock,
        *,
        locks: LedgerLocks | None = None,
    ) -> None:
        """Without AutoRecovery's `locks` no over-replicated ledgers are looked for: where there is no AutoRecovery
        there are none."""
        live = StoredLiveLedgers(store, bookie.bookie_id)
        self._wait_seconds = settings.wait_seconds
        self._tasks: list[asyncio.Task[None]] = []
        self.all: Sequence[GarbageCollector] = [
            GarbageCollector(
                storage, live, settings, clock, bookie.parts.forget_ledgers, bookie_id=bookie.bookie_id, locks=locks
            )
            for storage in bookie.parts.storage.directories
        ]
        """In the order of the ledger directories."""

    def start(self) -> None:
        """Collect every so often, each directory at a time of its own."""
        loop = asyncio.get_running_loop()
        for number, collector in enumerate(self.all):
            delay = number * self._wait_seconds / len(self.all)
            self._tasks.append(loop.create_task(collector.run(delay), name=f"bookie-gc-{number}"))

    async def close(self) -> None:
        """Stop; what is under way is finished by the next start. Closing twice is no error."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for collector in self.all:
            await collector.close()
