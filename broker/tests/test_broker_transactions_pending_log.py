"""The log of pending acknowledgements over managed ledgers in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
from magnetar.broker.settings.transactions import TransactionSettings
from magnetar.broker.subscriptions.entry_reader import SubscriptionRuntime
from magnetar.broker.transactions import pending_log
from magnetar.broker.transactions.batched_writes import pending_ack_limits
from magnetar.broker.transactions.pending_log import CURSOR_NAME, PendingAckLog, PendingAckLogs
from magnetar.broker.transactions.pending_records import AckedEntry, PendingAckOperation, PendingAckRecord
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.managed.errors import ManagedLedgerClosed
from magnetar.managed.testing import ManagedWorld

from broker.tests.subscription_stage import LEDGER, MemoryCursor, Timers


@dataclass
class World:
    """A log with what it stands on; its timers fire when told to."""

    managed: ManagedWorld = field(default_factory=ManagedWorld)
    cursor: MemoryCursor = field(default_factory=MemoryCursor)
    timers: Timers = field(default_factory=Timers)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def spawn(self, work: Coroutine[Any, Any, None], /) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    def log(self, **settings: Any) -> PendingAckLog:
        """The next owner's log."""
        runtime = SubscriptionRuntime(self.timers, self.spawn, self.timers.call_later)
        shared = TransactionSettings(enabled=True, **settings)
        logs = PendingAckLogs(
            ledgers=self.managed.factory(), settings=shared, runtime=runtime, limits=pending_ack_limits(shared)
        )
        cursor: Any = self.cursor
        return PendingAckLog(logs, "log", cursor)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.managed.close()


def ack(entry_id: int) -> PendingAckRecord:
    entry = AckedEntry((LEDGER, entry_id), (), 0)
    return PendingAckRecord(PendingAckOperation.ACK, (0, entry_id), cumulative=False, entries=[entry])


async def opened(log: PendingAckLog) -> bool:
    return await log.open(log._logs.ledgers.settings, create=False)


async def stored(log: PendingAckLog, *records: PendingAckRecord) -> list[MagnetarError | None]:
    """Append, and wait until each is told."""
    outcomes: list[asyncio.Future[MagnetarError | None]] = []
    for record in records:
        outcome: asyncio.Future[MagnetarError | None] = asyncio.get_running_loop().create_future()
        outcomes.append(outcome)
        log.append(record, outcome.set_result)
    return await asyncio.gather(*outcomes)


def trimmed(log: PendingAckLog) -> Position:
    assert log.ledger is not None
    return log.ledger.cursors[CURSOR_NAME].mark_delete


async def replayed(log: PendingAckLog) -> list[PendingAckRecord]:
    return [record._replace(entries=list(record.entries)) async for record in log.replay()]


async def test_what_waits_for_the_ledger_is_stored_in_order(world: World) -> None:
    log = world.log()
    assert not await opened(log)
    assert await replayed(log) == []
    assert await stored(log, ack(0), ack(1), ack(2)) == [None] * 3
    await log.close()
    after = world.log()
    assert await opened(after)
    assert await replayed(after) == [ack(0), ack(1), ack(2)]


async def test_the_log_is_trimmed_by_durable_marks_only(world: World) -> None:
    log = world.log(pending_ack_index_lag_min=1)
    await opened(log)
    for _ in range(3):
        world.cursor.append(b"")
    await stored(log, ack(0))
    before = trimmed(log)
    world.cursor.acknowledge([(LEDGER, 0)])
    await stored(log, ack(1))
    assert (trimmed(log), len(world.cursor.persisted)) == (before, 1)
    world.cursor.persisted.pop()(MagnetarError("not stored"))
    assert trimmed(log) == before
    await stored(log, ack(2))
    # What is acknowledged after it was asked for is not durable with it.
    world.cursor.acknowledge([(LEDGER, 1), (LEDGER, 2)])
    world.cursor.persisted.pop()(None)
    assert trimmed(log) == (before[0], 0)


async def test_a_batch_is_written_when_its_time_has_come(world: World) -> None:
    log = world.log(pending_ack_batched=True, pending_ack_batch_records_max=3, pending_ack_batch_bytes_max=400)
    await opened(log)
    assert await stored(log, ack(0), ack(1), ack(2)) == [None] * 3
    waiting = asyncio.ensure_future(stored(log, ack(3)))
    await asyncio.sleep(0)
    assert not waiting.done()
    world.timers.advance(1)
    assert await waiting == [None]
    entries = [AckedEntry((LEDGER, number), (), 0) for number in range(20)]
    large = PendingAckRecord(PendingAckOperation.ACK, (0, 9), cumulative=False, entries=entries)
    both = asyncio.ensure_future(stored(log, ack(4), large))
    assert await both == [None, None]
    assert log.ledger is not None
    assert log.ledger.ledgers.number_of_entries() == 4
    await log.close()
    after = world.log(pending_ack_batched=True)
    await opened(after)
    assert await replayed(after) == [*map(ack, range(5)), large]


@pytest.mark.parametrize("bound", ["WAITING_RECORDS_MAX", "WAITING_BYTES_MAX"])
async def test_it_is_full_while_so_much_waits_to_be_stored(
    world: World, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    each = 1 if bound == "WAITING_RECORDS_MAX" else pending_log.RECORD_BYTES + pending_log.ENTRY_BYTES
    monkeypatch.setattr(pending_log, bound, 3 * each)
    log = world.log()
    await opened(log)
    waiting = [asyncio.ensure_future(stored(log, ack(number))) for number in range(2)]
    await asyncio.sleep(0)
    full = [log.full]
    waiting.append(asyncio.ensure_future(stored(log, ack(2))))
    await asyncio.sleep(0)
    full.append(log.full)
    await asyncio.gather(*waiting)
    assert [*full, log.full] == [False, True, False]


async def test_records_of_a_batch_that_its_cursor_has_acknowledged_are_left_out(world: World) -> None:
    log = world.log(pending_ack_batched=True, pending_ack_batch_records_max=3)
    await opened(log)
    await stored(log, ack(0), ack(1), ack(2))
    assert log.ledger is not None
    position = log.ledger.ledgers.first_position()
    log.ledger.cursors[CURSOR_NAME].acknowledge_batch_indexes(position, [0b101], 3)
    assert await replayed(log) == [ack(0), ack(2)]


async def test_who_waits_when_it_is_closed_is_told(world: World) -> None:
    log = world.log(pending_ack_batched=True)
    await opened(log)
    waiting = asyncio.ensure_future(stored(log, ack(0)))
    await asyncio.sleep(0)
    await log.abandon()
    (error,) = await waiting
    assert isinstance(error, ManagedLedgerClosed)
