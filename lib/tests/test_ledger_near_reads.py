"""Reads prefer bookies that are near the client."""

from __future__ import annotations

import random

import pytest
from magnetar.ledger.api import LedgerOptions
from magnetar.ledger.client import BookKeeperClient
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.ledger.testing import MemoryBookies, RecordingListener
from magnetar.ledger.topology import BookieTopology
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.sim.virtual_time import LoopClock, VirtualTimeLoop

new_event_loop = VirtualTimeLoop

PLACES = BookieTopology(
    {"g": {"bookie-0:3181": "/east/a", "bookie-1:3181": "/west/a", "bookie-2:3181": "/west/b", "bookie-4:3181": "/a"}}
)
OPTIONS = LedgerOptions(ensemble_size=3, write_quorum=3, ack_quorum=3)


@pytest.mark.parametrize(
    ("bookie", "local", "distance"),
    [
        ("bookie-2:3181", "/west/b", 0),
        ("bookie-2:3181", "west/b/", 0),
        ("bookie-1:3181", "/west/b", 1),
        ("bookie-0:3181", "/west/b", 2),
        ("bookie-9:3181", "/west/b", 2),
        ("bookie-4:3181", "/a", 0),
        ("bookie-4:3181", "/b", 2),
    ],
)
def test_the_same_rack_is_nearer_than_the_same_region(bookie: str, local: str, distance: int) -> None:
    assert PLACES.distance(bookie, local) == distance


class Worlds:
    """A writer that is nowhere, and a reader somewhere."""

    def __init__(self, local_rack: str) -> None:
        self.bookies = MemoryBookies(3)
        self.store = MemoryMetadataStore()
        self.writing = BookKeeperClient(self.store, self.bookies, LoopClock(), random.Random(1))
        settings = LedgerClientSettings(local_rack=local_rack, speculative_read_seconds=0.2)
        self.reading = BookKeeperClient(
            self.store, self.bookies, LoopClock(), random.Random(1), settings, places=lambda: PLACES
        )

    async def ledger(self, count: int) -> int:
        listener = RecordingListener()
        writer = await self.writing.create(OPTIONS, listener)
        for number in range(count):
            await listener.until_confirmed(writer.append([b"%d" % number]))
        return writer.ledger_id

    def stop_far_ones(self) -> None:
        """Whoever asks one of them waits for nothing."""
        for name in ("bookie-0:3181", "bookie-1:3181"):
            self.bookies.bookies[name].stop()

    async def close(self) -> None:
        await self.reading.close()
        await self.writing.close()
        await self.store.close()


async def test_whoever_is_in_a_rack_needs_nobody_else_to_read() -> None:
    world = Worlds("/west/b")
    ledger_ids = [await world.ledger(3) for _ in range(3)]  # Each has another bookie first, without a place.
    readers = [await world.reading.open(each, recover=False) for each in ledger_ids]
    observers = [await world.reading.observe(each) for each in ledger_ids]
    world.stop_far_ones()
    began = LoopClock().monotonic_seconds()
    for reader in readers:
        assert await reader.read(0, 1) == [b"0", b"1"]
    for observer in observers:
        seen: list[bytes] = []
        while len(seen) < 3:
            seen += (await observer.look(len(seen), 1 << 20)).payloads
        assert seen == [b"0", b"1", b"2"]
    assert LoopClock().monotonic_seconds() == began
    await world.close()


async def test_one_that_is_near_and_does_not_answer_is_passed_over() -> None:
    world = Worlds("/east/a")
    ledger_id = await world.ledger(3)
    reader = await world.reading.open(ledger_id, recover=False)
    world.bookies.bookies["bookie-0:3181"].stop()
    assert await reader.read(0, 1) == [b"0", b"1"]
    await world.close()


async def test_far_ones_are_asked_when_the_near_one_has_nothing_for_long() -> None:
    world = Worlds("/west/b")
    ledger_id = await world.ledger(2)
    observer = await world.reading.observe(ledger_id)
    del world.bookies.bookies["bookie-2:3181"].ledgers[ledger_id].entries[1]
    found: list[bytes] = []
    for _ in range(40):
        found = (await observer.look(1, 1 << 20)).payloads
        if found:
            break
    assert found == [b"1"]
    await world.close()
