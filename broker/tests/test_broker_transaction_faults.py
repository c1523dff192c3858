"""Transactions while coordinators are killed, replaced without noticing, and while bookies and the store fail.

Whatever happens: no topic is told both ends of a transaction, whoever was answered was told the truth, no id is given
twice, and in the end everything that was decided has been told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random

import pytest
from magnetar.broker.states import CoordinatorState
from magnetar.broker.transactions.coordinator import TransactionCoordinator
from magnetar.broker.transactions.names import log_name
from magnetar.client.errors import TimedOut
from magnetar.core.errors import MagnetarError, Unavailable
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.metadata.faulty import FaultyStore, RequestFate
from magnetar.sim.virtual_time import VirtualTimeLoop
from magnetar.wire.pulsar.errors import PulsarError, ServerError

from broker.tests.transaction_stage import NOBODY, CoordinatorStage, coordinator_stage

new_event_loop = VirtualTimeLoop

TOPICS = [f"persistent://t/n/{name}" for name in "abcd"]
STEPS = 60
SMALL = ManagedLedgerSettings(max_entries_per_ledger=5, minimum_rollover_ms=0)


class Life:
    """One run: what was asked, answered and told."""

    def __init__(self, stage: CoordinatorStage, rng: Random) -> None:
        self._stage = stage
        self._rng = rng
        self._asking: set[asyncio.Task[None]] = set()
        self.store_away = False
        self.begun: list[int] = []
        self.answered: dict[int, bool] = {}
        """Whose end was confirmed, and which."""
        self.current: TransactionCoordinator | None = None

    def fate(self, verb: str, path: str) -> RequestFate:
        """Of a request to the store."""
        del verb, path
        if not self.store_away:
            return RequestFate.DONE
        return self._rng.choice((RequestFate.REFUSED, RequestFate.LOST, RequestFate.LATE))

    async def replace(self) -> None:
        """Another broker takes over; the former one has not heard of it, and goes on if it can."""
        store = FaultyStore(self._stage.world.store, self.fate)
        try:
            self.current = await self._stage.open(self._stage.world.factory(SMALL, store=store))
        except (MagnetarError, TimeoutError):
            self.current = None

    def ask(self) -> None:
        """Something of some coordinator: mostly of the one that runs."""
        known = [one for one in self._stage.opened if one is not self.current]
        asked = self._rng.choice(known) if known and self._rng.random() < 0.2 else self.current
        if asked is None:
            return
        task = asyncio.get_running_loop().create_task(self._ask(asked))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _ask(self, coordinator: TransactionCoordinator) -> None:
        rng = self._rng
        try:
            if not self.begun or rng.random() < 0.4:
                begun = await coordinator.new_transaction(rng.choice((500, 20_000, 600_000)), NOBODY)
                self.begun.append(begun.sequence)
                return
            sequence = rng.choice(self.begun[-6:])
            if rng.random() < 0.5:
                await coordinator.add_partitions(sequence, NOBODY, rng.sample(TOPICS, 2))
            else:
                commit = rng.random() < 0.6
                await coordinator.end(sequence, NOBODY, commit=commit)
                self.answered[sequence] = commit
        except MagnetarError:
            return

    def disturb(self) -> None:
        """A fault begins, or all faults end."""
        ledgers, rng = self._stage.world.ledgers, self._rng
        match rng.randrange(7):
            case 0:
                ledgers.keep_failed = rng.random() < 0.5
                ledgers.fail_appends_after = rng.randrange(3)
            case 1:
                ledgers.not_enough_bookies()
            case 2:
                self.store_away = True
            case 3:
                self._stage.participants.refusals[rng.choice(TOPICS)] = TimedOut("it is away")
            case 4:
                ledgers.unreachable = True
            case _:
                self.calm()

    def calm(self) -> None:
        """All is well."""
        ledgers = self._stage.world.ledgers
        ledgers.refuse_creation, ledgers.unreachable, self.store_away = None, False, False
        self._stage.participants.refusals.clear()

    async def settle(self) -> None:
        """All is well; a write of a former owner that was under way for long may still take the log away."""
        for _ in range(5):
            await self.replace()
            await asyncio.sleep(700)  # All times are over.
            if self.current is not None and self.current.state is CoordinatorState.READY:
                return

    async def finish(self) -> None:
        """Until everybody who asked has heard."""
        self.calm()
        while self._asking:
            await asyncio.wait(set(self._asking))


@pytest.fixture
async def stage() -> AsyncIterator[CoordinatorStage]:
    """One coordinator's world."""
    async with coordinator_stage() as opened:
        yield opened


@pytest.mark.parametrize("seed", range(60))
async def test_no_transaction_is_told_both_ends(stage: CoordinatorStage, seed: int) -> None:
    rng = Random(seed)
    life = Life(stage, rng)
    await life.replace()
    for _ in range(STEPS):
        choice = rng.random()
        if choice < 0.1 or (life.current is None and choice < 0.5):
            await life.replace()
        elif choice < 0.2:
            life.disturb()
        else:
            life.ask()
        await asyncio.sleep(rng.choice((0.0, 0.0, 0.0, 0.01, 1.5)))
    await life.finish()
    await life.settle()
    assert life.current is not None
    ends: dict[int, set[bool]] = {}
    for sequence, commit, *_ in stage.participants.told:
        ends.setdefault(sequence, set()).add(commit)
    assert [sequence for sequence, told in ends.items() if len(told) > 1] == []
    assert {sequence: {commit} for sequence, commit in life.answered.items() if sequence in ends} == {
        sequence: ends[sequence] for sequence in life.answered if sequence in ends
    }
    assert len(set(life.begun)) == len(life.begun)
    assert len(life.current.table) == 0
    assert (await life.current.new_transaction(1_000, NOBODY)).sequence > max(life.begun, default=-1)


async def test_while_the_store_is_away_the_log_goes_on_as_far_as_its_ledger_reaches(stage: CoordinatorStage) -> None:
    away = False
    store = FaultyStore(stage.world.store, lambda *_: RequestFate.REFUSED if away else RequestFate.DONE)
    coordinator = await stage.open(stage.world.factory(SMALL, store=store))
    away = True
    outcomes: list[object] = []
    for _ in range(8):
        try:
            outcomes.append((await coordinator.new_transaction(60_000, NOBODY)).sequence)
        except PulsarError as error:
            outcomes.append(error.code)
    assert outcomes == [*range(5), *[ServerError.TRANSACTION_COORDINATOR_NOT_FOUND] * 3]
    with pytest.raises((Unavailable, TimeoutError)):
        await stage.open(stage.world.factory(SMALL, store=store))
    away = False
    successor = await stage.open(stage.world.factory(SMALL, store=store))
    assert [one.id.sequence for one in successor.table][:5] == [*range(5)]
    assert (await successor.new_transaction(60_000, NOBODY)).sequence >= 5
    assert log_name(3) == successor.log.ledger.name
