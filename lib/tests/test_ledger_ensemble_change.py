"""Bookies that lose their places: what their successors, and other clients of the ledger, may believe."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import AsyncIterator

import pytest
from magnetar.ledger.api import LedgerFenced, LedgerOptions, LedgerUnavailable, NotEnoughBookies
from magnetar.ledger.appender import Appender
from magnetar.ledger.bookie_chooser import BookieChooser
from magnetar.ledger.client import BookKeeperClient
from magnetar.ledger.ensemble_change import CHANGES_IN_A_ROW_MAX
from magnetar.ledger.placement import PlacementSettings
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.ledger.testing import MemoryBookies, RecordingListener
from magnetar.ledger.topology import BookieTopology
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.metadata.store import Stat
from magnetar.sim.virtual_time import LoopClock, VirtualTimeLoop
from magnetar.wire.bookkeeper.codes import BookieCode

new_event_loop = VirtualTimeLoop

WHOLE = LedgerOptions(ensemble_size=3, write_quorum=3, ack_quorum=2)
QUICK = LedgerClientSettings(add_timeout_seconds=0.04, change_pause_seconds=0.001)


class SlowStore(MemoryMetadataStore):
    """Writes wait while the gate is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = asyncio.Event()

    async def put(
        self,
        path: str,
        value: bytes,
        expected_version: int | None = None,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
    ) -> Stat:
        if not self.gate.is_set():
            self.waiting.set()
        await self.gate.wait()
        return await super().put(path, value, expected_version, ephemeral=ephemeral, sequential=sequential)


@pytest.fixture
async def store() -> AsyncIterator[SlowStore]:
    opened = SlowStore()
    yield opened
    await opened.close()


@pytest.fixture
def bookies() -> MemoryBookies:
    return MemoryBookies(5)


@pytest.fixture
async def client(store: SlowStore, bookies: MemoryBookies) -> AsyncIterator[BookKeeperClient]:
    opened = BookKeeperClient(store, bookies, clock=LoopClock(), rng=random.Random(7), settings=QUICK)
    yield opened
    await opened.close()


@pytest.mark.parametrize("shape", [(2, 2, 2), (3, 2, 2)], ids=["whole", "striped"])
def test_a_successor_has_acknowledged_nothing(shape: tuple[int, int, int]) -> None:
    """The failed bookie had acknowledged entry 0; its successor has not, so that one copy is all there is."""
    appender = Appender(*shape)
    appender.append(1)
    assert not appender.acknowledged(0, [0])
    assert appender.bookie_failed(0)
    appender.replaced([0])
    assert not appender.acknowledged(1, [0])
    assert appender.last_add_confirmed == -1
    assert appender.acknowledged(0, [0])


def test_nor_has_it_what_the_failed_one_acknowledged_beyond_a_gap() -> None:
    appender = Appender(2, 2, 2)
    for _ in range(3):
        appender.append(1)
    appender.acknowledged(0, [1, 2])
    appender.bookie_failed(0)
    appender.replaced([0])
    appender.acknowledged(1, [0, 1, 2])
    assert appender.acknowledged(0, [0])
    assert appender.last_add_confirmed == 0


async def test_a_writer_that_is_let_go_of_does_not_wait_for_its_ensemble_change(
    store: SlowStore, bookies: MemoryBookies, client: BookKeeperClient
) -> None:
    writer = await client.create(WHOLE, RecordingListener())
    store.gate.clear()
    bookies.bookies[writer.metadata.ensembles[0][1][0]].stop()
    writer.append([b"entry"])
    await store.waiting.wait()
    async with asyncio.timeout(1):
        await writer.abandon()
    store.gate.set()


async def test_a_change_that_ends_after_the_failure_changes_nothing(
    store: SlowStore, bookies: MemoryBookies, client: BookKeeperClient
) -> None:
    listener = RecordingListener()
    writer = await client.create(WHOLE, listener)
    first, second, _ = writer.metadata.ensembles[0][1]
    store.gate.clear()
    bookies.bookies[second].refusal = BookieCode.EFENCED
    bookies.bookies[first].stop()
    writer.append([b"entry"])
    assert isinstance(await listener.until_failed(), LedgerFenced)
    calls = sum(bookie.add_calls for bookie in bookies.bookies.values())
    store.gate.set()
    await writer.close()
    assert sum(bookie.add_calls for bookie in bookies.bookies.values()) == calls


