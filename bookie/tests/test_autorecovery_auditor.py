from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from magnetar.bookie.autorecovery import paths
from magnetar.bookie.autorecovery.auditor import auditor as auditor_module
from magnetar.bookie.autorecovery.auditor.auditor import Auditor
from magnetar.bookie.autorecovery.auditor.checks import (
    AllLedgersCheck,
    AuditorParts,
    BookieCheck,
    NoBookies,
    PlacementCheck,
    ReplicationDisabled,
)
from magnetar.bookie.autorecovery.auditor.replicas_check import ReplicasCheck, missing_replicas
from magnetar.bookie.autorecovery.fragments import Segment
from magnetar.bookie.autorecovery.registered_bookies import available_bookies
from magnetar.bookie.autorecovery.settings import AuditorSettings
from magnetar.bookie.autorecovery.testing import QUICK, MemoryBookieCluster
from magnetar.bookie.autorecovery.underreplication import UnderreplicatedLedgers
from magnetar.bookie.availability import encode_availability
from magnetar.bookie.counters import RecoveryCounters
from magnetar.core.errors import SettingError
from magnetar.ledger.api import LedgerOptions
from magnetar.ledger.client import BookKeeperClient
from magnetar.ledger.ledger_paths import AVAILABLE_PATH, READ_ONLY_PATH, ledger_path
from magnetar.ledger.topology import BookieTopology, decode_places
from magnetar.metadata.store import MetadataStore
from magnetar.sim.virtual_time import VirtualTimeLoop
from magnetar.wire.bookkeeper.codes import BookieCode, BookieError
from magnetar.wire.bookkeeper.under_replication import CheckKind

new_event_loop = VirtualTimeLoop

PATIENCE_SECONDS = 30.0
PAIR = LedgerOptions(ensemble_size=2, write_quorum=2, ack_quorum=2)
STRIPED = LedgerOptions(ensemble_size=3, write_quorum=2, ack_quorum=1)
PAYLOADS = [b"payload"] * 6
NO_CHECKS = AuditorSettings(all_ledgers_check_interval_seconds=0)


class MovableClock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.seconds = 1_700_000_000.0
        self.reads = 0

    def now_ms(self) -> int:
        self.reads += 1
        return int(self.seconds * 1000)

    def monotonic_seconds(self) -> float:
        return self.seconds


class World:
    """Some bookies, their registrations, and what an auditor works with."""

    def __init__(self, bookies: int) -> None:
        self.cluster = MemoryBookieCluster(bookies)
        self.store = self.cluster.store
        self.clock = MovableClock()
        self.underreplicated = UnderreplicatedLedgers(self.store, "auditor:1", self.clock, random.Random(1))
        self.counters = RecoveryCounters()

    def parts(self, settings: AuditorSettings = NO_CHECKS) -> AuditorParts:
        return AuditorParts(
            store=self.store,
            underreplicated=self.underreplicated,
            client=self.cluster.client,
            connections=self.cluster.bookies,
            clock=self.clock,
            rng=self.cluster.rng,
            settings=settings,
            counters=self.counters,
        )

    async def register_all(self) -> None:
        for bookie_id in self.cluster.bookies.bookies:
            await self.store.put(f"/ledgers/cookies/{bookie_id}", b"")
            await self.come(bookie_id)

    async def come(self, bookie_id: str, *, read_only: bool = False) -> None:
        self.cluster.bookies.bookies[bookie_id].heal()
        await self.store.put(f"{READ_ONLY_PATH if read_only else AVAILABLE_PATH}/{bookie_id}", b"")

    async def go(self, bookie_id: str) -> None:
        self.cluster.bookies.bookies[bookie_id].stop()
        await self.store.delete(f"{AVAILABLE_PATH}/{bookie_id}")

    async def marks(self) -> dict[int, tuple[str, ...]]:
        return {mark.ledger_id: mark.missing_replicas async for mark in self.underreplicated.all()}

    async def bookies_of(self, ledger_id: int) -> list[str]:
        return (await self.cluster.metadata(ledger_id)).ensembles[-1][1]

    async def close(self) -> None:
        await self.underreplicated.close()
        await self.cluster.close()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    opened = World(4)
    await opened.register_all()
    yield opened
    await opened.close()


