"""How far a ledger goes that somebody writes, and that asking does nothing to it."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest
from magnetar.ledger.api import LedgerOptions
from magnetar.ledger.client import BookKeeperClient
from magnetar.ledger.last_confirmed import ask_last_confirmed
from magnetar.ledger.testing import MemoryBookies, RecordingListener
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.sim.virtual_time import LoopClock, VirtualTimeLoop
from magnetar.wire.bookkeeper.ledger_metadata import LedgerMetadata

new_event_loop = VirtualTimeLoop

WHOLE = LedgerOptions(ensemble_size=3, write_quorum=3, ack_quorum=2, password=b"secret")


@pytest.fixture
async def store() -> AsyncIterator[MemoryMetadataStore]:
    opened = MemoryMetadataStore()
    yield opened
    await opened.close()


async def test_it_lags_by_the_last_entry_and_fences_nobody(store: MemoryMetadataStore) -> None:
    bookies = MemoryBookies(3)
    client = BookKeeperClient(store, bookies, clock=LoopClock(), rng=random.Random(1))
    listener = RecordingListener()
    writer = await client.create(WHOLE, listener)
    metadata, _ = await client.metadata.read(writer.ledger_id)
    empty = await ask_last_confirmed(writer.ledger_id, metadata, bookies, 1.0)
    assert (empty.last_add_confirmed, empty.last_entry_id, empty.covered) == (-1, -1, True)
    for entry_id in range(3):
        writer.append([b"x" * 100])
        await listener.until_confirmed(entry_id)
        found = await ask_last_confirmed(writer.ledger_id, metadata, bookies, 1.0, all_bookies=True)
        assert (found.last_add_confirmed, found.last_entry_id) == (entry_id - 1, entry_id)
    assert (found.last_payload, found.length_bytes) == (b"x" * 100, 300)
    # What is on its way together is confirmed by none of its entries.
    writer.append([b"y"] * 50)
    await listener.until_confirmed(52)
    assert (await ask_last_confirmed(writer.ledger_id, metadata, bookies, 1.0)).last_add_confirmed == 2
    assert not any(bookie.ledgers[writer.ledger_id].fenced for bookie in bookies.bookies.values())
    await client.close()


async def test_silent_bookies_are_not_waited_for_longer_than_told(store: MemoryMetadataStore) -> None:
    bookies = MemoryBookies(3)
    client = BookKeeperClient(store, bookies, clock=LoopClock(), rng=random.Random(1))
    listener = RecordingListener()
    writer = await client.create(WHOLE, listener)
    writer.append([b"1"])
    await listener.until_confirmed(0)
    metadata, _ = await client.metadata.read(writer.ledger_id)
    one, two, _ = bookies.bookies.values()
    one.stop()
    assert (await ask_last_confirmed(writer.ledger_id, metadata, bookies, 1.0)).covered
    two.hang()
    found = await ask_last_confirmed(writer.ledger_id, metadata, bookies, 0.001)
    assert (found.covered, found.answers) == (False, 1)
    await client.close()


async def test_a_segment_proves_all_that_is_before_it(store: MemoryMetadataStore) -> None:
    """Its bookies may have nothing yet: the writer began it behind entry 4, which is confirmed by that."""
    metadata = LedgerMetadata(
        ensemble_size=1, write_quorum=1, ack_quorum=1, ensembles=[(0, ["bookie-0:3181"]), (5, ["bookie-1:3181"])]
    )
    assert (await ask_last_confirmed(3, metadata, MemoryBookies(2), 1.0)).last_add_confirmed == 4
