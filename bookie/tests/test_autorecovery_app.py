"""AutoRecovery over real bookies on TCP, all in this process."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest
from magnetar.bookie.app import RunningBookie, start_bookie
from magnetar.bookie.autorecovery.app import start_autorecovery
from magnetar.bookie.autorecovery.settings import AuditorSettings, AutoRecoverySettings
from magnetar.bookie.settings import BookieSettings, DiskSettings, standalone_settings
from magnetar.core.clock import SystemClock
from magnetar.ledger.api import LedgerOptions
from magnetar.ledger.bookie_client.tcp_connections import TcpBookieConnections
from magnetar.ledger.client import BookKeeperClient
from magnetar.ledger.testing import RecordingListener
from magnetar.metadata.memory import MemoryMetadataStore

PATIENCE_SECONDS = 30.0
PAYLOADS = [b"payload %d" % number for number in range(100)]
SETTINGS = AutoRecoverySettings(auditor=AuditorSettings(replicas_check_interval_seconds=3600.0))


def bookie_settings(directory: Path, number: int) -> BookieSettings:
    return dataclasses.replace(
        standalone_settings(directory / str(number)),
        bookie_id=f"bookie-{number}",
        port=0,
        serve_tcp=True,
        disk=DiskSettings(usage_threshold=1.0, usage_low_water=1.0, free_bytes_min=0),
    )


@pytest.mark.slow
async def test_replicas_return_after_a_bookie_has_gone(tmp_path: Path) -> None:
    store = MemoryMetadataStore()
    bookies: list[RunningBookie] = [
        await start_bookie(bookie_settings(tmp_path, number), store.another_session(), SystemClock())
        for number in range(4)
    ]
    connections = TcpBookieConnections(store)
    await connections.start()
    client = BookKeeperClient(store, connections)
    listener = RecordingListener()
    writer = await client.create(LedgerOptions(ensemble_size=3, write_quorum=2, ack_quorum=2), listener)
    writer.append(PAYLOADS)
    await listener.until_confirmed(len(PAYLOADS) - 1)
    await writer.close()
    running = await start_autorecovery(SETTINGS, store.another_session(), SystemClock(), bookie_id="recovery")
    counters = running.daemon.counters
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (counters.check_all_ledgers.success.count and counters.replicas_check.success.count):
            await asyncio.sleep(0.01)
    assert counters.ledgers_with_entry_below_write_quorum == counters.ledgers_with_entry_without_replica == 0
    before = (await client.metadata.read(writer.ledger_id))[0].ensembles[0][1]
    assert (await running.daemon.refresh()).ledgers_left == 0
    lost = next(bookie for bookie in bookies if bookie.bookie_id == before[1])
    await lost.close()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while lost.bookie_id in (await client.metadata.read(writer.ledger_id))[0].ensembles[0][1]:
            await asyncio.sleep(0.01)
        # Its mark goes a moment before it counts as done.
        while (progress := await running.daemon.refresh()).ledgers_left or not progress.ledgers_done:
            await asyncio.sleep(0.01)
    assert (progress.ledgers_done, progress.auditor_bookie_id) == (1, "recovery")
    reader = await client.open(writer.ledger_id, recover=False)
    assert [entry for number in range(100) for entry in await reader.read(number, number)] == PAYLOADS
    await running.close()
    await client.close()
    await connections.close()
    for bookie in bookies:
        await bookie.close()
    await store.close()