@asynccontextmanager
async def at_work(auditor: Auditor) -> AsyncIterator[None]:
    task = asyncio.create_task(auditor.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.001)


async def settle() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


async def test_every_ledger_of_a_lost_bookie_is_marked(world: World) -> None:
    ledgers = [await world.cluster.closed_ledger(PAIR, PAYLOADS) for _ in range(8)]
    writer, _ = await world.cluster.open_ledger(PAIR, PAYLOADS)
    empty = await world.cluster.closed_ledger(PAIR, [])
    lost = (await world.bookies_of(writer.ledger_id))[0]
    expected = {
        ledger_id: (lost,)
        for ledger_id in (*ledgers, writer.ledger_id, empty)
        if lost in await world.bookies_of(ledger_id)
    }
    assert await BookieCheck(world.parts()).run() == 0
    await world.go(lost)
    assert await BookieCheck(world.parts()).run() == len(expected)
    assert await world.marks() == expected
    assert await BookieCheck(world.parts()).run() == len(expected), "an audit may be repeated"
    assert await world.marks() == expected


async def test_two_auditors_mark_the_same(world: World) -> None:
    ledger_id = await world.cluster.closed_ledger(PAIR, PAYLOADS)
    for bookie_id in await world.bookies_of(ledger_id):
        await world.go(bookie_id)
    await asyncio.gather(BookieCheck(world.parts()).run(), BookieCheck(world.parts()).run())
    assert await world.marks() == {ledger_id: tuple(sorted(await world.bookies_of(ledger_id)))}


async def test_read_only_bookies_are_not_lost(world: World) -> None:
    ledger_id = await world.cluster.closed_ledger(PAIR, PAYLOADS)
    bookie_id = (await world.bookies_of(ledger_id))[0]
    await world.go(bookie_id)
    await world.come(bookie_id, read_only=True)
    assert await BookieCheck(world.parts()).run() == 0


async def test_without_any_bookie_nobody_is_called_lost(world: World) -> None:
    await world.cluster.closed_ledger(PAIR, PAYLOADS)
    for bookie_id in world.cluster.bookies.bookies:
        await world.go(bookie_id)
    with pytest.raises(NoBookies):
        await BookieCheck(world.parts()).run()
    with pytest.raises(NoBookies):
        await AllLedgersCheck(world.parts(), 0.0).run()
    assert await world.marks() == {}


async def test_checks_leave_off_when_disabled(world: World) -> None:
    await world.cluster.closed_ledger(PAIR, PAYLOADS)
    await world.underreplicated.disable()
    parts = world.parts()
    for check in (
        BookieCheck(parts),
        AllLedgersCheck(parts),
        PlacementCheck(parts),
        ReplicasCheck(parts, Lists(world)),
    ):
        with pytest.raises(ReplicationDisabled):
            await check.run()


async def test_damaged_metadata_does_not_stop_an_audit(world: World) -> None:
    ledger_id = await world.cluster.closed_ledger(PAIR, PAYLOADS)
    await world.store.put(ledger_path(ledger_id + 1), b"damaged")
    await world.go((await world.bookies_of(ledger_id))[0])
    assert await BookieCheck(world.parts()).run() == 1


@pytest.mark.parametrize("options", [PAIR, STRIPED], ids=["2/2/2", "3/2/1"])
async def test_what_bookies_lack_or_have_damaged_is_found(world: World, options: LedgerOptions) -> None:
    whole, lacking, damaged = [await world.cluster.closed_ledger(options, PAYLOADS) for _ in range(3)]
    holders = world.cluster.bookies.holders(lacking, 5)
    world.cluster.drop(holders[0], lacking, [5])
    damager = world.cluster.bookies.holders(damaged, 0)[0]
    world.cluster.damage(damager, damaged, 0)
    check = AllLedgersCheck(world.parts(), 0.0)
    await check.run()
    assert await world.marks() == {lacking: (holders[0],), damaged: (damager,)}
    assert (check.marked, check.failed) == (2, 0)
    assert world.counters.ledgers_checked == 3
    assert whole not in await world.marks()


