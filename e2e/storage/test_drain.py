"""A bookie leaves the cluster under load, killed again and again on its way out, and nothing is missing afterwards."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import time
from pathlib import Path

import pytest
from magnetar.core.clock import SystemClock
from magnetar.ledger.bookie_client.tcp_connections import TcpBookieConnections
from magnetar.ledger.client import BookKeeperClient
from magnetar.metadata.factory import open_store

from e2e.interchange.cluster import Cluster
from e2e.interchange.ours import PROGRAM, OurBookie
from e2e.storage.ledger_load import LedgerLoad, check
from e2e.storage.storm import OPTIONS

SEED = 11
WRITERS = 2
DRAIN_SECONDS_MAX = 90.0
KILLS = 4


def drain_state(bookie: OurBookie) -> dict[str, object] | None:
    """What the bookie says of its drain; None while it does not answer."""
    command = [PROGRAM, "bookie", "drain", bookie.control_address, "--status", "--json"]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if finished.returncode:
        return None
    found: dict[str, object] = json.loads(finished.stdout)
    return found


async def drain_with_kills(bookie: OurBookie) -> None:
    """Ask for it once; kill the bookie at any time afterwards; it goes on by itself."""
    rng = random.Random(SEED)
    command = [PROGRAM, "bookie", "drain", bookie.control_address, "--no-follow"]
    await asyncio.to_thread(subprocess.run, command, check=True, timeout=30)
    for _ in range(KILLS):
        await asyncio.sleep(rng.uniform(0.0, 3.0))
        if not bookie.running:
            return
        await asyncio.to_thread(bookie.kill)
        await asyncio.to_thread(bookie.start)


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_a_bookie_drains_under_load_and_under_kills(cluster: Cluster, tmp_path: Path) -> None:
    bookies = [cluster.our_bookie(f"bookie{number}", autoRecoveryDaemonEnabled="true") for number in range(4)]
    await asyncio.to_thread(cluster.start, *bookies)
    leaving = bookies[0]
    store = await open_store(f"zk:{cluster.zookeeper.address}")
    connections = TcpBookieConnections(store)
    await connections.start()
    client = BookKeeperClient(store, connections, SystemClock())
    load = LedgerLoad(client, OPTIONS, SEED, rate_per_s=200.0)
    writers = [asyncio.create_task(load.write(number)) for number in range(WRITERS)]
    try:
        while load.confirmed < 3_000:  # noqa: ASYNC110  (a count, not an event)
            await asyncio.sleep(0.1)
        await drain_with_kills(leaving)
        deadline = time.monotonic() + DRAIN_SECONDS_MAX
        while await store.exists(f"/ledgers/cookies/{leaving.id}"):
            state = await asyncio.to_thread(drain_state, leaving)
            assert time.monotonic() < deadline, f"the drain does not end: {state}; {leaving.log_tail()}"
            await asyncio.sleep(0.5)
        async for ledger_id in client.metadata.ledger_ids():
            metadata, _ = await client.metadata.read(ledger_id)
            assert all(leaving.id not in ensemble for _, ensemble in metadata.ensembles), ledger_id
        await asyncio.to_thread(leaving.kill)
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
    leaving.launch()
    leaving.wait_until_ended()
    assert "does not know" in leaving.log_text(), "a bookie that was drained must not come back by accident"
