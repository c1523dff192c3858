"""Finding store and bookies, and falling back to brokers; bookies here serve TCP, the store is in memory."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from magnetar.bookie.app import RunningBookie, start_bookie
from magnetar.bookie.settings import DiskSettings, standalone_settings
from magnetar.core.clock import SystemClock
from magnetar.core.errors import Unavailable
from magnetar.ledger.api import LedgerOptions
from magnetar.ledger.bookie_client.tls_settings import TLS_FACTORY, BookieTlsSettings
from magnetar.ledger.client import BookKeeperClient
from magnetar.ledger.testing import RecordingListener
from magnetar.ledger.writer import OpenLedgerWriter
from magnetar.managed.compaction import COMPACTION_CURSOR, LEDGER_PROPERTY
from magnetar.managed.paths import cursor_path
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.metadata.store import MetadataStore
from magnetar.net.free_ports import free_port
from magnetar.net.key_stores import StoreType
from magnetar.net.testing import TestAuthority
from magnetar.spark.assembly.compaction import CompactedLedger
from magnetar.spark.bookies import access as cluster_access
from magnetar.spark.bookies.access import DirectAccess, TaskAccess, choose, open_direct
from magnetar.spark.errors import ClusterUnreachable
from magnetar.spark.options.connection import ConnectionOptions
from magnetar.spark.positions import MessagePosition
from magnetar.spark.slices import LedgerRange
from magnetar.wire.pulsar.generated.ml_data_formats_pb2 import LongProperty, ManagedCursorInfo, PositionInfo

TOPIC = "persistent://public/default/t"
BOTH = LedgerOptions(ensemble_size=2, write_quorum=2, ack_quorum=2)
OPTIONS = ConnectionOptions(service_url="pulsar://127.0.0.1:1", metadata_url="zk:127.0.0.1:2181")


class World:
    """A store that all sessions share, and bookies in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = MemoryMetadataStore()
        self.bookies: list[RunningBookie] = []
        self.opened: list[str] = []
        self.refusal: Exception | None = None

    async def start_bookie(self, **changes: Any) -> None:
        settings = standalone_settings(self.folder / str(len(self.bookies)))
        disk = DiskSettings(usage_threshold=1.0, usage_low_water=1.0, free_bytes_min=0)
        name = f"bookie-{len(self.bookies)}"  # No address: where it is must be told.
        settings = dataclasses.replace(settings, port=free_port(), bookie_id=name, serve_tcp=True, disk=disk, **changes)
        self.bookies.append(await start_bookie(settings, self.store, SystemClock()))

    async def open_store(self, url: str, **_: object) -> MetadataStore:
        self.opened.append(url)
        if self.refusal is not None:
            raise self.refusal
        return self.store.another_session()

    async def write(self, access: DirectAccess, payloads: list[bytes]) -> tuple[BookKeeperClient, OpenLedgerWriter]:
        client = BookKeeperClient(self.store, access.bookies)
        listener = RecordingListener()
        writer = await client.create(BOTH, listener)
        writer.append(payloads)
        await listener.until_confirmed(len(payloads) - 1)
        return client, writer


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    made = World(tmp_path)
    monkeypatch.setattr(cluster_access, "open_store", made.open_store)
    listening = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    monkeypatch.setattr(cluster_access, "servers_of", lambda url: [("127.0.0.1", port)])
    yield made
    listening.close()
    await listening.wait_closed()
    for bookie in made.bookies:
        await bookie.close()
    await made.store.close()


class Admin:
    """Answers like a broker."""

    def __init__(self, told: Mapping[str, Any] | None) -> None:
        self.told = told

    async def internal_configuration(self) -> Mapping[str, Any]:
        if self.told is None:
            raise Unavailable("no broker answers")
        return self.told


class Reached:
    """What `choose` asks."""

    def __init__(self, error: ClusterUnreachable | None = None) -> None:
        self.error = error
        self.asked = 0

    async def direct(self) -> DirectAccess:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return None  # type: ignore[return-value]  # Nothing is done with it.