async def test_entries_between_are_looked_at_by_percentage(world: World) -> None:
    ledger_id = await world.cluster.closed_ledger(PAIR, PAYLOADS)
    bookie_id = (await world.bookies_of(ledger_id))[0]
    world.cluster.drop(bookie_id, ledger_id, [3])
    await AllLedgersCheck(world.parts(), 0.0).run()
    assert await world.marks() == {}
    settings = dataclasses.replace(NO_CHECKS, verification_percentage=100)
    await AllLedgersCheck(world.parts(settings), 0.0).run()
    assert await world.marks() == {ledger_id: (bookie_id,)}


async def test_a_ledger_that_is_written_is_not_marked(world: World) -> None:
    """A slow bookie of an ack quorum of one lacks what was confirmed last, until it has it."""
    options = LedgerOptions(ensemble_size=2, write_quorum=2, ack_quorum=1)
    writer, listener = await world.cluster.open_ledger(options, PAYLOADS)
    slow = world.cluster.bookies.bookies[(await world.bookies_of(writer.ledger_id))[1]]
    writer.append(PAYLOADS)
    await listener.until_confirmed(11)
    await settle()
    entries = slow.ledgers[writer.ledger_id].entries
    late = entries.pop(5)
    asyncio.get_running_loop().call_later(0.005, entries.setdefault, 5, late)
    check = AllLedgersCheck(world.parts(), 0.02)
    await check.run()
    assert await world.marks() == {}
    assert 5 in entries
    assert not listener.errors
    world.cluster.drop(slow.bookie_id, writer.ledger_id, [0])
    await check.run()
    assert await world.marks() == {writer.ledger_id: (slow.bookie_id,)}


async def test_a_bookie_that_is_always_a_little_late_lacks_nothing(world: World) -> None:
    options = LedgerOptions(ensemble_size=2, write_quorum=2, ack_quorum=1)
    writer, listener = await world.cluster.open_ledger(options, PAYLOADS)
    slow = world.cluster.bookies.bookies[(await world.bookies_of(writer.ledger_id))[1]]
    await settle()

    async def write() -> None:
        late: list[tuple[int, bytes]] = []
        entries = slow.ledgers[writer.ledger_id].entries
        while True:
            entry_id = writer.append([b"payload"])
            await listener.until_confirmed(entry_id)
            while entry_id not in entries:
                await asyncio.sleep(0)
            late.append((entry_id, entries.pop(entry_id)))
            if len(late) > 2:
                entries.setdefault(*late.pop(0))
            await asyncio.sleep(0.001)

    writing = asyncio.ensure_future(write())
    await asyncio.sleep(0.01)
    await AllLedgersCheck(world.parts(), 0.02).run()
    assert await world.marks() == {}
    assert not writing.done()
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)


async def test_an_open_ledger_without_entries_is_whole(world: World) -> None:
    await world.cluster.open_ledger(PAIR, [])
    await AllLedgersCheck(world.parts(), 0.0).run()
    assert await world.marks() == {}


async def test_a_silent_bookie_is_told_of_when_it_stays_silent(world: World) -> None:
    ledger_id = await world.cluster.closed_ledger(PAIR, PAYLOADS)
    bookie = world.cluster.bookies.bookies[(await world.bookies_of(ledger_id))[0]]
    bookie.hang()
    asyncio.get_running_loop().call_later(0.03, bookie.heal)
    await AllLedgersCheck(world.parts(), 0.05).run()
    assert await world.marks() == {}
    bookie.hang()
    await AllLedgersCheck(world.parts(), 0.0).run()
    assert await world.marks() == {ledger_id: (bookie.bookie_id,)}


