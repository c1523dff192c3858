"""Bookies as processes, and a broker on a thread of this one that reaches them over TCP.

The test takes ZooKeeper's part: it registers bookies and takes a registration away when a session would have ended.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import uvloop
from magnetar.broker.app import RunningBroker, start_broker
from magnetar.broker.broker_parts import BrokerParts
from magnetar.broker.resources import Resources, cluster_data, initialize_cluster_metadata
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.core.clock import Clock, SystemClock
from magnetar.ledger.bookie_client.tcp_bookie import TcpBookieSettings
from magnetar.ledger.bookie_client.tcp_connections import TcpBookieConnections
from magnetar.ledger.client import BookKeeperClient
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.managed.settings import ManagedLedgerSettings
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.net.free_ports import free_port
from magnetar.wire.bookkeeper.service_info import Endpoint, encode_service_info

from e2e import processes
from e2e.processes import wait_for

T = TypeVar("T")
ADD_TIMEOUT_SECONDS = 2.0
READ_TIMEOUT_SECONDS = 5.0


class BookieProcess:
    """One bookie: started, stopped (SIGSTOP), killed, started again on its data."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.id = f"127.0.0.1:{self.port}"
        self.log = folder.with_suffix(".log")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "e2e.faults.bookie_process", str(self.folder), str(self.port)]
        root = str(Path(__file__).parents[2])
        self._process = processes.spawn(command, self.log, {"PYTHONPATH": root})

    def wait_until_ready(self) -> None:
        wait_for(self._accepts, 30, f"bookie {self.id} does not come up")

    def _accepts(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def hang(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class BrokerOnBookies:
    """A broker with a metadata store in memory; E = Qw = 3, Qa = 2, no cache of entries: reads go to bookies."""

    def __init__(self, bookies: list[BookieProcess], clock: Clock | None = None) -> None:
        self.bookies = bookies
        self.service_url = ""
        self._clock = clock or SystemClock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started = threading.Event()
        self._stop: asyncio.Event | None = None
        self._store: MemoryMetadataStore | None = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="broker", daemon=True)
        self.broker: RunningBroker | None = None

    def __enter__(self) -> BrokerOnBookies:
        try:
            for bookie in self.bookies:
                bookie.start()
            for bookie in self.bookies:
                bookie.wait_until_ready()
            self._thread.start()
            self._started.wait()
        except BaseException:
            self._kill_bookies()
            raise
        if self._failure is not None:
            self._kill_bookies()
            raise self._failure
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)
        self._kill_bookies()
        assert not self._thread.is_alive(), "the broker does not stop"
        if self._failure is not None:
            raise self._failure

    def _kill_bookies(self) -> None:
        for bookie in self.bookies:
            bookie.kill()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something on the broker's loop."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def register(self, bookie: BookieProcess) -> None:
        self.call(self._register(bookie))

    def unregister(self, bookie: BookieProcess) -> None:
        assert self._store is not None
        self.call(self._store.delete(f"/ledgers/available/{bookie.id}"))

    async def _register(self, bookie: BookieProcess) -> None:
        assert self._store is not None
        info = encode_service_info([Endpoint(id="bookie", host="127.0.0.1", port=bookie.port)])
        await self._store.put(f"/ledgers/available/{bookie.id}", info)

    def _run(self) -> None:
        try:
            uvloop.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            self._failure = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        store = self._store = MemoryMetadataStore()
        for bookie in self.bookies:
            await self._register(bookie)
        times = TcpBookieSettings(add_timeout_seconds=ADD_TIMEOUT_SECONDS, read_timeout_seconds=READ_TIMEOUT_SECONDS)
        connections = TcpBookieConnections(store, self._clock, times)
        await connections.start()
        client_settings = LedgerClientSettings(add_timeout_seconds=ADD_TIMEOUT_SECONDS)
        ledgers = BookKeeperClient(store, connections, self._clock, settings=client_settings)
        spread = ManagedLedgerSettings(ensemble_size=3, write_quorum=3, ack_quorum=2)
        settings = BrokerSettings(broker_service_port=0, web_service_port=0, managed_ledger_cache_bytes_max=0)
        await initialize_cluster_metadata(
            Resources(store), settings.cluster_name, cluster_data("pulsar://none", "http://none")
        )
        self.broker = await start_broker(settings, BrokerParts(store, ledgers, self._clock, spread))
        self.service_url = self.broker.settings.service_url
        self._started.set()
        await self._stop.wait()
        await self.broker.close()
        await ledgers.close()
        await connections.close()
        await store.close()
