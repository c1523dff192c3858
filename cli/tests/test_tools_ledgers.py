"""What one bookie has of a ledger, as `bookie read-ledger --bookie` shows it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from magnetar.bookie.autorecovery.testing import MemoryBookieCluster
from magnetar.cli.tools.ledgers import EntryRange, ReadEntry, read_from_bookie
from magnetar.ledger.api import LedgerOptions

EVERYWHERE = LedgerOptions(ensemble_size=3, write_quorum=3, ack_quorum=3)
PAYLOADS = [b"entry %d" % number for number in range(10)]
ALL = EntryRange()


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryBookieCluster]:
    opened = MemoryBookieCluster(3)
    yield opened
    await opened.close()


async def read(cluster: MemoryBookieCluster, ledger_id: int, wanted: EntryRange = ALL) -> list[ReadEntry]:
    connection = cluster.bookies.connection("bookie-1:3181")
    return [
        entry async for entry in read_from_bookie(cluster.client.metadata, connection, ledger_id, wanted, password=b"")
    ]


async def test_an_open_ledger_ends_where_the_bookie_denies(cluster: MemoryBookieCluster) -> None:
    writer, _ = await cluster.open_ledger(EVERYWHERE, PAYLOADS)
    found = await read(cluster, writer.ledger_id)
    assert [entry.payload for entry in found] == PAYLOADS
    assert not any(entry.problem for entry in found)
    await writer.abandon()


async def test_a_bookie_that_cannot_give_an_entry_of_an_open_ledger_does_not_tell_its_end(
    cluster: MemoryBookieCluster,
) -> None:
    """Before, the list ended there without a word, and was empty when the first entry was damaged."""
    writer, _ = await cluster.open_ledger(EVERYWHERE, PAYLOADS)
    cluster.damage("bookie-1:3181", writer.ledger_id, 0)
    (found,) = await read(cluster, writer.ledger_id)
    assert (found.entry_id, found.payload) == (0, b"")
    assert found.problem.endswith("give --to to read on")
    named = await read(cluster, writer.ledger_id, EntryRange(last_entry_id=9))
    assert [entry.entry_id for entry in named if entry.problem] == [0]
    assert [entry.payload for entry in named[1:]] == PAYLOADS[1:]
    await writer.abandon()