async def test_a_ledger_that_nobody_can_open_is_not_judged(world: World) -> None:
    writer, _ = await world.cluster.open_ledger(PAIR, PAYLOADS)
    for bookie_id in await world.bookies_of(writer.ledger_id):
        world.cluster.bookies.bookies[bookie_id].hang()
    check = AllLedgersCheck(world.parts(), 0.0)
    await check.run()
    assert check.failed == 1
    assert await world.marks() == {}


async def test_placement_is_counted_and_repaired_if_set(world: World) -> None:
    same = ",".join(
        f'"{bookie_id}": {{"rack": "/one", "hostname": "h"}}' for bookie_id in world.cluster.bookies.bookies
    )
    places: BookieTopology = decode_places(f'{{"default": {{{same}}}}}'.encode())
    client = BookKeeperClient(
        world.store, world.cluster.bookies, rng=world.cluster.rng, settings=QUICK, places=lambda: places
    )
    ledger_id = await world.cluster.closed_ledger(PAIR, PAYLOADS)
    await world.cluster.open_ledger(PAIR, PAYLOADS)
    check = PlacementCheck(dataclasses.replace(world.parts(), client=client))
    await check.run()
    assert check.not_adhering == world.counters.ledgers_not_adhering == 1
    assert await world.marks() == {}
    settings = dataclasses.replace(NO_CHECKS, repair_placement=True, overdue_after_seconds=10.0)
    check = PlacementCheck(dataclasses.replace(world.parts(settings), client=client))
    await check.run()
    assert await world.marks() == {ledger_id: ()}
    world.clock.seconds += 11
    await check.run()
    assert world.counters.ledgers_overdue == 1
    await client.close()