async def test_choosing() -> None:
    reached, unreachable = Reached(), Reached(ClusterUnreachable("no way"))
    assert await choose(reached.direct, "brokers") == ("brokers", "readMode=brokers")
    assert reached.asked == 0
    assert (await choose(reached.direct, "auto"))[0] == "bookies"
    assert (await choose(reached.direct, "bookies"))[0] == "bookies"
    assert await choose(unreachable.direct, "auto") == ("brokers", "no way")
    with pytest.raises(ClusterUnreachable, match="no way"):
        await choose(unreachable.direct, "bookies")


async def test_reading_from_driver_and_executor(world: World) -> None:
    for _ in range(3):
        await world.start_bookie()
    access = await open_direct(OPTIONS)
    assert set(access.addresses()) == {bookie.bookie_id for bookie in world.bookies}
    sent = [b"%d" % number for number in range(2_500)]
    client, writer = await world.write(access, sent)
    metadata = await access.ledger_metadata(writer.ledger_id)
    assert metadata is not None
    part = LedgerRange(
        ledger_id=writer.ledger_id, first_entry_id=0, last_entry_id=len(sent) - 1, size_bytes=0, metadata=metadata
    )
    opened = 0

    async def direct() -> DirectAccess:
        nonlocal opened
        opened += 1
        return access

    task = TaskAccess(access.addresses(), direct)
    unknowing = TaskAccess({}, direct)
    nowhere = dataclasses.replace(part, metadata=b"")
    for source, what, times in (
        (access.entries(TOPIC), part, 0),
        (task.entries(TOPIC), part, 0),
        (unknowing.entries(TOPIC), nowhere, 1),
    ):
        entries = [
            entry
            async for block in source.blocks([what], lambda hole: pytest.fail(str(hole)))
            for entry in block.entries
        ]
        assert entries == sent
        assert opened == times

    # The writer has noticed nothing.
    assert await access.ledger_metadata(writer.ledger_id) == metadata
    writer.append([b"further"])
    await writer.close()
    await task.close()
    await unknowing.close()
    await client.close()
    await access.close()


async def test_an_executor_without_a_store(world: World) -> None:
    await world.start_bookie()
    await world.start_bookie()
    access = await open_direct(OPTIONS)
    client, writer = await world.write(access, [b"1", b"2"])
    await client.delete(writer.ledger_id)

    async def unreachable() -> DirectAccess:
        raise ClusterUnreachable("no store here")

    task = TaskAccess(access.addresses(), unreachable)
    part = LedgerRange(ledger_id=writer.ledger_id, first_entry_id=0, last_entry_id=1, size_bytes=0)
    with pytest.raises(ClusterUnreachable, match="no store here"):
        async for _ in task.entries(TOPIC).blocks([part], lambda hole: pytest.fail(str(hole))):
            pass
    await task.close()
    await client.close()
    await access.close()


async def test_nobody_says_where_the_store_is(world: World) -> None:
    nowhere = dataclasses.replace(OPTIONS, metadata_url="")
    with pytest.raises(ClusterUnreachable, match=r"neither option metadata\.url nor admin\.url"):
        await open_direct(nowhere)
    with pytest.raises(ClusterUnreachable, match="no broker answers"):
        await open_direct(nowhere, Admin(None).internal_configuration)
    with pytest.raises(ClusterUnreachable, match="inside of one process"):
        await open_direct(nowhere, Admin({"metadataStoreUrl": "rocksdb:///data"}).internal_configuration)
    assert not world.opened


async def test_brokers_say_where_the_stores_are(world: World) -> None:
    nowhere = dataclasses.replace(OPTIONS, metadata_url="")
    told = {"metadataStoreUrl": "zk:a:2181", "bookkeeperMetadataServiceUri": "metadata-store:zk:b:2181"}
    with pytest.raises(ClusterUnreachable, match="no cluster keeps its bookies at zk:b:2181"):
        await open_direct(nowhere, Admin(told).internal_configuration)
    assert world.opened == ["zk:a:2181", "zk:b:2181"]


