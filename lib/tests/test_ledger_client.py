"""The ledger client as a whole, over bookies and metadata in memory."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import random
import weakref
from collections.abc import AsyncIterator
from typing import NoReturn

import pytest
from magnetar.core.errors import Misuse
from magnetar.ledger.api import (
    EntryNotFound,
    LedgerClosed,
    LedgerFenced,
    LedgerNotFound,
    LedgerOptions,
    LedgerUnauthorized,
    LedgerUnavailable,
    NotEnoughBookies,
)
from magnetar.ledger.client import WRITERS_LOOKED_AT_MIN, BookKeeperClient
from magnetar.ledger.ensemble_change import CHANGES_AT_ONCE_MAX, CHANGES_IN_A_ROW_MAX
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.ledger.testing import MemoryBookie, MemoryBookies, RecordingListener
from magnetar.ledger.writer import OpenLedgerWriter
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.metadata.store import MetadataStore, Stat, StoreUnavailable
from magnetar.sim.virtual_time import LoopClock, VirtualTimeLoop
from magnetar.wire.bookkeeper.codes import BookieCode
from magnetar.wire.bookkeeper.ledger_metadata import LedgerState

new_event_loop = VirtualTimeLoop

SINGLE = LedgerOptions()
WHOLE = LedgerOptions(ensemble_size=3, write_quorum=3, ack_quorum=2)
STRIPED = LedgerOptions(ensemble_size=3, write_quorum=2, ack_quorum=2)
SHAPES = pytest.mark.parametrize("options", [SINGLE, WHOLE, STRIPED], ids=["1/1/1", "3/3/2", "3/2/2"])
QUICK = LedgerClientSettings(add_timeout_seconds=0.04, change_pause_seconds=0.001)


@pytest.fixture
async def store() -> AsyncIterator[MemoryMetadataStore]:
    opened = MemoryMetadataStore()
    yield opened
    await opened.close()


@pytest.fixture
def bookies() -> MemoryBookies:
    return MemoryBookies(5)


def make_client(store: MetadataStore, bookies: MemoryBookies) -> BookKeeperClient:
    return BookKeeperClient(store, bookies, clock=LoopClock(), rng=random.Random(7), settings=QUICK)


@pytest.fixture
async def client(store: MetadataStore, bookies: MemoryBookies) -> AsyncIterator[BookKeeperClient]:
    opened = make_client(store, bookies)
    yield opened
    await opened.close()


@pytest.fixture
async def other(store: MetadataStore, bookies: MemoryBookies) -> AsyncIterator[BookKeeperClient]:
    opened = make_client(store, bookies)
    yield opened
    await opened.close()


def payloads(first: int, count: int) -> list[bytes]:
    return [b"payload %d" % number for number in range(first, first + count)]


async def written(client: BookKeeperClient, options: LedgerOptions, count: int) -> OpenLedgerWriter:
    """A ledger with so many confirmed entries."""
    listener = RecordingListener()
    writer = await client.create(options, listener)
    if count:
        assert writer.append(payloads(0, count)) == 0
        await listener.until_confirmed(count - 1)
    return writer


@SHAPES
async def test_write_close_read_delete(client: BookKeeperClient, options: LedgerOptions) -> None:
    listener = RecordingListener()
    writer = await client.create(options, listener)
    assert writer.append(payloads(0, 10)) == 0
    assert writer.append(payloads(10, 5)) == 10
    assert writer.last_add_pushed == 14
    await writer.close()
    await writer.close()
    assert listener.confirmations[-1] == writer.last_add_confirmed == 14
    for recover in (True, False):
        reader = await client.open(writer.ledger_id, recover=recover)
        assert (reader.closed, reader.last_add_confirmed) == (True, 14)
        assert reader.length_bytes == sum(map(len, payloads(0, 15)))
        assert await reader.read(0, 14) == payloads(0, 15)
        assert await reader.read(7, 7) == payloads(7, 1)
        with pytest.raises(EntryNotFound):
            await reader.read(10, 15)
        with pytest.raises(Misuse):
            await reader.read(3, 2)
    await client.delete(writer.ledger_id)
    await client.delete(writer.ledger_id)
    with pytest.raises(LedgerNotFound):
        await client.open(writer.ledger_id, recover=True)


@SHAPES
async def test_the_writer_reads_what_is_confirmed(client: BookKeeperClient, options: LedgerOptions) -> None:
    writer = await written(client, options, 5)
    assert await writer.read(1, 4) == payloads(1, 4)
    with pytest.raises(EntryNotFound):
        await writer.read(0, 5)


async def test_every_group_is_one_call_per_bookie_and_one_confirmation(
    client: BookKeeperClient, bookies: MemoryBookies
) -> None:
    listener = RecordingListener()
    writer = await client.create(SINGLE, listener)
    writer.append(payloads(0, 1000))
    await listener.until_confirmed(999)
    assert listener.confirmations == [999]
    assert sum(bookie.add_calls for bookie in bookies.bookies.values()) == 1


async def test_entries_are_striped_by_id(client: BookKeeperClient, bookies: MemoryBookies) -> None:
    writer = await written(client, STRIPED, 6)
    ensemble = writer.metadata.ensembles[0][1]
    for entry_id in range(6):
        kept = sorted([ensemble[entry_id % 3], ensemble[(entry_id + 1) % 3]])
        assert bookies.holders(writer.ledger_id, entry_id) == kept


async def test_too_few_bookies(client: BookKeeperClient) -> None:
    with pytest.raises(NotEnoughBookies):
        await client.create(LedgerOptions(ensemble_size=6, write_quorum=6, ack_quorum=6), RecordingListener())


async def test_closing_refuses_appends(client: BookKeeperClient) -> None:
    writer = await written(client, SINGLE, 1)
    await writer.close()
    with pytest.raises(LedgerClosed):
        writer.append([b"late"])


async def test_an_empty_ledger(client: BookKeeperClient) -> None:
    writer = await written(client, WHOLE, 0)
    looked = await client.open(writer.ledger_id, recover=False)
    assert (looked.closed, looked.last_add_confirmed) == (False, -1)
    recovered = await client.open(writer.ledger_id, recover=True)
    assert (recovered.closed, recovered.last_add_confirmed, recovered.length_bytes) == (True, -1, 0)


async def test_the_password_is_checked(client: BookKeeperClient) -> None:
    writer = await client.create(LedgerOptions(password=b"secret"), RecordingListener())
    for recover in (True, False):
        with pytest.raises(LedgerUnauthorized):
            await client.open(writer.ledger_id, password=b"guess", recover=recover)
    assert (await client.open(writer.ledger_id, password=b"secret", recover=True)).closed


@pytest.mark.parametrize("options", [WHOLE, STRIPED], ids=["3/3/2", "3/2/2"])
async def test_a_dying_bookie_costs_its_place(
    client: BookKeeperClient, bookies: MemoryBookies, options: LedgerOptions
) -> None:
    listener = RecordingListener()
    writer = await client.create(options, listener)
    writer.append(payloads(0, 10))
    await listener.until_confirmed(9)
    before = writer.metadata.ensembles[0][1]
    bookies.bookies[before[1]].stop()
    writer.append(payloads(10, 10))
    writer.append(payloads(20, 10))
    await listener.until_confirmed(29)
    await writer.close()
    metadata, _ = await client.metadata.read(writer.ledger_id)
    assert metadata == writer.metadata
    assert metadata.ensembles[0] == (0, before)
    assert len(metadata.ensembles) == 2
    first, after = metadata.ensembles[1]
    assert first == 10
    assert [after[0], after[2]] == [before[0], before[2]]
    assert after[1] not in before
    for entry_id in range(10, 30):
        assert len(bookies.holders(writer.ledger_id, entry_id)) == options.write_quorum
    reader = await client.open(writer.ledger_id, recover=False)
    assert await reader.read(0, 29) == payloads(0, 30)


async def test_a_segment_of_a_single_entry_is_one(client: BookKeeperClient, bookies: MemoryBookies) -> None:
    listener = RecordingListener()
    writer = await client.create(WHOLE, listener)
    writer.append(payloads(0, 1))
    await listener.until_confirmed(0)
    before = writer.metadata.ensembles[0][1]
    bookies.bookies[before[0]].stop()
    writer.append(payloads(1, 1))
    while len(writer.metadata.ensembles) == 1:
        await asyncio.sleep(0.001)
    await writer.close()
    metadata, _ = await client.metadata.read(writer.ledger_id)
    assert [first for first, _ in metadata.ensembles] == [0, 1]
    for name in before[1:]:
        bookies.bookies[name].stop()
    reader = await client.open(writer.ledger_id, recover=False)
    assert await reader.read(1, 1) == payloads(1, 1)


async def test_bookies_that_die_one_after_the_other(client: BookKeeperClient, bookies: MemoryBookies) -> None:
    listener = RecordingListener()
    writer = await client.create(WHOLE, listener)
    first = writer.metadata.ensembles[0][1]
    bookies.bookies[first[0]].stop()
    bookies.bookies[first[2]].stop()
    writer.append(payloads(0, 3))
    await listener.until_confirmed(2)
    assert len(writer.metadata.ensembles) == 1
    assert writer.metadata.ensembles[0][1][1] == first[1]
    bookies.bookies[first[1]].stop()
    writer.append(payloads(3, 3))
    error = await listener.until_failed()
    assert isinstance(error, NotEnoughBookies)
    with pytest.raises(LedgerClosed):
        writer.append([b"late"])
    await writer.close()
    reader = await client.open(writer.ledger_id, recover=False)
    assert (reader.closed, reader.last_add_confirmed) == (True, writer.last_add_confirmed)
    count = writer.last_add_confirmed + 1
    assert reader.length_bytes == sum(map(len, payloads(0, count)))


@pytest.mark.parametrize("options", [WHOLE, STRIPED], ids=["3/3/2", "3/2/2"])
async def test_a_hanging_bookie_loses_its_place(
    client: BookKeeperClient, bookies: MemoryBookies, options: LedgerOptions
) -> None:
    listener = RecordingListener()
    writer = await client.create(options, listener)
    first = writer.metadata.ensembles[0][1]
    for index in (0, 1):
        bookies.bookies[first[index]].hang()
    writer.append(payloads(0, 6))
    await listener.until_confirmed(5)
    assert not set(first[:2]) & set(writer.metadata.ensembles[-1][1])
    assert await writer.read(0, 5) == payloads(0, 6)


async def test_a_hanging_bookie_beyond_the_ack_quorum_does_not_delay(
    client: BookKeeperClient, bookies: MemoryBookies
) -> None:
    listener = RecordingListener()
    writer = await client.create(WHOLE, listener)
    bookies.bookies[writer.metadata.ensembles[0][1][2]].hang()
    for number in range(50):
        writer.append(payloads(number, 1))
        await listener.until_confirmed(number)
    assert writer.last_add_confirmed == 49


async def test_other_replicas_are_read_when_one_is_damaged_or_gone(
    client: BookKeeperClient, bookies: MemoryBookies
) -> None:
    for options in (WHOLE, STRIPED):
        writer = await written(client, options, 9)
        await writer.close()
        ensemble = writer.metadata.ensembles[0][1]
        damaged = bookies.bookies[ensemble[writer.ledger_id % 3]].ledgers[writer.ledger_id].entries
        for entry_id in damaged:
            if entry_id % 2:
                damaged[entry_id] = damaged[entry_id][:-1] + b"?"
        bookies.bookies[ensemble[(writer.ledger_id + 1) % 3]].ledgers[writer.ledger_id].entries.pop(0, None)
        reader = await client.open(writer.ledger_id, recover=False)
        assert await reader.read(0, 8) == payloads(0, 9)


async def test_no_replica_left(client: BookKeeperClient, bookies: MemoryBookies) -> None:
    writer = await written(client, WHOLE, 3)
    await writer.close()
    for bookie in bookies.bookies.values():
        bookie.stop()
    reader = await client.open(writer.ledger_id, recover=False)
    with pytest.raises(LedgerUnavailable):
        await reader.read(0, 2)


async def test_an_entry_is_not_gone_while_a_bookie_that_may_have_it_is_away(
    client: BookKeeperClient, bookies: MemoryBookies
) -> None:
    """What is not found may be skipped or forgotten by whoever asks; what is unavailable is asked for again."""
    writer = await written(client, WHOLE, 3)
    await writer.close()
    reader = await client.open(writer.ledger_id, recover=False)
    first, *others = (bookies.bookies[name] for name in writer.metadata.ensembles[0][1])
    for bookie in others:
        del bookie.ledgers[writer.ledger_id].entries[1]
    first.stop()
    with pytest.raises(LedgerUnavailable):
        await reader.read(1, 1)
    first.heal()
    assert await reader.read(1, 1) == payloads(1, 1)
    del first.ledgers[writer.ledger_id].entries[1]
    with pytest.raises(EntryNotFound):
        await reader.read(1, 1)


@SHAPES
async def test_recovery_fences_the_writer(
    client: BookKeeperClient, other: BookKeeperClient, options: LedgerOptions
) -> None:
    listener = RecordingListener()
    writer = await client.create(options, listener)
    writer.append(payloads(0, 7))
    await listener.until_confirmed(6)
    reader = await other.open(writer.ledger_id, recover=True)
    assert (reader.closed, reader.last_add_confirmed) == (True, 6)
    assert reader.length_bytes == sum(map(len, payloads(0, 7)))
    assert await reader.read(0, 6) == payloads(0, 7)
    writer.append([b"too late"])
    assert isinstance(await listener.until_failed(), LedgerFenced)
    with pytest.raises(LedgerFenced):
        writer.append([b"still too late"])
    await writer.close()
    metadata, _ = await client.metadata.read(writer.ledger_id)
    assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 6)


async def test_a_fenced_writer_cannot_change_the_ensemble(
    client: BookKeeperClient, other: BookKeeperClient, bookies: MemoryBookies
) -> None:
    listener = RecordingListener()
    writer = await client.create(WHOLE, listener)
    writer.append(payloads(0, 3))
    await listener.until_confirmed(2)
    await other.open(writer.ledger_id, recover=True)
    for bookie in bookies.bookies.values():
        for ledger in bookie.ledgers.values():
            ledger.fenced = False
    bookies.bookies[writer.metadata.ensembles[0][1][0]].stop()
    writer.append([b"too late"])
    assert isinstance(await listener.until_failed(), LedgerClosed)
    await writer.close()


@SHAPES
async def test_recovery_keeps_what_the_dead_writer_had_confirmed(
    client: BookKeeperClient, other: BookKeeperClient, options: LedgerOptions
) -> None:
    listener = RecordingListener()
    writer = await client.create(options, listener)
    # One entry at a time: the piggybacked LAC of the last ones lags behind what the listener was told.
    for number in range(40):
        writer.append(payloads(number, 1))
    await listener.until_confirmed(39)
    await client.close()
    looked = await other.open(writer.ledger_id, recover=False)
    assert looked.last_add_confirmed == -1
    reader = await other.open(writer.ledger_id, recover=True)
    assert reader.last_add_confirmed == 39
    assert reader.length_bytes == sum(map(len, payloads(0, 40)))
    assert await reader.read(0, 39) == payloads(0, 40)


async def test_looking_sees_only_up_to_the_lac(client: BookKeeperClient, other: BookKeeperClient) -> None:
    listener = RecordingListener()
    writer = await client.create(WHOLE, listener)
    writer.append(payloads(0, 5))
    await listener.until_confirmed(4)
    writer.append(payloads(5, 1))
    await listener.until_confirmed(5)
    reader = await other.open(writer.ledger_id, recover=False)
    assert (reader.closed, reader.last_add_confirmed) == (False, 4)
    assert await reader.read(0, 4) == payloads(0, 5)
    with pytest.raises(EntryNotFound):
        await reader.read(0, 5)
    writer.append(payloads(6, 1))
    await listener.until_confirmed(6)


async def test_looking_without_enough_answers_is_refused(
    client: BookKeeperClient, other: BookKeeperClient, bookies: MemoryBookies
) -> None:
    """The simulator's seed 55: one bookie without the newest entries answered, and a reader went back behind a LAC
    that it had been told before."""
    writer = await written(client, WHOLE, 3)
    for bookie_id in writer.metadata.ensembles[0][1][:2]:
        bookies.bookies[bookie_id].stop()
    with pytest.raises(LedgerUnavailable, match="only 1 of the last bookies"):
        await other.open(writer.ledger_id, recover=False)


async def test_recovery_writes_back_what_only_one_bookie_has(
    client: BookKeeperClient, other: BookKeeperClient, bookies: MemoryBookies
) -> None:
    listener = RecordingListener()
    writer = await client.create(WHOLE, listener)
    writer.append(payloads(0, 2))
    await listener.until_confirmed(1)
    ensemble = writer.metadata.ensembles[0][1]
    for bookie_id in ensemble[:2]:
        bookies.bookies[bookie_id].hang()
    writer.append(payloads(2, 1))
    await asyncio.sleep(0.001)
    await client.close()
    for bookie_id in ensemble[:2]:
        await bookies.bookies[bookie_id].close()
        bookies.bookies[bookie_id].heal()
    assert bookies.holders(writer.ledger_id, 2) == [ensemble[2]]
    reader = await other.open(writer.ledger_id, recover=True)
    # Two denials would be enough to call it absent; which answers come first decides, and both ends are right.
    if reader.last_add_confirmed == 2:
        assert len(bookies.holders(writer.ledger_id, 2)) >= 2
        assert await reader.read(0, 2) == payloads(0, 3)
    else:
        assert reader.last_add_confirmed == 1


async def test_recovery_with_a_dead_bookie_changes_the_ensemble(
    client: BookKeeperClient, other: BookKeeperClient, bookies: MemoryBookies
) -> None:
    writer = await written(client, WHOLE, 3)
    await client.close()
    ensemble = writer.metadata.ensembles[0][1]
    bookies.bookies[ensemble[0]].stop()
    reader = await other.open(writer.ledger_id, recover=True)
    assert reader.last_add_confirmed == 2
    assert await reader.read(0, 2) == payloads(0, 3)
    metadata, _ = await other.metadata.read(writer.ledger_id)
    assert len(metadata.ensembles) == 1
    assert metadata.ensembles[0][1][0] != ensemble[0]
    assert metadata.ensembles[0][1][1:] == ensemble[1:]


async def test_recovery_needs_enough_answers(
    client: BookKeeperClient, other: BookKeeperClient, bookies: MemoryBookies
) -> None:
    writer = await written(client, WHOLE, 3)
    await client.close()
    ensemble = writer.metadata.ensembles[0][1]
    for bookie_id in ensemble[:2]:
        bookies.bookies[bookie_id].hang()
    with pytest.raises(LedgerUnavailable):
        await other.open(writer.ledger_id, recover=True)
    metadata, _ = await other.metadata.read(writer.ledger_id)
    assert metadata.state is LedgerState.IN_RECOVERY
    for bookie_id in ensemble[:2]:
        bookies.bookies[bookie_id].heal()
    assert (await other.open(writer.ledger_id, recover=True)).last_add_confirmed == 2


async def test_a_bookie_that_has_every_entry_is_asked_for_many_at_once(
    client: BookKeeperClient, bookies: MemoryBookies, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = await written(client, WHOLE, 6)
    asked: list[tuple[int, int]] = []
    read_entries = MemoryBookie.read_entries

    async def counting(bookie: MemoryBookie, ledger_id: int, first: int, count: int, size_bytes: int) -> list[bytes]:
        asked.append((first, count))
        return await read_entries(bookie, ledger_id, first, count, size_bytes)

    monkeypatch.setattr(MemoryBookie, "read_entries", counting)
    assert await writer.read(0, 5) == payloads(0, 6)
    assert asked == [(0, 6)]


@pytest.mark.parametrize("options", [WHOLE, STRIPED], ids=["3/3/2", "3/2/2"])
async def test_a_slow_bookie_is_not_waited_for_when_reading(
    store: MetadataStore, bookies: MemoryBookies, options: LedgerOptions
) -> None:
    impatient = LedgerClientSettings(speculative_read_seconds=0.01)
    client = BookKeeperClient(store, bookies, rng=random.Random(7), settings=impatient)
    writer = await written(client, options, 6)
    members = writer.metadata.ensembles[0][1]
    slow = members[writer.ledger_id % len(members)]
    real = bookies.bookies[slow]
    asked = 0

    async def never(*_: object) -> NoReturn:
        nonlocal asked
        asked += 1
        await asyncio.Event().wait()
        raise AssertionError

    real.read_entry = real.read_entries = never  # type: ignore[method-assign,assignment]
    async with asyncio.timeout(30):
        assert await writer.read(0, 5) == payloads(0, 6)
        first_time = asked
        assert await writer.read(0, 5) == payloads(0, 6)
    assert asked == first_time > 0, "a bookie that was slow a moment ago is asked last"
    await client.close()


@SHAPES
async def test_two_recoveries_at_once_agree(
    client: BookKeeperClient, other: BookKeeperClient, options: LedgerOptions
) -> None:
    writer = await written(client, options, 20)
    readers = await asyncio.gather(*(other.open(writer.ledger_id, recover=True) for _ in range(4)))
    assert {reader.last_add_confirmed for reader in readers} == {19}


async def test_a_recovery_that_races_the_writer_never_loses_a_confirmed_entry(
    client: BookKeeperClient, other: BookKeeperClient
) -> None:
    for turns in range(12):
        listener = RecordingListener()
        writer = await client.create(STRIPED, listener)
        recovery = asyncio.ensure_future(other.open(writer.ledger_id, recover=True))
        for number in range(turns * 3):
            if listener.errors:
                break
            writer.append(payloads(number, 1))
            await asyncio.sleep(0)
        reader = await recovery
        await asyncio.sleep(0.001)
        assert reader.last_add_confirmed >= max(listener.confirmations, default=-1)
        if reader.last_add_confirmed >= 0:
            expected = payloads(0, reader.last_add_confirmed + 1)
            assert await reader.read(0, reader.last_add_confirmed) == expected
        await writer.close()


async def test_another_key_is_refused(client: BookKeeperClient, bookies: MemoryBookies) -> None:
    listener = RecordingListener()
    writer = await client.create(LedgerOptions(ensemble_size=2, write_quorum=2, ack_quorum=2), listener)
    for bookie in bookies.bookies.values():
        bookie.refusal = BookieCode.EUA
    writer.append([b"x"])
    assert isinstance(await listener.until_failed(), LedgerUnauthorized)


async def test_too_much_outstanding_is_refused(store: MetadataStore, bookies: MemoryBookies) -> None:
    settings = LedgerClientSettings(pending_bytes_max=1000)
    client = BookKeeperClient(store, bookies, rng=random.Random(7), settings=settings)
    listener = RecordingListener()
    writer = await client.create(SINGLE, listener)
    assert writer.append([bytes(600)]) == 0
    with pytest.raises(LedgerUnavailable):
        writer.append([bytes(600)])
    await listener.until_confirmed(0)
    assert writer.append([bytes(600)]) == 1
    await writer.close()
    assert writer.length_bytes == 1200
    await client.close()


class FailingStore(MemoryMetadataStore):
    """A store whose writes fail while `broken` is set."""

    broken = False

    async def put(
        self,
        path: str,
        value: bytes,
        expected_version: int | None = None,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
    ) -> Stat:
        if self.broken:
            raise StoreUnavailable("broken")
        return await super().put(path, value, expected_version, ephemeral=ephemeral, sequential=sequential)


async def test_a_store_that_fails_fails_the_ensemble_change_and_the_close(bookies: MemoryBookies) -> None:
    store = FailingStore()
    client = make_client(store, bookies)
    listener = RecordingListener()
    writer = await client.create(WHOLE, listener)
    writer.append(payloads(0, 2))
    await listener.until_confirmed(1)
    store.broken = True
    bookies.bookies[writer.metadata.ensembles[0][1][0]].stop()
    writer.append(payloads(2, 2))
    assert isinstance(await listener.until_failed(), LedgerUnavailable)
    with pytest.raises(LedgerUnavailable):
        await writer.close()
    store.broken = False
    await writer.close()
    metadata, _ = await client.metadata.read(writer.ledger_id)
    assert (metadata.last_entry_id, metadata.length_bytes) == (1, len(b"".join(payloads(0, 2))))
    await client.close()
    await store.close()


async def test_ledgers_that_could_not_be_closed_are_not_kept(bookies: MemoryBookies) -> None:
    """Each keeps its listener, and so its topic; after a while without a store there are many."""
    store = FailingStore()
    client = make_client(store, bookies)
    left: list[weakref.ref[RecordingListener]] = []
    for _ in range(2 * WRITERS_LOOKED_AT_MIN):
        listener = RecordingListener()
        left.append(weakref.ref(listener))
        writer = await client.create(SINGLE, listener)
        store.broken = True
        with pytest.raises(LedgerUnavailable):
            await writer.close()
        store.broken = False
    del writer, listener
    gc.collect()
    assert sum(one() is not None for one in left) <= WRITERS_LOOKED_AT_MIN
    await client.close()
    await store.close()


class CountingStore(MemoryMetadataStore):
    """Counts writes."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0

    async def put(
        self,
        path: str,
        value: bytes,
        expected_version: int | None = None,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
    ) -> Stat:
        """Counted."""
        self.writes += 1
        return await super().put(path, value, expected_version, ephemeral=ephemeral, sequential=sequential)