class Lists:
    """What memory bookies have, as real ones tell it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.refuse: set[str] = set()

    async def list_entries(self, bookie_id: str, ledger_id: int) -> bytes:
        bookie = self._world.cluster.bookies.bookies[bookie_id]
        if bookie_id in self.refuse:
            raise BookieError(BookieCode.UNREACHABLE, bookie_id)
        if ledger_id not in bookie.ledgers:
            raise BookieError(BookieCode.ENOLEDGER, bookie_id)
        return encode_availability(sorted(bookie.ledgers[ledger_id].entries))


async def test_replicas_are_counted(world: World) -> None:
    options = LedgerOptions(ensemble_size=3, write_quorum=3, ack_quorum=2)
    ledgers = [await world.cluster.closed_ledger(options, PAYLOADS) for _ in range(5)]
    await settle()
    for ledger_id, copies in zip(ledgers, (3, 2, 1, 0, 0), strict=True):
        for bookie_id in world.cluster.bookies.holders(ledger_id, 3)[copies:]:
            world.cluster.drop(bookie_id, ledger_id, [3])
    await world.underreplicated.mark(ledgers[4], [])
    await world.cluster.open_ledger(options, PAYLOADS)
    lists = Lists(world)
    check = ReplicasCheck(world.parts(), lists)
    await check.run()
    assert (check.below_write_quorum, check.below_ack_quorum, check.without_replica) == (1, 1, 1)
    assert world.counters.ledgers_with_entry_without_replica == 1
    assert list(await world.marks()) == [ledgers[4]]
    lists.refuse = set(world.cluster.bookies.bookies)
    await check.run()
    assert (check.below_write_quorum, check.below_ack_quorum, check.without_replica) == (0, 0, 0)


def test_missing_replicas_of_a_striped_segment() -> None:
    segment = Segment(0, 5, ("a", "b", "c"), 2, closed=True)
    held = {"a": {0, 2, 3, 5}, "b": {0, 1, 3, 4}, "c": {1, 2, 4, 5}}
    assert missing_replicas(segment, held) == 0
    assert missing_replicas(segment, {**held, "a": {0, 2, 3}}) == 1
    assert missing_replicas(segment, {**held, "a": {0, 2, 3}, "c": {1, 2, 4}}) == 2
    assert missing_replicas(segment, {"b": {0, 1, 3}}) == 1


async def test_a_new_auditor_looks_for_lost_bookies_at_once(world: World) -> None:
    ledger_id = await world.cluster.closed_ledger(PAIR, PAYLOADS)
    lost = (await world.bookies_of(ledger_id))[0]
    await world.go(lost)
    auditor = Auditor(world.parts(), None)
    async with at_work(auditor):
        await eventually(lambda: auditor.audits == 1)
        await settle()
        assert auditor.audits == 1
    assert await world.marks() == {ledger_id: (lost,)}
    assert await world.underreplicated.lost_bookie_recovery_delay_seconds() == 0


async def test_losses_are_audited_as_they_come(world: World) -> None:
    ledger_id = await world.cluster.closed_ledger(PAIR, PAYLOADS)
    first, second = await world.bookies_of(ledger_id)
    auditor = Auditor(world.parts(), None)
    async with at_work(auditor):
        await eventually(lambda: auditor.audits == 1)
        assert await world.marks() == {}
        await world.go(first)
        await eventually(lambda: auditor.audits == 2)
        assert await world.marks() == {ledger_id: (first,)}
        await world.go(second)
        await eventually(lambda: auditor.audits == 3)
        assert await world.marks() == {ledger_id: (first, second)}
        await world.come(first)
        await settle()
        assert auditor.audits == 3, "who comes needs no audit"


DELAYED = dataclasses.replace(NO_CHECKS, lost_bookie_recovery_delay_seconds=100)


async def test_a_bookie_that_comes_back_in_time_is_not_told_of(world: World) -> None:
    ledger_id = await world.cluster.closed_ledger(PAIR, PAYLOADS)
    lost, second = await world.bookies_of(ledger_id)
    auditor = Auditor(world.parts(DELAYED), None)
    async with at_work(auditor):
        await eventually(lambda: auditor.audits == 1)
        await world.go(lost)
        await eventually(lambda: world.counters.audits_delayed == 1)
        world.clock.seconds += 99
        await world.come(lost)
        await eventually(lambda: world.counters.delayed_audits_cancelled == 1)
        world.clock.seconds += 10
        await settle()
        assert await world.marks() == {}
        await world.go(second)
        await eventually(lambda: world.counters.audits_delayed == 2)
        world.clock.seconds += 101
        await world.store.put(f"{AVAILABLE_PATH}/news:1", b"")
        await eventually(lambda: auditor.audits == 2)
    assert await world.marks() == {ledger_id: (second,)}


async def test_a_second_loss_does_not_wait(world: World) -> None:
    ledger_id = await world.cluster.closed_ledger(PAIR, PAYLOADS)
    first, second = await world.bookies_of(ledger_id)
    auditor = Auditor(world.parts(DELAYED), None)
    async with at_work(auditor):
        await eventually(lambda: auditor.audits == 1)
        await world.go(first)
        await eventually(lambda: world.counters.audits_delayed == 1)
        await world.go(second)
        await eventually(lambda: auditor.audits == 2)
    assert await world.marks() == {ledger_id: tuple(sorted((first, second)))}


async def test_a_new_auditor_keeps_to_the_delay(world: World) -> None:
    """As it may follow an auditor that was on the lost bookie."""
    ledger_id = await world.cluster.closed_ledger(PAIR, PAYLOADS)
    await world.go((await world.bookies_of(ledger_id))[0])
    auditor = Auditor(world.parts(DELAYED), None)
    async with at_work(auditor):
        await eventually(lambda: world.counters.audits_delayed == 1)
        await settle()
        assert auditor.audits == 0
        await world.underreplicated.request_audit()
        await eventually(lambda: auditor.audits == 1)
        assert len(await world.marks()) == 1


async def test_a_loss_that_is_given_time_is_not_looked_at_all_the_while(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the first look of a new auditor is due from its beginning."""
    looks = 0

    async def counted(store: MetadataStore) -> frozenset[str]:
        nonlocal looks
        looks += 1
        return await available_bookies(store)

    ledger_id = await world.cluster.closed_ledger(PAIR, PAYLOADS)
    await world.go((await world.bookies_of(ledger_id))[0])
    monkeypatch.setattr(auditor_module, "available_bookies", counted)
    auditor = Auditor(world.parts(DELAYED), None)
    async with at_work(auditor):
        await eventually(lambda: world.counters.audits_delayed == 1)
        await asyncio.sleep(90)
        assert auditor.audits == 0
        assert looks <= 3


