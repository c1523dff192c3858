"""Two clients of one ledger: what a recovery asks and believes, and what the former writer is told."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import AsyncIterator, Callable

import pytest
from magnetar.ledger.api import LedgerFenced, LedgerOptions, LedgerUnavailable
from magnetar.ledger.bookie_client.bookie_connection import (
    ADD_FLAG_HIGH_PRIORITY,
    LAST_ADD_CONFIRMED,
    READ_FLAG_FENCE,
    READ_FLAG_NONE,
)
from magnetar.ledger.client import BookKeeperClient
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.ledger.testing import MemoryBookie, MemoryBookies, RecordingListener
from magnetar.ledger.writer import OpenLedgerWriter
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.sim.virtual_time import LoopClock, VirtualTimeLoop
from magnetar.wire.bookkeeper.codes import BookieCode, BookieError
from magnetar.wire.bookkeeper.ledger_metadata import LedgerState

new_event_loop = VirtualTimeLoop

WHOLE = LedgerOptions(ensemble_size=3, write_quorum=3, ack_quorum=2)
QUICK = LedgerClientSettings(add_timeout_seconds=0.04, change_pause_seconds=0.001)

Fault = Callable[[int, bytes], bytes]
"""What becomes of an entry that is read."""


class OddBookie(MemoryBookie):
    """Tells what it is asked for, takes its time, and may have faults."""

    def __init__(self, bookie_id: str, asked: list[tuple[int, int]]) -> None:
        super().__init__(bookie_id)
        self.delay_seconds = 0.0
        """Of reads of single entries."""
        self.away_at_first = False
        """Gives no answer about its last entry."""
        self.fault: Fault | None = None
        self.nearly_full = False
        """Takes nothing but adds of high priority, as a read-only bookie does that kept some room."""
        self._asked = asked

    def _store(self, ledger_id: int, master_key: bytes, entries: dict[int, bytes], flags: int) -> BookieCode:
        if self.nearly_full and not flags & ADD_FLAG_HIGH_PRIORITY:
            return BookieCode.EREADONLY
        return super()._store(ledger_id, master_key, entries, flags)

    async def read_entry(
        self, ledger_id: int, entry_id: int, flags: int = READ_FLAG_NONE, master_key: bytes = b""
    ) -> bytes:
        self._asked.append((entry_id, flags))
        if entry_id == LAST_ADD_CONFIRMED and self.away_at_first:
            raise BookieError(BookieCode.UNREACHABLE, self.bookie_id)
        if entry_id != LAST_ADD_CONFIRMED:
            await asyncio.sleep(self.delay_seconds)
        entry = await super().read_entry(ledger_id, entry_id, flags, master_key)
        return entry if self.fault is None or entry_id == LAST_ADD_CONFIRMED else self.fault(entry_id, entry)


class OddBookies(MemoryBookies):
    """Three of them."""

    def __init__(self) -> None:
        super().__init__(0)
        self.asked: list[tuple[int, int]] = []
        """Every read: entry id and flags."""
        self.odd = [OddBookie(f"bookie-{number}:3181", self.asked) for number in range(3)]
        self.bookies = {bookie.bookie_id: bookie for bookie in self.odd}


@pytest.fixture
async def store() -> AsyncIterator[MemoryMetadataStore]:
    opened = MemoryMetadataStore()
    yield opened
    await opened.close()


@pytest.fixture
def bookies() -> OddBookies:
    return OddBookies()


@pytest.fixture
async def client(store: MemoryMetadataStore, bookies: OddBookies) -> AsyncIterator[BookKeeperClient]:
    opened = BookKeeperClient(store, bookies, clock=LoopClock(), rng=random.Random(7), settings=QUICK)
    yield opened
    await opened.close()


@pytest.fixture
async def other(store: MemoryMetadataStore, bookies: OddBookies) -> AsyncIterator[BookKeeperClient]:
    opened = BookKeeperClient(store, bookies, clock=LoopClock(), rng=random.Random(8), settings=QUICK)
    yield opened
    await opened.close()


async def written(client: BookKeeperClient, listener: RecordingListener, entries: int = 3) -> OpenLedgerWriter:
    """A ledger whose entries were confirmed one by one."""
    writer = await client.create(WHOLE, listener)
    for number in range(entries):
        writer.append([b"entry %d" % number])
        await listener.until_confirmed(number)
    return writer


async def test_every_read_of_a_recovery_fences(
    client: BookKeeperClient, other: BookKeeperClient, bookies: OddBookies
) -> None:
    writer = await written(client, RecordingListener())
    await other.open(writer.ledger_id, recover=True)
    lasts = [flags for entry_id, flags in bookies.asked if entry_id == LAST_ADD_CONFIRMED]
    ahead = [flags for entry_id, flags in bookies.asked if entry_id > 2]
    assert len(lasts) == 3
    assert ahead
    assert all(flags & READ_FLAG_FENCE for flags in lasts + ahead)


async def test_a_bookie_that_was_away_at_first_is_fenced_when_it_is_read_from(
    client: BookKeeperClient, other: BookKeeperClient, bookies: OddBookies
) -> None:
    writer = await written(client, RecordingListener())
    bookies.odd[1].away_at_first = True
    await other.open(writer.ledger_id, recover=True)
    assert all(bookie.ledgers[writer.ledger_id].fenced for bookie in bookies.odd)


async def test_a_recovery_writes_to_bookies_that_take_nothing_else(
    client: BookKeeperClient, other: BookKeeperClient, bookies: OddBookies
) -> None:
    writer = await written(client, RecordingListener())
    await client.close()
    for bookie in bookies.odd:
        bookie.nearly_full = True
    reader = await other.open(writer.ledger_id, recover=True)
    assert reader.last_add_confirmed == 2


def flipped(entry_id: int, entry: bytes) -> bytes:
    return entry[:-1] + bytes([entry[-1] ^ 1])


def unreadable(entry_id: int, entry: bytes) -> bytes:
    raise BookieError(BookieCode.EIO, f"entry {entry_id}")


@pytest.mark.parametrize("fault", [flipped, unreadable])
async def test_a_copy_that_cannot_be_had_is_neither_the_entry_nor_a_denial(
    client: BookKeeperClient, other: BookKeeperClient, bookies: OddBookies, fault: Fault
) -> None:
    """The last entry is on two bookies. One of them has damage, the third denies it; the good copy comes late."""
    writer = await written(client, RecordingListener())
    damaged, denying, good = bookies.odd
    damaged.fault = fault
    del denying.ledgers[writer.ledger_id].entries[2]
    good.delay_seconds = 1.0
    await client.close()
    reader = await other.open(writer.ledger_id, recover=True)
    assert reader.last_add_confirmed == 2
    damaged.fault = None
    assert await reader.read(0, 2) == [b"entry 0", b"entry 1", b"entry 2"]
    assert damaged.ledgers[writer.ledger_id].entries[2] == good.ledgers[writer.ledger_id].entries[2]


async def test_a_recovery_without_enough_answers_says_how_many_there_were(
    client: BookKeeperClient, other: BookKeeperClient, bookies: OddBookies
) -> None:
    writer = await written(client, RecordingListener())
    await client.close()
    for bookie in bookies.odd[:2]:
        bookie.away_at_first = True
    with pytest.raises(LedgerUnavailable, match="only 1 of the last bookies"):
        await other.open(writer.ledger_id, recover=True)
    assert (await other.metadata.read(writer.ledger_id))[0].state is LedgerState.IN_RECOVERY


async def test_who_closes_a_ledger_that_another_has_closed_elsewhere_is_told(
    client: BookKeeperClient, other: BookKeeperClient
) -> None:
    writer = await written(client, RecordingListener())
    metadata, version = await other.metadata.read(writer.ledger_id)
    shorter = dataclasses.replace(metadata, state=LedgerState.CLOSED, last_entry_id=1, length_bytes=14)
    await other.metadata.write(writer.ledger_id, shorter, version)
    with pytest.raises(LedgerFenced):
        await writer.close()
    assert (await other.metadata.read(writer.ledger_id))[0] == shorter


async def test_who_closes_a_ledger_that_another_has_closed_at_the_same_entry_is_content(
    client: BookKeeperClient, other: BookKeeperClient
) -> None:
    writer = await written(client, RecordingListener())
    await other.open(writer.ledger_id, recover=True)
    await writer.close()
    assert (await other.metadata.read(writer.ledger_id))[0].last_entry_id == 2


async def test_a_late_answer_of_a_bookie_that_lost_its_place_confirms_nothing(
    client: BookKeeperClient, bookies: OddBookies
) -> None:
    listener = RecordingListener()
    writer = await client.create(LedgerOptions(ensemble_size=2, write_quorum=2, ack_quorum=2), listener)
    late, _ = writer.metadata.ensembles[0][1]
    spare = next(name for name in bookies.bookies if name not in writer.metadata.ensembles[0][1])
    bookies.bookies[late].mute()
    bookies.bookies[spare].hang()
    writer.append([b"entry"])
    while late in writer.metadata.ensembles[0][1]:
        await asyncio.sleep(0.001)
    bookies.bookies[late].heal()
    await asyncio.sleep(0.005)
    assert listener.confirmations == []
    bookies.bookies[spare].heal()
    await listener.until_confirmed(0)
