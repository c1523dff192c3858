"""Replication and drain on real bookies: TCP, journals, entry logs."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from magnetar.bookie.app import RunningBookie, start_bookie
from magnetar.bookie.autorecovery.replication.replicator import LedgerReplicator
from magnetar.bookie.autorecovery.replication.settings import ReplicationSettings
from magnetar.bookie.autorecovery.replication.worker import ReplicationWorker
from magnetar.bookie.autorecovery.underreplication import UnderreplicatedLedgers
from magnetar.bookie.cookie import COOKIES_PATH, InvalidCookie
from magnetar.bookie.drain.drain import DrainParts
from magnetar.bookie.drain.service import REASON_DRAIN, DrainService, ModeSwitch
from magnetar.bookie.operations import BookieDrainStep
from magnetar.bookie.settings import BookieSettings, DiskSettings, standalone_settings
from magnetar.core.clock import SystemClock
from magnetar.ledger.api import LedgerOptions
from magnetar.ledger.bookie_client.tcp_connections import TcpBookieConnections
from magnetar.ledger.client import BookKeeperClient
from magnetar.ledger.testing import RecordingListener
from magnetar.metadata.memory import MemoryMetadataStore

CLOCK = SystemClock()
OPTIONS = LedgerOptions(ensemble_size=3, write_quorum=2, ack_quorum=2)
WHOLE = LedgerOptions(ensemble_size=2, write_quorum=2, ack_quorum=2)


class DiskCluster:
    """Bookies on real disks, a client over TCP."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.store = MemoryMetadataStore()
        self.running: dict[str, RunningBookie] = {}
        self._sessions: dict[str, MemoryMetadataStore] = {}
        self.connections = TcpBookieConnections(self.store)
        self.client = BookKeeperClient(self.store, self.connections, rng=random.Random(5))

    def settings(self, name: str) -> BookieSettings:
        return dataclasses.replace(
            standalone_settings(self._directory / name),
            bookie_id=name,
            port=0,
            serve_tcp=True,
            disk=DiskSettings(usage_threshold=1.0, usage_low_water=1.0, free_bytes_min=0),
        )

    async def start(self, name: str) -> None:
        session = self._sessions[name] = self.store.another_session()
        self.running[name] = await start_bookie(self.settings(name), session, CLOCK)

    async def stop(self, name: str) -> None:
        await self.running.pop(name).close()
        await self._sessions.pop(name).close()

    async def write(self, options: LedgerOptions, payloads: list[bytes]) -> int:
        listener = RecordingListener()
        writer = await self.client.create(options, listener)
        writer.append(payloads)
        await listener.until_confirmed(len(payloads) - 1)
        await writer.close()
        return writer.ledger_id

    async def read(self, ledger_id: int) -> list[bytes]:
        reader = await self.client.open(ledger_id, recover=False)
        found: list[bytes] = []
        while len(found) <= reader.last_add_confirmed:
            found += await reader.read(len(found), reader.last_add_confirmed)
        return found

    async def close(self) -> None:
        await self.client.close()
        await self.connections.close()
        for name in list(self.running):
            await self.stop(name)
        await self.store.close()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[DiskCluster]:
    opened = DiskCluster(tmp_path)
    for number in range(5):
        await opened.start(f"disk-{number}")
    await opened.connections.start()
    yield opened
    await opened.close()


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not reached():
            await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_a_lost_bookie_and_then_a_drained_one(cluster: DiskCluster) -> None:
    payloads = [b"%d " % number * 50 for number in range(300)]
    ledgers = [await cluster.write(options, payloads) for options in (OPTIONS, WHOLE) * 4]
    marks = UnderreplicatedLedgers(cluster.store, "worker")
    settings = ReplicationSettings(entry_batch_size=64)
    replicator = LedgerReplicator(cluster.client, cluster.connections, settings=settings)

    await cluster.stop("disk-0")
    await until(lambda: "disk-0" not in cluster.connections.readable_bookies())
    for ledger_id in ledgers:
        await marks.mark(ledger_id, ["disk-0"])
    worker = ReplicationWorker(marks, replicator)
    running = asyncio.ensure_future(worker.run())
    await until(lambda: worker.progress().ledgers_done == len(ledgers))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert await marks.count() == 0

    leaving = cluster.running["disk-1"]
    parts = DrainParts(
        store=cluster.store,
        client=cluster.client,
        connections=cluster.connections,
        underreplicated=marks,
        replicator=replicator,
        holder="this process",
        settle_seconds=0.05,
        retry_seconds=0.05,
    )
    service = DrainService(parts, "disk-1", ModeSwitch(leaving.mode))
    await service.start_drain()
    await until(lambda: service.drain().step is BookieDrainStep.DONE)
    await service.close()
    await marks.close()
    assert service.drain().bytes_copied > 0
    assert not await cluster.store.exists(f"{COOKIES_PATH}/disk-1")
    await cluster.stop("disk-1")
    with pytest.raises(InvalidCookie, match="taken out"):
        await cluster.start("disk-1")
    for ledger_id in ledgers:
        metadata, _ = await cluster.client.metadata.read(ledger_id)
        assert all({"disk-0", "disk-1"}.isdisjoint(bookies) for _, bookies in metadata.ensembles)
        assert await cluster.read(ledger_id) == payloads


async def test_a_bookie_whose_drain_is_cancelled_takes_writes_again(cluster: DiskCluster) -> None:
    staying = cluster.running["disk-1"]
    marks = UnderreplicatedLedgers(cluster.store, "drain")
    parts = DrainParts(
        store=cluster.store,
        client=cluster.client,
        connections=cluster.connections,
        underreplicated=marks,
        replicator=LedgerReplicator(cluster.client, cluster.connections),
        holder="this process",
        settle_seconds=3600,
        retry_seconds=0.05,
    )
    service = DrainService(parts, "disk-1", ModeSwitch(staying.mode))
    staying.mode.add_reason("somebody's own")
    await service.start_drain()
    await until(lambda: service.drain().step is BookieDrainStep.VERIFY)
    assert list(staying.mode.reasons) == ["somebody's own", REASON_DRAIN]
    assert "disk-1" not in cluster.connections.writable_bookies()
    await service.cancel_drain()
    assert list(staying.mode.reasons) == ["somebody's own"]
    staying.mode.remove_reason("somebody's own")
    await until(lambda: "disk-1" in cluster.connections.writable_bookies())
    # One that has started for a drain which was cancelled just then.
    staying.mode.add_reason(REASON_DRAIN)
    await service.start()
    assert not staying.mode.read_only
    await service.close()
    await marks.close()
