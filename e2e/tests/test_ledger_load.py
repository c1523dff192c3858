"""The load and its check, against bookies in memory: a check that cannot fail checks nothing."""

from __future__ import annotations

import asyncio

import pytest
from magnetar.ledger.api import LedgerOptions
from magnetar.ledger.client import BookKeeperClient
from magnetar.ledger.testing import MemoryBookies
from magnetar.metadata.memory import MemoryMetadataStore

from e2e.storage.ledger_load import LedgerHistory, LedgerLoad, check


@pytest.mark.slow
async def test_what_was_confirmed_is_found_and_what_is_missing_is_told() -> None:
    store = MemoryMetadataStore()
    bookies = MemoryBookies(3)
    client = BookKeeperClient(store, bookies)
    options = LedgerOptions(ensemble_size=3, write_quorum=3, ack_quorum=2)
    load = LedgerLoad(client, options, seed=1, rate_per_s=100_000)
    writers = [asyncio.create_task(load.write(number)) for number in range(2)]
    while load.confirmed < 500:
        await asyncio.sleep(0.01)
    load.stop()
    await asyncio.gather(*writers)
    reader = BookKeeperClient(store, bookies)
    for history in load.histories:
        assert await check(reader, 1, history) == []
    history = next(history for history in load.histories if history.confirmed >= 10)
    assert "holds something else" in (await check(reader, 2, history))[0]
    claims_more = LedgerHistory(history.ledger_id, [*history.sizes_bytes, 10], len(history.sizes_bytes))
    assert "was confirmed" in (await check(reader, 1, claims_more))[0]
    claims_less = LedgerHistory(history.ledger_id, history.sizes_bytes[:1])
    assert "were ever appended" in (await check(reader, 1, claims_less))[0]
    await reader.close()
    await client.close()
    await store.close()
