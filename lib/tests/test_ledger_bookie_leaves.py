"""A client whose list of bookies is old gives no place to one that has left (docs/adr/0028)."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest
from magnetar.ledger.api import LedgerOptions, NotEnoughBookies
from magnetar.ledger.bookie_client.tcp_connections import TcpBookieConnections
from magnetar.ledger.client import BookKeeperClient
from magnetar.ledger.ledger_paths import AVAILABLE_PATH
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.ledger.testing import RecordingListener, RegisteredBookies
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.sim.virtual_time import LoopClock, VirtualTimeLoop
from magnetar.wire.bookkeeper.codes import BookieCode
from magnetar.wire.bookkeeper.ledger_metadata import LedgerState

new_event_loop = VirtualTimeLoop

PAIR = LedgerOptions(ensemble_size=2, write_quorum=2, ack_quorum=1)
TRIPLE = LedgerOptions(ensemble_size=3, write_quorum=3, ack_quorum=3)
"""A failed bookie must be replaced, whoever answers first."""
QUICK = LedgerClientSettings(add_timeout_seconds=0.04, change_pause_seconds=0.001)
CHANCES = 6
"""Whoever chooses without looking does it right once in a while."""


@pytest.fixture
async def store() -> AsyncIterator[MemoryMetadataStore]:
    opened = MemoryMetadataStore()
    yield opened
    await opened.close()


@pytest.fixture
async def bookies(store: MemoryMetadataStore) -> RegisteredBookies:
    made = RegisteredBookies(store, 5)
    await made.register()
    return made


@pytest.fixture(params=range(CHANCES))
async def client(
    store: MemoryMetadataStore, bookies: RegisteredBookies, request: pytest.FixtureRequest
) -> AsyncIterator[BookKeeperClient]:
    chance = random.Random(request.param)
    opened = BookKeeperClient(store, bookies, clock=LoopClock(), rng=chance, settings=QUICK)
    yield opened
    await opened.close()


async def named(client: BookKeeperClient, ledger_id: int) -> set[str]:
    metadata, _ = await client.metadata.read(ledger_id)
    return {bookie for _, ensemble in metadata.ensembles for bookie in ensemble}


async def test_a_client_that_was_away_chooses_from_the_list_as_it_is_now() -> None:
    """The simulator's seed 8270: the store was back, the list was from before. A ledger with an ack quorum of one that
    names a bookie which has left cannot be recovered once the bookie is switched off."""
    tree = MemoryMetadataStore()
    others = tree.another_session()
    for number in range(4):
        await others.put(f"{AVAILABLE_PATH}/bookie{number}:3181", b"")
    bookies = TcpBookieConnections(tree)
    await bookies.start()
    client = BookKeeperClient(tree, bookies, clock=LoopClock(), rng=random.Random(7))
    tree.disconnect()
    await others.delete(f"{AVAILABLE_PATH}/bookie1:3181")
    await others.delete(f"{AVAILABLE_PATH}/bookie2:3181")
    tree.reconnect()
    for _ in range(CHANCES):
        writer = await client.create(PAIR, RecordingListener())
        assert await named(client, writer.ledger_id) == {"bookie0:3181", "bookie3:3181"}
    await client.close()
    await bookies.close()
    await tree.close()
    await others.close()


async def test_a_new_ledger_names_those_that_are_there_when_it_is_made(
    client: BookKeeperClient, bookies: RegisteredBookies
) -> None:
    await bookies.leave("bookie-1:3181", "bookie-2:3181", "bookie-4:3181")
    writer = await client.create(PAIR, RecordingListener())
    assert await named(client, writer.ledger_id) == {"bookie-0:3181", "bookie-3:3181"}
    await bookies.leave("bookie-3:3181")
    with pytest.raises(NotEnoughBookies):
        await client.create(PAIR, RecordingListener())
    assert client.metadata.unsure_creations == []
    assert [each async for each in client.metadata.ledger_ids()] == [writer.ledger_id]


async def test_a_bookie_that_has_joined_meanwhile_takes_the_place_of_one_that_has_left(
    client: BookKeeperClient, bookies: RegisteredBookies, store: MemoryMetadataStore
) -> None:
    staying, left, joined = "bookie-0:3181", "bookie-1:3181", "bookie-4:3181"
    await bookies.leave(*(each for each in bookies.bookies if each not in (staying, left)))
    await bookies.look_again()
    await bookies.leave(left)
    (registration,) = bookies.registrations([joined])
    await store.put(registration, b"")
    writer = await client.create(PAIR, RecordingListener())
    assert await named(client, writer.ledger_id) == {staying, joined}


async def test_a_bookie_that_leaves_takes_no_place_of_a_failed_one(
    client: BookKeeperClient, bookies: RegisteredBookies
) -> None:
    writer = await client.create(TRIPLE, listener := RecordingListener())
    first = await named(client, writer.ledger_id)
    leaving, staying = sorted(set(bookies.bookies) - first)
    await bookies.leave(leaving)
    bookies.bookies[min(first)].stop()
    writer.append([b"entry"])
    await listener.until_confirmed(0)
    await writer.close()
    assert await named(client, writer.ledger_id) == first - {min(first)} | {staying}


async def test_a_writer_whose_bookie_nobody_can_replace_fails(
    client: BookKeeperClient, bookies: RegisteredBookies
) -> None:
    writer = await client.create(TRIPLE, listener := RecordingListener())
    first = await named(client, writer.ledger_id)
    await bookies.leave(*(set(bookies.bookies) - first))
    bookies.bookies[min(first)].stop()
    writer.append([b"entry"])
    assert isinstance(await listener.until_failed(), NotEnoughBookies)
    assert await named(client, writer.ledger_id) == first


async def test_a_recovery_closes_a_ledger_with_those_that_are_there(
    client: BookKeeperClient, bookies: RegisteredBookies
) -> None:
    writer = await client.create(TRIPLE, listener := RecordingListener())
    writer.append([b"entry"])
    await listener.until_confirmed(0)
    await writer.abandon()
    first = await named(client, writer.ledger_id)
    leaving, staying = sorted(set(bookies.bookies) - first)
    await bookies.leave(leaving)
    bookies.bookies[min(first)].refusal = BookieCode.EIO
    reader = await client.open(writer.ledger_id, recover=True)
    assert await reader.read(0, 0) == [b"entry"]
    assert (await client.metadata.read(writer.ledger_id))[0].state is LedgerState.CLOSED
    assert leaving not in await named(client, writer.ledger_id)
    assert staying in await named(client, writer.ledger_id)
