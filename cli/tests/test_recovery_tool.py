"""`magnetar bookie recover` on bookies in memory."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from typing import cast

import pytest
from magnetar.bookie.autorecovery.testing import MemoryBookieCluster
from magnetar.bookie.autorecovery.underreplication import UnderreplicatedLedgers
from magnetar.bookie.cookie import COOKIES_PATH
from magnetar.cli.tools import recovery
from magnetar.cli.tools.cluster import ClusterAccess
from magnetar.cli.tools.recovery import RecoveryRequest, RecoveryTotals, recover
from magnetar.ledger.api import LedgerOptions
from magnetar.ledger.bookie_client.tcp_connections import TcpBookieConnections
from magnetar.ledger.bookie_client.v3_query import V3Queries
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.wire.bookkeeper.ledger_metadata import LedgerState

PAIR = LedgerOptions(ensemble_size=2, write_quorum=2, ack_quorum=2)
LOST = "bookie-0:3181"


@pytest.fixture
async def memory() -> AsyncIterator[MemoryBookieCluster]:
    opened = MemoryBookieCluster(2)
    yield opened
    await opened.close()


@pytest.fixture
async def ledger_id(memory: MemoryBookieCluster) -> int:
    """A ledger on a lost bookie and another one; a third one is free."""
    closed = await memory.closed_ledger(PAIR, [b"entry"] * 20)
    memory.bookies.bookies[LOST].stop()
    memory.bookies.add_bookie()
    return closed


@pytest.fixture
async def worker(memory: MemoryBookieCluster) -> AsyncIterator[UnderreplicatedLedgers]:
    """The marks as AutoRecovery of another process sees them."""
    assert isinstance(memory.store, MemoryMetadataStore)
    session = memory.store.another_session()
    opened = UnderreplicatedLedgers(session, "worker:3181")
    yield opened
    await opened.close()
    await session.close()


def ignore(_totals: RecoveryTotals) -> None:
    """Progress is of no interest."""


def cluster_of(memory: MemoryBookieCluster) -> ClusterAccess:
    connections = cast("TcpBookieConnections", memory.bookies)
    return ClusterAccess(memory.store, connections, memory.client, V3Queries(lambda _: None))


async def test_a_ledger_is_locked_while_it_is_recovered(
    memory: MemoryBookieCluster, ledger_id: int, worker: UnderreplicatedLedgers
) -> None:
    free = memory.bookies.bookies["bookie-2:3181"]
    free.hang()
    running = asyncio.ensure_future(recover(cluster_of(memory), RecoveryRequest(bookie_ids=frozenset({LOST})), ignore))
    async with asyncio.timeout(30):
        while not free.add_calls:
            await asyncio.sleep(0.001)
    assert await worker.lock(ledger_id) is None
    free.heal()
    totals = await running
    assert (totals.failed, totals.ledgers_done) == ({}, 1)
    assert await memory.lacking(ledger_id, {LOST}) == []
    assert await worker.lock(ledger_id) is not None


async def test_cookies_stay_while_a_ledger_names_the_bookie(memory: MemoryBookieCluster, ledger_id: int) -> None:
    cookie = f"{COOKIES_PATH}/{LOST}"
    await memory.store.put(cookie, b"")
    metadata = dataclasses.replace(await memory.metadata(ledger_id), state=LedgerState.OPEN, last_entry_id=-1)
    skipped, _ = await memory.client.metadata.create(metadata)
    wish = RecoveryRequest(bookie_ids=frozenset({LOST}), skip_open_ledgers=True, delete_cookies=True)
    totals = await recover(cluster_of(memory), wish, ignore)
    assert (totals.planned, list(totals.failed)) == ([ledger_id], [skipped])
    assert await memory.store.exists(cookie)
    await memory.client.delete(skipped)
    assert (await recover(cluster_of(memory), wish, ignore)).failed == {}
    assert not await memory.store.exists(cookie)


async def test_a_ledger_that_another_replicates_is_waited_for_and_named(
    memory: MemoryBookieCluster, ledger_id: int, worker: UnderreplicatedLedgers, monkeypatch: pytest.MonkeyPatch
) -> None:
    wish = RecoveryRequest(bookie_ids=frozenset({LOST}))
    lock = await worker.lock(ledger_id)
    assert lock is not None
    monkeypatch.setattr(recovery, "LOCK_SECONDS_MAX", 0.01)
    totals = await recover(cluster_of(memory), wish, ignore)
    assert "worker:3181 replicates it" in totals.failed[ledger_id]
    assert await memory.lacking(ledger_id, {LOST}) != []
    monkeypatch.setattr(recovery, "LOCK_SECONDS_MAX", 30.0)
    running = asyncio.ensure_future(recover(cluster_of(memory), wish, ignore))
    await asyncio.sleep(0.02)
    await lock.release()
    assert (await running).failed == {}
    assert await memory.lacking(ledger_id, {LOST}) == []