async def test_a_writer_whom_no_bookie_takes_pauses_and_gives_up(bookies: MemoryBookies) -> None:
    """The simulator's seed 58: bookies that answer UNREACHABLE at once had a recovery change its ensemble for ever, as
    fast as it could."""
    store = CountingStore()
    client = make_client(store, bookies)
    listener = RecordingListener()
    writer = await client.create(LedgerOptions(ensemble_size=2, write_quorum=2, ack_quorum=2), listener)
    for bookie in bookies.bookies.values():
        bookie.refusal = BookieCode.EIO
    begin, before = asyncio.get_running_loop().time(), store.writes
    writer.append(payloads(0, 1))
    error = await listener.until_failed()
    assert isinstance(error, LedgerUnavailable)
    assert store.writes - before <= CHANGES_IN_A_ROW_MAX
    pauses = CHANGES_IN_A_ROW_MAX - CHANGES_AT_ONCE_MAX
    assert asyncio.get_running_loop().time() - begin >= 0.001 * pauses
    await client.close()
    await store.close()


async def move_first_segment(client: BookKeeperClient, bookies: MemoryBookies, ledger_id: int) -> None:
    """As AutoRecovery or drains do in time: all entries of the first segment are on other bookies, named by the
    metadata, and the bookies that had them have left or have collected their copies."""
    metadata, version = await client.metadata.read(ledger_id)
    (_, before), *rest = metadata.ensembles
    spare = [name for name in bookies.bookies if all(name not in ensemble for _, ensemble in metadata.ensembles)]
    for old, new in zip(before, spare, strict=False):
        bookies.bookies[new].ledgers[ledger_id] = bookies.bookies[old].ledgers.pop(ledger_id)
    bookies.bookies[before[0]].stop()
    moved = [(0, spare[: len(before)]), *rest]
    await client.metadata.write(ledger_id, dataclasses.replace(metadata, ensembles=moved), version)


