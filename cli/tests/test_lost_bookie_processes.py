"""Bookies as processes over a real ZooKeeper: one that lost its disk comes back empty, a drained one does not."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from magnetar.cli.tools.cluster import ClusterAccess, open_cluster
from magnetar.control.client import BookieControl
from magnetar.control.errors import ControlRefused, RefusalReason
from magnetar.control.generated import bookie_pb2 as messages
from magnetar.core.exit_codes import EXIT_EMPTY_VOLUME, EXIT_RETIRED
from magnetar.ledger.api import LedgerOptions
from magnetar.ledger.testing import RecordingListener
from magnetar.net.free_ports import free_port
from magnetar.process.metadata_settings import MetadataSettings

pytestmark = [pytest.mark.slow, pytest.mark.zookeeper]

Start = Callable[..., Any]
TWO_COPIES = LedgerOptions(ensemble_size=2, write_quorum=2, ack_quorum=2)
PAYLOADS = [b"%d" % number for number in range(50)]
BOOKIES = 3


class Bookies:
    """Three of them, each with its control port."""

    def __init__(self, start_service: Start, metadata_url: str, folder: Path) -> None:
        self._start_service = start_service
        self._metadata_url = metadata_url
        self._folder = folder
        self._ports = [(free_port(), free_port()) for _ in range(BOOKIES)]
        self.running: dict[int, Any] = {}

    def start(self, number: int) -> Any:
        port, control_port = self._ports[number]
        settings = {
            "bookieId": self.name(number),
            "controlPort": control_port,
            "prometheusStatsHttpEnable": "false",
            "diskUsageThreshold": "0.99",
            "lostBookieRecoveryDelay": 3600,
            "openLedgerRereplicationGracePeriod": 500,
        }
        assignments = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        self.running[number] = self._start_service(
            *("bookie", "run", "-m", self._metadata_url, "--advertised-address", "127.0.0.1", "--port", port),
            *("--journal", self.directory(number) / "journal", "--ledgers", self.directory(number) / "ledgers"),
            *assignments,
        )
        return self.running[number]

    def name(self, number: int) -> str:
        return f"pod-{number}"

    def directory(self, number: int) -> Path:
        return self._folder / self.name(number)

    @asynccontextmanager
    async def control(self, number: int) -> AsyncIterator[BookieControl]:
        async with BookieControl.to(f"127.0.0.1:{self._ports[number][1]}") as control:
            yield control


@pytest.fixture
def bookies(start_service: Start, metadata_url: str, tmp_path: Path) -> Bookies:
    started = Bookies(start_service, metadata_url, tmp_path)
    for number in range(BOOKIES):
        started.start(number)
    for bookie in started.running.values():
        bookie.wait_until_ready()
    return started


async def write(cluster: ClusterAccess) -> int:
    listener = RecordingListener()
    writer = await cluster.client.create(TWO_COPIES, listener)
    writer.append(PAYLOADS)
    await listener.until_confirmed(len(PAYLOADS) - 1)
    await writer.close()
    return writer.ledger_id


async def check(cluster: ClusterAccess, ledgers: list[int], not_on: str) -> None:
    for ledger_id in ledgers:
        reader = await cluster.client.open(ledger_id, recover=False)
        assert all(not_on not in ensemble for _, ensemble in reader.metadata.ensembles)
        found: list[bytes] = []
        while len(found) < len(PAYLOADS):
            found += await reader.read(len(found), len(PAYLOADS) - 1)
        assert found == PAYLOADS


async def until(reached: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60.0):
        while not await reached():
            await asyncio.sleep(0.2)


async def test_a_lost_disk_is_replaced(bookies: Bookies, metadata_url: str) -> None:
    lost = bookies.name(0)
    async with open_cluster(MetadataSettings(url=metadata_url)) as cluster, bookies.control(1) as other:
        ledgers = [await write(cluster) for _ in range(10)]
        with pytest.raises(ControlRefused, match="is registered") as refused:
            await other.retire_lost_bookie(lost)
        assert refused.value.reason is RefusalReason.FAILED_PRECONDITION
        assert bookies.running[0].stop() == 0
        shutil.rmtree(bookies.directory(0))
        assert bookies.start(0).wait() == EXIT_EMPTY_VOLUME
        state = await other.lost_bookie(lost)
        assert (state.registered, state.has_cookie) == (False, True)
        assert state.ledgers_left > 0
        assert (await other.auto_recovery()).ledgers_left == 0

        async def retired() -> bool:
            state = await other.retire_lost_bookie(lost)
            assert state.has_cookie or state.ledgers_left == 0
            return not state.has_cookie

        await until(retired)
        assert (await other.auto_recovery()).ledgers_left == 0
        await check(cluster, ledgers, lost)
        bookies.start(0).wait_until_ready()
        assert (await other.lost_bookie(lost)).registered
        async with bookies.control(0) as back:
            assert not (await back.storage_state()).read_only


async def test_a_drained_bookie_stays_out(bookies: Bookies, metadata_url: str) -> None:
    leaving = bookies.name(0)
    async with open_cluster(MetadataSettings(url=metadata_url)) as cluster:
        ledgers = [await write(cluster) for _ in range(5)]
        async with bookies.control(0) as own:
            await own.start_drain()

            async def done() -> bool:
                return (await own.drain()).step == messages.DRAIN_STEP_DONE

            await until(done)
            # For as long as it lives it says so.
            assert (await own.start_drain()).step == messages.DRAIN_STEP_DONE
            with pytest.raises(ControlRefused, match="too late"):
                await own.cancel_drain()
            assert await done()
        await check(cluster, ledgers, leaving)
        assert bookies.running[0].stop() == 0
        for _ in range(2):
            assert bookies.start(0).wait() == EXIT_RETIRED
        async with bookies.control(2) as other:
            state = await other.lost_bookie(leaving)
            assert (state.registered, state.has_cookie, state.ledgers_left) == (False, False, 0)


async def test_an_empty_bookie_that_was_drained_stays_out_too(bookies: Bookies) -> None:
    async with bookies.control(0) as own:
        await own.start_drain()

        async def done() -> bool:
            return (await own.drain()).step == messages.DRAIN_STEP_DONE

        await until(done)
    assert bookies.running[0].stop() == 0
    assert bookies.start(0).wait() == EXIT_RETIRED