async def test_an_audit_may_be_asked_for(world: World) -> None:
    auditor = Auditor(world.parts(), None)
    async with at_work(auditor):
        await eventually(lambda: auditor.audits == 1)
        auditor.trigger_audit()
        await eventually(lambda: auditor.audits == 2)
        await world.underreplicated.request_audit()
        await eventually(lambda: auditor.audits == 3)
        await world.underreplicated.set_lost_bookie_recovery_delay_seconds(50)
        await settle()
        assert auditor.audits == 3


async def test_nothing_is_audited_while_disabled(world: World) -> None:
    ledger_id = await world.cluster.closed_ledger(PAIR, PAYLOADS)
    await world.underreplicated.disable()
    await world.go((await world.bookies_of(ledger_id))[0])
    settings = dataclasses.replace(NO_CHECKS, all_ledgers_check_interval_seconds=1000.0)
    auditor = Auditor(world.parts(settings), None)
    async with at_work(auditor):
        await settle()
        assert auditor.audits == 0
        assert await world.marks() == {}
        await world.underreplicated.enable()
        await eventually(lambda: auditor.audits == 1)
        assert len(await world.marks()) == 1


async def test_bookies_are_checked_periodically(world: World) -> None:
    auditor = Auditor(world.parts(), None)
    async with at_work(auditor):
        await eventually(lambda: auditor.audits == 1)
        world.clock.seconds += NO_CHECKS.bookie_check_interval_seconds - 1
        await world.store.put(f"{AVAILABLE_PATH}/news:1", b"")
        await settle()
        assert auditor.audits == 1
        world.clock.seconds += 2
        await world.store.put(f"{AVAILABLE_PATH}/news:2", b"")
        await eventually(lambda: auditor.audits == 2)


async def test_a_check_runs_when_its_mark_says_so(world: World) -> None:
    settings = dataclasses.replace(NO_CHECKS, all_ledgers_check_interval_seconds=1000.0)
    await world.cluster.closed_ledger(PAIR, PAYLOADS)
    await world.underreplicated.set_last_check(CheckKind.ALL_LEDGERS, world.clock.now_ms() - 999_000)
    async with at_work(Auditor(world.parts(settings), None)):
        await settle()
        assert world.counters.ledgers_checked == 0
    world.clock.seconds += 2
    async with at_work(Auditor(world.parts(settings), None)):
        await eventually(lambda: world.counters.check_all_ledgers.success.count == 1)
        await settle()
        assert await world.underreplicated.last_check(CheckKind.ALL_LEDGERS) == world.clock.now_ms()
    async with at_work(Auditor(world.parts(settings), None)):
        await settle()
        assert world.counters.ledgers_checked == 1


async def test_a_check_does_not_wait_for_a_clock_that_was_ahead(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditor_module, "NAP_SECONDS_MAX", 0.001)
    settings = dataclasses.replace(NO_CHECKS, all_ledgers_check_interval_seconds=1000.0)
    checks = world.counters.check_all_ledgers
    async with at_work(Auditor(world.parts(settings), None)):
        await eventually(lambda: checks.success.count == 1)
        world.clock.seconds += 1_000_000
        await eventually(lambda: checks.success.count == 2)
        world.clock.seconds -= 1_000_000
        reads = world.clock.reads
        await eventually(lambda: world.clock.reads >= reads + 4)
        world.clock.seconds += 1_001
        await eventually(lambda: checks.success.count == 3)