@pytest.mark.parametrize("shape", [SINGLE, LedgerOptions(ensemble_size=2, write_quorum=2, ack_quorum=2)])
async def test_an_open_reader_follows_entries_that_were_moved(
    client: BookKeeperClient, other: BookKeeperClient, bookies: MemoryBookies, shape: LedgerOptions
) -> None:
    writer = await written(client, shape, 10)
    await writer.close()
    reader = await client.open(writer.ledger_id, recover=True)
    assert await reader.read(0, 9) == payloads(0, 10)
    await move_first_segment(other, bookies, writer.ledger_id)
    assert await reader.read(0, 9) == payloads(0, 10)
    await other.delete(writer.ledger_id)
    for bookie in bookies.bookies.values():
        bookie.ledgers.clear()
    with pytest.raises((EntryNotFound, LedgerUnavailable)):
        await reader.read(0, 9)


async def test_a_writer_reads_its_older_entries_where_they_were_moved_to() -> None:
    """Nor does such a read make it believe that a ledger is still its own that another has begun to recover."""
    bookies = MemoryBookies(3)
    store = MemoryMetadataStore()
    client, other = make_client(store, bookies), make_client(store, bookies)
    listener = RecordingListener()
    writer = await client.create(SINGLE, listener)
    writer.append(payloads(0, 5))
    await listener.until_confirmed(4)
    bookies.bookies[writer.metadata.ensembles[0][1][0]].refusal = BookieCode.EIO
    writer.append(payloads(5, 5))
    await listener.until_confirmed(9)
    await move_first_segment(other, bookies, writer.ledger_id)
    assert await writer.read(0, 9) == payloads(0, 10)
    metadata, version = await other.metadata.read(writer.ledger_id)
    await other.metadata.write(writer.ledger_id, dataclasses.replace(metadata, state=LedgerState.IN_RECOVERY), version)
    assert await writer.read(0, 4) == payloads(0, 5)
    bookies.bookies[writer.metadata.ensembles[1][1][0]].refusal = BookieCode.EIO
    writer.append(payloads(10, 1))
    assert isinstance(await listener.until_failed(), LedgerFenced)
    for opened in (client, other, store):
        await opened.close()


async def test_a_closed_client_is_misused(store: MetadataStore, bookies: MemoryBookies) -> None:
    client = make_client(store, bookies)
    await client.close()
    with pytest.raises(Misuse):
        await client.create(SINGLE, RecordingListener())
