"""One bookie's disk is filled up under load: writers go on elsewhere, nothing is lost, and room brings it back."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from magnetar.core.clock import SystemClock
from magnetar.ledger.bookie_client.tcp_connections import TcpBookieConnections
from magnetar.ledger.client import BookKeeperClient
from magnetar.metadata.factory import open_store

from e2e.interchange.cluster import Cluster
from e2e.storage.ledger_load import LedgerLoad, check
from e2e.storage.storm import OPTIONS

SEED = 5
MIB = 1 << 20
DISK_BYTES = 512 * MIB
WAIT_S = 60.0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Where the bookie called `full` keeps everything."""
    folder = tmp_path / "full"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"mounting is not permitted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill_up(ballast: Path) -> None:
    with ballast.open("wb") as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * MIB)
            file.flush()


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not await condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.2)


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_a_full_disk_stops_its_bookie_and_nobody_else(small_disk: Path, cluster: Cluster) -> None:
    settings = {"diskCheckInterval": "500", "autoRecoveryDaemonEnabled": "false"}
    full = cluster.our_bookie("full", **settings)
    assert full.folder == small_disk
    bookies = [full, *(cluster.our_bookie(f"bookie{number}", **settings) for number in range(3))]
    await asyncio.to_thread(cluster.start, *bookies)
    store = await open_store(f"zk:{cluster.zookeeper.address}")
    connections = TcpBookieConnections(store)
    await connections.start()
    client = BookKeeperClient(store, connections, SystemClock())
    load = LedgerLoad(client, OPTIONS, SEED, rate_per_s=300.0)
    writers = [asyncio.create_task(load.write(number)) for number in range(2)]

    async def confirmed(count: int) -> None:
        goal = load.confirmed + count

        async def reached() -> bool:
            return load.confirmed >= goal

        await until(reached, f"nothing goes on; {full.log_tail()}")

    async def writable() -> bool:
        return await store.exists(f"/ledgers/available/{full.id}")

    async def read_only() -> bool:
        return await store.exists(f"/ledgers/available/readonly/{full.id}")

    try:
        for _ in range(2):
            await confirmed(1_000)
            await asyncio.to_thread(fill_up, small_disk / "ballast")
            await until(read_only, f"the full bookie does not turn read-only; {full.log_tail()}")
            await confirmed(1_000)
            (small_disk / "ballast").unlink()
            await until(writable, f"room does not bring it back; {full.log_tail()}")
        # Filled up once more and killed: what it had is in its journal, and a start needs no room.
        await asyncio.to_thread(fill_up, small_disk / "ballast")
        await until(read_only, "the full bookie does not turn read-only")
        await asyncio.to_thread(full.kill)
        (small_disk / "ballast").unlink()
        await asyncio.to_thread(full.start)
        await until(writable, "a new start with room does not bring it back")
        await confirmed(1_000)
        load.stop()
        await asyncio.gather(*writers)
        for history in load.histories:
            assert await check(client, SEED, history) == []
    finally:
        for writer in writers:
            writer.cancel()
        await asyncio.gather(*writers, return_exceptions=True)
        await client.close()
        await connections.close()
        await store.close()
