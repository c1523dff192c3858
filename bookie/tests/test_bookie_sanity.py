from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from magnetar.bookie.autorecovery.testing import MemoryBookieCluster
from magnetar.bookie.operating import sanity
from magnetar.bookie.operating.sanity import check_bookie, write_and_read_back
from magnetar.ledger.api import NotEnoughBookies
from magnetar.sim.virtual_time import VirtualTimeLoop

new_event_loop = VirtualTimeLoop

BOOKIE = "bookie-1:3181"


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryBookieCluster]:
    opened = MemoryBookieCluster(3)
    yield opened
    await opened.close()


async def ledgers_left(cluster: MemoryBookieCluster) -> int:
    return len([ledger_id async for ledger_id in cluster.client.metadata.ledger_ids()])


async def test_a_bookie_that_works(cluster: MemoryBookieCluster) -> None:
    assert await write_and_read_back(cluster.store, cluster.bookies, BOOKIE)
    told: list[tuple[int, int]] = []
    result = await check_bookie(cluster.store, cluster.bookies, BOOKIE, 250, lambda *now: told.append(now))
    assert (result.entries, result.bookies) == (250, (BOOKIE,))
    assert told == [(done, 500) for done in (100, 200, 250, 350, 450, 500)]
    assert cluster.bookies.bookies["bookie-0:3181"].ledgers == {}
    assert await ledgers_left(cluster) == 0


@pytest.mark.parametrize("trouble", ["stopped", "hanging", "read-only"])
async def test_a_bookie_that_takes_nothing(
    cluster: MemoryBookieCluster, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sanity, "SECONDS_MAX", 0.05)
    bookie = cluster.bookies.bookies[BOOKIE]
    if trouble == "hanging":
        bookie.hang()
    else:
        bookie.writable = False
        if trouble == "stopped":
            bookie.stop()
        with pytest.raises(NotEnoughBookies):
            await check_bookie(cluster.store, cluster.bookies, BOOKIE, 1)
    assert not await write_and_read_back(cluster.store, cluster.bookies, BOOKIE)
    assert await ledgers_left(cluster) == 0
    bookie.stop()
