"""A coordinator over managed ledgers in memory, with participants that do as the test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from magnetar.broker.settings.transactions import TransactionSettings
from magnetar.broker.transactions.api import Asker, EndedTransaction
from magnetar.broker.transactions.batched_writes import log_limits
from magnetar.broker.transactions.coordinator import CoordinatorParts, TransactionCoordinator
from magnetar.broker.transactions.coordinator_log import CoordinatorLog
from magnetar.core.errors import MagnetarError
from magnetar.managed.factory import ManagedLedgerFactory
from magnetar.managed.testing import ManagedWorld
from magnetar.sim.virtual_time import LoopClock

NOBODY = Asker("", super_user=False)


class ToldParticipants:
    """Remembers what it is told: a `Participants`."""

    def __init__(self) -> None:
        self.told: list[tuple[int, bool, int, str, str]] = []
        """(sequence, commit, low-water mark, topic, subscription or empty)."""
        self.refusals: dict[str, MagnetarError] = {}
        """By topic: what it answers."""
        self.held: asyncio.Event | None = None
        """None answers until it is set."""
        self.attempts = 0
        self.at_once = 0
        self.at_once_max = 0

    async def end_on_partition(self, ended: EndedTransaction, topic: str) -> None:
        """As told."""
        await self._take(ended, topic, "")

    async def end_on_subscription(self, ended: EndedTransaction, topic: str, subscription: str) -> None:
        """As told."""
        await self._take(ended, topic, subscription)

    async def _take(self, ended: EndedTransaction, topic: str, subscription: str) -> None:
        self.attempts += 1
        self.at_once += 1
        self.at_once_max = max(self.at_once, self.at_once_max)
        try:
            if self.held is not None:
                await self.held.wait()
            if topic in self.refusals:
                raise self.refusals[topic]
        finally:
            self.at_once -= 1
        self.told.append((ended.id.sequence, ended.commit, ended.low_water_mark, topic, subscription))

    def outcomes(self) -> dict[tuple[str, str], list[tuple[int, bool]]]:
        """What each was told, in order."""
        found: dict[tuple[str, str], list[tuple[int, bool]]] = {}
        for sequence, commit, _, topic, subscription in self.told:
            found.setdefault((topic, subscription), []).append((sequence, commit))
        return found


class CoordinatorStage:
    """The life of coordinator 3, in virtual time: opened, killed, opened again."""

    def __init__(self) -> None:
        self.world = ManagedWorld()
        self.participants = ToldParticipants()
        self.settings = TransactionSettings(enabled=True)
        self.failures: list[MagnetarError] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.opened: list[TransactionCoordinator] = []

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """On the side; a mistake is the test's failure at the end."""
        self._tasks.add(asyncio.get_running_loop().create_task(work))

    async def open(self, factory: ManagedLedgerFactory | None = None, **settings: Any) -> TransactionCoordinator:
        """By another broker, which fences the one before."""
        chosen = replace(self.settings, **settings)
        log = await self.open_log(factory, chosen)
        parts = CoordinatorParts(
            settings=chosen,
            log_limits=log_limits(chosen),
            clock=LoopClock(),
            participants=self.participants,
            spawn=self.spawn,
            call_later=asyncio.get_running_loop().call_later,
        )
        coordinator = TransactionCoordinator(3, log, parts, lambda _, error: self.failures.append(error))
        self.opened.append(coordinator)
        await coordinator.recover()
        return coordinator

    async def open_log(
        self, factory: ManagedLedgerFactory | None = None, settings: TransactionSettings | None = None
    ) -> CoordinatorLog:
        """Its log alone."""
        limits = log_limits(settings or self.settings)
        ledgers = factory or self.world.factory()
        return await CoordinatorLog.open(ledgers, 3, limits, asyncio.get_running_loop().call_later)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait, in virtual time."""
        async with asyncio.timeout(1_000):
            while not holds():
                await asyncio.sleep(0.01)

    async def close(self) -> None:
        """Everything; attempts under way end by themselves."""
        for coordinator in self.opened:
            await coordinator.abandon()
        if self.participants.held is not None:
            self.participants.held.set()
        if self._tasks:
            await asyncio.gather(*self._tasks)
        await self.world.close()


@asynccontextmanager
async def coordinator_stage() -> AsyncIterator[CoordinatorStage]:
    """One, closed at the end."""
    stage = CoordinatorStage()
    try:
        yield stage
    finally:
        await stage.close()
