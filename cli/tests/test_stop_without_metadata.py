"""Processes that are told to stop when ZooKeeper has gone before them, as in a cluster that is deleted as a whole."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pulsar
import pytest
from magnetar.core.clock import SystemClock
from magnetar.core.errors import MagnetarError
from magnetar.ledger.api import LedgerOptions
from magnetar.ledger.bookie_client.tcp_connections import TcpBookieConnections
from magnetar.ledger.client import BookKeeperClient
from magnetar.metadata.testing import ZookeeperServer
from magnetar.metadata.zookeeper import ZookeeperMetadataStore
from magnetar.net.free_ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.zookeeper]

STOP_SECONDS_MAX = 5.0
SLACK_SECONDS = 15.0
"""For a machine that does a lot else: together still far from what waiting for a session would take."""
TICK_MS = 2_000
"""ZooKeeper's default, with which sessions last as long as they do in earnest: 30 s."""
ONE_COPY = tuple(
    word for name in ("EnsembleSize", "WriteQuorum", "AckQuorum") for word in ("--set", f"managedLedgerDefault{name}=1")
)
BATCH = 20
ENTRY_BYTES = 2_000

Start = Callable[..., Any]
End = Callable[[ZookeeperServer], None]


def gone(server: ZookeeperServer) -> None:
    server.kill()


def silent(server: ZookeeperServer) -> None:
    server.pause()


@pytest.fixture(params=[gone, silent], ids=["gone", "silent"])
def end(request: pytest.FixtureRequest) -> End:
    """What happens to ZooKeeper."""
    chosen: End = request.param
    return chosen


def prepare(url: str) -> None:
    command = [sys.executable, "-m", "magnetar.cli", "init-metadata", "--cluster", "here", "-m", url]
    subprocess.run([*command, "--web-service-url", "http://here:8080"], check=True, capture_output=True, timeout=60)


def bookie_arguments(folder: Path, url: str, port: int) -> list[object]:
    roomy = ("diskUsageThreshold=0.99", "prometheusStatsHttpPort=0", "controlPort=0")
    return [
        *("bookie", "run", "-m", url, "--advertised-address", "127.0.0.1", "--port", port),
        *("--journal", folder / "journal", "--ledgers", folder / "ledgers"),
        *(word for setting in roomy for word in ("--set", setting)),
    ]


def stop_all(services: list[Any]) -> None:
    """Tell all of them at once; each ends in time, in good order and without a word of Python's."""
    began = time.monotonic()
    for service in services:
        service.process.send_signal(signal.SIGTERM)
    for service in services:
        assert service.wait() == 0, service.errors
        assert time.monotonic() - began < STOP_SECONDS_MAX + SLACK_SECONDS, service.errors
        assert "Traceback" not in service.errors, service.errors


class Written:
    """What a ledger's writer was told."""

    def __init__(self) -> None:
        self.last_confirmed = -1
        self.error: MagnetarError | None = None

    def confirmed(self, ledger_id: int, last_add_confirmed: int) -> None:
        del ledger_id
        self.last_confirmed = last_add_confirmed

    def failed(self, ledger_id: int, error: MagnetarError) -> None:
        del ledger_id
        self.error = error


@contextlib.asynccontextmanager
async def ledgers(url: str) -> AsyncIterator[BookKeeperClient]:
    store = await ZookeeperMetadataStore.open(url)
    connections = TcpBookieConnections(store, SystemClock())
    await connections.start()
    client = BookKeeperClient(store, connections, SystemClock())
    try:
        yield client
    finally:
        store.limit_waiting(0.1)
        await client.close()
        await connections.close()
        await store.close()


def entry(number: int) -> bytes:
    return b"%d " % number * (ENTRY_BYTES // len(b"%d " % number))


async def keep_writing(client: BookKeeperClient, written: Written) -> int:
    """Until the bookie takes no more; gives the ledger."""
    writer = await client.create(LedgerOptions(ensemble_size=1, write_quorum=1, ack_quorum=1), written)
    count = 0
    with contextlib.suppress(MagnetarError):
        while written.error is None:
            if count - written.last_confirmed < 100 * BATCH:
                writer.append([entry(number) for number in range(count, count + BATCH)])
                count += BATCH
            await asyncio.sleep(0.005)
    await writer.abandon()
    return writer.ledger_id


async def test_a_bookie_stops_and_keeps_all_that_it_took(start_service: Start, tmp_path: Path, end: End) -> None:
    with ZookeeperServer(tmp_path / "zookeeper", tick_ms=TICK_MS) as server:
        prepare(server.url)
        arguments = bookie_arguments(tmp_path, server.url, free_port())
        bookie = start_service(*arguments).wait_until_ready()
        written = Written()
        async with ledgers(server.url) as client:
            writing = asyncio.ensure_future(keep_writing(client, written))
            while written.last_confirmed < 2_000:
                await asyncio.sleep(0.01)
            end(server)
            await asyncio.sleep(0.3)
            await asyncio.to_thread(stop_all, [bookie])
        # Also what was told after ZooKeeper had gone, and while the bookie stopped.
        ledger_id, confirmed = await writing, written.last_confirmed
        if end is gone:
            server.start()
        else:
            server.resume()
        again = start_service(*arguments).wait_until_ready()
        # The last checkpoint was written: nothing is read from the journal.
        assert "replayed" not in again.errors
        async with ledgers(server.url) as client:
            reader = await client.open(ledger_id, recover=True)
            assert reader.last_add_confirmed >= confirmed
            for first in range(0, confirmed + 1, 500):
                last = min(confirmed, first + 499)
                assert await reader.read(first, last) == [entry(number) for number in range(first, last + 1)]
            await reader.close()
        assert again.stop() == 0


@pytest.mark.clients
def test_a_whole_cluster_stops_with_clients_connected(start_service: Start, tmp_path: Path, end: End) -> None:
    with ZookeeperServer(tmp_path / "zookeeper", tick_ms=TICK_MS) as server:
        prepare(server.url)
        here = ("--address", "127.0.0.1", "--port", 0, "--http-port", 0, "--set", "controlPort=0")
        broker_arguments = ("broker", "run", "-m", server.url, "--cluster", "here", *here, *ONE_COPY)
        proxy_arguments = ("proxy", "run", "-m", server.url, *here, "--set", "brokerProxyAllowedTargetPorts=*")
        services = [
            start_service(*bookie_arguments(tmp_path, server.url, free_port())).wait_until_ready(),
            start_service("autorecovery", "run", "-m", server.url),
            *(start_service(*broker_arguments, "--advertised-address", "127.0.0.1") for _ in range(2)),
            # The operator's, which nobody must wait for when there is nothing left to wait for.
            start_service(*proxy_arguments, "--set", "drainTimeoutSeconds=30"),
        ]
        for service in services:
            service.wait_until_ready()
        service_url = services[-1].output.split()[2]
        client = pulsar.Client(service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        producers = []
        for number in range(4):
            client.subscribe(f"topic-{number}", "all")
            producers.append(client.create_producer(f"topic-{number}"))
            producers[-1].send(b"kept")
        end(server)
        time.sleep(0.3)
        stop_all(services)
        client.shutdown()