async def test_no_bookie_can_be_reached(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.store.put("/ledgers/available/readonly", b"")
    with pytest.raises(ClusterUnreachable, match="no bookie is registered"):
        await open_direct(OPTIONS)
    await world.store.put(f"/ledgers/available/127.0.0.1:{free_port()}", b"")
    with pytest.raises(ClusterUnreachable, match=r"bookies cannot be reached from here \(127\.0\.0\.1:"):
        await open_direct(OPTIONS)

    # A network that swallows everything costs the probe's time and not more.
    async def silent(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        await asyncio.sleep(60)
        raise AssertionError

    monkeypatch.setattr(cluster_access, "PROBE_SECONDS", 0.05)
    monkeypatch.setattr(asyncio, "open_connection", silent)
    begin = time.monotonic()
    with pytest.raises(ClusterUnreachable, match=r"metadata store zk:127\.0\.0\.1:2181 cannot be reached from here"):
        await open_direct(OPTIONS)
    assert time.monotonic() - begin < 30


async def test_bookies_that_want_tls_are_read_through_brokers(world: World, tmp_path: Path) -> None:
    own = TestAuthority(tmp_path).issue("bookie")
    tls = BookieTlsSettings(
        provider=TLS_FACTORY,
        required=True,
        key_type=StoreType.PEM,
        key_store=own.key_file,
        certificate=own.certificate_file,
    )
    await world.start_bookie(tls=tls)
    with pytest.raises(ClusterUnreachable, match=r"bookie-0 serves nobody without TLS .*: readMode=brokers reads"):
        await open_direct(OPTIONS)


async def test_a_store_that_cannot_be_opened(world: World) -> None:
    world.refusal = Unavailable("no session")
    with pytest.raises(ClusterUnreachable, match="cannot be opened: no session"):
        await open_direct(OPTIONS)


async def test_compactions(world: World) -> None:
    await world.start_bookie()
    await world.start_bookie()
    access = await open_direct(OPTIONS)
    told: list[CompactedLedger | None] = []

    async def tell() -> CompactedLedger | None:
        return told.pop()

    assert await access.compaction(TOPIC, tell) is None
    client, compacted = await world.write(access, [b"a", b"b"])
    await compacted.close()
    position = PositionInfo(ledgerId=3, entryId=9)
    position.properties.append(LongProperty(name=LEDGER_PROPERTY, value=compacted.ledger_id))
    _, cursor = await world.write(access, [PositionInfo(ledgerId=3, entryId=1).SerializeToString()])
    cursor.append([position.SerializeToString()])
    info = ManagedCursorInfo(cursorsLedgerId=cursor.ledger_id, markDeleteLedgerId=1, markDeleteEntryId=1)
    await world.store.put(cursor_path("public/default/persistent/t", COMPACTION_CURSOR), info.SerializeToString())
    await cursor.close()
    found = await access.compaction(TOPIC, tell)
    assert found is not None
    compaction, ledger = found
    assert (compaction.ledger_id, tuple(compaction.horizon)[:2]) == (compacted.ledger_id, (3, 9))
    assert (ledger.entries, ledger.size_bytes, ledger.missing) == (2, 2, False)
    await client.delete(compacted.ledger_id)
    # Its broker may know of a newer one, of which nothing is stored yet.
    newer = CompactedLedger(cursor.ledger_id, MessagePosition(4, 0))
    told += [newer, CompactedLedger(compacted.ledger_id, MessagePosition(3, 9)), None]
    for _ in range(2):
        found = await access.compaction(TOPIC, tell)
        assert found is not None
        assert found[1].missing
    found = await access.compaction(TOPIC, tell)
    assert found is not None
    assert (found[0], found[1].entries, found[1].missing) == (newer, 2, False)
    await client.close()
    await access.close()
