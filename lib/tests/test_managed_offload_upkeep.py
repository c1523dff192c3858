"""What keeps offloads apart from one another: whose turn it is, what has changed meanwhile, and what is counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import pytest
from magnetar.ledger.api import LedgerReader, LedgerUnavailable
from magnetar.managed.ledger_list import LedgerRecord
from magnetar.managed.offload import upkeep
from magnetar.managed.offload.context import begun, copy_of
from magnetar.managed.offload.copies import CopiesReader, LedgerCopy, TieredAccess
from magnetar.managed.offload.counters import OffloadCounters
from magnetar.managed.offload.owed import owed_objects
from magnetar.managed.paths import ledger_path
from magnetar.managed.testing import append
from magnetar.metadata.faulty import RequestFate
from magnetar.sim.virtual_time import VirtualTimeLoop
from magnetar.tiered.api import OffloadUnavailable
from magnetar.tiered.policy import NO_OFFLOAD

from lib.tests.managed_world import NAME
from lib.tests.offload_world import ASKED, HOUR_MS, OffloadWorld, keeping, prepared, until_done, with_policy

new_event_loop = VirtualTimeLoop

ANOTHER_UID = UUID("00000000-0000-4000-0000-000000000002")


@pytest.fixture
async def world() -> AsyncIterator[OffloadWorld]:
    world = OffloadWorld()
    yield world
    for offloader in world.stores.made:
        offloader.hold.set()
    await world.close()


async def test_an_offload_under_way_is_not_given_up_by_the_upkeep_beside_it(world: OffloadWorld) -> None:
    """Its objects are about to be whole: only what nobody works at any more is cleared up."""
    ledger = await world.filled(keeping(ASKED))
    await prepared(ledger)
    await ledger.offloads.offload_before((2, 0))
    await ledger.offloads.until_idle()
    world.clock.ms += 5 * HOUR_MS
    world.offloader.stop_at = "data"
    await ledger.offloads.offload_before((3, 0))
    await world.offloader.stopped.wait()
    ledger.offloads.later()
    await asyncio.sleep(10)
    assert set(world.ledgers.stored) == {2, 3}, "the upkeep has done its work"
    record = ledger.ledgers.get(2)
    assert record is not None
    assert copy_of(record) is not None
    assert owed_objects((await world.info()).properties) == {}
    await ledger.offloads.stop()


async def test_the_turn_of_the_upkeep_is_given_back(world: OffloadWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "UPKEEP_AT_ONCE_MAX", 1)
    ledger = await world.filled()
    async with asyncio.timeout(60):
        for _ in range(2):
            await until_done(ledger)
            world.clock.ms += 5 * HOUR_MS
            await until_done(ledger)
            for _ in range(4):
                await append(ledger, [b"more"])
        await until_done(ledger)
    assert set(world.ledgers.stored) == {4, 5}


async def test_a_copy_stays_that_the_policy_keeps_since_it_was_looked_at(world: OffloadWorld) -> None:
    """Looking takes time, and the policy of that moment decides."""
    ledger = await world.filled()
    await until_done(ledger)
    world.clock.ms += 5 * HOUR_MS
    world.offloader.hold.clear()
    ledger.offloads.later()
    await asyncio.sleep(1)
    ledger.settings = with_policy(keeping(), deletion_lag_ms=None)
    world.offloader.hold.set()
    await until_done(ledger)
    assert set(world.ledgers.stored) == {0, 1, 2, 3}
    await world.check_settled()


async def test_few_copies_are_looked_at_before_what_was_found_is_stored(
    world: OffloadWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "LEDGERS_AT_ONCE", 2)
    ledger = await world.filled()
    await until_done(ledger)
    given_up: list[tuple[int, int]] = []
    verify = TieredAccess.verify

    async def watched(self: TieredAccess, record: LedgerRecord) -> None:
        copies = [copy_of(each) for each in (await world.info()).records]
        given_up.append((record.ledger_id, sum(copy is not None and copy.bookkeeper_deleted for copy in copies)))
        await verify(self, record)

    monkeypatch.setattr(TieredAccess, "verify", watched)
    world.clock.ms += 5 * HOUR_MS
    await until_done(ledger)
    assert given_up == [(0, 0), (1, 0), (2, 2)]


async def test_the_first_entry_of_a_copy_is_looked_at_too(world: OffloadWorld) -> None:
    ledger = await world.filled(keeping(ASKED))
    await prepared(ledger)
    world.offloader.damaged.add((0, 0))
    await ledger.offloads.offload_before((1, 0))
    await ledger.offloads.until_idle()
    assert ledger.offloads.status.status == "ERROR"
    assert await world.offloaded_ids() == []


async def test_an_offload_completes_no_other_copy(world: OffloadWorld) -> None:
    """The record names another copy by now, of which nobody knows that it is whole."""
    ledger = await world.filled(keeping(ASKED))
    await prepared(ledger)
    world.offloader.hold.clear()
    await ledger.offloads.offload_before((1, 0))
    await asyncio.sleep(1)
    record = ledger.ledgers.get(0)
    assert record is not None
    record.rest = begun(record, ANOTHER_UID, "aws-s3", {"bucket": "a-bucket"}).rest
    world.offloader.hold.set()
    await ledger.offloads.until_idle()
    copy = copy_of(record)
    assert copy is not None
    assert (copy.uid, copy.complete) == (ANOTHER_UID, False)


async def test_a_ledger_that_bookies_have_less_of_is_not_copied(world: OffloadWorld) -> None:
    """That is found out before the copy, which may take hours."""
    ledger = await world.filled(keeping(ASKED))
    await prepared(ledger)
    record = ledger.ledgers.get(0)
    assert record is not None
    record.entries += 1
    await ledger.offloads.offload_before((1, 0))
    await ledger.offloads.until_idle()
    assert "has 4 entries at the bookies, and 5 in the list" in ledger.offloads.status.last_error
    assert world.offloader.most_under_way == 0


async def test_what_bookies_cannot_give_is_no_failure_of_the_store(world: OffloadWorld) -> None:
    ledger = await world.filled(keeping(ASKED))
    world.ledgers.away.add(1)
    await ledger.offloads.offload_before((3, 0))
    await ledger.offloads.until_idle()
    assert (ledger.offloads.counters.offload_errors, ledger.offloads.counters.write_errors) == (1, 0)


def test_rates_are_of_the_last_period_alone() -> None:
    counters = OffloadCounters()
    counters.offloaded(7, 600, 1)
    counters.read_bytes += 300
    counters.end_period(60.0)
    assert (counters.offload_bytes_per_second, counters.read_bytes_per_second) == (10.0, 5.0)
    counters.end_period(60.0)
    assert (counters.offload_bytes_per_second, counters.read_bytes_per_second) == (0.0, 0.0)
    assert (counters.offloaded_bytes, counters.read_bytes) == (600, 300)


class WaitingReader:
    """A `LedgerReader` whose reads wait for one another, and may fail then."""

    def __init__(self, failure: LedgerUnavailable | None = None) -> None:
        self.ledger_id = 7
        self.last_add_confirmed = 3
        self.length_bytes = 4
        self.closed = True
        self.goes_on = asyncio.Event()
        self._failure = failure

    async def read(self, first_entry_id: int, last_entry_id: int) -> list[bytes]:
        """Wait, then fail or give the entries."""
        await self.goes_on.wait()
        if self._failure is not None:
            raise self._failure
        return [b"%d" % entry_id for entry_id in range(first_entry_id, last_entry_id + 1)]

    async def close(self) -> None:
        """Nothing is held."""


async def test_two_reads_that_fail_at_once_both_go_on_with_the_next_copy() -> None:
    """The second one must not take its failure for one of the copy that the first has gone on to."""
    bad, good = WaitingReader(OffloadUnavailable("no answer")), WaitingReader()
    good.goes_on.set()
    counters = OffloadCounters()

    async def open_bad() -> LedgerReader:
        return bad

    async def open_good() -> LedgerReader:
        return good

    reader = CopiesReader([LedgerCopy("one", True, open_bad), LedgerCopy("other", False, open_good)], lambda: counters)
    await reader.open()
    reads = [asyncio.create_task(reader.read(number, number)) for number in (0, 1)]
    await asyncio.sleep(1)
    bad.goes_on.set()
    assert await asyncio.gather(*reads) == [[b"0"], [b"1"]]
    assert counters.read_errors == 1


async def test_due_times_that_were_not_stored_are_stored_another_time(world: OffloadWorld) -> None:
    """A write that failed has not told the next owner of them."""
    settings = keeping(NO_OFFLOAD, retention_time_ms=HOUR_MS)
    ledger = await world.filled(settings)
    due_ms = world.clock.ms + 9 * HOUR_MS
    ledger.ledgers.note_due(0, due_ms)
    world.next_fates(ledger_path(NAME), *[RequestFate.REFUSED] * 9)
    await ledger.trim_if_due()
    unstored = [ledger.ledgers.due_unstored]
    world.fates.clear()
    await ledger.trim_if_due()
    unstored.append(ledger.ledgers.due_unstored)
    assert unstored == [True, False]
    assert (await world.info()).records[0].due_ms == due_ms