async def test_a_writer_does_not_undo_another_ones_last_ensemble(
    store: SlowStore, bookies: MemoryBookies, client: BookKeeperClient
) -> None:
    """AutoRecovery leaves the last segment of an open ledger alone: whoever changed it may be its writer as well."""
    listener = RecordingListener()
    writer = await client.create(WHOLE, listener)
    metadata, version = await client.metadata.read(writer.ledger_id)
    ensemble = metadata.ensembles[0][1]
    spare = next(name for name in bookies.bookies if name not in ensemble)
    theirs = dataclasses.replace(metadata, ensembles=[(0, [*ensemble[:2], spare])])
    await client.metadata.write(writer.ledger_id, theirs, version)
    bookies.bookies[ensemble[0]].stop()
    writer.append([b"entry"])
    assert isinstance(await listener.until_failed(), LedgerUnavailable)
    assert (await client.metadata.read(writer.ledger_id))[0].ensembles == theirs.ensembles


async def test_a_bookie_that_takes_anothers_place_has_the_whole_time_to_answer(
    bookies: MemoryBookies, client: BookKeeperClient
) -> None:
    """It is not judged by the age of entries that its predecessor left unanswered."""
    listener = RecordingListener()
    writer = await client.create(LedgerOptions(ensemble_size=2, write_quorum=2, ack_quorum=2), listener)
    before = writer.metadata.ensembles[0][1]
    for name, bookie in bookies.bookies.items():
        if name != before[1]:
            bookie.hang()
    writer.append([b"entry"])
    while writer.metadata.ensembles[0][1] == before:
        await asyncio.sleep(QUICK.add_timeout_seconds / 100)
    changed = await client.metadata.read(writer.ledger_id)
    await asyncio.sleep(QUICK.add_timeout_seconds * 0.9)
    assert await client.metadata.read(writer.ledger_id) == changed
    bookies.bookies[writer.metadata.ensembles[0][1][0]].heal()
    await listener.until_confirmed(0)
    assert await client.metadata.read(writer.ledger_id) == changed


async def test_bookies_that_fail_now_and_then_do_not_end_a_ledger(
    bookies: MemoryBookies, client: BookKeeperClient
) -> None:
    """Only changes with nothing confirmed in between count as too many."""
    listener = RecordingListener()
    writer = await client.create(LedgerOptions(ensemble_size=2, write_quorum=2, ack_quorum=2), listener)
    for number in range(CHANGES_IN_A_ROW_MAX + 5):
        failing = bookies.bookies[writer.metadata.ensembles[-1][1][0]]
        failing.refusal = BookieCode.EIO
        writer.append([b"entry"])
        await listener.until_confirmed(number)
        failing.refusal = None
    await writer.close()


async def test_who_failed_before_is_not_asked_back_by_the_change_that_follows(
    store: SlowStore, client: BookKeeperClient, bookies: MemoryBookies
) -> None:
    """The second bookie fails while the first one's successor is written down: of three one is left, which is told."""
    for name in list(bookies.bookies)[3:]:
        bookies.bookies[name].stop()
    listener = RecordingListener()
    writer = await client.create(LedgerOptions(ensemble_size=2, write_quorum=2, ack_quorum=2), listener)
    first, second = writer.metadata.ensembles[0][1]
    store.gate.clear()
    bookies.bookies[first].refusal = BookieCode.EIO
    writer.append([b"entry"])
    await store.waiting.wait()
    bookies.bookies[second].refusal = BookieCode.EIO
    writer.append([b"entry"])
    await asyncio.sleep(0.01)
    store.gate.set()
    assert isinstance(await listener.until_failed(), NotEnoughBookies)


def test_racks_are_counted_among_the_bookies_of_one_entry(bookies: MemoryBookies) -> None:
    """Two copies in two racks are asked for, however many bookies the ledger has."""
    places = BookieTopology({"default": {name: f"/{number % 2}" for number, name in enumerate(bookies.bookies)}})
    settings = PlacementSettings(enforce_racks=True)
    for seed in range(10):
        chooser = BookieChooser(bookies, LoopClock(), random.Random(seed), 60.0, settings, lambda: places)
        racks = [int(name.removeprefix("bookie-")[0]) % 2 for name in chooser.new_ensemble(4, 2)]
        assert all(rack != following for rack, following in zip(racks, racks[1:] + racks[:1], strict=True))


async def test_a_bookie_that_failed_is_trusted_again_in_time(bookies: MemoryBookies) -> None:
    chooser = BookieChooser(bookies, LoopClock(), random.Random(1), 60.0)
    chooser.report_failure("bookie-1:3181")
    await asyncio.sleep(59)
    assert list(chooser.avoided()) == ["bookie-1:3181"]
    await asyncio.sleep(2)
    assert not chooser.avoided()


async def test_a_bookie_that_fails_again_is_avoided_for_longer(bookies: MemoryBookies) -> None:
    chooser = BookieChooser(bookies, LoopClock(), random.Random(1), 60.0)
    for _ in range(2):
        chooser.report_failure("bookie-1:3181")
        await asyncio.sleep(50)
    assert list(chooser.avoided()) == ["bookie-1:3181"]