@pytest.mark.parametrize("interval_seconds", [0.0, 1000.0], ids=["switched off", "not due"])
async def test_a_check_may_be_asked_for(world: World, interval_seconds: float) -> None:
    settings = dataclasses.replace(
        NO_CHECKS,
        all_ledgers_check_interval_seconds=interval_seconds,
        replicas_check_interval_seconds=interval_seconds,
    )
    ledger_id = await world.cluster.closed_ledger(PAIR, PAYLOADS)
    for kind in CheckKind:
        await world.underreplicated.set_last_check(kind, world.clock.now_ms())
    checks, replicas = world.counters.check_all_ledgers.success, world.counters.replicas_check.success
    async with at_work(Auditor(world.parts(settings), Lists(world), second_look_seconds=0.0)):
        await settle()
        assert (checks.count, replicas.count) == (0, 0)
        bookie_id = (await world.bookies_of(ledger_id))[0]
        world.cluster.drop(
            bookie_id, ledger_id, list(world.cluster.bookies.bookies[bookie_id].ledgers[ledger_id].entries)
        )
        world.clock.seconds += 10
        await world.underreplicated.request_check(CheckKind.ALL_LEDGERS)
        await eventually(lambda: checks.count == 1)
        assert list(await world.marks()) == [ledger_id]
        assert replicas.count == 0
        await world.underreplicated.request_check(CheckKind.REPLICAS)
        await eventually(lambda: replicas.count == 1)
        await settle()
        assert (checks.count, replicas.count) == (1, 1)
        for kind in (CheckKind.ALL_LEDGERS, CheckKind.REPLICAS):
            assert await world.underreplicated.last_check(kind) == world.clock.now_ms()


async def test_a_check_that_is_asked_for_while_it_runs_begins_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was looked at before the request may have been lost since."""
    begun, go_on = asyncio.Event(), asyncio.Event()
    run = AllLedgersCheck.run

    async def slowly(self: AllLedgersCheck) -> None:
        begun.set()
        await go_on.wait()
        await run(self)

    monkeypatch.setattr(AllLedgersCheck, "run", slowly)
    checks = world.counters.check_all_ledgers.success
    async with at_work(Auditor(world.parts(), None)):
        await world.underreplicated.request_check(CheckKind.ALL_LEDGERS)
        await begun.wait()
        await world.underreplicated.request_check(CheckKind.ALL_LEDGERS)
        await settle()
        go_on.set()
        await eventually(lambda: checks.count == 2)
        await settle()
        assert checks.count == 2
        assert await world.underreplicated.last_check(CheckKind.ALL_LEDGERS) == world.clock.now_ms()


async def test_a_check_that_was_asked_for_while_nobody_audits_runs_when_somebody_does(world: World) -> None:
    await world.underreplicated.request_check(CheckKind.ALL_LEDGERS)
    async with at_work(Auditor(world.parts(), None)):
        await eventually(lambda: world.counters.check_all_ledgers.success.count == 1)


async def test_all_checks_run_when_none_ever_did(world: World) -> None:
    settings = AuditorSettings(placement_check_interval_seconds=10.0, replicas_check_interval_seconds=10.0)
    await world.cluster.closed_ledger(PAIR, PAYLOADS)
    async with at_work(Auditor(world.parts(settings), Lists(world))):
        counters = world.counters
        await eventually(lambda: counters.placement_check.success.count == 1)
        await eventually(lambda: counters.replicas_check.success.count == 1)
        assert counters.check_all_ledgers.success.count == 1
    assert await world.store.children(paths.BASE) == [
        "LAYOUT",
        "checkallledgersctime",
        "ledgers",
        "locks",
        "lostBookieRecoveryDelay",
        "placementpolicycheckctime",
        "replicascheckctime",
    ]


@pytest.mark.parametrize(
    "bad",
    [
        {"lost_bookie_recovery_delay_seconds": -1},
        {"verification_percentage": 101},
        {"ledgers_in_flight_max": 0},
        {"all_ledgers_check_interval_seconds": -1.0},
    ],
)
def test_settings_have_bounds(bad: dict[str, float]) -> None:
    with pytest.raises(SettingError, match="out of bounds"):
        dataclasses.replace(AuditorSettings(), **bad)  # type: ignore[arg-type]
