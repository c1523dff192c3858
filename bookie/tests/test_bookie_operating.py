"""The operations of a real bookie, over HTTP, gRPC and as metrics."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

import aiohttp
import pytest
from magnetar.bookie.admin.control import serve_bookie
from magnetar.bookie.admin.metrics import BookieMetrics
from magnetar.bookie.admin.server import BookieHttpServer
from magnetar.bookie.admin.testing import FakeOperations
from magnetar.bookie.app import RunningBookie
from magnetar.bookie.autorecovery.election import ElectionKind
from magnetar.bookie.autorecovery.replication.replicator import LedgerReplicator
from magnetar.bookie.autorecovery.replication.settings import ReplicationSettings
from magnetar.bookie.autorecovery.underreplication import UnderreplicatedLedgers
from magnetar.bookie.drain.drain import DrainParts
from magnetar.bookie.gc.collector import GarbageCollector
from magnetar.bookie.gc.settings import GarbageCollectionSettings
from magnetar.bookie.operating.cluster import ClusterClient
from magnetar.bookie.operating.local import LocalOperations, LocalParts
from magnetar.bookie.operating.recovery import RecoveryAdmin
from magnetar.bookie.operations import BookieOperations, OperationRefused
from magnetar.bookie.settings import BookieSettings
from magnetar.control.client import BookieControl
from magnetar.control.server import ControlServer
from magnetar.control.settings import ControlSettings
from magnetar.core.clock import SystemClock
from magnetar.core.errors import MagnetarError
from magnetar.ledger.api import LedgerOptions
from magnetar.ledger.bookie_client.tcp_connections import TcpBookieConnections
from magnetar.ledger.bookie_client.v3_query import V3Queries
from magnetar.ledger.client import BookKeeperClient
from magnetar.metadata.memory import MemoryMetadataStore

HOST = "127.0.0.1"
BOOKIE = "127.0.0.1:3181"


class NoLedgers:
    """A `LiveLedgers` of a cluster with none."""

    async def catch_up(self) -> None:
        """Nothing to know."""

    async def ledger_ids(self) -> AsyncIterator[int]:
        nothing: tuple[int, ...] = ()
        for ledger_id in nothing:
            yield ledger_id

    async def exists(self, ledger_id: int) -> bool:
        del ledger_id
        return False

    async def belongs_to(self, ledger_id: int, bookie_id: str) -> bool | None:
        del ledger_id, bookie_id
        return None


class Confirmations:
    """Told of appends."""

    def __init__(self) -> None:
        self.last = -1
        self.changed = asyncio.Event()

    def confirmed(self, ledger_id: int, last_add_confirmed: int) -> None:
        del ledger_id
        self.last = last_add_confirmed
        self.changed.set()

    def failed(self, ledger_id: int, error: MagnetarError) -> None:
        raise AssertionError(f"{ledger_id}: {error}")


@dataclass
class Running:
    """A bookie, a client, and the operations."""

    bookie: RunningBookie
    local: LocalOperations
    operations: BookieOperations
    client: BookKeeperClient
    connections: TcpBookieConnections
    underreplicated: UnderreplicatedLedgers
    store: MemoryMetadataStore

    async def write(self, payloads: Sequence[bytes], *, close: bool = True) -> int:
        told = Confirmations()
        writer = await self.client.create(LedgerOptions(password=b"secret"), told)
        writer.append(payloads)
        while told.last < len(payloads) - 1:
            told.changed.clear()
            await told.changed.wait()
        if close:
            await writer.close()
        return writer.ledger_id


@pytest.fixture
async def running(
    start: Callable[..., Awaitable[RunningBookie]], settings: BookieSettings, store: MemoryMetadataStore
) -> AsyncIterator[Running]:
    bookie = await start(serve_tcp=True, bookie_id=BOOKIE)
    parts = bookie.parts
    clock = SystemClock()
    collectors = [
        GarbageCollector(directory, NoLedgers(), GarbageCollectionSettings(), clock, lambda _: None)
        for directory in parts.storage.directories
    ]
    local = LocalOperations(
        LocalParts(
            bookie_id=BOOKIE,
            address=f"{HOST}:{bookie.port}",
            settings=settings,
            mode=bookie.mode,
            switch=bookie,
            directories=parts.directories,
            storage=parts.storage,
            states=parts.states,
            journals=parts.journals,
            limbo=parts.limbo,
            counters=bookie.bookie.counters,
            collectors=collectors,
            shown_settings={"bookiePort": str(bookie.port)},
        )
    )
    connections = TcpBookieConnections(store, clock)
    await connections.start()
    client = BookKeeperClient(store, connections)
    underreplicated = UnderreplicatedLedgers(store, BOOKIE, clock, random.Random(1))
    recovery = RecoveryAdmin(store, underreplicated, ElectionKind.VOTES)
    operations = replace(
        FakeOperations().all(),
        bookie=local,
        storage=local,
        collection=local,
        measures=local,
        cluster=ClusterClient(store, client, connections, V3Queries(connections.address)),
        recovery=recovery,
    )
    yield Running(bookie, local, operations, client, connections, underreplicated, store)
    await recovery.close()
    await underreplicated.close()
    await client.close()
    await connections.close()
    await local.close()


async def test_http(running: Running) -> None:
    ledger_id = await running.write([b"one", b"two", b"\xff"])
    server = BookieHttpServer(running.operations)
    await server.start(HOST, 0)

    async with aiohttp.ClientSession(f"http://{HOST}:{server.port}") as session:

        async def get(path: str) -> object:
            async with session.get(path) as answer:
                assert answer.status == 200, await answer.text()
                return json.loads(await answer.text())

        assert await get("/api/v1/ledger/list") == {str(ledger_id): None}
        read = await get(f"/api/v1/ledger/read?ledger_id={ledger_id}")
        assert read == {"0": "one", "1": "two", "2": "\N{REPLACEMENT CHARACTER}"}
        assert await get("/api/v1/bookie/list_bookies?print_hostnames=true") == {BOOKIE: HOST}
        files = await get("/api/v1/bookie/list_disk_file?file_type=journal")
        assert isinstance(files, dict)
        assert files["journal files"].endswith(".txn\t")
        space = await get("/api/v1/bookie/info")
        assert isinstance(space, dict)
        assert space["totalSpace"] > space["freeSpace"] > 0
        info = await get("/api/v1/bookie/list_bookie_info")
        assert isinstance(info, dict)
        assert list(info) == [BOOKIE, "ClusterInfo: "]
        cluster = await get("/api/v1/bookie/cluster_info")
        assert isinstance(cluster, dict)
        assert (cluster["totalBookiesCount"], cluster["writableBookiesCount"], cluster["auditorElected"]) == (
            1,
            1,
            False,
        )
        async with session.put("/api/v1/bookie/state/readonly", data='{"readOnly": true}') as answer:
            assert json.loads(await answer.text()) == {"readOnly": True}
        async with session.put(
            "/api/v1/bookie/entry_location_compact", data='{"entryLocationRocksDBCompact": true}'
        ) as answer:
            assert answer.status == 200
        async with session.delete(f"/api/v1/ledger/delete?ledger_id={ledger_id}") as answer:
            assert answer.status == 200
        assert await get("/api/v1/ledger/list") == {}
    await server.close()


async def test_grpc(running: Running) -> None:
    first = await running.write([b"one", b"two"])
    second = await running.write([b"three"], close=False)
    await running.client.open(second, password=b"secret", recover=True)
    server = ControlServer(ControlSettings(host=HOST, stop_grace_seconds=0.5))
    await serve_bookie(server, running.operations)
    async with BookieControl.to(f"{HOST}:{server.port}") as control:
        ledgers = [
            (ledger.ledger_id, ledger.last_entry_id, ledger.fenced) async for ledger in control.ledgers(page_size=1)
        ]
        assert ledgers == [(first, 1, False), (second, 0, True)]
        state = await control.set_read_only(read_only=True)
        assert list(state.read_only_reasons) == ["somebody has asked for it"]
        assert not (await control.set_read_only(read_only=False)).read_only
        assert (await control.auto_recovery()).enabled
        assert not (await control.enable_auto_recovery(enabled=False)).enabled
    await server.close()


async def test_metrics_after_adds_and_reads(running: Running) -> None:
    payloads = [b"x" * 100] * 50
    ledger_id = await running.write(payloads)
    reader = await running.client.open(ledger_id, password=b"secret", recover=False)
    assert len(await reader.read(0, 49)) == 50
    text = BookieMetrics(running.operations).render()
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(values['bookkeeper_server_ADD_ENTRY_count{success="true"}']) == 50
    assert float(values['bookkeeper_server_READ_ENTRY_count{success="true"}']) == 50
    entry_bytes = 100 + 32 + 4
    assert float(values["bookie_WRITE_BYTES"]) == 50 * entry_bytes
    assert float(values["bookie_READ_BYTES"]) == 50 * entry_bytes
    assert float(values["bookkeeper_server_ADD_ENTRY_IN_PROGRESS"]) == 0
    assert float(values['bookie_journal_JOURNAL_QUEUE_SIZE{journalIndex="0"}']) == 0
    assert float(values['bookie_journal_JOURNAL_ADD_ENTRY_count{success="true",journalIndex="0"}']) == 51
    assert float(values['bookie_journal_JOURNAL_SYNC_sum{success="true",journalIndex="0"}']) > 0
    assert float(values["bookie_SERVER_STATUS"]) == 1
    assert [float(value) for name, value in values.items() if name.startswith("bookie_write_cache_count")] == [50]
    assert [float(value) for name, value in values.items() if name.startswith("bookie_write_cache_hits")] == [50]


async def test_a_full_disk_cannot_be_switched_away(running: Running) -> None:
    running.bookie.mode.add_reason("the disk is full")
    with pytest.raises(OperationRefused, match="stays read-only because of this: the disk is full"):
        await running.local.set_read_only(read_only=False)


async def test_recoveries_need_their_parts(running: Running) -> None:
    with pytest.raises(OperationRefused, match="magnetar bookie recover b:1"):
        running.operations.recovery.decommission_bookie("b:1")
    with pytest.raises(OperationRefused, match="sanity-test"):
        await running.local.sanity_test()


async def test_a_dead_bookie_is_decommissioned_in_the_background(running: Running) -> None:
    clock, rng = SystemClock(), random.Random(2)
    replicator = LedgerReplicator(running.client, running.connections, clock, rng, ReplicationSettings())
    parts = DrainParts(
        store=running.store,
        client=running.client,
        connections=running.connections,
        underreplicated=running.underreplicated,
        replicator=replicator,
        holder="this test",
        settle_seconds=0.0,
    )
    recovery = RecoveryAdmin(running.store, running.underreplicated, ElectionKind.VOTES, departures=parts)
    await running.store.put("/ledgers/cookies/dead:3181", b"")
    recovery.decommission_bookie("dead:3181")
    with pytest.raises(OperationRefused, match="already"):
        recovery.recover_bookie("dead:3181", delete_cookie=False)
    async with asyncio.timeout(30):
        while await running.store.exists("/ledgers/cookies/dead:3181"):
            await asyncio.sleep(0.01)
    await recovery.close()
